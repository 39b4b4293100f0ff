// Sites: the particles with a Lennard-Jones interaction. What their neighbour list and their pairs
// share. Lengths are in nm.
//
// CLUSTER sites that follow each other in a row of cells are a cluster. Its list holds single
// sites, each with the periodic image that is near: all of them, so that every pair comes up twice
// and each cluster adds forces to its own sites only; or, with HALF, those that come after it, so
// that every pair comes up once and both its sites get their forces.
//
// Macros besides REAL:
//   POSQ           type of OpenMM's positions
//   ENERGY_TYPE    of its energies
//   LIMITED        whether there is a cutoff, CUTOFF
//   SWITCHED       whether the interaction is switched off from SWITCHING on
//   PERIODIC       whether there are periodic images
//   PARTNERS       whether some pairs of sites are excluded
//   TYPES          of sites, at most
//   PAIR_LANES     lanes that share a cluster: 16 or 32
//   HALF           whether a list holds every pair once
//   LIST_BLOCKS    blocks a multiprocessor that sort sites, at most
//   DETERMINISTIC  whether the order of sums may not depend on which thread comes first
#pragma once
#include "common/real.cuh"

typedef unsigned long long uint64;

#define CLUSTER 4
#define ALL ((1u << CLUSTER) - 1)  // sites of a cluster, as a mask

// of an entry of a list: the site's place among the sorted ones, and above it the image
#define SITE_BITS 25
#define SITE_MASK ((1 << SITE_BITS) - 1)

#define TRANSLATIONS 75  // translations by -1 to 1 cells along c, -2 to 2 along b and along a
#define NO_TRANSLATION (25 + 2 * 5 + 2)  // the place among these of the cell itself

struct __align__(16) Posq {
    POSQ x, y, z, charge;
};

// By how many cell vectors a site has left the cell, and where OpenMM's arrays hold it; slot -1
// fills up a row.
struct __align__(16) Home {
    int a, b, c, slot;
};

// The periodic cell and what the list needs; set by the host. Edges of the cell are rows of a lower
// triangular matrix.
struct Cell {
    double vectors[9];
    double radius;  // of the list: cutoff, buffer, and what rounding may add
    double limit;   // square of the displacement of a site up to which the list holds
};

// What is left from one evaluation to the next; the host reads it now and then.
struct State {
    int built;    // whether the list holds
    int sorted;   // sites in rows, filled up to whole clusters
    int builds;   // lists made so far
    int entries;  // longest list of a cluster so far, and most of it that is masked
    int masked;
    int too_long;  // whether there was too little room for one
    int strayed;   // whether a site was further away than in a cell beside this one when the last
                   // list was made
    unsigned arrived;  // blocks at a barrier
};

// How many entries a cluster has, and how many with masks: those which there would be, also where
// there is less room. The first are filled up with a site that is far from all.
struct __align__(16) Length {
    int entries, masked;
    int imaged;  // whether some entry has an image
    int build;   // the list's number, of State::builds, that they belong to
};

// The number of an image, 0 for the cell itself.
__device__ __forceinline__ int image_number(int a, int b, int c) {
    const int number = (c + 1) * 25 + (b + 2) * 5 + a + 2;
    return number == NO_TRANSLATION ? 0 : (number < NO_TRANSLATION ? number + 1 : number);
}

// Whether an image comes after the cell: one of every two that are opposite.
__device__ __forceinline__ bool is_forward(unsigned number) {
    return number > NO_TRANSLATION;
}

// The site of an entry of a list.
__device__ __forceinline__ int site_of(unsigned entry) {
    return PERIODIC ? entry & SITE_MASK : entry;
}

// The translation of an image.
__device__ __forceinline__ real4 translation(int number, const Cell* __restrict__ cell) {
    const int plain =
        number == 0 ? NO_TRANSLATION : (number <= NO_TRANSLATION ? number - 1 : number);
    const int c = plain / 25 - 1, b = plain / 5 % 5 - 2, a = plain % 5 - 2;
    const double* v = cell->vectors;
    return real4{real(a * v[0] + b * v[3] + c * v[6]), real(b * v[4] + c * v[7]), real(c * v[8]),
                 0};
}

// The type of a site is kept beside its coordinates.
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

// What a site excludes, by the numbers of sites: bit k stands for site lowest + k. Where these are
// too far apart, the bits are the places among all partners where its own begin and end.
struct __align__(16) Partners {
    int lowest;
    unsigned range;  // from the lowest to the highest
    uint64 bits;
};

struct Exclusions {
    const Partners* __restrict__ of;  // (sites)
    const int* __restrict__ partner;  // of all sites, one after the other, ascending
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

// What the sites of a cluster exclude.
struct ClusterPartners {
    Partners of[CLUSTER];
};

// Of sites by number, -1: none.
__device__ __forceinline__ ClusterPartners partners_of(const int* site,
                                                       const Exclusions& excluded) {
    ClusterPartners found;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++)
        found.of[m] = site[m] < 0 ? Partners{0, 0, 0} : excluded.of[site[m]];
    return found;
}

// Whether a site with such partners excludes another.
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

// A bit for every site of the cluster that excludes a site.
__device__ __forceinline__ unsigned mask_of(int site, const ClusterPartners& cluster,
                                            const Exclusions& excluded) {
    unsigned mask = 0;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++)
        mask |= unsigned(excludes(cluster.of[m], site, excluded.partner)) << m;
    return mask;
}
