// The product of a row with a weight that comes through shared memory in boxes (compute capability 9.0 and up), and the
// norm ahead of it, if there is one.
//
// A program computes tiles of 16 outputs, whose rows of the weight come in two boxes of 8. One warp copies: it requests
// the first parts of the weight before the kernels ahead of this one have ended, and each further one as soon as its
// place is free and few enough are on their way. WARPS warps multiply: of a stage each has PIECES times 64 bytes of every
// row, which lie as the tensor cores' products take them (vlm.ops.layouts.int4_packing). The sums of the warps meet once, in the
// end. Every program normalizes the whole row for itself.
//
// Where the weight is not of x's type, each warp prepares those values of x that it multiplies, and waits for no other
// one: with an RMS norm ahead the mean square, by which its sums are multiplied, is known when these meet. A LayerNorm's
// mean is needed before. A row of the weight's type takes no preparation, and is loaded faster all together.
//
// The right side of a product of the tensor cores has eight columns. In the type of x, and for e4m3, which becomes
// float16, the row is the first of them. Weights that are integers stay so: the row is rounded to 31 bits below the
// power of two above the largest value of a warp, and its four bytes are four columns, whose sums are exact. To make
// float16 of 4 bits takes three times the instructions.
//
// What a program goes through once takes as long as its code is long, as nothing of it is at hand: so all is decided
// when it is compiled. Defined then: KIND, X_TYPE, Y_TYPE, ACT (see the lists), GATED, BIAS, ZERO, INPUTS, OUTPUTS,
// GROUPS, NORM, ADD and the types STREAM and DELTA, PROGRAMS, WARPS, PIECES, STAGES, DEPTH.

#include "vectors.cuh"
#include "barriers.cuh"
#include "boxes.cuh"
#include "products.cuh"

#define INT8 0
#define E4M3 1
#define INT4 2
#define DENSE 3  // in the type of x

#define NO_NORM 0
#define RMS_NORM 1
#define LAYER_NORM 2

constexpr bool IN_BFLOAT16 = KIND == DENSE && X_TYPE == BFLOAT16;

#include "mma.cuh"

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
constexpr int OTHER = GATED ? OUTPUTS / 2 : 8;     // rows of the weight from a tile's first box to its second
constexpr int TILES = (OUTPUTS + ROWS - 1) / ROWS, TILES_EACH = TILES / PROGRAMS, WITH_ONE_MORE = TILES % PROGRAMS;
constexpr int MOST_TILES = TILES_EACH + (WITH_ONE_MORE > 0);
constexpr int RESULTS = (MOST_TILES * PER_TILE + THREADS - 1) / THREADS;  // of a thread
constexpr int IN_VECTORS = INPUTS / 8;             // of the row, 8 values each
constexpr int SPAN = PIECES * PIECE_INPUTS / 8;    // of it that a warp multiplies in a stage, one behind the other
constexpr bool SHARED_ROW = KIND == DENSE;         // do warps multiply what others have prepared?
constexpr int VECTORS = SHARED_ROW ? (IN_VECTORS + THREADS - 1) / THREADS : (CHUNKS * SPAN + 31) / 32;  // of a thread
constexpr int SCALES = KIND == INT4 ? ROWS * GROUPS * 4 : 0;              // bytes of a tile's scales
constexpr int ZEROS = ZERO ? ROWS * GROUPS : 0;                           // and of its zero points
// places for those of tiles: of one that begins while a stage is left of the last one in a place, there is another
constexpr int NEEDED = (STAGES - 1 + CHUNKS - 1) / CHUNKS + 1;
constexpr int PLACES = KIND != INT4 ? 0 : MOST_TILES < NEEDED ? MOST_TILES : NEEDED;
constexpr bool MEAN_SQUARE_LATER = NORM == RMS_NORM && !SHARED_ROW;  // it multiplies the sums
// so that it fits 31 bits, or float16, which an RMS norm's row may not before its mean square is known
constexpr bool SCALED_X = INTEGERS || (KIND == E4M3 && (X_TYPE == BFLOAT16 || NORM == RMS_NORM));
constexpr int ROW_TYPE = MEAN_SQUARE_LATER ? FLOAT32 : X_TYPE;           // of the row before it is laid out
constexpr bool PER_OUTPUT = KIND == INT8 || KIND == E4M3;                 // scales of outputs
#if KIND == INT8 || KIND == INT4
typedef int Sum;
#else
typedef float Sum;
#endif

// Of the norm ahead of the product: the norm of stream = x + delta is row, both for others.
struct Norm {
    const void *delta, *gain, *shift;
    void *stream, *row;
    float eps;
};

// Only lanes that say so load: the others keep what they have.
__device__ __forceinline__ void load_shared_if(bool loads, u32 at, Vector& r) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(r.v[0]), "+r"(r.v[1]), "+r"(r.v[2]), "+r"(r.v[3]) : "r"(at), "r"((u32)loads));
}

// A number which the compiler cannot compute again where it is used.
__device__ __forceinline__ u32 in_register(u32 value) {
    u32 r;
    asm volatile("mov.u32 %0, %1;" : "=r"(r) : "r"(value));
    return r;
}

__device__ __forceinline__ float byte_at(u32 shared) {
    u32 r;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(r) : "r"(shared));
    return r;
}

__device__ __forceinline__ void multiply_add(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Levels of 4 bits less 8, times 16, as integers of 8 bits: of the low and of the high nibbles of four bytes.
__device__ __forceinline__ u32 low4(u32 q) { return (q << 4 & 0xF0F0F0F0u) ^ 0x80808080u; }
__device__ __forceinline__ u32 high4(u32 q) { return (q & 0xF0F0F0F0u) ^ 0x80808080u; }

__device__ __forceinline__ float upper_half(u32 two) { return __uint_as_float(two & 0xFFFF0000u); }
__device__ __forceinline__ float lower_half(u32 two) { return __uint_as_float(two << 16); }

// Of its lower half; `halves` of both have other machine code.
__device__ __forceinline__ float float_of(u32 two) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((unsigned short)two));
    return r;
}

__device__ __forceinline__ void multiplying_warps_meet() { warps_meet<1, THREADS>(); }

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
            else v[0].v[j] = packed<TYPE == BFLOAT16>(from[2 * j], from[2 * j + 1]);
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

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
    return value;
}

// The largest of what a warp's lanes have, of which none is negative: their bits are in the same order.
__device__ __forceinline__ float largest_of_warp(float value) {
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(value)));
}

// The power of two that takes the largest value to between 2^14 and 2^15.
__device__ __forceinline__ float scale_of(float most) {
    const int exponent = max((int)((__float_as_uint(most) >> 23) & 255), 15);
    return __uint_as_float((u32)(127 + 127 + 14 - exponent) << 23);
}

// The bytes of four integers, 32,768 times the values, the lowest of all, the next of all ...: digits from -128 to 127.
// Added to MAGIC a number is rounded to an integer, which is in the low bits of the sum: a multiprocessor converts 16 a
// cycle, and adds 128.
__device__ __forceinline__ void digits_of(const float* values, u32 (&digits)[4]) {
    constexpr float MAGIC = 12582912.0f;  // 1.5 times 2^23
    u32 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float high = fmaf(values[j], 0.5f, MAGIC), rest = fmaf(high - MAGIC, -2.0f, values[j]);
        const float low = fmaf(rest, 32768.0f, MAGIC);
        // the 16 bits that MAGIC has in `high` are shifted out
        v[j] = (__float_as_uint(high) << 16) + (__float_as_uint(low) - __float_as_uint(MAGIC) + 0x00808080u);
    }
    const u32 low[2] = {__byte_perm(v[0], v[1], 0x5140), __byte_perm(v[2], v[3], 0x5140)};
    const u32 high[2] = {__byte_perm(v[0], v[1], 0x7362), __byte_perm(v[2], v[3], 0x7362)};
    digits[0] = __byte_perm(low[0], low[1], 0x5410) ^ 0x80808080u, digits[1] = __byte_perm(low[0], low[1], 0x7632) ^ 0x80808080u;
    digits[2] = __byte_perm(high[0], high[1], 0x5410) ^ 0x80808080u, digits[3] = __byte_perm(high[0], high[1], 0x7632);
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
        if (i < IN_VECTORS)
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
    if (i < IN_VECTORS && i % (PIECE_INPUTS / 8) == 0) sums_of_x[i / (PIECE_INPUTS / 8)] = sum;
}

constexpr int SUMS_OF_X = ZERO ? (NUM_PIECES + 3) / 4 * 4 : 0;

// Where the parts of a program's shared memory lie.
struct Memory {
    u32 weights, scales, full, empty;
    char* staged_x;
    float *sums, *scratch, *sums_of_x;  // [tiles, WARPS, ROWS], [2, WARPS], [pieces]

    __device__ __forceinline__ Memory(char* memory) {
        weights = shared_address(memory), scales = weights + STAGES * STAGE;
        staged_x = memory + STAGES * STAGE + PLACES * (SCALES + ZEROS);
        sums = (float*)(staged_x + X_BYTES * INPUTS);
        scratch = sums + MOST_TILES * WARPS * ROWS;
        sums_of_x = scratch + 2 * WARPS;
        full = shared_address(sums_of_x + SUMS_OF_X), empty = full + 8 * STAGES;
    }
};

// The thread's vectors of the row; IN_VECTORS where it has so few. Those that its own warp multiplies, where they take
// work; others lie so that they are loaded fastest.
__device__ __forceinline__ int vector_of(int k) {
    if (SHARED_ROW) return min((int)threadIdx.x + k * THREADS, IN_VECTORS);
    const int j = threadIdx.x % 32 + 32 * k, i = (j / SPAN * WARPS + threadIdx.x / 32) * SPAN + j % SPAN;
    return j < CHUNKS * SPAN ? min(i, IN_VECTORS) : IN_VECTORS;
}

// How many values of the row a warp has.
__device__ __forceinline__ float values_of(int warp) {
    constexpr int TOGETHER = SHARED_ROW ? 32 : SPAN, ALL = WARPS * TOGETHER, REST = IN_VECTORS % ALL;
    return 8 * (IN_VECTORS / ALL * TOGETHER + (REST ? min(max(REST - warp * TOGETHER, 0), TOGETHER) : 0));
}

// The copying warp has made the barriers; nobody waits for it later.
__device__ __forceinline__ void all_warps_meet() { warps_meet<2, THREADS + 32>(); }

__device__ __forceinline__ void load_plain(const void* x, Eight<ROW_TYPE> (&row)[VECTORS]) {
    all_warps_meet();
    wait_for_inputs();
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = vector_of(k);
        if (i < IN_VECTORS) row[k].load(x, i);
    }
}

// The sum of what the warps have written, four at once; `of` makes of each, and the warp's number, what is summed up.
template <class Of> __device__ __forceinline__ float sum_of_warps(u32 from, const Of& of) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w += 4) {
        const Vector four = load_shared(from + 4 * w);
#pragma unroll
        for (int j = 0; j < 4; j++) sum += of(__uint_as_float(four.v[j]), w + j);
    }
    return sum;
}

__device__ __forceinline__ float sum_of_warps(u32 from) {
    return sum_of_warps(from, [](float value, int) { return value; });
}

// One over the root of the mean square, out of the warps' sums.
__device__ __forceinline__ float inverse_root(u32 scratch, float eps) { return rsqrtf(sum_of_warps(scratch) / INPUTS + eps); }

// The mean, and one over the deviation, out of the warps' sums and their squares of differences from their own means,
// `scratch` [2, WARPS] (Chan, Golub, LeVeque, 1979).
__device__ __forceinline__ void merge_statistics(u32 scratch, float eps, float& mean, float& by) {
    mean = sum_of_warps(scratch) / INPUTS;
    const float apart = sum_of_warps(scratch, [=](float sum, int warp) {
        const float difference = sum - mean * values_of(warp);  // of the means, times how many values there are
        return difference * difference * (1.0f / fmaxf(values_of(warp), 1.0f));
    });
    by = rsqrtf((sum_of_warps(scratch + 4 * WARPS) + apart) / INPUTS + eps);
}

// Those of the norm, whose weights are on their way before the row is there. Where the mean square comes later they are
// not divided by its root yet, and `scratch` [WARPS] has the warps' sums.
__device__ __forceinline__ void load_normalized(
    const void* x, const Norm& norm, float* scratch, bool is_writer, Eight<ROW_TYPE> (&row)[VECTORS]) {
    Eight<X_TYPE> gain[VECTORS] = {}, shift[VECTORS] = {};
    Eight<STREAM> stream[VECTORS] = {};
    Eight<DELTA> delta[VECTORS] = {};
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = vector_of(k);
        if (i >= IN_VECTORS) break;
        gain[k].load(norm.gain, i);
        if (NORM == LAYER_NORM) shift[k].load(norm.shift, i);
    }
    all_warps_meet();
    wait_for_inputs();
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = vector_of(k);
        if (i >= IN_VECTORS) break;
        stream[k].load(x, i);
        if (ADD) delta[k].load(norm.delta, i);
    }
    const int warp = threadIdx.x / 32;
    float v[VECTORS][8] = {}, sum = 0.0f, mean = 0.0f, by = 1.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = vector_of(k);
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
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) scratch[warp] = sum;
    if (NORM == LAYER_NORM) {
        const float own_mean = sum * (1.0f / fmaxf(values_of(warp), 1.0f));
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            if (vector_of(k) >= IN_VECTORS) break;
#pragma unroll
            for (int j = 0; j < 8; j++) squares += (v[k][j] - own_mean) * (v[k][j] - own_mean);
        }
        squares = sum_of_warp(squares);
        if (threadIdx.x % 32 == 0) scratch[WARPS + warp] = squares;
        multiplying_warps_meet();
        merge_statistics(shared_address(scratch), norm.eps, mean, by);
    } else if (!MEAN_SQUARE_LATER) {
        multiplying_warps_meet();
        by = inverse_root(shared_address(scratch), norm.eps);
    }
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = vector_of(k);
        float gains[8], shifts[8];
        gain[k].unpack(gains), shift[k].unpack(shifts);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[k][j] = NORM == LAYER_NORM ? (v[k][j] - mean) * by * gains[j] + shifts[j] : v[k][j] * by * gains[j];
        row[k].pack(v[k]);
        if (!MEAN_SQUARE_LATER && is_writer && i < IN_VECTORS) row[k].store(norm.row, i);
    }
}

// The row, prepared for the products: of a norm what load_normalized says.
__device__ __forceinline__ void load_row(
    const void* x, const Norm& norm, float* scratch, bool is_writer, Eight<ROW_TYPE> (&row)[VECTORS]) {
    if (NORM == NO_NORM) load_plain(x, row);
    else load_normalized(x, norm, scratch, is_writer, row);
}

__device__ __forceinline__ void unpack_times(const Eight<ROW_TYPE>& from, float by, float (&to)[8]) {
    from.unpack(to);
#pragma unroll
    for (int j = 0; j < 8; j++) to[j] *= by;
}

// Writes the row of a norm, which is `row` times a number.
__device__ __forceinline__ void store_row(const Norm& norm, const Eight<ROW_TYPE> (&row)[VECTORS], float by) {
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = vector_of(k);
        float v[8];
        unpack_times(row[k], by, v);
        Eight<X_TYPE> stored;
        stored.pack(v);
        if (i < IN_VECTORS) stored.store(norm.row, i);
    }
}

// Lays what a warp has of the row into shared memory, in the type of the products, and for zero points the sums of its
// pieces; returns what the warp's products are to be multiplied by.
__device__ __forceinline__ float stage_row(const Eight<ROW_TYPE> (&row)[VECTORS], const Memory& memory) {
    float by = 1.0f;
    if (SCALED_X) {
        float most = 0.0f;
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            float v[8];
            row[k].unpack(v);
#pragma unroll
            for (int j = 0; j < 8; j++) most = fmaxf(most, fabsf(v[j]));
        }
        by = scale_of(largest_of_warp(most));
    }
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int i = vector_of(k);
        float v[8];
        unpack_times(row[k], by, v);
        if (ZERO) put_sum(memory.sums_of_x, i, v);
        if (INTEGERS) put_digits(memory.staged_x, i, v);
        else if (i < IN_VECTORS) {
            Eight<KIND == DENSE ? X_TYPE : FLOAT16> laid;
            laid.pack(v);
            ((Vector*)memory.staged_x)[i] = SCALED_X ? laid.v[0] : row[k].v[0];
        }
    }
    if (SHARED_ROW) multiplying_warps_meet();
    else __syncwarp();
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

// What the copying warp does: makes the barriers, and requests all stages of the tiles of `share` in turn, and with the
// first one of a tile its scales and zero points. More copies at once than DEPTH bring nothing sooner, and all else that
// is loaded waits behind them.
__device__ __forceinline__ void copy_weight(
    const Share& share, const Memory& memory, const TensorMap* weight, const float* scale, const unsigned char* zero) {
    const u32 weights = memory.weights, scales = memory.scales, full = memory.full, empty = memory.empty;
    if (threadIdx.x % 32 == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, WARPS);
        }
        show_barriers();
    }
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(THREADS + 32) : "memory");
    if (threadIdx.x % 32) return;
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
        copy_streamed(to, weight, row, chunk * (ROW / LINE), barrier);
        copy_streamed(to + BOX, weight, row + OTHER, chunk * (ROW / LINE), barrier);
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
        if (i == min(DEPTH, share.count * CHUNKS) - 1) let_next_begin();
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

// Multiplies the row with so many tiles as they come; `of_x` is what the warp's products are to be multiplied by.
__device__ __forceinline__ void multiply(int tiles, const Memory& memory, float of_x) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // row of a box: eight lanes read two rows at once, four apart, which the copy laid into different banks
    const int row = lane / 4 % 2 * 4 + lane / 8, part = lane % 4;
    const int line = warp * PIECES / 2, piece_of_line = PIECES == 1 ? warp % 2 : 0;
    const u32 weights_at = in_register(memory.weights + line * (8 * LINE) + row * LINE + ((piece_of_line * 4 + part) ^ row) * 16);
    // of a piece of x: what a lane multiplies, in the first columns of eight; the others keep zeros
    constexpr int X_STRIDE = INTEGERS ? 256 : 16;
    const u32 x_at = in_register(shared_address(memory.staged_x) + (INTEGERS ? lane % 16 : part * VECTORS_OF_X) * 16);
    const u32 has_column = in_register(lane < (INTEGERS ? 16 : 4));
    Vector columns[PIECES][VECTORS_OF_X] = {};
    const float first_worth = INTEGERS ? worth_of(2 * part) : 1.0f, second_worth = worth_of(2 * part + 1);
    float* to = memory.sums + warp * ROWS + row;
    int stage = 0, parity = 0, place = 0;
    for (int tile = 0; tile < tiles; tile++) {
        float low = 0.0f, high = 0.0f;  // of `row` of the two boxes
        Sum c[2][4] = {};               // of two columns each
#if KIND == INT4
        const u32 scales_at = memory.scales + place * (SCALES + ZEROS) + row * GROUPS * 4;
        const u32 zeros_at = memory.scales + place * (SCALES + ZEROS) + SCALES + row * GROUPS;
#endif
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int first = (chunk * WARPS + warp) * PIECES;
            barrier_wait(memory.full + 8 * stage, parity);
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
                        less = (byte_at(zeros_at + group) - 8.0f) * memory.sums_of_x[first + h];
                        less_high = (byte_at(zeros_at + group + ZEROS / 2) - 8.0f) * memory.sums_of_x[first + h];
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
                        multiply_add(c[j % 2], halves_of_e4m3(a.v[j]), halves_of_e4m3(b.v[j]),
                                     halves_of_e4m3(a.v[j] >> 16), halves_of_e4m3(b.v[j] >> 16), p, q);
                    }
#endif
                }
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(memory.empty + 8 * stage);
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
        if (part == 0) to[0] = low * of_x, to[8] = high * of_x;
        to += WARPS * ROWS;
    }
    multiplying_warps_meet();
}

// The sum of all warps for a row of the program's boxes.
__device__ __forceinline__ float sum_of_row(const Memory& memory, int row) {
    const float* from = memory.sums + row / ROWS * WARPS * ROWS + row % ROWS;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += from[w * ROWS];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 2) gemv(
    const __grid_constant__ TensorMap weight, const void* x, const float* scale, const unsigned char* zero,
    const void* bias, void* y, const void* delta, const void* gain, const void* shift, void* stream, void* normed,
    float eps) {
    const Norm norm = {delta, gain, shift, stream, normed, eps};
    extern __shared__ __align__(1024) char all_memory[];
    const Memory memory(all_memory);
    const Share share;
    if (threadIdx.x >= THREADS) {
        copy_weight(share, memory, &weight, scale, zero);
        return;
    }

    // what is added and multiplied in the end is on its way, too
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
    const bool is_writer = blockIdx.x == PROGRAMS - 1;  // which has no more tiles than others
    Eight<ROW_TYPE> row[VECTORS] = {};
    load_row(x, norm, memory.scratch, is_writer, row);
    multiply(share.count, memory, stage_row(row, memory));

    const float by = MEAN_SQUARE_LATER ? inverse_root(shared_address(memory.scratch), eps) : 1.0f;
#pragma unroll
    for (int k = 0; k < RESULTS; k++) {
        const int mine = threadIdx.x + k * THREADS;
        if (mine >= share.count * PER_TILE || share.first * PER_TILE + mine >= (GATED ? OUTPUTS / 2 : OUTPUTS)) break;
        float values[2];
#pragma unroll
        for (int of = 0; of < 1 + GATED; of++) {
            const int row_of_boxes = GATED ? mine / 8 * ROWS + mine % 8 + of * 8 : mine;
            values[of] = sum_of_row(memory, row_of_boxes) * by * scales_of_mine[k][of] + biases[k][of];
        }
        store<Y_TYPE>(y, share.first * PER_TILE + mine, GATED ? activation(values[0]) * values[1] : activation(values[0]));
    }
    if (MEAN_SQUARE_LATER && is_writer) store_row(norm, row, by);
}
