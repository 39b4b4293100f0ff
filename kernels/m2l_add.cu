// m2l_add: adds the results of m2l, one sum for each share of the interaction lists, to the local
// expansions of a level; on the leaves also the part of the trace term that the root grid does not
// contain (fmm_openmm/expansions/background.py).
//
// A block owns 32 targets at one child position; its warps share their sources and their terms.
// Bound by reading moments.
//
// APART (with smoothing in float32): the term of degree 0 is summed here in float64 instead of by
// m2l, see l2l.cu; for this, float32 moments are accurate enough.
#include "common/leaf_offset.cuh"

#define WARPS M2L_ADD_WARPS

// The term of degree 0; valid in the first warp of the block.
__device__ __forceinline__ double degree_zero(const Target& target, int count,
                                              const int4* __restrict__ list,
                                              const double2* __restrict__ rows,
                                              const real* __restrict__ moments) {
    __shared__ double partial[WARPS][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    double sum = 0;
    for (int i = warp; i < count; i += WARPS) {
        const double2* row = rows + (list[i].w >> 3) * (long long)((TERMS + 1) / 2);
        const real* source = moments + target.source(list[i]);
#pragma unroll 8
        for (int b = 0; b < TERMS / 2; b++) {
            const double2 two = row[b];
            sum += two.x * source[2 * b * WARP];
            sum += two.y * source[(2 * b + 1) * WARP];
        }
        if (TERMS % 2 == 1) sum += row[TERMS / 2].x * source[(TERMS - 1) * WARP];
    }
    partial[warp][lane] = sum;
    __syncthreads();
    for (int w = 1; w < WARPS; w++) sum += partial[w][lane];
    return sum;
}

extern "C" __global__ void __launch_bounds__(WARP* WARPS)
    m2l_add(int half, int is_leaf, int count, const int4* __restrict__ list /* (8, count) */,
            const double2* __restrict__ rows /* (translations, (TERMS + 1) / 2) */,
            const real* __restrict__ moments /* slabs */, int shares,
            const real* __restrict__ sums /* (shares) slabs */,
            const double* __restrict__ trace /* (11), see trace_levels.cu */,
            const Parameters* __restrict__ parameters,
            double* __restrict__ central /* slabs of one term */,
            real* __restrict__ local /* slabs */) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, groups = groups_of(half),
              child = blockIdx.y;
    const Target target(blockIdx.x * WARP + lane, half);
    const double precise =
        APART ? degree_zero(target, count, list + child * count, rows, moments) : 0;
    if (blockIdx.x * WARP + lane >= parents_of(half)) return;
    const long long length = 8LL * groups * (TERMS * WARP), own = child * groups + blockIdx.x;
    local += own * (TERMS * WARP) + lane;
    sums += own * (TERMS * WARP) + lane;
    const double* change = trace + 7;
    const LeafOffset at(target, child, parameters);
    for (int a = warp; a < TERMS; a += WARPS) {
        real total = 0;
        if (a > 0 || !APART)
            for (int n = 0; n < shares; n++) total += sums[n * length + a * WARP];
        if (a == 0) {
            double potential = central[own * WARP + lane] + (APART ? precise : total);
            if (is_leaf)
                potential += at.x * (at.x * trace[0] + trace[3] + change[0]) +
                             at.y * (at.y * trace[1] + trace[4] + change[1]) +
                             at.z * (at.z * trace[2] + trace[5] + change[2]) + change[3];
            central[own * WARP + lane] = potential;
            local[0] = real(potential);
            continue;
        }
        // the harmonics y / 2, z and x / 2
        if (is_leaf && a == 1) total += real(2 * (2 * at.y * trace[1] + change[1]));
        if (is_leaf && a == 2) total += real(2 * at.z * trace[2] + change[2]);
        if (is_leaf && a == 3) total += real(2 * (2 * at.x * trace[0] + change[0]));
        local[a * WARP] += total;
    }
}
