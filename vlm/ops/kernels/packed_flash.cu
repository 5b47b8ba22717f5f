// Bidirectional attention of packed sequences, with or without a bias by distance (compute capability 9.0).
//
// A program has the query rows of a tile and a head, each of its warps 16 of them. Keys and values come by stages of as many
// rows, the next one while one is multiplied, and are read where they lie; queries and weights are in registers. A stage has
// values and the keys after theirs: queries are multiplied with further keys TOGETHER with weights and values, and highest
// scores are looked for meanwhile, where there are registers for weights beside further scores. A thread has what the tensor
// cores give it: of two rows eight apart two columns of every eight.
//
// Weights are 2 to the power of how far a score is above one that was the highest of its row: while none of a warp's is
// SLACK above it, it stays, and with it what was summed up. (As FlashAttention-4 does.)
//
// The head's biases lie in shared memory, their ends repeated so often that every score of a tile that is near has its own;
// a tile that is further reads where all are the end. A row's biases are those of the row eight further, eight columns on:
// a thread looks up 18 for its 32 scores.
//
// Defined when it is compiled: X_TYPE (see vectors.cuh), DIM (64 or 128), BIAS, PROGRAMS (of a processor, that registers are
// shared out among).

#include "vectors.cuh"
#include "barriers.cuh"
#include "wgmma.cuh"

constexpr bool IN_BFLOAT16 = X_TYPE == BFLOAT16;
constexpr int ROWS = 64, KEYS = 64;                     // of a tile, of a stage

#include "flash.cuh"

constexpr int STAGES = 2;
constexpr int THREADS = 128;
constexpr int EIGHTS = KEYS / 8;                        // of scores' columns
constexpr int LINES = 2 * DIM / LINE;
constexpr int SLICES = DIM / 8;                         // of a row, 16 bytes each
constexpr int PART = KEYS * DIM * 2, STAGE = 2 * PART;  // keys, values
constexpr int APART = THREADS / SLICES;                 // rows that threads copy together
constexpr bool TOGETHER = DIM <= 64;

// Lets what was requested come, but for the last LEFT stages, and the tensor cores see it; then all threads go on.
template <int LEFT> __device__ __forceinline__ void copies_have_come() {
    wait_for_stages<LEFT>(), show_products();
    __syncthreads();
}

// Requests the scores of a stage's keys.
__device__ __forceinline__ void multiply_keys(Sums& scores, const u32 (&query)[DIM / 16][4], u32 keys) {
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        multiply<0>(scores, query[k], described(keys + k / 4 * KEYS * LINE + k % 4 * 32), k);
}

// Requests that weights times values are added.
__device__ __forceinline__ void add_values(Sums (&sums)[LINES], const Weights& weights, u32 values) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int line = 0; line < LINES; line++)
            multiply<1>(sums[line], weights[k], described(values + (line * KEYS + 16 * k) * LINE), 1);
}

// What a thread knows of its two rows.
struct Rows {
    u32 query[DIM / 16][4];
    Sums scores;
    Weights weights;
    Sums sums[LINES];
    float most[2], total[2];

    // Queries of `there` rows from this thread's first one on; of others zeros.
    __device__ __forceinline__ Rows(const unsigned short* q, i64 q_row, int there) {
        load_rows(query, q, q_row, there), clear(sums);
#pragma unroll
        for (int r = 0; r < 2; r++) most[r] = __uint_as_float(0xFF800000u), total[r] = 0.0f;
    }

    // Lets the compiler know what products change behind its back, or read.
    template <bool VALUES, bool FURTHER> __device__ __forceinline__ void fence_products() {
        if (VALUES) fence(weights), fence(sums);
        if (FURTHER) fence(query), fence(scores);
    }

    // Requests products: of weights with VALUES, of queries with FURTHER keys.
    template <bool VALUES, bool FURTHER> __device__ __forceinline__ void begin(u32 values, u32 keys) {
        fence_products<VALUES, FURTHER>();
        begin_products();
        if (FURTHER) multiply_keys(scores, query, keys), end_products();
        if (VALUES) add_values(sums, weights, values), end_products();
    }

    template <bool VALUES, bool FURTHER, int LEFT = 0> __device__ __forceinline__ void end() {
        wait_for_products<LEFT>();
        fence_products<VALUES, FURTHER>();
    }

    // Turns scores into weights; `there`: of how many keys where not of all; `bias`: where that of the first row and
    // column lies.
    template <bool WHOLE> __device__ __forceinline__ void weigh(u32 bias, float scale, int there) {
        if (BIAS) add_bias(bias, scale), scale = 1.0f;
        if (!WHOLE) {
            const int column = 2 * (threadIdx.x % 4);
#pragma unroll
            for (int i = 0; i < EIGHTS; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (8 * i + column + j % 2 >= there) scores[i][j] = __uint_as_float(0xFF800000u);
        }
        see_highest(scale);
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float* two = scores[i] + 2 * r;
                const float first = exp2_of(two[0] * scale - most[r]), second = exp2_of(two[1] * scale - most[r]);
                total[r] += first + second;
                weights[i / 2][i % 2 * 2 + r] = pack_x(first, second);
            }
    }

    // Makes products what exp2 turns into weights.
    __device__ __forceinline__ void add_bias(u32 bias, float scale) {
        float of_second[2] = {float_at(bias - 4 * 8), float_at(bias - 4 * 7)};
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float* score = scores[i] + c;
                const float of_first = float_at(bias + 4 * (8 * i + c));
                score[0] = score[0] * scale + of_first;
                score[2] = score[2] * scale + of_second[c];
                of_second[c] = of_first;
            }
    }

    // Scales what was summed up as the highest scores are, where one is much higher than those before.
    __device__ __forceinline__ void see_highest(float scale) {
        float highest[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            highest[r] = fmaxf(scores[0][2 * r], scores[0][2 * r + 1]);
#pragma unroll
            for (int i = 1; i < EIGHTS; i++)
                highest[r] = fmaxf(highest[r], fmaxf(scores[i][2 * r], scores[i][2 * r + 1]));
            highest[r] *= scale;
        }
        if (TOGETHER) end<true, false>();  // of the values before
        if (!__any_sync(~0u, highest[0] > most[0] + SLACK || highest[1] > most[1] + SLACK)) return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float now = fmaxf(most[r], of_row<true>(highest[r])), shrink = exp2_of(most[r] - now);
            most[r] = now, total[r] *= shrink;
#pragma unroll
            for (int i = 0; i < SLICES; i++)
#pragma unroll
                for (int c = 0; c < 2; c++) sums[i / 8][i % 8][2 * r + c] *= shrink;
        }
    }

    // Lays results as keys lie.
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

// Requests keys or values, of which `there` are some, zeros for others: from this thread's first row on.
__device__ __forceinline__ void request(u32 to, const unsigned short* x, int x_row, int there) {
    const int first = threadIdx.x / SLICES;
#pragma unroll
    for (int row = 0; row < KEYS; row += APART)
        copy16(to + row * LINE, x + (i64)row * x_row, first + row < there);  // less than none behind the last stage
}

// The keys and values of a sequence on their way: a stage's values, and the keys after theirs.
struct Copies {
    const unsigned short *k, *v;  // of this thread: its slice of its first row
    int k_row, v_row;
    u32 memory, place_of_thread;
    int left;    // values of the stage that is read now, and those after them
    int at = 0;  // the stage that is read now

    __device__ __forceinline__ Copies(
        const unsigned short* k, const unsigned short* v, int k_row, int v_row, u32 memory, int first, int number)
        : k_row(k_row), v_row(v_row), memory(memory) {
        const int row = threadIdx.x / SLICES, slice = threadIdx.x % SLICES;
        this->k = k + (i64)(first + row) * k_row + slice * 8, this->v = v + (i64)(first + row) * v_row + slice * 8;
        place_of_thread = memory + place(row, slice), left = number;
    }

    // Requests the first keys as those of the last stage, and all other stages.
    __device__ __forceinline__ void begin() {
        request(place_of_thread + (STAGES - 1) * STAGE, k, k_row, left);
        end_stage();
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) request_stage(i * STAGE, left - i * KEYS);
    }

    __device__ __forceinline__ void request_stage(int to, int left) {
        k += (i64)KEYS * k_row;
        request(place_of_thread + to, k, k_row, left - KEYS);
        request(place_of_thread + to + PART, v, v_row, left);
        end_stage();
        v += (i64)KEYS * v_row;
    }

    // Requests a stage where the one before that which is read now lay.
    __device__ __forceinline__ void request_further() {
        request_stage(at == 0 ? (STAGES - 1) * STAGE : at - STAGE, left - (STAGES - 1) * KEYS);
    }

    __device__ __forceinline__ void go_on() { at = at == (STAGES - 1) * STAGE ? 0 : at + STAGE, left -= KEYS; }
};

// Where the biases of a thread's first row and of the first column of keys lie that are so far from its tile.
struct Biases {
    u32 of_distance_0;
    int distance, most;

    __device__ __forceinline__ u32 next() {
        const int looked_up = min(max(distance, -most - KEYS + 1), most + ROWS - 1);
        distance += KEYS;
        return of_distance_0 + 4 * looked_up;
    }
};

// Goes through the keys and values of a sequence.
__device__ __forceinline__ void go_through(Rows& rows, Copies copies, Biases biases, float scale) {
    copies.begin();
    copies_have_come<STAGES - 1>();
    rows.begin<false, true>(0, copies.memory + (STAGES - 1) * STAGE), rows.end<false, true>();
#pragma unroll 1
    for (; copies.left > KEYS; copies.go_on()) {
        rows.weigh<true>(biases.next(), scale, KEYS);
        copies_have_come<STAGES - 2>();  // and the stage before has been read
        const u32 stage = copies.memory + copies.at;
        if (!TOGETHER) rows.begin<true, false>(stage + PART, 0), rows.end<true, false>();
        rows.begin<TOGETHER, true>(stage + PART, stage);
        copies.request_further();
        rows.end<false, true, TOGETHER ? 1 : 0>();  // the values are waited for where their sums change
    }
    rows.weigh<false>(biases.next(), scale, copies.left);
    copies_have_come<0>();
    rows.begin<true, false>(copies.memory + copies.at + PART, 0), rows.end<true, false>();
    __syncthreads();  // all has been read
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS) packed_flash(
    const unsigned short* q, const unsigned short* k, const unsigned short* v, const int* tiles, const float* biases,
    unsigned short* out, float scale, int q_row, int k_row, int v_row, int group, int most) {
    extern __shared__ char unaligned[];
    const u32 memory = (shared_address(unaligned) + 1023) & ~1023u;
    float* window = (float*)(unaligned + (memory - shared_address(unaligned)) + STAGES * STAGE);
    const int reach = most + ROWS + KEYS - 2;  // of scores whose tiles are as far as any are looked up
    let_next_begin();
    const int head = blockIdx.y, heads = gridDim.y;
    const int start = tiles[3 * blockIdx.x], begin = tiles[3 * blockIdx.x + 1], end = tiles[3 * blockIdx.x + 2];
    if (BIAS) {
        biases += (i64)head * (2 * most + 1) + most;
        for (int i = threadIdx.x; i <= 2 * reach; i += THREADS)
            window[i] = biases[min(max(i - reach, -most), most)] * LOG2E;
    }
    wait_for_inputs();  // for rows: tiles and biases were there before
    if (begin >= end) return;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
    Rows rows(q + (i64)(start + row) * q_row + head * DIM, q_row, end - start - row);
    const int kv_head = head / group * DIM;
    const Copies copies(k + kv_head, v + kv_head, k_row, v_row, memory, begin, end - begin);
    const u32 bias = shared_address(window) + 4 * (reach + lane % 4 * 2 - row);
    go_through(rows, copies, {bias, begin - start, most}, scale);

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
