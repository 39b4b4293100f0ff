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

// The spectra of a rank's planes.
template <class Value>
struct PlaneSpectra {
    Value* others;
#if DIVIDED
    Value* own;         // those for the rank's own wave vectors
    const int2* range;  // (HALF): the first k2 of the range that contains it, and its length

    // Value k2 of a line of a grid, PLANES0 x D1 lines.
    __device__ __forceinline__ Value* at(long long grid, int line, int k2) const {
        const int2 in = range[k2];
        Value* block =
            WAVES2 > 0 && in.x == FIRST2 ? own : others + in.x * (long long)(PLANES0 * GRIDS * D1);
        return block + ((line / D1 * GRIDS + grid) * D1 + line % D1) * in.y + (k2 - in.x);
    }
#endif
};
