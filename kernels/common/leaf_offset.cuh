// Vectors from the centres of the boxes of the root grid to those of their leaves, in mean box
// widths.
#pragma once
#include "common/levels.cuh"
#include "common/types.cuh"

struct LeafOffset {
    double x, y, z;

    __device__ __forceinline__ LeafOffset(const Target& parent, int child,
                                          const Parameters* parameters) {
        const int across = 2 * parent.half;  // leaves per box of the root grid along each axis
        const double i0 = (2 * parent.x + (child & 1)) % across + 0.5 - parent.half,
                     i1 = (2 * parent.y + (child >> 1 & 1)) % across + 0.5 - parent.half,
                     i2 = (2 * parent.z + (child >> 2)) % across + 0.5 - parent.half;
        const double* b = parameters->boxes;
        x = i0 * b[0] + i1 * b[3] + i2 * b[6];
        y = i1 * b[4] + i2 * b[7];
        z = i2 * b[8];
    }
};
