// lennard_jones_pairs: Lennard-Jones interaction of the sites within the cutoff (pair.cuh).
//
// PAIR_LANES lanes own a cluster, whose list they make if it is not of the latest sorting
// (search.cuh): each goes through every PAIR_LANES-th entry and lets it meet all sites of
// the cluster, which stay in registers. Forces on these are summed over the lanes and added to
// OpenMM's, and so are, where lists hold every pair once, forces on entries, after they were summed
// in memory as floats. Where a list is longer than there is room for, and where there is no cutoff,
// the lanes go through all sites: never is a pair missing;
// the host makes room when it comes to know.
//
//   lennard_jones_forces, lennard_jones_energy, lennard_jones_both   what is wanted
//   collect_reactions                                                adds the forces on entries
//
// Bound by instruction issue.
#include "ahead.cuh"
#include "common/fixed_point.cuh"
#include "pair.cuh"
#include "common/reduce.cuh"
#include "search.cuh"

#define THREADS 128
#define SHARED_TYPES 32  // up to so many types their table is kept in shared memory

#if LIMITED
#define SQUARE real(double(CUTOFF) * double(CUTOFF))
#endif

// Adds to OpenMM's force on a particle.
__device__ __forceinline__ void add_force(uint64* __restrict__ force, int padded, int slot,
                                          uint64 x, uint64 y, uint64 z) {
    atomicAdd(&force[slot], x);
    atomicAdd(&force[slot + padded], y);
    atomicAdd(&force[slot + 2 * padded], z);
}

struct Cluster {
    real x[CLUSTER], y[CLUSTER], z[CLUSTER], fx[CLUSTER], fy[CLUSTER], fz[CLUSTER];
    int row[CLUSTER];  // of the table
    double energy;
};

// Adds to the force on an entry, in float, whoever else does.
__device__ __forceinline__ void add_reaction(float4* reaction, real x, real y, real z) {
    if (x == 0 && y == 0 && z == 0) return;  // out of reach of all sites of the cluster
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

// A site with all sites of the cluster, less those of the mask.
template <bool FORCES, bool ENERGY, bool MASKED, bool IMAGED>
__device__ __forceinline__ void meet(Cluster& c, unsigned entry, real4 x, unsigned mask,
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
                   square = dx * dx + dy * dy + dz * dz;
        bool counts = !MASKED || !(mask >> m & 1);
#if LIMITED
        // not of one that is not a number
        if (ENERGY || MASKED || !FADES) counts = counts && square < SQUARE;
#endif
        const Pair pair = pair_at<ENERGY>(square, table.of(c.row[m], type_of(x.w)));
        if (FORCES) {
            const real f = counts ? pair.force : 0;
            c.fx[m] += f * dx;
            c.fy[m] += f * dy;
            c.fz[m] += f * dz;
            if (HALF) {
                gx -= f * dx;
                gy -= f * dy;
                gz -= f * dz;
            }
        }
        if (ENERGY) energy += counts ? pair.energy : 0;
    }
    if (ENERGY) c.energy += energy;
    if (FORCES && HALF) add_reaction(reaction + site_of(entry), gx, gy, gz);
}

#if LIMITED

// Entries two by two, `steps` times; `entry` is the lane's first. What comes next is fetched while
// pairs are computed: positions a step ahead, entries two.
template <bool FORCES, bool ENERGY, bool IMAGED>
__device__ __forceinline__ void meet_entries(Cluster& c, const unsigned* entry, int steps,
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
        meet<FORCES, ENERGY, false, IMAGED>(c, entry1, x1, 0, translations, table, reaction);
        meet<FORCES, ENERGY, false, IMAGED>(c, entry2, x2, 0, translations, table, reaction);
        entry1 = next1;
        entry2 = next2;
        next1 = after1;
        next2 = after2;
        x1 = y1;
        x2 = y2;
    }
}

template <bool FORCES, bool ENERGY, bool IMAGED>
__device__ __forceinline__ void meet_list(Cluster& c, int lane, const Length& length,
                                          const unsigned* entry, const uint2* masked,
                                          const real4* __restrict__ position,
                                          const real4* translations, const Table& table,
                                          float4* reaction) {
    meet_entries<FORCES, ENERGY, IMAGED>(c, entry + lane, length.entries / (2 * PAIR_LANES),
                                         position, translations, table, reaction);
    for (int k = lane; k < length.masked; k += PAIR_LANES) {
        const uint2 next = masked[k];
        meet<FORCES, ENERGY, true, IMAGED>(c, next.x, position[site_of(next.x)], next.y,
                                           translations, table, reaction);
    }
}

#endif

// What is needed where there is no list to go by.
struct All {
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

// A site of which the list is longer than there is room for, with the nearest image of every other;
// slow. Forces are summed as integers, since the order of sites in memory is another each time.
// Returns the energy.
template <bool FORCES, bool ENERGY>
__device__ __noinline__ real meet_without_list(int at, int lane, const All& all) {
    const real4 own = all.position[at];
    const int row = TYPES * type_of(own.w), slot = all.home[at].slot;
    real energy = 0;
    uint64 fx = 0, fy = 0, fz = 0;
    if (slot < 0) return 0;
#if PARTNERS
    const Partners partners = all.excluded.of[all.number[at]];
#endif
    for (int j = (HALF ? at + 1 : 0) + lane; j < all.sorted; j += PAIR_LANES) {
        if (j == at || all.home[j].slot < 0) continue;
        const real4 x = all.position[j];
        real dx = own.x - x.x, dy = own.y - x.y, dz = own.z - x.z;
#if PERIODIC
        const double* v = all.cell->vectors;
        const real c = rint(dz / real(v[8]));
        dz -= c * real(v[8]);
        dy -= c * real(v[7]);
        dx -= c * real(v[6]);
        const real b = rint(dy / real(v[4]));
        dy -= b * real(v[4]);
        dx -= b * real(v[3]);
        dx -= rint(dx / real(v[0])) * real(v[0]);
#endif
        const real square = dx * dx + dy * dy + dz * dz;
        if (!(square < SQUARE)) continue;
#if PARTNERS
        if (excludes(partners, all.number[j], all.excluded.partner)) continue;
#endif
        const Pair pair = pair_at<ENERGY>(square, all.table.of(row, type_of(x.w)));
        if (FORCES) {
            const uint64 x = fixed_point(pair.force * dx), y = fixed_point(pair.force * dy),
                         z = fixed_point(pair.force * dz);
            fx += x;
            fy += y;
            fz += z;
            if (HALF) add_force(all.force, all.padded, all.home[j].slot, 0 - x, 0 - y, 0 - z);
        }
        energy += pair.energy;
    }
    if (FORCES) add_force(all.force, all.padded, slot, fx, fy, fz);
    return energy;
}

#else

// A cluster with all sites.
template <bool FORCES, bool ENERGY>
__device__ __forceinline__ void meet_all(Cluster& c, int lane, int base, unsigned absent,
                                         const All& all) {
#if PARTNERS
    int site[CLUSTER];
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) site[m] = absent >> m & 1 ? -1 : all.number[base + m];
    const ClusterPartners partners = partners_of(site, all.excluded);
#endif
    for (int j = lane; j < all.sorted; j += PAIR_LANES) {
        // not every function vanishes far away
        unsigned mask = all.home[j].slot < 0 ? FULL : absent;
        if (unsigned(j - base) < CLUSTER) mask |= 1u << (j - base);
#if PARTNERS
        mask |= mask_of(all.number[j], partners, all.excluded);
#endif
        meet<FORCES, ENERGY, true, false>(c, j, all.position[j], mask, nullptr, all.table, nullptr);
    }
}

#endif

// The sum over the lanes of a cluster: lane 3 m + k holds component k of the force on site m.
__device__ __forceinline__ real sum_over_lanes(const Cluster& c, unsigned lane) {
    real values[16];
#pragma unroll
    for (int k = 0; k < 16; k++)
        values[k] = k >= 3 * CLUSTER
                        ? 0
                        : (k % 3 == 0 ? c.fx : (k % 3 == 1 ? c.fy : c.fz))[k / 3 % CLUSTER];
    const real sum = transposed_sum(values, lane);
    return PAIR_LANES == 16 ? sum : sum + __shfl_xor_sync(FULL, sum, 16);
}

template <bool FORCES, bool ENERGY>
__device__ __forceinline__ void all_pairs(const Sorted& s, const Lists& lists,
                                          const Grid* __restrict__ grid,
                                          const real2* __restrict__ pairs,
                                          const Cell* __restrict__ cell, const Exclusions& excluded,
                                          State* state, uint64* __restrict__ force, int padded,
                                          float4* reaction, ENERGY_TYPE* __restrict__ total,
                                          int totals) {
    const Home* __restrict__ home = s.home;
    const real4* __restrict__ position = s.position;
    __shared__ real2 shared_pairs[TYPES <= SHARED_TYPES ? TYPES * TYPES : 1];
    __shared__ real4 translations[TRANSLATIONS];
    if (TYPES > 1 && TYPES <= SHARED_TYPES)
        for (int k = threadIdx.x; k < TYPES * TYPES; k += THREADS) shared_pairs[k] = pairs[k];
    if (PERIODIC)
        for (int k = threadIdx.x; k < TRANSLATIONS; k += THREADS)
            translations[k] = translation(k, cell);
    __syncthreads();
    const Table table = {TYPES > 1 && TYPES <= SHARED_TYPES ? shared_pairs : pairs};
    const int thread = blockIdx.x * THREADS + threadIdx.x, cluster = thread / PAIR_LANES,
              lane = thread % PAIR_LANES;
    const int sorted = state->sorted, clusters = sorted / CLUSTER;
    if (thread == 0) {
        state->built = 1;
        state->arrived = 0;
    }
    const int first = thread / 32 * 32 / PAIR_LANES;
    if (first >= clusters) return;  // whole warps
#if LIMITED
    __shared__ Parts parts[THREADS / 32];
    for (int k = first; k < min(first + 32 / PAIR_LANES, clusters); k++)
        if (lists.length[k].build != state->builds)
            search(k, s, lists, excluded, *cell, *grid, parts[threadIdx.x / 32], state);
#endif
    const int own = min(cluster, clusters - 1), base = CLUSTER * own;

    Cluster c;
    c.energy = 0;
    unsigned absent = 0;
    int slot = -1;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) {
        const int at = cluster < clusters ? home[base + m].slot : -1;
        const real4 x = position[base + m];
        // what fills up a cluster, or is nowhere, is out of reach of everything
        const bool somewhere = at >= 0 && 0 * (x.x + x.y + x.z) == 0;
        c.x[m] = somewhere ? x.x : real(-1e15);
        c.y[m] = somewhere ? x.y : 0;
        c.z[m] = somewhere ? x.z : 0;
        c.fx[m] = c.fy[m] = c.fz[m] = 0;
        c.row[m] = TYPES * type_of(x.w);
        absent |= unsigned(at < 0) << m;
        // coordinates that are not numbers are in no pair
        if (ENERGY && at >= 0) c.energy += 0 * (x.x + x.y + x.z);
        if (lane / 3 == m) slot = at;
    }
    const All all = {sorted, home, s.number, position, cell, excluded, table, force, padded};
#if LIMITED
    Length listed = {0, 0, 0, 0};
    if (cluster < clusters) listed = lists.length[own];
    if (listed.entries > lists.entries || listed.masked > lists.masks) {
        for (int m = 0; m < CLUSTER; m++)
            c.energy += meet_without_list<FORCES, ENERGY>(base + m, lane, all);
        listed = Length{0, 0, 0, 0};
    }
    const unsigned* entry = lists.entry + own * (long long)lists.entries;
    const uint2* masked = lists.masked + own * (long long)lists.masks;
    // on its own a cluster must not depend on that beside it in the warp
    if (DETERMINISTIC || __any_sync(FULL, listed.imaged))
        meet_list<FORCES, ENERGY, true>(c, lane, listed, entry, masked, position, translations,
                                        table, reaction);
    else
        meet_list<FORCES, ENERGY, false>(c, lane, listed, entry, masked, position, translations,
                                         table, reaction);
#else
    if (cluster < clusters) meet_all<FORCES, ENERGY>(c, lane, base, absent, all);
    __syncwarp();
#endif
    if (FORCES) {
        const real f = sum_over_lanes(c, lane);
        if (slot >= 0) atomicAdd(&force[slot + lane % 3 * padded], fixed_point(f));
    }
    if (ENERGY) {
#pragma unroll
        for (int d = 16; d > 0; d /= 2) c.energy += __shfl_xor_sync(FULL, c.energy, d);
        if (threadIdx.x % 32 == 0)
            atomicAdd(&total[thread / 32 % totals], ENERGY_TYPE((HALF ? 1 : 0.5) * c.energy));
    }
}

#define RESIDENT (sizeof(real) == 8 ? 3 : (LIMITED ? 4 : 6))  // blocks a multiprocessor, at least

#define ENTRY(name, FORCES, ENERGY)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)                           \
        name(int capacity, int entries, int masks, const Home* __restrict__ home,             \
             const real4* __restrict__ position, const int* __restrict__ number,              \
             const int* __restrict__ start, const Grid* __restrict__ grid, unsigned* entry,   \
             uint2* masked, Length* length, const real2* __restrict__ pairs,                  \
             const Cell* __restrict__ cell, const Partners* __restrict__ partners,            \
             const int* __restrict__ partner, State* state, uint64* __restrict__ force,       \
             int padded, float4* reaction, ENERGY_TYPE* __restrict__ total, int totals) {     \
        all_pairs<FORCES, ENERGY>({home, position, number, start, capacity},                  \
                                  {entry, masked, length, entries, masks}, grid, pairs, cell, \
                                  {partners, partner}, state, force, padded, reaction, total, \
                                  totals);                                                    \
    }

ENTRY(lennard_jones_forces, true, false)
ENTRY(lennard_jones_energy, false, true)
ENTRY(lennard_jones_both, true, true)

extern "C" __global__ void collect_reactions(int capacity, const Home* __restrict__ home,
                                             float4* reaction /* (capacity + 1) */,
                                             uint64* __restrict__ force, int padded) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= capacity) return;
    const float4 f = reaction[k];
    reaction[k] = float4{0, 0, 0, 0};
    const int slot = home[k].slot;
    if (slot >= 0)
        add_force(force, padded, slot, fixed_point(f.x), fixed_point(f.y), fixed_point(f.z));
}
