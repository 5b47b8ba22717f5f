// What all kernels share: types by number, 16 bytes of values at once, as copies and in registers. All other headers
// come behind it.
//
// Defined when it is compiled, of kernels that use it: X_TYPE (see the list).

#define FLOAT16 0
#define BFLOAT16 1
#define FLOAT32 2

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr float LOG2E = 1.4426950408889634f;

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

// Waits until what this thread requested has come, but for the last LEFT stages.
template <int LEFT> __device__ __forceinline__ void wait_for_stages() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

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

__device__ __forceinline__ void store_shared(u32 to, const Vector& x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(x.v[0]), "r"(x.v[1]), "r"(x.v[2]), "r"(x.v[3]) : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, u32 low, u32 high) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(low), "r"(high) : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, u32 two) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(two) : "memory");
}

__device__ __forceinline__ void store_float(u32 to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
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

template <bool IN_BFLOAT16> __device__ __forceinline__ u32 packed(float low, float high) {
    u32 r;
    if (IN_BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

#ifdef X_TYPE
// Two values of the type of x.
__device__ __forceinline__ void unpack_x(u32 two, float& low, float& high) {
    if (X_TYPE == BFLOAT16) low = __uint_as_float(two << 16), high = __uint_as_float(two & 0xFFFF0000u);
    else halves(two, low, high);
}

__device__ __forceinline__ u32 pack_x(float low, float high) { return packed<X_TYPE == BFLOAT16>(low, high); }
#endif

// Two values of e4m3, the lower ones of four, as float16.
__device__ __forceinline__ u32 halves_of_e4m3(u32 four) {
    u32 r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((unsigned short)four));
    return r;
}

// The largest, or the sum, of what the lanes of a row have.
template <bool MAX, int COUNT = 4> __device__ __forceinline__ float of_row(float value) {
#pragma unroll
    for (int lanes = 1; lanes < COUNT; lanes *= 2) {
        const float other = __shfl_xor_sync(~0u, value, lanes);
        value = MAX ? fmaxf(value, other) : value + other;
    }
    return value;
}
