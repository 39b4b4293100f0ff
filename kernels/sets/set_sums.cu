// set_sums: the beginning of an evaluation of several sets of charges, and sums over particles of
// charges times potentials, in float64 and in a fixed order.
//
//   set_charges    charges of SETS sets, and the positions of the particles
//   set_groups     charges of SETS groups of particles: in each set those of the others are 0; and
//                  the positions
//   sum_products   1/2 sum_i (q_s,i phi_t,i + q_t,i phi_s,i). A block for SLICE particles and s, t
//   sum_groups     1/2 sum over a group of q_i phi_s,i. A block per group and set s
//
// The first two take a thread per charge. They read positions where they are, in the caller's type,
// unless both addresses are null: then the positions have not changed. Bound by memory.
#include "common/charge_sets.cuh"
#include "common/grid_sums.cuh"

#define BLOCK 512
#define SLICE (8 * BLOCK)

// Copies the coordinates that are a thread's share, with SETS threads for each particle.
__device__ __forceinline__ void copy_positions(long long thread, long long n,
                                               const float* __restrict__ single_positions,
                                               const double* __restrict__ double_positions,
                                               double* __restrict__ positions) {
    if (!single_positions && !double_positions) return;
    for (long long k = thread; k < 3 * n; k += SETS * n)
        positions[k] = single_positions ? double(single_positions[k]) : double_positions[k];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    set_charges(int n, const float* __restrict__ single_positions /* (n, 3) nm, or null */,
                const double* __restrict__ double_positions /* (n, 3) nm, or null */,
                double* __restrict__ positions /* (n, 3) nm */,
                real* __restrict__ sets /* (n, SETS) */, int first, int count,
                const double* __restrict__ charges /* (K, n) */) {
    const long long k = blockIdx.x * (long long)BLOCK + threadIdx.x, i = k / SETS;
    const int set = k % SETS;
    if (i >= n) return;
    copy_positions(k, n, single_positions, double_positions, positions);
    sets[k] = set < count ? real(charges[(first + set) * (long long)n + i]) : real(0);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    set_groups(int n, const float* __restrict__ single_positions,
               const double* __restrict__ double_positions, double* __restrict__ positions,
               real* __restrict__ sets, int first, const real* __restrict__ charges /* (n) */,
               const int* __restrict__ group /* (n) */) {
    const long long k = blockIdx.x * (long long)BLOCK + threadIdx.x, i = k / SETS;
    if (i >= n) return;
    copy_positions(k, n, single_positions, double_positions, positions);
    sets[k] = group[i] == first + k % SETS ? charges[i] : real(0);
}

// Blocks beyond the diagonal have nothing to do: the products are symmetric.
extern "C" __global__ void __launch_bounds__(BLOCK)
    sum_products(int n, const double* __restrict__ charges /* (K, n) */,
                 const real* __restrict__ potentials /* (K, n) */,
                 double* partial /* (K, K, slices) */, int* tickets /* (K, K), zeroed */,
                 double* __restrict__ products /* (K, K) */) {
    const long long K = gridDim.y, s = blockIdx.y * (long long)n, t = blockIdx.z * (long long)n;
    const long long pair = blockIdx.z * K + blockIdx.y;
    if (s > t) return;
    const int begin = blockIdx.x * SLICE;
    double sum[1] = {0};
#pragma unroll
    for (int k = 0; k < SLICE; k += BLOCK) {
        const int own = begin + k + threadIdx.x, i = min(own, n - 1);
        const double st = charges[s + i] * double(potentials[t + i]),
                     ts = charges[t + i] * double(potentials[s + i]);
        sum[0] += own < n ? st + ts : 0;  // a branch would delay the loads
    }
    if (!sum_over_grid<BLOCK>(sum, partial + pair * gridDim.x, tickets + pair)) return;
    tickets[pair] = 0;  // for the next launch
    products[pair] = products[blockIdx.y * K + blockIdx.z] = sum[0] / 2;
}

// An uncharged particle, whose potential may be undefined, contributes nothing.
extern "C" __global__ void __launch_bounds__(BLOCK)
    sum_groups(int n, const real* __restrict__ charges /* (n) */,
               const real* __restrict__ potentials /* (SETS, n) */,
               const int* __restrict__ begin /* (groups + 1) */,
               const int* __restrict__ members /* (n): particles by group */,
               double* __restrict__ energies /* (SETS, groups) */) {
    const real* const phi = potentials + blockIdx.y * (long long)n;
    double sum[1] = {0};
#pragma unroll 4
    for (int k = begin[blockIdx.x] + threadIdx.x; k < begin[blockIdx.x + 1]; k += BLOCK) {
        const double q = charges[members[k]], product = q * double(phi[members[k]]);
        sum[0] += q != 0 ? product : 0;  // a branch would delay the load
    }
    sum_over_block<BLOCK>(sum);
    if (threadIdx.x == 0) energies[blockIdx.y * gridDim.x + blockIdx.x] = sum[0] / 2;
}
