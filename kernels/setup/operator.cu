// operator: the lattice operator for the box vectors in the parameter block; formula in
// fmm_openmm/expansions/operators/periodic.py.
//
// With multiples of the harmonics that have a monic recurrence,
// Y_lm = (l - m)! (l + m)! / (2 l - 1)!! R_lm = (x + i y)^m Z_lm,
//
//     Z_l = z Z_l-1 - r^2 ((l - 1)^2 - m^2) / ((2 l - 1)(2 l - 3)) Z_l-2,    Z_m = 1,
//     S_lm = (2 l - 1)!! Y_lm / r^(2 l + 1),
//
// both halves of the Ewald sum are evaluated for each wave vector,
//
//     operator_t(k) = 4 pi sum_G Y_t(-G) exp(-G^2 / 4 alpha^2) / G^2
//                     +  sum_n w_t(n) (cos, sin)(k.r_n)    for even, odd degree
//
// over the aliases G of k and over one of each pair of opposite offsets n. The weights w do not
// depend on the wave vector.
//
// In rectangular cells (MIRRORED) S is even or odd along each axis, and one of all mirrored offsets
// is enough: the product over the axes of cos k n, or of sin k n along an axis in which the term is
// odd, replaces (cos, sin)(k.r_n). x is odd for real parts of odd m and imaginary parts of even m,
// y for imaginary parts, z for odd l + m; two odd axes contribute i^2.
//
//   operator_weights  the weights, a thread per offset and pair of columns; also the vectors of the
//                     aliases and of the near stencil, a thread each
//   operator_terms    the sums. A block owns OPERATOR_WAVES wave vectors and the columns m and 2 p
//                     - m of the terms, together at most 2 p + 2 terms for any m, a slot each. A
//                     thread keeps the real and imaginary parts of all slots of one wave vector in
//                     registers.
//                     Along a row of offsets the phase is advanced by one complex product. A tile
//                     of weights is in shared memory; bound by reading it, 16 bytes for two
//                     multiply-adds
//
// Macros, from pipeline/setup_tables.py: OPERATOR_WAVES, wave vectors per block; OFFSET_TILE,
// offsets per tile, at whose beginning a new row starts; MIRRORED, whether the cell is rectangular.
// Arguments: alpha, the splitting parameter; cut, the largest length of an alias.
//
// All arithmetic is in float64, for a float operator too: the two halves of the Ewald sum cancel at
// high degrees and for large near stencils.
#include "common/types.cuh"
#include "setup/wave_vectors.cuh"

#define TOP (2 * ORDER)
// an empty slot between the columns gives degree and slot the same parity
#define SLOTS (TOP + 4)
#define COLUMNS (ORDER + 1)

// Phases as fractions of a turn in fixed point, so that integer multiples wrap exactly.
__device__ __forceinline__ uint64 turn_from(double fraction) {
    return uint64(__double2ll_rn(fraction * 18446744073709551616.0));
}

__device__ __forceinline__ double2 cos_sin(uint64 turn) {
    double2 z;
    sincospi(double((long long)turn) * 1.0842021724855044e-19, &z.y, &z.x);
    return z;
}

__device__ __forceinline__ double2 power(double x, double y, int n) {
    double2 z = {1, 0}, square = {x, y};
    for (; n > 0; n /= 2, square = product(square, square))
        if (n % 2) z = product(z, square);
    return z;
}

// The two columns of a block: m in slots 0 to TOP - m, TOP - m from slot `second` on.
struct Columns {
    int m, second, slots;
    __device__ explicit Columns(int m) : m(m), second(TOP + 1 - m + (m % 2 == 0)) {
        slots = m == ORDER ? ORDER + 1 : second + m + 1;
    }
    __device__ int order(int slot) const { return slot < second ? m : TOP - m; }
    __device__ int degree(int slot) const {
        return slot < second ? m + slot : TOP - m + slot - second;
    }
    __device__ bool used(int slot) const { return slot < slots && degree(slot) <= TOP; }
};

// Factors of the weights: real and imaginary parts, for even and odd l - m.
struct Waves {
    double real_part[2], imaginary_part[2];
};

#if MIRRORED
// Phases of an offset along each axis; along a row of offsets only that of x changes.
class Phases {
    double2 x, y, z;

public:
    __device__ void move(int4 n, const uint64 (&turn)[3], double2 step) {
        x = n.w & 2 ? cos_sin(n.x * turn[0]) : product(x, step);
        if (!(n.w & 2)) return;
        y = cos_sin(n.y * turn[1]);
        z = cos_sin(n.z * turn[2]);
    }
    __device__ Waves waves(int m) const {
        const double even = m % 2 ? x.y * y.x : x.x * y.x, odd = m % 2 ? x.x * y.y : -x.y * y.y;
        return {{even * z.x, m % 2 ? -even * z.y : even * z.y},
                {odd * z.x, m % 2 ? -odd * z.y : odd * z.y}};
    }
};
#else
class Phases {
    double2 phase;

public:
    __device__ void move(int4 n, const uint64 (&turn)[3], double2 step) {
        phase =
            n.w & 2 ? cos_sin(n.x * turn[0] + n.y * turn[1] + n.z * turn[2]) : product(phase, step);
    }
    __device__ Waves waves(int m) const {
        const double even = m % 2 ? phase.y : phase.x, odd = m % 2 ? phase.x : phase.y;
        return {{even, odd}, {even, odd}};
    }
};
#endif

__device__ __forceinline__ double coefficient(int l, int m) {
    return double((l - 1) * (l - 1) - m * m) / double((2 * l - 1) * (2 * l - 3));
}

// share[l] = Q(l + 1/2, a), or -P(l + 1/2, a) for near boxes, by recurrences without cancellation,
// upwards and downwards.
__device__ void shares(double a, bool near, double (&share)[TOP + 1]) {
    // a^(l+1/2) exp(-a) / Gamma(l + 3/2)
    double step = 2 / sqrt(PI) * sqrt(a) * exp(-a);
    if (!near) {
        share[0] = erfc(sqrt(a));
        for (int l = 1; l <= TOP; l++, step *= a / (l - 0.5)) share[l] = share[l - 1] + step;
        return;
    }
    double sum = 0;
    for (int l = 0; l <= TOP; l++, step *= a / (l + 0.5)) share[l] = -step;
    for (int l = TOP + 1; l < a || step > -1e-18 * sum; step *= a / (++l + 0.5)) sum -= step;
    for (int l = TOP; l >= 0; l--) share[l] = sum += share[l];
}

extern "C" __global__ void operator_weights(
    double alpha, int offset_count, int alias_count,
    const int4* __restrict__ offsets /* (offset_count): i, 1 near + 2 new row */,
    const int4* __restrict__ aliases /* (alias_count) */,
    const int4* __restrict__ near /* (NEAR) */, const Parameters* __restrict__ parameters,
    double2* __restrict__ weights /* (COLUMNS, offset_count, SLOTS) */,
    double3* __restrict__ alias_vectors /* (alias_count) */,
    real4* __restrict__ shifts /* (NEAR) */) {
    const int number = blockIdx.x * blockDim.x + threadIdx.x;
    const double *b = parameters->boxes, *inverse = parameters->slope;
    if (number < NEAR) {
        const int4 i = near[number];
        shifts[number] = {real(i.x * b[0] + i.y * b[3] + i.z * b[6]), real(i.y * b[4] + i.z * b[7]),
                          real(i.z * b[8]), 0};
    }
    if (number < alias_count) {
        const int4 i = aliases[number];
        const double3 g = {i.x * inverse[0] + i.y * inverse[1] + i.z * inverse[2],
                           i.x * inverse[3] + i.y * inverse[4] + i.z * inverse[5],
                           i.x * inverse[6] + i.y * inverse[7] + i.z * inverse[8]};
        alias_vectors[number] = {2 * PI * g.x, 2 * PI * g.y, 2 * PI * g.z};
    }
    if (number >= offset_count * COLUMNS) return;
    const Columns columns(number / offset_count);
    const int4 i = offsets[number % offset_count];
    const double x = i.x * b[0] + i.y * b[3] + i.z * b[6], y = i.y * b[4] + i.z * b[7],
                 z = i.z * b[8];
    const double r2 = x * x + y * y + z * z;
    double share[TOP + 1];
    shares(alpha * alpha * r2, i.w & 1, share);

    double2 diagonal = {0, 0};
    // Z times (2 l - 1)!! / (2 m - 1)!!, evaluated at r / r^2
    double z1 = 0, z2 = 0;
    for (int slot = 0; slot < SLOTS; slot++) {
        double2 weight = {0, 0};
        if (columns.used(slot)) {
            const int l = columns.degree(slot), m = columns.order(slot);
            if (l == m) {
                const int images = MIRRORED ? 1 << ((i.x != 0) + (i.y != 0) + (i.z != 0)) : 2;
                double scale = images / sqrt(r2);
                for (int k = 1; k <= m; k++) scale *= 2 * k - 1;
                diagonal = product({scale, 0}, power(x / r2, y / r2, m));
                z1 = 1;
                z2 = 0;
            } else {
                const double next =
                    (2 * l - 1) * (z / r2 * z1 - (2 * l - 3) * coefficient(l, m) / r2 * z2);
                z2 = z1;
                z1 = next;
            }
            // the sign pattern + - - + includes that of exp(-i k.r) for odd l
            const double factor = z1 * share[l] * ((l + 1) / 2 % 2 ? -1 : 1);
            weight = {diagonal.x * factor, diagonal.y * factor};
        }
        weights[(long long)number * SLOTS + slot] = weight;
    }
}

// Offsets of a tile and their weights for the columns of a block.
struct Tile {
    double2 weight[OFFSET_TILE][SLOTS];
    int4 offset[OFFSET_TILE];
};

__device__ __forceinline__ void add_real_space(double2 (&sum)[SLOTS], Tile& tile,
                                               const Columns& columns, const double (&fraction)[3],
                                               int offset_count, const int4* __restrict__ offsets,
                                               const double2* __restrict__ weights) {
    const uint64 turn[3] = {turn_from(fraction[0]), turn_from(fraction[1]), turn_from(fraction[2])};
    const double2 step = cos_sin(turn[0]);
    Phases phases;
    for (int first = 0; first < offset_count; first += OFFSET_TILE) {
        const int count = min(OFFSET_TILE, offset_count - first);
        __syncthreads();
        for (int k = threadIdx.x; k < count * SLOTS; k += OPERATOR_WAVES)
            tile.weight[0][k] = weights[first * SLOTS + k];
        for (int k = threadIdx.x; k < count; k += OPERATOR_WAVES)
            tile.offset[k] = offsets[first + k];
        __syncthreads();
        for (int o = 0; o < count; o++) {
            const int4 n = tile.offset[o];
            phases.move(n, turn, step);
            const Waves wave_of = phases.waves(columns.m);
#pragma unroll
            for (int slot = 0; slot < SLOTS; slot++) {
                if (slot % 2 == 0 && slot >= columns.slots) break;
                const double2 w = tile.weight[o][slot];
                sum[slot].x += w.x * wave_of.real_part[slot % 2];
                sum[slot].y += w.y * wave_of.imaginary_part[slot % 2];
            }
        }
    }
}

__device__ __forceinline__ void add_reciprocal_space(
    double2 (&sum)[SLOTS], const double (&beta)[SLOTS], const Columns& columns,
    const double (&fraction)[3], double alpha, double cut, int alias_count,
    const double3* __restrict__ alias_vectors, const Parameters* __restrict__ parameters) {
    const double* inverse = parameters->slope;
    double base[3];
    for (int a = 0; a < 3; a++)
        base[a] = 2 * PI *
                  (fraction[0] * inverse[3 * a] + fraction[1] * inverse[3 * a + 1] +
                   fraction[2] * inverse[3 * a + 2]);
    for (int k = 0; k < alias_count; k++) {
        const double3 alias = alias_vectors[k];
        const double x = -base[0] - alias.x, y = -base[1] - alias.y, z = -base[2] - alias.z;
        const double r2 = x * x + y * y + z * z;
        const bool inside = r2 < cut * cut && r2 > 1e-20;
        if (!__any_sync(FULL, inside)) continue;
        const double gauss = inside ? 4 * PI * exp(r2 * (-0.25 / (alpha * alpha))) / r2 : 0;
        double2 diagonal = product({gauss, 0}, power(x, y, columns.m));
        const double2 second = product({gauss, 0}, power(x, y, TOP - columns.m));
        double z1 = 1, z2 = 0;
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            if (slot >= columns.slots) break;
            if (slot == columns.second) {
                z1 = 1;
                z2 = 0;
                diagonal = second;
            } else if (slot > 0) {
                const double next = z * z1 - beta[slot] * r2 * z2;
                z2 = z1;
                z1 = next;
            }
            sum[slot].x += z1 * diagonal.x;
            sum[slot].y += z1 * diagonal.y;
        }
    }
}

extern "C" __global__ void __launch_bounds__(OPERATOR_WAVES) operator_terms(
    double alpha, double cut, int waves, int offset_count, int alias_count,
    const int* __restrict__ group /* (15): V row by row, d, lengths of the grid of waves */,
    const int4* __restrict__ offsets, const double2* __restrict__ weights,
    const double3* __restrict__ alias_vectors, const Parameters* __restrict__ parameters,
    real* __restrict__ operator_of /* ((2 ORDER + 1)^2, waves) */) {
    __shared__ Tile tile;
    __shared__ double beta[SLOTS];
    const Columns columns(blockIdx.y);
    const int wave = blockIdx.x * OPERATOR_WAVES + threadIdx.x;
    for (int slot = threadIdx.x; slot < SLOTS; slot += OPERATOR_WAVES)
        beta[slot] =
            columns.used(slot) ? coefficient(columns.degree(slot), columns.order(slot)) : 0;

    double fraction[3];
    fractions(fraction, wave, group);
    double2 sum[SLOTS];
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) sum[slot] = {0, 0};

    add_real_space(sum, tile, columns, fraction, offset_count, offsets,
                   weights + (long long)blockIdx.y * offset_count * SLOTS);
    add_reciprocal_space(sum, beta, columns, fraction, alpha, cut, alias_count, alias_vectors,
                         parameters);
    if (wave >= waves) return;

    // the terms of r = 0 and G = 0
    if (columns.m == 0)
        sum[0].x -= 2 * alpha / sqrt(PI) + (FIRST2 == 0 && wave == 0 ? PI / (alpha * alpha) : 0);
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!columns.used(slot)) continue;
        const int l = columns.degree(slot), m = columns.order(slot);
        operator_of[(l * l + l + m) * (long long)waves + wave] = real(sum[slot].x / POINTS);
        if (m > 0)
            operator_of[(l * l + l - m) * (long long)waves + wave] = real(sum[slot].y / POINTS);
    }
}
