// m2m: moments of the boxes of a level from those of their children,
//
//     M'_lm = 2^-l sum_children (E(shift) M)_lm
//
//   m2m      E M of the children. A block owns the children at one position of TRANSLATE_BOXES
//            boxes, which are contiguous. Bound by reads of shared memory; on coarse levels by
//            latency
//   m2m_sum  the sums over children. A thread per box and term
#include "common/children.cuh"
#include "common/types.cuh"

extern "C" __global__ void __launch_bounds__(TRANSLATE_THREADS)
    m2m(int half, const real* __restrict__ tables /* (8, TABLE) */,
        const real* __restrict__ children /* slabs */, real* __restrict__ translated /* slabs */) {
    extern __shared__ char memory[];
    const int box = blockIdx.x * TRANSLATE_BOXES + threadIdx.x % TRANSLATE_BOXES,
              child = blockIdx.y;
    const bool used = box < parents_of(half);
    // (TERMS, TRANSLATE_BOXES)
    real* x = reinterpret_cast<real*>(memory) + threadIdx.x % TRANSLATE_BOXES;
    real* y = x + TERMS * TRANSLATE_BOXES;
    const long long own = Target(box, half).source(make_int4(0, 0, 0, child));
    for_each_term([&](int a) { x[a * TRANSLATE_BOXES] = children[own + a * WARP]; });
    translate(tables + child * TABLE, false, x, y, [&](int a, real value) {
        if (used) translated[own + a * WARP] = ldexp(value, -degree_of(a));
    });
}

extern "C" __global__ void m2m_sum(
    int half, const int* __restrict__ root_slots, const real* __restrict__ translated /* slabs */,
    real* __restrict__ moments /* slabs, or (TERMS, POINTS) in FFT order if half is 1 */) {
    const int box = blockIdx.x * WARP + threadIdx.x % WARP,
              a = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (box >= parents_of(half) || a >= TERMS) return;
    real sum = 0;
    for (int child = 0; child < 8; child++) sum += translated[slab(child, box, half) + a * WARP];
    if (half == 1)
        moments[root_slots[box] + a * (long long)POINTS] = sum;
    else
        moments[own_slab(Target(box, half)) + a * WARP] = sum;
}
