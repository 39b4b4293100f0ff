// lennard_jones_list: which sites are near each other, and where they are now.
//
//   begin_sites   once: the sites in the order in which they are given
//   fetch_sites   a thread a site: its coordinates in the cell; tells if it has moved by more than half of the buffer since the
//                 list was made
//   list_sites    then makes another one, by blocks that wait for each other (all are resident):
//                   count    a thread a site: its cell
//                   arrange  a warp a row of cells along x: where its cells begin; rows are filled up to whole clusters
//                   sort     a thread a site: its place
//                   search   a warp a cluster: lane k looks which part of row k of the neighbourhood is near enough, then
//                            all lanes go through these parts. Entries of which a site of the cluster must leave out some
//                            pair, itself or an excluded one, come in a list of their own, with a mask
//
// Cells are half as wide as the list's radius along y and z, so that 5 layers of 5 rows, 6 in a skewed cell, hold all
// neighbours, and half of that again along x. Where there are no images they repeat, and what lies in the same cell of
// another period is told apart by its distance. Edges grow where cells would be more than there is room for.
//
// The first is bound by memory, a list by the candidates of the search, about 600 a cluster in water.
#include "common/sites.cuh"

#define THREADS 256
#define LAYERS 5
#define ROWS_A_LAYER 6

struct Grid {
    int nx, ny, nz;
    double x, y, z;                    // widths of the whole
    real edge_x, edge_y, edge_z;
};

// What a site is listed by.
struct Place {
    int cell, rank;
};

// Sites as they are kept, and sorted by the list under way.
struct Sites {
    Home* home;            // (capacity), as the last list has them
    Home* sorted;          // (capacity), as this one has
    real4* reference;      // (capacity): coordinates in OpenMM's arrays when the list was made, type
    real4* position;       // (capacity + 1): coordinates in the cell, type; the last one is far from all
    int* number;           // (capacity): of the site
    int* number_before;    // (capacity)
    Place* place;          // (capacity)
    int* count;            // (cells) zero between lists
    int* start;            // (rows + cells): a row's cells, then its end
};

struct Lists {
    unsigned* entry;       // (clusters, entries)
    uint2* masked;         // (clusters, masks): entry, mask
    Length* length;        // (clusters)
    int entries, masks;
};

// Waits for all blocks; what they wrote before can be read then.
__device__ __forceinline__ void wait_for_all(State* state) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const unsigned before = atomicAdd(&state->arrived, 1u), target = (before / gridDim.x + 1) * gridDim.x;
        while (int(*reinterpret_cast<volatile unsigned*>(&state->arrived) - target) < 0) {}
        __threadfence();
    }
    __syncthreads();
}

__device__ __forceinline__ int floor_div(int a, int b) {
    const int q = a / b;
    return q - (a - q * b < 0);
}

__device__ __forceinline__ Grid grid_of(const Cell& cell, int rows, int cells) {
    Grid grid;
    const double half = 0.5 * cell.radius;
#if PERIODIC
    grid.x = cell.vectors[0]; grid.y = cell.vectors[4]; grid.z = cell.vectors[8];
    const double wanted = grid.x / half * 2 * (grid.y / half) * (grid.z / half);
    const double wide = half * (wanted > cells ? cbrt(wanted / cells) : 1.0);
    grid.nz = int(fmin(fmax(grid.z / wide, 1.0), double(rows)));
    grid.ny = int(fmin(fmax(grid.y / wide, 1.0), double(rows)));
    if ((long long)grid.ny * grid.nz > rows) {
        const double shrunk = sqrt(rows / (double(grid.ny) * grid.nz));
        grid.nz = max(1, int(grid.nz * shrunk));
        grid.ny = max(1, min(grid.ny, rows / grid.nz));
    }
    grid.nx = int(fmin(fmax(2 * grid.x / wide, 1.0), double(cells / (grid.ny * grid.nz))));
#else
    grid.ny = grid.nz = max(ROWS_A_LAYER, int(fmin(cbrt(0.5 * cells), sqrt(double(rows)))));
    grid.nx = max(1, cells / (grid.ny * grid.nz));
    grid.x = grid.nx * 0.5 * half; grid.y = grid.ny * half; grid.z = grid.nz * half;
#endif
    grid.edge_x = real(grid.x / grid.nx); grid.edge_y = real(grid.y / grid.ny); grid.edge_z = real(grid.z / grid.nz);
    return grid;
}

__device__ __forceinline__ double within(double x, double width) {
    return x - floor(x / width) * width;
}

// A coordinate's cell along an axis: one that exists, also for a coordinate that is not a number.
__device__ __forceinline__ int cell_along(real x, real edge, int n) {
    return min(max(int(x / edge), 0), n - 1);
}

// Coordinates by which a site in the cell is put into the grid.
__device__ __forceinline__ real4 in_grid(real4 x, const Grid& grid) {
#if !PERIODIC
    x.x = real(within(x.x, grid.x)); x.y = real(within(x.y, grid.y)); x.z = real(within(x.z, grid.z));
#endif
    return x;
}

// Coordinates in the cell of a place in OpenMM's arrays.
__device__ __forceinline__ real4 in_cell(const Posq& at, const Home& home, const double* v) {
#if PERIODIC
    return real4{real(at.x - (home.a * v[0] + home.b * v[3] + home.c * v[6])),
                 real(at.y - (home.b * v[4] + home.c * v[7])), real(at.z - home.c * v[8]), 0};
#else
    return real4{real(at.x), real(at.y), real(at.z), 0};
#endif
}

// The cell vectors that lie between a place and the cell.
__device__ __forceinline__ Home home_of(const Posq& at, int slot, const double* v) {
    Home home = {0, 0, 0, slot};
#if PERIODIC
    const double c = floor(at.z / v[8]), y = at.y - c * v[7], b = floor(y / v[4]);
    home.c = int(c); home.b = int(b);
    home.a = int(floor((at.x - c * v[6] - b * v[3]) / v[0]));
#endif
    return home;
}

// Places of sites in their cells, as they come. The sorted ones are none yet.
__device__ __forceinline__ void count_sites(int capacity, const Posq* __restrict__ posq, const Sites& s, const Cell& cell,
                                            const Grid& grid) {
    for (int k = blockIdx.x * THREADS + threadIdx.x; k < capacity; k += gridDim.x * THREADS) {
        s.sorted[k] = Home{0, 0, 0, -1};
        const int slot = s.home[k].slot;
        if (slot < 0) continue;
        const real4 x = in_grid(in_cell(posq[slot], home_of(posq[slot], slot, cell.vectors), cell.vectors), grid);
        const int row = cell_along(x.z, grid.edge_z, grid.nz) * grid.ny + cell_along(x.y, grid.edge_y, grid.ny);
        const int number = row * grid.nx + cell_along(x.x, grid.edge_x, grid.nx);
        s.place[k] = Place{number, atomicAdd(&s.count[number], 1)};
    }
}

__device__ __forceinline__ void arrange_rows(const Sites& s, const Grid& grid, State* state) {
    const int lane = threadIdx.x % 32;
    for (int row = (blockIdx.x * THREADS + threadIdx.x) / 32; row < grid.ny * grid.nz; row += gridDim.x * THREADS / 32) {
        const int* count = s.count + row * grid.nx;
        int* start = s.start + row * (grid.nx + 1);
        int sites = 0;
        for (int x = lane; x < grid.nx; x += 32) sites += count[x];
#pragma unroll
        for (int d = 16; d > 0; d /= 2) sites += __shfl_xor_sync(FULL, sites, d);
        int begin = 0;
        if (lane == 0) begin = atomicAdd(&state->sorted, (sites + CLUSTER - 1) / CLUSTER * CLUSTER);
        begin = __shfl_sync(FULL, begin, 0);
        for (int first = 0; first < grid.nx; first += 32) {
            const int x = first + lane, here = x < grid.nx ? count[x] : 0;
            int inclusive = here;
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                const int other = __shfl_up_sync(FULL, inclusive, d);
                if (lane >= d) inclusive += other;
            }
            if (x < grid.nx) start[x] = begin + inclusive - here;
            begin += __shfl_sync(FULL, inclusive, 31);
        }
        if (lane == 0) start[grid.nx] = begin;
    }
}

__device__ __forceinline__ int first_of_cell(const Sites& s, int cell, const Grid& grid) {
    const int row = cell / grid.nx;
    return s.start[cell + row];
}

// The rank of every site among those of its cell, by its slot: a step of its own where the order must not depend on which
// thread came first.
__device__ __forceinline__ void rank_sites(int capacity, const Sites& s, const Grid& grid, State* state) {
    int* slots = s.number;  // nothing else is there yet
    for (int k = blockIdx.x * THREADS + threadIdx.x; k < capacity; k += gridDim.x * THREADS)
        if (s.home[k].slot >= 0) slots[first_of_cell(s, s.place[k].cell, grid) + s.place[k].rank] = s.home[k].slot;
    wait_for_all(state);
    for (int k = blockIdx.x * THREADS + threadIdx.x; k < capacity; k += gridDim.x * THREADS) {
        const int slot = s.home[k].slot;
        if (slot < 0) continue;
        int rank = 0;
        const int cell = s.place[k].cell;
        for (int j = first_of_cell(s, cell, grid), last = j + s.count[cell]; j < last; j++) rank += slots[j] < slot;
        s.place[k].rank = rank;
    }
    wait_for_all(state);
}

__device__ __forceinline__ void sort_sites(int capacity, const Posq* __restrict__ posq, const int* __restrict__ type,
                                           const Sites& s, const Cell& cell, const Grid& grid, State* state) {
    for (int k = blockIdx.x * THREADS + threadIdx.x; k < capacity; k += gridDim.x * THREADS) {
        const int slot = s.home[k].slot;
        if (slot < 0) continue;
        const int to = first_of_cell(s, s.place[k].cell, grid) + s.place[k].rank, number = s.number_before[k];
        const Posq at = posq[slot];
        const Home home = home_of(at, slot, cell.vectors);
        real4 x = in_cell(at, home, cell.vectors);
        x.w = with_type(type[number], real(0));
        if (unsigned(home.a + 1) > 2 || unsigned(home.b + 1) > 2 || unsigned(home.c + 1) > 2) state->strayed = 1;
        s.sorted[to] = home;
        s.position[to] = x;
        s.reference[to] = real4{real(at.x), real(at.y), real(at.z), x.w};
        s.number[to] = number;
    }
}

// Parts of rows in which neighbours of a cluster may be, one a lane.
struct Parts {
    int end[32];           // candidates of this lane's part and those before
    int to_site[32];       // from the number of a candidate to its place among the sorted sites
    unsigned image[32];    // in the bits of an entry
    real4 shift[32];
    ClusterPartners partners;
};

// A lane's row of the neighbourhood: which of its cells are near, by their number unwrapped along x.
struct Row {
    int number, first, last, b, c;
};

__device__ __forceinline__ Row row_of(int lane, const real4& low, const real4& high, const Cell& cell, const Grid& grid) {
    Row row = {0, 1, 0, 0, 0};
    const bool somewhere = low.x <= high.x && low.y <= high.y && low.z <= high.z;  // not if no member's coordinates are numbers
    if (lane >= LAYERS * ROWS_A_LAYER || !somewhere) return row;
    const double* v = cell.vectors;
    const real radius = real(cell.radius);
    const int z = cell_along(low.z, grid.edge_z, grid.nz) + lane / ROWS_A_LAYER - LAYERS / 2;
    const real dz = fmax(fmax(z * grid.edge_z - high.z, low.z - (z + 1) * grid.edge_z), real(0));
    real left = radius * radius - dz * dz;
    if (left < 0) return row;
    row.c = floor_div(z, grid.nz);
    const real by_c = PERIODIC ? real(row.c * v[7]) : real(0);
    const real reach_y = sqrt(left);
    const int y = int(floor((low.y - reach_y - by_c) / grid.edge_y)) + lane % ROWS_A_LAYER;
    const real dy = fmax(fmax(y * grid.edge_y + by_c - high.y, low.y - (y + 1) * grid.edge_y - by_c), real(0));
    left -= dy * dy;
    if (left < 0 || y * grid.edge_y + by_c > high.y + reach_y) return row;
    row.b = floor_div(y, grid.ny);
    const real by_bc = PERIODIC ? real(row.b * v[3] + row.c * v[6]) : real(0);
    const real reach_x = sqrt(left);
    row.number = (z - row.c * grid.nz) * grid.ny + y - row.b * grid.ny;
    row.first = int(floor((low.x - reach_x - by_bc) / grid.edge_x));
    row.last = int(floor((high.x + reach_x - by_bc) / grid.edge_x));
#if !PERIODIC
    row.last = min(row.last, row.first + grid.nx - 1);
#endif
    return row;
}

// Takes the next part of the row, as far as it is of one image. Returns how many candidates there are in all lanes.
__device__ __forceinline__ int next_parts(Row& row, Parts& parts, int lane, const Sites& s, const Cell& cell,
                                          const Grid& grid) {
    int from = 0, length = 0;
    if (row.first <= row.last) {
        const int a = floor_div(row.first, grid.nx), last = min(row.last, (a + 1) * grid.nx - 1);
        const int* start = s.start + row.number * (grid.nx + 1) - a * grid.nx;
        from = start[row.first];
        length = start[last + 1] - from;
        row.first = last + 1;
#if PERIODIC
        const unsigned image = image_number(a, row.b, row.c);
        parts.image[lane] = image << SITE_BITS;
        parts.shift[lane] = translation(image, &cell);
#endif
    }
    int end = length;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(FULL, end, d);
        if (lane >= d) end += other;
    }
    parts.end[lane] = end;
    parts.to_site[lane] = from - (end - length);
    return __shfl_sync(FULL, end, 31);
}

__device__ __forceinline__ void search(int cluster, const Sites& s, const Lists& lists, const Exclusions& excluded,
                                       int far_away, const Cell& cell, const Grid& grid, Parts& parts, Length& longest) {
    const int lane = threadIdx.x % 32, base = CLUSTER * cluster;
    real4 member[CLUSTER], low, high;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) {
        member[m] = s.position[base + (s.sorted[base + m].slot < 0 ? 0 : m)];  // its first place is never empty
        const real4 x = in_grid(member[m], grid);
        if (m == 0) low = high = x;
        low.x = fmin(low.x, x.x); low.y = fmin(low.y, x.y); low.z = fmin(low.z, x.z);
        high.x = fmax(high.x, x.x); high.y = fmax(high.y, x.y); high.z = fmax(high.z, x.z);
    }
#if PARTNERS
    int site[CLUSTER];
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) site[m] = s.sorted[base + m].slot < 0 ? -1 : s.number[base + m];
    __syncwarp();
    if (lane == 0) parts.partners = partners_of(site, excluded);
#endif
    const real square = real(cell.radius * cell.radius);
    unsigned* entry = lists.entry + cluster * (long long)lists.entries;
    uint2* masked = lists.masked + cluster * (long long)lists.masks;
    Row row = row_of(lane, low, high, cell, grid);
    Length length = {0, 0};
    bool imaged = false;
    while (__any_sync(FULL, row.first <= row.last)) {
        __syncwarp();
        const int candidates = next_parts(row, parts, lane, s, cell, grid);
        __syncwarp();
        int part = 0;
        for (int first = 0; first < candidates; first += 32) {
            const int k = first + lane;
            bool near = false;
            unsigned found = 0, mask = 0;
            if (k < candidates) {
                while (k >= parts.end[part]) part++;
                const int j = parts.to_site[part] + k;
                real4 x = s.position[j];
                found = j;
#if PERIODIC
                const real4 shift = parts.shift[part];
                x.x += shift.x; x.y += shift.y; x.z += shift.z;
                found |= parts.image[part];
#endif
#pragma unroll
                for (int m = 0; m < CLUSTER; m++) {
                    const real dx = member[m].x - x.x, dy = member[m].y - x.y, dz = member[m].z - x.z;
                    near = near || dx * dx + dy * dy + dz * dz < square;
                }
                if (near) {
                    imaged = imaged || found >> SITE_BITS;
                    if (found - base < CLUSTER) mask = 1u << (found - base);
#if PARTNERS
                    mask |= mask_of(s.number[j], parts.partners, excluded);
#endif
                }
            }
            const unsigned before = (1u << lane) - 1, votes = __ballot_sync(FULL, near && mask == 0);
            const int at = length.entries + __popc(votes & before);
            if (near && mask == 0 && at < lists.entries) entry[at] = found;
            length.entries += __popc(votes);
            const unsigned votes_masked = __ballot_sync(FULL, mask != 0);
            const int at_masked = length.masked + __popc(votes_masked & before);
            if (mask != 0 && at_masked < lists.masks) masked[at_masked] = uint2{found, mask};
            length.masked += __popc(votes_masked);
        }
    }
    longest.entries = max(longest.entries, length.entries);
    longest.masked = max(longest.masked, length.masked);
    if (length.entries <= lists.entries) {
        const int end = (length.entries + 2 * PAIR_LANES - 1) / (2 * PAIR_LANES) * (2 * PAIR_LANES);
        for (int k = length.entries + lane; k < end; k += 32) entry[k] = far_away;
        length.entries = end;
    }
    if (__any_sync(FULL, imaged)) length.masked |= HAS_IMAGES;
    if (lane == 0) lists.length[cluster] = length;
}

extern "C" __global__ void begin_sites(int capacity, int sites, const int* __restrict__ slot /* (sites) in OpenMM's arrays */,
                                       const int* __restrict__ type /* (sites) */, Home* __restrict__ home /* (capacity) */,
                                       int* __restrict__ number /* (capacity) */, real4* __restrict__ reference /* (capacity) */,
                                       real4* __restrict__ position /* (capacity + 1) */, State* state /* zeroed */) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k == 0) state->sorted = capacity;
    if (k <= capacity) position[k] = real4{real(1e15), real(1e15), real(1e15), 0};
    if (k >= capacity) return;
    home[k] = Home{0, 0, 0, k < sites ? slot[k] : -1};
    number[k] = k;
    reference[k] = real4{0, 0, 0, k < sites ? with_type(type[k], real(0)) : 0};
}

extern "C" __global__ void fetch_sites(int capacity, const Posq* __restrict__ posq /* (padded) nm */,
                                       const Cell* __restrict__ cell, const Home* __restrict__ home /* (capacity) */,
                                       const real4* __restrict__ reference /* (capacity) */,
                                       real4* __restrict__ position /* (capacity + 1) */, State* state) {
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
           const int* __restrict__ type /* (sites) */, const int* __restrict__ partner_start /* (sites + 1) */,
           const int* __restrict__ partner /* (pairs) */, const Cell* __restrict__ parameters, Home* home, Home* sorted,
           real4* reference, real4* position, int* number, int* number_before, Place* place,
           int* count /* (cells) zeroed */, int* start /* (rows + cells) */, unsigned* entry /* (clusters, entries) */,
           uint2* masked /* (clusters, masks) */, Length* length /* (clusters) */, int entries, int masks,
           State* state /* zeroed */) {
    if (state->built) return;
    const Cell cell = *parameters;
    __shared__ Grid shared_grid;
    __shared__ Parts parts[THREADS / 32];
    const int thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    const Sites s = {home, sorted, reference, position, number, number_before, place, count, start};
    const Lists lists = {entry, masked, length, entries, masks};
    if (threadIdx.x == 0) shared_grid = grid_of(cell, rows, cells);
    if (thread == 0) {
        state->sorted = state->strayed = 0;
        state->builds++;
    }
    __syncthreads();
    const Grid grid = shared_grid;
    for (int k = thread; k < capacity; k += threads) number_before[k] = number[k];
    count_sites(capacity, posq, s, cell, grid);
    wait_for_all(state);
    arrange_rows(s, grid, state);
    wait_for_all(state);
    if (DETERMINISTIC) rank_sites(capacity, s, grid, state);
    sort_sites(capacity, posq, type, s, cell, grid, state);
    wait_for_all(state);
    for (int k = thread; k < grid.nx * grid.ny * grid.nz; k += threads) count[k] = 0;
    for (int k = thread; k < capacity; k += threads) {
        home[k] = sorted[k];
        if (sorted[k].slot < 0) position[k] = real4{real(1e15), real(1e15), real(1e15), 0};
    }
    Length longest = {0, 0};
    for (int cluster = thread / 32; cluster < state->sorted / CLUSTER; cluster += threads / 32)
        search(cluster, s, lists, {partner_start, partner}, capacity, cell, grid, parts[threadIdx.x / 32], longest);
    if (threadIdx.x % 32 == 0) {
        if (longest.entries > state->entries) atomicMax(&state->entries, longest.entries);
        if (longest.masked > state->masked) atomicMax(&state->masked, longest.masked);
        if (longest.entries > entries || longest.masked > masks) state->too_long = 1;
    }
}
