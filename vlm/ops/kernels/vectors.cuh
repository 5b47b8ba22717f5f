// What kernels of attention share (attend.cu, attend_group.cu, packed_flash.cu, prefill_flash.cu): 16 bytes of values at once,
// as copies and in registers.
//
// Defined when it is compiled: X_TYPE (see the list).

#define FLOAT16 0
#define BFLOAT16 1

typedef unsigned int u32;
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

// Two values of the type of x.
__device__ __forceinline__ void unpack_x(u32 two, float& low, float& high) {
    if (X_TYPE == BFLOAT16) low = __uint_as_float(two << 16), high = __uint_as_float(two & 0xFFFF0000u);
    else halves(two, low, high);
}

template <bool IN_BFLOAT16> __device__ __forceinline__ u32 packed(float low, float high) {
    u32 r;
    if (IN_BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ u32 pack_x(float low, float high) { return packed<X_TYPE == BFLOAT16>(low, high); }

// The largest, or the sum, of what the four lanes of a row have.
template <bool MAX> __device__ __forceinline__ float of_row(float value) {
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
        const float other = __shfl_xor_sync(~0u, value, lanes);
        value = MAX ? fmaxf(value, other) : value + other;
    }
    return value;
}
