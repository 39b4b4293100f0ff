// gather: parts to particles, in OpenMM units: sum w Phi, sum (w E - Phi grad w), and the energy.
//
//   gather         a thread a particle: potentials, fields, forces
//   gather_atoms   a thread an atom of OpenMM's, whose order is another: atom k is particle
//                  atom_index[k]. Potentials and energy, and forces, each if they are wanted; these
//                  are added to OpenMM's as 64-bit fixed-point numbers, by atomics, since kernels
//                  on other streams may add at the same time
//
// The energy is added up in float64 in a fixed order: blocks write partial sums, the block that
// finishes last adds these. Bound by memory.
#include "common/fixed_point.cuh"
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

// Where results of parts are, and what makes those of particles of them.
struct Parted {
    int n;
    const Located* __restrict__ located;
    const real4* __restrict__ fraction;
    const int* __restrict__ place;
    const real4* __restrict__ far;
    const real4* __restrict__ near;
    const Parameters* __restrict__ parameters;
};

// Potential and field at particle i.
__device__ __forceinline__ real4 result_of(int i, const Parted& parted) {
    const Located at = parted.located[i];
    real phi = 0, ex = 0, ey = 0, ez = 0;
    for_each_corner(at, [&](int corner) {
        const int k = parted.place[entry_of(8 * i + corner, parted.n)];
        const real4 a = parted.far[k], b = parted.near[k];
        const real p = a.x + b.x, fx = a.y + b.y, fy = a.z + b.z, fz = a.w + b.w;
#if SMOOTHED
        const Part part = part_of(at, parted.fraction[i], corner, parted.parameters);
        phi += part.weight * p;
        ex += part.weight * fx - part.slope_x * p;
        ey += part.weight * fy - part.slope_y * p;
        ez += part.weight * fz - part.slope_z * p;
#else
        phi = p; ex = fx; ey = fy; ez = fz;
#endif
    });
    const real scale = real(parted.parameters->field);
    return {phi * real(parted.parameters->potential), ex * scale, ey * scale, ez * scale};
}

// Adds up the threads' shares of the energy.
__device__ __forceinline__ void add_energy(double mine, double* partial, int* ticket,
                                           double* __restrict__ energy) {
    __shared__ bool last;
    const double block = block_sum(mine);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = block;
        __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    mine = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += BLOCK)
        mine += reinterpret_cast<volatile double*>(partial)[b];
    const double total = block_sum(mine);
    if (threadIdx.x == 0) *energy = total;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    gather(int n, const Located* __restrict__ located, const real4* __restrict__ fraction,
           const int* __restrict__ place, const real4* __restrict__ far,
           const real4* __restrict__ near, const Parameters* __restrict__ parameters,
           const real* __restrict__ charges, real* __restrict__ potentials /* (n) */,
           double* partial /* (blocks) */, int* ticket /* zeroed */,
           double* __restrict__ energy /* (1) */, real* __restrict__ fields /* (n, 3) */,
           real* __restrict__ forces /* (n, 3) */) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    double mine = 0;
    if (i < n) {
        const real4 found = result_of(i, {n, located, fraction, place, far, near, parameters});
        const real q = charges[i];
        potentials[i] = found.x;
        fields[3 * i] = found.y;
        fields[3 * i + 1] = found.z;
        fields[3 * i + 2] = found.w;
        forces[3 * i] = q * found.y;
        forces[3 * i + 1] = q * found.z;
        forces[3 * i + 2] = q * found.w;
        mine = 0.5 * double(q) * double(found.x);
    }
    add_energy(mine, partial, ticket, energy);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_atoms(int n, const Located* __restrict__ located, const real4* __restrict__ fraction,
                 const int* __restrict__ place, const real4* __restrict__ far,
                 const real4* __restrict__ near, const Parameters* __restrict__ parameters,
                 const real* __restrict__ charges, real* __restrict__ potentials /* (n) */,
                 double* partial /* (blocks) */, int* ticket /* zeroed */,
                 double* __restrict__ energy /* (1) */,
                 const int* __restrict__ atom_index /* (padded) */,
                 uint64* __restrict__ force_buffer /* (3, padded) */, int padded, int forces,
                 const int* __restrict__ potentials_wanted /* (1): more than forces */) {
    const int k = blockIdx.x * BLOCK + threadIdx.x;
    const bool more = *potentials_wanted;
    double mine = 0;
    if (k < n) {
        const int i = atom_index[k];
        const real4 found = result_of(i, {n, located, fraction, place, far, near, parameters});
        const real q = charges[i];
        if (more) potentials[i] = found.x;
        if (forces) {
            atomicAdd(&force_buffer[k], fixed_point(q * found.y));
            atomicAdd(&force_buffer[k + padded], fixed_point(q * found.z));
            atomicAdd(&force_buffer[k + 2 * padded], fixed_point(q * found.w));
        }
        mine = 0.5 * double(q) * double(found.x);
    }
    if (more) add_energy(mine, partial, ticket, energy);
}
