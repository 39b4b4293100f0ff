// examine: the numbers that the host reads after every frame: the energy, the number of invalid
// potentials and coordinates, NaN included,
//
//     sum_i [not |phi_i| <= largest / width] + sum_ic [not |x_ic| <= largest_coordinate],
//
// and the sums of q^2 E^2, q^2 |E|^3 and q^2 phi^2.
//
// A thread per particle. Bound by memory.
#include "common/grid_sums.cuh"
#include "common/parameters.cuh"

#define BLOCK 256

extern "C" __global__ void __launch_bounds__(BLOCK)
    examine(int n, const double* __restrict__ positions /* (n, 3) nm */,
            const real* __restrict__ potentials /* (n) kJ/mol/e */, double largest_coordinate,
            double largest /* e */, const Parameters* __restrict__ parameters,
            const double* __restrict__ energy /* (1) */,
            const double* __restrict__ force_sums /* (3), in the CPU's memory */,
            double* partial /* (blocks) */, int* ticket /* zeroed */,
            double* __restrict__ found /* (5), in the CPU's memory */) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    double invalid[1] = {0};
    if (i < n) {
        invalid[0] = !(fabs(double(potentials[i])) <= largest * parameters->potential);
        for (int c = 0; c < 3; c++)
            invalid[0] += !(fabs(positions[3 * i + c]) <= largest_coordinate);
    }
    if (!sum_over_grid<BLOCK>(invalid, partial, ticket)) return;
    *ticket = 0;  // for the next launch
    found[0] = *energy;
    found[1] = invalid[0];
    for (int s = 0; s < 3; s++) found[2 + s] = force_sums[s];
}
