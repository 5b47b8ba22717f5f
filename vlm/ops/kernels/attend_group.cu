// Attention of rows over a paged cache, where each query head has its own keys and values or several share one, by
// clusters of programs (compute capability 9.0 and up).
//
// A cluster has the heads of a row that share keys, as rows of the tensor cores' products, each of its programs a share
// of the context. WARPS warps take stages of TOKENS tokens in turn, each copies what it reads itself, the first STAGES
// of them before the kernels ahead of this one have ended. What the programs found each of them merges for a share of the
// results, out of the shared memory of all.
//
// Products do not care for the order of what they sum up, nor results for that of their columns: a thread has 16 bytes of
// a token as they lie, keys for the products' inputs, values for their columns. Nothing is transposed, and values of 8
// bits become float16 in the registers that they are loaded into. Slices lie where those that are loaded together are in
// other banks.
//
// In a step each row's own token comes with it (NEW), as a stage of one token of the last warp of the last program, which
// has the fewest others.
//
// Defined when it is compiled: what attention.cuh says, HEADS, GROUP (query heads that share one of keys, up to 16),
// BLOCK, CLUSTER, NEW, REACH, BIAS (by distance; of heads that share nothing).

#include "vectors.cuh"
#include "barriers.cuh"
#include "clusters.cuh"
#include "attention.cuh"
#include "widen.cuh"

static_assert(!BIAS || GROUP == 1);
constexpr int TOKENS = 16;                          // of a stage
constexpr int LINE = DIM * BYTES;                   // of a token
constexpr int PART = TOKENS * LINE;                 // keys, or values
constexpr int BIASES = 2 * PART + (IN_8_BITS ? 8 * TOKENS : 0);  // where they lie: behind the scales of both
constexpr int STAGE = BIASES + (BIAS ? 4 * TOKENS : 0);
constexpr int COPIES = TOKENS * SLICES / 32;        // of a lane, of keys and of values
constexpr int COLUMNS = DIM / 8;                    // of results, by eights
constexpr int ROWS = GROUP > 8 ? 2 : 1;             // that a thread has of the 16: a product's others are zeros
constexpr int FOUND = DIM + 2;                      // of a head: values, the highest score, the sum of weights
constexpr bool IN_BFLOAT16 = KV_TYPE == BFLOAT16;

#include "mma.cuh"

// Where a slice of a token lies among those of its keys, or values.
__device__ __forceinline__ int place_of_key(int token, int slice) { return SLICES < 8 ? slice : slice ^ (token & 1) << 2; }
__device__ __forceinline__ int place_of_value(int token, int slice) { return SLICES < 8 ? slice : slice ^ (token & 6); }

// The value of a head that is column `n` of eight columns.
__device__ __forceinline__ int value_of(int eight, int n) {
    return IN_8_BITS ? n * 16 + eight : (n + eight / 8 * 8) * 8 + eight % 8;
}

__device__ __forceinline__ u32 pack(float low, float high) { return packed<IN_BFLOAT16>(low, high); }

__device__ __forceinline__ void load_two(u32 from, float (&to)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(from) : "memory");
}

// What a thread has of the left side of a product of 16 inputs: of its first row, then of the one eight further.
struct Left { u32 first[2], second[2]; };

// Adds a product's results to what a thread has of them, of each row two columns.
__device__ __forceinline__ void multiply(float (&c)[2 * ROWS], const Left& a, u32 b0, u32 b1) {
#if GROUP > 8
    multiply_add(c, a.first[0], a.second[0], a.first[1], a.second[1], b0, b1);
#else
#define ONE_ROW(TYPE)                                                                                        \
    asm("{ .reg .f32 x, y, z; .reg .b32 n; mov.f32 z, 0f00000000; mov.b32 n, 0;\n"                           \
        "mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "                                       \
        "{%0, %1, x, y}, {%2, n, %3, n}, {%4, %5}, {%0, %1, z, z}; }"                                        \
        : "+f"(c[0]), "+f"(c[1]) : "r"(a.first[0]), "r"(a.first[1]), "r"(b0), "r"(b1))
    if (IN_BFLOAT16) ONE_ROW("bf16");
    else ONE_ROW("f16");
#endif
}

// What a thread knows of its rows: queries as the left side of products, and what was found of them.
struct Rows {
    Left query[DIM / 16];
    float scale[ROWS], most[ROWS], total[ROWS], sums[COLUMNS][2 * ROWS], peak;

    // Queries of these heads, turned; those of the row that is eight further, too, where there is one.
    __device__ __forceinline__ Rows(const unsigned short* q, const float* angles, int head, int q_head, float by) {
        const int lane = threadIdx.x % 32, row = lane / 4;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const unsigned short* from = q + (i64)(head + min(row + 8 * r, GROUP - 1)) * q_head;
            float x[SLICES / 4][VALUES], largest = 0.0f;
#pragma unroll
            for (int j = 0; j < SLICES / 4; j++) {
                load_slice(from, angles, 4 * j + lane % 4, x[j]);
#pragma unroll
                for (int i = 0; i < VALUES; i++) largest = fmaxf(largest, fabsf(x[j][i]));
            }
            // float16 has not the reach of bfloat16
            const float divisor = IN_8_BITS && X_TYPE == BFLOAT16 ? fmaxf(of_row<true>(largest), 1e-30f) : 1.0f;
            const float inverse = 1.0f / divisor;
            scale[r] = by * divisor, most[r] = LOWEST, total[r] = 0.0f;
#pragma unroll
            for (int j = 0; j < SLICES / 4; j++)
#pragma unroll
                for (int i = 0; i < VALUES; i += 4) {
                    Left& part = query[(j * VALUES + i) / 4];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const float *two = x[j] + i + 2 * half;
                        (r ? part.second : part.first)[half] = pack(two[0] * inverse, two[1] * inverse);
                    }
                }
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
#pragma unroll
            for (int j = 0; j < 2 * ROWS; j++) sums[i][j] = 0.0f;
        peak = 1e-30f;
    }

    // Takes in the tokens of a stage, of which `there` are some.
    __device__ __forceinline__ void see(u32 stage, int there) {
        const int lane = threadIdx.x % 32, row = lane / 4, part = lane % 4;
        float scores[2][2 * ROWS] = {}, value_scale[2][2], highest[ROWS];
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            const int token = 8 * eight + row;
#pragma unroll
            for (int j = 0; j < SLICES / 4; j++) {
                const Vector k = load_shared(stage + token * LINE + place_of_key(token, 4 * j + part) * 16);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (IN_8_BITS) {
                        u32 low, high;
                        widen(k.v[i], low, high);
                        multiply(scores[eight], query[4 * j + i], low, high);
                    } else if (i % 2 == 0) {
                        multiply(scores[eight], query[2 * j + i / 2], k.v[i], k.v[i + 1]);
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) highest[r] = most[r];
        const float old_peak = peak;
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            const int token = 8 * eight + 2 * part;
            float key_scale[2] = {1.0f, 1.0f}, bias[2] = {0.0f, 0.0f};
            if (BIAS) load_two(stage + BIASES + 4 * token, bias);
            if (IN_8_BITS) {
                const u32 scales = stage + 2 * PART + 4 * token;
                load_two(scales, key_scale), load_two(scales + 4 * TOKENS, value_scale[eight]);
                peak = fmaxf(peak, fmaxf(value_scale[eight][0], value_scale[eight][1]));
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float& score = scores[eight][2 * r + c];
                    score = score_of(score * (scale[r] * key_scale[c]));
                    if (BIAS) score += bias[c] * LOG2E;
                    if (token + c >= there) score = __uint_as_float(0xFF800000u);
                    highest[r] = fmaxf(highest[r], score);
                }
        }
        float shrink[ROWS];
        bool changes = false;
        if (IN_8_BITS) peak = of_row<true>(peak), changes = peak > old_peak;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            highest[r] = of_row<true>(highest[r]);
            changes |= highest[r] > most[r];
            shrink[r] = exp2_of(most[r] - highest[r]);
            most[r] = highest[r], total[r] *= shrink[r];
        }
        if (__any_sync(~0u, changes)) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float by = IN_8_BITS ? shrink[r] * (old_peak / peak) : shrink[r];
#pragma unroll
                for (int i = 0; i < COLUMNS; i++) sums[i][2 * r] *= by, sums[i][2 * r + 1] *= by;
            }
        }
        const float inverse = IN_8_BITS ? __frcp_rn(peak) : 1.0f;
        Left weights;
#pragma unroll
        for (int eight = 0; eight < 2; eight++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float w[2];
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    w[c] = exp2_of(scores[eight][2 * r + c] - most[r]);
                    total[r] += w[c];
                    if (IN_8_BITS) w[c] *= value_scale[eight][c] * inverse;
                }
                (r ? weights.second : weights.first)[eight] = pack(w[0], w[1]);
            }
        add_values(stage + PART, weights);
    }

    // Adds values by weight.
    __device__ __forceinline__ void add_values(u32 values, const Left& weights) {
        const int lane = threadIdx.x % 32, column = lane / 4, part = lane % 4;
#pragma unroll
        for (int m = 0; m < COLUMNS / VALUES; m++) {
            Vector v[4];  // of tokens 2 part, the next one, and those eight further
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int token = 2 * part + i % 2 + i / 2 * 8;
                v[i] = load_shared(values + token * LINE + place_of_value(token, column + 8 * m) * 16);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (IN_8_BITS) {
#pragma unroll
                    for (int two = 0; two < 2; two++) {
                        u32 b0[2], b1[2];
                        widen(bytes_of(v[0].v[i], v[1].v[i], two ? 0x7362 : 0x5140), b0[0], b0[1]);
                        widen(bytes_of(v[2].v[i], v[3].v[i], two ? 0x7362 : 0x5140), b1[0], b1[1]);
#pragma unroll
                        for (int c = 0; c < 2; c++) multiply(sums[16 * m + 4 * i + 2 * two + c], weights, b0[c], b1[c]);
                    }
                } else {
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const u32 b0 = bytes_of(v[0].v[i], v[1].v[i], c ? 0x7632 : 0x5410);
                        const u32 b1 = bytes_of(v[2].v[i], v[3].v[i], c ? 0x7632 : 0x5410);
                        multiply(sums[8 * m + 2 * i + c], weights, b0, b1);
                    }
                }
            }
        }
    }

    // Stores what was found [GROUP, FOUND].
    __device__ __forceinline__ void store(float* found) {
        const int lane = threadIdx.x % 32, part = lane % 4;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = lane / 4 + 8 * r;
            const float weights = of_row<false>(total[r]);
            if (row >= GROUP) continue;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    found[row * FOUND + value_of(i, 2 * part + c)] = sums[i][2 * r + c] * (IN_8_BITS ? peak : 1.0f);
            if (part == 0) found[row * FOUND + DIM] = most[r], found[row * FOUND + DIM + 1] = weights;
        }
    }
};

// A number where a program of the cluster has this address.
__device__ __forceinline__ float float_of(int program, u32 at) {
    float r;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(r) : "r"(address_in(program, at)) : "memory");
    return r;
}

// A column of what the programs of a cluster found of a head.
__device__ __forceinline__ Merged merged_of_cluster(u32 head, int d) {
    float parts[CLUSTER * 3];
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
        parts[3 * i] = float_of(i, head + 4 * d), parts[3 * i + 1] = float_of(i, head + 4 * DIM);
        parts[3 * i + 2] = float_of(i, head + 4 * DIM + 4);
    }
    Merged all = {0.0f, 0.0f, LOWEST};
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) all.highest = fmaxf(all.highest, parts[3 * i + 1]);
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
        const float weight = exp2_of(parts[3 * i + 1] - all.highest);
        all.sum += parts[3 * i] * weight, all.weights += parts[3 * i + 2] * weight;
    }
    return all;
}

extern "C" __global__ void __launch_bounds__(THREADS) attend_group(
    const unsigned short* q, char* keys, char* values, float* key_scales, float* value_scales,
    const unsigned short* new_k, const unsigned short* new_v, const float* angles, const int* tables, const int* slots,
    const int* lengths, const float* bias, unsigned short* out, float scale, int q_row, int q_head, int k_row, int v_row,
    int block_stride, int head_stride, int scale_stride, int table_stride, int far) {
    extern __shared__ __align__(128) char memory[];
    constexpr int RING = WARPS * STAGES * STAGE;
    // when all stages have been read: what warps found [WARPS, GROUP, FOUND], and what they did together
    float *found = (float*)memory, *together = found + WARPS * GROUP * FOUND;
    let_next_begin();
    const int split = CLUSTER > 1 ? blockIdx.x : 0, kv_head = blockIdx.y, row = blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int length = lengths[row];
    const int* table = tables + (i64)slots[row] * table_stride;
    const int cached = NEW ? length - 1 : length, seen = REACH >= 0 ? max(length - 1 - REACH, 0) : 0;
    const int stages = (max(cached - seen, 0) + TOKENS - 1) / TOKENS, share = (stages + CLUSTER - 1) / CLUSTER * TOKENS;
    const int begin = seen + split * share, end = min(begin + share, cached);
    keys += (i64)kv_head * head_stride * BYTES, values += (i64)kv_head * head_stride * BYTES;

    const u32 ring = shared_address(memory) + warp * STAGES * STAGE;
    int first = begin + warp * TOKENS, next = first;  // of a stage, and of the one that is requested next
    // the blocks of 32 entries of the table, of which a lane has one
    int entry = next / BLOCK, block = 0;
    const auto look_up = [&] { block = (entry + lane) * BLOCK < end ? table[entry + lane] : 0; };
    const auto request = [&](int stage) {
        if ((next + TOKENS - 1) / BLOCK >= entry + 32) entry = next / BLOCK, look_up();
        const u32 to = ring + stage * STAGE;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int token = (lane + 32 * i) / SLICES, slice = lane % SLICES, n = next + token;
            const i64 at = ((i64)__shfl_sync(~0u, block, n / BLOCK - entry) * block_stride + n % BLOCK * DIM) * BYTES + slice * 16;
            copy16(to + token * LINE + place_of_key(token, slice) * 16, keys + at, n < end);
            copy16(to + PART + token * LINE + place_of_value(token, slice) * 16, values + at, n < end);
        }
        if constexpr (IN_8_BITS) {  // half of the lanes the keys' scales, half the values'
            const int n = next + lane % TOKENS;
            const i64 at = (i64)__shfl_sync(~0u, block, n / BLOCK - entry) * scale_stride + kv_head * BLOCK + n % BLOCK;
            copy4(to + 2 * PART + 4 * lane, (lane < TOKENS ? key_scales : value_scales) + at, n < end);
        }
        if constexpr (BIAS) {
            const int n = next + lane, distance = max(n - (length - 1), -far);
            if (lane < TOKENS) copy4(to + BIASES + 4 * lane, bias + kv_head * (2 * far + 1) + far + distance, n < end);
        }
        end_stage();
        next += WARPS * TOKENS;
    };
    look_up();
#pragma unroll 1
    for (int stage = 0; stage < STAGES; stage++) request(stage);
    const int new_block = NEW ? table[cached / BLOCK] : 0;
    wait_for_inputs();

    angles += (i64)row * 2 * HALF;
    Rows rows(q + (i64)row * q_row, angles, kv_head * GROUP, q_head, scale);
    if (NEW && split == CLUSTER - 1 && warp == WARPS - 1) {
        const int token = lane / LANES, slice = lane % LANES;
        const u32 to = shared_address(memory) + RING;
        for (int i = lane; i < STAGE / 16; i += 32) store_shared(to + 16 * i, Vector{});
        float k[VALUES], v[VALUES];
        load_slice(new_k + (i64)row * k_row + kv_head * DIM, angles, slice, k);
        load_slice(new_v + (i64)row * v_row + kv_head * DIM + slice * VALUES, v);
        const i64 at = ((i64)new_block * block_stride + cached % BLOCK * DIM + slice * VALUES) * BYTES;
        const i64 scaled = (i64)new_block * scale_stride + kv_head * BLOCK + cached % BLOCK;
        const Kept key = write(k, keys + at, key_scales + scaled, token == 0, token == 0 && slice == 0);
        const Kept value = write(v, values + at, value_scales + scaled, token == 0, token == 0 && slice == 0);
        __syncwarp();
        if (token == 0) {
            store_shared(to + place_of_key(0, slice) * 16, key.packed);
            store_shared(to + PART + place_of_value(0, slice) * 16, value.packed);
            if (IN_8_BITS && slice == 0) {
                store_float(to + 2 * PART, key.scale), store_float(to + 2 * PART + 4 * TOKENS, value.scale);
            }
            if (BIAS && slice == 0) store_float(to + BIASES, bias[kv_head * (2 * far + 1) + far]);
        }
        __syncwarp();
        rows.see(to, 1);
    }
#pragma unroll 1
    for (int stage = 0; first < end; first += WARPS * TOKENS) {
        wait_for_stages<STAGES - 1>();
        __syncwarp();  // what other lanes have copied
        rows.see(ring + stage * STAGE, end - first);
        __syncwarp();
        request(stage);
        if (++stage == STAGES) stage = 0;
    }

    // the warps of a program, the programs of a cluster
    wait_for_copies();
    __syncthreads();
    rows.store(found + warp * GROUP * FOUND);
    __syncthreads();
    if (CLUSTER > 1) {
        for (int i = threadIdx.x; i < GROUP * FOUND; i += THREADS) {
            const int d = i % FOUND;  // the last two are the highest score and the sum of weights
            const Merged all = merged<WARPS, GROUP * FOUND>(found + i / FOUND * FOUND, d);
            together[i] = d == DIM ? all.highest : all.sum;
        }
        cluster_meets();
    }
    constexpr int EACH = GROUP * DIM / CLUSTER;  // of the results
    for (int i = split * EACH + threadIdx.x; i < (split + 1) * EACH; i += THREADS) {
        const int head = i / DIM, d = i % DIM;
        Merged all;
        if (CLUSTER > 1) all = merged_of_cluster(shared_address(together + head * FOUND), d);
        else all = merged<WARPS, GROUP * FOUND>(found + head * FOUND, d);
        out[((i64)row * HEADS + kv_head * GROUP + head) * DIM + d] = (unsigned short)pack_x(all.sum / all.weights, 0.0f);
    }
    if (CLUSTER > 1) cluster_meets();  // nobody leaves whose results are still read
}
