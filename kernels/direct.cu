// direct: potentials and fields of charges in free space, by summation over all pairs:
//
//     Phi_i = sum_j q_j / r_ij      E_i = sum_j q_j (x_i - x_j) / r_ij^3
//
// over all j other than i and its exclusions.
//
//   split    coordinates as sums of two reals
//   direct   a thread owns a target; TILE sources at a time are in shared memory. If there are few
//            targets, several blocks share the sources
//   collect  sums over these blocks in a fixed order
//
// Bound by instruction issue: 23 instructions per pair in float32, 9 of them for differences that
// are accurate at any distance from the origin.
#include "common/free_space.cuh"

extern "C" __global__ void split(int n, const double* __restrict__ positions /* (n, 3) nm */,
                                 const double* __restrict__ charges /* (n) */,
                                 const int* __restrict__ order /* (n) or none */,
                                 real4* __restrict__ high /* (n) x, y, z, charge */,
                                 real4* __restrict__ low /* (n) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int from = order ? order[i] : i;
    const double x = positions[3 * from], y = positions[3 * from + 1], z = positions[3 * from + 2];
    const real4 rounded = {real(x), real(y), real(z), real(charges[from])};
    high[i] = rounded;
    low[i] = real4{real(x - rounded.x), real(y - rounded.y), real(z - rounded.z), 0};
}

extern "C" __global__ void __launch_bounds__(TILE, 4)
    direct(int n, const real4* __restrict__ high, const real4* __restrict__ low,
           const int* __restrict__ partner_start /* (n + 1) */,
           const int* __restrict__ partner /* the target itself and its exclusions, ascending */,
           Sum* __restrict__ partial /* (gridDim.y, n) */) {
    __shared__ real4 source_high[TILE], source_low[TILE];
    const int i = blockIdx.x * TILE + threadIdx.x, own = min(i, n - 1);
    const Charge target = {high[own], low[own]};
    const int tiles = (n + TILE - 1) / TILE;
    const int begin = tiles * blockIdx.y / gridDim.y, end = tiles * (blockIdx.y + 1) / gridDim.y;
    const int last = partner_start[own + 1];
    int next = partner_start[own];
    while (next < last && partner[next] < begin * TILE) next++;
    int excluded = next < last ? partner[next] : n;
    Sum total = {0, 0, 0, 0};
    for (int tile = begin; tile < end; tile++) {
        const int first = tile * TILE, count = min(TILE, n - first);
        __syncthreads();
        if (threadIdx.x < count) {
            source_high[threadIdx.x] = high[first + threadIdx.x];
            source_low[threadIdx.x] = low[first + threadIdx.x];
        }
        __syncthreads();
        Field sum = {0, 0, 0, 0};
        int k = 0;
        while (true) {
            const int stop = min(count, excluded - first);
#pragma unroll(sizeof(real) == 4 ? 8 : 4)
            for (; k < stop; k++) interact(target, source_high[k], source_low[k], sum);
            if (k == count) break;
            k++;
            excluded = ++next < last ? partner[next] : n;
        }
        total.add(sum);
    }
    if (i < n) partial[blockIdx.y * (long long)n + i] = total;
}

extern "C" __global__ void collect(
    int n, int shares, const Sum* __restrict__ partial /* (shares, n) */,
    const int* __restrict__ order /* (n) or none: index of each result */,
    double* __restrict__ potentials /* (n) */, double* __restrict__ fields /* (n, 3) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Sum sum = {0, 0, 0, 0};
    for (int s = 0; s < shares; s++) sum.add(partial[s * (long long)n + i]);
    const int to = order ? order[i] : i;
    potentials[to] = sum.phi;
    fields[3 * to] = sum.x;
    fields[3 * to + 1] = sum.y;
    fields[3 * to + 2] = sum.z;
}
