// sort: particles to parts, listed by box.
//
//   locate         a thread a particle: home box, coordinates in it, sides on which it is split;
//                  its parts, numbered 8 * particle + corner, go into their boxes' lists as they
//                  arrive, and are counted
//   locate_inside  the same where boxes cover the particles only (OPEN): a molecule goes by cell
//                  vectors to where the boxes are, as gathered() in fmm_openmm/region.py moves it;
//                  tells if a particle has no box
//   survey         a warp a region: counts the parts of REGION boxes together, if boxes are too
//                  many for p2m to add up
//
// p2m puts each box's parts in order of their numbers. Bound by memory latency: positions, then an
// atomic whose answer is needed, one for all parts of a warp that go into the same box.
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
    const int* __restrict__ leaders /* (n): with which particle each one moves */,
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
