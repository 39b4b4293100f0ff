// groups: energies among groups of particles, fragment by fragment; formula in
// fmm_openmm/backends/cpu/groups.py. A fragment is the parts of a group in a box.
//
//   spread_operator    the lattice operator at all wave vectors as a spectrum, whose inverse
//                      transform is the operator in real space. A thread per value
//   list_fragments     the parts of each box by group, and its fragments. A warp per box
//   fragment_moments   moments of the fragments, and the sums of the trace term. A block per box, a
//                      thread per fragment and order m
//   near_groups        near pairs. A block per box, a thread per fragment of it and near box.
//                      Excluded pairs are left out. Bound by latency
//   distant_groups     minus the excluded pairs that are not near. A thread per part
//   far_groups         m_s^T A(d) m_t of fragments in boxes at a displacement d. A block owns d, or
//                      d and FAR_ROWS rows of A(d), which it holds in shared memory; a warp
//                      multiplies COLUMNS fragments by them, with FAR_ROWS / 32 rows per lane, and
//                      the results by the fragments of their target boxes. Bound by instruction
//                      issue
//   finish_groups      energies in OpenMM's units, a thread per entry
//
// Each contribution to the matrix is added once, for one order of the two groups. Sums are in fixed
// point, so that they do not depend on the order of additions.
//
// Macros, from pipeline/groups.py: FAR_WARPS, warps of a block of far_groups; FAR_ROWS; MIRRORED,
// whether the operator is stored for one octant of the wave vectors.
#include "common/harmonics.cuh"
#include "common/p2p_exclusions.cuh"

#define HALF2 (D2 / 2 + 1)
#define OPERATOR_TERMS ((2 * ORDER + 1) * (2 * ORDER + 1))
#define BLOCK 128
#define TRACE_SUMS 5  // of q, q x, q y, q z and q sum_k c_k x_k^2
#define FAR_BLOCK (32 * FAR_WARPS)
#define LANE_ROWS (FAR_ROWS / 32)
#define COLUMNS (sizeof(real) == 4 ? 8 : 4)

// Sums of one matrix, (groups, groups + TRACE_SUMS): each in units of 2^-20 and, for what is left,
// of 2^-60. Charges are at most 1.
struct Totals {
    int groups;
    uint64* __restrict__ sum;  // (groups, groups + TRACE_SUMS, 2)
    unsigned char* __restrict__ undefined;

    __device__ __forceinline__ long long entry(int row, int column) const {
        return row * (long long)(groups + TRACE_SUMS) + column;
    }
    __device__ __forceinline__ void add(int row, int column, double value) const {
        const long long at = entry(row, column);
        if (!(fabs(value) < 1e9)) {
            undefined[at] = 1;
            return;
        }
        const long long high = __double2ll_rn(value * 1048576.0);
        const double rest = value - double(high) * (1 / 1048576.0);
        atomicAdd(sum + 2 * at, uint64(high));
        atomicAdd(sum + 2 * at + 1, uint64(__double2ll_rn(rest * 1152921504606846976.0)));
    }
    __device__ __forceinline__ double value(int row, int column) const {
        const long long at = entry(row, column);
        if (undefined[at]) return nan("");
        const long long high = sum[2 * at], low = sum[2 * at + 1];
        return double(high) * (1 / 1048576.0) + double(low) * (1 / 1152921504606846976.0);
    }
};

// The fragments of each box; those of a box begin where its parts do.
struct Fragments {
    const int* __restrict__ start;  // (BOXES + 1): parts
    const int* __restrict__ head;   // (parts): first part of each fragment
    const int* __restrict__ owner;  // (parts): its group
    const int* __restrict__ count;  // (BOXES): number of fragments

    // End of the parts of fragment f of a box.
    __device__ __forceinline__ int end(int f, int box) const {
        return f + 1 < start[box] + count[box] ? head[f + 1] : start[box + 1];
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    spread_operator(int first, const real* __restrict__ operator_terms /* (terms, waves stored) */,
                    real2* __restrict__ spectrum /* (TERMS, D0, D1, HALF2): from term `first` */) {
    constexpr int WAVES = D0 * D1 * HALF2;
    const long long at = blockIdx.x * (long long)BLOCK + threadIdx.x;
    if (at >= TERMS * (long long)WAVES) return;
    const int t = first + int(at / WAVES), wave = at % WAVES, l = int(sqrtf(t + 0.5f));
    real value = 0;
    if (t < OPERATOR_TERMS) {
#if MIRRORED
        const int m = t - l * l - l;
        const bool odd0 = (l + m) % 2 != 0, odd1 = m < 0;  // along z and y, the first axes
        int k0 = wave / (D1 * HALF2), k1 = wave / HALF2 % D1;
        real sign = 1;
        if (k0 > D0 / 2) {
            k0 = D0 - k0;
            sign = odd0 ? -sign : sign;
        }
        if (k1 > D1 / 2) {
            k1 = D1 - k1;
            sign = odd1 ? -sign : sign;
        }
        const long long stored = (D0 / 2 + 1) * (D1 / 2 + 1) * (long long)HALF2;
        value = sign * operator_terms[t * stored + (k0 * (D1 / 2 + 1) + k1) * HALF2 + wave % HALF2];
#else
        value = operator_terms[t * (long long)WAVES + wave];
#endif
    }
    const real turned = l % 4 < 2 ? value : -value;  // times i^l
    spectrum[at] = l % 2 ? real2{0, turned} : real2{turned, 0};
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    list_fragments(const int* __restrict__ start /* (BOXES + 1) */,
                   const real4* __restrict__ xq /* (parts + 1) */,
                   const int* __restrict__ sorted /* (parts) */,
                   const int* __restrict__ group /* (n) */, real4* xq_out /* (parts) */,
                   int* sorted_out /* (parts) */, int* __restrict__ head /* (parts) */,
                   int* __restrict__ owner /* (parts) */, int* __restrict__ count /* (BOXES) */) {
    const int box = blockIdx.x * (BLOCK / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (box >= BOXES) return;
    const int begin = start[box], end = start[box + 1];
    for (int k = begin + lane; k < end; k += 32) {
        const int own = group[sorted[k] >> 3];
        int to = begin;
        for (int j = begin; j < end; j++) {
            const int other = group[sorted[j] >> 3];
            to += other < own || (other == own && j < k);
        }
        xq_out[to] = xq[k];
        sorted_out[to] = sorted[k];
    }
    __syncwarp();
    int fragments = 0;
    for (int from = begin; from < end; from += 32) {
        const int k = from + lane, own = k < end ? group[sorted_out[k] >> 3] : -1;
        const bool first = k < end && (k == begin || group[sorted_out[k - 1] >> 3] != own);
        const unsigned heads = __ballot_sync(FULL, first);
        if (first) {
            const int f = begin + fragments + __popc(heads & ((1u << lane) - 1));
            head[f] = k;
            owner[f] = own;
        }
        fragments += __popc(heads);
    }
    if (lane == 0) count[box] = fragments;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    fragment_moments(int groups, const int* __restrict__ start, const int* __restrict__ head,
                     const int* __restrict__ owner, const int* __restrict__ count,
                     const real4* __restrict__ xq /* (parts), by fragment */,
                     const double* __restrict__ background,
                     real* __restrict__ moments /* (parts, TERMS), of each fragment */,
                     uint64* __restrict__ sum, unsigned char* __restrict__ undefined) {
    const Fragments fragments = {start, head, owner, count};
    const Totals totals = {groups, sum, undefined};
    const int box = blockIdx.x, begin = start[box];
    for (int item = threadIdx.x; item < count[box] * (ORDER + 1); item += BLOCK) {
        const int f = begin + item / (ORDER + 1), m = item % (ORDER + 1);
        real c[ORDER + 1] = {}, s[ORDER + 1] = {};
        double trace[TRACE_SUMS] = {};
        for (int k = head[f], end = fragments.end(f, box); k < end; k++) {
            const real4 part = xq[k];
            real2 power = {part.w, 0};
#pragma unroll 1
            for (int i = 0; i < m; i++) power = next_power(i, part.x, part.y, power);
            real q[ORDER + 1];
            degree_factors<ORDER>(m, part.z, part.x * part.x + part.y * part.y + part.z * part.z,
                                  q);
#pragma unroll
            for (int l = 0; l <= ORDER; l++) {
                if (l < m) continue;
                c[l] += q[l] * power.x;
                s[l] += q[l] * power.y;
            }
            if (m > 0) continue;
            const double x[3] = {part.x, part.y, part.z}, charge = part.w;
            trace[0] += charge;
            for (int axis = 0; axis < 3; axis++) {
                trace[1 + axis] += charge * x[axis];
                trace[4] += charge * background[axis] * x[axis] * x[axis];
            }
        }
        real* const to = moments + f * (long long)TERMS;
#pragma unroll
        for (int l = 0; l <= ORDER; l++) {
            if (l < m) continue;
            to[term(l, m)] = c[l];
            if (m > 0) to[term(l, -m)] = s[l];
        }
        if (m == 0)
            for (int k = 0; k < TRACE_SUMS; k++) totals.add(owner[f], groups + k, trace[k]);
    }
}

// Offset, in boxes, to a part of particle b that is excluded for a part of particle a.
__device__ __forceinline__ int3 excluded_offset(const ExclusionTables& tables, int part, int b,
                                                int corner) {
    const int a = part >> 3;
    const Located at = tables.located[a], other = tables.located[b];
    int3 n = {0, 0, 0};
    if (MINIMUM_IMAGE && a != b)
        n = excluded_image(at, other, tables.fraction[a], tables.fraction[b], tables.parameters);
    n.x += other.box[0] + step_of(other, corner, 0) - at.box[0] - step_of(at, part & 7, 0);
    n.y += other.box[1] + step_of(other, corner, 1) - at.box[1] - step_of(at, part & 7, 1);
    n.z += other.box[2] + step_of(other, corner, 2) - at.box[2] - step_of(at, part & 7, 2);
    return n;
}

// Whether a part and another one, so many boxes away, are excluded.
__device__ __forceinline__ bool are_excluded(const ExclusionTables& tables, int part, int other,
                                             const int4& offset) {
    const int a = part >> 3, b = other >> 3;
    for (int e = tables.partner_start[a]; e < tables.partner_start[a + 1]; e++) {
        if (tables.partner[e] != b) continue;
        const int3 n = excluded_offset(tables, part, b, other & 7);
        return n.x == offset.x && n.y == offset.y && n.z == offset.z;
    }
    return false;
}

// q_i q_j / r of parts at a displacement; NaN where the potential of either is beyond the limit.
__device__ __forceinline__ double pair_energy(real qi, real qj, real dx, real dy, real dz,
                                              real limit) {
    if (qi == 0 || qj == 0) return 0;  // which may be where a charge is
    const real inverse = inverse_root(dx * dx + dy * dy + dz * dz),
               phi = max(fabs(qi), fabs(qj)) * inverse;
    return phi <= limit ? double(qi * qj * inverse) : nan("");
}

extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    near_groups(int n, int groups, const int* __restrict__ start, const int* __restrict__ head,
                const int* __restrict__ owner, const int* __restrict__ count,
                const real4* __restrict__ xq /* (parts), by fragment */,
                const int* __restrict__ sorted /* (parts), by fragment */,
                const Located* __restrict__ located, const real4* __restrict__ fraction,
                const int4* __restrict__ offset /* (NEAR) */,
                const real4* __restrict__ shift /* (NEAR) */, const int* __restrict__ partner_start,
                const int* __restrict__ partner, const Parameters* __restrict__ parameters,
                const real* __restrict__ limit /* (1) */, uint64* __restrict__ sum,
                unsigned char* __restrict__ undefined) {
    const Fragments fragments = {start, head, owner, count};
    const Totals totals = {groups, sum, undefined};
    const ExclusionTables tables = {n,        xq,      sorted,        nullptr, located,
                                    fraction, nullptr, partner_start, partner, parameters};
    const int box = blockIdx.x, own = count[box];
    const int h0 = box % N0, h1 = box / N0 % N1, h2 = box / (N0 * N1);
    for (int item = threadIdx.x; item < NEAR * own; item += BLOCK) {
        const int row = item / own, s = start[box] + item % own;
        const int4 by = offset[row];
        const int near = near_number(h0 + by.x, h1 + by.y, h2 + by.z);
        if (near < box) continue;                      // of opposite offsets one is enough
        const double share = near == box ? 0.5 : 1.0;  // pairs within the box occur twice
        const real4 moved = shift[row];
        for (int t = start[near]; t < start[near] + count[near]; t++) {
            double energy = 0;
            for (int i = head[s]; i < fragments.end(s, box); i++) {
                const real4 target = xq[i];
                for (int j = head[t]; j < fragments.end(t, near); j++) {
                    if (are_excluded(tables, sorted[i], sorted[j], by)) continue;
                    const real4 source = xq[j];
                    energy += pair_energy(target.w, source.w, target.x - (source.x + moved.x),
                                          target.y - (source.y + moved.y),
                                          target.z - (source.z + moved.z), *limit);
                }
            }
            totals.add(owner[s], owner[t], share * energy);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    distant_groups(int n, int groups, const int* __restrict__ start,
                   const real4* __restrict__ xq /* (parts) */, const int* __restrict__ sorted,
                   const int* __restrict__ place, const int* __restrict__ group /* (n) */,
                   const Located* __restrict__ located, const real4* __restrict__ fraction,
                   const int* __restrict__ row_of, const int* __restrict__ partner_start,
                   const int* __restrict__ partner, const Parameters* __restrict__ parameters,
                   const real* __restrict__ limit /* (1) */, uint64* __restrict__ sum,
                   unsigned char* __restrict__ undefined) {
    const Totals totals = {groups, sum, undefined};
    const ExclusionTables tables = {n,        xq,     sorted,        place,   located,
                                    fraction, row_of, partner_start, partner, parameters};
    const int k = blockIdx.x * BLOCK + threadIdx.x;
    if (k >= start[BOXES]) return;
    const int part = sorted[k], a = part >> 3;
    const real4 to = xq[k];
    const double* e = parameters->boxes;
    for (int p = partner_start[a]; p < partner_start[a + 1]; p++) {
        const int b = partner[p];
        for_each_corner(located[b], [&](int corner) {
            const int3 n = excluded_offset(tables, part, b, corner);
            if (near_row(row_of, n) >= 0) return;
            const real4 from = xq[place[entry_of(b, corner, tables.n)]];
            const double energy = pair_energy(
                to.w, from.w, to.x - from.x - real(n.x * e[0] + n.y * e[3] + n.z * e[6]),
                to.y - from.y - real(n.y * e[4] + n.z * e[7]), to.z - from.z - real(n.z * e[8]),
                *limit);
            totals.add(group[a], group[b], -0.5 * energy);  // every pair occurs twice
        });
    }
}

// A(d) of the rows from `first` on to shared memory, (TERMS, FAR_ROWS): entry (b, a) is A_ab.
__device__ __forceinline__ void load_matrix(real* matrix, real* terms, int d, int first,
                                            const real* __restrict__ in_space,
                                            const int2* __restrict__ index,
                                            const real2* __restrict__ weight) {
    for (int t = threadIdx.x; t < OPERATOR_TERMS; t += FAR_BLOCK)
        terms[t] = in_space[t * (long long)POINTS + d];
    __syncthreads();
    for (int e = threadIdx.x; e < TERMS * FAR_ROWS; e += FAR_BLOCK) {
        const int a = first + e % FAR_ROWS, at = e / FAR_ROWS * TERMS + a;
        real value = 0;
        if (a < TERMS) {
            const int2 i = index[at];
            const real2 w = weight[at];
            value = w.x * terms[i.x] + w.y * terms[i.y];
        }
        matrix[e] = value;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(FAR_BLOCK, 1)
    far_groups(int groups, const int* __restrict__ start, const int* __restrict__ owner,
               const int* __restrict__ count, const int* __restrict__ slot /* (BOXES) */,
               const int* __restrict__ box_at /* (POINTS): of a slot, or -1 */,
               const real* __restrict__ in_space /* (OPERATOR_TERMS, POINTS) */,
               const int2* __restrict__ index /* (TERMS, TERMS): terms of A_ab at (b, a) */,
               const real2* __restrict__ weight /* (TERMS, TERMS) */,
               const real* __restrict__ moments /* (parts, TERMS) */, uint64* __restrict__ sum,
               unsigned char* __restrict__ undefined) {
    extern __shared__ real4 memory[];
    __shared__ int2 pair[FAR_BLOCK];             // target and source box
    __shared__ int2 column[FAR_WARPS][COLUMNS];  // target box and source fragment
    __shared__ int pairs;
    const int d = blockIdx.x, first_row = blockIdx.y * FAR_ROWS;
    const int d0 = d / (D1 * D2), d1 = d / D2 % D1, d2 = d % D2;
    const int opposite = ((D0 - d0) % D0 * D1 + (D1 - d1) % D1) * D2 + (D2 - d2) % D2;
    if (opposite < d) return;                        // each pair of displacements once
    const double share = opposite == d ? 0.5 : 1.0;  // pairs of fragments occur twice
    const Totals totals = {groups, sum, undefined};
    real* const matrix = reinterpret_cast<real*>(memory);
    real* const all = matrix + TERMS * FAR_ROWS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    real* const x = all + warp * TERMS * COLUMNS;
    bool loaded = false;
    for (int from = 0; from < BOXES; from += FAR_BLOCK) {
        __syncthreads();
        if (threadIdx.x == 0) pairs = 0;
        __syncthreads();
        const int target = from + threadIdx.x;
        if (target < BOXES && count[target] > 0) {
            const int s = slot[target];
            const int s0 = (s / (D1 * D2) + D0 - d0) % D0, s1 = (s / D2 % D1 + D1 - d1) % D1,
                      s2 = (s % D2 + D2 - d2) % D2;
            const int source = box_at[(s0 * D1 + s1) * D2 + s2];
            if (source >= 0 && count[source] > 0) pair[atomicAdd(&pairs, 1)] = {target, source};
        }
        __syncthreads();
        if (pairs == 0) continue;
        if (!loaded) load_matrix(matrix, all, d, first_row, in_space, index, weight);
        loaded = true;
        int p = warp, t = 0;
        while (p < pairs) {
            int used = 0;
            while (used < COLUMNS && p < pairs) {
                if (t < count[pair[p].y]) {
                    if (lane == 0) column[warp][used] = {pair[p].x, start[pair[p].y] + t};
                    used++;
                    t++;
                } else {
                    p += FAR_WARPS;
                    t = 0;
                }
            }
            if (used == 0) break;
            __syncwarp();
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                for (int b = lane; b < TERMS; b += 32)
                    x[b * COLUMNS + c] =
                        c < used ? moments[column[warp][c].y * (long long)TERMS + b] : real(0);
            __syncwarp();
            real local[LANE_ROWS][COLUMNS] = {};
#pragma unroll 2
            for (int b = 0; b < TERMS; b++) {
                const real4* const row = reinterpret_cast<const real4*>(x + b * COLUMNS);
                real4 v[COLUMNS / 4];
#pragma unroll
                for (int k = 0; k < COLUMNS / 4; k++) v[k] = row[k];
#pragma unroll
                for (int r = 0; r < LANE_ROWS; r++) {
                    const real a = matrix[b * FAR_ROWS + 32 * r + lane];
#pragma unroll
                    for (int k = 0; k < COLUMNS / 4; k++) {
                        local[r][4 * k] += a * v[k].x;
                        local[r][4 * k + 1] += a * v[k].y;
                        local[r][4 * k + 2] += a * v[k].z;
                        local[r][4 * k + 3] += a * v[k].w;
                    }
                }
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                if (c >= used) break;
                const int2 from_to = column[warp][c];
                const int begin = start[from_to.x], end = begin + count[from_to.x];
                for (int f = begin; f < end; f++) {
                    real energy = 0;
#pragma unroll
                    for (int r = 0; r < LANE_ROWS; r++) {
                        const int a = first_row + 32 * r + lane;
                        if (a < TERMS) energy += local[r][c] * moments[f * (long long)TERMS + a];
                    }
#pragma unroll
                    for (int bit = 16; bit > 0; bit /= 2)
                        energy += __shfl_xor_sync(FULL, energy, bit);
                    if (lane == 0) totals.add(owner[f], owner[from_to.y], share * double(energy));
                }
            }
            __syncwarp();
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    finish_groups(int groups, uint64* __restrict__ sum, unsigned char* __restrict__ undefined,
                  const double* __restrict__ background /* (3) */,
                  const Parameters* __restrict__ parameters,
                  double* __restrict__ energies /* (groups, groups) */) {
    const long long at = blockIdx.x * (long long)BLOCK + threadIdx.x;
    if (at >= groups * (long long)groups) return;
    const Totals totals = {groups, sum, undefined};
    const int a = at / groups, b = at % groups;
    double value = totals.value(a, b) + totals.value(a, groups) * totals.value(b, groups + 4);
    for (int k = 0; k < 3; k++)
        value -= background[k] * totals.value(a, groups + 1 + k) * totals.value(b, groups + 1 + k);
    energies[at] = value * parameters->potential;
}
