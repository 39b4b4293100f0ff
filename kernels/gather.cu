// gather: sums the results of each particle's parts and converts them to OpenMM's units,
//
//     Phi = sum w Phi_part     E = sum (w E_part - Phi_part grad w)     energy = 1/2 sum q Phi
//
//   gather         potentials, fields and forces. A thread per particle
//   gather_atoms   for OpenMM, whose order of atoms differs: atom k is particle atom_index[k].
//                  Computes forces, and potentials and the energy, as requested. Forces are added
//                  to OpenMM's as 64-bit fixed-point numbers, by atomics because kernels on other
//                  streams may add to them at the same time. A thread per atom
//
// With the energy come the sums of q^2 E^2, q^2 |E|^3 and q^2 phi^2, in units of charges and box
// widths, from which the host tells whether the parameters suit the forces. These are sums over
// particles of which the device computes all results.
//
// With VIRIAL, gather also sums the virial, minus the derivative of the energy U with respect to a
// strain of positions and cell,
//
//     W = k_e / width * traceless(sum q x E^T - lattice work / 2 + near work / 2) + U / 3,
//
// where the sum is over the parts, with charge q, position x in the box and far field E; see
// HostStages of fmm_openmm/stages.py. The traceless matrix follows from its products with five
// generators of strain.
//
// Sums are in float64 in a fixed order. Bound by memory.
#include "common/fixed_point.cuh"
#include "common/grid_sums.cuh"
#include "common/part_results.cuh"
#if VIRIAL
#include "common/strain.cuh"
#define SUMS (4 + GENERATORS)
#else
#define SUMS 4
#endif

#define BLOCK 256

// Terms of the sums: the energy of a particle of charge q and, where its result is whole, q^2 E^2,
// q^2 |E|^3 and q^2 phi^2, the last one with phi in kJ/mol/e.
__device__ __forceinline__ void set_terms(double* sums /* [4] */, real q, const Result& result,
                                          const Parameters* __restrict__ parameters) {
    sums[0] = 0.5 * double(q) * double(result.sum.x);
    if (!result.whole) return;
    const real scale = 1 / real(parameters->field), x = scale * result.sum.y,
               y = scale * result.sum.z, z = scale * result.sum.w, square = x * x + y * y + z * z;
    sums[1] = double(q) * double(q) * double(square);
    sums[2] = sums[1] * double(sqrt(square));
    sums[3] = 4 * sums[0] * sums[0];
}

#if VIRIAL
// Adds q x E^T of the parts of a particle.
__device__ __forceinline__ void add_strain(double (&sum)[GENERATORS], int i,
                                           const PartResults& parts, const real4* __restrict__ xq) {
    for_each_corner(parts.located[i], [&](int corner) {
        const int k = parts.place[entry_of(8 * i + corner, parts.n)];
        add_part(sum, xq[k], parts.far[k]);
    });
}

__device__ __forceinline__ void write_virial(const double* sum, double energy, double scale,
                                             double* __restrict__ virial) {
    const double xx = scale * (2 * sum[0] + sum[1]) / 3, zz = -scale * (sum[0] + 2 * sum[1]) / 3;
    virial[0] = energy / 3 + xx;
    virial[4] = energy / 3 - xx - zz;
    virial[8] = energy / 3 + zz;
    virial[1] = virial[3] = scale * sum[2];
    virial[2] = virial[6] = scale * sum[3];
    virial[5] = virial[7] = scale * sum[4];
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    gather(int n, const Located* __restrict__ located, const real4* __restrict__ fraction,
           const int* __restrict__ place, const real4* __restrict__ far,
           const real4* __restrict__ near, const Parameters* __restrict__ parameters,
           const real* __restrict__ charges, real* __restrict__ potentials /* (n) */,
           double* partial /* (blocks, SUMS) */, int* ticket /* zeroed */,
           double* __restrict__ energy /* (1) */,
           double* __restrict__ force_sums /* (3), in the CPU's memory */,
           real* __restrict__ fields /* (n, 3) */, real* __restrict__ forces /* (n, 3) */,
#if VIRIAL
           const real4* __restrict__ xq /* (parts) */, int lattice_works,
           const double* __restrict__ lattice_work /* (.., GENERATORS) */,
           const real* __restrict__ near_work /* (BOXES, 2, WORK_SUMS), of boxes with parts */,
           double* __restrict__ virial /* (3, 3) kJ/mol */,
#endif
           const int* __restrict__ start, const Share* __restrict__ share) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    double own[SUMS] = {};
#if VIRIAL
    double strain[GENERATORS] = {};
    add_works(strain, lattice_works, lattice_work, near_boxes(share), start, near_work);
#endif
    if (i < n) {
        const PartResults parts =
            results_of_parts(n, located, fraction, place, far, near, parameters, start, share);
        const Result found = result_of(i, parts);
        const real4 result = found.sum;
        const real q = charges[i];
        potentials[i] = result.x;
        fields[3 * i] = result.y;
        fields[3 * i + 1] = result.z;
        fields[3 * i + 2] = result.w;
        forces[3 * i] = q * result.y;
        forces[3 * i + 1] = q * result.z;
        forces[3 * i + 2] = q * result.w;
        set_terms(own, q, found, parameters);
#if VIRIAL
        add_strain(strain, i, parts, xq);
#endif
    }
#if VIRIAL
    for (int g = 0; g < GENERATORS; g++) own[4 + g] = strain[g];
#endif
    if (!sum_over_grid<BLOCK>(own, partial, ticket)) return;
    own[3] /= parameters->potential * parameters->potential;
    *energy = own[0];
    for (int s = 0; s < 3; s++) force_sums[s] = own[s + 1];
#if VIRIAL
    write_virial(own + 4, own[0], parameters->potential, virial);
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_atoms(int n, const Located* __restrict__ located, const real4* __restrict__ fraction,
                 const int* __restrict__ place, const real4* __restrict__ far,
                 const real4* __restrict__ near, const Parameters* __restrict__ parameters,
                 const real* __restrict__ charges, real* __restrict__ potentials /* (n) */,
                 double* partial /* (blocks, 4) */, int* ticket /* zeroed */,
                 double* __restrict__ sums /* (4): energy, q^2 E^2, q^2 |E|^3, q^2 phi^2 */,
                 const int* __restrict__ atom_index /* (padded) */,
                 uint64* __restrict__ force_buffer /* (3, padded) */, int padded, int forces,
                 const int* __restrict__ potentials_wanted /* (1): not only forces */,
                 const int* __restrict__ start /* (BOXES + 1) */,
                 const Share* __restrict__ share /* (1) */) {
    const int k = blockIdx.x * BLOCK + threadIdx.x;
    const bool with_potentials = *potentials_wanted;
    double own[4] = {0, 0, 0, 0};
    if (k < n) {
        const int i = atom_index[k];
        const Result found = result_of(
            i, results_of_parts(n, located, fraction, place, far, near, parameters, start, share));
        const real4 result = found.sum;
        const real q = charges[i];
        if (with_potentials) potentials[i] = result.x;
        if (forces && found.any) {
            atomicAdd(&force_buffer[k], fixed_point(q * result.y));
            atomicAdd(&force_buffer[k + padded], fixed_point(q * result.z));
            atomicAdd(&force_buffer[k + 2 * padded], fixed_point(q * result.w));
        }
        if (with_potentials) set_terms(own, q, found, parameters);
    }
    if (!with_potentials || !sum_over_grid<BLOCK>(own, partial, ticket)) return;
    own[3] /= parameters->potential * parameters->potential;
    for (int s = 0; s < 4; s++) sums[s] = own[s];
}
