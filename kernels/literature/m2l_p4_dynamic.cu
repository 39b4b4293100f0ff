// m2l_p4_dynamic: M2L of a level of an octree, O(p^4), one block of work a parent box.
//
// The hierarchy of CUDA dynamic parallelism without its launches from the device: a block owns the
// eight children of a parent, walks the near parents, then their children, and only inside runs the
// loops over terms. Whatever depends on boxes alone is computed once a parent or source; a source's
// moments lie in shared memory for all eight targets. A thread owns one (l, m) of all of them.
// Bound by reading harmonics, four for eight multiply-adds. (B. Kohnke et al., Int. J. High
// Perform. Comput. Appl. 35, 97 (2021), doi:10.1177/1094342020964857.)
#include "irregular.cuh"

extern "C" __global__ void __launch_bounds__((PAIRS + WARP - 1) / WARP * WARP, 1)
    m2l_p4_dynamic(int half, int near,
                   const int4* __restrict__ parents /* (near): offsets of near boxes */,
                   const int* __restrict__ number /* (near, 8, 8): translation from their children
                                                     to the target's, -1 if these are near */
                   ,
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
                real of_c = 0, of_s = 0;  // of this source: the sum over all has less to round
                for (int j = 0; j <= ORDER; j++)
                    for (int k = 0; k <= j; k++) {
                        const Entries e = entries(t + (l + j) * (l + j) + l + j, m, k);
                        const real mc = source[j * j + j + k],
                                   ms = k == 0 ? real(0) : source[j * j + j - k];
                        of_c += e.cc * mc;
                        of_c += e.cs * ms;
                        of_s += e.sc * mc;
                        of_s += e.ss * ms;
                    }
                c[to] += of_c;
                s[to] += of_s;
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
