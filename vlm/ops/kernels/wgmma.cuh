// Products of four warps together, whose right side lies in shared memory (compute capability 9.0 alone; gemm.cu,
// packed_flash.cu, prefill_flash.cu), behind vectors.cuh.

// Lets the tensor cores see what this thread sees in shared memory.
__device__ __forceinline__ void show_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Describes rows of 128 bytes as a tensor map with a swizzle of 128 bytes lays them: eight rows after 1024 bytes.
// (PTX, "Asynchronous Warpgroup Level Matrix Shared Memory Layout")
__device__ __forceinline__ u64 described(u32 at) {
    return (u64)((at & 0x3FFFF) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int LEFT> __device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
