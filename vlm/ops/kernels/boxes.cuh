// Boxes of matrices that are copied to shared memory (absorbed_attention.cu, gemm.cu, gemv.cu), behind vectors.cuh.

// Of a matrix [rows, bytes of a row], as [lines, rows, 128].
struct alignas(64) TensorMap { char opaque[128]; };

// Requests the box of a matrix at a row and a line.
__device__ __forceinline__ void copy(u32 to, const TensorMap* matrix, int row, int line, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4}], [%5];"
        ::"r"(to), "l"(matrix), "r"(0), "r"(row), "r"(line), "r"(barrier) : "memory");
}

// The same of a weight, which is read again when all others were: it drives nothing else out of the second-level cache,
// such as the code of kernels.
__device__ __forceinline__ void copy_streamed(u32 to, const TensorMap* matrix, int row, int line, u32 barrier) {
    constexpr unsigned long long EVICT_FIRST = 0x12F0000000000000ull;
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%2, %3, %4}], [%5], %6;"
        ::"r"(to), "l"(matrix), "r"(0), "r"(row), "r"(line), "r"(barrier), "l"(EVICT_FIRST) : "memory");
}
