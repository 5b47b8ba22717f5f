// Programs of a cluster, which read and write each other's shared memory (absorbed_attention.cu, attend.cu, attend_group.cu,
// gemm.cu), behind vectors.cuh.

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void cluster_meets() { cluster_arrive(), cluster_wait(); }

// Does so where all lanes of a warp are together.
__device__ __forceinline__ void cluster_meets_aligned() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where a program of the cluster has what this one has at an address.
__device__ __forceinline__ u32 address_in(int program, u32 address) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(program));
    return r;
}
