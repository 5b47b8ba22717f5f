// RMS norms between products (gemm.cu), behind vectors.cuh and the sizes of a product: what the one ahead leaves of a norm,
// and what the one behind takes of it.

// Four values of a row, of float32 or bfloat16.
template <int TYPE> struct alignas(TYPE == FLOAT32 ? 16 : 8) Four {
    u32 v[TYPE == FLOAT32 ? 4 : 2];

    __device__ __forceinline__ void load(const void* from, u64 at) { *this = ((const Four*)from)[at / 4]; }

    __device__ __forceinline__ void unpack(float (&to)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (TYPE == FLOAT32) to[i] = __uint_as_float(v[i]);
            else to[i] = __uint_as_float(i % 2 ? v[i / 2] & 0xFFFF0000u : v[i / 2] << 16);
        }
    }
};

// A number as float32 or bfloat16 keeps it.
template <int TYPE> __device__ __forceinline__ float as_stored(float value) {
    return TYPE == FLOAT32 ? value : __uint_as_float(packed<true>(value, 0.0f) << 16);
}

// The sum of what the threads of a tile's row have: half a warp, the other half of which may have ended.
__device__ __forceinline__ float of_tile(float value) {
#pragma unroll
    for (int lanes = 1; lanes < TILE / 4; lanes *= 2)
        value += __shfl_xor_sync(0xFFFFu << (threadIdx.x & 16), value, lanes);
    return value;
}

// What an RMS norm is computed from, of the rows that come: `squares` [tiles, rows], the sums of the tiles' squares.
struct Norm {
    const float* squares;
    float eps;
};

// What a product leaves for the norm that follows it, beside the stream times the gain.
struct Following {
    const void *residual, *gain;
    void* stream;
    float* squares;
};

// Leaves one over the root of each row's mean square in shared memory.
__device__ __forceinline__ void load_norm(const Norm& norm, int first_row, int rows, u32 to) {
    constexpr int LANES = THREADS / ROWS, OF_ROW = INPUTS / TILE, EACH_LANE = (OF_ROW + LANES - 1) / LANES;
    const int own = threadIdx.x / LANES, lane = threadIdx.x % LANES, row = first_row + own;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < EACH_LANE; k++) {
        const int tile = lane + k * LANES;
        if (row < rows && tile < OF_ROW) squares += norm.squares[tile * rows + row];
    }
    const float by = rsqrtf(of_row<false, LANES>(squares) / INPUTS + norm.eps);
    if (lane == 0) store_float(to + 4 * own, by);
}

// Adds the residual to four outputs of a row, and leaves the new stream and its tile's sum of squares; `v` is then the stream
// times the gain.
__device__ __forceinline__ void follow(
    const Following& to, const Four<STREAM>& residual, const Four<BFLOAT16>& gain, int row, int rows, int output,
    float (&v)[4]) {
    float more[4], by[4], squares = 0.0f;
    residual.unpack(more), gain.unpack(by);
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = as_stored<STREAM>(v[j] + more[j]), squares += v[j] * v[j];
    if (row < rows) store4<STREAM>(to.stream, (u64)row * OUTPUTS + output, v);
    squares = of_tile(squares);
    if (row < rows && output % TILE == 0) to.squares[output / TILE * rows + row] = squares;
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] *= by[j];
}
