// m2l_p4: M2L of a level of an octree, O(p^4) per pair of boxes, with a direct mapping of loops to
// threads,
//
//     L_lm = sum over the list, j and k of T_l+j,m+k M_jk    (for real terms: irregular.cuh)
//
// A block owns a target, a thread one pair (l, m). All operands are read from memory, four
// harmonics and two moments for eight multiply-adds: bound by the caches.
#include "irregular.cuh"

extern "C" __global__ void __launch_bounds__((PAIRS + WARP - 1) / WARP * WARP)
    m2l_p4(int half, int count, const int4* __restrict__ list /* (8, count) */,
           const real* __restrict__ harmonics /* (operators, HARMONICS) */,
           const real* __restrict__ moments /* slabs */, real* __restrict__ sums /* slabs */) {
    if (threadIdx.x >= PAIRS) return;
    const int child = blockIdx.y;
    const Target target(blockIdx.x, half);
    int l, m;
    degree_and_order(threadIdx.x, l, m);
    real c = 0, s = 0;
    for (int i = 0; i < count; i++) {
        const int4 entry = list[child * count + i];
        const real* t = harmonics + (entry.w >> 3) * HARMONICS;
        const real* source = moments + target.source(entry);
        real source_c = 0, source_s = 0;  // summed per source, to reduce rounding errors
        for (int j = 0; j <= ORDER; j++)
            for (int k = 0; k <= j; k++) {
                const Entries e = entries(t + (l + j) * (l + j) + l + j, m, k);
                const real mc = source[(j * j + j + k) * WARP];
                source_c += e.cc * mc;
                source_s += e.sc * mc;
                if (k == 0) continue;
                const real ms = source[(j * j + j - k) * WARP];
                source_c += e.cs * ms;
                source_s += e.ss * ms;
            }
        c += source_c;
        s += source_s;
    }
    real* local = sums + slab(child, blockIdx.x, half);
    local[(l * l + l + m) * WARP] = row_factor(l, m) * c;
    if (m > 0) local[(l * l + l - m) * WARP] = row_factor(l, m) * s;
}
