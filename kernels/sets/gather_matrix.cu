// gather_matrix: gather for sets of charges of which no results of particles are wanted, but the
// matrix
//
//     G_st = sum_i q_s,i phi_t,i
//
// alone. The near field is summed over the parts. The far field is summed over the wave vectors of
// the moments M and the local expansions L, so that no inverse transform is needed:
//
//     sum_boxes M L = sum_k Re conj(M(k)) L(k)
//
// The trace term (trace.cu) follows from charges Q, dipole moments D and second moments S:
//
//     Q_s sum_k c_k S_t,k + Q_t sum_k c_k S_s,k - 2 sum_k c_k D_s,k D_t,k
//
// Threads take terms of wave vectors, parts and boxes in turn, and sum all pairs of sets in
// float64. The last block to finish adds the partial sums of all blocks. Bound by reading the
// spectra.
#include "common/charge_sets.cuh"
#include "common/grid_sums.cuh"
#include "common/parameters.cuh"
#include "common/spectra.cuh"

#define BLOCK 256
#define PAIRS (SETS * (SETS + 1) / 2)  // s <= t
#define SUMS (PAIRS + SETS)            // pairs, then sum_k c_k S_k of each set
#define WAVES (D0 * D1 * HALF)

// Calls work(s, t, number) for the pairs s <= t in the order of their sums.
template <class Work>
__device__ __forceinline__ void for_each_pair(Work work) {
#pragma unroll
    for (int s = 0; s < SETS; s++)
#pragma unroll
        for (int t = s; t < SETS; t++) work(s, t, s * SETS - s * (s - 1) / 2 + t - s);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_matrix(int n, const int* __restrict__ start /* (BOXES + 1) */,
                  const real4* __restrict__ charges /* (QUADS, parts + 1) */,
                  const real* __restrict__ near /* (parts, SETS): potentials */,
                  const double* __restrict__ limit /* (1): of valid potentials, e per box width */,
                  const real2* __restrict__ moments /* (SETS, TERMS, D0, D1, HALF) */,
                  const real2* __restrict__ local /* likewise */,
                  const double* __restrict__ square /* (SETS, BOXES): sum_k c_k S_k */,
                  const double* __restrict__ background /* (3): c */,
                  const Parameters* __restrict__ parameters, double* partial /* (blocks, SUMS) */,
                  int* ticket /* (1), zeroed */,
                  double* __restrict__ matrix /* (SETS, SETS), kJ/mol */) {
    const int first = blockIdx.x * BLOCK + threadIdx.x, threads = gridDim.x * BLOCK;
    double sum[SUMS] = {};
    for (int k = first; k < TERMS * WAVES; k += threads) {
        real2 m[SETS], l[SETS];
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            m[set] = moments[set * (long long)(TERMS * WAVES) + k];
            l[set] = local[set * (long long)(TERMS * WAVES) + k];
        }
        const int k2 = k % HALF;
        const real weight = k2 == 0 || 2 * k2 == D2 ? 1 : 2;  // 2 if the opposite one is omitted
        for_each_pair([&](int s, int t, int pair) {
            sum[pair] += double(
                weight * (m[s].x * l[t].x + m[s].y * l[t].y + m[t].x * l[s].x + m[t].y * l[s].y));
        });
    }
    const long long stride = CORNERS * (long long)n + 1;
    const double valid = *limit;
    for (int k = first; k < start[BOXES]; k += threads) {
        const ChargeQuads q = charges_at(charges, stride, k);
        double phi[SETS];
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            phi[set] = near[k * (long long)SETS + set];
            if (!(fabs(phi[set]) <= valid)) phi[set] = nan("");
        }
        for_each_pair([&](int s, int t, int pair) {
            sum[pair] += double(q[s]) * phi[t] + double(q[t]) * phi[s];
        });
    }
    for (int box = first; box < BOXES; box += threads)
#pragma unroll
        for (int set = 0; set < SETS; set++) sum[PAIRS + set] += square[set * BOXES + box];
    if (!sum_over_grid<BLOCK>(sum, partial, ticket)) return;
    *ticket = 0;  // for the next launch
    // R_11 = (x + i y) / 2
    const double c[3] = {4 * background[0], 4 * background[1], background[2]};
    const int term[3] = {3, 1, 2};
    double total[SETS][4];
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        const real2* const own = moments + set * (long long)(TERMS * WAVES);
        total[set][3] = own[0].x;
#pragma unroll
        for (int axis = 0; axis < 3; axis++) total[set][axis] = own[term[axis] * WAVES].x;
    }
    for_each_pair([&](int s, int t, int pair) {
        double energy = sum[pair] / 2 + total[s][3] * sum[PAIRS + t] + total[t][3] * sum[PAIRS + s];
#pragma unroll
        for (int axis = 0; axis < 3; axis++)
            energy -= 2 * c[axis] * total[s][axis] * total[t][axis];
        matrix[s * SETS + t] = matrix[t * SETS + s] = energy * parameters->potential;
    });
}
