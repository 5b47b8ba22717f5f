// Bidirectional attention of packed sequences with a bias by distance (compute capability 9.0).
//
// A program has the query rows of a tile and a head, each of its warps 16 of them. Keys and values come by tiles of as many
// rows, the next one while one is multiplied, and are read where they lie; queries and weights are in registers. A thread
// has what the tensor cores give it: of two rows eight apart two columns of every eight.
//
// The head's biases lie in shared memory, their ends repeated so often that every score of a tile that is near has its own;
// a tile that is further reads where all are the end. A row's biases are those of the row eight further, eight columns on:
// a thread looks up 18 for its 32 scores.
//
// Defined when it is compiled: X_TYPE (see vectors.cuh), DIM (64 or 128).

#include "vectors.cuh"
#include "wgmma.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int TILE = 16 * WARPS;                        // rows, and keys
constexpr int EIGHTS = TILE / 8;                        // of scores' columns
constexpr int LINE = 128, LINES = 2 * DIM / LINE;       // bytes of a row that lie together, and how often
constexpr int SLICES = DIM / 8;                         // of a row, 16 bytes each
constexpr int PART = TILE * DIM * 2, STAGE = 2 * PART;  // keys, values
constexpr int STAGES = 2;
constexpr int APART = THREADS / SLICES;                 // rows that threads copy together
constexpr int PROGRAMS = DIM > 64 ? 3 : 4;              // of a processor, that registers are shared out among

// What a thread has of TILE rows and 64 columns: of each eight columns two of its first row, then of the one eight further.
typedef float Sums[EIGHTS][4];

// Where a slice of a row lies: as `described` (wgmma.cuh) says.
__device__ __forceinline__ int place(int row, int slice) {
    return slice / 8 * TILE * LINE + row * LINE + (slice % 8 ^ row % 8) * 16;
}

// Lets what was requested come, and the tensor cores see it.
__device__ __forceinline__ void copies_have_come() {
    asm volatile("cp.async.wait_all;\nfence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void store_shared(u32 to, u32 two) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(two) : "memory");
}

#define C(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define ALL C(0), C(1), C(2), C(3), C(4), C(5), C(6), C(7)

// Requests the product of all warps' rows of 16 inputs with 64 columns, and adds it to the sums if `adds` is not 0. Inputs
// of the right side lie in a row, or are the rows (TURNED).
template <int TURNED> __device__ __forceinline__ void multiply(Sums& c, const u32 (&a)[4], u64 b, int adds) {
#define PRODUCT(TYPE)                                                                                         \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32" TYPE TYPE \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                    \
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"          \
                 " {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"                                                \
                 : ALL : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(TURNED))
    if (X_TYPE == BFLOAT16) PRODUCT(".bf16");
    else PRODUCT(".f16");
}

// Lets the compiler know that products change the sums behind its back, and read the left side.
__device__ __forceinline__ void fence(Sums& c) { asm volatile("" : ALL::"memory"); }
__device__ __forceinline__ void fence(u32 (&a)[4]) {
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// Multiplies queries with keys.
__device__ __forceinline__ void multiply_keys(Sums& scores, u32 (&query)[DIM / 16][4], u32 keys) {
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) fence(query[k]);
    begin_products();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        multiply<0>(scores, query[k], described(keys + k / 4 * TILE * LINE + k % 4 * 32), k);
    end_products();
    wait_for_products<0>();
    fence(scores);
}

// Adds weights times values.
__device__ __forceinline__ void add_values(Sums (&sums)[LINES], u32 (&weights)[TILE / 16][4], u32 values) {
#pragma unroll
    for (int line = 0; line < LINES; line++) fence(sums[line]);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) fence(weights[k]);
    begin_products();
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
#pragma unroll
        for (int line = 0; line < LINES; line++)
            multiply<1>(sums[line], weights[k], described(values + (line * TILE + 16 * k) * LINE), 1);
    end_products();
    wait_for_products<0>();
#pragma unroll
    for (int line = 0; line < LINES; line++) fence(sums[line]);
}

// What a thread knows of its two rows.
struct Rows {
    u32 query[DIM / 16][4];
    Sums sums[LINES];
    float most[2], total[2];

    // Queries of `there` rows from this thread's first one on; of others zeros.
    __device__ __forceinline__ Rows(const unsigned short* q, i64 q_row, int there) {
        const int part = threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = i % 2 * 8, column = 16 * k + i / 2 * 8 + 2 * part;
                query[k][i] = row < there ? *(const u32*)(q + row * q_row + column) : 0;
            }
#pragma unroll
        for (int i = 0; i < SLICES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums[i / 8][i % 8][j] = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) most[r] = __uint_as_float(0xFF800000u), total[r] = 0.0f;
    }

    // Takes in a tile of keys, of which `there` are some; `bias`: where that of the first row and column lies.
    __device__ __forceinline__ void see(u32 stage, u32 bias, float scale, int there) {
        Sums scores;
        multiply_keys(scores, query, stage);
        add_bias(scores, bias, scale);
        if (there < TILE) {
            const int column = 2 * (threadIdx.x % 4);
#pragma unroll
            for (int i = 0; i < EIGHTS; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (8 * i + column + j % 2 >= there) scores[i][j] = __uint_as_float(0xFF800000u);
        }
        u32 weights[TILE / 16][4];
        weigh(scores, weights);
        add_values(sums, weights, stage + PART);
    }

    // Makes products what exp2 turns into weights.
    static __device__ __forceinline__ void add_bias(Sums& scores, u32 bias, float scale) {
        float of_second[2] = {float_at(bias - 4 * 8), float_at(bias - 4 * 7)};
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float of_first = float_at(bias + 4 * (8 * i + c));
                scores[i][c] = scores[i][c] * scale + of_first;
                scores[i][2 + c] = scores[i][2 + c] * scale + of_second[c];
                of_second[c] = of_first;
            }
    }

    // Returns the weights of scores as the left side of products, and scales what was summed up before as they are.
    __device__ __forceinline__ void weigh(const Sums& scores, u32 (&weights)[TILE / 16][4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float highest = most[r];
#pragma unroll
            for (int i = 0; i < EIGHTS; i++) highest = fmaxf(highest, fmaxf(scores[i][2 * r], scores[i][2 * r + 1]));
            highest = of_row<true>(highest);
            const float shrink = exp2_of(most[r] - highest);
            most[r] = highest, total[r] *= shrink;
#pragma unroll
            for (int i = 0; i < SLICES; i++)
#pragma unroll
                for (int c = 0; c < 2; c++) sums[i / 8][i % 8][2 * r + c] *= shrink;
#pragma unroll
            for (int i = 0; i < EIGHTS; i++) {
                const float first = exp2_of(scores[i][2 * r] - highest), second = exp2_of(scores[i][2 * r + 1] - highest);
                total[r] += first + second;
                weights[i / 2][i % 2 * 2 + r] = pack_x(first, second);
            }
        }
    }

    // Lays results as a tile of keys lies.
    __device__ __forceinline__ void store(u32 to) {
        const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float by = 1.0f / of_row<false>(total[r]);
#pragma unroll
            for (int i = 0; i < SLICES; i++) {
                const float *two = sums[i / 8][i % 8] + 2 * r;
                store_shared(to + place(first + 8 * r, i) + lane % 4 * 4, pack_x(two[0] * by, two[1] * by));
            }
        }
    }
};

// Requests keys and values, of which `there` are some, zeros for others.
__device__ __forceinline__ void request(
    u32 to, const unsigned short* k, const unsigned short* v, i64 k_row, i64 v_row, int there) {
    const int first = threadIdx.x / SLICES, slice = threadIdx.x % SLICES;
#pragma unroll
    for (int i = 0; i < TILE / APART; i++) {
        const int row = first + i * APART;
        copy16(to + place(row, slice), k + row * k_row + slice * 8, row < there);
        copy16(to + PART + place(row, slice), v + row * v_row + slice * 8, row < there);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS) packed_bias(
    const unsigned short* q, const unsigned short* k, const unsigned short* v, const int* tiles, const float* biases,
    unsigned short* out, float scale, int q_row, int k_row, int v_row, int group, int most) {
    extern __shared__ char unaligned[];
    const u32 memory = (shared_address(unaligned) + 1023) & ~1023u;
    float* window = (float*)(unaligned + (memory - shared_address(unaligned)) + STAGES * STAGE);
    const int reach = most + 2 * (TILE - 1);  // of scores whose tiles are as far as any are looked up
    asm volatile("griddepcontrol.launch_dependents;");
    const int head = blockIdx.y, heads = gridDim.y;
    const int start = tiles[3 * blockIdx.x], begin = tiles[3 * blockIdx.x + 1], end = tiles[3 * blockIdx.x + 2];
    biases += (i64)head * (2 * most + 1) + most;
    for (int i = threadIdx.x; i <= 2 * reach; i += THREADS)
        window[i] = biases[min(max(i - reach, -most), most)] * LOG2E;
    asm volatile("griddepcontrol.wait;" ::: "memory");  // for rows: tiles and biases were there before
    if (begin >= end) return;

    k += (i64)begin * k_row + head / group * DIM, v += (i64)begin * v_row + head / group * DIM;
    request(memory, k, v, k_row, v_row, end - begin);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
    Rows rows(q + (i64)(start + row) * q_row + head * DIM, q_row, end - start - row);
    const u32 bias = shared_address(window) + 4 * (reach + lane % 4 * 2 - row);
    int stage = 0;
#pragma unroll 1
    for (int there = end - begin, distance = begin - start; there > 0; there -= TILE, distance += TILE) {
        copies_have_come();
        __syncthreads();  // and the other stage has been read
        k += (i64)TILE * k_row, v += (i64)TILE * v_row;
        if (there > TILE) request(memory + (STAGE - stage), k, v, k_row, v_row, there - TILE);
        const int looked_up = min(max(distance, -most - TILE + 1), most + TILE - 1);
        rows.see(memory + stage, bias + 4 * looked_up, scale, there);
        stage = STAGE - stage;
    }

    __syncthreads();
    rows.store(memory);
    __syncwarp();  // a warp stores the rows that it has
    constexpr int AT_ONCE = 32 / SLICES;
    out += ((i64)start * heads + head) * DIM;
#pragma unroll
    for (int i = lane / SLICES; i < 16; i += AT_ONCE) {
        const int at = warp * 16 + i, slice = lane % SLICES;
        if (start + at < end) *(Vector*)(out + (i64)at * heads * DIM + slice * 8) = load_shared(memory + place(at, slice));
    }
}
