// p2p_replicated: P2P with sources that are first copied, for every box, into one contiguous
// stream.
//
//   replicate        copies the parts of all near boxes of a box, shifted to its centre, its own
//                    first. A block has `group` boxes. It lists the destination of each near box,
//                    reserves space for all streams with one atomic, and finds each source by
//                    bisection of the list. Bound by writing the streams
//   p2p_replicated   sums over the streams. Bound by reading them if boxes have few parts, by
//                    instruction issue if they have many
//
// The order of the streams in memory depends on the scheduling of blocks; results do not.
//
//   COPY_WARPS  warps per block of replicate               COPY_BOXES  its maximum boxes per block
#include "common/reduce.cuh"
#include "targets.cuh"

struct List {
    int begin[NEAR + 1];  // number of sources before each near box
    int from[NEAR];       // part number minus source number
};

static_assert(COPY_BOXES * (sizeof(List) + sizeof(long long)) <= 48 * 1024,
              "lists fit into shared memory");

// Lists the sources of a box. Called by one warp.
__device__ __forceinline__ void fill(List& list, int lane, const int* __restrict__ start,
                                     const int* __restrict__ row) {
    int sources = 0;
    for (int first = 0; first < NEAR; first += 32) {
        const int i = first + lane, number = i < NEAR ? row[i] : 0, part = start[number];
        const int length = i < NEAR ? start[number + 1] - part : 0;
        const int inclusive = prefix_sum(length);
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
              unsigned long long* __restrict__ taken /* (1): total length of the streams so far */,
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
        const long long base = atomicAdd(taken, (unsigned long long)total);
        for (int b = 0; b < count; b++) begins[b] += base;
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
            const real4 translation = shift[low];
            source.x += translation.x;
            source.y += translation.y;
            source.z += translation.z;
            to[k] = source;
        }
    }
}

struct Sources {
    // lane number; first part and number of parts of the targets' box; length of the stream
    int lane, own, count, length;
    const real4* __restrict__ stream;

    template <class T>
    __device__ __forceinline__ void operator()(T& targets) const {
        const int steps = (count + 31) / 32 * 32;  // which include the box's own parts
        for (int k = lane; k < min(steps, length); k += 32) targets.add_own(stream[k], own + k);
        for (int k = steps + lane; k < length; k += 32) targets.add(stream[k]);
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
