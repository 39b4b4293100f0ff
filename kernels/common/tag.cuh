// Tags of the particles that ranks send to each other, see ranks.cu.
#pragma once

struct Tag {
    int bits;     // the number of the particle among all; the lowest bit: whether it has a part in
                  // the boxes of the rank that has the copy
    int pattern;  // of its excluded partners

    __device__ __forceinline__ int number() const { return bits >> 1; }
    __device__ __forceinline__ bool is_own() const { return bits & 1; }
};
