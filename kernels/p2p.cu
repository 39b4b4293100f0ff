// p2p: direct interactions of the parts of each box with those of its near stencil,
// exclusions left out.
//
//     Phi_i = sum_j Q_j / r_ij      E_i = sum_j Q_j (x_i - x_j) / r_ij^3
//
// A block of two warps owns a box. One lists the parts of its near stencil and fetches them into
// shared memory, shifted to the box's own centre, WINDOW at a time; meanwhile the other looks up
// which pairs are excluded, and fetches the last sources. Then each takes half of the box's parts:
// a lane goes through every 32nd source and lets it meet up to TARGETS of these, which stay in
// registers, 14 floating-point instructions a pair. A mask of BATCH bits tells which targets leave
// a source out. Rows of the near stencil come in order of distance, so that only the first few
// steps of 32 sources need masks. Bound by instruction issue, of which the pairs are two thirds,
// and by the latency of the lists.
//
// The warps of a block run on different schedulers of a multiprocessor, the first one always on the
// same two. What it does in a box, the second does in the next,
// so that all schedulers have as much to do.
//
// Excluded pairs: the image given by the positions is left out if its box is near, and subtracted
// here if it is not.
//
// Where forces are all that is wanted, potentials are left out, unless some particles are split:
// their forces depend on them, and a launch that uses code for both cases takes longer.
#include "common/parts.cuh"
#include "common/reduce.cuh"

#define TARGETS 4
#define BATCH 32
#define FETCHED 4  // steps of sources on their way at once
#define FETCHES (32 * FETCHED)
#define HELD ((WINDOW + FETCHES - 1) / FETCHES * FETCHES)

struct Shared {
    real4 source[HELD];
    real4 target[2 * BATCH];            // in both orders, see `held`
    real4 far[BATCH];                   // what excluded pairs beyond the near stencil contribute
    alignas(16) unsigned skip[WINDOW];  // a bit for every target that leaves the source out, in the
                                        // order of the source's lane
    int begin[NEAR + 1];                // number of sources before those of each near box; of all
    int to_part[NEAR + 1];              // from the number of a source in it to that of the part
    int masked[BATCH];                  // sources up to the last one that the target leaves out
};

struct Field {
    real phi, x, y, z;
};

// A source with N targets, side by side, so that the roots, which take long, are under way for all
// of them at once. `skip` has a bit for every target that leaves the source out; what it would add
// need not be finite.
template <bool MASKED, bool POTENTIAL, int N>
__device__ __forceinline__ void interact(const real4 (&target)[N], const real4& source,
                                         unsigned skip, Field (&sum)[N]) {
    real dx[N], dy[N], dz[N], inverse[N];
#pragma unroll
    for (int t = 0; t < N; t++) {
        dx[t] = target[t].x - source.x;
        dy[t] = target[t].y - source.y;
        dz[t] = target[t].z - source.z;
        inverse[t] = dx[t] * dx[t] + dy[t] * dy[t] + dz[t] * dz[t];
    }
#pragma unroll
    for (int t = 0; t < N; t++) inverse[t] = inverse_root(inverse[t]);
#pragma unroll
    for (int t = 0; t < N; t++) {
        const real s = source.w * inverse[t], f = s * (inverse[t] * inverse[t]);
        if (MASKED && skip & (1u << t)) continue;
        if (POTENTIAL) sum[t].phi += s;
        sum[t].x += f * dx[t];
        sum[t].y += f * dy[t];
        sum[t].z += f * dz[t];
    }
}

// The image of particle b that an exclusion of a means, as a translation in boxes: 0, or that of
// the nearest image.
__device__ __forceinline__ int3 excluded_image(const Located& a, const Located& b, const real4& u,
                                               const real4& v, const Parameters* p) {
    int3 shift = {0, 0, 0};
#if MINIMUM_IMAGE
    double d[3], c[3] = {double(u.x) - v.x + (a.box[0] - b.box[0]),
                         double(u.y) - v.y + (a.box[1] - b.box[1]),
                         double(u.z) - v.z + (a.box[2] - b.box[2])};
    const double *e = p->boxes, *h = p->cell;
    d[0] = c[0] * e[0] + c[1] * e[3] + c[2] * e[6];
    d[1] = c[1] * e[4] + c[2] * e[7];
    d[2] = c[2] * e[8];
    const int m2 = int(rint(d[2] / h[8]));
    d[0] -= m2 * h[6];
    d[1] -= m2 * h[7];
    const int m1 = int(rint(d[1] / h[4]));
    d[0] -= m1 * h[3];
    const int m0 = int(rint(d[0] / h[0]));
    shift.x = m0 * N0 + m1 * C10 + m2 * C20;
    shift.y = m1 * N1 + m2 * C21;
    shift.z = m2 * N2;
#endif
    return shift;
}

// A number in [-n, 2 n) as one in [0, n): what is negative is large without its sign.
__device__ __forceinline__ unsigned wrapped(unsigned i, unsigned n) {
    i = min(i, i + n);
    return min(i, i - n);
}

// Number of a box index that leaves its range by at most the reach of the near stencil; -1 if there
// is no such box.
__device__ __forceinline__ int near_number(int i0, int i1, int i2) {
#if OPEN
    const bool inside = i0 >= 0 && i0 < N0 && i1 >= 0 && i1 < N1 && i2 >= 0 && i2 < N2;
    return inside ? box_number(i0, i1, i2) : -1;
#elif C10 == 0 && C20 == 0 && C21 == 0 && N0 >= REACH0 && N1 >= REACH1 && N2 >= REACH2
    return wrapped(i0, N0) + N0 * (wrapped(i1, N1) + N1 * wrapped(i2, N2));
#else
    return box_number(i0, i1, i2);
#endif
}

__device__ __forceinline__ Field from_lane(const Field& v, int bit) {
    return {__shfl_xor_sync(FULL, v.phi, bit), __shfl_xor_sync(FULL, v.x, bit),
            __shfl_xor_sync(FULL, v.y, bit), __shfl_xor_sync(FULL, v.z, bit)};
}

__device__ __forceinline__ void operator+=(Field& a, const Field& b) {
    a.phi += b.phi;
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
}

// The lane, read anew so that what depends on it need not be kept in registers between passes.
__device__ __forceinline__ unsigned lane_now() {
#ifdef __CUDA_ARCH__
    unsigned lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
#else
    return threadIdx.x % 32;
#endif
}

// The bit of a target in the mask of a source, see `held`.
__device__ __forceinline__ unsigned target_bit(int source, int target) {
    return 1u << (source & 16 ? BATCH - 1 - target : target);
}

// Which of N targets a lane holds in register t: halves of the warp have opposite orders, so that,
// in a sum over them, what one half gives away is in the same register as what the other keeps.
template <int N>
__device__ __forceinline__ int held(unsigned lane, int t) {
    return lane & 16 ? N - 1 - t : t;
}

// Sums of N targets over the warp, held as above; calls
// store(target, component, total) once for each.
template <int N, class Store>
__device__ __forceinline__ void sum_over_lanes(Field (&sum)[N], unsigned lane, Store store) {
    constexpr int LEFT = (N + 1) / 2, COUNT = LEFT > 2 ? 16 : 4 * LEFT;
#pragma unroll
    for (int t = 0; t < LEFT; t++) sum[t] += from_lane(sum[N - 1 - t], 16);
    real values[COUNT];
#pragma unroll
    for (int t = 0; t < COUNT / 4; t++) {
        values[4 * t] = t < LEFT ? sum[t].phi : 0;
        values[4 * t + 1] = t < LEFT ? sum[t].x : 0;
        values[4 * t + 2] = t < LEFT ? sum[t].y : 0;
        values[4 * t + 3] = t < LEFT ? sum[t].z : 0;
    }
    real total = transposed_sum(values, lane);
#pragma unroll
    for (int d = COUNT; d < 16; d *= 2) total += __shfl_xor_sync(FULL, total, d);
    const int t = lane % 16 / 4;
    if (t < N / 2 || (t < LEFT && lane < 16)) store(held<N>(lane, t), lane % 4, total);
}

// N targets, from number `from` of the batch on, which begins with part `batch`, with all sources
// of the window; adds to `near` or, at first, sets it.
template <int N, bool POTENTIAL>
__device__ __forceinline__ void meet(const Shared& s, int steps, int from, int batch, bool initial,
                                     real4* __restrict__ near) {
    const unsigned lane = lane_now();
    real4 target[N];
    Field sum[N];
    const int first = lane & 16 ? 2 * BATCH - N - from : from;
    int masked = 1;
#pragma unroll
    for (int t = 0; t < N; t++) {
        target[t] = s.target[first + t];
        sum[t] = Field{0, 0, 0, 0};
        masked = max(masked, s.masked[from + t]);
    }
    // steps with masks: one at least, and so many that those without are even in number
    masked = (masked + 31) / 32;
    const int end = 32 * (masked + ((steps - masked) & 1));
    int k = lane;
#pragma unroll 1
    do {
        interact<true, POTENTIAL>(target, s.source[k], s.skip[k] >> first % BATCH, sum);
        k += 32;
    } while (k < end);
#pragma unroll 1
    for (; k < 32 * steps; k += 64) {
#pragma unroll
        for (int step = 0; step < 64; step += 32)
            interact<false, POTENTIAL>(target, s.source[k + step], 0, sum);
    }
    sum_over_lanes(sum, lane, [&](int t, int component, real total) {
        total += reinterpret_cast<const real*>(s.far + from + t)[component];
        real& result = reinterpret_cast<real*>(near + (batch + from + t))[component];
        result = initial ? total : result + total;
    });
}

// The instance of `meet` for a number of targets known only here.
template <int N>
__device__ __forceinline__ void meet_some(int count, bool potentials, const Shared& s, int steps,
                                          int from, int batch, bool initial,
                                          real4* __restrict__ near) {
    if constexpr (N > 1) {
        if (count < N)
            return meet_some<N - 1>(count, potentials, s, steps, from, batch, initial, near);
    }
    if (SMOOTHED || potentials)
        meet<N, true>(s, steps, from, batch, initial, near);
    else
        meet<N, false>(s, steps, from, batch, initial, near);
}

// A warp's share of a batch, in passes of up to TARGETS.
__device__ __forceinline__ void meet_all(bool potentials, const Shared& s, int steps, int first,
                                         int last, int batch, bool initial,
                                         real4* __restrict__ near) {
    while (first < last) {
        const int count = min(TARGETS, last - first);
        meet_some<TARGETS>(count, potentials, s, steps, first, batch, initial, near);
        first += count;
    }
}

// One warp of a block tells the other, which waits for it, that it got here.
template <int BARRIER>
__device__ __forceinline__ void tell() {
#ifdef __CUDA_ARCH__
    asm volatile("bar.arrive %0, 64;" ::"n"(BARRIER) : "memory");
#else
    __syncthreads();
#endif
}

template <int BARRIER>
__device__ __forceinline__ void hear() {
#ifdef __CUDA_ARCH__
    asm volatile("bar.sync %0, 64;" ::"n"(BARRIER) : "memory");
#else
    __syncthreads();
#endif
}

// Lists the near boxes; done by one warp.
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
        if (row <= NEAR) {
            const int begin = sources + inclusive - length;
            s.begin[row] = begin;
            s.to_part[row] = from - begin;
        }
        sources += __shfl_sync(FULL, inclusive, 31);
    }
    __syncwarp();
}

// Number of sources of a window, filled up to whole FETCHES.
__device__ __forceinline__ int filled_up(const Shared& s, int window) {
    return unsigned(min(WINDOW, s.begin[NEAR] - window) + FETCHES - 1) / FETCHES * FETCHES;
}

// Notes, where each source of a window goes, which part it is and the row of its box; done by one
// warp. The last steps are filled up with `nothing`, the part without charge that p2m
// adds behind all others.
__device__ __forceinline__ void note_sources(Shared& s, int window, int lane, int nothing) {
    for (int row = lane; row < NEAR; row += 32) {
        const int to_part = s.to_part[row] + window;
#pragma unroll 4
        for (int k = max(0, s.begin[row] - window), end = min(WINDOW, s.begin[row + 1] - window);
             k < end; k++)
            *reinterpret_cast<int2*>(s.source + k) = int2{to_part + k, row};
    }
    const int sources = min(WINDOW, s.begin[NEAR] - window), end = filled_up(s, window);
#pragma unroll
    for (int p = 0; p < FETCHED; p++) {
        const int k = sources + 32 * p + lane;
        if (k < end) *reinterpret_cast<int2*>(s.source + k) = int2{nothing, 0};
    }
    __syncwarp();
}

// Some of the sources of a window, shifted to the box's centre: FETCHED steps at a time become
// positions and charges.
__device__ __forceinline__ void fetch(Shared& s, int from, int to, int lane,
                                      const real4* __restrict__ xq,
                                      const real4* __restrict__ shift) {
#pragma unroll 1
    for (int k = from + lane; k < to; k += FETCHES) {
        real4 value[FETCHED];
#pragma unroll
        for (int p = 0; p < FETCHED; p++) {
            const int2 at = *reinterpret_cast<const int2*>(s.source + k + 32 * p);
            const real4 by = shift[at.y];
            value[p] = xq[at.x];
            value[p].x += by.x;
            value[p].y += by.y;
            value[p].z += by.z;
        }
#pragma unroll
        for (int p = 0; p < FETCHED; p++) s.source[k + 32 * p] = value[p];
    }
}

// What excluded pairs are looked up in.
struct Tables {
    int n;
    const real4* __restrict__ xq;
    const int* __restrict__ sorted;
    const int* __restrict__ place;
    const Located* __restrict__ located;
    const real4* __restrict__ fraction;
    const int* __restrict__ row_of;
    const int* __restrict__ partner_start;
    const int* __restrict__ partner;
    const Parameters* __restrict__ parameters;
};

// The way of a lane, one of `share`, through the partners of its target's particle. The particle
// itself, the first of them, counts only if it has several parts: that a part leaves out itself is
// known without.
struct Walk {
    int share, target, particle, next, last;
    int box[3];
};

__device__ __forceinline__ Walk begin_walk(const Tables& tables, int lane, int batch, int targets) {
    const int shift = targets > 16 ? 0 : (targets > 8 ? 1 : 2);
    Walk walk = {1 << shift, lane >> shift, 0, 0, 0, {0, 0, 0}};
    if (walk.target < targets) {
        const int part = tables.sorted[batch + walk.target];
        walk.particle = part >> 3;
        walk.next = tables.partner_start[walk.particle] + (lane & (walk.share - 1));
        walk.last = tables.partner_start[walk.particle + 1];
        const Located at = tables.located[walk.particle];
        if (!is_split(at)) walk.next++;
#pragma unroll
        for (int axis = 0; axis < 3; axis++)
            walk.box[axis] = at.box[axis] + step_of(at, part & 7, axis);
    }
    return walk;
}

// Leaves the part of an excluded partner, n boxes from the target's, out of the sources of the
// target, or subtracts it.
__device__ __forceinline__ void leave_out(Shared& s, const Tables& tables, int target,
                                          int target_part, int part, int3 n, int window,
                                          Field& far) {
    constexpr unsigned WIDTH0 = 2 * REACH0 + 1, WIDTH1 = 2 * REACH1 + 1, WIDTH2 = 2 * REACH2 + 1;
    const unsigned from0 = n.x + REACH0, from1 = n.y + REACH1, from2 = n.z + REACH2;
    int row = -1;
    if (from0 < WIDTH0 && from1 < WIDTH1 && from2 < WIDTH2)
        row = tables.row_of[from0 + WIDTH0 * (from1 + WIDTH1 * from2)];
    if (row >= 0) {
        const int source = part - s.to_part[row] - window;
        if (source >= 0 && source < WINDOW) {
            atomicOr(&s.skip[source], target_bit(source, target));
            atomicMax(&s.masked[target], source + 1);
        }
    } else if (window == 0) {
        const real4 from = tables.xq[part], to = tables.xq[target_part];
        const double* e = tables.parameters->boxes;
        const real dx = to.x - from.x - real(n.x * e[0] + n.y * e[3] + n.z * e[6]);
        const real dy = to.y - from.y - real(n.y * e[4] + n.z * e[7]);
        const real dz = to.z - from.z - real(n.z * e[8]);
        const real inverse = inverse_root(dx * dx + dy * dy + dz * dz);
        const real v = from.w * inverse, f = v * inverse * inverse;
        far.phi -= v;
        far.x -= f * dx;
        far.y -= f * dy;
        far.z -= f * dz;
    }
}

// Goes through the partners of a batch's targets.
__device__ __forceinline__ void exclude(Shared& s, const Tables& tables, const Walk& walk,
                                        int batch, int window) {
    Field far = {0, 0, 0, 0};
    for (int k = walk.next; k < walk.last; k += walk.share) {
        const int i = walk.particle, j = tables.partner[k];
        const Located other = tables.located[j];
        int3 image = {0, 0, 0};
        if (MINIMUM_IMAGE && j != i)
            image = excluded_image(tables.located[i], other, tables.fraction[i], tables.fraction[j],
                                   tables.parameters);
        for_each_corner(other, [&](int corner) {
            const int3 n = {other.box[0] + step_of(other, corner, 0) + image.x - walk.box[0],
                            other.box[1] + step_of(other, corner, 1) + image.y - walk.box[1],
                            other.box[2] + step_of(other, corner, 2) + image.z - walk.box[2]};
            const int part = tables.place[entry_of(j, corner, tables.n)];
            leave_out(s, tables, walk.target, batch + walk.target, part, n, window, far);
        });
    }
    if (!__any_sync(FULL, far.phi != 0 || far.x != 0 || far.y != 0 || far.z != 0)) return;
    for (int d = 1; d < walk.share; d *= 2) far += from_lane(far, d);
    if ((threadIdx.x & (walk.share - 1)) == 0)
        s.far[walk.target] = real4{far.phi, far.x, far.y, far.z};
}

extern "C" __global__ void __launch_bounds__(64, sizeof(real) == 4 ? 14 : 6)
    p2p(int n, const int* __restrict__ start /* (BOXES + 1) */,
        const real4* __restrict__ xq /* (parts + 1) */,
        const int* __restrict__ sorted /* (parts) */,
        const int* __restrict__ place /* (CORNERS, n) */, const Located* __restrict__ located,
        const real4* __restrict__ fraction, const int4* __restrict__ offset /* (NEAR) */,
        const real4* __restrict__ shift /* (NEAR): offset in box widths */,
        const int* __restrict__ row_of /* row of every offset within REACH, -1: not near; first axis
                                          fastest */
        ,
        const int* __restrict__ partner_start /* (n + 1) */,
        const int* __restrict__ partner /* itself, then excluded ones */,
        const Parameters* __restrict__ parameters,
        const int* __restrict__ potentials_wanted /* (1): more than forces */,
        real4* __restrict__ near /* (parts): potential, field */) {
    __shared__ Shared s;
    const int lane = threadIdx.x % 32, box = blockIdx.x;
    const bool fetches = (threadIdx.x < 32) == (box % 2 == 0);
    const int first_target = start[box], last_target = start[box + 1];
    if (first_target == last_target) return;
    const Tables tables = {n,        xq,     sorted,        place,   located,
                           fraction, row_of, partner_start, partner, parameters};
    if (fetches) list_rows(s, box, lane, start, offset);
    int window = 0;
    do {
        for (int batch = first_target; batch < last_target; batch += BATCH) {
            const int targets = min(BATCH, last_target - batch);
            Walk walk;
            if (!fetches) {
                if (lane < targets)
                    s.target[lane] = s.target[2 * BATCH - 1 - lane] = xq[batch + lane];
#pragma unroll
                for (int k = 4 * lane; k < WINDOW; k += 128)
                    *reinterpret_cast<int4*>(s.skip + k) = int4{0, 0, 0, 0};
                walk = begin_walk(tables, lane, batch, targets);
                __syncwarp();
                // where the batch is among the sources: they begin with the box
                const int own = batch - first_target - window;
                const bool here = own >= 0 && own < WINDOW;
                if (here) s.skip[own + lane] = target_bit(lane, lane);
                s.masked[lane] = here ? own + lane + 1 : 0;
                s.far[lane] = real4{0, 0, 0, 0};
            }
            if (fetches) {
                tell<1>();
                if (batch == first_target) note_sources(s, window, lane, start[BOXES]);
                tell<2>();
            } else {
                hear<1>();
                exclude(s, tables, walk, batch, window);
                hear<2>();
            }
            // the other warp has time for a third, but not where particles have many parts
            if (batch == first_target) {
                const int end = filled_up(s, window),
                          own = SMOOTHED ? end : end - end / FETCHES / 3 * FETCHES;
                fetch(s, fetches ? 0 : own, fetches ? own : end, lane, xq, shift);
            }
            __syncthreads();
            const int steps = unsigned(min(WINDOW, s.begin[NEAR] - window) + 31) / 32,
                      half = unsigned(targets + 1) / 2;
            meet_all(*potentials_wanted, s, steps, fetches ? 0 : half, fetches ? half : targets,
                     batch, window == 0, near);
            __syncthreads();
        }
        window += WINDOW;
    } while (window < s.begin[NEAR]);
}
