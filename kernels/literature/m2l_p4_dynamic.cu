// m2l_p4_dynamic: M2L of a level of an octree, O(p^4), one block per parent box.
//
// The kernel has the loop hierarchy of CUDA dynamic parallelism without launches from the device. A
// block owns the eight children of a parent, loops over the near parents and their children, and
// only inside over terms. Quantities that depend only on boxes are computed once per parent or
// source; a source's moments are in shared memory for all eight targets. A thread owns one pair (l,
// m) of all targets. Bound by reading harmonics, four for eight multiply-adds. (B. Kohnke et al.,
// Int. J. High Perform. Comput. Appl. 35, 97 (2021), doi:10.1177/1094342020964857.)
#include "irregular.cuh"

extern "C" __global__ void __launch_bounds__((PAIRS + WARP - 1) / WARP * WARP, 1)
    m2l_p4_dynamic(int half, int near,
                   const int4* __restrict__ parents /* (near): offsets of near boxes */,
                   const int* __restrict__ number /* (near, 8, 8): translation, -1 if near */,
                   const real* __restrict__ harmonics /* (translations, HARMONICS) */,
                   const real* __restrict__ moments /* slabs */,
                   real* __restrict__ sums /* slabs */) {
    __shared__ real source[TERMS];
    const Target target(blockIdx.x, half);
    int l, m;
    degree_and_order(min(int(threadIdx.x), PAIRS - 1), l, m);
    real c[8] = {}, s[8] = {};
    for (int n = 0; n < near; n++) {
        const int4 parent = parents[n];
        for (int child = 0; child < 8; child++) {
            const real* from =
                moments + target.source(make_int4(parent.x, parent.y, parent.z, child));
            __syncthreads();
            for (int a = threadIdx.x; a < TERMS; a += blockDim.x) source[a] = from[a * WARP];
            __syncthreads();
#pragma unroll
            for (int to = 0; to < 8; to++) {
                const int translation = number[(n * 8 + child) * 8 + to];
                if (translation < 0) continue;
                const real* t = harmonics + translation * HARMONICS;
                real source_c = 0, source_s = 0;  // summed per source, to reduce rounding errors
                for (int j = 0; j <= ORDER; j++)
                    for (int k = 0; k <= j; k++) {
                        const Entries e = entries(t + (l + j) * (l + j) + l + j, m, k);
                        const real mc = source[j * j + j + k],
                                   ms = k == 0 ? real(0) : source[j * j + j - k];
                        source_c += e.cc * mc;
                        source_c += e.cs * ms;
                        source_s += e.sc * mc;
                        source_s += e.ss * ms;
                    }
                c[to] += source_c;
                s[to] += source_s;
            }
        }
    }
    if (threadIdx.x >= PAIRS) return;
#pragma unroll
    for (int to = 0; to < 8; to++) {
        real* local = sums + slab(to, blockIdx.x, half);
        local[(l * l + l + m) * WARP] = row_factor(l, m) * c[to];
        if (m > 0) local[(l * l + l - m) * WARP] = row_factor(l, m) * s[to];
    }
}
