// lennard_jones_pairs: Lennard-Jones interactions of sites within the cutoff (pair.cuh).
//
// PAIR_LANES lanes own a cluster of the device's share. Unless SEARCHED, they rebuild its list if
// sites were sorted since (search.cuh). Each lane takes every PAIR_LANES-th entry and computes its
// interactions with all sites of the cluster, which are in registers. Forces on these sites are
// summed over the lanes and added to OpenMM's. If a list holds every pair once, forces on entries
// are summed in memory as floats and added to OpenMM's by collect_reactions. If a list exceeds its
// capacity, or if there is no cutoff, the lanes loop over all sites, so that no pair is ever
// missing; the host enlarges the lists once it reads the state.
//
//   lennard_jones_forces, lennard_jones_energy, lennard_jones_both   forces, energy or both
//   collect_reactions                                                adds the forces on entries
//
// Bound by instruction issue.
#include "common/reduce.cuh"
#include "search.cuh"
#include "unlisted_pairs.cuh"

#define THREADS 128
#define SHARED_TYPES 32  // maximum number of types whose table is kept in shared memory

// Sums forces over the lanes of a cluster: lane 3 m + k returns component k of the force on site m.
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

// Loads a cluster, of whose sites `absent` are padding: all if it is `beyond` the last one. Returns
// the slot of the site whose force the lane adds, or -1.
template <bool ENERGY>
__device__ __forceinline__ int load_cluster(Cluster& c, unsigned& absent, int base, bool beyond,
                                            int lane, const Home* __restrict__ home,
                                            const real4* __restrict__ position) {
    c.energy = 0;
    int slot = -1;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) {
        const int at = beyond ? -1 : home[base + m].slot;
        const real4 x = position[base + m];
        // padding and sites with NaN coordinates are placed far from all others
        const bool located = at >= 0 && 0 * (x.x + x.y + x.z) == 0;
        c.x[m] = located ? x.x : real(-1e15);
        c.y[m] = located ? x.y : 0;
        c.z[m] = located ? x.z : 0;
        c.fx[m] = c.fy[m] = c.fz[m] = 0;
        c.table_row[m] = TYPES * type_of(x.w);
        absent |= unsigned(at < 0) << m;
        // NaN coordinates are in no pair but must show in the energy
        if (ENERGY && at >= 0) c.energy += 0 * (x.x + x.y + x.z);
        if (lane / 3 == m) slot = at;
    }
    return slot;
}

#if LIMITED && !SEARCHED

// search() with registers of its own, so that the pairs keep theirs.
__device__ __noinline__ void search_apart(int cluster, const Sorted s, const Lists lists,
                                          const Exclusions excluded, const Cell& cell,
                                          const Grid& grid, Intervals& intervals, State* state) {
    search(cluster, s, lists, excluded, cell, grid, intervals, state);
}

// Rebuilds the lists of the warp's clusters, from the first on, if sites were sorted since.
__device__ __forceinline__ void rebuild_lists(int first, int clusters, const Sorted& s,
                                              const Lists& lists, const Exclusions& excluded,
                                              const Cell& cell, const Grid& grid, State* state) {
    __shared__ Intervals intervals[THREADS / 32];
    for (int k = first; k < min(first + 32 / PAIR_LANES, clusters); k++)
        if (lists.length[k].build != state->builds)
            search_apart(k, s, lists, excluded, cell, grid, intervals[threadIdx.x / 32], state);
}

#endif

template <bool FORCES, bool ENERGY>
__device__
__forceinline__ void compute_pairs(const Sorted& s, const Lists& lists,
                                   const Grid* __restrict__ grid, const real2* __restrict__ pairs,
                                   const Cell* __restrict__ cell, const Exclusions& excluded,
                                   const Fraction* __restrict__ share, State* state,
                                   uint64* __restrict__ force, int padded, float4* reaction,
                                   ENERGY_TYPE* __restrict__ total, int totals) {
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
    const int thread = blockIdx.x * THREADS + threadIdx.x, lane = thread % PAIR_LANES;
    const int sorted = state->sorted;
    const ClusterRange range = clusters_of(share, grid, s.start, sorted / CLUSTER);
    const int cluster = range.first + thread / PAIR_LANES, clusters = range.end;
    if (thread == 0) {
        state->built = 1;
        state->arrived = 0;
    }
    const int first = range.first + thread / 32 * 32 / PAIR_LANES;
    if (first >= clusters) return;  // uniform in a warp
#if LIMITED && !SEARCHED
    rebuild_lists(first, clusters, s, lists, excluded, *cell, *grid, state);
#endif
    const int own = min(cluster, clusters - 1), base = CLUSTER * own;

    Cluster c;
    unsigned absent = 0;
    const int slot =
        load_cluster<ENERGY>(c, absent, base, cluster >= clusters, lane, home, position);
    const PairArrays arrays = {sorted,   home,  s.number, position, cell,
                               excluded, table, force,    padded};
#if LIMITED
    Length listed = {0, 0, 0, 0};
    if (cluster < clusters) listed = lists.length[own];
    if (listed.entries > lists.entries || listed.masked > lists.masks) {
        for (int m = 0; m < CLUSTER; m++)
            c.energy += interact_without_list<FORCES, ENERGY>(base + m, lane, arrays);
        listed = Length{0, 0, 0, 0};
    }
    const unsigned* entry = lists.entry + own * (long long)lists.entries;
    const uint2* masked = lists.masked + own * (long long)lists.masks;
    // results must not depend on which clusters share a warp
    if (PERIODIC && (DETERMINISTIC || __any_sync(FULL, listed.imaged)))
        interact_with_list<FORCES, ENERGY, true>(c, lane, listed, entry, masked, position,
                                                 translations, table, reaction);
    else
        interact_with_list<FORCES, ENERGY, false>(c, lane, listed, entry, masked, position,
                                                  translations, table, reaction);
#else
    if (cluster < clusters) interact_with_all<FORCES, ENERGY>(c, lane, base, absent, arrays);
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

#define BLOCKS_PER_MULTIPROCESSOR (sizeof(real) == 8 ? 3 : (LIMITED ? 4 : 6))  // at least

#define ENTRY(name, FORCES, ENERGY)                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR)              \
        name(int capacity, int entries, int masks, const Home* __restrict__ home,                 \
             const real4* __restrict__ position, const int* __restrict__ number,                  \
             const int* __restrict__ start, const Grid* __restrict__ grid, unsigned* entry,       \
             uint2* masked, Length* length, const real2* __restrict__ pairs,                      \
             const Cell* __restrict__ cell, const Partners* __restrict__ partners,                \
             const int* __restrict__ partner, const Fraction* __restrict__ share, State* state,   \
             uint64* __restrict__ force, int padded, float4* reaction,                            \
             ENERGY_TYPE* __restrict__ total, int totals) {                                       \
        compute_pairs<FORCES, ENERGY>({home, position, number, start, capacity},                  \
                                      {entry, masked, length, entries, masks}, grid, pairs, cell, \
                                      {partners, partner}, share, state, force, padded, reaction, \
                                      total, totals);                                             \
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
