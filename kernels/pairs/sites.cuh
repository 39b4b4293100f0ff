// Sites, the particles with a Lennard-Jones interaction: types shared by the kernels of the
// neighbour list and of the pairs. Lengths are in nm.
//
// A cluster is CLUSTER consecutive sites in a row of cells. Its list holds single sites, each with
// the number of its periodic image in the range of the list. A full list holds all neighbours:
// every pair occurs twice, and a cluster adds forces to its own sites only. With HALF, a list holds
// the neighbours that are sorted after the cluster: every pair occurs once, and both of its sites
// receive forces.
//
// Macros besides REAL:
//   POSQ           type of OpenMM's positions
//   ENERGY_TYPE    type of OpenMM's energy buffer
//   LIMITED        whether there is a cutoff, CUTOFF
//   SWITCHED       whether a switching function applies from SWITCHING to CUTOFF
//   PERIODIC       whether there are periodic images
//   PARTNERS       whether any pairs of sites are excluded
//   TYPES          maximum number of site types
//   PAIR_LANES     lanes per cluster: 16 or 32
//   HALF           whether a list holds every pair once
//   SEARCHED       whether a kernel of its own builds the lists, before the pairs are computed
//   LIST_BLOCKS    maximum blocks per multiprocessor of list_sites
//   DETERMINISTIC  whether the order of summation must not depend on the scheduling of threads
//   HAS_SHARE      whether several devices share the pairs: each sorts all sites and computes the
//                  lists of some rows. The rows then have the same order on all devices
#pragma once
#include "common/real.cuh"

typedef unsigned long long uint64;

#define CLUSTER 4
#define ALL_SITES ((1u << CLUSTER) - 1)  // mask of all sites of a cluster

// an entry of a list: the index of the sorted site in the low bits, the image number above
#define SITE_BITS 25
#define SITE_MASK ((1 << SITE_BITS) - 1)

#define TRANSLATIONS 75                  // -1 to 1 cells along c, -2 to 2 cells along b and along a
#define NO_TRANSLATION (25 + 2 * 5 + 2)  // index of the zero translation among them

struct __align__(16) Posq {
    POSQ x, y, z, charge;
};

// The numbers of cell vectors from the cell to a site, and the site's index in OpenMM's arrays.
// Slot -1 marks padding of a row.
struct __align__(16) Home {
    int a, b, c, slot;
};

// The periodic cell and the list's parameters, set by the host. Cell vectors are the rows of a
// lower triangular matrix.
struct Cell {
    double vectors[9];
    double radius;  // of the list: cutoff, buffer and a margin for rounding
    double limit;   // squared displacement of a site up to which the list is valid
};

// The state that persists between evaluations; the host reads it occasionally.
struct State {
    int built;    // whether the list is valid
    int sorted;   // sites in rows, padded to whole clusters
    int builds;   // number of lists built so far
    int entries;  // most entries without a mask in a cluster's list so far, and most with one
    int masked;
    int too_long;      // whether a list exceeded its capacity
    int strayed;       // whether a site was beyond the adjacent cells when the last list was built
    unsigned arrived;  // counter of the grid barrier
};

// Numbers of a cluster's entries without and with masks, counted beyond the capacity too. Entries
// without masks are padded with a site that is far from all others.
struct __align__(16) Length {
    int entries, masked;
    int imaged;  // whether any entry is a periodic image
    int build;   // value of State::builds when the list was built
};

// Number of an image; 0 for the cell itself.
__device__ __forceinline__ int image_number(int a, int b, int c) {
    const int number = (c + 1) * 25 + (b + 2) * 5 + a + 2;
    return number == NO_TRANSLATION ? 0 : (number < NO_TRANSLATION ? number + 1 : number);
}

// Whether an image follows the cell in order; true for one of every two opposite images.
__device__ __forceinline__ bool is_forward(unsigned number) {
    return number > NO_TRANSLATION;
}

// Index of the sorted site of a list entry.
__device__ __forceinline__ int site_of(unsigned entry) {
    return PERIODIC ? entry & SITE_MASK : entry;
}

// Translation vector of an image.
__device__ __forceinline__ real4 translation(int number, const Cell* __restrict__ cell) {
    const int plain =
        number == 0 ? NO_TRANSLATION : (number <= NO_TRANSLATION ? number - 1 : number);
    const int c = plain / 25 - 1, b = plain / 5 % 5 - 2, a = plain % 5 - 2;
    const double* v = cell->vectors;
    return real4{real(a * v[0] + b * v[3] + c * v[6]), real(b * v[4] + c * v[7]), real(c * v[8]),
                 0};
}

// The type of a site, stored in the fourth component of its coordinates.
__device__ __forceinline__ float with_type(int type, float) {
    return __uint_as_float(unsigned(type));
}
__device__ __forceinline__ double with_type(int type, double) {
    return type;
}
__device__ __forceinline__ int type_of(float w) {
    return int(__float_as_uint(w));
}
__device__ __forceinline__ int type_of(double w) {
    return int(w);
}

// The sites that a site excludes. Bit k stands for site number lowest + k. If their range exceeds
// 64, `bits` holds instead the begin and end of the site's partners in Exclusions::partner.
struct __align__(16) Partners {
    int lowest;
    unsigned range;  // highest minus lowest
    uint64 bits;
};

struct Exclusions {
    const Partners* __restrict__ by_site;  // (sites)
    const int* __restrict__ partner;       // of all sites, concatenated; ascending for each site
};

__device__ __forceinline__ Partners partners_of(int site, const int* __restrict__ start,
                                                const int* __restrict__ partner) {
    Partners found = {0, 0, 0};
    const int first = start[site], last = start[site + 1];
    if (first == last) return found;
    found.lowest = partner[first];
    found.range = partner[last - 1] - found.lowest;
    if (found.range < 64)
        for (int k = first; k < last; k++) found.bits |= uint64(1) << (partner[k] - found.lowest);
    else
        found.bits = uint64(last) << 32 | unsigned(first);
    return found;
}

// The exclusions of the sites of a cluster.
struct ClusterPartners {
    Partners by_member[CLUSTER];
};

// From the numbers of the cluster's sites; -1: no site.
__device__ __forceinline__ ClusterPartners partners_of(const int* site,
                                                       const Exclusions& excluded) {
    ClusterPartners found;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++)
        found.by_member[m] = site[m] < 0 ? Partners{0, 0, 0} : excluded.by_site[site[m]];
    return found;
}

// Whether `other` is among a site's partners.
__device__ __forceinline__ bool excludes(const Partners& partners, int other,
                                         const int* __restrict__ partner) {
    const unsigned bit = other - partners.lowest;
    if (bit > partners.range) return false;
    if (partners.range < 64) return partners.bits >> bit & 1;
    bool found = false;
#pragma unroll 1
    for (int k = int(partners.bits), last = int(partners.bits >> 32); k < last; k++)
        found |= partner[k] == other;
    return found;
}

// A set bit for every site of the cluster that excludes `site`.
__device__ __forceinline__ unsigned mask_of(int site, const ClusterPartners& cluster,
                                            const Exclusions& excluded) {
    unsigned mask = 0;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++)
        mask |= unsigned(excludes(cluster.by_member[m], site, excluded.partner)) << m;
    return mask;
}
