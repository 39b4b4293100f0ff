// The sources of a box in p2p: the parts in the boxes of its near stencil, WINDOW at a time in
// shared memory.
#pragma once
#include "common/parts.cuh"
#include "common/reduce.cuh"

#define BATCH 32       // targets whose excluded sources are looked up together: bits of a mask
#define FETCH_STEPS 4  // loads in flight per lane
#define FETCH_SIZE (32 * FETCH_STEPS)
#define WINDOW_CAPACITY ((WINDOW + FETCH_SIZE - 1) / FETCH_SIZE * FETCH_SIZE)

struct Shared {
    real4 source[WINDOW_CAPACITY];
    real4 target[2 * BATCH];  // in ascending, then in descending order, see register_target
    real4 far[BATCH];         // minus the contribution of excluded pairs that are not near
    alignas(16) unsigned mask[WINDOW];  // a set bit excludes the source for that target; the order
                                        // of bits is that of the source's lane, see target_bit
    int begin[NEAR + 1];                // number of sources before each near box, and in total
    int to_part[NEAR + 1];              // part number minus source number, for each near box
    int last_masked[BATCH];             // number of sources up to the last that the target excludes
};

// Reduces i in [-n, 2 n) to [0, n): negative values become large unsigned ones.
__device__ __forceinline__ unsigned wrap(unsigned i, unsigned n) {
    i = min(i, i + n);
    return min(i, i - n);
}

// Number of a box whose index exceeds its range by at most the extent of the near stencil; -1 if
// the box does not exist.
__device__ __forceinline__ int near_number(int i0, int i1, int i2) {
#if !ANY_PADDED && C10 == 0 && C20 == 0 && C21 == 0 && N0 >= REACH0 && N1 >= REACH1 && N2 >= REACH2
    return wrap(i0, N0) + N0 * (wrap(i1, N1) + N1 * wrap(i2, N2));
#else
    const bool inside = (!PADDED0 || (i0 >= 0 && i0 < N0)) && (!PADDED1 || (i1 >= 0 && i1 < N1)) &&
                        (!PADDED2 || (i2 >= 0 && i2 < N2));
    return inside ? box_number(i0, i1, i2) : -1;
#endif
}

// Finds the sources of each near box. Called by one warp.
__device__ __forceinline__ void list_rows(Shared& s, unsigned box, int lane,
                                          const int* __restrict__ start,
                                          const int4* __restrict__ offset) {
    const int h0 = box % N0, h1 = box / N0 % N1, h2 = box / (N0 * N1);
    int sources = 0;
    for (int first = 0; first <= NEAR; first += 32) {
        const int row = first + lane;
        int from = 0, length = 0;
        if (row < NEAR) {
            const int4 n = __ldg(offset + row);
            const int number = near_number(h0 + n.x, h1 + n.y, h2 + n.z);
            if (!ANY_PADDED || number >= 0) {
                from = start[number];
                length = start[number + 1] - from;
            }
        }
        const int inclusive = prefix_sum(length);
        if (row <= NEAR) {
            const int begin = sources + inclusive - length;
            s.begin[row] = begin;
            s.to_part[row] = from - begin;
        }
        sources += __shfl_sync(FULL, inclusive, 31);
    }
    __syncwarp();
}

// Number of sources in a window, rounded up to a multiple of FETCH_SIZE.
__device__ __forceinline__ int padded_size(const Shared& s, int window) {
    return unsigned(min(WINDOW, s.begin[NEAR] - window) + FETCH_SIZE - 1) / FETCH_SIZE * FETCH_SIZE;
}

// Writes the part number and the near box of each source of a window to the place in shared memory
// that will hold the source. Called by one warp. The window is padded with `padding`, the part
// without charge that p2m appends to all others.
__device__ __forceinline__ void index_sources(Shared& s, int window, int lane, int padding) {
    for (int row = lane; row < NEAR; row += 32) {
        const int to_part = s.to_part[row] + window;
#pragma unroll 4
        for (int k = max(0, s.begin[row] - window), end = min(WINDOW, s.begin[row + 1] - window);
             k < end; k++)
            *reinterpret_cast<int2*>(s.source + k) = int2{to_part + k, row};
    }
    const int sources = min(WINDOW, s.begin[NEAR] - window), end = padded_size(s, window);
#pragma unroll
    for (int p = 0; p < FETCH_STEPS; p++) {
        const int k = sources + 32 * p + lane;
        if (k < end) *reinterpret_cast<int2*>(s.source + k) = int2{padding, 0};
    }
    __syncwarp();
}

// Loads sources `from` to `to` of a window, shifted to the box's centre: replaces the entries that
// index_sources wrote by positions and charges, FETCH_STEPS steps at a time.
__device__ __forceinline__ void fetch(Shared& s, int from, int to, int lane,
                                      const real4* __restrict__ xq,
                                      const real4* __restrict__ shift) {
#pragma unroll 1
    for (int k = from + lane; k < to; k += FETCH_SIZE) {
        real4 value[FETCH_STEPS];
#pragma unroll
        for (int p = 0; p < FETCH_STEPS; p++) {
            const int2 at = *reinterpret_cast<const int2*>(s.source + k + 32 * p);
            const real4 by = shift[at.y];
            value[p] = xq[at.x];
            value[p].x += by.x;
            value[p].y += by.y;
            value[p].z += by.z;
        }
#pragma unroll
        for (int p = 0; p < FETCH_STEPS; p++) s.source[k + 32 * p] = value[p];
    }
}
