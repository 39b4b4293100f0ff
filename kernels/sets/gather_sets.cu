// gather for several sets of charges: sums the results of each particle's parts, see gather.cu, and
// converts them to OpenMM's units. A thread per particle and set, a warp per set, so that writes
// are coalesced. Bound by memory.
#include "common/charge_sets.cuh"
#include "common/parts.cuh"

extern "C" __global__ void __launch_bounds__(32 * SETS) gather_sets(
    int n, const int* __restrict__ start /* (BOXES + 1) */, const Located* __restrict__ located,
    const real4* __restrict__ fraction, const int* __restrict__ place /* (CORNERS, n) */,
    const real4* __restrict__ far /* (SETS, start[BOXES]): potential, field */,
    const real* __restrict__ near /* (parts, RESULTS) */, const Parameters* __restrict__ parameters,
    const real* __restrict__ charges /* (n, SETS) */, real* __restrict__ potentials /* (SETS, n) */,
    real* __restrict__ fields /* (SETS, n, 3) */, real* __restrict__ forces /* (SETS, n, 3) */) {
    const int i = blockIdx.x * 32 + threadIdx.x % 32, set = threadIdx.x / 32;
    if (i >= n) return;
    far += set * (long long)start[BOXES];
    const Located at = located[i];
    real phi = 0, ex = 0, ey = 0, ez = 0;
    for_each_corner(at, [&](int corner) {
        const int k = place[entry_of(8 * i + corner, n)];
        const real4 a = far[k];
        const real* const own = near + k * (long long)RESULTS + set * VALUES;
        const real4 b = FIELDS ? *reinterpret_cast<const real4*>(own) : real4{*own, 0, 0, 0};
        const real p = a.x + b.x;
#if SMOOTHED
        const Part part = part_of(at, fraction[i], corner, parameters);
#else
        const Part part = {0, 0, 0, 1, 0, 0, 0};
#endif
        phi += part.weight * p;
        if (!FIELDS) return;
        ex += part.weight * (a.y + b.y) - part.slope_x * p;
        ey += part.weight * (a.z + b.z) - part.slope_y * p;
        ez += part.weight * (a.w + b.w) - part.slope_z * p;
    });
    const long long to = set * (long long)n + i;
    potentials[to] = phi * real(parameters->potential);
    if (!FIELDS) return;
    const real scale = real(parameters->field), field[3] = {ex * scale, ey * scale, ez * scale};
    const real charge = charges[i * (long long)SETS + set];
#pragma unroll
    for (int axis = 0; axis < 3; axis++) {
        fields[3 * to + axis] = field[axis];
        forces[3 * to + axis] = charge * field[axis];
    }
}
