// lennard_jones_list: sorts the sites into cells and builds the neighbour list when sites have
// moved.
//
//   begin_sites   once: initial order of the sites and their exclusions. A thread per site
//   fetch_sites   in every evaluation: coordinates wrapped into the cell; invalidates the list if a
//                 site has moved by more than half of the buffer. A thread per site
//   list_sites    sorts the sites if the list is invalid, in steps separated by grid-wide barriers
//                 (all blocks are resident):
//                   count_sites   a thread per site: its cell
//                   arrange_rows  a warp per row of cells along x: the first site of each cell;
//                                 rows are padded to whole clusters. They are in order of arrival,
//                                 or of their numbers if several devices share the pairs
//                   sort_sites    a thread per site: its sorted place
//                 Unless SEARCHED, the neighbours of a cluster are found (search.cuh) when its
//                 pairs are computed next
//   search_sites  finds them if the list is invalid: in every evaluation if SEARCHED, else when
//                 the host asks for the lengths of the lists. A warp for every
//                 (warps in the grid)-th cluster of the device's share
//
// The kernels are bound by memory, search_sites by the number of candidates, about 600 per cluster
// in water.
#include "search.cuh"

#define THREADS 256
#define BLOCKS_OF_SEARCH (sizeof(real) == 8 ? 2 : 3)  // per multiprocessor, at least

// A site's cell, and its rank among the sites of that cell.
struct Place {
    int cell, rank;
};

// The sites in the order of the current list (`home`) and in that of the list being built.
struct Sites {
    Home* home;        // (capacity), in the order of the current list
    Home* sorted;      // (capacity), in the new order
    real4* reference;  // (capacity): OpenMM's coordinates when the list was built, type
    real4*
        position;  // (capacity + 1): coordinates in the cell, type; the last site is far from all
    int* number;   // (capacity): original number of the site
    int* number_before;  // (capacity), in the order of the current list
    Place* place;        // (capacity)
    int* count;          // (cells): sites per cell; zero between calls
    int* start;          // (rows + cells): first site of each cell of a row, then the row's end
    int* row_sites;      // (rows): sites of each row with its padding, if several devices share
};

// Grid-wide barrier: afterwards the writes of all blocks are visible.
__device__ __forceinline__ void grid_barrier(State* state) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const unsigned before = atomicAdd(&state->arrived, 1u),
                       target = (before / gridDim.x + 1) * gridDim.x;
        while (int(*reinterpret_cast<volatile unsigned*>(&state->arrived) - target) < 0) {}
        __threadfence();
    }
    __syncthreads();
}

// OpenMM's coordinates of a site, translated into the cell.
__device__ __forceinline__ real4 in_cell(const Posq& at, const Home& home, const double* v) {
#if PERIODIC
    return real4{real(at.x - (home.a * v[0] + home.b * v[3] + home.c * v[6])),
                 real(at.y - (home.b * v[4] + home.c * v[7])), real(at.z - home.c * v[8]), 0};
#else
    return real4{real(at.x), real(at.y), real(at.z), 0};
#endif
}

// Numbers of cell vectors from the cell to a site.
__device__ __forceinline__ Home home_of(const Posq& at, int slot, const double* v) {
    Home home = {0, 0, 0, slot};
#if PERIODIC
    const double c = floor(at.z / v[8]), y = at.y - c * v[7], b = floor(y / v[4]);
    home.c = int(c);
    home.b = int(b);
    home.a = int(floor((at.x - c * v[6] - b * v[3]) / v[0]));
#endif
    return home;
}

// Counts the sites of each cell; ranks are in order of arrival. Clears `sorted`.
__device__ __forceinline__ void count_sites(int capacity, const Posq* __restrict__ posq,
                                            const Sites& s, const Cell& cell, const Grid& grid) {
    for (int k = blockIdx.x * THREADS + threadIdx.x; k < capacity; k += gridDim.x * THREADS) {
        s.sorted[k] = Home{0, 0, 0, -1};
        const int slot = s.home[k].slot;
        if (slot < 0) continue;
        const real4 x = in_grid(
            in_cell(posq[slot], home_of(posq[slot], slot, cell.vectors), cell.vectors), grid);
        const int row =
            cell_along(x.z, grid.edge_z, grid.nz) * grid.ny + cell_along(x.y, grid.edge_y, grid.ny);
        const int number = row * grid.nx + cell_along(x.x, grid.edge_x, grid.nx);
        s.place[k] = Place{number, atomicAdd(&s.count[number], 1)};
    }
}

// The sum of n numbers by a warp.
__device__ __forceinline__ int sum_by_warp(const int* number, int n, int lane) {
    int sum = 0;
    for (int k = lane; k < n; k += 32) sum += number[k];
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(FULL, sum, d);
    return sum;
}

// Calls visit(row, sites), with the number of its sites and their padding, for the rows of a warp.
template <class Visit>
__device__ __forceinline__ void for_each_row(const Sites& s, const Grid& grid, int lane,
                                             Visit visit) {
    for (int row = (blockIdx.x * THREADS + threadIdx.x) / 32; row < grid.ny * grid.nz;
         row += gridDim.x * THREADS / 32) {
        const int sites = sum_by_warp(s.count + row * grid.nx, grid.nx, lane);
        visit(row, (sites + CLUSTER - 1) / CLUSTER * CLUSTER);
    }
}

__device__ __forceinline__ void arrange_rows(const Sites& s, const Grid& grid, State* state) {
    const int lane = threadIdx.x % 32;
#if HAS_SHARE
    for_each_row(s, grid, lane, [&](int row, int sites) {
        if (lane == 0) s.row_sites[row] = sites;
    });
    grid_barrier(state);
#endif
    for_each_row(s, grid, lane, [&](int row, int sites) {
        const int* count = s.count + row * grid.nx;
        int* start = s.start + row * (grid.nx + 1);
        int begin = 0;
        if (HAS_SHARE) begin = sum_by_warp(s.row_sites, row, lane);
        if (lane == 0) {
            const int before = atomicAdd(&state->sorted, sites);
            if (!HAS_SHARE) begin = before;
        }
        begin = __shfl_sync(FULL, begin, 0);
        for (int first = 0; first < grid.nx; first += 32) {
            const int x = first + lane, here = x < grid.nx ? count[x] : 0;
            const int inclusive = prefix_sum(here);
            if (x < grid.nx) start[x] = begin + inclusive - here;
            begin += __shfl_sync(FULL, inclusive, 31);
        }
        if (lane == 0) start[grid.nx] = begin;
    });
}

__device__ __forceinline__ int first_of_cell(const Sites& s, int cell, const Grid& grid) {
    const int row = cell / grid.nx;
    return s.start[cell + row];
}

// Ranks the sites of each cell by slot, so that the order does not depend on the scheduling of
// threads.
__device__ __forceinline__ void rank_sites(int capacity, const Sites& s, const Grid& grid,
                                           State* state) {
    int* slots = s.number;  // unused until sort_sites
    for (int k = blockIdx.x * THREADS + threadIdx.x; k < capacity; k += gridDim.x * THREADS)
        if (s.home[k].slot >= 0)
            slots[first_of_cell(s, s.place[k].cell, grid) + s.place[k].rank] = s.home[k].slot;
    grid_barrier(state);
    for (int k = blockIdx.x * THREADS + threadIdx.x; k < capacity; k += gridDim.x * THREADS) {
        const int slot = s.home[k].slot;
        if (slot < 0) continue;
        int rank = 0;
        const int cell = s.place[k].cell;
        for (int j = first_of_cell(s, cell, grid), last = j + s.count[cell]; j < last; j++)
            rank += slots[j] < slot;
        s.place[k].rank = rank;
    }
    grid_barrier(state);
}

__device__ __forceinline__ void sort_sites(int capacity, const Posq* __restrict__ posq,
                                           const int* __restrict__ type, const Sites& s,
                                           const Cell& cell, const Grid& grid, State* state) {
    for (int k = blockIdx.x * THREADS + threadIdx.x; k < capacity; k += gridDim.x * THREADS) {
        const int slot = s.home[k].slot;
        if (slot < 0) continue;
        const int to = first_of_cell(s, s.place[k].cell, grid) + s.place[k].rank,
                  number = s.number_before[k];
        const Posq at = posq[slot];
        const Home home = home_of(at, slot, cell.vectors);
        real4 x = in_cell(at, home, cell.vectors);
        x.w = with_type(type[number], real(0));
        if (unsigned(home.a + 1) > 2 || unsigned(home.b + 1) > 2 || unsigned(home.c + 1) > 2)
            state->strayed = 1;
        s.sorted[to] = home;
        s.position[to] = x;
        s.reference[to] = real4{real(at.x), real(at.y), real(at.z), x.w};
        s.number[to] = number;
    }
}

extern "C" __global__ void begin_sites(
    int capacity, int sites, const int* __restrict__ slot /* (sites): index in OpenMM's arrays */,
    const int* __restrict__ type /* (sites) */, const int* __restrict__ start /* (sites + 1) */,
    const int* __restrict__ partner, Partners* __restrict__ partners /* (sites) */,
    Home* __restrict__ home /* (capacity) */, int* __restrict__ number /* (capacity) */,
    real4* __restrict__ reference /* (capacity) */,
    real4* __restrict__ position /* (capacity + 1) */, State* state /* zeroed */) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k == 0) state->sorted = capacity;
    if (k <= capacity) position[k] = real4{real(1e15), real(1e15), real(1e15), 0};
    if (k >= capacity) return;
    home[k] = Home{0, 0, 0, k < sites ? slot[k] : -1};
    number[k] = k;
    reference[k] = real4{0, 0, 0, k < sites ? with_type(type[k], real(0)) : 0};
    if (k < sites) partners[k] = partners_of(k, start, partner);
}

extern "C" __global__ void fetch_sites(int capacity,
                                       const Posq* __restrict__ posq /* (padded) nm */,
                                       const Cell* __restrict__ cell,
                                       const Home* __restrict__ home /* (capacity) */,
                                       const real4* __restrict__ reference /* (capacity) */,
                                       real4* __restrict__ position /* (capacity + 1) */,
                                       State* state) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= capacity) return;
    const Home at = home[k];
    if (at.slot < 0) return;
    const Posq now = posq[at.slot];
    const real4 before = reference[k];
    real4 x = in_cell(now, at, cell->vectors);
    x.w = before.w;
    position[k] = x;
    const real dx = now.x - before.x, dy = now.y - before.y, dz = now.z - before.z;
    if (LIMITED && !(dx * dx + dy * dy + dz * dz <= real(cell->limit))) state->built = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, LIST_BLOCKS)
    list_sites(int capacity, int rows, int cells, const Posq* __restrict__ posq /* (padded) nm */,
               const int* __restrict__ type /* (sites) */, const Cell* __restrict__ parameters,
               Home* home, Home* sorted, real4* reference, real4* position, int* number,
               int* number_before, Place* place, int* count /* (cells) zeroed */,
               int* start /* (rows + cells) */, int* row_sites /* (rows) */, Grid* grid_kept,
               State* state /* zeroed */) {
    if (state->built) return;
    const Cell cell = *parameters;
    __shared__ Grid shared_grid;
    const int thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    const Sites s = {home,          sorted, reference, position, number,
                     number_before, place,  count,     start,    row_sites};
    if (threadIdx.x == 0) shared_grid = grid_of(cell, rows, cells);
    if (thread == 0) {
        state->sorted = state->strayed = 0;
        state->builds++;
        *grid_kept = shared_grid;
    }
    __syncthreads();
    const Grid grid = shared_grid;
    for (int k = thread; k < capacity; k += threads) number_before[k] = number[k];
    count_sites(capacity, posq, s, cell, grid);
    grid_barrier(state);
    arrange_rows(s, grid, state);
    grid_barrier(state);
    if (DETERMINISTIC) rank_sites(capacity, s, grid, state);
    sort_sites(capacity, posq, type, s, cell, grid, state);
    grid_barrier(state);
    for (int k = thread; k < grid.nx * grid.ny * grid.nz; k += threads) count[k] = 0;
    for (int k = thread; k < capacity; k += threads) {
        home[k] = sorted[k];
        if (sorted[k].slot < 0) position[k] = real4{real(1e15), real(1e15), real(1e15), 0};
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_OF_SEARCH)
    search_sites(int capacity, const Home* __restrict__ home, const real4* __restrict__ position,
                 const int* __restrict__ number, const int* __restrict__ start,
                 const Grid* __restrict__ grid, const Cell* __restrict__ cell,
                 const Partners* __restrict__ partners, const int* __restrict__ partner,
                 unsigned* entry, uint2* masked, Length* length, int entries, int masks,
                 const Fraction* __restrict__ share, State* state) {
    __shared__ Intervals intervals[THREADS / 32];
    if (state->built) return;
    const int warp = threadIdx.x / 32, warps = THREADS / 32;
    const ClusterRange own = clusters_of(share, grid, start, state->sorted / CLUSTER);
    for (int k = own.first + blockIdx.x * warps + warp; k < own.end; k += gridDim.x * warps)
        search(k, {home, position, number, start, capacity},
               {entry, masked, length, entries, masks}, {partners, partner}, *cell, *grid,
               intervals[warp], state);
}
