// Attention over an encoder's hidden rows: tiles of them in shared memory, and products of a warp with their columns
// (absorbed_attention.cu, absorbed_pair.cu), behind mma.cuh.

constexpr int LANES = 32;
constexpr int ROWS = 16;  // of the tensor cores: heads, and those that are none
constexpr int TILE = 16;  // hidden rows
constexpr float LOWEST = -1e30f;

template <bool TURNED> __device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 at) {
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 first, u32 second) {
    multiply_add(c, a[0], a[1], a[2], a[3], first, second);
}

__device__ __forceinline__ void store_two(u32 to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

// The largest, or the sum, of what the lanes of a head have.
template <bool MAX> __device__ __forceinline__ float of_head(float value) { return of_row<MAX, TILE>(value); }

// Turns a head's score of a hidden row into its weight; `most` and `total` are of the head's earlier ones. All lanes of
// the head call it, the first of which tells by how much the sums so far shrink.
__device__ __forceinline__ void weigh_score(float score, float& most, float& total, u32 weight_at, u32 shrink_at, bool first) {
    const float highest = fmaxf(most, of_head<true>(score));
    const float shrink = exp2_of(most - highest), weight = exp2_of(score - highest);
    most = highest, total = total * shrink + weight;
    const unsigned short rounded = (unsigned short)pack_x(weight, 0.0f);
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(weight_at), "h"(rounded) : "memory");
    if (first) store_float(shrink_at, shrink);
}
