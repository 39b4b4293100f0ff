// Boxes whose parts get results. With HAS_SHARE they are a device's share among several devices,
// each of which computes the far field of all boxes; what a particle gets from all shares adds up
// to its results. Without HAS_SHARE they are all boxes, and the argument of the kernel is not read.
#pragma once
#include "types.cuh"

struct BoxRange {
    int first, end;
};

__device__ __forceinline__ BoxRange target_boxes(const BoxRange* __restrict__ share) {
    return HAS_SHARE ? *share : BoxRange{0, BOXES};
}
