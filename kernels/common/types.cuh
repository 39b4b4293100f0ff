// Types and constants shared by all kernels of particles and boxes. Lengths are in mean box widths.
//
// Macros set by the loader:
//   REAL             float or double
//   ORDER            expansion order p
//   SMOOTHED         whether particles are split into parts
//   SMOOTHING        transition width, box widths
//   CONVOLVE_WARPS   warps a block of convolve
//   LISTED           parts that a box's list holds
//   REGION           boxes that are also counted together
//   MIRRORED_WARPS, MIRRORED_WAVES
//                    warps and wave vectors a block of convolve_mirrored
//   P2M_LANES        lanes a box in p2m
//   L2P_WARPS        warps (1 or 4) that share a part's terms in l2p
//   L2P_BOXES        boxes a block of l2p
//   ORDERED          whether every box's slot is its number
//   DFT_THREADS      threads a block of dft at most
//   D0, D1, D2       lengths of the Fourier transforms
//   DFT_ROWS         rows of a plane there: D1, or 1
//   DFT_PITCH        values a row takes in shared memory
//   DFT_PAIRS        pairs of planes a block of dft_planes
//   DFT_COLUMNS0 ..  columns along an axis a block of dft_columns
//   WINDOW           sources a box holds at a time in p2p
//   NEAR             number of boxes of the near stencil
//   POSITION         type of the positions given
//   ORIGIN           where the origin lies in its box
//   REACH0 ..        largest offsets in it along each axis
//   STAGED           whether convolve keeps the operator in shared memory
//   N0, N1, N2       diagonal of the counts matrix, C10, C20, C21 its lower triangle
//   STRIDE           from one term of a box's expansion to the next: POINTS, with levels below the
//                    root grid 32
//   OPEN             whether boxes cover the particles only: then N0, N1, N2 boxes lie in a corner
//                    of a larger Fourier grid
//   IMAGES           whether the particles have periodic images
#pragma once
#include "parameters.cuh"
#include "real.cuh"

typedef unsigned long long uint64;

#define BOXES (N0 * N1 * N2)
#define POINTS (D0 * D1 * D2)  // points of a Fourier grid, at least one for each box
#define CORNERS (SMOOTHED ? 8 : 1)

// Where a particle is: its home box (unwrapped), and along each axis the side on
// which it is split, packed.
struct __align__(16) Located {
    int box[3];
    int sides;  // (side + 1) in base 4 for the three axes
};

__device__ __forceinline__ int side_of(int sides, int axis) {
    return ((sides >> (2 * axis)) & 3) - 1;
}

// Box number in memory order of a box index: first axis fastest. The index is unwrapped, or without
// images within its range.
__device__ __forceinline__ int floor_div(int a, int b) {
    int q = a / b;
    return q - (a - q * b < 0);
}

__device__ __forceinline__ int box_number(int i0, int i1, int i2) {
#if !OPEN
    int w = floor_div(i2, N2);
    i2 -= w * N2;
    i1 -= w * C21;
    i0 -= w * C20;
    w = floor_div(i1, N1);
    i1 -= w * N1;
    i0 -= w * C10;
    i0 -= floor_div(i0, N0) * N0;
#endif
    return i0 + N0 * (i1 + N1 * i2);
}
