// Programs of a cluster, which read and write each other's shared memory (absorbed_attention.cu, absorbed_pair.cu, attend.cu,
// attend_group.cu, gemm.cu), behind vectors.cuh.

// Arrives, and shows the other programs what the caller has written to its own shared memory: a release of all that it has
// written waits for global memory, which takes up to a microsecond. (PTX ISA, "fence", from 8.6 on.)
#if __CUDACC_VER_MAJOR__ > 12 || __CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 7
#define CLUSTER_ARRIVE "fence.release.sync_restrict::shared::cta.cluster;\nbarrier.cluster.arrive.relaxed;"
#else
#define CLUSTER_ARRIVE "barrier.cluster.arrive.release;"
#endif

__device__ __forceinline__ void cluster_arrive() { asm volatile(CLUSTER_ARRIVE ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void cluster_meets() { cluster_arrive(), cluster_wait(); }

// Does what barrier_wait() does (barriers.cuh), and shows what another program of the cluster has written.
__device__ __forceinline__ void barrier_wait_for_other(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
            " selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

// Writes a number, or two, to a program of the cluster, a barrier of which counts their bytes.
__device__ __forceinline__ void send(u32 to, float x, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                 ::"r"(to), "r"(__float_as_uint(x)), "r"(barrier) : "memory");
}

__device__ __forceinline__ void send(u32 to, u32 low, u32 high, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];"
                 ::"r"(to), "r"(low), "r"(high), "r"(barrier) : "memory");
}

// Where a program of the cluster has what this one has at an address.
__device__ __forceinline__ u32 address_in(int program, u32 address) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(program));
    return r;
}
