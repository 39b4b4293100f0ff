// p2p_indexed: P2P with sources that stay in place and are found through the list of near boxes.
//
// For each row of the list a warp reads where the box begins and ends and then its parts, one per
// lane, shifted to the targets' centre. Lanes beyond the box's last part are idle. Bound by the
// latency of these dependent loads if boxes have few parts, by instruction issue if they have many.
#include "targets.cuh"

struct Sources {
    int lane, own, end;  // lane number; parts own .. end - 1 of the targets' box
    const int* __restrict__ start;
    const int* __restrict__ row;
    const real4* __restrict__ shift;
    const real4* __restrict__ xq;

    template <class T>
    __device__ __forceinline__ void operator()(T& targets) const {
        for (int k = own + lane; k < end; k += 32) targets.add_own(xq[k], k);
        for (int i = 1; i < NEAR; i++) {
            const int first = start[row[i]], last = start[row[i] + 1];
            const real4 translation = shift[i];
            for (int k = first + lane; k < last; k += 32) {
                real4 source = xq[k];
                source.x += translation.x;
                source.y += translation.y;
                source.z += translation.z;
                targets.add(source);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(32 * PASS_WARPS) p2p_indexed(
    int boxes, int share, const int* __restrict__ start /* (boxes + 1) */,
    const int* __restrict__ near /* (boxes, NEAR): numbers of the near boxes, its own first */,
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
