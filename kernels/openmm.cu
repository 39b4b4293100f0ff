// openmm: reads OpenMM's positions. OpenMM reorders particles: atom i of its arrays, which are
// padded to multiples of 32, is particle atom_index[i].
//
//   locate_atoms      locate of sort.cu, from OpenMM's positions. A thread per atom
//   bring_positions   positions in the order of the particles, for locate_inside of sort.cu. A
//                     thread per atom
//   bring_together    the same for a slab or wire, in the coordinates of the boxes: undoes OpenMM's
//                     wrapping along box vectors without images; sets a flag if a particle is near
//                     the middle of the vacuum
//   turn_forces       adds forces in the coordinates of the boxes to OpenMM's. A thread per atom
//   bring_unwrapped   positions in the order of the particles, without the box vectors that OpenMM
//                     has added to them. A thread per atom
//
// Bound by memory. Macros besides those of common/types.cuh: POSQ, the type of OpenMM's positions;
// CORRECTED, whether their low-order parts are stored separately (mixed precision).
#include "common/fixed_point.cuh"
#include "common/parts.cuh"

struct __align__(16) Posq {
    POSQ x, y, z, charge;
};

__device__ __forceinline__ double3 position_of(int i, const Posq* __restrict__ posq,
                                               const Posq* __restrict__ correction) {
    const Posq at = posq[i];
    double3 x;
    x.x = at.x;
    x.y = at.y;
    x.z = at.z;
#if CORRECTED
    const Posq low = correction[i];
    x.x += low.x;
    x.y += low.y;
    x.z += low.z;
#endif
    return x;
}

extern "C" __global__ void locate_atoms(int n, const Posq* __restrict__ posq /* (padded) nm */,
                                        const Posq* __restrict__ correction /* (padded) */,
                                        const int* __restrict__ atom_index /* (padded) */,
                                        const real* __restrict__ charges /* (n) */,
                                        const Parameters* __restrict__ parameters,
                                        Located* __restrict__ located, real4* __restrict__ fraction,
                                        int* __restrict__ count, int* __restrict__ arrived,
                                        int* __restrict__ next) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double3 x = position_of(i, posq, correction);
    const int particle = atom_index[i];
    const Lists lists = {n, count, arrived, next};
    place_particle(particle, in_boxes(x.x, x.y, x.z, parameters), charges[particle], located,
                   fraction, lists);
}

extern "C" __global__ void bring_positions(int n, const Posq* __restrict__ posq /* (padded) nm */,
                                           const Posq* __restrict__ correction /* (padded) */,
                                           const int* __restrict__ atom_index /* (padded) */,
                                           double* __restrict__ positions /* (n, 3) nm */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double3 x = position_of(i, posq, correction);
    double* to = positions + 3 * atom_index[i];
    to[0] = x.x;
    to[1] = x.y;
    to[2] = x.z;
}

extern "C" __global__ void bring_together(int n, const Posq* __restrict__ posq /* (padded) nm */,
                                          const Posq* __restrict__ correction /* (padded) */,
                                          const int* __restrict__ atom_index /* (padded) */,
                                          const Placement* __restrict__ placement,
                                          double* __restrict__ positions /* (n, 3) nm */,
                                          int* outside /* (1), zeroed */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double3 held = position_of(i, posq, correction);
    double x[3] = {held.x, held.y, held.z};
    for (int k = 0; k < 3; k++) {
        const double* normal = placement->normals + 3 * k;
        const double away =
            normal[0] * held.x + normal[1] * held.y + normal[2] * held.z - placement->middle[k];
        const double images = floor(away + 0.5);
        for (int axis = 0; axis < 3; axis++) x[axis] -= images * placement->vectors[3 * k + axis];
        if (fabs(away - images) > placement->farthest[k]) *outside = 1;
    }
    const double* axes = placement->axes;
    double* to = positions + 3 * atom_index[i];
    for (int axis = 0; axis < 3; axis++)
        to[axis] = x[0] * axes[axis] + x[1] * axes[3 + axis] + x[2] * axes[6 + axis];
}

extern "C" __global__ void turn_forces(int n, const Placement* __restrict__ placement,
                                       const uint64* __restrict__ turned /* (3, padded) */,
                                       uint64* __restrict__ force_buffer /* (3, padded) */,
                                       int padded) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double force[3];
    for (int axis = 0; axis < 3; axis++)
        force[axis] = (long long)turned[i + axis * padded] / FIXED_POINT;
    for (int axis = 0; axis < 3; axis++) {
        const double* row = placement->axes + 3 * axis;
        atomicAdd(&force_buffer[i + axis * padded],
                  fixed_point(row[0] * force[0] + row[1] * force[1] + row[2] * force[2]));
    }
}

extern "C" __global__ void bring_unwrapped(int n, const Posq* __restrict__ posq /* (padded) nm */,
                                           const Posq* __restrict__ correction /* (padded) */,
                                           const int* __restrict__ atom_index /* (padded) */,
                                           const int4* __restrict__ cell_offsets /* (n) */,
                                           const Parameters* __restrict__ parameters,
                                           double* __restrict__ unwrapped /* (n, 3) nm */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double3 x = position_of(i, posq, correction);
    const int4 offset = cell_offsets[i];
    const double width = parameters->potential / parameters->field;
    const double a = width * offset.x, b = width * offset.y, c = width * offset.z;
    const double* cell = parameters->cell;
    double* to = unwrapped + 3 * atom_index[i];
    to[0] = x.x - a * cell[0] - b * cell[3] - c * cell[6];
    to[1] = x.y - a * cell[1] - b * cell[4] - c * cell[7];
    to[2] = x.z - a * cell[2] - b * cell[5] - c * cell[8];
}
