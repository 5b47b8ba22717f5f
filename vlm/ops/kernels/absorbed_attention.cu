// Attention of rows over an encoder's hidden rows, by queries that keys' weights were multiplied into (compute capability
// 9.0).
//
// A program has a row, all its heads at once, and a share of the context; a cluster has the whole. Hidden rows come a tile
// at a time. A warp has a part of the columns, for which it multiplies the tile twice: with queries, whose products of all
// warps are summed up to scores, and with the weights that these become. A hidden row is read from memory once for both and
// for every head. The tensor cores' rows are heads, 16 of them. Scores of two heads become weights in a warp, whose lanes
// have a hidden row each, twice. The queries come as a tile does, ahead of the first one.
//
// Two warps a quarter of a processor, of no more than 160 registers a thread, leave room for a program of the kernel ahead
// (absorbed_attention.py), beside which the first tiles are requested. So no warp does nothing else than to request, and a
// tile is one copy, or two of short blocks.
//
// Defined when it is compiled: X_TYPE (see vectors.cuh), HEADS (at most 16), WIDTH (columns, a multiple of 256), BLOCK
// (a multiple of 8), STAGES, SPLITS.

#include "vectors.cuh"
#include "barriers.cuh"
#include "boxes.cuh"
#include "clusters.cuh"

constexpr bool IN_BFLOAT16 = X_TYPE == BFLOAT16;

#include "mma.cuh"
#include "absorbed.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = LANES * WARPS;
constexpr int COLUMNS = WIDTH / WARPS;                // of a warp
constexpr int LINE = 128, LINE_COLUMNS = LINE / 2;    // bytes of a row that lie together in a tile
constexpr int ROW = 2 * WIDTH, STAGE = TILE * ROW;    // bytes
constexpr int BOX_ROWS = BLOCK % TILE ? 8 : TILE;     // that are copied together
constexpr int PITCH = ROW + 16;                       // bytes from a head's result to the next one's: in all banks
constexpr int SCORES = TILE + 8;                      // floats from a head's to the next one's
constexpr int WEIGHTS = 2 * TILE + 16;                // bytes from a head's to the next one's
constexpr int SUMS = 4 * WIDTH + 32;                  // bytes from a head's to the next one's, in the end
constexpr int PARTS = STAGES * STAGE;                 // where what lies
constexpr int TO_WEIGHTS = PARTS + 4 * WARPS * ROWS * SCORES;
constexpr int SHRINKS = TO_WEIGHTS + ROWS * WEIGHTS, TOTALS = SHRINKS + 4 * ROWS;
constexpr int BARRIERS = TOTALS + 8 * ROWS;
static_assert(COLUMNS % 32 == 0 && HEADS <= ROWS && ROWS * SUMS <= PARTS && BLOCK % 8 == 0, "");

// Where eight columns of a row lie in what was copied by boxes of so many rows: those of rows beside it are in other banks.
template <int BOX> __device__ __forceinline__ u32 place(u32 tile, int row, int column) {
    const int vector = column % LINE_COLUMNS / 8 ^ row % 8;
    return tile + row / BOX * (BOX * ROW) + column / LINE_COLUMNS * (BOX * LINE) + row % BOX * LINE + 16 * vector;
}

__device__ __forceinline__ void load_four(float (&to)[4], u32 at) {
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(at) : "memory");
}

// What a warp knows: of its columns all heads' queries and sums, and of two heads how scores become weights.
struct Warp {
    u32 query[COLUMNS / 16][4];
    float sums[COLUMNS / 8][4] = {};
    float most = LOWEST, total = 0.0f;  // of a lane's head; of its hidden rows
    u32 memory;
    int warp, lane, head, token;

    __device__ __forceinline__ Warp(u32 memory) : memory(memory), warp(threadIdx.x / LANES), lane(threadIdx.x % LANES) {
        head = 2 * warp + lane / TILE, token = lane % TILE;
    }

    __device__ __forceinline__ void load_query(u32 tile) {
#pragma unroll
        for (int k = 0; k < COLUMNS / 16; k++)
            load_matrices<false>(query[k], place<ROWS>(tile, lane % 16, warp * COLUMNS + 16 * k + lane / 16 * 8));
    }

    // Writes the products of this warp's columns of a tile where all warps' are summed up.
    __device__ __forceinline__ void multiply_queries(u32 tile) {
        float products[2][TILE / 8][4] = {};  // of every other 16 columns: they do not wait for each other
#pragma unroll
        for (int k = 0; k < COLUMNS / 32; k++)
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                u32 hidden[4];
                const int column = warp * COLUMNS + 32 * k + lane / 8 * 8;
                load_matrices<false>(hidden, place<BOX_ROWS>(tile, 8 * n + lane % 8, column));
                multiply(products[0][n], query[2 * k], hidden[0], hidden[1]);
                multiply(products[1][n], query[2 * k + 1], hidden[2], hidden[3]);
            }
        const u32 to = memory + PARTS + 4 * ((warp * ROWS + lane / 4) * SCORES + lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float first = products[0][n][2 * r] + products[1][n][2 * r];
                const float second = products[0][n][2 * r + 1] + products[1][n][2 * r + 1];
                store_two(to + 4 * (r * 8 * SCORES + 8 * n), first, second);
            }
    }

    // Turns two heads' scores of a tile into weights; `there`: how many of its rows are.
    __device__ __forceinline__ void weigh(float scale, int there) {
        float score = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) score += float_at(memory + PARTS + 4 * ((w * ROWS + head) * SCORES + token));
        score = token < there ? score * scale : __uint_as_float(0xFF800000u);
        weigh_score(score, most, total, memory + TO_WEIGHTS + head * WEIGHTS + 2 * token, memory + SHRINKS + 4 * head,
                    token == 0);
    }

    // Clears rows of a tile that are none: their weight is 0, but what lies there may be no number.
    __device__ __forceinline__ void clear(u32 tile, int there) {
        constexpr int VECTORS = ROW / 16;
        for (int i = threadIdx.x; i < (TILE - there) * VECTORS; i += THREADS)
            store_shared(place<BOX_ROWS>(tile, there + i / VECTORS, i % VECTORS * 8), Vector{});
    }

    __device__ __forceinline__ void add_weighed(u32 tile) {
        const float shrink[2] = {float_at(memory + SHRINKS + 4 * (lane / 4)), float_at(memory + SHRINKS + 4 * (lane / 4 + 8))};
        if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[c][i] *= shrink[i / 2];
        }
        u32 weights[4];
        load_matrices<false>(weights, memory + TO_WEIGHTS + lane % 16 * WEIGHTS + 2 * (lane / 16 * 8));
#pragma unroll
        for (int c = 0; c < COLUMNS / 16; c++) {
            u32 hidden[4];
            const int column = warp * COLUMNS + 16 * c + lane / 16 * 8;
            load_matrices<true>(hidden, place<BOX_ROWS>(tile, lane % 16, column));
            multiply(sums[2 * c], weights, hidden[0], hidden[1]);
            multiply(sums[2 * c + 1], weights, hidden[2], hidden[3]);
        }
    }

    // Writes the result of a whole context: by way of shared memory, out of which threads beside each other write what
    // follows each other.
    __device__ __forceinline__ void finish(unsigned short* out) {
        const float all = of_head<false>(total);
        if (token == 0) store_two(memory + TOTALS + 8 * head, most, all);
        __syncthreads();  // nobody reads a tile any more
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = lane / 4 + 8 * r;
            const float part = 1.0f / float_at(memory + TOTALS + 8 * row + 4);
            const u32 to = memory + row * PITCH + 2 * (warp * COLUMNS + lane % 4 * 2);
#pragma unroll
            for (int c = 0; c < COLUMNS / 8; c++)
                asm volatile("st.shared.u32 [%0], %1;"
                             ::"r"(to + 16 * c), "r"(pack_x(sums[c][2 * r] * part, sums[c][2 * r + 1] * part)) : "memory");
        }
        __syncthreads();
        constexpr int VECTORS = ROW / 16;
#pragma unroll
        for (int i = threadIdx.x; i < HEADS * VECTORS; i += THREADS)
            ((Vector*)out)[i] = load_shared(memory + i / VECTORS * PITCH + i % VECTORS * 16);
    }

    // Writes what was found where programs of the cluster read it.
    __device__ __forceinline__ void store() {
        __syncthreads();  // nobody reads a tile any more
        const float all = of_head<false>(total);
        if (token == 0) store_two(memory + TOTALS + 8 * head, most, all);
        const u32 to = memory + lane / 4 * SUMS + 4 * (warp * COLUMNS + lane % 4 * 2);
#pragma unroll
        for (int c = 0; c < COLUMNS / 8; c++) {
            store_two(to + 4 * 8 * c, sums[c][0], sums[c][1]);
            store_two(to + 8 * SUMS + 4 * 8 * c, sums[c][2], sums[c][3]);
        }
    }
};

// Writes a share of the columns of what all programs of the cluster found.
__device__ __forceinline__ void merge(u32 memory, unsigned short* out, int split) {
    constexpr int EIGHTS = WIDTH / SPLITS / 8;
    for (int i = threadIdx.x; i < HEADS * EIGHTS; i += THREADS) {
        const int head = i / EIGHTS, column = (split * EIGHTS + i % EIGHTS) * 8;
        float most[SPLITS], total[SPLITS], highest = LOWEST, all = 0.0f, y[8] = {};
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            const u32 at = address_in(s, memory + TOTALS + 8 * head);
            asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(most[s]), "=f"(total[s]) : "r"(at) : "memory");
            highest = fmaxf(highest, most[s]);
        }
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            const float weight = exp2_of(most[s] - highest);
            const u32 at = address_in(s, memory + head * SUMS + 4 * column);
            float first[4], second[4];
            load_four(first, at), load_four(second, at + 16);
            all += weight * total[s];
#pragma unroll
            for (int j = 0; j < 4; j++) y[j] += weight * first[j], y[4 + j] += weight * second[j];
        }
        Vector packed;
#pragma unroll
        for (int j = 0; j < 4; j++) packed.v[j] = pack_x(y[2 * j] / all, y[2 * j + 1] / all);
        *(Vector*)(out + head * WIDTH + column) = packed;
    }
}

extern "C" __global__ void __maxnreg__(160) absorbed_attention(
    const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap hidden, const int* tables, const int* slots,
    const int* lengths, unsigned short* out, float scale, int table_stride) {
    extern __shared__ char shared[];
    const u32 memory = (shared_address(shared) + 1023) / 1024 * 1024, full = memory + BARRIERS;
    let_next_begin();
    const int split = blockIdx.x, row = blockIdx.y, length = lengths[row];
    const int* table = tables + (i64)slots[row] * table_stride;
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1);
    show_barriers();
    __syncthreads();

    constexpr int BOXES = TILE / BOX_ROWS;
    const int share = (length + SPLITS * TILE - 1) / (SPLITS * TILE) * TILE, begin = split * share;
    const int count = min(share, length - begin), tiles = count > 0 ? (count + TILE - 1) / TILE : 0;
    const bool requests = threadIdx.x == 0;
    int block[BOXES];  // of the next tile's boxes
    const auto look_up = [&](int tile) {
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            const int n = tile * TILE + i * BOX_ROWS;
            block[i] = n < count ? table[(begin + n) / BLOCK] : 0;
        }
    };
    const auto request = [&](int tile) {
        if (tile >= tiles) return;
        const u32 stage = (tile + 1) % STAGES, barrier = full + 8 * stage;
        const int there = min(BOXES, (count - tile * TILE + BOX_ROWS - 1) / BOX_ROWS);
        barrier_expect(barrier, there * BOX_ROWS * ROW);
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            const int n = begin + tile * TILE + i * BOX_ROWS;
            if (i < there) copy(memory + stage * STAGE + i * BOX_ROWS * ROW, &hidden, block[i] * BLOCK + n % BLOCK, 0, barrier);
        }
        look_up(tile + 1);
    };
    if (requests) {
        look_up(0);
        for (int tile = 0; tile < STAGES - 1; tile++) request(tile);
    }
    wait_for_inputs();
    if (requests) barrier_expect(full, ROWS * ROW), copy(memory, &queries, row * HEADS, 0, full);
    Warp warp(memory);
    barrier_wait(full, 0);
    warp.load_query(memory);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        const u32 stage = memory + (tile + 1) % STAGES * STAGE;
        const int there = count - tile * TILE;
        barrier_wait(full + 8 * ((tile + 1) % STAGES), (tile + 1) / STAGES % 2);
        warp.multiply_queries(stage);
        __syncthreads();  // nobody reads the tile before this one any more, or the queries
        if (requests) request(tile + STAGES - 1);
        warp.weigh(scale, there);
        if (there < TILE) warp.clear(stage, there);
        __syncthreads();
        warp.add_weighed(stage);
    }
    if (SPLITS == 1) {
        warp.finish(out + (i64)row * HEADS * WIDTH);
        return;
    }
    warp.store();
    cluster_meets();
    merge(memory, out + (i64)row * HEADS * WIDTH, split);
    cluster_meets();  // nobody ends while others read what it found
}
