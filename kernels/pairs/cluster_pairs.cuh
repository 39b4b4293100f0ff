// Interactions of a cluster, whose sites are in registers, with the entries of its list.
#pragma once
#include "common/fixed_point.cuh"
#include "pair.cuh"
#include "prefetch.cuh"
#include "sites.cuh"

#if LIMITED
#define CUTOFF_SQUARED real(double(CUTOFF) * double(CUTOFF))
#endif

// Adds to OpenMM's force on the particle in a slot.
__device__ __forceinline__ void add_force(uint64* __restrict__ force, int padded, int slot,
                                          uint64 x, uint64 y, uint64 z) {
    atomicAdd(&force[slot], x);
    atomicAdd(&force[slot + padded], y);
    atomicAdd(&force[slot + 2 * padded], z);
}

struct Cluster {
    real x[CLUSTER], y[CLUSTER], z[CLUSTER], fx[CLUSTER], fy[CLUSTER], fz[CLUSTER];
    int table_row[CLUSTER];  // row of the table of coefficients
    double energy;
};

// Adds atomically to the force on an entry, in float.
__device__ __forceinline__ void add_reaction(float4* reaction, real x, real y, real z) {
    if (x == 0 && y == 0 && z == 0) return;  // beyond the cutoff of all sites of the cluster
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(reaction), "f"(float(x)),
                 "f"(float(y)), "f"(float(z)), "f"(0.0f)
                 : "memory");
#else
    atomicAdd(&reaction->x, float(x));
    atomicAdd(&reaction->y, float(y));
    atomicAdd(&reaction->z, float(z));
#endif
}

// Interaction of one entry with all sites of the cluster but those in the mask.
template <bool FORCES, bool ENERGY, bool MASKED, bool IMAGED>
__device__ __forceinline__ void interact(Cluster& c, unsigned entry, real4 x, unsigned mask,
                                         const real4* translations, const Table& table,
                                         float4* reaction) {
    if (IMAGED) {
        const real4 shift = translations[entry >> SITE_BITS];
        x.x += shift.x;
        x.y += shift.y;
        x.z += shift.z;
    }
    real energy = 0, gx = 0, gy = 0, gz = 0;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) {
        const real dx = c.x[m] - x.x, dy = c.y[m] - x.y, dz = c.z[m] - x.z,
                   r2 = dx * dx + dy * dy + dz * dz;
        bool included = !MASKED || !(mask >> m & 1);
#if LIMITED
        // false for NaN
        if (ENERGY || MASKED || !ZERO_BEYOND_CUTOFF) included = included && r2 < CUTOFF_SQUARED;
#endif
        const Pair pair = pair_at<ENERGY>(r2, table.coefficients(c.table_row[m], type_of(x.w)));
        if (FORCES) {
            const real f = included ? pair.force_over_r : 0;
            c.fx[m] += f * dx;
            c.fy[m] += f * dy;
            c.fz[m] += f * dz;
            if (HALF) {
                gx -= f * dx;
                gy -= f * dy;
                gz -= f * dz;
            }
        }
        if (ENERGY) energy += included ? pair.energy : 0;
    }
    if (ENERGY) c.energy += energy;
    if (FORCES && HALF) add_reaction(reaction + site_of(entry), gx, gy, gz);
}

#if LIMITED

// `steps` times two entries of a lane, beginning with *entry. Loads overlap with the computation of
// pairs: positions are loaded one step prefetch, entries two.
template <bool FORCES, bool ENERGY, bool IMAGED>
__device__ __forceinline__ void interact_with_entries(Cluster& c, const unsigned* entry, int steps,
                                                      const real4* __restrict__ position,
                                                      const real4* translations, const Table& table,
                                                      float4* reaction) {
    if (steps == 0) return;
    const unsigned *last = entry + (steps - 1) * 2 * PAIR_LANES,
                   *next = steps > 1 ? entry + 2 * PAIR_LANES : last;
    unsigned entry1 = load_now(entry), entry2 = load_now(entry + PAIR_LANES);
    unsigned next1 = load_now(next), next2 = load_now(next + PAIR_LANES);
    real4 x1 = load_now(position + site_of(entry1)), x2 = load_now(position + site_of(entry2));
    for (int k = 0; k < steps; k++) {
        next = next < last ? next + 2 * PAIR_LANES : last;
        const unsigned after1 = load_now(next), after2 = load_now(next + PAIR_LANES);
        const real4 y1 = load_now(position + site_of(next1)),
                    y2 = load_now(position + site_of(next2));
        interact<FORCES, ENERGY, false, IMAGED>(c, entry1, x1, 0, translations, table, reaction);
        interact<FORCES, ENERGY, false, IMAGED>(c, entry2, x2, 0, translations, table, reaction);
        entry1 = next1;
        entry2 = next2;
        next1 = after1;
        next2 = after2;
        x1 = y1;
        x2 = y2;
    }
}

// A lane's share of a cluster's list: entries without masks, then those with masks.
template <bool FORCES, bool ENERGY, bool IMAGED>
__device__ __forceinline__ void interact_with_list(Cluster& c, int lane, const Length& length,
                                                   const unsigned* entry, const uint2* masked,
                                                   const real4* __restrict__ position,
                                                   const real4* translations, const Table& table,
                                                   float4* reaction) {
    interact_with_entries<FORCES, ENERGY, IMAGED>(c, entry + lane,
                                                  length.entries / (2 * PAIR_LANES), position,
                                                  translations, table, reaction);
    for (int k = lane; k < length.masked; k += PAIR_LANES) {
        const uint2 next = masked[k];
        interact<FORCES, ENERGY, true, IMAGED>(c, next.x, position[site_of(next.x)], next.y,
                                               translations, table, reaction);
    }
}

#endif
