// sort: splits the particles into parts and lists the parts of each box.
//
//   locate         home box of a particle, its coordinates in the box and the sides on which it is
//                  split. Its parts, numbered 8 * particle + corner, are counted and appended to
//                  the lists of their boxes in order of arrival. A thread per particle
//   locate_inside  the same if boxes cover only the particles: every molecule is first moved by
//                  cell vectors to the image that lies in the boxes; sets a flag if a particle is
//                  outside all boxes
//   survey         counts the parts of REGION boxes together if there are too many boxes for p2m to
//                  sum. A warp per region
//
// p2m sorts the parts of each box by number. The kernels are bound by memory latency: the loads of
// positions, then an atomic that returns a value, one for all parts of a warp in the same box.
#include "common/types.cuh"
#include "common/parts.cuh"

extern "C" __global__ void locate(int n, const POSITION* __restrict__ positions /* (n, 3) nm */,
                                  const real* __restrict__ charges /* (n) */,
                                  const Parameters* __restrict__ parameters,
                                  Located* __restrict__ located,
                                  real4* __restrict__ fraction /* (n): u, charge */,
                                  int* __restrict__ count /* (BOXES), zeroed */,
                                  int* __restrict__ arrived /* (BOXES, LISTED) */,
                                  int* __restrict__ next /* (CORNERS, n) */) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const Lists lists = {n, count, arrived, next};
    place_particle(
        i, in_boxes(positions[3 * i], positions[3 * i + 1], positions[3 * i + 2], parameters),
        charges[i], located, fraction, lists);
}

extern "C" __global__ void locate_inside(
    int n, const POSITION* __restrict__ positions /* (n, 3) nm */,
    const int* __restrict__ leaders /* (n): particle whose image each one follows */,
    const real* __restrict__ charges /* (n) */, const Parameters* __restrict__ parameters,
    Located* __restrict__ located, real4* __restrict__ fraction, int* __restrict__ count,
    int* __restrict__ arrived, int* __restrict__ next, int* outside /* (1), zeroed */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double3 s = in_boxes(positions[3 * i], positions[3 * i + 1], positions[3 * i + 2], parameters);
#if IMAGES
    const int leader = 3 * leaders[i];
    const double3 from =
        in_boxes(positions[leader], positions[leader + 1], positions[leader + 2], parameters);
    const double* cell = parameters->cell;
    const double z = floor((from.z - 0.5 * N2) / cell[8] + 0.5);
    const double y = floor((from.y - z * cell[7] - 0.5 * N1) / cell[4] + 0.5);
    const double x = floor((from.x - z * cell[6] - y * cell[3] - 0.5 * N0) / cell[0] + 0.5);
    s.x -= x * cell[0] + y * cell[3] + z * cell[6];
    s.y -= y * cell[4] + z * cell[7];
    s.z -= z * cell[8];
#endif
    const Lists lists = {n, count, arrived, next};
    if (!place_particle(i, s, charges[i], located, fraction, lists)) *outside = 1;
}

extern "C" __global__ void survey(const int* __restrict__ count /* (BOXES) */,
                                  int* __restrict__ region_count /* (regions) */) {
    const int region = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int parts = 0;
    for (int b = region * REGION + threadIdx.x % 32; b < min(BOXES, (region + 1) * REGION); b += 32)
        parts += count[b];
#pragma unroll
    for (int d = 16; d > 0; d /= 2) parts += __shfl_xor_sync(FULL, parts, d);
    if (threadIdx.x % 32 == 0 && region * REGION < BOXES) region_count[region] = parts;
}
