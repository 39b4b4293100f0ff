// exchange: copies the data of an evaluation from and to arrays of another package, in its types,
// units and orientation: with lengths L nm, energies U kJ/mol, and a rotation R of rows of
// coordinates,
//
//   take   x = L x' R; q = q' and the parameter block, unless their addresses are null. A thread
//          per particle
//   give   energy' = energy / U, F' = F R^T L / U, phi' = phi / U, virial' = R virial R^T / U. A
//          thread per particle
//
// Each is a single launch, since the host takes longer to launch a kernel than the device to copy
// the arrays. Bound by memory. Macros: REAL; GIVEN_POSITION and GIVEN_CHARGE, the types of the
// other package's positions and forces and of its charges and potentials.
#include "common/parameters.cuh"
#include "common/real.cuh"

#define PARAMETERS int(sizeof(Parameters) / sizeof(double))

__device__ __forceinline__ double inner(const double* x, const double* y, int stride) {
    return x[0] * y[0] + x[1] * y[stride] + x[2] * y[2 * stride];
}

extern "C" __global__ void take(int n,
                                const GIVEN_POSITION* __restrict__ given_positions /* (n, 3) */,
                                const GIVEN_CHARGE* __restrict__ given_charges /* (n), or null */,
                                const double* __restrict__ rotation /* (3, 3); null for none */,
                                double length,
                                const double* __restrict__ given_parameters /* (41), or null */,
                                double* __restrict__ positions /* (n, 3) nm */,
                                real* __restrict__ charges /* (n) */,
                                double* __restrict__ parameters /* (41): Parameters */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (given_parameters && i < PARAMETERS) parameters[i] = given_parameters[i];
    if (i >= n) return;
    const double x[3] = {double(given_positions[3 * i]), double(given_positions[3 * i + 1]),
                         double(given_positions[3 * i + 2])};
    for (int c = 0; c < 3; c++)
        positions[3 * i + c] = length * (rotation ? inner(x, rotation + c, 3) : x[c]);
    if (given_charges) charges[i] = real(given_charges[i]);
}

extern "C" __global__ void give(int n, const double* __restrict__ energy /* (1) */,
                                const real* __restrict__ forces /* (n, 3) */,
                                const real* __restrict__ potentials /* (n) */,
                                const double* __restrict__ virial /* (3, 3); null for none */,
                                const double* __restrict__ rotation, double length, double unit,
                                double* __restrict__ given_energy /* (1) */,
                                GIVEN_POSITION* __restrict__ given_forces /* (n, 3) */,
                                GIVEN_CHARGE* __restrict__ given_potentials /* (n) */,
                                double* __restrict__ given_virial /* (3, 3) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) *given_energy = *energy / unit;
    if (virial && i < 9) {
        double sum = rotation ? 0 : virial[i];
        for (int k = 0; rotation && k < 9; k++)
            sum += rotation[i / 3 * 3 + k / 3] * virial[k] * rotation[i % 3 * 3 + k % 3];
        given_virial[i] = sum / unit;
    }
    if (i >= n) return;
    const double F[3] = {double(forces[3 * i]), double(forces[3 * i + 1]),
                         double(forces[3 * i + 2])};
    for (int c = 0; c < 3; c++)
        given_forces[3 * i + c] =
            GIVEN_POSITION(length / unit * (rotation ? inner(F, rotation + 3 * c, 1) : F[c]));
    given_potentials[i] = GIVEN_CHARGE(double(potentials[i]) / unit);
}
