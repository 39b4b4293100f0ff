// m2m: moments of the boxes of a level from those of their children, M'_lm = 2^-l sum over the children of (E(shift) M)_lm.
//
// A block owns TRANSLATE_BOXES boxes, whose children at one position are next to each other, and takes one position after the other. Bound by
// shared-memory reads, and by latency on coarse levels.
#include "common/children.cuh"
#include "common/types.cuh"

extern "C" __global__ void __launch_bounds__(TRANSLATE_THREADS)
m2m(int half, const int* __restrict__ root_slots, const real* __restrict__ tables /* (8, TABLE) */,
    const real* __restrict__ children /* slabs */, real* __restrict__ moments /* slabs, or where half is 1 (TERMS, POINTS) in FFT order */) {
    extern __shared__ char memory[];
    const int box = blockIdx.x * TRANSLATE_BOXES + threadIdx.x % TRANSLATE_BOXES;
    const Target target(box, half);
    const bool used = box < parents_of(half);
    real* x = reinterpret_cast<real*>(memory) + threadIdx.x % TRANSLATE_BOXES;    // (TERMS, TRANSLATE_BOXES)
    real* y = x + TERMS * TRANSLATE_BOXES;
    real* to = moments + (half == 1 ? root_slots[min(box, parents_of(half) - 1)] : own_slab(target));
    const long long stride = half == 1 ? POINTS : WARP;
    for (int child = 0; child < 8; child++) {
        const real* from = children + target.source(make_int4(0, 0, 0, child));
        for_each_term([&](int a) { x[a * TRANSLATE_BOXES] = from[a * WARP]; });
        translate(tables + child * TABLE, false, x, y, [&](int a, real value) {
            if (!used) return;
            value = ldexp(value, -degree_of(a));
            to[a * stride] = child == 0 ? value : to[a * stride] + value;
        });
    }
}
