// p2p: direct interactions of the parts of each box with those of its near stencil, without
// excluded pairs.
//
//     Phi_i = sum_j Q_j / r_ij      E_i = sum_j Q_j (x_i - x_j) / r_ij^3
//
// A block of two warps owns a box. The first warp lists the parts in the near stencil and loads
// them into shared memory, WINDOW at a time, shifted to the box's centre (p2p_sources.cuh).
// Meanwhile the second warp looks up excluded pairs (p2p_exclusions.cuh) and then loads the last
// sources. After that, each warp accumulates half of the box's parts (p2p_sums.cuh): TARGETS of
// them are in registers, and a lane takes every 32nd source, 14 floating-point instructions per
// pair. A mask of BATCH bits per source tells which targets exclude it. The near stencil is ordered
// by distance, hence only the first few steps of 32 sources need masks. The kernel is bound by
// instruction issue, two thirds of it for pairs, and by the latency of building the lists.
//
// The two warps of a block run on different schedulers of a multiprocessor, the first warp always
// on the same two. Their roles alternate from box to box, so that all schedulers are equally
// loaded.
//
// Potentials are computed if they are requested or if particles are split, because the forces on
// split particles depend on potentials. The second condition is a macro, since code that handles
// both cases at run time is slower. So is VIRIAL, with which each warp also sums the work of its
// pairs (p2p_work.cuh).
#include "common/p2p_exclusions.cuh"
#include "common/share.cuh"

// Named barrier of a block: one warp arrives without waiting for the other, which waits.
template <int BARRIER>
__device__ __forceinline__ void arrive() {
#ifdef __CUDA_ARCH__
    asm volatile("bar.arrive %0, 64;" ::"n"(BARRIER) : "memory");
#else
    __syncthreads();
#endif
}

template <int BARRIER>
__device__ __forceinline__ void wait() {
#ifdef __CUDA_ARCH__
    asm volatile("bar.sync %0, 64;" ::"n"(BARRIER) : "memory");
#else
    __syncthreads();
#endif
}

// Masks the targets of a batch among the sources, the first at place `own` if that is in the
// window, and forgets the sums of the batch before.
__device__ __forceinline__ void mask_targets(Shared& s, int lane, int own) {
    const bool here = own >= 0 && own < WINDOW;
    if (here) s.mask[own + lane] = target_bit(lane, lane);
    s.last_masked[lane] = here ? own + lane + 1 : 0;
    s.far[lane] = real4{0, 0, 0, 0};
}

extern "C" __global__ void __launch_bounds__(64, sizeof(real) == 4 ? (VIRIAL ? 12 : 14) : 6)
    p2p(int n, const int* __restrict__ start /* (BOXES + 1) */,
        const real4* __restrict__ xq /* (parts + 1) */,
        const int* __restrict__ sorted /* (parts) */,
        const int* __restrict__ place /* (CORNERS, n) */, const Located* __restrict__ located,
        const real4* __restrict__ fraction, const int4* __restrict__ offset /* (NEAR) */,
        const real4* __restrict__ shift /* (NEAR): offset in box widths */,
        const int* __restrict__ row_of /* offset to near box, -1: none; first axis fastest */,
        const int* __restrict__ partner_start /* (n + 1), or COPIES: (patterns + 1) */,
        const int* __restrict__ partner /* the particle itself, then its exclusions */,
#if COPIES
        int given, int first, const Pattern* __restrict__ pattern /* (given): see ranks.cu */,
        const Tag* __restrict__ tag /* (n - given) */, const int* __restrict__ copy_of /* (all) */,
#endif
        const Parameters* __restrict__ parameters,
        const int* __restrict__ potentials_wanted /* (1): not only forces */,
#if VIRIAL
        real* __restrict__ near_work /* (BOXES, 2, WORK_SUMS), of boxes with parts */,
#endif
        real4* __restrict__ near /* (parts): potential, field */,
        const Share* __restrict__ share /* (1) */) {
    __shared__ Shared s;
    const BoxRange boxes = near_boxes(share);
    const int lane = threadIdx.x % 32, box = boxes.first + blockIdx.x;
    if (HAS_SHARE && box >= boxes.end) return;
    const bool fetches_sources = (threadIdx.x < 32) == (box % 2 == 0);
    const int first_target = start[box], last_target = start[box + 1];
    if (first_target == last_target) return;
    const ExclusionTables tables = {n,
                                    xq,
                                    sorted,
                                    place,
                                    located,
                                    fraction,
                                    row_of,
                                    partner_start,
                                    partner,
                                    parameters,
#if COPIES
                                    {given, first},
                                    pattern,
                                    tag,
                                    copy_of
#endif
    };
    if (fetches_sources) list_rows(s, box, lane, start, offset);
    int window = 0;
    Work work;
    do {
        for (int batch = first_target; batch < last_target; batch += BATCH) {
            const int targets = min(BATCH, last_target - batch);
            ExclusionCursor cursor;
            if (!fetches_sources) {
                if (lane < targets)
                    s.target[lane] = s.target[2 * BATCH - 1 - lane] = xq[batch + lane];
#pragma unroll
                for (int k = 4 * lane; k < WINDOW; k += 128)
                    *reinterpret_cast<int4*>(s.mask + k) = int4{0, 0, 0, 0};
                cursor = begin_exclusions(tables, lane, batch, targets);
                __syncwarp();
                // sources begin with the box's own parts
                mask_targets(s, lane, batch - first_target - window);
            }
            if (fetches_sources) {
                arrive<1>();
                if (batch == first_target) index_sources(s, window, lane, start[BOXES]);
                arrive<2>();
            } else {
                wait<1>();
                FarField far = {s.target + cursor.target, work};
                if (apply_exclusions(s, tables, cursor, batch, window, far))
                    s.far[cursor.target] = real4{far.sum.phi, far.sum.x, far.sum.y, far.sum.z};
                wait<2>();
            }
            // the second warp loads a third of the window, unless it has split particles to look up
            if (batch == first_target) {
                const int end = padded_size(s, window),
                          own = SMOOTHED ? end : end - end / FETCH_SIZE / 3 * FETCH_SIZE;
                fetch(s, fetches_sources ? 0 : own, fetches_sources ? own : end, lane, xq, shift);
            }
            __syncthreads();
            const int steps = unsigned(min(WINDOW, s.begin[NEAR] - window) + 31) / 32,
                      half = unsigned(targets + 1) / 2;
            accumulate_targets(*potentials_wanted, s, steps, fetches_sources ? 0 : half,
                               fetches_sources ? half : targets, batch, window == 0, work, near);
            __syncthreads();
        }
        window += WINDOW;
    } while (window < s.begin[NEAR]);
#if VIRIAL
    work.store(near_work + (2 * box + threadIdx.x / 32) * WORK_SUMS);
#endif
}
