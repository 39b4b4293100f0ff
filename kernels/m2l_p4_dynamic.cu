// m2l_p4_dynamic: M2L of a level of an octree, O(p^4), one block of work a parent box.
//
// The hierarchy of CUDA dynamic parallelism without its launches from the device: a block owns the eight children of a parent,
// walks the near parents, then their children, and only inside runs the loops over terms. Whatever depends on boxes alone is
// computed once a parent or source; a source's moments lie in shared memory for all eight targets. A thread owns one (l, m) of
// all of them. Bound by reading harmonics, four for eight multiply-adds. (B. Kohnke et al., Int. J. High Perform. Comput. Appl.
// 35, 97 (2021), doi:10.1177/1094342020964857.)
//
//   SEPARATION  near boxes: at most so far along each axis
#include "common/irregular.cuh"
#include "common/levels.cuh"

#define REACH (2 * SEPARATION + 1)
#define SPAN (2 * REACH + 1)

extern "C" __global__ void __launch_bounds__((PAIRS + WARP - 1) / WARP * WARP, 1)
m2l_p4_dynamic(int half, const real* __restrict__ harmonics /* (SPAN, SPAN, SPAN, HARMONICS) */,
               const real* __restrict__ moments /* slabs */, real* __restrict__ sums /* slabs */) {
    __shared__ real source[TERMS];
    const Target target(blockIdx.x, half);
    int l, m;
    degree_and_order(min(int(threadIdx.x), PAIRS - 1), l, m);
    real c[8] = {}, s[8] = {};
    for (int pz = -SEPARATION; pz <= SEPARATION; pz++)
        for (int py = -SEPARATION; py <= SEPARATION; py++)
            for (int px = -SEPARATION; px <= SEPARATION; px++)
                for (int child = 0; child < 8; child++) {
                    const real* from = moments + target.source(make_int4(px, py, pz, child));
                    __syncthreads();
                    for (int a = threadIdx.x; a < TERMS; a += blockDim.x) source[a] = from[a * WARP];
                    __syncthreads();
#pragma unroll
                    for (int to = 0; to < 8; to++) {
                        const int dx = 2 * px + (child & 1) - (to & 1), dy = 2 * py + (child >> 1 & 1) - (to >> 1 & 1),
                                  dz = 2 * pz + (child >> 2) - (to >> 2);
                        if (max(max(abs(dx), abs(dy)), abs(dz)) <= SEPARATION) continue;
                        const real* t = harmonics + (((dz + REACH) * SPAN + dy + REACH) * SPAN + dx + REACH) * HARMONICS;
                        real of_c = 0, of_s = 0;    // of this source: the sum over all has less to round
                        for (int j = 0; j <= ORDER; j++)
                            for (int k = 0; k <= j; k++) {
                                const Entries e = entries(t + (l + j) * (l + j) + l + j, m, k);
                                const real mc = source[j * j + j + k], ms = k == 0 ? real(0) : source[j * j + j - k];
                                of_c += e.cc * mc;
                                of_c += e.cs * ms;
                                of_s += e.sc * mc;
                                of_s += e.ss * ms;
                            }
                        c[to] += of_c;
                        s[to] += of_s;
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
