// Products of attention whose left side is in registers (packed_flash.cu, prefill_flash.cu), behind vectors.cuh and wgmma.cuh.
//
// Defined before it is included: IN_BFLOAT16 (products; others are in float16), KEYS (of a stage).

constexpr int LINE = 128;      // bytes of a row that lie together
constexpr float SLACK = 8.0f;  // weights up to 256

typedef u32 Weights[KEYS / 16][4];

// What a thread has of its warps' rows and 64 columns: of each eight columns two of its first row, then of the one eight
// further.
typedef float Sums[8][4];

// Where a slice of a row lies: as `described` (wgmma.cuh) says.
__device__ __forceinline__ int place(int row, int slice) {
    return slice / 8 * KEYS * LINE + row * LINE + (slice % 8 ^ row % 8) * 16;
}

#define C(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define ALL(c) C(c, 0), C(c, 1), C(c, 2), C(c, 3), C(c, 4), C(c, 5), C(c, 6), C(c, 7)

// Requests the product of all warps' rows of 16 inputs with 64 columns, and adds it to the sums if `adds` is not 0. Inputs
// of the right side lie in a row, or are the rows (TURNED).
template <int TURNED> __device__ __forceinline__ void multiply(Sums& c, const u32 (&a)[4], u64 b, int adds) {
#define PRODUCT(TYPE)                                                                                         \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32" TYPE TYPE \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                    \
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"          \
                 " {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"                                                \
                 : ALL(c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(TURNED))
    if (IN_BFLOAT16) PRODUCT(".bf16");
    else PRODUCT(".f16");
#undef PRODUCT
}

// Does so with 128 columns.
template <int TURNED>
__device__ __forceinline__ void multiply(Sums& c, Sums& further, const u32 (&a)[4], u64 b, int adds) {
#define PRODUCT(TYPE)                                                                                          \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32" TYPE TYPE \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                     \
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"            \
                 " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"            \
                 " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},"           \
                 " {%64, %65, %66, %67}, %68, p, 1, 1, %70; }"                                                 \
                 : ALL(c), ALL(further)                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(TURNED))
    if (IN_BFLOAT16) PRODUCT(".bf16");
    else PRODUCT(".f16");
#undef PRODUCT
}

// Describes inputs that are the rows, of 128 columns: as `described` does 64 of them, the others so many bytes further.
__device__ __forceinline__ u64 described(u32 at, u32 apart) {
    return described(at) & ~(0x3FFFull << 16) | (u64)(apart >> 4) << 16;
}

// Lets the compiler know that products change the sums behind its back, and read the left side.
__device__ __forceinline__ void fence(Sums& c) { asm volatile("" : ALL(c)::"memory"); }
__device__ __forceinline__ void fence(u32 (&a)[4]) {
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// Does so for several of them.
template <int N> __device__ __forceinline__ void fence(Sums (&several)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) fence(several[i]);
}
template <int N> __device__ __forceinline__ void fence(u32 (&several)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) fence(several[i]);
}

template <int N> __device__ __forceinline__ void clear(Sums (&several)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) several[n][i][j] = 0.0f;
}

// Loads `there` rows of 16 N values from this thread's first one on, as the left side of products; of others zeros.
template <int N>
__device__ __forceinline__ void load_rows(u32 (&to)[N][4], const unsigned short* x, i64 x_row, int there) {
    const int part = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = i % 2 * 8, column = 16 * k + i / 2 * 8 + 2 * part;
            to[k][i] = row < there ? *(const u32*)(x + row * x_row + column) : 0;
        }
}
