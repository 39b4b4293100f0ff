// p2m: the parts of each box in order of their numbers, and the moments M_a = sum Q R_a(x) of the box.
//
// GROUP lanes own a box, a block has GROUPS of them. A lane evaluates the harmonics of one part at a time in
// registers, the group adds each term up by shuffles and keeps the sums in shared memory. Moments go straight into the
// arrays of the FFT. Bound by instruction issue in dense systems, by latency in small ones.
#include "common/harmonics.cuh"
#include "common/parts.cuh"

#define GROUP 8

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP)
p2m(const int* __restrict__ start /* (BOXES + 1) */, const int* __restrict__ number /* (parts), any order in a box */,
    const Located* __restrict__ located, const real4* __restrict__ fraction, const real* __restrict__ charges /* (n) */,
    const int* __restrict__ slot /* (BOXES) */, const Parameters* __restrict__ parameters,
    int* __restrict__ sorted /* (parts) */, int* __restrict__ place /* (n, CORNERS): inverse of sorted */,
    real4* xq /* (parts): x, y, z, charge */,
    real* __restrict__ moments /* (TERMS, BOXES) in FFT order */, double* __restrict__ square /* (BOXES): sum Q |x|^2 */) {
    __shared__ real sum[GROUPS][TERMS + 1];
    const int group = threadIdx.x / GROUP, lane = threadIdx.x % GROUP;
    const int box = blockIdx.x * GROUPS + group;
    const int first = box < BOXES ? start[box] : 0, last = box < BOXES ? start[box + 1] : 0;

    for (int k = first + lane; k < last; k += GROUP) {
        const int mine = number[k];
        int rank = first;
        for (int j = first; j < last; j++) rank += number[j] < mine;
        const int i = mine >> 3, corner = mine & 7;
        const Part part = part_of(located[i], fraction[i], corner, parameters);
        sorted[rank] = mine;
        place[i * CORNERS + corner] = rank;
        xq[rank] = real4{part.x, part.y, part.z, charges[i] * part.weight};
    }
    __syncwarp();

    for (int a = lane; a < TERMS; a += GROUP) sum[group][a] = 0;
    double second = 0;
    for (int k = first + lane; __any_sync(FULL, k < last); k += GROUP) {
        real4 part = {0, 0, 0, 0};
        if (k < last) part = xq[k];
        second += double(part.w) * double(part.x * part.x + part.y * part.y + part.z * part.z);
        regular_harmonics<ORDER>(part.x, part.y, part.z, [&](int a, real r) {
            real v = part.w * r;
#pragma unroll
            for (int d = GROUP / 2; d > 0; d /= 2) v += __shfl_xor_sync(FULL, v, d);
            if (lane == a % GROUP) sum[group][a] += v;
        });
    }
#pragma unroll
    for (int d = GROUP / 2; d > 0; d /= 2) second += __shfl_xor_sync(FULL, second, d);
    if (box >= BOXES) return;
    if (lane == 0) square[box] = second;
    const int to = slot[box];
    for (int a = lane; a < TERMS; a += GROUP) moments[a * (long long)BOXES + to] = sum[group][a];
}
