// Attention of rows over an encoder's wide hidden rows, by queries that keys' weights were multiplied into (compute
// capability 9.0): absorbed_attention.cu for more heads and columns than a program has registers for.
//
// A cluster of two programs has a row, each with half of the columns and all heads. A warp has a part of the program's
// columns, for which it multiplies each tile of hidden rows twice: with queries, whose products of all warps of both
// programs are summed up to scores, and with the weights that these become, in both programs alike. Each tells the other
// one its sums a tile ahead, and goes on with the tile before meanwhile. The tensor cores' rows are heads.
//
// Defined when it is compiled: X_TYPE (see vectors.cuh), HEADS (at most 32), WIDTH (columns), WARPS, BLOCK, STAGES.

#include "vectors.cuh"
#include "barriers.cuh"
#include "clusters.cuh"

constexpr bool IN_BFLOAT16 = X_TYPE == BFLOAT16;

#include "mma.cuh"
#include "absorbed.cuh"

constexpr int PROGRAMS = 2, HALF = WIDTH / PROGRAMS, THREADS = LANES * WARPS;
constexpr int GROUPS = (HEADS + ROWS - 1) / ROWS, ALL = GROUPS * ROWS;  // heads, and those that are none
constexpr int COLUMNS = HALF / WARPS;                  // of a warp
constexpr int ROW = 2 * HALF, PITCH = ROW + 16;        // bytes: matrices of eight rows are in all banks
constexpr int STAGE = TILE * PITCH;
constexpr int SCORES = TILE + 8;                       // floats from a head's to the next one's,
constexpr int PART = ALL * SCORES;                     // … and from a warp's
constexpr int OWN = ALL * TILE / THREADS;              // scores of a thread
constexpr int WEIGHTS = 2 * TILE + 16;                 // bytes from a head's to the next one's
constexpr int INBOXES = 4;                             // one of them sums two tiles ahead while the other one reads
constexpr int INBOX = 4 * ALL * TILE;
constexpr int PARTS = STAGES * STAGE;                  // where what lies
constexpr int FROM_OTHER = PARTS + 4 * WARPS * PART, TO_WEIGHTS = FROM_OTHER + INBOXES * INBOX;
constexpr int SHRINKS = TO_WEIGHTS + ALL * WEIGHTS, TOTALS = SHRINKS + 4 * ALL, BARRIERS = TOTALS + 4 * ALL;
static_assert(COLUMNS % 32 == 0 && ALL * TILE % THREADS == 0, "");

// What a warp knows: of its columns all heads' queries and sums; and a thread how its scores become weights.
struct Warp {
    u32 query[GROUPS][COLUMNS / 16][4];
    float sums[GROUPS][COLUMNS / 8][4] = {};
    float most[OWN], total[OWN] = {}, score[OWN];  // of its heads; of its hidden rows; of the tile ahead
    u32 memory, full, arrived;
    int warp, lane, token, first;                  // of its scores: their hidden row, and the first one's head

    __device__ __forceinline__ Warp(u32 memory)
        : memory(memory), full(memory + BARRIERS), arrived(full + 8 * STAGES), warp(threadIdx.x / LANES),
          lane(threadIdx.x % LANES), token(threadIdx.x % TILE), first(threadIdx.x / TILE) {
#pragma unroll
        for (int i = 0; i < OWN; i++) most[i] = LOWEST;
    }

    __device__ __forceinline__ int head(int i) const { return first + i * (THREADS / TILE); }

    __device__ __forceinline__ void load_query(const unsigned short* q) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int k = 0; k < COLUMNS / 16; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int head = g * ROWS + lane / 4 + i % 2 * 8;
                    const int column = warp * COLUMNS + 16 * k + i / 2 * 8 + lane % 4 * 2;
                    query[g][k][i] = head < HEADS ? *(const u32*)(q + head * WIDTH + column) : 0;
                }
    }

    // Writes the products of this warp's columns of a tile where all warps' are summed up.
    __device__ __forceinline__ void multiply_queries(u32 tile) {
        float products[GROUPS][TILE / 8][4] = {};
#pragma unroll
        for (int k = 0; k < COLUMNS / 32; k++)
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                u32 hidden[4];
                const int column = warp * COLUMNS + 32 * k + lane / 8 * 8;
                load_matrices<false>(hidden, tile + (8 * n + lane % 8) * PITCH + 2 * column);
#pragma unroll
                for (int g = 0; g < GROUPS; g++) multiply(products[g][n], query[g][2 * k], hidden[0], hidden[1]);
#pragma unroll
                for (int g = 0; g < GROUPS; g++) multiply(products[g][n], query[g][2 * k + 1], hidden[2], hidden[3]);
            }
        const u32 to = memory + PARTS + 4 * (warp * PART + lane / 4 * SCORES + lane % 4 * 2);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    store_two(to + 4 * ((g * ROWS + r * 8) * SCORES + 8 * n), products[g][n][2 * r],
                              products[g][n][2 * r + 1]);
    }

    // Sums up what the warps of this program have of a tile's scores, for both programs.
    __device__ __forceinline__ void tell_scores(int tile, int other) {
        const int inbox = tile % INBOXES;
        const u32 barrier = arrived + 8 * inbox;
        if (threadIdx.x == 0) barrier_expect(barrier, INBOX);
        const u32 there = address_in(other, memory + FROM_OTHER + inbox * INBOX), bell = address_in(other, barrier);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            score[i] = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                score[i] += float_at(memory + PARTS + 4 * (w * PART + head(i) * SCORES + token));
            send(there + 4 * (threadIdx.x + i * THREADS), score[i], bell);
        }
    }

    // Turns scores of a tile into weights; `own`: this program's part of them, `left`: how many of its rows are there.
    __device__ __forceinline__ void weigh(const float (&own)[OWN], int tile, float scale, int left) {
        const int inbox = tile % INBOXES;
        barrier_wait_for_other(arrived + 8 * inbox, tile / INBOXES % 2);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            float x = own[i] + float_at(memory + FROM_OTHER + inbox * INBOX + 4 * (threadIdx.x + i * THREADS));
            x = token < left ? x * scale : __uint_as_float(0xFF800000u);
            weigh_score(x, most[i], total[i], memory + TO_WEIGHTS + head(i) * WEIGHTS + 2 * token,
                        memory + SHRINKS + 4 * head(i), token == 0);
        }
    }

    __device__ __forceinline__ void add_weighed(u32 tile) {
        u32 weights[GROUPS][4];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const u32 at = memory + SHRINKS + 4 * (g * ROWS + lane / 4);
            const float shrink[2] = {float_at(at), float_at(at + 4 * 8)};
            if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
                for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[g][c][i] *= shrink[i / 2];
            }
            load_matrices<false>(
                weights[g], memory + TO_WEIGHTS + (g * ROWS + lane % 16) * WEIGHTS + 2 * (lane / 16 * 8));
        }
#pragma unroll
        for (int c = 0; c < COLUMNS / 16; c++) {
            u32 hidden[4];
            const int column = warp * COLUMNS + 16 * c + lane / 16 * 8;
            load_matrices<true>(hidden, tile + lane % 16 * PITCH + 2 * column);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                multiply(sums[g][2 * c], weights[g], hidden[0], hidden[1]);
                multiply(sums[g][2 * c + 1], weights[g], hidden[2], hidden[3]);
            }
        }
    }

    // Writes the result.
    __device__ __forceinline__ void finish(unsigned short* out) {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const float all = of_head<false>(total[i]);
            if (token == 0) store_float(memory + TOTALS + 4 * head(i), all);
        }
        __syncthreads();
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int head = g * ROWS + lane / 4 + 8 * r;
                const float part = 1.0f / float_at(memory + TOTALS + 4 * head);
                unsigned short* to = out + head * WIDTH + warp * COLUMNS + lane % 4 * 2;
#pragma unroll
                for (int c = 0; c < COLUMNS / 8; c++)
                    if (head < HEADS)
                        *(u32*)(to + 8 * c) = pack_x(sums[g][c][2 * r] * part, sums[g][c][2 * r + 1] * part);
            }
    }
};

// What a thread requests of each tile: the program's half of a hidden row, or nothing.
struct Requests {
    const int* table;
    const unsigned short* blocks;  // from the first of the program's columns on
    u32 memory;
    int length, row, next = 0, block;  // the row of its tiles; the next tile, and the block that has it

    __device__ __forceinline__ Requests(const int* table, const unsigned short* blocks, u32 memory, int length)
        : table(table), blocks(blocks), memory(memory), length(length) {
        row = threadIdx.x / LANES + WARPS * (threadIdx.x % LANES);
        find();
    }

    __device__ __forceinline__ bool wanted() const { return row < TILE && next * TILE < length; }

    // Behind the last hidden row comes it again: its weight there is 0, and all are numbers.
    __device__ __forceinline__ int place() const { return min(next * TILE + row, length - 1); }

    __device__ __forceinline__ void find() { block = wanted() ? table[place() / BLOCK] : 0; }

    __device__ __forceinline__ void request() {
        if (wanted()) {
            const int stage = next % STAGES;
            const u32 full = memory + BARRIERS + 8 * stage;
            if (threadIdx.x == 0) barrier_expect(full, TILE * ROW);
            copy(memory + stage * STAGE + row * PITCH, blocks + ((i64)block * BLOCK + place() % BLOCK) * WIDTH, ROW, full);
        }
        next++;
        find();
        __syncwarp();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) absorbed_pair(
    const unsigned short* q, const unsigned short* blocks, const int* tables, const int* slots, const int* lengths,
    unsigned short* out, float scale, int table_stride) {
    extern __shared__ __align__(128) char shared[];
    const u32 memory = shared_address(shared);
    let_next_begin();
    const int half = blockIdx.x, row = blockIdx.y, length = lengths[row], tiles = (length + TILE - 1) / TILE;
    Requests requests(tables + (i64)slots[row] * table_stride, blocks + half * HALF, memory, length);
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES + INBOXES; i++) barrier_init(memory + BARRIERS + 8 * i, 1);
    show_barriers();
    cluster_arrive();
    __syncthreads();
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) requests.request();
    Warp warp(memory);
    wait_for_inputs();
    warp.load_query(q + (i64)row * HEADS * WIDTH + half * HALF);
    cluster_wait();  // the other one's barriers are there
    barrier_wait(warp.full, 0);
    warp.multiply_queries(memory);
    __syncthreads();
    warp.tell_scores(0, 1 - half);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        const int ahead = tile + 1;
        float own[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) own[i] = warp.score[i];
        if (ahead < tiles) {
            barrier_wait(warp.full + 8 * (ahead % STAGES), ahead / STAGES % 2);
            warp.multiply_queries(memory + ahead % STAGES * STAGE);
        }
        __syncthreads();  // the tile before is read by nobody any more
        if (tile > 0) requests.request();
        if (ahead < tiles) warp.tell_scores(ahead, 1 - half);
        warp.weigh(own, tile, scale, length - tile * TILE);
        __syncthreads();
        warp.add_weighed(memory + tile % STAGES * STAGE);
    }
    warp.finish(out + (i64)row * HEADS * WIDTH + half * HALF);
    cluster_meets();  // nobody ends while the other one writes to it
}
