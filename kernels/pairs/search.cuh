// The search for the neighbours of a cluster, by a warp: lane k looks which part of row k of the
// neighbourhood is near enough, then all lanes go through these parts. Entries of which a site of
// the cluster must leave out some pair, itself or an excluded one,
// come in a list of their own, with a mask.
//
// Cells are half as wide as the list's radius along y and z, so that 5 layers of 5 rows, 6 in a
// skewed cell, hold all neighbours, and half of that again along x. Where there are no images they
// repeat, and what lies in the same cell of another period is told apart by its distance. Edges
// grow where cells would be more than there is room for.
#pragma once
#include "sites.cuh"

#define AT_ONCE 2  // candidates of a lane that are fetched together
#define LAYERS 5
#define ROWS_A_LAYER 6

struct Grid {
    int nx, ny, nz;
    double x, y, z;  // widths of the whole
    real edge_x, edge_y, edge_z;
};

// Sites as they are sorted.
struct Sorted {
    const Home* home;
    // coordinates in the cell; the last one, far_away, is far from all
    const real4* position;
    const int* number;
    // (rows + cells): a row's cells, then its end
    const int* start;
    int far_away;
};

struct Lists {
    unsigned* entry;  // (clusters, entries)
    uint2* masked;    // (clusters, masks): entry, mask
    Length* length;   // (clusters)
    int entries, masks;
};

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
    grid.ny = grid.nz = max(ROWS_A_LAYER, int(fmin(cbrt(0.5 * cells), sqrt(double(rows)))));
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
    x.x = real(within(x.x, grid.x));
    x.y = real(within(x.y, grid.y));
    x.z = real(within(x.z, grid.z));
#endif
    return x;
}

// Parts of rows in which neighbours of a cluster may be, one a lane.
struct Parts {
    int end[32];         // candidates of this lane's part and those before
    int to_site[32];     // from the number of a candidate to its place among the sorted sites
    unsigned image[32];  // in the bits of an entry
    real4 shift[32];
};

// A lane's row of the neighbourhood: which of its cells are near,
// by their number unwrapped along x.
struct Row {
    int number, first, last, b, c;
};

__device__ __forceinline__ Row row_of(int lane, const real4& low, const real4& high,
                                      const Cell& cell, const Grid& grid) {
    Row row = {0, 1, 0, 0, 0};
    // not if no member's coordinates are numbers
    const bool somewhere = low.x <= high.x && low.y <= high.y && low.z <= high.z;
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
    const real dy =
        fmax(fmax(y * grid.edge_y + by_c - high.y, low.y - (y + 1) * grid.edge_y - by_c), real(0));
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

// Takes the next part of the row, as far as it is of one image. Returns how many candidates there
// are in all lanes.
__device__ __forceinline__ int next_parts(Row& row, Parts& parts, int lane, int base,
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

// Goes through the candidates of all parts; their numbers grow from call to call.
struct Cursor {
    int part, end, to_site;
    unsigned image;
    real4 shift;

    // The place of a candidate, of the number k.
    __device__ __forceinline__ int at(int k, const Parts& parts) {
        if (k >= end) {
            while (k >= parts.end[part]) part++;
            end = parts.end[part];
            to_site = parts.to_site[part];
#if PERIODIC
            image = parts.image[part];
            shift = parts.shift[part];
#endif
        }
        return to_site + k;
    }
};

// A site that may be near a cluster, in its image.
struct Candidate {
    real4 x;
    unsigned entry;
    int number;
};

// Lists the neighbours of a cluster.
__device__ __noinline__ void search(int cluster, const Sorted s, const Lists lists,
                                    const Exclusions excluded, const Cell& cell, const Grid& grid,
                                    Parts& parts, State* state) {
    const int lane = threadIdx.x % 32, base = CLUSTER * cluster;
    real4 member[CLUSTER], low, high;
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) {
        // its first place is never empty
        member[m] = s.position[base + (s.home[base + m].slot < 0 ? 0 : m)];
        // so far away that it could not be brought into the cell: in no pair, as if its coordinates
        // were no numbers
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
#if PARTNERS
    int site[CLUSTER];
#pragma unroll
    for (int m = 0; m < CLUSTER; m++) site[m] = s.home[base + m].slot < 0 ? -1 : s.number[base + m];
    const ClusterPartners partners = partners_of(site, excluded);
#endif
    const real square = real(cell.radius * cell.radius);
    const unsigned before = (1u << lane) - 1;
    unsigned* entry = lists.entry + cluster * (long long)lists.entries;
    uint2* masked = lists.masked + cluster * (long long)lists.masks;
    Row row = row_of(lane, low, high, cell, grid);
    Length length = {0, 0, 0, state->builds};
    bool imaged = false;
    while (__any_sync(FULL, row.first <= row.last)) {
        __syncwarp();
        const int candidates = next_parts(row, parts, lane, base, s, cell, grid);
        __syncwarp();
        Cursor cursor = {0, 0, 0, 0, {0, 0, 0, 0}};
        for (int first = lane; first - lane < candidates; first += 32 * AT_ONCE) {
            Candidate now[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int k = first + 32 * i, j = k < candidates ? cursor.at(k, parts) : s.far_away;
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
            for (int i = 0; i < AT_ONCE; i++) {
                const real4 x = now[i].x;
                bool near = false;
#pragma unroll
                for (int m = 0; m < CLUSTER; m++) {
                    const real dx = member[m].x - x.x, dy = member[m].y - x.y,
                               dz = member[m].z - x.z;
                    near |= dx * dx + dy * dy + dz * dz < square;
                }
                unsigned mask = 0;
                if (unsigned(site_of(now[i].entry) - base) < CLUSTER) {
                    const unsigned image = now[i].entry >> SITE_BITS,
                                   own = 1u << (site_of(now[i].entry) - base);
                    if (HALF)
                        mask = image ? (is_forward(image) ? 0 : ALL) : ALL & ~(own - 1);
                    else if (!image)
                        mask = own;
                }
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
    if (lane == 0) {
        if (length.entries > state->entries) atomicMax(&state->entries, length.entries);
        if (length.masked > state->masked) atomicMax(&state->masked, length.masked);
        if (length.entries > lists.entries || length.masked > lists.masks) state->too_long = 1;
    }
    if (length.entries <= lists.entries) {
        const int end = (length.entries + 2 * PAIR_LANES - 1) / (2 * PAIR_LANES) * (2 * PAIR_LANES);
        for (int k = length.entries + lane; k < end; k += 32) entry[k] = s.far_away;
        length.entries = end;
    }
    length.imaged = __any_sync(FULL, imaged);
    if (lane == 0) lists.length[cluster] = length;
    __syncwarp();
}
