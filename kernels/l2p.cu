// l2p: local expansions and the trace term to potentials and fields at the parts.
//
// GROUP lanes own a box. The box's expansion and the coefficients of its gradient lie in shared memory; a lane evaluates
// one part at a time. Bound by shared-memory reads: four a term.
#include "common/harmonics.cuh"
#include "common/parts.cuh"

#define GROUP 8
#define INNER (ORDER * ORDER)

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP)
l2p(const int* __restrict__ start /* (BOXES + 1) */, const real4* __restrict__ xq /* (parts) */,
    const int* __restrict__ slot /* (BOXES) */, const real* __restrict__ local /* (TERMS, BOXES) in FFT order */,
    const int4* __restrict__ gradient /* (3, INNER): two terms, factors as float bits */,
    const double* __restrict__ sums /* (5) */, real4* __restrict__ far /* (parts): potential, field */) {
    __shared__ real memory[GROUPS][TERMS + 3 * INNER + 1];
    const int group = threadIdx.x / GROUP, lane = threadIdx.x % GROUP;
    const int box = blockIdx.x * GROUPS + group;
    const int first = box < BOXES ? start[box] : 0, last = box < BOXES ? start[box + 1] : 0;
    // volatile: without it the compiler loads whole expansions into registers ahead of their use
    volatile real* expansion = memory[group];
    volatile real* slope = expansion + TERMS;
    if (first < last) {
        const int from = slot[box];
        for (int a = lane; a < TERMS; a += GROUP) expansion[a] = local[a * (long long)BOXES + from];
    }
    __syncwarp();
    if (first < last)
        for (int k = lane; k < 3 * INNER; k += GROUP) {
            const int4 g = __ldg(gradient + k);
            slope[k] = real(__int_as_float(g.z)) * expansion[g.x] + real(__int_as_float(g.w)) * expansion[g.y];
        }
    __syncwarp();
    const real c = real(2 * 3.14159265358979323846 / 3 / BOXES);
    const real charge = c * real(sums[0]), square = c * real(sums[4]);
    const real dx = 2 * c * real(sums[1]), dy = 2 * c * real(sums[2]), dz = 2 * c * real(sums[3]);
    for (int k = first + lane; k < last; k += GROUP) {
        const real4 part = xq[k];
        const real x = part.x, y = part.y, z = part.z;
        real phi = charge * (x * x + y * y + z * z) - (dx * x + dy * y + dz * z) + square;
        real ex = dx - 2 * charge * x, ey = dy - 2 * charge * y, ez = dz - 2 * charge * z;
        regular_harmonics<ORDER>(x, y, z, [&](int a, real r) {
            phi += expansion[a] * r;
            if (a < INNER) {
                ex -= slope[a] * r;
                ey -= slope[INNER + a] * r;
                ez -= slope[2 * INNER + a] * r;
            }
        });
        far[k] = real4{phi, ex, ey, ez};
    }
}
