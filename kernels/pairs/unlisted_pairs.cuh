// Pairs without a neighbour list: there is no cutoff, or a list exceeds its capacity.
#pragma once
#include "cluster_pairs.cuh"

// The arrays for pairs that are computed without a list.
struct PairArrays {
    int sorted;
    const Home* __restrict__ home;
    const int* __restrict__ number;
    const real4* __restrict__ position;
    const Cell* __restrict__ cell;
    Exclusions excluded;
    Table table;
    uint64* __restrict__ force;
    int padded;
};

#if LIMITED

// Fallback for a site whose list exceeds its capacity: interactions with the nearest images of all
// other sites. Slow. Forces are summed as integers, because the order of sites in memory varies.
// Returns the energy.
template <bool FORCES, bool ENERGY>
__device__ __noinline__ real interact_without_list(int at, int lane, const PairArrays& arrays) {
    const real4 own = arrays.position[at];
    const int table_row = TYPES * type_of(own.w), slot = arrays.home[at].slot;
    real energy = 0;
    uint64 fx = 0, fy = 0, fz = 0;
    if (slot < 0) return 0;
#if PARTNERS
    const Partners partners = arrays.excluded.by_site[arrays.number[at]];
#endif
    for (int j = (HALF ? at + 1 : 0) + lane; j < arrays.sorted; j += PAIR_LANES) {
        if (j == at || arrays.home[j].slot < 0) continue;
        const real4 x = arrays.position[j];
        real dx = own.x - x.x, dy = own.y - x.y, dz = own.z - x.z;
#if PERIODIC
        const double* v = arrays.cell->vectors;
        const real c = rint(dz / real(v[8]));
        dz -= c * real(v[8]);
        dy -= c * real(v[7]);
        dx -= c * real(v[6]);
        const real b = rint(dy / real(v[4]));
        dy -= b * real(v[4]);
        dx -= b * real(v[3]);
        dx -= rint(dx / real(v[0])) * real(v[0]);
#endif
        const real r2 = dx * dx + dy * dy + dz * dz;
        if (!(r2 < CUTOFF_SQUARED)) continue;
#if PARTNERS
        if (excludes(partners, arrays.number[j], arrays.excluded.partner)) continue;
#endif
        const Pair pair = pair_at<ENERGY>(r2, arrays.table.coefficients(table_row, type_of(x.w)));
        if (FORCES) {
            const uint64 x = fixed_point(pair.force_over_r * dx),
                         y = fixed_point(pair.force_over_r * dy),
                         z = fixed_point(pair.force_over_r * dz);
            fx += x;
            fy += y;
            fz += z;
            if (HALF)
                add_force(arrays.force, arrays.padded, arrays.home[j].slot, 0 - x, 0 - y, 0 - z);
        }
        energy += pair.energy;
    }
    if (FORCES) add_force(arrays.force, arrays.padded, slot, fx, fy, fz);
    return energy;
}

#else

// Interactions of a cluster with all sites, without a cutoff.
template <bool FORCES, bool ENERGY>
__device__ __forceinline__ void interact_with_all(Cluster& c, int lane, int base, unsigned absent,
                                                  const PairArrays& arrays) {
#if PARTNERS
    int site[CLUSTER];
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) site[m] = absent >> m & 1 ? -1 : arrays.number[base + m];
    const ClusterPartners partners = partners_of(site, arrays.excluded);
#endif
    for (int j = lane; j < arrays.sorted; j += PAIR_LANES) {
        // padding is masked, because not every function vanishes at large distances
        unsigned mask = arrays.home[j].slot < 0 ? FULL : absent;
        if (unsigned(j - base) < CLUSTER) mask |= 1u << (j - base);
#if PARTNERS
        mask |= mask_of(arrays.number[j], partners, arrays.excluded);
#endif
        interact<FORCES, ENERGY, true, false>(c, j, arrays.position[j], mask, nullptr, arrays.table,
                                              nullptr);
    }
}

#endif
