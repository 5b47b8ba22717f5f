// What kernels share that attend to a paged cache (attend.cu, attend_group.cu), behind vectors.cuh: values of 8 and 16 bits,
// the token that is new, results that are merged.
//
// Defined when it is compiled: X_TYPE, KV_TYPE (see the lists, here and there), DIM, HALF, WARPS, STAGES, CAP, LARGEST.

#define INT8 2
#define E4M3 3

constexpr bool IN_8_BITS = KV_TYPE >= INT8;
constexpr int THREADS = 32 * WARPS;
constexpr int VALUES = IN_8_BITS ? 16 : 8;             // of a head, in the 16 bytes that a lane has of a token
constexpr int BYTES = IN_8_BITS ? 1 : 2;               // of a value in the cache
constexpr int SLICES = DIM / VALUES;
constexpr int LANES = SLICES <= 1 ? 1 : SLICES <= 2 ? 2 : SLICES <= 4 ? 4 : SLICES <= 8 ? 8 : SLICES <= 16 ? 16 : 32;
constexpr int AT_ONCE = 32 / LANES;                    // tokens that the lanes of a warp have together
constexpr float LOWEST = -1e30f;                       // of scores: what is below it counts as none

// What a lane has of a token in the cache.
__device__ __forceinline__ void unpack(const Vector& from, float (&to)[VALUES]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 q = from.v[i];
#if KV_TYPE == INT8
#pragma unroll
        for (int j = 0; j < 4; j++) to[4 * i + j] = (float)((int)(q << (24 - 8 * j)) >> 24);
#elif KV_TYPE == E4M3
        const u32 low = halves_of_e4m3(q), high = halves_of_e4m3(q >> 16);
        halves(low, to[4 * i], to[4 * i + 1]), halves(high, to[4 * i + 2], to[4 * i + 3]);
#else
        unpack_x(q, to[2 * i], to[2 * i + 1]);
#endif
    }
}

// A lane's slice of a head.
__device__ __forceinline__ void load_slice(const unsigned short* from, float (&x)[VALUES]) {
#pragma unroll
    for (int i = 0; i < VALUES / 8; i++) {
        const Vector part = load_global(from + 8 * i);
#pragma unroll
        for (int j = 0; j < 4; j++) unpack_x(part.v[j], x[8 * i + 2 * j], x[8 * i + 2 * j + 1]);
    }
}

// A lane's slice of a head, where HALF is not 0 turned, as if that were an operation of its own.
__device__ __forceinline__ void load_slice(const unsigned short* head, const float* angles, int slice, float (&x)[VALUES]) {
    const int first = slice * VALUES;
    const bool turned = HALF > 0 && first < 2 * HALF, in_first = first < HALF;
#pragma unroll
    for (int i = 0; i < VALUES / 8; i++) {
        const Vector mine = load_global(head + first + 8 * i);
#pragma unroll
        for (int j = 0; j < 4; j++) unpack_x(mine.v[j], x[8 * i + 2 * j], x[8 * i + 2 * j + 1]);
        if (!turned) continue;
        const Vector others = load_global(head + first + 8 * i + (in_first ? HALF : -HALF));
        const float* at = angles + first + 8 * i - (in_first ? 0 : HALF);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float other[2], y[2];
            unpack_x(others.v[j], other[0], other[1]);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float by = in_first ? -at[HALF + 2 * j + k] : at[HALF + 2 * j + k];
                y[k] = x[8 * i + 2 * j + k] * at[2 * j + k] + other[k] * by;
            }
            unpack_x(pack_x(y[0], y[1]), x[8 * i + 2 * j], x[8 * i + 2 * j + 1]);
        }
    }
}

// The sum, or the largest, of what the lanes of a token have.
template <bool MAX> __device__ __forceinline__ float of_token(float value) {
#pragma unroll
    for (int lanes = LANES / 2; lanes; lanes /= 2) {
        const float other = __shfl_xor_sync(~0u, value, lanes);
        value = MAX ? fmaxf(value, other) : value + other;
    }
    return value;
}

__device__ __forceinline__ float score_of(float product) {
    return CAP > 0 ? CAP * LOG2E * (1.0f - 2.0f / (__expf(2.0f * product) + 1.0f)) : product;
}

// A slice of a token as it is in the cache; of 8 bits with the token's scale.
struct Kept { Vector packed; float scale; };

// Writes a slice of the new token into the cache, if this lane is to, and changes it to what can be read there.
__device__ __forceinline__ Kept write(float (&x)[VALUES], char* to, float* scale_to, bool writes, bool writes_scale) {
    Kept kept = {{}, 1.0f};
    Vector& packed = kept.packed;
    if (IN_8_BITS) {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < VALUES; j++) largest = fmaxf(largest, fabsf(x[j]));
        const float scale = kept.scale = fmaxf(of_token<true>(largest), 1e-20f) / LARGEST;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float y[4];
#pragma unroll
            for (int j = 0; j < 4; j++) y[j] = fminf(fmaxf(x[VALUES / 4 * i + j] / scale, -LARGEST), LARGEST);
#if KV_TYPE == INT8
            u32 bits = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) bits |= (u32)((int)floorf(y[j] + 0.5f) & 255) << 8 * j;
#else
            unsigned short low, high;
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y[1]), "f"(y[0]));
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(y[3]), "f"(y[2]));
            const u32 bits = low | (u32)high << 16;
#endif
            packed.v[i] = bits;
        }
        unpack(packed, x);
#pragma unroll
        for (int j = 0; j < VALUES; j++) x[j] *= scale;
        if (writes_scale) *scale_to = scale;
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) packed.v[j] = pack_x(x[2 * j], x[2 * j + 1]);
    }
    if (writes) *(Vector*)to = packed;
    return kept;
}

struct Merged { float sum, weights, highest; };

// A column of what several found of one row and head, [DIM + 2] each, so many numbers apart.
template <int COUNT, int APART> __device__ __forceinline__ Merged merged(const float* parts, int d) {
    Merged all = {0.0f, 0.0f, LOWEST};
#pragma unroll
    for (int i = 0; i < COUNT; i++) all.highest = fmaxf(all.highest, parts[i * APART + DIM]);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float weight = exp2_of(parts[i * APART + DIM] - all.highest);
        all.sum += parts[i * APART + d] * weight, all.weights += parts[i * APART + DIM + 1] * weight;
    }
    return all;
}
