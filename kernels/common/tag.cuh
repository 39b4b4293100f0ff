// What ranks know of the particles of which they have copies, see ranks.cu.
#pragma once

// The pattern of a particle's excluded partners, and whether the particle has a part in the boxes
// of the rank that has the copy.
struct Pattern {
    int bits;

    __device__ __forceinline__ int number() const { return bits >> 1; }
    __device__ __forceinline__ bool is_own() const { return bits & 1; }
    __device__ __forceinline__ Pattern with_own(bool is_own) const {
        return {(bits & ~1) | is_own};
    }
};

// Of a copy from another rank; the copies of the particles that the rank was given are the first
// ones, in the order of their numbers.
struct Tag {
    int number;  // of the particle among all
    Pattern pattern;
};

// The particles that a rank was given.
struct Given {
    int count, first;  // how many, and the number of the first one among all
};
