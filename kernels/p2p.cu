// p2p: direct interactions of the parts of each box with those of its near stencil, exclusions left out.
//
//     Phi_i = sum_j Q_j / r_ij      E_i = sum_j Q_j (x_i - x_j) / r_ij^3
//
// A warp owns a box. The parts of its near stencil, shifted to its own centre, lie in shared memory, WINDOW at a time; a
// lane takes every 32nd of them and lets it meet up to TARGETS of the box's parts, which stay in registers: 14
// floating-point instructions a pair. A mask of BATCH bits tells which targets leave a source out. Rows of the near stencil
// come in order of distance, so that few steps of 32 sources have masks; the others go without. Bound by instruction issue.
//
// Excluded pairs: the image given by the positions is left out if its box is near, and subtracted here if it is not.
#include "common/parts.cuh"

#define TARGETS 4
#define BATCH 16
#define PREFETCH 7
#define NEVER (sizeof(real) == 4 ? real(1e38) : real(1e300))  // squared distance of what is left out
#define ROUNDS ((NEAR + 31) / 32)

static_assert(WINDOW % 32 == 0 && WINDOW < 1024, "a mask has a bit for every step");

struct Shared {
    real4 source[WINDOW];
    unsigned skip[WINDOW / 2];    // BATCH bits each
    real4 far[BATCH];             // what excluded pairs beyond the near stencil contribute
    int first[NEAR];              // first part of each near box
    int begin[NEAR + 1];          // number of sources before it
    unsigned masked[BATCH / TARGETS];  // steps that have masks, a bit each
};

struct Field {
    real phi, x, y, z;
};

template <bool MASKED>
__device__ __forceinline__ void interact(const real4& target, const real4& source, bool skip, Field& sum) {
    const real dx = target.x - source.x, dy = target.y - source.y, dz = target.z - source.z;
    const real r2 = dx * dx + dy * dy + dz * dz;
    const real inverse = rsqrt(MASKED && skip ? NEVER : r2);
    const real s = source.w * inverse, f = s * inverse * inverse;
    sum.phi += s;
    sum.x += f * dx;
    sum.y += f * dy;
    sum.z += f * dz;
}

// Sums over the warp of COUNT values a lane, COUNT a power of two: afterwards lane i holds the sum of value i % COUNT.
template <int COUNT>
__device__ __forceinline__ real transposed_sum(real (&v)[COUNT], int lane) {
    if constexpr (COUNT > 1) {
        real half[COUNT / 2];
        const bool upper = lane & (COUNT / 2);
#pragma unroll
        for (int k = 0; k < COUNT / 2; k++) {
            const real keep = upper ? v[k + COUNT / 2] : v[k], give = upper ? v[k] : v[k + COUNT / 2];
            half[k] = keep + __shfl_xor_sync(FULL, give, COUNT / 2);
        }
        return transposed_sum(half, lane);
    } else {
        return v[0];
    }
}

// The next N steps of sources, noted as part and row, become positions and charges.
template <int N>
__device__ __forceinline__ void fetch(real4* source, const real4* __restrict__ xq, const real4* __restrict__ shift) {
    real4 value[N];
#pragma unroll
    for (int p = 0; p < N; p++) {
        const int2 at = *reinterpret_cast<const int2*>(source + 32 * p);
        const real4 by = shift[at.y];
        value[p] = xq[at.x];
        value[p].x += by.x; value[p].y += by.y; value[p].z += by.z;
    }
#pragma unroll
    for (int p = 0; p < N; p++) source[32 * p] = value[p];
}

// N targets, from number `from` of the batch on, with all sources of the window; adds to `near` or, at first, sets it.
template <int N>
__device__ __forceinline__ void run(const Shared& s, int steps, int lane, int from, const real4* __restrict__ targets,
                                    bool initial, real* __restrict__ near) {
    real4 target[N];
    Field sum[N];
#pragma unroll
    for (int t = 0; t < N; t++) {
        target[t] = targets[t];
        sum[t] = Field{0, 0, 0, 0};
    }
    const unsigned masked = s.masked[from / TARGETS];
#pragma unroll 1
    for (unsigned left = masked; left != 0; left &= left - 1) {
        const int k = 32 * (__ffs(left) - 1) + lane;
        const real4 source = s.source[k];
        const unsigned skip = s.skip[k / 2] >> (BATCH * (k % 2) + from);
#pragma unroll
        for (int t = 0; t < N; t++) interact<true>(target[t], source, skip & (1u << t), sum[t]);
    }
    for (unsigned left = ~masked & ~(~0u << steps); left != 0;) {
        const int begin = __ffs(left) - 1, end = begin + __ffs(~(left >> begin)) - 1;
        left &= ~0u << end;
#pragma unroll 2
        for (int k = 32 * begin + lane; k < 32 * end; k += 32) {
            const real4 source = s.source[k];
#pragma unroll
            for (int t = 0; t < N; t++) interact<false>(target[t], source, false, sum[t]);
        }
    }
    constexpr int COUNT = N > 2 ? 16 : 4 * N;
    real values[COUNT];
#pragma unroll
    for (int t = 0; t < COUNT / 4; t++) {
        values[4 * t] = t < N ? sum[t].phi : 0;
        values[4 * t + 1] = t < N ? sum[t].x : 0;
        values[4 * t + 2] = t < N ? sum[t].y : 0;
        values[4 * t + 3] = t < N ? sum[t].z : 0;
    }
    real total = transposed_sum(values, lane);
#pragma unroll
    for (int d = COUNT; d < 32; d *= 2) total += __shfl_xor_sync(FULL, total, d);
    if (lane < 4 * N) {
        total += reinterpret_cast<const real*>(s.far + from)[lane];
        near[lane] = initial ? total : near[lane] + total;
    }
}

// The image of particle b that an exclusion of a means, as a translation in boxes: 0, or that of the nearest image.
__device__ __forceinline__ int3 excluded_image(const Located& a, const Located& b, const real4& u, const real4& v,
                                               const Parameters* p) {
    int3 shift = {0, 0, 0};
#if MINIMUM_IMAGE
    double d[3], c[3] = {double(u.x) - v.x + (a.box[0] - b.box[0]), double(u.y) - v.y + (a.box[1] - b.box[1]),
                         double(u.z) - v.z + (a.box[2] - b.box[2])};
    const double *e = p->boxes, *h = p->cell;
    d[0] = c[0] * e[0] + c[1] * e[3] + c[2] * e[6];
    d[1] = c[1] * e[4] + c[2] * e[7];
    d[2] = c[2] * e[8];
    const int m2 = int(rint(d[2] / h[8]));
    d[0] -= m2 * h[6]; d[1] -= m2 * h[7];
    const int m1 = int(rint(d[1] / h[4]));
    d[0] -= m1 * h[3];
    const int m0 = int(rint(d[0] / h[0]));
    shift.x = m0 * N0 + m1 * C10 + m2 * C20;
    shift.y = m1 * N1 + m2 * C21;
    shift.z = m2 * N2;
#endif
    return shift;
}

// Number of a box index that leaves its range by at most the reach of the near stencil; -1 if there is no such box.
__device__ __forceinline__ int near_number(int i0, int i1, int i2) {
#if OPEN
    const bool inside = i0 >= 0 && i0 < N0 && i1 >= 0 && i1 < N1 && i2 >= 0 && i2 < N2;
    return inside ? box_number(i0, i1, i2) : -1;
#elif C10 == 0 && C20 == 0 && C21 == 0 && N0 >= REACH0 && N1 >= REACH1 && N2 >= REACH2
    i0 += i0 < 0 ? N0 : (i0 >= N0 ? -N0 : 0);
    i1 += i1 < 0 ? N1 : (i1 >= N1 ? -N1 : 0);
    i2 += i2 < 0 ? N2 : (i2 >= N2 ? -N2 : 0);
    return i0 + N0 * (i1 + N1 * i2);
#else
    return box_number(i0, i1, i2);
#endif
}

extern "C" __global__ void __launch_bounds__(32 * P2P_WARPS, (sizeof(real) == 4 ? 24 : 12) / P2P_WARPS)
p2p(int n, const int* __restrict__ start /* (BOXES + 1) */, const real4* __restrict__ xq /* (parts + 1) */,
    const int* __restrict__ sorted /* (parts) */, const int* __restrict__ place /* (CORNERS, n) */,
    const Located* __restrict__ located, const real4* __restrict__ fraction, const int4* __restrict__ offset /* (NEAR) */,
    const real4* __restrict__ shift /* (NEAR): offset in box widths */,
    const short* __restrict__ row_of /* row of every offset within REACH, -1: not near; first axis fastest */,
    const int* __restrict__ partner_start /* (n + 1) */, const int* __restrict__ partner /* itself and excluded ones */,
    const Parameters* __restrict__ parameters, real* __restrict__ near /* (parts, 4): potential, field */) {
    __shared__ Shared memory[P2P_WARPS];
    const int lane = threadIdx.x % 32;
    Shared& s = memory[threadIdx.x / 32];
    const int box = blockIdx.x * P2P_WARPS + threadIdx.x / 32;
    if (box >= BOXES) return;
    const int first_target = start[box], last_target = start[box + 1], nothing = start[BOXES];
    if (first_target == last_target) return;
    const int h0 = box % N0, h1 = box / N0 % N1, h2 = box / (N0 * N1);

    int sources = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int row = round * 32 + lane;
        int from = 0, length = 0;
        if (row < NEAR) {
            const int4 n = __ldg(offset + row);
            const int number = near_number(h0 + n.x, h1 + n.y, h2 + n.z);
            if (!OPEN || number >= 0) {
                from = start[number];
                length = start[number + 1] - from;
            }
        }
        int inclusive = length;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(FULL, inclusive, d);
            if (lane >= d) inclusive += other;
        }
        if (row < NEAR) {
            s.first[row] = from;
            s.begin[row] = sources + inclusive - length;
        }
        sources += __shfl_sync(FULL, inclusive, 31);
    }
    if (lane == 0) s.begin[NEAR] = sources;
    __syncwarp();

    for (int window = 0; window < sources; window += WINDOW) {
        const int end = min(WINDOW, sources - window), steps = (end + 31) / 32;
        // which part a source is, and the row of its box, noted where the source goes; the last step is filled up with the
        // part without charge that p2m adds behind all others
        if (end + lane < 32 * steps) *reinterpret_cast<int2*>(s.source + end + lane) = int2{nothing, 0};
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            const int row = round * 32 + lane;
            if (row < NEAR) {
                const int begin = s.begin[row];
                const int low = max(0, begin - window), high = min(WINDOW, s.begin[row + 1] - window);
                const int to_part = s.first[row] - begin + window;
                for (int k = low; k < high; k++) *reinterpret_cast<int2*>(s.source + k) = int2{to_part + k, row};
            }
        }
        __syncwarp();
        int step = 0;
        for (; step + PREFETCH <= steps; step += PREFETCH) fetch<PREFETCH>(s.source + 32 * step + lane, xq, shift);
        for (; step < steps; step++) fetch<1>(s.source + 32 * step + lane, xq, shift);

        for (int batch = first_target; batch < last_target; batch += BATCH) {
            const int targets = min(BATCH, last_target - batch);
            __syncwarp();
            for (int k = lane; k < 16 * steps; k += 32) s.skip[k] = 0;
            if (lane < BATCH / TARGETS) s.masked[lane] = 0;
            __syncwarp();
            // two or more lanes a target go through its particle's partners
            const int share = targets > 8 ? 2 : 4, t = lane / share;
            Field far = {0, 0, 0, 0};
            if (t < targets) {
                const int mine = sorted[batch + t], i = mine >> 3;
                const Located at = located[i];
                const int i0 = at.box[0] + step_of(at, mine & 7, 0), i1 = at.box[1] + step_of(at, mine & 7, 1),
                          i2 = at.box[2] + step_of(at, mine & 7, 2);
                const int last = partner_start[i + 1];
                for (int k = partner_start[i] + lane % share; k < last; k += share) {
                    const int j = partner[k];
                    const Located other = located[j];
                    int3 image = {0, 0, 0};
                    if (j != i) image = excluded_image(at, other, fraction[i], fraction[j], parameters);
                    for_each_corner(other, [&](int corner) {
                        const int n0 = other.box[0] + step_of(other, corner, 0) + image.x - i0;
                        const int n1 = other.box[1] + step_of(other, corner, 1) + image.y - i1;
                        const int n2 = other.box[2] + step_of(other, corner, 2) + image.z - i2;
                        int row = -1;
                        if (abs(n0) <= REACH0 && abs(n1) <= REACH1 && abs(n2) <= REACH2)
                            row = row_of[n0 + REACH0 + (2 * REACH0 + 1) * (n1 + REACH1 + (2 * REACH1 + 1) * (n2 + REACH2))];
                        const int part = place[entry_of(8 * j + corner, n)];
                        if (row >= 0) {
                            const int source = s.begin[row] + part - s.first[row] - window;
                            if (source >= 0 && source < WINDOW) {
                                atomicOr(&s.skip[source / 2], 1u << (BATCH * (source % 2) + t));
                                atomicOr(&s.masked[t / TARGETS], 1u << (source / 32));
                            }
                        } else if (window == 0) {
                            const real4 source = xq[part], target = xq[batch + t];
                            const double* e = parameters->boxes;
                            const real dx = target.x - source.x - real(n0 * e[0] + n1 * e[3] + n2 * e[6]);
                            const real dy = target.y - source.y - real(n1 * e[4] + n2 * e[7]);
                            const real dz = target.z - source.z - real(n2 * e[8]);
                            const real inverse = rsqrt(dx * dx + dy * dy + dz * dz);
                            const real v = source.w * inverse, f = v * inverse * inverse;
                            far.phi -= v;
                            far.x -= f * dx;
                            far.y -= f * dy;
                            far.z -= f * dz;
                        }
                    });
                }
            }
            __syncwarp();
            for (int d = 1; d < share; d *= 2) {
                far.phi += __shfl_xor_sync(FULL, far.phi, d);
                far.x += __shfl_xor_sync(FULL, far.x, d);
                far.y += __shfl_xor_sync(FULL, far.y, d);
                far.z += __shfl_xor_sync(FULL, far.z, d);
            }
            if (lane % share == 0 && t < targets) s.far[t] = real4{far.phi, far.x, far.y, far.z};
            __syncwarp();
            for (int from = 0; from < targets; from += TARGETS) {
                const real4* at = xq + batch + from;
                real* to = near + 4 * (batch + from);
                switch (targets - from) {
                    case 1: run<1>(s, steps, lane, from, at, window == 0, to); break;
                    case 2: run<2>(s, steps, lane, from, at, window == 0, to); break;
                    case 3: run<3>(s, steps, lane, from, at, window == 0, to); break;
                    default: run<TARGETS>(s, steps, lane, from, at, window == 0, to);
                }
            }
        }
        __syncwarp();
    }
}
