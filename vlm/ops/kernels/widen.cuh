// Values of 8 bits made float16 (attend_group.cu, prefill_flash.cu), behind vectors.cuh.
//
// Defined when it is compiled: KV_TYPE (see the list; other types have 16 bits).

#define INT8 2
#define E4M3 3

__device__ __forceinline__ u32 bytes_of(u32 a, u32 b, u32 which) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
    return r;
}

// Two pairs of float16 of four values of 8 bits.
__device__ __forceinline__ void widen(u32 four, u32& low, u32& high) {
#if KV_TYPE == INT8
    const u32 shifted = four ^ 0x80808080u, offset = 0x64806480u;  // in the lowest bits of 1024
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(low) : "r"(bytes_of(shifted, 0x64646464u, 0x5150)), "r"(offset));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(high) : "r"(bytes_of(shifted, 0x64646464u, 0x5352)), "r"(offset));
#else
    low = halves_of_e4m3(four), high = halves_of_e4m3(four >> 16);
#endif
}
