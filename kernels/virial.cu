// virial: minus the derivative of the energy U with respect to a strain of positions and cell,
//
//     W = k_e / width * traceless( sum_i q_i x_i (x) E_i  -  lattice work / 2  +  near work / 2 ) +
//     U / 3
//
// with charge q, place x in its box and far field E of every part, see HostStages of
// fmm_openmm/stages.py. The traceless matrix follows from its products with five generators of
// strain (fmm_openmm/expansions/operators/derivatives.py): xx - yy, yy - zz, yx, zx, zy.
//
// A thread takes every BLOCK * gridDim.x-th part, box and partial sum of lattice_work. Sums are in
// float64 in a fixed order. Bound by memory.
#include "common/grid_sums.cuh"
#include "common/p2p_work.cuh"
#include "common/types.cuh"

#define BLOCK 256
#define GENERATORS 5

// Adds the elements xx, yy, zz, yx, zx, zy of a matrix to the sums for the generators.
__device__ __forceinline__ void add(double (&sum)[GENERATORS], double factor, double xx, double yy,
                                    double zz, double yx, double zx, double zy) {
    sum[0] += factor * (xx - yy);
    sum[1] += factor * (yy - zz);
    sum[2] += factor * yx;
    sum[3] += factor * zx;
    sum[4] += factor * zy;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    virial(const int* __restrict__ start /* (BOXES + 1) */,
           const real4* __restrict__ xq /* (parts) */,
           const real4* __restrict__ far /* (parts): potential, field */,
           const real* __restrict__ near_work /* (BOXES, 2, WORK_SUMS), of boxes with parts */,
           int lattice_works, const double* __restrict__ lattice_work /* (.., GENERATORS) */,
           const Parameters* __restrict__ parameters, const double* __restrict__ energy /* (1) */,
           double* partial /* (blocks, GENERATORS) */, int* ticket /* 0 before and after */,
           double* __restrict__ result /* (3, 3) kJ/mol */) {
    const int thread = blockIdx.x * BLOCK + threadIdx.x, threads = gridDim.x * BLOCK;
    double sum[GENERATORS] = {};
    for (int k = thread, parts = start[BOXES]; k < parts; k += threads) {
        const real4 x = xq[k], e = far[k];
        add(sum, x.w, x.x * e.y, x.y * e.z, x.z * e.w, x.y * e.y, x.z * e.y, x.z * e.z);
    }
    for (int k = thread; k < 2 * BOXES; k += threads) {
        const real* w = near_work + k * WORK_SUMS;
        if (start[k / 2] < start[k / 2 + 1]) add(sum, 0.5, w[0], w[1], w[2], w[3], w[4], w[5]);
    }
    for (int k = thread; k < lattice_works; k += threads)
        for (int g = 0; g < GENERATORS; g++) sum[g] -= 0.5 * lattice_work[k * GENERATORS + g];
    if (!sum_over_grid<BLOCK>(sum, partial, ticket)) return;
    *ticket = 0;
    const double scale = parameters->potential, third = *energy / 3;
    const double xx = scale * (2 * sum[0] + sum[1]) / 3, zz = -scale * (sum[0] + 2 * sum[1]) / 3;
    result[0] = xx + third;
    result[4] = third - xx - zz;
    result[8] = zz + third;
    result[1] = result[3] = scale * sum[2];
    result[2] = result[6] = scale * sum[3];
    result[5] = result[7] = scale * sum[4];
}
