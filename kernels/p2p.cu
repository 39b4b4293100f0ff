// p2p: direct interactions of the parts of each box with those of its near stencil, exclusions left out.
//
//     Phi_i = sum_j Q_j / r_ij      E_i = sum_j Q_j (x_i - x_j) / r_ij^3
//
// A warp owns a box. Its lanes hold one source each, up to TARGETS of the box's parts stay in registers, and every source
// meets all of them: 14 floating-point instructions a pair. Shared memory holds a window of the list of sources, with the
// row of the near stencil each comes from and a byte that says which targets leave it out; `masked` says which steps of 32
// sources have any such byte. Sources of the next step are loaded while this one is computed. Bound by instruction issue.
//
// Excluded pairs: the image given by the positions is left out if its box is near, and subtracted here if it is not.
#include "common/parts.cuh"

#define WARPS 4
#define TARGETS 8
#define WINDOW 512
#define ROUNDS ((NEAR + 31) / 32)

struct Shared {
    int first[NEAR];              // first part of each near box
    int begin[NEAR + 1];          // number of sources before it
    int source[WINDOW];           // parts in the window
    unsigned short row[WINDOW];   // rows of the near stencil they come from
    unsigned skip[WINDOW / 4];    // a byte each: targets that leave it out
    unsigned masked;              // a bit for every step of 32 sources
};

struct Sums {
    real phi[TARGETS], ex[TARGETS], ey[TARGETS], ez[TARGETS];
};

template <int N, bool MASKED>
__device__ __forceinline__ void interact(const real4& source, unsigned mask, const real (&tx)[TARGETS],
                                         const real (&ty)[TARGETS], const real (&tz)[TARGETS], Sums& sums) {
#pragma unroll
    for (int t = 0; t < N; t++) {
        const real dx = tx[t] - source.x, dy = ty[t] - source.y, dz = tz[t] - source.z;
        const real r2 = dx * dx + dy * dy + dz * dz;
        const bool skip = MASKED && (mask >> t & 1);
        const real inverse = rsqrt(skip ? real(1) : r2);
        const real s = (skip ? real(0) : source.w) * inverse, f = s * inverse * inverse;
        sums.phi[t] += s;
        sums.ex[t] += f * dx;
        sums.ey[t] += f * dy;
        sums.ez[t] += f * dz;
    }
}

// The window's sources, 32 at a time, with N targets. The list is padded to whole steps with charges of 0.
template <int N>
__device__ __forceinline__ void run(const Shared& s, int steps, int lane, const real4* __restrict__ xq,
                                    const real4* __restrict__ shift, const real (&tx)[TARGETS], const real (&ty)[TARGETS],
                                    const real (&tz)[TARGETS], Sums& sums) {
    const unsigned masked = s.masked;
    const auto fetch = [&](int k) {
        const int part = s.source[k];
        real4 source = xq[max(part, 0)];
        const real4 by = shift[s.row[k]];
        source.x += by.x; source.y += by.y; source.z += by.z;
        if (part < 0) source = real4{real(1e6), real(1e6), real(1e6), 0};
        return source;
    };
    real4 next = fetch(lane);
    for (int step = 0; step < steps; step++) {
        const real4 source = next;
        if (step + 1 < steps) next = fetch(32 * (step + 1) + lane);
        if (masked >> step & 1) {
            const int k = 32 * step + lane;
            interact<N, true>(source, s.skip[k / 4] >> (8 * (k % 4)) & 0xff, tx, ty, tz, sums);
        } else {
            interact<N, false>(source, 0, tx, ty, tz, sums);
        }
    }
}

// Sums over the warp of 32 values a lane: afterwards lane i holds the sum of value i. Halves the values at every step.
template <int HALF = 16>
__device__ __forceinline__ real transposed_sum(real (&v)[32], int lane) {
    const bool upper = lane & HALF;
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        const real keep = upper ? v[k + HALF] : v[k], give = upper ? v[k] : v[k + HALF];
        v[k] = keep + __shfl_xor_sync(FULL, give, HALF);
    }
    if constexpr (HALF > 1) return transposed_sum<HALF / 2>(v, lane);
    return v[0];
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

extern "C" __global__ void __launch_bounds__(32 * WARPS, sizeof(real) == 4 ? 4 : 2)
p2p(const int* __restrict__ start /* (BOXES + 1) */, const real4* __restrict__ xq /* (parts) */,
    const int* __restrict__ sorted /* (parts) */, const int* __restrict__ place /* (n, CORNERS) */,
    const Located* __restrict__ located, const real4* __restrict__ fraction, const int4* __restrict__ offset /* (NEAR) */,
    const real4* __restrict__ shift /* (NEAR): offset in box widths */,
    const short* __restrict__ row_of /* row of every offset within REACH, -1: not near; first axis fastest */,
    const int* __restrict__ partner_start /* (n + 1) */, const int* __restrict__ partner /* itself and excluded ones */,
    const Parameters* __restrict__ parameters, real* __restrict__ near /* (parts, 4): potential, field */) {
    __shared__ Shared memory[WARPS];
    const int lane = threadIdx.x % 32;
    Shared& s = memory[threadIdx.x / 32];
    const int box = blockIdx.x * WARPS + threadIdx.x / 32;
    if (box >= BOXES) return;
    const int first_target = start[box], last_target = start[box + 1];
    if (first_target == last_target) return;
    const int h0 = box % N0, h1 = box / N0 % N1, h2 = box / (N0 * N1);

    int sources = 0;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
        const int row = round * 32 + lane;
        int from = 0, length = 0;
        if (row < NEAR) {
            const int4 n = __ldg(offset + row);
            const int number = box_number(h0 + n.x, h1 + n.y, h2 + n.z);
            from = start[number];
            length = start[number + 1] - from;
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

    // equal shares of the targets, at most TARGETS at a time
    const int all = last_target - first_target, passes = (all + TARGETS - 1) / TARGETS;
    for (int pass = 0, begin = first_target; pass < passes; pass++) {
        const int targets = (last_target - begin + passes - pass - 1) / (passes - pass);
        real tx[TARGETS], ty[TARGETS], tz[TARGETS];
        Sums sums;
#pragma unroll
        for (int t = 0; t < TARGETS; t++) {
            const real4 target = xq[begin + (t < targets ? t : 0)];
            tx[t] = target.x; ty[t] = target.y; tz[t] = target.z;
            sums.phi[t] = sums.ex[t] = sums.ey[t] = sums.ez[t] = 0;
        }
        for (int window = 0; window < sources; window += WINDOW) {
            __syncwarp();
            for (int k = lane; k < WINDOW / 4; k += 32) s.skip[k] = 0;
            const int end = min(WINDOW, sources - window), steps = (end + 31) / 32;
            if (lane == 0) s.masked = 0;
            if (end + lane < 32 * steps) {
                s.source[end + lane] = -1;
                s.row[end + lane] = 0;
            }
#pragma unroll 1
            for (int row = lane; row < NEAR; row += 32) {
                const int low = max(0, s.begin[row] - window), high = min(WINDOW, s.begin[row + 1] - window);
                const int to_part = s.first[row] - s.begin[row] + window;
                for (int k = low; k < high; k++) {
                    s.source[k] = to_part + k;
                    s.row[k] = row;
                }
            }
            __syncwarp();
            // 32 / TARGETS lanes a target go through its particle's partners
            const int t = lane / (32 / TARGETS);
            if (t < targets) {
                const int mine = sorted[begin + t], i = mine >> 3;
                const Located at = located[i];
                const int i0 = at.box[0] + step_of(at, mine & 7, 0), i1 = at.box[1] + step_of(at, mine & 7, 1),
                          i2 = at.box[2] + step_of(at, mine & 7, 2);
                const int from = partner_start[i], entries = (partner_start[i + 1] - from) * CORNERS;
                for (int k = lane % (32 / TARGETS); k < entries; k += 32 / TARGETS) {
                    const int j = partner[from + k / CORNERS], corner = k % CORNERS;
                    const Located other = located[j];
                    if (!has_corner(other, corner)) continue;
                    int3 image = {0, 0, 0};
                    if (j != i) image = excluded_image(at, other, fraction[i], fraction[j], parameters);
                    const int n0 = other.box[0] + step_of(other, corner, 0) + image.x - i0;
                    const int n1 = other.box[1] + step_of(other, corner, 1) + image.y - i1;
                    const int n2 = other.box[2] + step_of(other, corner, 2) + image.z - i2;
                    int row = -1;
                    if (abs(n0) <= REACH0 && abs(n1) <= REACH1 && abs(n2) <= REACH2)
                        row = row_of[n0 + REACH0 + (2 * REACH0 + 1) * (n1 + REACH1 + (2 * REACH1 + 1) * (n2 + REACH2))];
                    const int part = place[j * CORNERS + corner];
                    if (row >= 0) {
                        const int k_source = s.begin[row] + part - s.first[row] - window;
                        if (k_source >= 0 && k_source < WINDOW) {
                            atomicOr(&s.skip[k_source / 4], 1u << (8 * (k_source % 4) + t));
                            atomicOr(&s.masked, 1u << (k_source / 32));
                        }
                    } else if (window == 0) {
                        const real4 source = xq[part], target = xq[begin + t];
                        const double* e = parameters->boxes;
                        const real dx = target.x - source.x - real(n0 * e[0] + n1 * e[3] + n2 * e[6]);
                        const real dy = target.y - source.y - real(n1 * e[4] + n2 * e[7]);
                        const real dz = target.z - source.z - real(n2 * e[8]);
                        const real inverse = rsqrt(dx * dx + dy * dy + dz * dz);
                        const real v = source.w * inverse, f = v * inverse * inverse;
#pragma unroll
                        for (int u = 0; u < TARGETS; u++)
                            if (u == t) {
                                sums.phi[u] -= v;
                                sums.ex[u] -= f * dx;
                                sums.ey[u] -= f * dy;
                                sums.ez[u] -= f * dz;
                            }
                    }
                }
            }
            __syncwarp();
            switch (targets) {
                case 1: run<1>(s, steps, lane, xq, shift, tx, ty, tz, sums); break;
                case 2: run<2>(s, steps, lane, xq, shift, tx, ty, tz, sums); break;
                case 3: run<3>(s, steps, lane, xq, shift, tx, ty, tz, sums); break;
                case 4: run<4>(s, steps, lane, xq, shift, tx, ty, tz, sums); break;
                case 5: run<5>(s, steps, lane, xq, shift, tx, ty, tz, sums); break;
                case 6: run<6>(s, steps, lane, xq, shift, tx, ty, tz, sums); break;
                case 7: run<7>(s, steps, lane, xq, shift, tx, ty, tz, sums); break;
                default: run<8>(s, steps, lane, xq, shift, tx, ty, tz, sums);
            }
        }
        real values[32];
#pragma unroll
        for (int t = 0; t < TARGETS; t++) {
            values[4 * t] = sums.phi[t];
            values[4 * t + 1] = sums.ex[t];
            values[4 * t + 2] = sums.ey[t];
            values[4 * t + 3] = sums.ez[t];
        }
        const real total = transposed_sum(values, lane);
        if (lane < 4 * targets) near[4 * begin + lane] = total;
        begin += targets;
    }
}
