// Bidirectional attention of packed sequences with a bias by distance (compute capability 9.0).
//
// A program has the query rows of a tile and a head, each of its warps 16 of them. Keys and values come by tiles of as many
// rows, the next one while one is multiplied. A thread has what the tensor cores give it: of two rows eight apart two
// columns of every eight.
//
// The head's biases lie in shared memory, their ends repeated so often that every score of a tile that is near has its own;
// a tile that is further reads where all are the end. A row's biases are those of the row eight further, eight columns on:
// a thread looks up 18 for its 32 scores.
//
// Defined when it is compiled: X_TYPE (see vectors.cuh), DIM (64 or 128).

#include "vectors.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int TILE = 16 * WARPS;                   // rows, and keys
constexpr int EIGHTS = TILE / 8, COLUMNS = DIM / 8;  // of scores, and of results
constexpr int LINE = 128;                          // bytes of a row that lie together
constexpr int SLICES = DIM / 8;                    // of a row, 16 bytes each
constexpr int PART = TILE * DIM * 2, STAGE = 2 * PART;  // keys, values
constexpr int STAGES = 2;
constexpr int APART = THREADS / SLICES;            // rows that threads copy together

// Where a slice of a row lies: those of eight rows are in different banks.
__device__ __forceinline__ int place(int row, int slice) {
    return slice / 8 * TILE * LINE + row * LINE + (slice % 8 ^ row % 8) * 16;
}

__device__ __forceinline__ void copies_have_come() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void store_shared(u32 to, u32 two) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(two) : "memory");
}

__device__ __forceinline__ Vector load_matrices(u32 row) {
    Vector r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]) : "r"(row) : "memory");
    return r;
}

__device__ __forceinline__ Vector load_transposed(u32 row) {
    Vector r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]) : "r"(row) : "memory");
    return r;
}

// Adds the product of 16 rows and 16 inputs with eight columns.
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#define PRODUCT(TYPE)                                                                                             \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}," \
        " {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (X_TYPE == BFLOAT16) PRODUCT("bf16");
    else PRODUCT("f16");
}

// Adds queries times keys.
__device__ __forceinline__ void add_scores(float (&scores)[EIGHTS][4], const u32 (&query)[DIM / 16][4], u32 keys) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < EIGHTS; i++)
#pragma unroll
        for (int k = 0; k < DIM / 16; k += 2) {
            const Vector b = load_matrices(keys + place(8 * i + lane % 8, 2 * k + lane / 8));
            multiply(scores[i], query[k], b.v[0], b.v[1]);
            multiply(scores[i], query[k + 1], b.v[2], b.v[3]);
        }
}

// Adds weights times values.
__device__ __forceinline__ void add_values(float (&sums)[COLUMNS][4], const u32 (&weights)[TILE / 16][4], u32 values) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 2) {
            const Vector b = load_transposed(values + place(16 * k + lane % 16, i + lane / 16));
            multiply(sums[i], weights[k], b.v[0], b.v[1]);
            multiply(sums[i + 1], weights[k], b.v[2], b.v[3]);
        }
}

// What a thread knows of its two rows.
struct Rows {
    u32 query[DIM / 16][4];
    float sums[COLUMNS][4], most[2], total[2];

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
        for (int i = 0; i < COLUMNS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums[i][j] = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) most[r] = __uint_as_float(0xFF800000u), total[r] = 0.0f;
    }

    // Takes in a tile of keys, of which `there` are some; `bias`: where that of the first row and column lies.
    __device__ __forceinline__ void see(u32 stage, u32 bias, float scale, int there) {
        float scores[EIGHTS][4] = {};
        add_scores(scores, query, stage);
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
    static __device__ __forceinline__ void add_bias(float (&scores)[EIGHTS][4], u32 bias, float scale) {
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
    __device__ __forceinline__ void weigh(const float (&scores)[EIGHTS][4], u32 (&weights)[TILE / 16][4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float highest = most[r];
#pragma unroll
            for (int i = 0; i < EIGHTS; i++) highest = fmaxf(highest, fmaxf(scores[i][2 * r], scores[i][2 * r + 1]));
            highest = of_row<true>(highest);
            const float shrink = exp2_of(most[r] - highest);
            most[r] = highest, total[r] *= shrink;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) sums[i][2 * r] *= shrink, sums[i][2 * r + 1] *= shrink;
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
            for (int i = 0; i < COLUMNS; i++)
                store_shared(to + place(first + 8 * r, i) + lane % 4 * 4, pack_x(sums[i][2 * r] * by, sums[i][2 * r + 1] * by));
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

extern "C" __global__ void __launch_bounds__(THREADS) packed_bias(
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
    asm volatile("griddepcontrol.wait;" ::: "memory");
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
