// openmm: between OpenMM's arrays and the solver's. OpenMM keeps particles in an order of its own: atom i of its arrays, padded
// to whole blocks of 32, is particle atom_index[i].
//
//   locate_atoms   as locate in sort.cu, from OpenMM's positions
//   export_forces  a thread an atom; forces are added as 64-bit fixed-point numbers, by atomics, since kernels on other
//                  streams may add at the same time
//
// Bound by memory. Macros besides those of common/types.cuh: POSQ, the type of OpenMM's positions; CORRECTED, whether the
// low-order part of the positions is stored apart (mixed precision).
#include "common/parts.cuh"

#define FIXED_POINT 4294967296.0     // 2^32
#define LARGEST 1073741824.0         // kJ/mol/nm; the sum of two such forces still fits

struct __align__(16) Posq {
    POSQ x, y, z, charge;
};

extern "C" __global__ void locate_atoms(int n, const Posq* __restrict__ posq /* (padded) nm */,
                                        const Posq* __restrict__ correction /* (padded) */,
                                        const int* __restrict__ atom_index /* (padded) */,
                                        const real* __restrict__ charges /* (n) */,
                                        const Parameters* __restrict__ parameters, Located* __restrict__ located,
                                        real4* __restrict__ fraction, int* __restrict__ count, int* __restrict__ arrived,
                                        int* __restrict__ next) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const Posq at = posq[i];
    double x = at.x, y = at.y, z = at.z;
#if CORRECTED
    const Posq low = correction[i];
    x += low.x; y += low.y; z += low.z;
#endif
    const int particle = atom_index[i];
    const Lists lists = {n, count, arrived, next};
    place_particle(particle, x, y, z, charges[particle], parameters, located, fraction, lists);
}

// Neither a force too large for the format nor NaN may turn into an unrelated number: both become the largest force.
__device__ __forceinline__ uint64 fixed_point(real force) {
    return uint64((long long)(fmin(fmax(double(force), -LARGEST), LARGEST) * FIXED_POINT));
}

extern "C" __global__ void export_forces(int n, int padded, const real* __restrict__ forces /* (n, 3) */,
                                         const int* __restrict__ atom_index /* (padded) */,
                                         uint64* __restrict__ force_buffer /* (3, padded) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const real* from = forces + 3 * atom_index[i];
#pragma unroll
    for (int axis = 0; axis < 3; axis++) atomicAdd(&force_buffer[i + axis * padded], fixed_point(from[axis]));
}
