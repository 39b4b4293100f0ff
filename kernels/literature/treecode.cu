// treecode: potentials and fields of charges in free space, with the moments of distant cells of an
// octree,
//
//     Phi(x) = sum_a S_a(x - c) M_a  over accepted cells
//              + sum_j q_j / r_j     over the particles of leaves that are not accepted
//
// after J. Barnes and P. Hut, Nature 324, 446 (1986), doi:10.1038/324446a0, with the expansions of
// fmm_openmm/expansions/harmonics.py in units of the cells' widths w; on GPUs: R. Yokota and L. A.
// Barba, in GPU Computing Gems Emerald Edition (2011), doi:10.1016/B978-0-12-384988-5.00009-7. With
// S_l,-m = (-1)^m conj S_lm and (d/dx + i d/dy) S_lm = -S_l+1,m+1, (d/dx - i d/dy) S_lm =
// S_l+1,m-1, dS_lm/dz = -S_l+1,m:
//
//     Phi = sum_lm' Re(conj M_lm S_lm),   where sum_lm' counts terms of m > 0 twice
//
//   p2m   moments of the leaves. A warp per leaf
//   m2m   moments of the other cells from their children, level by level. A warp per cell
//   walk  a warp traverses the tree for 32 particles of a leaf together, one per lane, without
//         divergence
//
// Bound by instruction issue.
#include "common/harmonics.cuh"
#include "common/free_space.cuh"

#define STACK 192  // at most 7 pending cells per level

// A cell: its centre as pairs of reals and its width in nm; its particles; its children, none for a
// leaf.
struct __align__(16) Cell {
    real x, y, z, width;
    real low_x, low_y, low_z, unused;
    int first, last, child, children;
};

struct Offset {
    real x, y, z;
};

// x - centre, nm.
__device__ __forceinline__ Offset from_centre(const Charge& at, const Cell& cell) {
    return Offset{difference(at.high.x, at.low.x, cell.x, cell.low_x),
                  difference(at.high.y, at.low.y, cell.y, cell.low_y),
                  difference(at.high.z, at.low.z, cell.z, cell.low_z)};
}

__device__ __forceinline__ Offset displacement(const Cell& a, const Cell& b) {
    return Offset{difference(a.x, a.low_x, b.x, b.low_x), difference(a.y, a.low_y, b.y, b.low_y),
                  difference(a.z, a.low_z, b.z, b.low_z)};
}

// Whether the moments of a cell may be used for all particles of a leaf: no corner of the cell is
// further from its centre than THETA times the distance of any of these particles.
__device__ __forceinline__ bool accepted(const Cell& cell, const Cell& leaf) {
    const real half_diagonal = real(0.8660254037844386);
    const Offset d = displacement(cell, leaf);
    const real distance = half_diagonal * (cell.width / real(THETA) + leaf.width);
    return d.x * d.x + d.y * d.y + d.z * d.z >= distance * distance;
}

// Not inlined: p2m calls it for every term, and would take most of the time to compile the file.
__device__ __noinline__ real warp_sum(real value) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(FULL, value, d);
    return value;
}

extern "C" __global__ void p2m(int leaves, const int* __restrict__ leaf /* (leaves) */,
                               const Cell* __restrict__ cells, const real4* __restrict__ high,
                               const real4* __restrict__ low,
                               real* __restrict__ moments /* (cells, TERMS) */) {
    const int lane = threadIdx.x % 32, number = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (number >= leaves) return;
    const Cell cell = cells[leaf[number]];
    real* to = moments + leaf[number] * (long long)TERMS;
    const real scale = 1 / cell.width;
    for (int first = cell.first; first < cell.last; first += 32) {
        const bool used = first + lane < cell.last;
        const int k = used ? first + lane : first;
        const Offset d = from_centre(Charge{high[k], low[k]}, cell);
        const real charge = used ? high[k].w : real(0);
        regular_harmonics(d.x * scale, d.y * scale, d.z * scale, [&](int l, int m, real c, real s) {
            const real re = warp_sum(charge * c), im = m > 0 ? warp_sum(charge * s) : real(0);
            if (lane != 0) return;
            to[term(l, m)] = re + (first > cell.first ? to[term(l, m)] : real(0));
            if (m > 0) to[term(l, -m)] = im + (first > cell.first ? to[term(l, -m)] : real(0));
        });
    }
}

// The complex term (l, m), any m, of an array of real ones.
__device__ __forceinline__ real2 complex_term(const real* a, int l, int m) {
    if (m > 0) return real2{a[term(l, m)], a[term(l, -m)]};
    if (m == 0) return real2{a[term(l, 0)], 0};
    const real sign = m % 2 == 0 ? 1 : -1;
    return real2{sign * a[term(l, -m)], -sign * a[term(l, m)]};
}

// M_lm = sum over children and (j, k) of R_l-j,m-k(d) 2^-j M_jk, with d from the cell's
// centre to the child's.
extern "C" __global__ void m2m(int count, const int* __restrict__ parent /* (count) */,
                               const Cell* __restrict__ cells,
                               real* __restrict__ moments /* (cells, TERMS) */) {
    extern __shared__ real shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
              number = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (number >= count) return;
    real *shift = shared + 2 * warp * TERMS, *own = shift + TERMS;
    const Cell cell = cells[parent[number]];
    real* to = moments + parent[number] * (long long)TERMS;
    for (int c = 0; c < cell.children; c++) {
        const Cell child = cells[cell.child + c];
        const Offset d = displacement(child, cell);
        const real* from = moments + (cell.child + c) * (long long)TERMS;
        if (lane == 0) {
            const real scale = 1 / cell.width;
            regular_harmonics(d.x * scale, d.y * scale, d.z * scale,
                              [&](int l, int m, real re, real im) {
                                  shift[term(l, m)] = re;
                                  if (m > 0) shift[term(l, -m)] = im;
                              });
        }
        for (int a = lane; a < TERMS; a += 32) {
            const int l = int(sqrtf(float(a) + 0.5f));
            own[a] = ldexp(from[a], -l);
        }
        __syncwarp();
        for (int a = lane; a < TERMS; a += 32) {
            const int l = int(sqrtf(float(a) + 0.5f)), signed_m = a - l * l - l, m = abs(signed_m);
            real sum = 0;
            for (int j = 0; j <= l; j++)
                for (int k = max(-j, m - (l - j)); k <= min(j, m + (l - j)); k++) {
                    const real2 r = complex_term(shift, l - j, m - k), q = complex_term(own, j, k);
                    sum += signed_m >= 0 ? r.x * q.x - r.y * q.y : r.x * q.y + r.y * q.x;
                }
            to[a] = sum + (c > 0 ? to[a] : real(0));
        }
        __syncwarp();
    }
}

// Contribution of a cell's moments at an offset from its centre, in units of its width.
__device__ __forceinline__ Field m2p(const real* __restrict__ moments, real x, real y, real z) {
    const auto at = [&](int l, int m) { return __ldg(moments + term(l, m)); };
    const real inverse2 = 1 / (x * x + y * y + z * z);
    Field sum = {0, 0, 0, 0};
    real diagonal_c = sqrt(inverse2), diagonal_s = 0;
    x *= inverse2;
    y *= inverse2;
    z *= inverse2;
#pragma unroll
    for (int m = 0; m <= ORDER + 1; m++) {
        if (m > 0) {
            const real c = (2 * m - 1) * (x * diagonal_c - y * diagonal_s);
            diagonal_s = (2 * m - 1) * (x * diagonal_s + y * diagonal_c);
            diagonal_c = c;
        }
        real c = diagonal_c, s = diagonal_s, below_c = 0, below_s = 0;
#pragma unroll
        for (int l = m; l <= ORDER + 1; l++) {
            if (l > m) {
                const real up = (2 * l - 1) * z, down = ((l - 1) * (l - 1) - m * m) * inverse2;
                const real next_c = up * c - down * below_c, next_s = up * s - down * below_s;
                below_c = c;
                below_s = s;
                c = next_c;
                s = next_s;
            }
            const real twice = m > 0 ? 2 : 1;
            if (l <= ORDER) {
                sum.phi += twice * at(l, m) * c;
                if (m > 0) sum.phi += twice * at(l, -m) * s;
            }
            if (l == 0) continue;
            const int j = l - 1;  // degree of the moments whose derivatives these are
            if (m <= j) {
                sum.z += twice * at(j, m) * c;
                if (m > 0) sum.z += twice * at(j, -m) * s;
            }
            const real left_c = m > 0 ? at(j, m - 1) : real(0),
                       left_s = m > 1 ? at(j, 1 - m) : real(0);
            const real right_c = m < j ? at(j, m + 1) : real(0),
                       right_s = m < j ? at(j, -m - 1) : real(0);
            sum.x -= (right_c - left_c) * c + (right_s - left_s) * s;
            sum.y += (right_c + left_c) * s - (right_s + left_s) * c;
        }
    }
    return sum;
}

// Field of a cell's moments at a target.
__device__ __forceinline__ Field far_field(const Charge& target, const Cell& cell,
                                           const real* __restrict__ moments) {
    const Offset d = from_centre(target, cell);
    const real scale = 1 / cell.width;
    Field far = m2p(moments, d.x * scale, d.y * scale, d.z * scale);
    far.phi *= scale;
    far.x *= scale * scale;
    far.y *= scale * scale;
    far.z *= scale * scale;
    return far;
}

// Field of a cell's particles at a target, without its partners between two places of `partner`.
__device__ __forceinline__ Field near_field(const Charge& target, const Cell& cell,
                                            const real4* __restrict__ high,
                                            const real4* __restrict__ low,
                                            const int* __restrict__ partner, int first_partner,
                                            int last_partner) {
    Field near = {0, 0, 0, 0};
    int next = first_partner;
    while (next < last_partner && partner[next] < cell.first) next++;
    int excluded = next < last_partner ? partner[next] : cell.last;
    int k = cell.first;
    while (true) {
        for (const int stop = min(cell.last, excluded); k < stop; k++)
            interact(target, high[k], low[k], near);
        if (k == cell.last) break;
        k++;
        excluded = ++next < last_partner ? partner[next] : cell.last;
    }
    return near;
}

extern "C" __global__ void __launch_bounds__(WALK_THREADS) walk(
    int groups, const int2* __restrict__ group /* (groups): leaf, first particle */,
    const Cell* __restrict__ cells, const int* __restrict__ parent /* (cells) */,
    const int* __restrict__ leaf_of /* (n) */, const real* __restrict__ moments,
    const real4* __restrict__ high, const real4* __restrict__ low,
    const int* __restrict__ partner_start /* (n + 1) */,
    const int* __restrict__ partner /* the particle and its exclusions, ascending, in tree order */,
    Sum* __restrict__ results /* (n) */) {
    __shared__ int stacks[WALK_THREADS / 32][STACK];
    const int lane = threadIdx.x % 32, number = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (number >= groups) return;
    int* stack = stacks[threadIdx.x / 32];
    const Cell leaf = cells[group[number].x];
    const int own = min(group[number].y + lane, leaf.last - 1);
    const Charge target = {high[own], low[own]};
    const int first_partner = partner_start[own], last_partner = partner_start[own + 1];
    Sum total = {0, 0, 0, 0};
    int pending = 1;
    if (lane == 0) stack[0] = 0;
    __syncwarp();
    while (pending > 0) {
        const int number_of_cell = stack[--pending];
        __syncwarp();  // before its place is overwritten
        const Cell cell = cells[number_of_cell];
        if (accepted(cell, leaf)) {
            total.add(far_field(target, cell, moments + number_of_cell * (long long)TERMS));
        } else if (cell.children > 0) {
            if (lane < cell.children) stack[pending + lane] = cell.child + lane;
            pending += cell.children;
        } else {
            total.add(near_field(target, cell, high, low, partner, first_partner, last_partner));
        }
        __syncwarp();
    }
    // subtract excluded partners that are contained in an accepted cell
    for (int k = first_partner; k < last_partner; k++) {
        int cell = leaf_of[partner[k]];
        while (cell >= 0 && !accepted(cells[cell], leaf)) cell = parent[cell];
        if (cell < 0) continue;
        Field far = {0, 0, 0, 0};
        interact(target, high[partner[k]], low[partner[k]], far);
        total.add(Field{-far.phi, -far.x, -far.y, -far.z});
    }
    if (group[number].y + lane < leaf.last) results[own] = total;
}
