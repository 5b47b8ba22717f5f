// Causal attention of prompts over a paged cache (compute capability 9.0).
//
// A program has two groups of four warps that attend, each with a tile of 64 query rows, and a group that copies: tiles of
// two heads that share keys (PAIRS), or two tiles of a head that follow each other; then those of further heads, whose keys
// are copied while it attends. Keys and values come by stages through a ring: a stage has the keys of one step and the values
// of the step before, so that queries are multiplied with further keys together with weights and values; highest scores are
// looked for meanwhile. Queries and weights are in registers. A thread has what the tensor cores give it: of two rows eight
// apart two columns of every eight.
//
// Weights are 2 to the power of how far a score is above one that was the highest of its row: while none of a warp's is
// SLACK above it, it stays, and with it what was summed up. (As FlashAttention-4 does.)
//
// Values of 8 bits become float16 on their way, multiplied by their scales, which are divided by the highest of a step:
// float16 may not hold their products. Scores are multiplied by the highest scale of keys as they are weighed, and weights by
// that of values, divided by the unit of the sums, which changes where they would come to more than float16 holds.
//
// Defined when it is compiled: X_TYPE (see vectors.cuh), KV_TYPE (that of x, or see widen.cuh), DIM (64 or 128), BLOCK, KEYS
// (64 or 128, of a step), STAGES, PAIRS, WIDE (products have 128 columns where there are as many), TURNS (the groups request
// products in turn, so that one multiplies while the other one weighs).

#include "vectors.cuh"
#include "barriers.cuh"
#include "wgmma.cuh"
#include "widen.cuh"

constexpr bool IN_8_BITS = KV_TYPE >= INT8;
constexpr bool IN_BFLOAT16 = KV_TYPE == BFLOAT16;

#include "flash.cuh"

constexpr int ROWS = 64;                                // of a tile
constexpr int GROUP_THREADS = 128, GROUPS = 2;          // of threads that attend
constexpr int THREADS = GROUP_THREADS * (1 + GROUPS);
constexpr int LINES = 2 * DIM / LINE;
constexpr int SLICES = DIM / 8;                         // of a row in shared memory, 16 bytes each
constexpr int PART = KEYS * DIM * 2, STAGE = 2 * PART;  // keys, values
constexpr int PEAKS = STAGES * STAGE;                   // the highest scales of a stage's keys and of the values after them
constexpr int BARRIERS = PEAKS + 8 * STAGES;            // of stages that are full, then of those that are empty
constexpr int VALUES = IN_8_BITS ? 16 : 8;              // of a row, in 16 bytes of the cache
constexpr int BYTES = 16 / VALUES;                      // of a value
constexpr int VECTORS = DIM / VALUES;                   // of a row in the cache
constexpr int APART = GROUP_THREADS / VECTORS;          // rows that threads copy together
constexpr int COPIES = KEYS / APART;                    // of a thread, of keys and of values
constexpr int EACH = KEYS / 32;                         // keys whose places a lane looks up
constexpr int COPYING_REGISTERS = IN_8_BITS ? 136 : 56, ATTENDING_REGISTERS = (504 - COPYING_REGISTERS) / 2;
constexpr float UNITS = 64.0f;                          // in float16 weights up to so many times as much as SLACK says
constexpr float LEAST = 1e-15f;                         // of what is divided by

// Describes what lies so many bytes further.
__device__ __forceinline__ u64 further(u64 description, int bytes) { return description + (bytes >> 4); }

// Arrives at a barrier once all that this thread requested has come.
__device__ __forceinline__ void arrive_with_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

template <int REGISTERS> __device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

__device__ __forceinline__ float log2_of(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Two values as products take them.
__device__ __forceinline__ u32 pack(float low, float high) { return packed<IN_BFLOAT16>(low, high); }

__device__ __forceinline__ u32 multiply_halves(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// Some rows of a sequence.
struct Tile {
    int row, count, slot, position;

    __device__ __forceinline__ explicit Tile(const int* at) : row(at[0]), count(at[1]), slot(at[2]), position(at[3]) {}

    __device__ __forceinline__ int end() const { return position + count; }

    // Whether a program has the tile together with this one ahead of it: of two that follow each other the one whose
    // position is an odd number of tiles.
    __device__ __forceinline__ bool is_second_of(const Tile& first) const {
        const bool follows = slot == first.slot && position == first.position + ROWS && row == first.row + ROWS;
        return count > 0 && follows && position / ROWS % 2;
    }
};

// How many steps there are to so many keys.
__device__ __forceinline__ int steps_to(int end) { return (end + KEYS - 1) / KEYS; }

// The ring of stages: of a head one more than it has steps.
struct Ring {
    u32 memory;
    int first = 0;  // stage of this head

    __device__ __forceinline__ u32 at(int n) const { return (u32)(first + n) % STAGES; }
    __device__ __forceinline__ u32 stage(int n) const { return memory + at(n) * STAGE; }
    __device__ __forceinline__ u32 peaks(int n) const { return memory + PEAKS + at(n) * 8; }
    __device__ __forceinline__ u32 full(int n) const { return memory + BARRIERS + at(n) * 8; }
    __device__ __forceinline__ u32 empty(int n) const { return full(n) + 8 * STAGES; }
    __device__ __forceinline__ u32 round(int n) const { return (u32)(first + n) / STAGES; }

    __device__ __forceinline__ void begin(int groups) const {
        for (int n = 0; n < STAGES; n++) barrier_init(full(n), GROUP_THREADS), barrier_init(empty(n), 4 * groups);
        show_barriers();
    }

    __device__ __forceinline__ void wait_until_full(int n) const {
        barrier_wait(full(n), round(n) % 2);
        show_products();  // here: those that copy wait neither for what they requested nor for what they load
    }

    __device__ __forceinline__ void wait_until_empty(int n) const {
        if (round(n) > 0) barrier_wait(empty(n), round(n) % 2 ^ 1);
    }

    // Tells that this warp has read a stage.
    __device__ __forceinline__ void release(int n) const {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty(n));
    }
};

// What a thread knows of its two rows.
struct Rows {
    u32 query[DIM / 16][4];
    Sums scores[KEYS / 64];
    Weights weights;
    Sums sums[LINES];
    float scale[2], most[2], total[2], unit = 0.0f;

    // Queries of `there` rows from this thread's first one on; of others zeros.
    __device__ __forceinline__ Rows(const unsigned short* q, i64 q_row, int there, float by) {
        load_rows(query, q, q_row, there), clear(sums);
#pragma unroll
        for (int r = 0; r < 2; r++) scale[r] = by, most[r] = __uint_as_float(0xFF800000u), total[r] = 0.0f;
        if (IN_8_BITS && X_TYPE == BFLOAT16) make_halves();
    }

    // Divides queries by their highest value: float16 has not the reach of bfloat16.
    __device__ __forceinline__ void make_halves() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float low, high, highest = LEAST;
#pragma unroll
            for (int k = 0; k < DIM / 8; k++) {
                unpack_x(query[k / 2][k % 2 * 2 + r], low, high);
                highest = fmaxf(highest, fmaxf(fabsf(low), fabsf(high)));
            }
            highest = of_row<true>(highest), scale[r] *= highest;
            const float by = 1.0f / highest;
#pragma unroll
            for (int k = 0; k < DIM / 8; k++) {
                u32& two = query[k / 2][k % 2 * 2 + r];
                unpack_x(two, low, high), two = pack(low * by, high * by);
            }
        }
    }

    // Requests the scores of a step's keys.
    __device__ __forceinline__ void multiply_keys(u32 keys) {
        const u64 first = described(keys);
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            const u64 part = further(first, k / 4 * KEYS * LINE + k % 4 * 32);
            if (WIDE && KEYS == 128) multiply<0>(scores[0], scores[KEYS / 128], query[k], part, k);
            else
#pragma unroll
                for (int i = 0; i < KEYS / 64; i++) multiply<0>(scores[i], query[k], further(part, i * 64 * LINE), k);
        }
    }

    // Requests that weights times values are added.
    __device__ __forceinline__ void add_values(u32 values) {
        const u64 first = described(values, KEYS * LINE);
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            const u64 part = further(first, 16 * k * LINE);
            if (WIDE && LINES == 2) multiply<1>(sums[0], sums[LINES - 1], weights[k], part, 1);
            else
#pragma unroll
                for (int i = 0; i < LINES; i++) multiply<1>(sums[i], weights[k], further(part, i * KEYS * LINE), 1);
        }
    }

    // Lets the compiler know what products change behind its back, or read.
    template <bool VALUES, bool FURTHER> __device__ __forceinline__ void fence_products() {
        if (VALUES) fence(weights), fence(sums);
        if (FURTHER) fence(query), fence(scores);
    }

    // Requests products with what a stage has: of queries with FURTHER keys, of weights with VALUES.
    template <bool VALUES, bool FURTHER> __device__ __forceinline__ void begin(u32 stage) {
        fence_products<VALUES, FURTHER>();
        begin_products();
        if (FURTHER) multiply_keys(stage), end_products();
        if (VALUES) add_values(stage + PART), end_products();
    }

    template <bool VALUES, bool FURTHER, int LEFT> __device__ __forceinline__ void end() {
        wait_for_products<LEFT>();
        fence_products<VALUES, FURTHER>();
    }

    // Hides what comes behind this column from the first row, from the other one what comes eight later.
    __device__ __forceinline__ void hide(int behind) {
        const int column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (8 * i + j % 2 - j / 2 * 8 > behind - column) scores[i / 8][i % 8][j] = __uint_as_float(0xFF800000u);
    }

    // Turns scores into weights; peaks: where the highest scales of the keys and their values lie. Releases the stage before.
    __device__ __forceinline__ void weigh(u32 peaks, const Ring& ring, int before) {
        const float key_peak = IN_8_BITS ? float_at(peaks) : 1.0f, value_peak = IN_8_BITS ? float_at(peaks + 4) : 1.0f;
        const float by[2] = {scale[0] * key_peak, scale[1] * key_peak};
        float highest[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            highest[r] = fmaxf(scores[0][0][2 * r], scores[0][0][2 * r + 1]);
#pragma unroll
            for (int i = 1; i < KEYS / 8; i++) {
                const float* two = scores[i / 8][i % 8] + 2 * r;
                highest[r] = fmaxf(highest[r], fmaxf(two[0], two[1]));
            }
            highest[r] *= by[r];
        }
        end<true, false, 0>();  // of the values before
        ring.release(before);
        rescale(highest, value_peak);
        const float units = IN_8_BITS ? __fdividef(value_peak, unit) : 1.0f;
        const float up = IN_8_BITS ? log2_of(units) : 0.0f, inverse = IN_8_BITS ? __fdividef(unit, value_peak) : 1.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float from = most[r] - up;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                const float* two = scores[i / 8][i % 8] + 2 * r;
                const float first = exp2_of(two[0] * by[r] - from), second = exp2_of(two[1] * by[r] - from);
                sum += first + second;
                weights[i / 2][i % 2 * 2 + r] = pack(first, second);
            }
            total[r] += sum * inverse;
        }
    }

    // Scales what was summed up as the highest scores are, where one is much higher than those before, and as values are.
    __device__ __forceinline__ void rescale(const float (&highest)[2], float value_peak) {
        const bool other_unit = IN_8_BITS && value_peak > UNITS * unit;  // as it is of all warps
        if (!__any_sync(~0u, highest[0] > most[0] + SLACK || highest[1] > most[1] + SLACK || other_unit)) return;
        const float by = other_unit ? __fdividef(unit, value_peak) : 1.0f;
        if (other_unit) unit = value_peak;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float now = fmaxf(most[r], of_row<true>(highest[r])), shrink = exp2_of(most[r] - now);
            most[r] = now, total[r] *= shrink;
#pragma unroll
            for (int i = 0; i < SLICES; i++)
#pragma unroll
                for (int c = 0; c < 2; c++) sums[i / 8][i % 8][2 * r + c] *= shrink * by;
        }
    }

    // Stores the results of `there` rows from this thread's first one on. Its two columns of each of four eights become,
    // of the lanes of a row, the eight columns of one.
    __device__ __forceinline__ void store(unsigned short* out, i64 out_row, int there) {
        const int part = threadIdx.x % 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float by = (IN_8_BITS ? unit : 1.0f) / of_row<false>(total[r]);
#pragma unroll
            for (int m = 0; m < SLICES; m += 4) {
                Vector x;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float* two = sums[(m + i) / 8][(m + i) % 8] + 2 * r;
                    x.v[i] = pack_x(two[0] * by, two[1] * by);
                }
                swap<1>(x.v[0], x.v[1], part), swap<1>(x.v[2], x.v[3], part);
                swap<2>(x.v[0], x.v[2], part), swap<2>(x.v[1], x.v[3], part);
                if (8 * r < there) *(Vector*)(out + 8 * r * out_row + (m + part) * 8) = x;
            }
        }
    }

    // Gives the first to a lane ahead of this one by BIT and takes its second, or the other way round.
    template <int BIT> static __device__ __forceinline__ void swap(u32& first, u32& second, int part) {
        const u32 other = __shfl_xor_sync(~0u, part & BIT ? first : second, BIT);
        first = part & BIT ? other : first, second = part & BIT ? second : other;
    }
};

__device__ __forceinline__ void wait_for_turn(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}

__device__ __forceinline__ void give_turn(int group) {
    asm volatile("bar.arrive %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}

// The turns of two groups: each waits for its own, and gives the other one the next.
struct Turns {
    int group, steps;  // steps: that both have

    __device__ __forceinline__ void begin() const {
        if (group == 1 && steps > 1) give_turn(0);
    }

    __device__ __forceinline__ void wait(int n) const {
        if (n < steps) wait_for_turn(group);
    }

    // The second group has none to give behind the last one.
    __device__ __forceinline__ void end(int n) const {
        if (n + group < steps) give_turn(1 - group);
    }
};

// Goes through the keys and values that some rows see, the first of which has this position; `last`: the last stage.
__device__ __forceinline__ void attend(Rows& rows, const Ring& ring, const Turns& turns, int position, int end, int last) {
    const int steps = steps_to(end), row = position + threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
    if (TURNS) turns.begin();
    ring.wait_until_full(0);
    rows.begin<false, true>(ring.stage(0));
    rows.end<false, true, 0>();
#pragma unroll 1
    for (int n = 1; n < steps; n++) {
        const int first = (n - 1) * KEYS;
        if (first + KEYS > position + 1) rows.hide(row - first);
        rows.weigh(ring.peaks(n - 1), ring, n - 1);
        ring.wait_until_full(n);
        if (TURNS) turns.wait(n);
        rows.begin<true, true>(ring.stage(n));
        if (TURNS) turns.end(n);
        rows.end<false, true, 1>();  // the values are waited for where their sums change
    }
    rows.hide(row - (steps - 1) * KEYS);
    rows.weigh(ring.peaks(steps - 1), ring, steps - 1);
    ring.wait_until_full(steps);
    rows.begin<true, false>(ring.stage(steps));
    rows.end<true, false, 0>();
    ring.release(steps);
    if (steps < last) ring.wait_until_full(last), ring.release(last);  // of a second tile
}

// The places of a step's keys and values in the cache, by 16 bytes, and their scales: of each lane those of every 32nd.
struct Places {
    u32 row[EACH];
    float key_scale[EACH], value_scale[EACH];  // of 8 bits
};

// The keys and values of a head on their way to shared memory.
struct Copies {
    const char *keys, *values;  // of this thread: its part of a row
    const float *key_scales, *value_scales;
    const int* table;
    int block_stride, scale_stride, end;  // blocks by 16 bytes; end: of what is there, zeros are laid behind it

    // The places of a step's keys.
    __device__ __forceinline__ Places look_up(int step) const {
        Places places;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int key = step * KEYS + i * 32 + threadIdx.x % 32, known = min(key, end - 1);
            const int block = table[known / BLOCK];  // behind the end that of the last key
            places.row[i] = (u32)block * block_stride + known % BLOCK * VECTORS;
            if (IN_8_BITS) {
                const i64 at = (i64)block * scale_stride + known % BLOCK;
                places.key_scale[i] = key < end ? key_scales[at] : 0.0f;
                places.value_scale[i] = key < end ? value_scales[at] : 0.0f;
            }
        }
        return places;
    }

    // The row of a step that is this thread's copy `i`, and what of it is. Eight threads that lay rows of 8 bits together
    // have four parts of two of them, which lie in different banks.
    static __device__ __forceinline__ int row_of(int i) {
        const int thread = threadIdx.x % GROUP_THREADS;
        return i * APART + (IN_8_BITS && VECTORS == 8 ? thread / 16 * 2 + thread / 4 % 2 : thread / VECTORS);
    }

    static __device__ __forceinline__ int vector() {
        const int thread = threadIdx.x % GROUP_THREADS;
        return IN_8_BITS && VECTORS == 8 ? thread % 4 + thread / 8 % 2 * 4 : thread % VECTORS;
    }

    // What the lane that looked it up has of the row of copy `i`.
    template <class T> static __device__ __forceinline__ T of_copy(const T (&each)[EACH], int i) {
        return __shfl_sync(~0u, each[i * APART / 32], row_of(i) % 32);
    }

    // Of the rows that there are after those before a step.
    __device__ __forceinline__ bool is_there(int step, int i) const { return i * APART < end - step * KEYS - row_of(0); }

    // Requests keys or values of 16 bits.
    __device__ __forceinline__ void request(u32 to, const char* x, const Places& places, int step) const {
        to += place(row_of(0), vector());
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            copy16(to + i * APART * LINE, x + (u64)of_copy(places.row, i) * 16, is_there(step, i));
    }

    // Loads a copy of keys or values of 8 bits.
    __device__ __forceinline__ Vector load(const char* x, const Places& places, int step, int i) const {
        const char* at = x + (u64)of_copy(places.row, i) * 16;
        return is_there(step, i) ? load_global(at) : Vector{};
    }
};

// Lays 16 values of 8 bits as float16, by this scale.
__device__ __forceinline__ void lay(u32 to, const Vector& x, int row, int vector, float scale) {
    const u32 by = packed<false>(scale, scale);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Vector eight;
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            widen(x.v[2 * half + i / 2], eight.v[i], eight.v[i + 1]);
            eight.v[i] = multiply_halves(eight.v[i], by), eight.v[i + 1] = multiply_halves(eight.v[i + 1], by);
        }
        store_shared(to + place(row, 2 * vector + half), eight);
    }
}

// The highest scale of a step.
__device__ __forceinline__ float peak_of(const float (&scales)[EACH]) {
    float peak = LEAST;
#pragma unroll
    for (int i = 0; i < EACH; i++) peak = fmaxf(peak, scales[i]);
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lanes));
    return peak;
}

// Copies what is in 16 bits.
__device__ __forceinline__ void copy_all(const Copies& copies, const Ring& ring) {
    const int steps = steps_to(copies.end);
    Places before, places = copies.look_up(0);
#pragma unroll 1
    for (int n = 0; n <= steps; n++) {
        const Places next = copies.look_up(n + 1);
        ring.wait_until_empty(n);
        if (n > 0) copies.request(ring.stage(n) + PART, copies.values, before, n - 1);
        if (n < steps) copies.request(ring.stage(n), copies.keys, places, n);
        arrive_with_copies(ring.full(n));
        before = places, places = next;
    }
}

// Copies what is in 8 bits: a vector is loaded as soon as the one that was in its registers is laid, a step before it is.
__device__ __forceinline__ void widen_all(const Copies& copies, const Ring& ring) {
    const int steps = steps_to(copies.end), vector = Copies::vector();
    Places before = {}, places = copies.look_up(0);
    Vector keys[COPIES], values[COPIES] = {};  // none come before the first keys: zeros are laid
    float value_peak = 1.0f;
#pragma unroll
    for (int i = 0; i < COPIES; i++) keys[i] = copies.load(copies.keys, places, 0, i);
#pragma unroll 1
    for (int n = 0; n <= steps; n++) {
        const Places next = copies.look_up(n + 1);
        ring.wait_until_empty(n);
        float by = __fdividef(1.0f, value_peak);
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const float scale = Copies::of_copy(before.value_scale, i) * by;
            lay(ring.stage(n) + PART, values[i], Copies::row_of(i), vector, scale);
            values[i] = copies.load(copies.values, places, n, i);
        }
        if (n < steps) {
            const float key_peak = peak_of(places.key_scale);
            value_peak = peak_of(places.value_scale), by = __fdividef(1.0f, key_peak);
            if (threadIdx.x % GROUP_THREADS == 0)
                store_float(ring.peaks(n), key_peak), store_float(ring.peaks(n) + 4, value_peak);
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                const float scale = Copies::of_copy(places.key_scale, i) * by;
                lay(ring.stage(n), keys[i], Copies::row_of(i), vector, scale);
                keys[i] = copies.load(copies.keys, next, n + 1, i);
            }
        }
        barrier_arrive(ring.full(n));
        before = places, places = next;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill_flash(
    const unsigned short* q, const char* keys, const char* values, const float* key_scales, const float* value_scales,
    const int* tables, const int* tiles, unsigned short* out, float scale, int q_row, int block_stride, int head_stride,
    int scale_stride, int table_stride, int sharing, int each) {
    extern __shared__ char unaligned[];
    Ring ring = {(shared_address(unaligned) + 1023) & ~1023u};
    let_next_begin();
    // the longest tiles first: they take the most time
    const int number = gridDim.y - 1 - blockIdx.y, warps = threadIdx.x / GROUP_THREADS;
    const Tile first(tiles + 4 * number);
    if (first.count == 0 || (!PAIRS && number > 0 && first.is_second_of(Tile(tiles + 4 * (number - 1))))) return;
    const bool has_second = !PAIRS && number + 1 < gridDim.y && Tile(tiles + 4 * (number + 1)).is_second_of(first);
    const Tile second(tiles + 4 * (number + has_second));
    if (threadIdx.x == 0) ring.begin(PAIRS || has_second ? GROUPS : 1);
    __syncthreads();
    wait_for_inputs();

    constexpr int TOGETHER = PAIRS ? 2 : 1;  // heads
    const int heads = gridDim.x * each * TOGETHER, first_head = blockIdx.x * each * TOGETHER, last = steps_to(second.end());
    if (warps == 0) {
        keep_registers<COPYING_REGISTERS>();
        for (int i = 0; i < each; i++, ring.first += last + 1) {
            const i64 kv_head = (first_head + i * TOGETHER) / sharing;
            const i64 part = kv_head * head_stride * BYTES + Copies::vector() * 16;
            const Copies copies = {
                keys + part, values + part, key_scales + kv_head * BLOCK, value_scales + kv_head * BLOCK,
                tables + (i64)first.slot * table_stride, block_stride / VALUES, scale_stride, second.end(),
            };
            if (IN_8_BITS) widen_all(copies, ring);
            else copy_all(copies, ring);
        }
        if (!IN_8_BITS) wait_for_copies();  // a thread with copies on their way does not end
    } else {
        take_registers<ATTENDING_REGISTERS>();
        if (warps == 2 && !PAIRS && !has_second) return;
        const Tile tile(tiles + 4 * (number + (warps == 2 && has_second)));
        const Turns turns = {warps - 1, PAIRS || has_second ? steps_to(first.end()) : 0};
        const int row = threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4, there = tile.count - row;
        for (int i = 0; i < each; i++, ring.first += last + 1) {
            const int head = first_head + i * TOGETHER + (PAIRS ? warps - 1 : 0);
            Rows rows(q + (i64)(tile.row + row) * q_row + head * DIM, q_row, there, scale);
            attend(rows, ring, turns, tile.position, tile.end(), last);
            rows.store(out + ((i64)(tile.row + row) * heads + head) * DIM, heads * DIM, there);
        }
    }
}
