// The product of a row with a weight that comes through shared memory in boxes (compute capability 9.0 and up).
//
// A program computes tiles of 16 outputs. One warp copies: it requests the first STAGES parts of the weight before the
// kernels ahead of this one have ended, and each further one as soon as its place is free. WARPS warps multiply: of a
// stage each has 64 bytes of every row, which lie as the tensor cores' product of 16 x 8 x 16 takes them (vlm.ops.
// int4_packing). The row of x is one of the eight columns of its right side; what the others hold does not matter. The
// sums of the warps meet once, in the end.
//
// Defined when it is compiled: KIND, X_TYPE, Y_TYPE, ACT (see the lists), GATED, BIAS, ZERO, GROUP, WARPS, STAGES.

#define INT8 1
#define E4M3 2
#define INT4 3

#define FLOAT16 0
#define BFLOAT16 1
#define FLOAT32 2

#define NO_ACT 0
#define GELU 1
#define GELU_NEW 2
#define RELU 3
#define SILU 4

typedef unsigned int u32;

constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16;                           // outputs of a tile
constexpr int PIECE = 64;                          // bytes of a row that a warp has of a stage
constexpr int ROW = WARPS * PIECE;                 // bytes of a row in a stage
constexpr int LINE = 128;                          // bytes of a row that lie together in a box
constexpr int BOX = 8 * ROW, STAGE = 2 * BOX;      // half a tile's rows: [ROW / LINE, 8, LINE]
constexpr int INPUTS = KIND == INT4 ? 128 : 64;    // inputs of a piece
constexpr bool SCALED_X = X_TYPE == BFLOAT16;      // so that it fits float16

struct alignas(16) Vector { u32 v[4]; };
// Of the weight [outputs, bytes of a row], as [lines, outputs, LINE].
struct alignas(64) TensorMap { char opaque[128]; };

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

// Requests the box of eight rows at a row and a line of the weight.
__device__ __forceinline__ void copy(u32 to, const TensorMap* weight, int row, int line, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4}], [%5];"
        ::"r"(to), "l"(weight), "r"(0), "r"(row), "r"(line), "r"(barrier) : "memory");
}

// Only lanes that say so load: the others keep what they have.
__device__ __forceinline__ void load_shared_if(bool loads, u32 at, Vector& r) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(r.v[0]), "+r"(r.v[1]), "+r"(r.v[2]), "+r"(r.v[3]) : "r"(at), "r"((u32)loads));
}

__device__ __forceinline__ Vector load_shared(u32 at) {
    Vector r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]) : "r"(at));
    return r;
}

__device__ __forceinline__ Vector load_global(const Vector* at) {
    Vector r;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]) : "l"(at) : "memory");
    return r;
}

__device__ __forceinline__ void multiply_add(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two values of 8 bits, the low or the high ones of four, as float16. An integer is laid into the lowest bits of 1024.
template <bool HIGH> __device__ __forceinline__ u32 unpacked8(u32 q) {
    u32 r;
#if KIND == INT8
    asm("{ .reg .b32 h, o; prmt.b32 h, %1, 0x64646464, %2; mov.b32 o, 0x64806480; sub.rn.f16x2 %0, h, o; }"
        : "=r"(r) : "r"(q ^ 0x80808080u), "n"(HIGH ? 0x5352 : 0x5150));
#else
    unsigned short two = HIGH ? (unsigned short)(q >> 16) : (unsigned short)q;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two));
#endif
    return r;
}

// Levels of 4 bits less 8 as float16: those of the lowest nibbles of two halves, and those of the nibbles above them.
// (As subnormal numbers they would need no subtraction, but products with those are added with ten bits less.)
__device__ __forceinline__ u32 low4(u32 q) {
    u32 r;
    asm("{ .reg .b32 u, o; lop3.b32 u, %1, 0x000F000F, 0x64006400, 0xEA; mov.b32 o, 0x64086408;"
        " sub.rn.f16x2 %0, u, o; }"
        : "=r"(r) : "r"(q));
    return r;
}

__device__ __forceinline__ u32 high4(u32 q) {  // of 1024 + 16 level, a sixteenth less 72
    u32 r;
    asm("{ .reg .b32 u, p, o; lop3.b32 u, %1, 0x00F000F0, 0x64006400, 0xEA; mov.b32 p, 0x2C002C00;"
        " mov.b32 o, 0xD480D480; fma.rn.f16x2 %0, u, p, o; }"
        : "=r"(r) : "r"(q));
    return r;
}

__device__ __forceinline__ float upper_half(u32 two) { return __uint_as_float(two & 0xFFFF0000u); }
__device__ __forceinline__ float lower_half(u32 two) { return __uint_as_float(two << 16); }

__device__ __forceinline__ u32 float16s(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ float float_of(u32 low) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((unsigned short)low));
    return r;
}

__device__ __forceinline__ void multiplying_warps_meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

__device__ __forceinline__ float activation(float x) {
#if ACT == GELU
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
#elif ACT == GELU_NEW
    float t = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (2.0f - 2.0f / (__expf(2.0f * t) + 1.0f));
#elif ACT == RELU
    return fmaxf(x, 0.0f);
#elif ACT == SILU
    return x / (1.0f + __expf(-x));
#else
    return x;
#endif
}

template <int TYPE> __device__ __forceinline__ float value_at(const void* p, int i) {
    if (TYPE == FLOAT32) return ((const float*)p)[i];
    unsigned short bits = ((const unsigned short*)p)[i];
    float r;
    if (TYPE == BFLOAT16) return __uint_as_float((u32)bits << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
    return r;
}

template <int TYPE> __device__ __forceinline__ void store(void* p, int i, float value) {
    unsigned short bits;
    if (TYPE == FLOAT32) { ((float*)p)[i] = value; return; }
    if (TYPE == BFLOAT16) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    ((unsigned short*)p)[i] = bits;
}

// Lays x into shared memory in float16, and the sums of its pieces; returns what its products are to be multiplied by.
__device__ float stage_x(const Vector* x, Vector* to, float* sums, float* largest, int inputs) {
    const int thread = threadIdx.x, vectors = inputs / 8;
    float by = 1.0f;
    if (SCALED_X) {
        float most = 0.0f;
        for (int i = thread; i < vectors; i += THREADS) {
            const Vector v = load_global(x + i);
            to[i] = v;
            for (int j = 0; j < 4; j++) most = fmaxf(most, fmaxf(fabsf(lower_half(v.v[j])), fabsf(upper_half(v.v[j]))));
        }
        for (int lanes = 16; lanes; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
        if (thread % 32 == 0) largest[thread / 32] = most;
        multiplying_warps_meet();
        for (int i = 0; i < WARPS; i++) most = fmaxf(most, largest[i]);
        // the power of two that takes the largest value to between 2^14 and 2^15
        const int exponent = max((int)((__float_as_uint(most) >> 23) & 255), 15);
        by = __uint_as_float((u32)(127 + 127 + 14 - exponent) << 23);
    }
    for (int i = thread; i < (vectors + 31) / 32 * 32; i += THREADS) {  // whole warps, for the sums
        Vector v = {};
        if (i < vectors) {
            v = SCALED_X ? to[i] : load_global(x + i);
            if (SCALED_X)
                for (int j = 0; j < 4; j++) v.v[j] = float16s(lower_half(v.v[j]) * by, upper_half(v.v[j]) * by);
            to[i] = v;
        }
        if (!ZERO) continue;
        float sum = 0.0f;
        for (int j = 0; j < 4; j++) sum += float_of(v.v[j]) + float_of(v.v[j] >> 16);
        for (int lanes = 1; lanes < INPUTS / 8; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        if (i < vectors && i % (INPUTS / 8) == 0) sums[i / (INPUTS / 8)] = sum;
    }
    return 1.0f / by;
}

extern "C" __global__ void __launch_bounds__(THREADS + 32) gemv(
    const __grid_constant__ TensorMap weight, const Vector* x, const float* scale, const unsigned char* zero,
    const void* bias, void* y, int outputs, int inputs, int tiles_each, int with_one_more) {
    extern __shared__ __align__(1024) char memory[];
    const int row_bytes = inputs / INPUTS * PIECE, pieces = row_bytes / PIECE;
    const int half = outputs / 2, results = GATED ? half : outputs;
    constexpr int per_tile = GATED ? ROWS / 2 : ROWS;  // results of a tile
    const int program = blockIdx.x, num_tiles = tiles_each + (program < with_one_more);
    const int first = program * tiles_each + min(program, with_one_more), last = first + num_tiles;
    const int chunks = (row_bytes + ROW - 1) / ROW, stages = num_tiles * chunks;

    const u32 weights = shared_address(memory);
    char* staged_x = memory + STAGES * STAGE;
    float* sums = (float*)(staged_x + 2 * inputs);  // [tiles, WARPS, ROWS]
    float* largest = sums + num_tiles * WARPS * ROWS;
    float* sums_of_x = largest + WARPS;
    const u32 full = shared_address(sums_of_x + (ZERO ? (pieces + 3) / 4 * 4 : 0)), empty = full + 8 * STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (warp == WARPS) {
        if (lane == 0)
            for (int s = 0; s < STAGES; s++) {
                barrier_init(full + 8 * s, 1);
                barrier_init(empty + 8 * s, WARPS);
            }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        int tile = first, chunk = 0, stage = 0, parity = 1;
        for (int i = 0; i < stages; i++) {
            if (lane == 0) {
                const u32 barrier = full + 8 * stage, to = weights + stage * STAGE;
                if (i >= STAGES) barrier_wait(empty + 8 * stage, parity);
                barrier_expect(barrier, STAGE);
                copy(to, &weight, tile * per_tile, chunk * (ROW / LINE), barrier);
                copy(to + BOX, &weight, tile * per_tile + (GATED ? half : 8), chunk * (ROW / LINE), barrier);
            }
            if (i == min(STAGES, stages) - 1) {
                __syncwarp();
                asm volatile("bar.arrive 2, %0;" ::"n"(THREADS + 32) : "memory");
                asm volatile("griddepcontrol.launch_dependents;");
            }
            if (++chunk == chunks) chunk = 0, tile++;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        return;
    }

    // what is added and multiplied in the end is on its way, too
    float scales_of_mine[2], biases[2];
    const int mine = threadIdx.x, result = first * per_tile + mine;
    const bool has_result = mine < num_tiles * per_tile;
#pragma unroll
    for (int of = 0; of < (GATED ? 2 : 1); of++) {
        scales_of_mine[of] = has_result && KIND != INT4 ? scale[result + of * half] : 1.0f;
        biases[of] = has_result && BIAS ? value_at<X_TYPE>(bias, result + of * half) : 0.0f;
    }

    // row of a box: eight lanes read two rows at once, four apart, which the copy laid into different banks
    const int row = lane / 4 % 2 * 4 + lane / 8, part = lane % 4;
    const u32 weights_at = weights + warp / 2 * (8 * LINE) + row * LINE + ((warp % 2 * 4 + part) ^ row) * 16;
#if KIND == INT4
    // Of four lanes that have the columns of a row, `part` sums the stages part, part + 4, …: its scales come early.
    const int groups = inputs / GROUP;
    float scales[2][2], zeros[2][2];  // of this of its stages and the next, of `row` of the two boxes
    int of_tile = 0, of_chunk = part;
    auto load_scales = [&](int to) {
        while (of_chunk >= chunks) of_chunk -= chunks, of_tile++;
        const int piece = of_chunk * WARPS + warp;
        if (first + of_tile < last && piece < pieces) {
            const int at = ((first + of_tile) * per_tile + row) * groups + piece * INPUTS / GROUP;
            const int other = at + (GATED ? half : 8) * groups;
            scales[to][0] = scale[at], scales[to][1] = scale[other];
            zeros[to][0] = ZERO ? zero[at] - 8.0f : 0.0f, zeros[to][1] = ZERO ? zero[other] - 8.0f : 0.0f;
        }
        of_chunk += 4;
    };
    load_scales(0);
    load_scales(1);
#endif

    asm volatile("griddepcontrol.wait;" ::: "memory");
    const float of_x = stage_x(x, (Vector*)staged_x, sums_of_x, largest, inputs);
    asm volatile("bar.sync 2, %0;" ::"n"(THREADS + 32) : "memory");  // with what the copying warp did first

    const u32 x_at = shared_address(staged_x) + 16 * part * (KIND == INT4 ? 1 : 2);
    float low = 0.0f, high = 0.0f;  // of `row` of the two boxes
    float* to = sums + warp * ROWS + row;
    Vector x0 = {}, x1 = {}, x2 = {}, x3 = {};
    int chunk = 0, stage = 0, parity = 0;
    for (int i = 0; i < stages; i++) {
        const int piece = chunk * WARPS + warp;
        barrier_wait(full + 8 * stage, parity);
        if (piece < pieces) {
            const Vector a = load_shared(weights_at + stage * STAGE), b = load_shared(weights_at + stage * STAGE + BOX);
            const u32 at = x_at + piece * INPUTS * 2;
            float c[2][4] = {};
#if KIND == INT4
            const bool loads = lane / 4 == 2 * (i % 4);  // the column that the lanes `part` == i % 4 have
            load_shared_if(loads, at, x0), load_shared_if(loads, at + 64, x1);
            load_shared_if(loads, at + 128, x2), load_shared_if(loads, at + 192, x3);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 p = a.v[j] >> 8, q = b.v[j] >> 8;
                multiply_add(c[0], low4(a.v[j]), low4(b.v[j]), low4(p), low4(q), x0.v[j], x2.v[j]);
                multiply_add(c[1], high4(a.v[j]), high4(b.v[j]), high4(p), high4(q), x1.v[j], x3.v[j]);
            }
            if (i % 4 == part) {
                const float sum = ZERO ? sums_of_x[piece] : 0.0f;
                low += scales[0][0] * (c[0][0] + c[1][0] - zeros[0][0] * sum);
                high += scales[0][1] * (c[0][2] + c[1][2] - zeros[0][1] * sum);
            }
#else
            load_shared_if(lane < 4, at, x0), load_shared_if(lane < 4, at + 16, x1);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 p = (j < 2 ? x0 : x1).v[2 * (j % 2)], q = (j < 2 ? x0 : x1).v[2 * (j % 2) + 1];
                multiply_add(c[j % 2], unpacked8<false>(a.v[j]), unpacked8<false>(b.v[j]), unpacked8<true>(a.v[j]),
                             unpacked8<true>(b.v[j]), p, q);
            }
            low += c[0][0] + c[1][0];
            high += c[0][2] + c[1][2];
#endif
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + 8 * stage);
#if KIND == INT4
        if (i % 4 == 3) {
            for (int j = 0; j < 2; j++) scales[0][j] = scales[1][j], zeros[0][j] = zeros[1][j];
            load_scales(1);
        }
#endif
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (++chunk < chunks) continue;
#if KIND == INT4
        for (int lanes = 1; lanes < 4; lanes *= 2) {
            low += __shfl_xor_sync(~0u, low, lanes);
            high += __shfl_xor_sync(~0u, high, lanes);
        }
#endif
        if (part == 0) to[0] = low, to[8] = high;
        to += WARPS * ROWS;
        low = high = 0.0f;
        chunk = 0;
    }
    multiplying_warps_meet();

    if (!has_result) return;
    float values[2];
#pragma unroll
    for (int of = 0; of < (GATED ? 2 : 1); of++) {
        const float* from = sums + mine / per_tile * WARPS * ROWS + mine % per_tile + of * per_tile;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += from[w * ROWS];
        values[of] = sum * of_x * scales_of_mine[of] + biases[of];
    }
    store<Y_TYPE>(y, result, GATED ? activation(values[0]) * values[1] : activation(values[0]));
}
