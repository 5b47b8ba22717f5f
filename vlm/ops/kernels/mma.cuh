// Products of a warp, in registers (absorbed.cuh, attend_group.cu, gemv.cu), behind vectors.cuh.
//
// Defined before it is included: IN_BFLOAT16 (products; others are in float16).

// Adds the product of 16 rows of 16 inputs with 8 columns.
__device__ __forceinline__ void multiply_add(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#define PRODUCT(TYPE)                                                                               \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32"                      \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                   \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
    if (IN_BFLOAT16) PRODUCT("bf16");
    else PRODUCT("f16");
#undef PRODUCT
}
