// The share of one of several devices: the near field in a range of boxes, and the far field in
// another. Each device lists all parts. What a particle gets from all devices adds up to its
// results. Without HAS_SHARE one device computes all, and the argument of the kernel is not read.
#pragma once
#include "types.cuh"

struct BoxRange {
    int first, end;
};

struct Share {
    BoxRange near, far;
};

__device__ __forceinline__ BoxRange near_boxes(const Share* __restrict__ share) {
    return HAS_SHARE ? share->near : BoxRange{0, BOXES};
}

__device__ __forceinline__ BoxRange far_boxes(const Share* __restrict__ share) {
    return HAS_SHARE ? share->far : BoxRange{0, BOXES};
}
