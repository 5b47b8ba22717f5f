// The product of several rows with a weight (compute capability 9.0).
//
// A program computes a tile of the outputs of ROWS rows, or a share of the inputs of one: the SPLITS programs of a
// cluster send each other their sums in the end, and each adds up those of its share of the rows. One warp copies: it
// requests the first parts of the weight before the kernels ahead of this one have ended, then those of the rows, and
// each further one as soon as its place is free. Groups of four warps multiply, 64 outputs each: the weight is the left side
// of the tensor cores' products, so that few rows leave no part of them empty.
//
// Sums of products of e4m3 keep some 14 bits in the tensor cores: those of a stage are added in float32.
//
// An RMS norm between two products is none of its own kernels. The one ahead of it (FOLLOWED) adds the residual stream, and
// leaves the new stream, its product with the norm's gain, and the sum of squares of each tile of a row. The one behind it
// (NORM) takes that product for its rows, and divides its sums by the root of the row's mean square.
//
// Defined when it is compiled: KIND, Y_TYPE, BIAS_TYPE, ACT, NORM, FOLLOWED, STREAM (see the lists), BIAS, GATED, INPUTS,
// OUTPUTS, GROUPS, ROWS (8, 16, 32, 64 or 128; those beyond the rows that there are come as zeros), SPLITS, STAGES.

#include "vectors.cuh"
#include "barriers.cuh"
#include "clusters.cuh"
#include "boxes.cuh"
#include "products.cuh"
#include "wgmma.cuh"

#define INT8 0
#define E4M3 1
#define DENSE_FLOAT16 2
#define DENSE_BFLOAT16 3

constexpr bool SCALED = KIND == INT8 || KIND == E4M3;
constexpr int THREADS = 128 * GROUPS;                    // that multiply
constexpr int TILE = 64 * GROUPS;                        // rows of the weight
constexpr int RESULTS = GATED ? TILE / 2 : TILE;         // of a row of x: where they are gated, half a tile is gates
constexpr int WIDTH = GATED ? OUTPUTS / 2 : OUTPUTS;     // of a row of y
constexpr int LINE = 128;                                // bytes of a row of a stage
constexpr int WEIGHT_STAGE = TILE * LINE, STAGE = WEIGHT_STAGE + ROWS * LINE;
constexpr int CHUNKS = INPUTS * (SCALED ? 1 : 2) / LINE;  // stages of a row
constexpr int PAIRS = ROWS / 2, PAIRS_EACH = PAIRS / SPLITS;  // of rows, and those that a program of a cluster finishes
constexpr int PITCH = 2 * TILE + 8;                      // of sums [PAIRS, TILE, 2]
constexpr int VECTORS = RESULTS / 4;
constexpr int PAIRS_APART = THREADS / VECTORS;           // those of a thread
constexpr int EACH = (PAIRS_EACH + PAIRS_APART - 1) / PAIRS_APART;
static_assert(PAIRS_EACH > 0, "a program of a cluster finishes two rows or more");
static_assert(!FOLLOWED || OUTPUTS % TILE == 0 && !GATED, "a norm's rows are whole tiles");
static_assert(GROUPS == 1 || !FOLLOWED && !NORM, "a norm's tiles are those of a group");

#include "product_norms.cuh"

#if KIND == INT8
typedef int Sum;
#else
typedef float Sum;
#endif

__device__ __forceinline__ void multiplying_warps_meet() { warps_meet<1, THREADS>(); }

// Computes 64 outputs of ROWS rows, of 32 bytes of inputs, and adds them to the sums if `adds` is not 0.
__device__ __forceinline__ void multiply(Sum (&c)[ROWS / 2], u64 weight, u64 x, int adds) {
#if KIND == INT8
#define C(i) "+r"(c[i])
#define TYPES "k32.s32.s8.s8 "
#define SIGNS ", p; }"
#else
#define C(i) "+f"(c[i])
#if KIND == E4M3
#define TYPES "k32.f32.e4m3.e4m3 "
#define SIGNS ", p, 1, 1; }"
#elif KIND == DENSE_FLOAT16
#define TYPES "k16.f32.f16.f16 "
#define SIGNS ", p, 1, 1, 0, 0; }"
#else
#define TYPES "k16.f32.bf16.bf16 "
#define SIGNS ", p, 1, 1, 0, 0; }"
#endif
#endif
#define C4(i) C(i), C(i + 1), C(i + 2), C(i + 3)
#define C8(i) C4(i), C4(i + 4)
#define PRODUCT(N, ADDS) \
    "{ .reg .pred p; setp.ne.b32 p, %" #ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #N TYPES
#if ROWS == 8
    asm volatile(PRODUCT(8, 6)
                 "{%0, %1, %2, %3}, %4, %5" SIGNS
                 : C4(0) : "l"(weight), "l"(x), "r"(adds));
#elif ROWS == 16
    asm volatile(PRODUCT(16, 10)
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9" SIGNS
                 : C8(0) : "l"(weight), "l"(x), "r"(adds));
#elif ROWS == 32
    asm volatile(PRODUCT(32, 18)
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17" SIGNS
                 : C8(0), C8(8) : "l"(weight), "l"(x), "r"(adds));
#elif ROWS == 64
    asm volatile(PRODUCT(64, 34)
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33" SIGNS
                 : C8(0), C8(8), C8(16), C8(24) : "l"(weight), "l"(x), "r"(adds));
#elif ROWS == 128
    asm volatile(PRODUCT(128, 66)
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65" SIGNS
                 : C8(0), C8(8), C8(16), C8(24), C8(32), C8(40), C8(48), C8(56) : "l"(weight), "l"(x), "r"(adds));
#endif
}

// Lets the compiler know that products change the sums behind its back.
__device__ __forceinline__ void fence(Sum (&c)[ROWS / 2]) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) asm volatile("" : C(i)::"memory");
}

struct Sums { Sum v[2][4]; };  // of two rows

__device__ __forceinline__ u32 bits_of(int x) { return x; }
__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }

// Sums of four outputs, which lie in shared memory.
__device__ __forceinline__ Sums sums_at(u32 at) {
    Sums r;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        const Vector two = load_shared(at + 8 * j);
#pragma unroll
        for (int i = 0; i < 4; i++)
#if KIND == INT8
            r.v[i % 2][j + i / 2] = (int)two.v[i];
#else
            r.v[i % 2][j + i / 2] = __uint_as_float(two.v[i]);
#endif
    }
    return r;
}

// The tile of a program, and its share of the stages.
struct Share {
    int row, output, split, first, count;
    __device__ __forceinline__ Share() {
        row = blockIdx.z * ROWS, output = blockIdx.y * RESULTS, split = SPLITS > 1 ? blockIdx.x : 0;
        first = split * CHUNKS / SPLITS, count = (split + 1) * CHUNKS / SPLITS - first;
    }
};

__device__ __forceinline__ void copy_weight(const TensorMap* weight, const Share& share, int chunk, u32 to, u32 barrier) {
    barrier_expect(barrier, STAGE);
    copy_streamed(to, weight, share.output, share.first + chunk, barrier);
    if (GATED) copy_streamed(to + WEIGHT_STAGE / 2, weight, share.output + WIDTH, share.first + chunk, barrier);
}

// Requests all stages in turn: of the first ones the weight before the rows are there.
__device__ __forceinline__ void copy_all(const TensorMap* weight, const TensorMap* x, u32 memory, u32 full, u32 empty) {
    const Share share;
    const int ahead = min(STAGES, share.count);
    for (int i = 0; i < ahead; i++) copy_weight(weight, share, i, memory + i * STAGE, full + 8 * i);
    let_next_begin();
    wait_for_inputs();
    for (int i = 0; i < ahead; i++) copy(memory + i * STAGE + WEIGHT_STAGE, x, share.row, share.first + i, full + 8 * i);
    int stage = 0, parity = 0;
    for (int i = ahead; i < share.count; i++) {
        const u32 to = memory + stage * STAGE, barrier = full + 8 * stage;
        barrier_wait(empty + 8 * stage, parity);
        copy_weight(weight, share, i, to, barrier);
        copy(to + WEIGHT_STAGE, x, share.row, share.first + i, barrier);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

// Requests the products of a stage with the outputs of a group.
__device__ __forceinline__ void multiply_stage(Sum (&c)[ROWS / 2], u32 at, bool adds) {
    const u32 weight = at + (GROUPS > 1 ? threadIdx.x / 128 * (64 * LINE) : 0), x = at + WEIGHT_STAGE;
    fence(c);
    begin_products();
#pragma unroll
    for (int k = 0; k < LINE; k += 32) multiply(c, described(weight + k), described(x + k), adds || k);
    end_products();
    fence(c);
}

// Sums up this program's share of the inputs.
__device__ __forceinline__ void multiply_all(Sum (&c)[ROWS / 2], const Share& share, u32 memory, u32 full, u32 empty) {
    const bool signals = threadIdx.x % 32 == 0;
    int stage = 0, parity = 0, freed = 0;
    for (int i = 0; i < share.count; i++) {
        barrier_wait(full + 8 * stage, parity);
#if KIND == E4M3
        Sum more[ROWS / 2];
        multiply_stage(more, memory + stage * STAGE, false);
        wait_for_products<0>();
        fence(more);
        if (signals) barrier_arrive(empty + 8 * stage);
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++) c[j] += more[j];
#else
        multiply_stage(c, memory + stage * STAGE, true);
        if (i) {  // the stage before it has been read
            wait_for_products<1>();
            if (signals) barrier_arrive(empty + 8 * freed);
            if (++freed == STAGES) freed = 0;
        }
#endif
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    wait_for_products<0>();
    fence(c);
}

// Lays a thread's sums as [PAIRS, TILE, 2]; those of rows that other programs finish are sent to these, which have them of
// each program as [PAIRS_EACH, TILE, 2], and a barrier that counts what comes.
__device__ __forceinline__ void hand_over(const Sum (&c)[ROWS / 2], const Share& share, u32 sums, u32 arrived) {
    const int lane = threadIdx.x % 32, output = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i += 2) {
        const int pair = i / 4 * 4 + lane % 4, program = pair / PAIRS_EACH;
        const int row = share.split * PAIRS_EACH + pair % PAIRS_EACH, column = 2 * (output + i / 2 % 2 * 8);
        const u32 at = sums + 4 * (row * PITCH + column), low = bits_of(c[i]), high = bits_of(c[i + 1]);
        if (program == share.split) store_shared(at, low, high);
        else send(address_in(program, at), low, high, address_in(program, arrived));
    }
}

// What four outputs are multiplied by, and what is added to them.
struct Affine {
    float scale[4], bias[4];

    __device__ __forceinline__ Affine(const float* weight_scale, const void* bias_at, int output) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scale[j] = SCALED && output < OUTPUTS ? weight_scale[output + j] : 1.0f;
            bias[j] = BIAS && output < OUTPUTS ? value_at<BIAS_TYPE>(bias_at, output + j) : 0.0f;
        }
    }

    // `to`: four outputs of one of two rows.
    __device__ __forceinline__ void apply(const Sums (&parts)[SPLITS], int row, float of_row, float (&to)[4]) const {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            Sum sum = parts[0].v[row][j];
#pragma unroll
            for (int other = 1; other < SPLITS; other++) sum += parts[other].v[row][j];
            to[j] = (SCALED ? sum * of_row * scale[j] : NORM ? sum * of_row : sum) + bias[j];
        }
    }
};

// Loads the sums of every program of the cluster.
__device__ __forceinline__ void load_parts(Sums (&parts)[SPLITS], u32 at) {
#pragma unroll
    for (int program = 0; program < SPLITS; program++) parts[program] = sums_at(at + program * 4 * PAIRS_EACH * PITCH);
}

extern "C" __global__ void __launch_bounds__(THREADS + 32) gemm(
    const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x, const float* weight_scale,
    const float* x_scale, const void* bias, void* y, int rows, const float* squares, float eps, const void* residual,
    const void* gain, void* stream, float* new_squares) {
    const Norm norm = {squares, eps};
    const Following following = {residual, gain, stream, new_squares};
    extern __shared__ char unaligned[];
    const u32 memory = (shared_address(unaligned) + 1023) & ~1023u, ring_end = memory + STAGES * STAGE;
    // sums take the place of the stages; not those that other programs send while this one still multiplies
    const u32 sums = SPLITS > 1 ? ring_end : memory, full = ring_end + (SPLITS > 1 ? 4 * PAIRS * PITCH : 0);
    const u32 empty = full + 8 * STAGES, arrived = empty + 8 * STAGES, of_rows = arrived + 8;  // [ROWS], of a norm

    if (threadIdx.x == THREADS) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, THREADS / 32);
        }
        if (SPLITS > 1) barrier_init(arrived, 1), barrier_expect(arrived, 8 * (PAIRS - PAIRS_EACH) * TILE);
        show_barriers();
    }
    __syncthreads();
    if (SPLITS > 1) cluster_arrive();
    if (threadIdx.x >= THREADS) {
        if (threadIdx.x == THREADS) copy_all(&weight, &x, memory, full, empty);
        return;
    }
    const Share share;
    // every thread has the same four outputs of several rows; what they are scaled by is on its way, too
    const int result = threadIdx.x % VECTORS * 4, output = share.output + result;
    const Affine affine(weight_scale, bias, output), of_gated(weight_scale, bias, GATED ? output + WIDTH : OUTPUTS);
    Four<BFLOAT16> gains = {};
    if (FOLLOWED) gains.load(following.gain, output);
    if (NORM) {
        wait_for_inputs();
        load_norm(norm, share.row, rows, of_rows);
    }
    Sum c[ROWS / 2] = {};
    multiply_all(c, share, memory, full, empty);
    wait_for_inputs();  // for the scales of the rows
    if (SPLITS > 1) cluster_wait();  // the others have begun
    else multiplying_warps_meet();   // the stages' memory is free: all copies have come, all products have read theirs
    hand_over(c, share, sums, arrived);
    const int first = threadIdx.x / VECTORS;                                 // pair of those that this program finishes
    const int first_row = share.row + 2 * (share.split * PAIRS_EACH + first);
    float of_row[EACH][2];
    Four<STREAM> residuals[FOLLOWED ? EACH : 1][2] = {};
#pragma unroll
    for (int k = 0; k < EACH; k++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = first_row + 2 * k * PAIRS_APART + i;
            of_row[k][i] = SCALED && row < rows ? x_scale[row] : 1.0f;
            if (FOLLOWED && row < rows) residuals[FOLLOWED ? k : 0][i].load(following.residual, (u64)row * OUTPUTS + output);
        }
    multiplying_warps_meet();
    if (SPLITS > 1) barrier_wait_for_other(arrived, 0);
    if (threadIdx.x < PAIRS_EACH * VECTORS) {
        Sums parts[EACH][SPLITS], gated[GATED ? EACH : 1][SPLITS];
#pragma unroll
        for (int k = 0; k < EACH; k++) {  // all of them, before any is waited for
            const u32 at = sums + 4 * ((first + k * PAIRS_APART) * PITCH + 2 * result);
            load_parts(parts[k], at);
            if (GATED) load_parts(gated[GATED ? k : 0], at + 8 * RESULTS);
        }
#pragma unroll
        for (int k = 0; k < EACH; k++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = first_row + 2 * k * PAIRS_APART + i;
                float values[4], more[4];
                if (NORM) of_row[k][i] = float_at(of_rows + 4 * (row - share.row));
                affine.apply(parts[k], i, of_row[k][i], values);
                if (GATED) of_gated.apply(gated[GATED ? k : 0], i, of_row[k][i], more);
#pragma unroll
                for (int j = 0; j < 4; j++) values[j] = GATED ? activation(values[j]) * more[j] : activation(values[j]);
                if (FOLLOWED) follow(following, residuals[FOLLOWED ? k : 0][i], gains, row, rows, output, values);
                if (row < rows && output < WIDTH) store4<Y_TYPE>(y, (u64)row * WIDTH + output, values);
            }
    }
}
