// Search for the neighbours of a cluster by one warp. Lane k determines the interval of row k of
// the neighbourhood that may hold neighbours; then all lanes test the sites in these intervals. If
// a site of the cluster must not interact with a neighbour, because the two are excluded or
// identical, the entry goes into a second list, with a mask.
//
// The width of a cell is half the list's radius along y and z and a quarter of it along x, so that
// 5 layers of 5 rows (6 in a skewed cell) hold all neighbours. Without periodic images the grid
// repeats in space, and the distance test rejects sites that are in the same cell of another
// period. Cells are wider if there would be more of them than the arrays can hold.
#pragma once
#include "common/reduce.cuh"
#include "sites.cuh"

#define CANDIDATES_IN_FLIGHT 2  // candidates that a lane loads together
#define LAYERS 5
#define ROWS_PER_LAYER 6

struct Grid {
    int nx, ny, nz;
    double x, y, z;  // widths of the grid
    real edge_x, edge_y, edge_z;
};

// The sorted sites.
struct Sorted {
    const Home* home;
    // coordinates in the cell; the last one, far_away, is far from all others
    const real4* position;
    const int* number;
    // (rows + cells): first site of each cell of a row, then the end of the row
    const int* start;
    int far_away;
};

struct Lists {
    unsigned* entry;  // (clusters, entries)
    uint2* masked;    // (clusters, masks): entry, mask
    Length* length;   // (clusters)
    int entries, masks;
};

// The part of the rows whose lists a device computes, in units of 1 / WHOLE; without lists a part
// of the clusters.
#define WHOLE 65536
struct Fraction {
    int first, end;
};

struct ClusterRange {
    int first, end;
};

__device__ __forceinline__ int first_cluster(int part, const Grid* __restrict__ grid,
                                             const int* __restrict__ start, int clusters) {
    const long long whole = LIMITED ? grid->ny * grid->nz : clusters;
    const int first = int(whole * part / WHOLE);
    if (!LIMITED) return first;
    return first == whole ? clusters : start[first * (grid->nx + 1)] / CLUSTER;
}

// The clusters of a device's share.
__device__ __forceinline__ ClusterRange clusters_of(const Fraction* __restrict__ share,
                                                    const Grid* __restrict__ grid,
                                                    const int* __restrict__ start, int clusters) {
    if (!HAS_SHARE) return {0, clusters};
    return {first_cluster(share->first, grid, start, clusters),
            first_cluster(share->end, grid, start, clusters)};
}

__device__ __forceinline__ int floor_div(int a, int b) {
    const int q = a / b;
    return q - (a - q * b < 0);
}

__device__ __forceinline__ Grid grid_of(const Cell& cell, int rows, int cells) {
    Grid grid;
    const double half = 0.5 * cell.radius;
#if PERIODIC
    grid.x = cell.vectors[0];
    grid.y = cell.vectors[4];
    grid.z = cell.vectors[8];
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
    grid.ny = grid.nz = max(ROWS_PER_LAYER, int(fmin(cbrt(0.5 * cells), sqrt(double(rows)))));
    grid.nx = max(1, cells / (grid.ny * grid.nz));
    grid.x = grid.nx * 0.5 * half;
    grid.y = grid.ny * half;
    grid.z = grid.nz * half;
#endif
    grid.edge_x = real(grid.x / grid.nx);
    grid.edge_y = real(grid.y / grid.ny);
    grid.edge_z = real(grid.z / grid.nz);
    return grid;
}

__device__ __forceinline__ double wrap_coordinate(double x, double width) {
    return x - floor(x / width) * width;
}

// Index along an axis of the cell that holds a coordinate; in range even if the coordinate is NaN.
__device__ __forceinline__ int cell_along(real x, real edge, int n) {
    return min(max(int(x / edge), 0), n - 1);
}

// Coordinates of a site within the grid.
__device__ __forceinline__ real4 in_grid(real4 x, const Grid& grid) {
#if !PERIODIC
    x.x = real(wrap_coordinate(x.x, grid.x));
    x.y = real(wrap_coordinate(x.y, grid.y));
    x.z = real(wrap_coordinate(x.z, grid.z));
#endif
    return x;
}

// The intervals of rows that may hold neighbours of a cluster, one for each lane.
struct Intervals {
    int end[32];         // number of candidates in the intervals of this lane and all lower ones
    int to_site[32];     // sorted index minus candidate number
    unsigned image[32];  // shifted to its bits of an entry
    real4 shift[32];
};

// A lane's row of the neighbourhood: the unwrapped indices along x of its first and last near cell,
// and its image along the other axes.
struct Row {
    int number, first, last, b, c;
};

__device__ __forceinline__ Row nearby_row(int lane, const real4& low, const real4& high,
                                          const Cell& cell, const Grid& grid) {
    Row row = {0, 1, 0, 0, 0};
    // false if all coordinates are NaN
    const bool somewhere = low.x <= high.x && low.y <= high.y && low.z <= high.z;
    if (lane >= LAYERS * ROWS_PER_LAYER || !somewhere) return row;
    const double* v = cell.vectors;
    const real radius = real(cell.radius);
    const int z = cell_along(low.z, grid.edge_z, grid.nz) + lane / ROWS_PER_LAYER - LAYERS / 2;
    const real dz = fmax(fmax(z * grid.edge_z - high.z, low.z - (z + 1) * grid.edge_z), real(0));
    real remaining = radius * radius - dz * dz;
    if (remaining < 0) return row;
    row.c = floor_div(z, grid.nz);
    const real shift_y = PERIODIC ? real(row.c * v[7]) : real(0);
    const real extent_y = sqrt(remaining);
    const int y = int(floor((low.y - extent_y - shift_y) / grid.edge_y)) + lane % ROWS_PER_LAYER;
    const real dy = fmax(
        fmax(y * grid.edge_y + shift_y - high.y, low.y - (y + 1) * grid.edge_y - shift_y), real(0));
    remaining -= dy * dy;
    if (remaining < 0 || y * grid.edge_y + shift_y > high.y + extent_y) return row;
    row.b = floor_div(y, grid.ny);
    const real shift_x = PERIODIC ? real(row.b * v[3] + row.c * v[6]) : real(0);
    const real extent_x = sqrt(remaining);
    row.number = (z - row.c * grid.nz) * grid.ny + y - row.b * grid.ny;
    row.first = int(floor((low.x - extent_x - shift_x) / grid.edge_x));
    row.last = int(floor((high.x + extent_x - shift_x) / grid.edge_x));
#if !PERIODIC
    row.last = min(row.last, row.first + grid.nx - 1);
#endif
    return row;
}

// Takes the next interval of each lane's row, up to the end of a periodic image. Returns the number
// of candidates in all lanes.
__device__ __forceinline__ int next_intervals(Row& row, Intervals& intervals, int lane, int base,
                                              const Sorted& s, const Cell& cell, const Grid& grid) {
    int from = 0, length = 0;
    if (row.first <= row.last) {
        const int a = floor_div(row.first, grid.nx), last = min(row.last, (a + 1) * grid.nx - 1);
        const int* start = s.start + row.number * (grid.nx + 1) - a * grid.nx;
        from = start[row.first];
        if (HALF) from = max(from, base);
        length = max(start[last + 1] - from, 0);
        row.first = last + 1;
#if PERIODIC
        const unsigned image = image_number(a, row.b, row.c);
        intervals.image[lane] = image << SITE_BITS;
        intervals.shift[lane] = translation(image, &cell);
#endif
    }
    const int end = prefix_sum(length);
    intervals.end[lane] = end;
    intervals.to_site[lane] = from - (end - length);
    return __shfl_sync(FULL, end, 31);
}

// Maps candidate numbers to sorted sites; the numbers must increase from call to call.
struct Cursor {
    int interval, end, to_site;
    unsigned image;
    real4 shift;

    // Sorted index of candidate k.
    __device__ __forceinline__ int at(int k, const Intervals& intervals) {
        if (k >= end) {
            while (k >= intervals.end[interval]) interval++;
            end = intervals.end[interval];
            to_site = intervals.to_site[interval];
#if PERIODIC
            image = intervals.image[interval];
            shift = intervals.shift[interval];
#endif
        }
        return to_site + k;
    }
};

// A site, translated to its image, that may be near a cluster.
struct Candidate {
    real4 x;
    unsigned entry;
    int number;
};

// The coordinates of a cluster's sites, and the box around them within the grid. Padding repeats
// the first site, which always exists.
__device__ __forceinline__ void load_members(real4 (&member)[CLUSTER], real4& low, real4& high,
                                             int base, const Sorted& s, const Grid& grid) {
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) {
        member[m] = s.position[base + (s.home[base + m].slot < 0 ? 0 : m)];
        // too far away to be wrapped into the cell: treated like NaN, in no pair
        if (!(fabs(member[m].x) < 4 * grid.x && fabs(member[m].y) < 4 * grid.y &&
              fabs(member[m].z) < 4 * grid.z) &&
            PERIODIC)
            member[m].x = member[m].y = member[m].z = real(nan(""));
        const real4 x = in_grid(member[m], grid);
        if (m == 0) low = high = x;
        low.x = fmin(low.x, x.x);
        low.y = fmin(low.y, x.y);
        low.z = fmin(low.z, x.z);
        high.x = fmax(high.x, x.x);
        high.y = fmax(high.y, x.y);
        high.z = fmax(high.z, x.z);
    }
}

// Whether a candidate is within the list's radius of any site of the cluster.
__device__ __forceinline__ bool is_near(const real4 (&member)[CLUSTER], const real4& x,
                                        real radius2) {
    bool near = false;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) {
        const real dx = member[m].x - x.x, dy = member[m].y - x.y, dz = member[m].z - x.z;
        near |= dx * dx + dy * dy + dz * dz < radius2;
    }
    return near;
}

// The sites of the cluster with which an entry forms no pair because it is one of them, or forms it
// in the list of another one.
__device__ __forceinline__ unsigned own_mask(unsigned entry, int base) {
    if (unsigned(site_of(entry) - base) >= CLUSTER) return 0;
    const unsigned image = entry >> SITE_BITS, own = 1u << (site_of(entry) - base);
    if (HALF) return image ? (is_forward(image) ? 0 : ALL_SITES) : ALL_SITES & ~(own - 1);
    return image ? 0 : own;
}

// Pads the entries without masks to whole steps of the pair kernel and reports the lengths.
__device__ __forceinline__ void finish_list(Length& length, unsigned* entry, bool imaged, int lane,
                                            int cluster, int far_away, const Lists& lists,
                                            State* state) {
    if (lane == 0) {
        if (length.entries > state->entries) atomicMax(&state->entries, length.entries);
        if (length.masked > state->masked) atomicMax(&state->masked, length.masked);
        if (length.entries > lists.entries || length.masked > lists.masks) state->too_long = 1;
    }
    if (length.entries <= lists.entries) {
        const int end = (length.entries + 2 * PAIR_LANES - 1) / (2 * PAIR_LANES) * (2 * PAIR_LANES);
        for (int k = length.entries + lane; k < end; k += 32) entry[k] = far_away;
        length.entries = end;
    }
    length.imaged = __any_sync(FULL, imaged);
    if (lane == 0) lists.length[cluster] = length;
    __syncwarp();
}

// Builds the list of a cluster.
__device__ __forceinline__ void search(int cluster, const Sorted& s, const Lists& lists,
                                       const Exclusions& excluded, const Cell& cell,
                                       const Grid& grid, Intervals& intervals, State* state) {
    const int lane = threadIdx.x % 32, base = CLUSTER * cluster;
    real4 member[CLUSTER], low, high;
    load_members(member, low, high, base, s, grid);
#if PARTNERS
    int site[CLUSTER];
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) site[m] = s.home[base + m].slot < 0 ? -1 : s.number[base + m];
    const ClusterPartners partners = partners_of(site, excluded);
#endif
    const real radius2 = real(cell.radius * cell.radius);
    const unsigned before = (1u << lane) - 1;
    unsigned* entry = lists.entry + cluster * (long long)lists.entries;
    uint2* masked = lists.masked + cluster * (long long)lists.masks;
    Row row = nearby_row(lane, low, high, cell, grid);
    Length length = {0, 0, 0, state->builds};
    bool imaged = false;
    while (__any_sync(FULL, row.first <= row.last)) {
        __syncwarp();
        const int candidates = next_intervals(row, intervals, lane, base, s, cell, grid);
        __syncwarp();
        Cursor cursor = {0, 0, 0, 0, {0, 0, 0, 0}};
        for (int first = lane; first - lane < candidates; first += 32 * CANDIDATES_IN_FLIGHT) {
            Candidate now[CANDIDATES_IN_FLIGHT];
#pragma unroll
            for (int i = 0; i < CANDIDATES_IN_FLIGHT; i++) {
                const int k = first + 32 * i,
                          j = k < candidates ? cursor.at(k, intervals) : s.far_away;
                now[i].x = s.position[j];
                now[i].entry = j;
                now[i].number = PARTNERS && k < candidates ? s.number[j] : -1;
#if PERIODIC
                now[i].x.x += cursor.shift.x;
                now[i].x.y += cursor.shift.y;
                now[i].x.z += cursor.shift.z;
                now[i].entry |= cursor.image;
#endif
            }
#pragma unroll
            for (int i = 0; i < CANDIDATES_IN_FLIGHT; i++) {
                const bool near = is_near(member, now[i].x, radius2);
                unsigned mask = own_mask(now[i].entry, base);
#if PARTNERS
                if (near) mask |= mask_of(now[i].number, partners, excluded);
#endif
                imaged = imaged || (near && now[i].entry >> SITE_BITS);
                const unsigned votes = __ballot_sync(FULL, near && mask == 0);
                const int at = length.entries + __popc(votes & before);
                if (near && mask == 0 && at < lists.entries) entry[at] = now[i].entry;
                length.entries += __popc(votes);
                const unsigned votes_masked = __ballot_sync(FULL, near && mask != 0);
                if (votes_masked == 0) continue;
                const int at_masked = length.masked + __popc(votes_masked & before);
                if (near && mask != 0 && at_masked < lists.masks)
                    masked[at_masked] = uint2{now[i].entry, mask};
                length.masked += __popc(votes_masked);
            }
        }
    }
    finish_list(length, entry, imaged, lane, cluster, s.far_away, lists, state);
}
