// Types and constants of the kernels for particles and boxes. Lengths are in mean box widths.
//
// Macros set by the loader:
//   REAL             float or double
//   ORDER            expansion order p
//   SMOOTHED         whether particles are split into parts
//   SMOOTHING        half of the transition width between boxes, box widths
//   POSITION         type of the positions
//   ORIGIN           position of the origin in its box
//   IMAGES           whether the particles have periodic images that are not boxes of the grid
//   N0, N1, N2       diagonal of the counts matrix; C10, C20, C21: its lower triangle
//   PADDED0 ..       see padding.cuh: the N0 x N1 x N2 boxes lie in a corner of a larger Fourier
//                    grid
//   ORDERED          whether the slot of every box is its number
//   STRIDE           distance between successive terms of a box's expansion: POINTS, or 32 with
//                    levels
//   LISTED           capacity of the list of a box's parts
//   REGION           boxes whose parts are counted together
//   P2M_LANES        lanes per box in p2m
//   L2P_WARPS        warps (1 or 4) that share the terms of a part in l2p
//   L2P_BOXES        boxes per block of l2p
//   SETS             sets of charges of the same particles that are evaluated together
//   FIELDS           whether fields of the sets are computed, or potentials alone
//   SETS_BOXES, SETS_CHUNK
//                    boxes of a block of p2m_sets, and parts whose harmonics it holds at a time
//   WORK_WAVES, WORK_IMAGES
//                    wave vectors of a block of lattice_work, and how many of them mirror each
//                    other
//   NEAR             number of boxes in the near stencil
//   REACH0 ..        largest offset in the near stencil along each axis
//   HAS_SHARE        whether the results are those of a share of the boxes, see share.cuh
//   COPIES           whether particles are copies of those of all ranks, see ranks.cu
//   RANK, RANKS      this rank and the number of all, see ranks.cu
//   SUM_BLOCK        threads of a block of sum_lists
//   VIRIAL           whether p2p sums the work of its pairs, and gather the virial
//   WINDOW           sources that p2p holds in shared memory at a time
//   CONVOLVE_WARPS   warps per block of convolve
//   STAGED           whether convolve copies the operator to shared memory
//   MIRRORED_WARPS, MIRRORED_WAVES
//                    warps and wave vectors per block of convolve_mirrored
//   D0, D1, D2       lengths of the Fourier transforms
//   DIVIDED          whether ranks share the grids, see spectra.cuh
//   FIRST2, WAVES2   first and number of the last indices of wave vectors in the convolution and in
//                    transforms along the first axis: 0 and D2 / 2 + 1, unless ranks share them
//   PLANES0          planes of a grid that are transformed along the last axis: D0, likewise
//   GRIDS            grids that are transformed: TERMS for each set of charges
//   DFT_THREADS      maximum threads per block of dft
//   DFT_ROWS         rows of a plane in dft: D1 or 1
//   DFT_PITCH        values per row in shared memory
//   DFT_PAIRS        pairs of planes per block of dft_planes
//   DFT_COLUMNS0 ..  columns along an axis per block of dft_columns
#pragma once
#include "padding.cuh"
#include "parameters.cuh"
#include "real.cuh"

typedef unsigned long long uint64;

#define BOXES (N0 * N1 * N2)
#define POINTS (D0 * D1 * D2)  // points of the Fourier grid, at least one per box
#define CORNERS (SMOOTHED ? 8 : 1)

// Location of a particle: its home box (unwrapped), and the side on which it is split along each
// axis.
struct __align__(16) Located {
    int box[3];
    int sides;  // side + 1 for each of the three axes, in base 4
};

__device__ __forceinline__ int side_of(int sides, int axis) {
    return ((sides >> (2 * axis)) & 3) - 1;
}

// Box number, in memory order with the first axis fastest, of a box index. The index may be
// unwrapped; without periodic images it must be in range.
__device__ __forceinline__ int floor_div(int a, int b) {
    int q = a / b;
    return q - (a - q * b < 0);
}

__device__ __forceinline__ int box_number(int i0, int i1, int i2) {
    if (!PADDED2) {
        const int w = floor_div(i2, N2);
        i2 -= w * N2;
        i1 -= w * C21;
        i0 -= w * C20;
    }
    if (!PADDED1) {
        const int w = floor_div(i1, N1);
        i1 -= w * N1;
        i0 -= w * C10;
    }
    if (!PADDED0) i0 -= floor_div(i0, N0) * N0;
    return i0 + N0 * (i1 + N1 * i2);
}
