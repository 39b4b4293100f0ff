// p2p for several sets of charges, see p2p.cu: distances are computed once for all sets.
//
// A block of two warps owns a box. The first warp lists and loads the sources, WINDOW at a time,
// while the second looks up excluded pairs. Then each warp accumulates half of the box's parts,
// TARGETS at a time in registers; a lane takes every 32nd source. With potentials alone, a pair
// takes one multiplication a set beyond the distance, with fields four. Bound by instruction issue.
#include "common/charge_sets.cuh"
#include "common/p2p_exclusions.cuh"

// Targets in registers, as many as is fastest.
#define SET_TARGETS (!FIELDS ? 4 : SETS <= 4 ? 2 : sizeof(real) == 4 ? 4 : 1)

struct SharedSets : Shared {
    real4 charge[QUADS][WINDOW_CAPACITY];
    real far_sets[BATCH][RESULTS];  // minus the contribution of excluded pairs that are not near
};

// Adds the contribution of a source of the charges q at displacement -d to the results of a target.
__device__ __forceinline__ void add_source(const ChargeQuads& q, real dx, real dy, real dz,
                                           real inverse, real (&sum)[RESULTS]) {
    const real f = inverse * inverse * inverse;
    const real fx = f * dx, fy = f * dy, fz = f * dz;
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        sum[set * VALUES] += q[set] * inverse;
        if (FIELDS) {
            sum[set * VALUES + (FIELDS ? 1 : 0)] += q[set] * fx;
            sum[set * VALUES + (FIELDS ? 2 : 0)] += q[set] * fy;
            sum[set * VALUES + (FIELDS ? 3 : 0)] += q[set] * fz;
        }
    }
}

// Minus what excluded pairs beyond the near stencil contribute to a target.
struct FarSets {
    const real4* charges;  // (QUADS, stride)
    long long stride;
    real sum[RESULTS] = {};

    __device__ __forceinline__ void subtract(const real4&, int part, real dx, real dy, real dz) {
        ChargeQuads q = charges_at(charges, stride, part);
#pragma unroll
        for (int k = 0; k < QUADS; k++)
            q.quad[k] = {-q.quad[k].x, -q.quad[k].y, -q.quad[k].z, -q.quad[k].w};
        add_source(q, dx, dy, dz, inverse_root(dx * dx + dy * dy + dz * dz), sum);
    }

    __device__ __forceinline__ bool any() const {
        bool found = false;
#pragma unroll
        for (int k = 0; k < RESULTS; k++) found = found || sum[k] != 0;
        return found;
    }

    __device__ __forceinline__ void add_lane(int bit) {
#pragma unroll
        for (int k = 0; k < RESULTS; k++) sum[k] += __shfl_xor_sync(FULL, sum[k], bit);
    }
};

// Adds a source to N targets; a set bit of `mask` excludes it for that target.
template <bool MASKED, int N>
__device__ __forceinline__ void interact(const real4 (&target)[N], const real4& source,
                                         const ChargeQuads& q, unsigned mask,
                                         real (&sum)[N][RESULTS]) {
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
        if (MASKED && mask & (1u << t)) inverse[t] = 0;  // it may be infinite or NaN
        add_source(q, dx[t], dy[t], dz[t], inverse[t], sum[t]);
    }
}

__host__ __device__ constexpr int power_of_two(int least) {
    int power = 1;
    while (power < least) power *= 2;
    return power;
}

// Adds all sources of the window to N targets, beginning with target `from` of the batch; the batch
// begins with part `batch`. Overwrites `near` if `initial`, else adds to it.
template <int N>
__device__ __forceinline__ void accumulate_sets(const SharedSets& s, int steps, int from, int batch,
                                                bool initial, real* __restrict__ near) {
    constexpr int ALL = N * RESULTS, COUNT = ALL < 32 ? power_of_two(ALL) : 32;
    const unsigned lane = threadIdx.x % 32;
    const bool upper = lane & 16;
    real4 target[N];
    real sum[N][RESULTS] = {};
    const int first = upper ? 2 * BATCH - N - from : from;
    int masked = 1;
#pragma unroll
    for (int t = 0; t < N; t++) {
        target[t] = s.target[first + t];
        masked = max(masked, s.last_masked[from + t]);
    }
    const int end = 32 * min(steps, (masked + 31) / 32);
    int k = lane;
#pragma unroll 1
    for (; k < end; k += 32)
        interact<true>(target, s.source[k], charges_at(s.charge[0], WINDOW_CAPACITY, k),
                       s.mask[k] >> first % BATCH, sum);
#pragma unroll 1
    for (; k < 32 * steps; k += 32)
        interact<false>(target, s.source[k], charges_at(s.charge[0], WINDOW_CAPACITY, k), 0, sum);
#pragma unroll
    for (int begin = 0; begin < ALL; begin += COUNT) {
        real values[COUNT];
#pragma unroll
        for (int v = 0; v < COUNT; v++) {
            const int t = min((begin + v) / RESULTS, N - 1), r = (begin + v) % RESULTS;
            values[v] = begin + v < ALL ? (upper ? sum[N - 1 - t][r] : sum[t][r]) : real(0);
        }
        real total = transposed_sum(values, lane);
#pragma unroll
        for (int d = COUNT; d < 32; d *= 2) total += __shfl_xor_sync(FULL, total, d);
        const int v = begin + lane;
        if (lane >= COUNT || v >= ALL) continue;
        total += s.far_sets[from][v];
        real& result = near[(batch + from) * (long long)RESULTS + v];
        result = initial ? total : result + total;
    }
}

// Targets first .. last - 1 of a batch, at most N at a time.
template <int N>
__device__ __forceinline__ void accumulate_range(const SharedSets& s, int steps, int first,
                                                 int last, int batch, bool initial,
                                                 real* __restrict__ near) {
    for (; first + N <= last; first += N) accumulate_sets<N>(s, steps, first, batch, initial, near);
    if constexpr (N > 1) accumulate_range<N / 2>(s, steps, first, last, batch, initial, near);
}

// Loads the charges of the sources of a window, before `fetch` replaces their numbers.
__device__ __forceinline__ void fetch_charges(SharedSets& s, int from, int to, int lane,
                                              const real4* __restrict__ charges, long long stride) {
#pragma unroll 4
    for (int k = from + lane; k < to; k += 32) {
        const int part = reinterpret_cast<const int2*>(s.source + k)->x;
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++) s.charge[quad][k] = charges[quad * stride + part];
    }
}

// Loads the targets of a batch, and clears their masks and what is subtracted from them.
__device__ __forceinline__ void begin_batch(SharedSets& s, int lane, int batch, int targets,
                                            int own, const real4* __restrict__ xq) {
    if (lane < targets) s.target[lane] = s.target[2 * BATCH - 1 - lane] = xq[batch + lane];
    for (int k = lane; k < WINDOW; k += 32) s.mask[k] = 0;
    __syncwarp();
    const bool here = own >= 0 && own < WINDOW;
    if (here) s.mask[own + lane] = target_bit(own + lane, lane);
    s.last_masked[lane] = here ? own + lane + 1 : 0;
#pragma unroll
    for (int r = 0; r < RESULTS; r++) s.far_sets[lane][r] = 0;
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(64)
    p2p_sets(int n, const int* __restrict__ start /* (BOXES + 1) */,
             const real4* __restrict__ xq /* (parts + 1) */,
             const real4* __restrict__ charges /* (QUADS, parts + 1) */,
             const int* __restrict__ sorted /* (parts) */,
             const int* __restrict__ place /* (CORNERS, n) */, const Located* __restrict__ located,
             const real4* __restrict__ fraction, const int4* __restrict__ offset /* (NEAR) */,
             const real4* __restrict__ shift /* (NEAR): offset in box widths */,
             const int* __restrict__ row_of /* offset to near box, -1: none; first axis fastest */,
             const int* __restrict__ partner_start /* (n + 1) */,
             const int* __restrict__ partner /* the particle itself, then its exclusions */,
             const Parameters* __restrict__ parameters,
             real* __restrict__ near /* (parts, RESULTS) */) {
    __shared__ SharedSets s;
    const int lane = threadIdx.x % 32, box = blockIdx.x;
    const bool fetches_sources = threadIdx.x < 32;
    const int first_target = start[box], last_target = start[box + 1];
    const long long stride = CORNERS * (long long)n + 1;
    if (first_target == last_target) return;
    const ExclusionTables tables = {n,        xq,     sorted,        place,   located,
                                    fraction, row_of, partner_start, partner, parameters};
    if (fetches_sources) list_rows(s, box, lane, start, offset);
    int window = 0;
    do {
        for (int batch = first_target; batch < last_target; batch += BATCH) {
            const int targets = min(BATCH, last_target - batch);
            __syncthreads();  // the list, or the batch before
            if (!fetches_sources) {
                begin_batch(s, lane, batch, targets, batch - first_target - window, xq);
                const ExclusionCursor cursor = begin_exclusions(tables, lane, batch, targets);
                FarSets far = {charges, stride};
                if (apply_exclusions(s, tables, cursor, batch, window, far))
#pragma unroll
                    for (int r = 0; r < RESULTS; r++) s.far_sets[cursor.target][r] = far.sum[r];
            } else if (batch == first_target) {
                index_sources(s, window, lane, start[BOXES]);
            }
            __syncthreads();
            if (batch == first_target) {
                // each warp loads half of the window
                const int end = padded_size(s, window), middle = end / FETCH_SIZE / 2 * FETCH_SIZE,
                          from = fetches_sources ? 0 : middle, to = fetches_sources ? middle : end;
                fetch_charges(s, from, to, lane, charges, stride);
                __syncwarp();
                fetch(s, from, to, lane, xq, shift);
                __syncthreads();
            }
            const int steps = unsigned(min(WINDOW, s.begin[NEAR] - window) + 31) / 32,
                      half = unsigned(targets + 1) / 2;
            accumulate_range<SET_TARGETS>(s, steps, fetches_sources ? 0 : half,
                                          fetches_sources ? half : targets, batch, window == 0,
                                          near);
        }
        window += WINDOW;
    } while (window < s.begin[NEAR]);
}
