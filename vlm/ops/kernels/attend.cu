// Attention of a row, or of few, over a paged cache, by clusters of programs (compute capability 9.0 and up).
//
// A cluster has a row's head, each of its programs a share of the context: WARPS warps take stages of it in turn, each
// thread copies what it reads itself, the first STAGES of them before the kernels ahead of this one have ended. What the
// programs found is merged in the shared memory of the first one. It needs so few registers and so little shared memory
// that it starts beside a product (gemv.cu) which has not ended.
//
// In a step each row's own token comes with it (NEW): its key is turned, and both are written and seen by the first warp
// of the first program; nobody reads them there.
//
// Defined when it is compiled: X_TYPE, KV_TYPE (see the lists), HEADS, GROUP (query heads that share one of keys), DIM,
// HALF, BLOCK, CLUSTER, WARPS, STAGES, UNROLL, NEW, BIAS, CAP, REACH, LARGEST.

#include "vectors.cuh"
#include "barriers.cuh"
#include "clusters.cuh"
#include "attention.cuh"

constexpr int TOKENS = UNROLL * AT_ONCE;               // of a stage
constexpr int EXTRAS = (IN_8_BITS ? 2 : 0) + BIAS;     // numbers beside keys and values: two scales, a bias
constexpr int VECTORS = WARPS * STAGES * UNROLL * 32;  // that all threads have room for, of keys, and of values

extern "C" __global__ void __launch_bounds__(THREADS) attend(
    const unsigned short* q, char* keys, char* values, float* key_scales, float* value_scales,
    const unsigned short* new_k, const unsigned short* new_v, const float* angles, const int* tables, const int* slots,
    const int* lengths, const float* bias, unsigned short* out, float scale, int q_row, int q_head, int k_row, int v_row,
    int block_stride, int head_stride, int scale_stride, int table_stride, int far) {
    extern __shared__ __align__(16) char memory[];
    float* found = (float*)(memory + VECTORS * (32 + 4 * EXTRAS));  // [WARPS, DIM], and a maximum and a sum of each
    float* gathered = found + WARPS * (DIM + 2);                    // [CLUSTER, DIM + 2]: of the programs, in the first
    const u32 arrived = shared_address(gathered + CLUSTER * (DIM + 2));  // the barrier that counts what has come there
    let_next_begin();
    if (threadIdx.x == 0) {
        barrier_init(arrived, 1);
        show_barriers();
        barrier_expect(arrived, CLUSTER * (DIM + 2) * sizeof(float));
    }
    __syncwarp();
    cluster_arrive();  // nobody writes to a program that has not begun

    const int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z, kv_head = head / GROUP;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = lane / LANES, slice = lane % LANES;
    const bool has_slice = slice < SLICES;
    const int length = lengths[row];
    const int* table = tables + (i64)slots[row] * table_stride;
    const int cached = NEW ? length - 1 : length, seen = REACH >= 0 ? max(length - 1 - REACH, 0) : 0;
    const int stages = (max(cached - seen, 0) + TOKENS - 1) / TOKENS, share = (stages + CLUSTER - 1) / CLUSTER * TOKENS;
    const int begin = seen + split * share, end = min(begin + share, cached);
    keys += (i64)kv_head * head_stride * BYTES, values += (i64)kv_head * head_stride * BYTES;

    // what a thread copies and reads: of keys, of values, and the numbers beside them
    const u32 vectors = shared_address(memory) + (warp * STAGES * UNROLL * 32 + lane) * 16;
    const u32 extras = shared_address(memory) + VECTORS * 32 + (warp * STAGES * UNROLL * 32 + lane) * 4 * EXTRAS;
    int first = begin + warp * TOKENS;  // of a stage; a thread's are `token` further, and AT_ONCE further each
    int next = first;                   // of the stage that is requested next
    // the blocks of 32 entries of the table, of which a lane has one
    int entry = next / BLOCK, block = 0;
    const auto look_up = [&] { block = (entry + lane) * BLOCK < end ? table[entry + lane] : 0; };
    const auto request = [&](int stage) {
        if ((next + TOKENS - 1) / BLOCK >= entry + 32) entry = next / BLOCK, look_up();
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int n = next + token + u * AT_ONCE, place = n % BLOCK;
            const bool wanted = n < end && has_slice;
            const int block_of_n = __shfl_sync(~0u, block, n / BLOCK - entry);
            const i64 at = ((i64)block_of_n * block_stride + place * DIM + (has_slice ? slice : 0) * VALUES) * BYTES;
            const u32 to = vectors + (stage * UNROLL + u) * 512;
            copy16(to, keys + at, wanted);
            copy16(to + VECTORS * 16, values + at, wanted);
            const u32 beside = extras + (stage * UNROLL + u) * 128 * EXTRAS;
            if constexpr (IN_8_BITS) {
                const i64 scaled = (i64)block_of_n * scale_stride + kv_head * BLOCK + place;
                copy4(beside, key_scales + scaled, n < end);
                copy4(beside + 4, value_scales + scaled, n < end);
            }
            if constexpr (BIAS) {
                const int distance = min(max(n - (length - 1), -far), far) + far;
                copy4(beside + 4 * (EXTRAS - 1), bias + head * (2 * far + 1) + distance, n < end);
            }
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
    float x[VALUES] = {}, sums[VALUES] = {}, most = LOWEST, total = 0.0f;
    if (has_slice) load_slice(q + (i64)row * q_row + (i64)head * q_head, angles, slice, x);
#pragma unroll
    for (int j = 0; j < VALUES; j++) x[j] *= scale;
    if (NEW && split == 0 && warp == 0) {
        float k[VALUES] = {}, v[VALUES] = {};
        if (has_slice) {
            load_slice(new_k + (i64)row * k_row + kv_head * DIM, angles, slice, k);
            load_slice(new_v + (i64)row * v_row + kv_head * DIM + slice * VALUES, v);
        }
        const i64 at = ((i64)new_block * block_stride + cached % BLOCK * DIM + slice * VALUES) * BYTES;
        const i64 scaled = (i64)new_block * scale_stride + kv_head * BLOCK + cached % BLOCK;
        const bool writes = head % GROUP == 0 && token == 0;
        write(k, keys + at, key_scales + scaled, writes && has_slice, writes && slice == 0);
        write(v, values + at, value_scales + scaled, writes && has_slice, writes && slice == 0);
        float product = 0.0f;
#pragma unroll
        for (int j = 0; j < VALUES; j++) product += k[j] * x[j];
        float score = score_of(of_token<false>(product));
        if (BIAS) score += bias[head * (2 * far + 1) + far] * LOG2E;
        if (token == 0) {
            most = score, total = 1.0f;
#pragma unroll
            for (int j = 0; j < VALUES; j++) sums[j] = v[j];
        }
    }

#pragma unroll 1
    for (int stage = 0; first < end; first += WARPS * TOKENS) {
        wait_for_stages<STAGES - 1>();
        Vector k[UNROLL], v[UNROLL];
        float scores[UNROLL], value_scale[UNROLL], highest = most;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const u32 from = vectors + (stage * UNROLL + u) * 512;
            k[u] = load_shared(from), v[u] = load_shared(from + VECTORS * 16);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float of_key[VALUES], product = 0.0f;
            unpack(k[u], of_key);
#pragma unroll
            for (int j = 0; j < VALUES; j++) product += of_key[j] * x[j];
            scores[u] = product;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const u32 beside = extras + (stage * UNROLL + u) * 128 * EXTRAS;
            float product = of_token<false>(scores[u]);
            if constexpr (IN_8_BITS) product *= float_at(beside), value_scale[u] = float_at(beside + 4);
            scores[u] = score_of(product);
            if constexpr (BIAS) scores[u] += float_at(beside + 4 * (EXTRAS - 1)) * LOG2E;
            if (first + token + u * AT_ONCE >= end) scores[u] = __uint_as_float(0xFF800000u);
            highest = fmaxf(highest, scores[u]);
        }
        const float shrink = exp2_of(most - highest);
        most = highest, total *= shrink;
#pragma unroll
        for (int j = 0; j < VALUES; j++) sums[j] *= shrink;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float weight = exp2_of(scores[u] - highest), of_value[VALUES];
            total += weight;
            if (IN_8_BITS) weight *= value_scale[u];
            unpack(v[u], of_value);
#pragma unroll
            for (int j = 0; j < VALUES; j++) sums[j] += weight * of_value[j];
        }
        request(stage);
        if (++stage == STAGES) stage = 0;
    }

    // the tokens of a warp, the warps of a program, the programs of a cluster
#pragma unroll
    for (int lanes = LANES; lanes < 32; lanes *= 2) {
        const float other = __shfl_xor_sync(~0u, most, lanes), highest = fmaxf(most, other);
        const float mine = exp2_of(most - highest), theirs = exp2_of(other - highest);
        most = highest, total = total * mine + __shfl_xor_sync(~0u, total, lanes) * theirs;
#pragma unroll
        for (int j = 0; j < VALUES; j++) sums[j] = sums[j] * mine + __shfl_xor_sync(~0u, sums[j], lanes) * theirs;
    }
    float* mine = found + warp * (DIM + 2);
    if (token == 0 && has_slice) {
#pragma unroll
        for (int j = 0; j < VALUES; j++) mine[slice * VALUES + j] = sums[j];
    }
    if (lane == 0) mine[DIM] = most, mine[DIM + 1] = total;
    __syncthreads();
    cluster_wait();
    // the last two of DIM + 2 columns are the largest score and the sum of weights
    for (int d = threadIdx.x; d < DIM + 2; d += THREADS) {
        const Merged all = merged<WARPS, DIM + 2>(found, d);
        const u32 to = address_in(0, shared_address(gathered + split * (DIM + 2) + d));
        send(to, d == DIM ? all.highest : all.sum, address_in(0, arrived));
    }
    if (split > 0) return;
    barrier_wait_for_other(arrived, 0);
    for (int d = threadIdx.x; d < DIM; d += THREADS) {
        const Merged all = merged<CLUSTER, DIM + 2>(gathered, d);
        out[((i64)row * HEADS + head) * DIM + d] = (unsigned short)pack_x(all.sum / all.weights, 0.0f);
    }
}
