// p2p_indexed: P2P whose sources stay where they are and are found, box by box,
// through the list of near boxes.
//
// A row of the list at a time: where its box begins and ends, and then its parts, shifted to the
// targets' centre, one a lane. Lanes beyond the box's last part are idle. Bound, in boxes of few
// parts, by the latency of these dependent loads; in full ones by instruction issue.
#include "targets.cuh"

struct Sources {
    int lane, own, end;  // of the lane; parts of the targets' box
    const int* __restrict__ start;
    const int* __restrict__ row;
    const real4* __restrict__ shift;
    const real4* __restrict__ xq;

    template <class T>
    __device__ __forceinline__ void operator()(T& targets) const {
        for (int k = own + lane; k < end; k += 32) targets.meet_own(xq[k], k);
        for (int i = 1; i < NEAR; i++) {
            const int first = start[row[i]], last = start[row[i] + 1];
            const real4 by = shift[i];
            for (int k = first + lane; k < last; k += 32) {
                real4 source = xq[k];
                source.x += by.x;
                source.y += by.y;
                source.z += by.z;
                targets.meet(source);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(32 * PASS_WARPS) p2p_indexed(
    int boxes, int share, const int* __restrict__ start /* (boxes + 1) */,
    const int* __restrict__ near /* (boxes, NEAR): numbers of the near boxes, itself first */,
    const real4* __restrict__ shift /* (NEAR): offset in box widths */,
    const real4* __restrict__ xq /* (parts) */,
    real4* __restrict__ results /* (parts): potential, field */) {
    const int warp = blockIdx.x * PASS_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32,
              box = warp / share;
    if (box >= boxes) return;
    const int own = start[box], end = start[box + 1];
    const Sources sources = {lane, own, end, start, near + (long long)box * NEAR, shift, xq};
    all_passes(own, end, warp % share, share, lane, xq, sources, results);
}
