// The product of a row with a weight that comes through shared memory in boxes (compute capability 9.0 and up), and the
// norm ahead of it, if there is one.
//
// A program computes tiles of 16 outputs. One warp copies: it requests the first parts of the weight before the kernels
// ahead of this one have ended, and each further one as soon as its place is free and few enough are on their way. WARPS
// warps multiply: of a stage each has PIECES times 64 bytes of every row, which lie as the tensor cores' products take
// them (vlm.ops.int4_packing). The sums of the warps meet once, in the end. Every program normalizes the whole row for
// itself.
//
// The right side of a product of the tensor cores has eight columns. In the type of x, and for e4m3, which becomes
// float16, the row is the first of them. Weights that are integers stay so: the row is rounded to 31 bits below the
// power of two above its largest value, and its four bytes are four columns, whose sums are exact. To make float16 of 4
// bits takes three times the instructions.
//
// What a program goes through once takes as long as its code is long, as nothing of it is at hand: so all is decided
// when it is compiled. Defined then: KIND, X_TYPE, Y_TYPE, ACT (see the lists), GATED, BIAS, ZERO, INPUTS, OUTPUTS,
// GROUPS, NORM, ADD and the types STREAM and DELTA, PROGRAMS, WARPS, PIECES, STAGES, DEPTH.

#include "products.cuh"

#define INT8 0
#define E4M3 1
#define INT4 2
#define DENSE 3  // in the type of x

#define NO_NORM 0
#define RMS_NORM 1
#define LAYER_NORM 2

constexpr int THREADS = 32 * WARPS;                // that multiply
constexpr int ROWS = 16;                           // outputs of a tile
constexpr int PIECE = 64;                          // bytes of a row that a warp multiplies at once
constexpr int ROW = WARPS * PIECES * PIECE;        // bytes of a row in a stage
constexpr int LINE = 128;                          // bytes of a row that lie together in a box
constexpr int BOX = 8 * ROW, STAGE = 2 * BOX;      // half a tile's rows: [ROW / LINE, 8, LINE]
constexpr int PIECE_INPUTS = KIND == INT4 ? 128 : KIND == DENSE ? 32 : 64;
constexpr bool INTEGERS = KIND == INT8 || KIND == INT4;
constexpr int X_BYTES = INTEGERS ? 4 : 2;          // of a value of the row in shared memory
constexpr int VECTORS_OF_X = PIECE_INPUTS * X_BYTES / (INTEGERS ? 256 : 64);  // of a piece, that a lane multiplies
constexpr int NUM_PIECES = INPUTS / PIECE_INPUTS, CHUNKS = (NUM_PIECES * PIECE + ROW - 1) / ROW;  // stages of a tile
constexpr int PER_TILE = GATED ? ROWS / 2 : ROWS;  // results
constexpr int OTHER = GATED ? OUTPUTS / 2 : 8;     // rows of the weight from a tile's first half to its second
constexpr int TILES = (OUTPUTS + ROWS - 1) / ROWS, TILES_EACH = TILES / PROGRAMS, WITH_ONE_MORE = TILES % PROGRAMS;
constexpr int MOST_TILES = TILES_EACH + (WITH_ONE_MORE > 0);
constexpr int RESULTS = (MOST_TILES * PER_TILE + THREADS - 1) / THREADS;  // of a thread
constexpr int IN_VECTORS = INPUTS / 8;             // of the row, 8 values each
constexpr int VECTORS = (IN_VECTORS + THREADS - 1) / THREADS;             // of a thread
constexpr int SCALES = KIND == INT4 ? ROWS * GROUPS * 4 : 0;              // bytes of a tile's scales
constexpr int ZEROS = ZERO ? ROWS * GROUPS : 0;                           // and of its zero points
// places for those of tiles: of one that begins while a stage is left of the last one in a place, there is another
constexpr int NEEDED = (STAGES - 1 + CHUNKS - 1) / CHUNKS + 1;
constexpr int PLACES = KIND != INT4 ? 0 : MOST_TILES < NEEDED ? MOST_TILES : NEEDED;
constexpr bool SCALED_X = INTEGERS || (X_TYPE == BFLOAT16 && KIND == E4M3);  // so that it fits 31 bits, or float16
constexpr bool PER_OUTPUT = KIND == INT8 || KIND == E4M3;                 // scales of outputs
#if KIND == INT8 || KIND == INT4
typedef int Sum;
#else
typedef float Sum;
#endif

struct alignas(16) Vector { u32 v[4]; };

// Of the norm ahead of the product: the norm of stream = x + delta is row, both for others.
struct Norm {
    const void *delta, *gain, *shift;
    void *stream, *row;
    float eps;
};

// Requests bytes that follow each other, multiples of 16.
__device__ __forceinline__ void copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
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

// The same, which the compiler cannot compute again where it is used.
__device__ __forceinline__ u32 in_register(u32 value) {
    u32 r;
    asm volatile("mov.u32 %0, %1;" : "=r"(r) : "r"(value));
    return r;
}

__device__ __forceinline__ float float_at(u32 shared) {
    float r;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r) : "r"(shared));
    return r;
}

__device__ __forceinline__ float byte_at(u32 shared) {
    u32 r;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(r) : "r"(shared));
    return r;
}

__device__ __forceinline__ Vector load_global(const Vector* at) {
    Vector r;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]) : "l"(at) : "memory");
    return r;
}

__device__ __forceinline__ void multiply_add(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
#if KIND == DENSE && X_TYPE == BFLOAT16
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_add(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two values of e4m3, the low or the high ones of four, as float16.
template <bool HIGH> __device__ __forceinline__ u32 unpacked8(u32 q) {
    u32 r;
    unsigned short two = HIGH ? (unsigned short)(q >> 16) : (unsigned short)q;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two));
    return r;
}

// Levels of 4 bits less 8, times 16, as integers of 8 bits: of the low and of the high nibbles of four bytes.
__device__ __forceinline__ u32 low4(u32 q) { return (q << 4 & 0xF0F0F0F0u) ^ 0x80808080u; }
__device__ __forceinline__ u32 high4(u32 q) { return (q & 0xF0F0F0F0u) ^ 0x80808080u; }

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

template <int TYPE> __device__ __forceinline__ void store(void* p, int i, float value) {
    unsigned short bits;
    if (TYPE == FLOAT32) { ((float*)p)[i] = value; return; }
    if (TYPE == BFLOAT16) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    ((unsigned short*)p)[i] = bits;
}

// Eight values of a type: one vector, or two of 32 bits.
template <int TYPE> struct Eight {
    static constexpr int COUNT = TYPE == FLOAT32 ? 2 : 1;
    Vector v[COUNT];

    __device__ __forceinline__ void unpack(float (&to)[8]) const {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (TYPE == FLOAT32) to[j] = __uint_as_float(v[0].v[j]), to[4 + j] = __uint_as_float(v[COUNT - 1].v[j]);
            else if (TYPE == BFLOAT16) to[2 * j] = lower_half(v[0].v[j]), to[2 * j + 1] = upper_half(v[0].v[j]);
            else to[2 * j] = float_of(v[0].v[j]), to[2 * j + 1] = float_of(v[0].v[j] >> 16);
    }

    __device__ __forceinline__ void pack(const float (&from)[8]) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (TYPE == FLOAT32) v[0].v[j] = __float_as_uint(from[j]), v[COUNT - 1].v[j] = __float_as_uint(from[4 + j]);
            else if (TYPE == BFLOAT16)
                asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v[0].v[j]) : "f"(from[2 * j + 1]), "f"(from[2 * j]));
            else v[0].v[j] = float16s(from[2 * j], from[2 * j + 1]);
    }

    __device__ __forceinline__ void load(const void* from, int i) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) v[j] = load_global((const Vector*)from + COUNT * i + j);
    }

    __device__ __forceinline__ void store(void* to, int i) const {
#pragma unroll
        for (int j = 0; j < COUNT; j++) ((Vector*)to)[COUNT * i + j] = v[j];
    }
};

// The sum of what the multiplying threads have; `of_warps` [WARPS] is used for this alone.
__device__ __forceinline__ float sum_of_threads(float value, float* of_warps) {
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    multiplying_warps_meet();
    value = of_warps[threadIdx.x % WARPS];
#pragma unroll
    for (int lanes = WARPS / 2; lanes; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
    return value;
}

// The largest of them, of which none is negative: their bits are in the same order.
__device__ __forceinline__ float largest_of_threads(float value, float* of_warps) {
    value = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(value)));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    multiplying_warps_meet();
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(of_warps[threadIdx.x % WARPS])));
}

// The power of two that takes the largest value to between 2^14 and 2^15.
__device__ __forceinline__ float scale_of(float most) {
    const int exponent = max((int)((__float_as_uint(most) >> 23) & 255), 15);
    return __uint_as_float((u32)(127 + 127 + 14 - exponent) << 23);
}

// The bytes of four integers, the lowest of all, the next of all ...: digits from -128 to 127.
__device__ __forceinline__ void digits_of(const float* values, u32 (&digits)[4]) {
    u32 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = ((u32)__float2int_rn(values[j] * 32768.0f) + 0x00808080u) ^ 0x00808080u;
    const u32 low[2] = {__byte_perm(v[0], v[1], 0x5140), __byte_perm(v[2], v[3], 0x5140)};
    const u32 high[2] = {__byte_perm(v[0], v[1], 0x7362), __byte_perm(v[2], v[3], 0x7362)};
    digits[0] = __byte_perm(low[0], low[1], 0x5410), digits[1] = __byte_perm(low[0], low[1], 0x7632);
    digits[2] = __byte_perm(high[0], high[1], 0x5410), digits[3] = __byte_perm(high[0], high[1], 0x7632);
}

// What a unit of the sums of a column is worth: 256 times as much as in the column before it.
__device__ __forceinline__ float worth_of(int column) {
    return column > 3 ? 0.0f : __uint_as_float((u32)(127 + 8 * column - 15 - (KIND == INT4 ? 4 : 0)) << 23);
}

// Lays eight values of the row, below 2^15, where the products take their digits: [pieces, vectors, 4 digits, 64 bytes].
// Whole warps call it.
__device__ __forceinline__ void put_digits(char* staged_x, int i, const float (&v)[8]) {
    u32 first[4], second[4];
    digits_of(v, first), digits_of(v + 4, second);
    if (KIND == INT8) {
#pragma unroll
        for (int d = 0; d < 4; d++)
            if (i < IN_VECTORS)
                *(uint2*)(staged_x + i / 8 * 256 + d * 64 + i % 8 * 8) = make_uint2(first[d], second[d]);
        return;
    }
    // a byte of the weight has a nibble of a quarter of a piece and one of the next; the byte after it has those of the
    // quarters two further, which are eight lanes away: of both, each lane lays one half
    const bool later = i & 8;
    char* to = staged_x + i / 16 * 512 + later * 256 + i % 4 * 16 + i / 4 % 2 * 4;
#pragma unroll
    for (int d = 0; d < 4; d++) {
        const u32 other = __shfl_xor_sync(~0u, later ? first[d] : second[d], 8);
        const u32 a = later ? other : first[d], b = later ? second[d] : other;
        *(u32*)(to + d * 64) = __byte_perm(a, b, 0x5140), *(u32*)(to + d * 64 + 8) = __byte_perm(a, b, 0x7362);
    }
}

// Lays the sum of a piece of the row; whole warps call it.
__device__ __forceinline__ void put_sum(float* sums_of_x, int i, const float (&v)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) sum += v[j];
#pragma unroll
    for (int lanes = 1; lanes < PIECE_INPUTS / 8; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (i % (PIECE_INPUTS / 8) == 0) sums_of_x[i / (PIECE_INPUTS / 8)] = sum;
}

// The thread's vectors of the row of a product without a norm.
__device__ __forceinline__ void load_plain(const void* x, Eight<X_TYPE> (&row)[VECTORS]) {
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = threadIdx.x + k * THREADS;
        if (i < IN_VECTORS) row[k].load(x, i);
    }
}

// Those of the norm; its weights are on their way before the row is there. `scratch`: [2, WARPS]
__device__ __forceinline__ void load_normalized(
    const void* x, const Norm& norm, float* scratch, bool is_writer, Eight<X_TYPE> (&row)[VECTORS]) {
    Eight<X_TYPE> gain[VECTORS] = {}, shift[VECTORS] = {};
    Eight<STREAM> stream[VECTORS] = {};
    Eight<DELTA> delta[VECTORS] = {};
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = threadIdx.x + k * THREADS;
        if (i >= IN_VECTORS) break;
        gain[k].load(norm.gain, i);
        if (NORM == LAYER_NORM) shift[k].load(norm.shift, i);
    }
    wait_for_inputs();
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = threadIdx.x + k * THREADS;
        if (i >= IN_VECTORS) break;
        stream[k].load(x, i);
        if (ADD) delta[k].load(norm.delta, i);
    }
    float v[VECTORS][8] = {}, sum = 0.0f, mean = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = threadIdx.x + k * THREADS;
        stream[k].unpack(v[k]);
        if (ADD) {
            float more[8];
            delta[k].unpack(more);
#pragma unroll
            for (int j = 0; j < 8; j++) v[k][j] += more[j];
            stream[k].pack(v[k]);
            stream[k].unpack(v[k]);  // the statistics are those of the stored stream
            if (is_writer && i < IN_VECTORS) stream[k].store(norm.stream, i);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) sum += NORM == LAYER_NORM ? v[k][j] : v[k][j] * v[k][j];
    }
    if (NORM == LAYER_NORM) {
        mean = sum_of_threads(sum, scratch) / INPUTS, sum = 0.0f;
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            if (threadIdx.x + k * THREADS >= IN_VECTORS) break;
#pragma unroll
            for (int j = 0; j < 8; j++) v[k][j] -= mean, sum += v[k][j] * v[k][j];
        }
    }
    const float by = rsqrtf(sum_of_threads(sum, scratch + WARPS) / INPUTS + norm.eps);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = threadIdx.x + k * THREADS;
        float gains[8], shifts[8];
        gain[k].unpack(gains), shift[k].unpack(shifts);
#pragma unroll
        for (int j = 0; j < 8; j++) v[k][j] = v[k][j] * by * gains[j] + (NORM == LAYER_NORM ? shifts[j] : 0.0f);
        row[k].pack(v[k]);
        if (is_writer && i < IN_VECTORS) row[k].store(norm.row, i);
    }
}

// Lays the row into shared memory, in the type of the products, and for zero points the sums of its pieces;
// returns what its products are to be multiplied by. `scratch`: [3, WARPS]
__device__ __forceinline__ float stage_row(
    const void* x, const Norm& norm, char* staged_x, float* sums_of_x, float* scratch, bool is_writer) {
    Eight<X_TYPE> row[VECTORS] = {};
    if (NORM == NO_NORM) {
        wait_for_inputs();
        load_plain(x, row);
    } else load_normalized(x, norm, scratch, is_writer, row);
    float by = 1.0f;
    if (SCALED_X) {
        u32 most = 0;
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) most = __vmaxu2(most, row[k].v[0].v[j] & 0x7FFF7FFF);
        const float low = X_TYPE == BFLOAT16 ? lower_half(most) : float_of(most);
        const float high = X_TYPE == BFLOAT16 ? upper_half(most) : float_of(most >> 16);
        by = scale_of(largest_of_threads(fmaxf(low, high), scratch + 2 * WARPS));
    }
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = threadIdx.x + k * THREADS;
        if (i >= (IN_VECTORS + 31) / 32 * 32) break;
        float v[8];
        row[k].unpack(v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= by;
        if (ZERO) put_sum(sums_of_x, i, v);
        if (INTEGERS) put_digits(staged_x, i, v);
        else if (i < IN_VECTORS) {
            Eight<FLOAT16> scaled;
            if (SCALED_X) scaled.pack(v);
            ((Vector*)staged_x)[i] = SCALED_X ? scaled.v[0] : row[k].v[0];
        }
    }
    multiplying_warps_meet();
    return 1.0f / by;
}

// The tiles of this program.
struct Share {
    int first, count;
    __device__ __forceinline__ Share() {
        const int program = blockIdx.x;
        first = program * TILES_EACH + min(program, WITH_ONE_MORE), count = TILES_EACH + (program < WITH_ONE_MORE);
    }
};

// Requests all stages in turn, and with the first one of a tile its scales and zero points. More copies at once than DEPTH bring nothing sooner, and all else that is loaded waits behind them.
__device__ __forceinline__ void copy_weight(
    const TensorMap* weight, const float* scale, const unsigned char* zero, u32 weights, u32 scales, u32 full, u32 empty) {
    const Share share;
    int stage = 0, parity = 1, place = 0, landing = 0, landing_parity = 0;
    for (int i = 0; i < share.count * CHUNKS; i++) {
        const int chunk = i % CHUNKS, row = (share.first + i / CHUNKS) * PER_TILE;
        const u32 barrier = full + 8 * stage, to = weights + stage * STAGE;
        if (i >= STAGES) barrier_wait(empty + 8 * stage, parity);
        if (i >= DEPTH) {
            barrier_wait(full + 8 * landing, landing_parity);
            if (++landing == STAGES) landing = 0, landing_parity ^= 1;
        }
        barrier_expect(barrier, STAGE + (chunk ? 0 : SCALES + ZEROS));
        copy(to, weight, row, chunk * (ROW / LINE), barrier);
        copy(to + BOX, weight, row + OTHER, chunk * (ROW / LINE), barrier);
        if (KIND == INT4 && chunk == 0) {
            const u32 at = scales + place * (SCALES + ZEROS);
            copy(at, scale + row * GROUPS, SCALES / 2, barrier);
            copy(at + SCALES / 2, scale + (row + OTHER) * GROUPS, SCALES / 2, barrier);
            if (ZERO) {
                copy(at + SCALES, zero + row * GROUPS, ZEROS / 2, barrier);
                copy(at + SCALES + ZEROS / 2, zero + (row + OTHER) * GROUPS, ZEROS / 2, barrier);
            }
            if (++place == PLACES) place = 0;
        }
        if (i == min(DEPTH, share.count * CHUNKS) - 1) asm volatile("griddepcontrol.launch_dependents;");
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + 32) gemv(
    const __grid_constant__ TensorMap weight, const void* x, const float* scale, const unsigned char* zero,
    const void* bias, void* y, const void* delta, const void* gain, const void* shift, void* stream, void* normed,
    float eps) {
    const Norm norm = {delta, gain, shift, stream, normed, eps};
    extern __shared__ __align__(1024) char memory[];
    constexpr int SUMS_OF_X = ZERO ? (NUM_PIECES + 3) / 4 * 4 : 0;
    const u32 weights = shared_address(memory), scales = weights + STAGES * STAGE;
    char* staged_x = memory + STAGES * STAGE + PLACES * (SCALES + ZEROS);
    float* sums = (float*)(staged_x + X_BYTES * INPUTS); // [tiles, WARPS, ROWS]
    float* scratch = sums + MOST_TILES * WARPS * ROWS;   // [3, WARPS]
    float* sums_of_x = scratch + 3 * WARPS;
    const u32 full = shared_address(sums_of_x + SUMS_OF_X), empty = full + 8 * STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (warp == WARPS) {
        if (lane == 0) {
            for (int s = 0; s < STAGES; s++) {
                barrier_init(full + 8 * s, 1);
                barrier_init(empty + 8 * s, WARPS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
        asm volatile("bar.arrive 2, %0;" ::"n"(THREADS + 32) : "memory");
        if (lane == 0) copy_weight(&weight, scale, zero, weights, scales, full, empty);
        return;
    }

    // what is added and multiplied in the end is on its way, too
    const Share share;
    float scales_of_mine[RESULTS][2], biases[RESULTS][2];
#pragma unroll
    for (int k = 0; k < RESULTS; k++)
#pragma unroll
        for (int of = 0; of < 1 + GATED; of++) {
            const int mine = threadIdx.x + k * THREADS, at = share.first * PER_TILE + mine + of * (OUTPUTS / 2);
            const bool has_result = mine < share.count * PER_TILE && at < OUTPUTS;
            scales_of_mine[k][of] = has_result && PER_OUTPUT ? scale[at] : 1.0f;
            biases[k][of] = has_result && BIAS ? value_at<X_TYPE>(bias, at) : 0.0f;
        }
    const float of_x = stage_row(x, norm, staged_x, sums_of_x, scratch, blockIdx.x == 0);
    asm volatile("bar.sync 2, %0;" ::"n"(THREADS + 32) : "memory");  // with what the copying warp did first

    // row of a box: eight lanes read two rows at once, four apart, which the copy laid into different banks
    const int row = lane / 4 % 2 * 4 + lane / 8, part = lane % 4;
    const int line = warp * PIECES / 2, piece_of_line = PIECES == 1 ? warp % 2 : 0;
    const u32 weights_at = in_register(weights + line * (8 * LINE) + row * LINE + ((piece_of_line * 4 + part) ^ row) * 16);
    // of a piece of x: what a lane multiplies, in the first columns of eight; the others keep zeros
    constexpr int X_STRIDE = INTEGERS ? 256 : 16;
    const u32 x_at = in_register(shared_address(staged_x) + (INTEGERS ? lane % 16 : part * VECTORS_OF_X) * 16);
    const u32 has_column = in_register(lane < (INTEGERS ? 16 : 4));
    Vector columns[PIECES][VECTORS_OF_X] = {};
    const float first_worth = INTEGERS ? worth_of(2 * part) : 1.0f, second_worth = worth_of(2 * part + 1);
    float* to = sums + warp * ROWS + row;
    int stage = 0, parity = 0, place = 0;
    for (int tile = 0; tile < share.count; tile++) {
        float low = 0.0f, high = 0.0f;  // of `row` of the two boxes
        Sum c[2][4] = {};               // of two columns each
#if KIND == INT4
        const u32 scales_at = scales + place * (SCALES + ZEROS) + row * GROUPS * 4;
        const u32 zeros_at = scales + place * (SCALES + ZEROS) + SCALES + row * GROUPS;
#endif
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int first = (chunk * WARPS + warp) * PIECES;
            barrier_wait(full + 8 * stage, parity);
            if (first < NUM_PIECES) {
#pragma unroll
                for (int h = 0; h < PIECES; h++) {
                    const u32 at = (weights_at + stage * STAGE) ^ 64 * h, x_of_piece = x_at + (first + h) * (PIECE_INPUTS * X_BYTES);
                    const Vector a = load_shared(at), b = load_shared(at + BOX);
#pragma unroll
                    for (int j = 0; j < VECTORS_OF_X; j++) load_shared_if(has_column, x_of_piece + j * X_STRIDE, columns[h][j]);
#if KIND == INT4
                    Sum d[2][4] = {};
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const Vector& of_x = columns[h][j / 2];
                        multiply_add(d[j % 2], low4(a.v[j]), low4(b.v[j]), high4(a.v[j]), high4(b.v[j]),
                                     of_x.v[j % 2 * 2], of_x.v[j % 2 * 2 + 1]);
                    }
                    const int group = (first + h) / (NUM_PIECES / GROUPS);
                    float less = 0.0f, less_high = 0.0f;
                    if (ZERO && part == 0) {
                        less = (byte_at(zeros_at + group) - 8.0f) * sums_of_x[first + h];
                        less_high = (byte_at(zeros_at + group + ZEROS / 2) - 8.0f) * sums_of_x[first + h];
                    }
                    low += float_at(scales_at + 4 * group) * ((d[0][0] + d[1][0]) * first_worth + (d[0][1] + d[1][1]) * second_worth - less);
                    high += float_at(scales_at + 4 * group + SCALES / 2) * ((d[0][2] + d[1][2]) * first_worth + (d[0][3] + d[1][3]) * second_worth - less_high);
#elif KIND == DENSE || KIND == INT8
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        multiply_add(c[j], a.v[2 * j], b.v[2 * j], a.v[2 * j + 1], b.v[2 * j + 1],
                                     columns[h][0].v[2 * j], columns[h][0].v[2 * j + 1]);
#else
#pragma unroll
                    for (int j = 0; j < VECTORS_OF_X * 2; j++) {
                        const u32 p = columns[h][j / 2].v[j % 2 * 2], q = columns[h][j / 2].v[j % 2 * 2 + 1];
                        multiply_add(c[j % 2], unpacked8<false>(a.v[j]), unpacked8<false>(b.v[j]),
                                     unpacked8<true>(a.v[j]), unpacked8<true>(b.v[j]), p, q);
                    }
#endif
                }
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + 8 * stage);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        if (++place == PLACES) place = 0;
#if KIND != INT4
        low = (c[0][0] + c[1][0]) * first_worth, high = (c[0][2] + c[1][2]) * first_worth;
#endif
        if (INTEGERS) {
            if (KIND == INT8) low += (c[0][1] + c[1][1]) * second_worth, high += (c[0][3] + c[1][3]) * second_worth;
            low += __shfl_xor_sync(~0u, low, 1), high += __shfl_xor_sync(~0u, high, 1);
        }
        if (part == 0) to[0] = low, to[8] = high;
        to += WARPS * ROWS;
    }
    multiplying_warps_meet();

#pragma unroll
    for (int k = 0; k < RESULTS; k++) {
        const int mine = threadIdx.x + k * THREADS;
        if (mine >= share.count * PER_TILE || share.first * PER_TILE + mine >= (GATED ? OUTPUTS / 2 : OUTPUTS)) return;
        float values[2];
#pragma unroll
        for (int of = 0; of < 1 + GATED; of++) {
            const float* from = sums + mine / PER_TILE * WARPS * ROWS + mine % PER_TILE + of * PER_TILE;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += from[w * ROWS];
            values[of] = sum * of_x * scales_of_mine[k][of] + biases[k][of];
        }
        store<Y_TYPE>(y, share.first * PER_TILE + mine, GATED ? activation(values[0]) * values[1] : activation(values[0]));
    }
}
