// Terms of the virial, as products with the generators of strain, see gather.cu.
#pragma once
#include "common/generators.cuh"
#include "common/p2p_work.cuh"
#include "common/share.cuh"

// Adds q x E^T of a part with charge q and position x in its box, and far field E.
__device__ __forceinline__ void add_part(double (&sum)[GENERATORS], const real4& x,
                                         const real4& far) {
    add_elements(sum, x.w, x.x * far.y, x.y * far.z, x.z * far.w, x.y * far.y, x.z * far.y,
                 x.z * far.z);
}

// Adds a thread's share of the work of the lattice operator, and of the near field of a range of
// boxes. Blocks are one-dimensional.
__device__ __forceinline__ void add_works(double (&sum)[GENERATORS], int lattice_works,
                                          const double* __restrict__ lattice_work,
                                          const BoxRange& boxes,
                                          const int* __restrict__ start /* (BOXES + 1) */,
                                          const real* __restrict__ near_work) {
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (int k = thread; k < lattice_works; k += threads)
        for (int g = 0; g < GENERATORS; g++) sum[g] -= 0.5 * lattice_work[k * GENERATORS + g];
    for (int k = 2 * boxes.first + thread; k < 2 * boxes.end; k += threads) {
        if (start[k / 2] == start[k / 2 + 1]) continue;
        const real* w = near_work + k * WORK_SUMS;
        add_elements(sum, 0.5, w[0], w[1], w[2], w[3], w[4], w[5]);
    }
}
