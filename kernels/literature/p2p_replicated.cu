// p2p_replicated: P2P whose sources are first copied, for every box, into one contiguous stream.
//
//   replicate        the parts of all near boxes of a box, shifted to its centre, its own first,
//                    one after the other. A block has `group` boxes: it lists where the sources of
//                    each near box go, takes room for all in one atomic, and then finds each source
//                    by bisection of the list. Bound by writing the streams.
//   p2p_replicated   goes through the streams. Bound, in boxes of few parts, by reading them; in
//                    full ones by instruction issue.
//
// Streams lie in the order in which blocks took their room, on which no result depends.
//
//   COPY_WARPS  warps a block of replicate               COPY_BOXES  most boxes of one
#include "targets.cuh"

struct List {
    int begin[NEAR + 1];  // number of sources before those of a near box
    int from[NEAR];       // what to add to a source's number for that of its part
};

static_assert(COPY_BOXES * (sizeof(List) + sizeof(long long)) <= 48 * 1024,
              "lists fit into shared memory");

// Done by one warp.
__device__ __forceinline__ void fill(List& list, int lane, const int* __restrict__ start,
                                     const int* __restrict__ row) {
    int sources = 0;
    for (int first = 0; first < NEAR; first += 32) {
        const int i = first + lane, number = i < NEAR ? row[i] : 0, part = start[number];
        const int length = i < NEAR ? start[number + 1] - part : 0;
        int inclusive = length;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(FULL, inclusive, d);
            if (lane >= d) inclusive += other;
        }
        if (i < NEAR) {
            list.begin[i] = sources + inclusive - length;
            list.from[i] = part - list.begin[i];
        }
        sources += __shfl_sync(FULL, inclusive, 31);
    }
    if (lane == 0) list.begin[NEAR] = sources;
}

extern "C" __global__ void __launch_bounds__(32 * COPY_WARPS)
    replicate(int boxes, int group, const int* __restrict__ start /* (boxes + 1) */,
              const int* __restrict__ near /* (boxes, NEAR) */,
              const real4* __restrict__ shift /* (NEAR) */,
              const real4* __restrict__ xq /* (parts) */,
              unsigned long long* __restrict__ taken /* (1): length of all streams so far */,
              long long* __restrict__ begin /* (boxes): of each stream */,
              int* __restrict__ length /* (boxes) */, real4* __restrict__ stream) {
    __shared__ List lists[COPY_BOXES];
    __shared__ long long begins[COPY_BOXES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * group,
              count = min(group, boxes - first);
    for (int b = warp; b < count; b += COPY_WARPS)
        fill(lists[b], lane, start, near + (first + b) * (long long)NEAR);
    __syncthreads();
    if (threadIdx.x == 0) {
        long long total = 0;
        for (int b = 0; b < count; b++) {
            begins[b] = total;
            total += lists[b].begin[NEAR];
        }
        const long long room = atomicAdd(taken, (unsigned long long)total);
        for (int b = 0; b < count; b++) begins[b] += room;
    }
    __syncthreads();
    if (threadIdx.x < count) {
        begin[first + threadIdx.x] = begins[threadIdx.x];
        length[first + threadIdx.x] = lists[threadIdx.x].begin[NEAR];
    }
    const int ways = max(1, COPY_WARPS / group), way = warp / group;  // warps that share a box
    for (int b = warp % group; b < count && way < ways; b += COPY_WARPS) {
        const List& list = lists[b];
        real4* to = stream + begins[b];
        for (int k = 32 * way + lane; k < list.begin[NEAR]; k += 32 * ways) {
            int low = 0, high = NEAR;  // begin[low] <= k < begin[high]
            while (high - low > 1) {
                const int middle = (low + high) / 2;
                if (list.begin[middle] <= k)
                    low = middle;
                else
                    high = middle;
            }
            real4 source = xq[k + list.from[low]];
            const real4 by = shift[low];
            source.x += by.x;
            source.y += by.y;
            source.z += by.z;
            to[k] = source;
        }
    }
}

struct Sources {
    // of the lane; first part and number of parts of the targets' box; length of the stream
    int lane, own, count, all;
    const real4* __restrict__ stream;

    template <class T>
    __device__ __forceinline__ void operator()(T& targets) const {
        const int steps = (count + 31) / 32 * 32;  // with the box's own parts among them
        for (int k = lane; k < min(steps, all); k += 32) targets.meet_own(stream[k], own + k);
        for (int k = steps + lane; k < all; k += 32) targets.meet(stream[k]);
    }
};

extern "C" __global__ void __launch_bounds__(32 * PASS_WARPS)
    p2p_replicated(int boxes, int share, const int* __restrict__ start /* (boxes + 1) */,
                   const long long* __restrict__ begin, const int* __restrict__ length,
                   const real4* __restrict__ stream, const real4* __restrict__ xq /* (parts) */,
                   real4* __restrict__ results /* (parts): potential, field */) {
    const int warp = blockIdx.x * PASS_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32,
              box = warp / share;
    if (box >= boxes) return;
    const int own = start[box], end = start[box + 1];
    const Sources sources = {lane, own, end - own, length[box], stream + begin[box]};
    all_passes(own, end, warp % share, share, lane, xq, sources, results);
}
