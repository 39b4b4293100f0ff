// The spectra of a rank's planes, see spectra.cuh. They depend on the rank, and are therefore apart
// from what all ranks share: kernels are compiled for every value of the macros in their headers.
#pragma once
#include "common/spectra.cuh"

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
