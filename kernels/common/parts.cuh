// Parts: with smoothing, a particle is split into up to eight charges in neighbouring boxes, see
// fmm_openmm/backends/reference/sort.py. Without smoothing it has one part.
#pragma once
#include "types.cuh"

// Box offset along an axis of a part. The bits of `corner` select the axes along which the part is
// in the neighbouring box instead of the home box.
__device__ __forceinline__ int step_of(const Located& at, int corner, int axis) {
    return SMOOTHED ? (corner >> axis & 1) * side_of(at.sides, axis) : 0;
}

// Whether a particle has more than one part.
__device__ __forceinline__ bool is_split(const Located& at) {
    return SMOOTHED && at.sides != 0x15;
}

// Calls visit(corner) for each part: corners are the subsets of the axes along which the particle
// is split.
template <class Visit>
__device__ __forceinline__ void for_each_corner(const Located& at, Visit visit) {
    int split = 0;
    if (SMOOTHED)
#pragma unroll
        for (int axis = 0; axis < 3; axis++) split |= (side_of(at.sides, axis) != 0) << axis;
    int corner = 0;
    do {
        visit(corner);
        corner = (corner - split) & split;
    } while (corner != 0);
}

// Number of the box that contains a part.
__device__ __forceinline__ int box_of(const Located& at, int corner) {
    return box_number(at.box[0] + step_of(at, corner, 0), at.box[1] + step_of(at, corner, 1),
                      at.box[2] + step_of(at, corner, 2));
}

// Position of a part relative to its box's centre, its fraction of the particle's charge, and the
// gradient of that fraction per box width.
struct Part {
    real x, y, z, weight, slope_x, slope_y, slope_z;
};

__device__ __forceinline__ Part part_of(const Located& at, const real4& fraction, int corner,
                                        const Parameters* parameters) {
    const real u[3] = {fraction.x, fraction.y, fraction.z};
    real w[3], dw[3], c[3];
#pragma unroll
    for (int axis = 0; axis < 3; axis++) {
        const int side = side_of(at.sides, axis), moved = corner >> axis & 1;
        w[axis] = 1;
        dw[axis] = 0;
        if (SMOOTHED && side != 0) {
            const real width = real(2 * SMOOTHING);
            const real t = real(0.5) - (side < 0 ? u[axis] : 1 - u[axis]) / width;
            const real share = t * t * (3 - 2 * t), rate = side * 6 * t * (1 - t) / width;
            w[axis] = moved ? share : 1 - share;
            dw[axis] = moved ? rate : -rate;
        }
        c[axis] = u[axis] - moved * side - real(0.5);
    }
    const double *b = parameters->boxes, *s = parameters->slope;
    const real d0 = dw[0] * w[1] * w[2], d1 = w[0] * dw[1] * w[2], d2 = w[0] * w[1] * dw[2];
    Part part;
    part.x = c[0] * real(b[0]) + c[1] * real(b[3]) + c[2] * real(b[6]);
    part.y = c[1] * real(b[4]) + c[2] * real(b[7]);
    part.z = c[2] * real(b[8]);
    part.weight = w[0] * w[1] * w[2];
    part.slope_x = real(s[0]) * d0 + real(s[1]) * d1 + real(s[2]) * d2;
    part.slope_y = real(s[3]) * d0 + real(s[4]) * d1 + real(s[5]) * d2;
    part.slope_z = real(s[6]) * d0 + real(s[7]) * d1 + real(s[8]) * d2;
    return part;
}

// Index of a part in arrays (CORNERS, n).
__device__ __forceinline__ int entry_of(int particle, int corner, int n) {
    return SMOOTHED ? corner * n + particle : particle;
}

__device__ __forceinline__ int entry_of(int part, int n) {
    return entry_of(part >> 3, part & 7, n);
}

// The parts of each box, in order of arrival. The first LISTED - 1 parts are in `arrived`; the last
// entry of a box heads a linked list of the others, in which `next` holds the part before a part.
struct Lists {
    int n;
    int* count;    // (BOXES)
    int* arrived;  // (BOXES, LISTED) part numbers
    int* next;     // (CORNERS, n) part numbers
};

// Appends a part to the list of a box. Lanes with the same box share one atomic.
__device__ __forceinline__ void append(const Lists& lists, int box, int part) {
    const unsigned peers = __match_any_sync(__activemask(), box), lane = threadIdx.x % 32,
                   leader = __ffs(peers) - 1;
    int arrival = 0;
    if (lane == leader) arrival = atomicAdd(&lists.count[box], __popc(peers));
    arrival = __shfl_sync(peers, arrival, leader) + __popc(peers & ((1u << lane) - 1));
    int* list = lists.arrived + box * (long long)LISTED;
    if (arrival < LISTED - 1)
        list[arrival] = part;
    else
        lists.next[entry_of(part, lists.n)] = atomicExch(&list[LISTED - 1], part);
}

// Converts a position in nm to box coordinates.
__device__ __forceinline__ double3 in_boxes(double x, double y, double z,
                                            const Parameters* __restrict__ parameters) {
    const double* inverse = parameters->inverse;
    if (PADDED0) x -= parameters->origin[0];
    if (PADDED1) y -= parameters->origin[1];
    if (PADDED2) z -= parameters->origin[2];
    double3 s;
    s.x = x * inverse[0] + y * inverse[3] + z * inverse[6] + ORIGIN;
    s.y = x * inverse[1] + y * inverse[4] + z * inverse[7] + ORIGIN;
    s.z = x * inverse[2] + y * inverse[5] + z * inverse[8] + ORIGIN;
    return s;
}

// Locates particle i from its box coordinates. Returns whether it is inside the boxes.
__device__ __forceinline__ bool locate_particle(int i, const double3& x, real charge,
                                                Located* __restrict__ located,
                                                real4* __restrict__ fraction, Located& at) {
    const double coordinate[3] = {x.x, x.y, x.z};
    const int last[3] = {N0, N1, N2};
    bool inside = true;
    at.sides = 0;
    real u[3];
#pragma unroll
    for (int axis = 0; axis < 3; axis++) {
        const double s = coordinate[axis], cell = floor(s);
        // particles with non-finite or huge coordinates or outside all boxes are put into one box,
        // and their results are NaN
        const bool found =
            is_padded(axis) ? s >= SMOOTHING && s < last[axis] - SMOOTHING : fabs(cell) < 1e9;
        inside = inside && found;
        u[axis] = found ? real(s - cell) : real(nan(""));
        int side = 0;
        if (SMOOTHED)
            side = u[axis] < real(SMOOTHING) ? -1 : (u[axis] > real(1 - SMOOTHING) ? 1 : 0);
        at.box[axis] = found ? int(cell) : 0;
        at.sides |= (side + 1) << (2 * axis);
    }
    located[i] = at;
    fraction[i] = real4{u[0], u[1], u[2], charge};
    return inside;
}

// Appends the parts of a particle to the lists of their boxes.
__device__ __forceinline__ void append_parts(int i, const Located& at, const Lists& lists) {
    for_each_corner(at, [&](int corner) { append(lists, box_of(at, corner), 8 * i + corner); });
}

// Locates particle i from its box coordinates and appends its parts to the lists of their boxes.
// Returns whether the particle is inside the boxes.
__device__ __forceinline__ bool place_particle(int i, const double3& x, real charge,
                                               Located* __restrict__ located,
                                               real4* __restrict__ fraction, const Lists& lists) {
    Located at;
    const bool inside = locate_particle(i, x, charge, located, fraction, at);
    append_parts(i, at, lists);
    return inside;
}
