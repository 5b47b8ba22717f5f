// What products share (gemv.cu, gemm.cu), behind vectors.cuh: values of several types, activations by number.
//
// Defined when it is compiled: ACT, see the list.

#define NO_ACT 0
#define GELU 1
#define GELU_NEW 2
#define RELU 3
#define SILU 4
#define QUICK_GELU 5

template <int TYPE> __device__ __forceinline__ float value_at(const void* p, int i) {
    if (TYPE == FLOAT32) return ((const float*)p)[i];
    unsigned short bits = ((const unsigned short*)p)[i];
    float r;
    if (TYPE == BFLOAT16) return __uint_as_float((u32)bits << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
    return r;
}

// Stores four values of a row.
template <int TYPE> __device__ __forceinline__ void store4(void* y, u64 at, const float (&v)[4]) {
    if (TYPE == FLOAT32) *(float4*)((float*)y + at) = make_float4(v[0], v[1], v[2], v[3]);
    else *(uint2*)((unsigned short*)y + at) =
        make_uint2(packed<TYPE == BFLOAT16>(v[0], v[1]), packed<TYPE == BFLOAT16>(v[2], v[3]));
}

__device__ __forceinline__ float activation(float x) {
#if ACT == GELU
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
#elif ACT == GELU_NEW
    float t = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (2.0f - 2.0f / (__expf(2.0f * t) + 1.0f));
#elif ACT == RELU
    return fmaxf(x, 0.0f);
#elif ACT == SILU
    return x / (1.0f + __expf(-x));
#elif ACT == QUICK_GELU
    return x / (1.0f + __expf(-1.702f * x));
#else
    return x;
#endif
}
