// ranks: particles that many GPUs share. Each GPU owns a range of boxes. It receives copies of all
// particles with a part in a box that is near one of its own, and of the excluded partners of the
// particles with a part in one of its own.
//
//   mark_particles  box of each particle that this rank was given, the ranks in whose boxes it has
//                   parts, and those that need a copy. A thread per particle
//   mark_partners   the ranks that need a copy of a particle because they own an excluded partner.
//                   A thread per particle
//   place_copies    appends the parts of the copies to the lists of their boxes, and counts the
//                   excluded partners of those with a part in the rank's boxes. A thread per copy
//   list_partners   lists these partners, the particle itself first. A thread per copy
//   gather_copies   results of the copies from their parts in the rank's boxes. A thread per copy
//
// Sets of ranks are masks of 32 bits. A tag of a copy is twice the number of its particle among
// all, plus 1 if it has a part in the boxes of the rank that has the copy. Bound by memory latency.
#include "common/part_results.cuh"

// Ranks of a box.
struct BoxRanks {
    unsigned owner, near;  // the one that owns it, and those that own boxes near it
};

extern "C" __global__ void mark_particles(
    int n, const POSITION* __restrict__ positions /* (n, 3) */,
    const real* __restrict__ charges /* (n) */, const Parameters* __restrict__ parameters,
    const BoxRanks* __restrict__ ranks /* (BOXES) */, Located* __restrict__ located /* (n) */,
    real4* __restrict__ fraction /* (n): u, charge */, unsigned* __restrict__ owners /* (n) */,
    unsigned* __restrict__ wanted /* (n) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Located at;
    locate_particle(
        i, in_boxes(positions[3 * i], positions[3 * i + 1], positions[3 * i + 2], parameters),
        charges[i], located, fraction, at);
    unsigned own = 0, near = 0;
    for_each_corner(at, [&](int corner) {
        const BoxRanks box = ranks[box_of(at, corner)];
        own |= box.owner;
        near |= box.near;
    });
    owners[i] = own;
    wanted[i] = near;
}

extern "C" __global__ void mark_partners(int n, int first /* number of particle 0 among all */,
                                         const int* __restrict__ excluded_start /* (all + 1) */,
                                         const int* __restrict__ excluded /* numbers among all */,
                                         const unsigned* __restrict__ owners /* (all) */,
                                         unsigned* __restrict__ wanted /* (n) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned ranks = wanted[i];
    for (int k = excluded_start[first + i]; k < excluded_start[first + i + 1]; k++)
        ranks |= owners[excluded[k]];
    wanted[i] = ranks;
}

extern "C" __global__ void place_copies(
    int n /* at most */, const int* __restrict__ copies /* (1) */,
    const int* __restrict__ tag /* (n) */, const Located* __restrict__ located /* (n) */,
    const int* __restrict__ excluded_start /* (all + 1) */,
    int* __restrict__ copy_of /* (all): copy of each particle that has one */,
    int* __restrict__ partners /* (n): number, the particle included, of copies of its boxes */,
    int* __restrict__ count /* (BOXES), zeroed */, int* __restrict__ arrived /* (BOXES, LISTED) */,
    int* __restrict__ next /* (CORNERS, n) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= *copies) return;
    const int particle = tag[i] >> 1;
    copy_of[particle] = i;
    partners[i] = tag[i] & 1 ? 1 + excluded_start[particle + 1] - excluded_start[particle] : 0;
    append_parts(i, located[i], {n, count, arrived, next});
}

extern "C" __global__ void list_partners(const int* __restrict__ copies /* (1) */,
                                         const int* __restrict__ tag,
                                         const int* __restrict__ excluded_start,
                                         const int* __restrict__ excluded,
                                         const int* __restrict__ copy_of,
                                         const int* __restrict__ partner_start /* (n + 1) */,
                                         int* __restrict__ partner) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= *copies || !(tag[i] & 1)) return;
    const int first = excluded_start[tag[i] >> 1];
    const int begin = partner_start[i], end = partner_start[i + 1];
    partner[begin] = i;
    for (int k = begin + 1; k < end; k++) partner[k] = copy_of[excluded[first + k - begin - 1]];
}

extern "C" __global__ void gather_copies(
    int n /* at most */, const int* __restrict__ copies /* (1) */, const int* __restrict__ tag,
    const Located* __restrict__ located, const real4* __restrict__ fraction,
    const int* __restrict__ place, const real4* __restrict__ far, const real4* __restrict__ near,
    const Parameters* __restrict__ parameters, const int* __restrict__ start /* (BOXES + 1) */,
    const Share* __restrict__ share /* (1) */,
    real4* __restrict__ results /* (n): potential, field */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= *copies || !(tag[i] & 1)) return;
    results[i] = result_of(i, results_of_parts(n, located, fraction, place, far, near, parameters,
                                               start, share))
                     .sum;
}
