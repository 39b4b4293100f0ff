// Where the spectra of grids are: (GRIDS, D0, D1, HALF) on one GPU.
//
// Ranks share the grids if DIVIDED. Each has some planes, for all wave vectors, and the wave
// vectors of a range of k2, in all planes. The blocks that ranks exchange are contiguous on both:
//
//     of a rank's planes        for the range of each rank in turn (PLANES0, GRIDS, D1, range)
//     of a rank's wave vectors  (D0, GRIDS, D1, WAVES2)
//
// The values of a rank's planes for its own wave vectors are only among the latter.
#pragma once
#include "common/types.cuh"

#define HALF (D2 / 2 + 1)

// Distance between the terms of WAVES2 wave vectors, and rows of these between planes.
#if DIVIDED
#define TERM_STRIDE ((long long)D1 * WAVES2)
#define PLANE_ROWS (GRIDS * D1)
#else
#define TERM_STRIDE ((long long)D0 * D1 * WAVES2)
#define PLANE_ROWS D1
#endif
