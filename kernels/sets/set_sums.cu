// set_sums: charges of several sets, and sums over particles of charges times potentials, in
// float64 and in a fixed order.
//
//   set_charges    charges of SETS sets. A thread per particle and set
//   set_groups     charges of SETS groups of particles: in each set those of the others are 0. A
//                  thread per particle and set
//   sum_products   1/2 sum_i (q_s,i phi_t,i + q_t,i phi_s,i). A block per s and t
//   sum_groups     1/2 sum over a group of q_i phi_s,i. A block per group and set s
//
// Bound by memory.
#include "common/charge_sets.cuh"

#define BLOCK 512

// The sum of the threads' values, in thread 0.
__device__ __forceinline__ double sum_over_block(double value) {
    __shared__ double partial[BLOCK];
    partial[threadIdx.x] = value;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    return partial[0];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    set_charges(int n, int first, int count, const double* __restrict__ charges /* (K, n) */,
                real* __restrict__ sets /* (n, SETS) */) {
    const long long k = blockIdx.x * (long long)BLOCK + threadIdx.x;
    const int i = k % n, set = k / n;
    if (set < SETS)
        sets[i * (long long)SETS + set] =
            set < count ? real(charges[(first + set) * (long long)n + i]) : real(0);
}

// Symmetric to the last bit.
extern "C" __global__ void __launch_bounds__(BLOCK)
    sum_products(int n, const double* __restrict__ charges /* (K, n) */,
                 const real* __restrict__ potentials /* (K, n) */,
                 double* __restrict__ products /* (K, K) */) {
    const long long s = blockIdx.x * (long long)n, t = blockIdx.y * (long long)n;
    double sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += BLOCK) {
        const double st = charges[s + i] * double(potentials[t + i]),
                     ts = charges[t + i] * double(potentials[s + i]);
        sum += __dadd_rn(st, ts);  // never contracted
    }
    sum = sum_over_block(sum);
    if (threadIdx.x == 0) products[blockIdx.y * gridDim.x + blockIdx.x] = sum / 2;
}

// An uncharged particle, whose potential may be undefined, contributes nothing.
extern "C" __global__ void __launch_bounds__(BLOCK)
    sum_groups(int n, const real* __restrict__ charges /* (n) */,
               const real* __restrict__ potentials /* (SETS, n) */,
               const int* __restrict__ begin /* (groups + 1) */,
               const int* __restrict__ members /* (n): particles by group */,
               double* __restrict__ energies /* (SETS, groups) */) {
    const real* const phi = potentials + blockIdx.y * (long long)n;
    double sum = 0;
#pragma unroll 4
    for (int k = begin[blockIdx.x] + threadIdx.x; k < begin[blockIdx.x + 1]; k += BLOCK) {
        const double q = charges[members[k]], product = q * double(phi[members[k]]);
        sum += q != 0 ? product : 0;  // a branch would delay the load
    }
    sum = sum_over_block(sum);
    if (threadIdx.x == 0) energies[blockIdx.y * gridDim.x + blockIdx.x] = sum / 2;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    set_groups(int n, int first, const real* __restrict__ charges /* (n) */,
               const int* __restrict__ group /* (n) */, real* __restrict__ sets /* (n, SETS) */) {
    const long long k = blockIdx.x * (long long)BLOCK + threadIdx.x;
    const int i = k / SETS, set = k % SETS;
    if (i < n) sets[k] = group[i] == first + set ? charges[i] : real(0);
}
