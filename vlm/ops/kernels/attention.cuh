// What kernels share that attend to a paged cache (attend.cu, attend_group.cu): copies of tokens, values of 8 and 16 bits,
// the token that is new, results that are merged.
//
// Defined when it is compiled: X_TYPE, KV_TYPE (see the lists), DIM, HALF, WARPS, STAGES, CAP, LARGEST.

#define FLOAT16 0
#define BFLOAT16 1
#define INT8 2
#define E4M3 3

typedef unsigned int u32;
typedef long long i64;

constexpr bool IN_8_BITS = KV_TYPE >= INT8;
constexpr int THREADS = 32 * WARPS;
constexpr int VALUES = IN_8_BITS ? 16 : 8;             // of a head, in the 16 bytes that a lane has of a token
constexpr int BYTES = IN_8_BITS ? 1 : 2;               // of a value in the cache
constexpr int SLICES = DIM / VALUES;
constexpr int LANES = SLICES <= 1 ? 1 : SLICES <= 2 ? 2 : SLICES <= 4 ? 4 : SLICES <= 8 ? 8 : SLICES <= 16 ? 16 : 32;
constexpr int AT_ONCE = 32 / LANES;                    // tokens that the lanes of a warp have together
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LOWEST = -1e30f;                       // of scores: what is below it counts as none

struct alignas(16) Vector { u32 v[4]; };

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Requests bytes of global memory; zeros are written instead of those that are not wanted.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy4(u32 to, const void* from, bool wanted) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(wanted ? 4 : 0) : "memory");
}

__device__ __forceinline__ void end_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void first_stage_is_there() {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes a number where the first program of the cluster has this address.
__device__ __forceinline__ void store_in_first(u32 to, float value) {
    asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, 0; st.shared::cluster.f32 [a], %1; }"
                 ::"r"(to), "f"(value) : "memory");
}

__device__ __forceinline__ Vector load_global(const void* at) {
    Vector r;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]) : "l"(at) : "memory");
    return r;
}

__device__ __forceinline__ Vector load_shared(u32 at) {
    Vector r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]) : "r"(at) : "memory");
    return r;
}

__device__ __forceinline__ float float_at(u32 shared) {
    float r;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r) : "r"(shared) : "memory");
    return r;
}

__device__ __forceinline__ float exp2_of(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ void halves(u32 two, float& low, float& high) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(low), "=f"(high) : "r"(two));
}

// Two values of the type of x.
__device__ __forceinline__ void unpack_x(u32 two, float& low, float& high) {
    if (X_TYPE == BFLOAT16) low = __uint_as_float(two << 16), high = __uint_as_float(two & 0xFFFF0000u);
    else halves(two, low, high);
}

__device__ __forceinline__ u32 pack_x(float low, float high) {
    u32 r;
    if (X_TYPE == BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// What a lane has of a token in the cache.
__device__ __forceinline__ void unpack(const Vector& from, float (&to)[VALUES]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 q = from.v[i];
#if KV_TYPE == INT8
#pragma unroll
        for (int j = 0; j < 4; j++) to[4 * i + j] = (float)((int)(q << (24 - 8 * j)) >> 24);
#elif KV_TYPE == E4M3
        u32 low, high;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"((unsigned short)q));
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"((unsigned short)(q >> 16)));
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
