// gather: parts to particles, in OpenMM units: sum w Phi, sum (w E - Phi grad w), and the energy.
//
// A thread a particle. The energy is added up in float64 in a fixed order: blocks write partial sums, the block that
// finishes last adds these. Bound by memory.
#include "common/parts.cuh"

#define BLOCK 256

// The sum over the block, in a fixed order; valid in thread 0.
__device__ __forceinline__ double block_sum(double value) {
    __shared__ double sum[BLOCK / 32];
#pragma unroll
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(FULL, value, d);
    if (threadIdx.x % 32 == 0) sum[threadIdx.x / 32] = value;
    __syncthreads();
    double total = 0;
    for (int w = 0; w < BLOCK / 32; w++) total += sum[w];
    return total;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gather(int n, const Located* __restrict__ located, const real4* __restrict__ fraction, const int* __restrict__ place,
       const real* __restrict__ charges, const real4* __restrict__ far, const real4* __restrict__ near,
       const Parameters* __restrict__ parameters, real* __restrict__ potentials /* (n) */, real* __restrict__ fields /* (n, 3) */,
       real* __restrict__ forces /* (n, 3) */, double* partial /* (blocks) */, int* ticket /* zeroed */,
       double* __restrict__ energy /* (1) */) {
    __shared__ bool last;
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    double mine = 0;
    if (i < n) {
        const Located at = located[i];
        real phi = 0, ex = 0, ey = 0, ez = 0;
        for_each_corner(at, [&](int corner) {
            const int k = place[entry_of(8 * i + corner, n)];
            const real4 a = far[k], b = near[k];
            const real p = a.x + b.x, fx = a.y + b.y, fy = a.z + b.z, fz = a.w + b.w;
#if SMOOTHED
            const Part part = part_of(at, fraction[i], corner, parameters);
            phi += part.weight * p;
            ex += part.weight * fx - part.slope_x * p;
            ey += part.weight * fy - part.slope_y * p;
            ez += part.weight * fz - part.slope_z * p;
#else
            phi = p; ex = fx; ey = fy; ez = fz;
#endif
        });
        const real q = charges[i], scale = real(parameters->field);
        phi *= real(parameters->potential);
        ex *= scale; ey *= scale; ez *= scale;
        potentials[i] = phi;
        fields[3 * i] = ex; fields[3 * i + 1] = ey; fields[3 * i + 2] = ez;
        forces[3 * i] = q * ex; forces[3 * i + 1] = q * ey; forces[3 * i + 2] = q * ez;
        mine = 0.5 * double(q) * double(phi);
    }
    const double block = block_sum(mine);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = block;
        __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    mine = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += BLOCK) mine += reinterpret_cast<volatile double*>(partial)[b];
    const double total = block_sum(mine);
    if (threadIdx.x == 0) *energy = total;
}
