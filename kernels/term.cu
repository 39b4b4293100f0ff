// term: adds the dipole term of a periodic cell, or the interaction with what neutralises a slab or
// wire, to OpenMM's forces and to potentials and energy. Pairs of charges, a charge with itself
// included, interact by
//
//     w(x, y) = u(x) + u(y) + e + 2 sum_a c_a x_a y_a
//
// so that with the sums over the charges Q = sum q, S = sum q u(x) and M = sum q x
//
//     Phi(x) = Q (u(x) + e) + S + 2 sum_a c_a M_a x_a     E(x) = -Q grad u(x) - 2 c M
//     energy = Q S + Q^2 e / 2 + sum_a c_a M_a^2
//
// With a dipole moment u(x) = -sum_a c_a x_a^2 (fmm_openmm/dipole_term.py); sheets and cylinders
// have no c (fmm_openmm/neutralization.py).
//
//   term_moments   Q, S and M, in a fixed order. A thread per particle
//   add_term       the term at the particles, after the stage gather. A thread per atom
//
// Everything is in float64. Bound by memory. Macros besides those of common/types.cuh: TERM, one of
// those below; PLACES, the number of sheets or cylinders.
#include "common/fixed_point.cuh"
#include "common/grid_sums.cuh"
#include "common/share.cuh"
#include "common/types.cuh"

#define BLOCK 256
#define MOMENTS 5

#define DIPOLE 0
#define SHEETS 1
#define CYLINDERS 2

// What does not depend on the cell, from pipeline/term.py. The strength of a term is k_e over the
// volume of the cell, the area of a slab's or the period of a wire's.
struct Numbers {
    double along[3];    // c over the strength
    double own;         // -e over the strength; with a dipole moment also over the squared height
    double logarithms;  // of a wire: e over the strength and the logarithm of the period
    double weight;      // of each sheet or cylinder in u, over the strength
};

// The term in a cell.
struct Term {
    double c[3], e, weight;
    double logarithm;      // of the period of a wire
    const double* places;  // heights of sheets, or y, z and squared radius of cylinders along x

    __device__ Term(const Numbers* numbers, const Parameters* parameters) {
        const double* cell = parameters->cell;
        const double width = parameters->potential / parameters->field;  // k_e = potential * width
#if TERM == DIPOLE
        const double height = width * cell[8];
        const double strength = parameters->potential / (width * cell[0] * cell[4] * height);
        e = -numbers->own * strength * height * height;
#elif TERM == SHEETS
        const double strength = parameters->potential / (width * cell[0] * cell[4]);
        e = -numbers->own * strength;
#else
        const double strength = parameters->potential / cell[0];
        logarithm = log(width * cell[0]);
        e = (numbers->logarithms * logarithm - numbers->own) * strength;
#endif
        for (int axis = 0; axis < 3; axis++) c[axis] = strength * numbers->along[axis];
        weight = strength * numbers->weight;
        places = reinterpret_cast<const double*>(numbers + 1);
    }

    // u at x, whose gradient it adds to that given.
    __device__ double potential(const double* x, double* gradient) const {
        double u = 0;
#if TERM == DIPOLE
        for (int axis = 0; axis < 3; axis++) {
            u -= c[axis] * x[axis] * x[axis];
            gradient[axis] -= 2 * c[axis] * x[axis];
        }
#elif TERM == SHEETS
        for (int s = 0; s < PLACES; s++) {
            const double z = x[2] - places[s];
            u += weight * fabs(z);
            gradient[2] += z == 0 ? 0 : copysign(weight, z);
        }
#else
        for (int s = 0; s < PLACES; s++) {
            const double y = x[1] - places[3 * s], z = x[2] - places[3 * s + 1];
            const double square = y * y + z * z, inside = places[3 * s + 2];
            u += weight * (0.5 * log(fmax(square, inside)) - logarithm);
            if (square > inside) {
                gradient[1] += weight * y / square;
                gradient[2] += weight * z / square;
            }
        }
#endif
        return u;
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    term_moments(int n, const double* __restrict__ positions /* (n, 3) nm */,
                 const real* __restrict__ charges /* (n) */,
                 const Parameters* __restrict__ parameters, const Numbers* __restrict__ numbers,
                 double* partial /* (blocks, MOMENTS) */, int* ticket /* 0 before and after */,
                 double* __restrict__ moments /* (MOMENTS): Q, S, M */) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    double own[MOMENTS] = {};
    if (i < n) {
        const Term term(numbers, parameters);
        const double q = charges[i];
        const double* x = positions + 3 * i;
        double gradient[3] = {};
        own[0] = q;
        own[1] = q * term.potential(x, gradient);
        for (int axis = 0; axis < 3; axis++) own[2 + axis] = q * x[axis];
    }
    if (!sum_over_grid<BLOCK>(own, partial, ticket)) return;
    *ticket = 0;
    for (int k = 0; k < MOMENTS; k++) moments[k] = own[k];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    add_term(int n, const double* __restrict__ positions /* (n, 3) nm */,
             const real* __restrict__ charges /* (n) */, const Parameters* __restrict__ parameters,
             const Numbers* __restrict__ numbers,
             const double* __restrict__ moments /* (MOMENTS) */,
             real* __restrict__ potentials /* (n) */, double* __restrict__ sums /* first: energy */,
             const int* __restrict__ atom_index /* (padded) */,
             uint64* __restrict__ force_buffer /* (3, padded) */, int padded, int forces,
             const int* __restrict__ potentials_wanted /* (1): not only forces */,
             const Share* __restrict__ share /* (1) */) {
    const int k = blockIdx.x * BLOCK + threadIdx.x;
    if (k >= n) return;
    const BoxRange boxes = near_boxes(share);
    if (boxes.first > 0 || boxes.end == 0) return;  // another device adds it
    const Term term(numbers, parameters);
    const int i = atom_index[k];
    const double* x = positions + 3 * i;
    const double q = charges[i], charge = moments[0], opposite = moments[1], *dipole = moments + 2;
    double gradient[3] = {};
    double phi = charge * (term.potential(x, gradient) + term.e) + opposite;
    double energy = charge * (opposite + 0.5 * charge * term.e);
    for (int axis = 0; axis < 3; axis++) {
        const double pull = term.c[axis] * dipole[axis];
        phi += 2 * pull * x[axis];
        energy += pull * dipole[axis];
        if (forces)
            atomicAdd(&force_buffer[k + axis * padded],
                      fixed_point(-q * (charge * gradient[axis] + 2 * pull)));
    }
    if (!*potentials_wanted) return;
    potentials[i] += phi;
    if (k == 0) sums[0] += energy;
}
