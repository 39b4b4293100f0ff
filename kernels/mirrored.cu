// mirrored: the convolution of lattice.cu for rectangular cells, where wave vectors that are mirror
// images in y and z share one matrix.
//
// Mirroring a wave vector multiplies term (l, m) of the operator, of the moments and of the local
// expansions by
//
//     y: 1 for real parts, -1 for imaginary parts          z: (-1)^(l + m)
//
// With these signs applied to moments and results, (k0, k1, k2), (k0, -k1, k2), (-k0, k1, k2) and
// (-k0, -k1, k2) are four complex right-hand sides of one real symmetric matrix: eight real
// columns, the width of a tensor core product. The operator is stored for one octant of wave
// vectors, D0 / 2 + 1, D1 / 2 + 1 and D2 / 2 + 1 of them along the axes.
//
// Rows and columns are ordered by pairs (l, m), the real part before the imaginary part. With
// negative orders stored too, T_l,-m = (-1)^m conj(T_lm), the four entries between two pairs need
// two complex terms of degree l + j:
//
//     cc = Re P + Re Q    cs = Im P - Im Q    sc = Im P + Im Q    ss = Re Q - Re P
//     with P = T_m+k, Q = (-1)^k T_m-k
//
// A block owns MIRRORED_WAVES wave vectors of the octant; a warp owns some row tiles of one of
// them. Shared memory holds the operator and the moments, then the results. A lane computes the
// four entries between one pair of rows and one pair of columns, its part of a 16 x 8 tile. Tensor
// cores multiply tiles and columns: doubles directly, floats as three products of TF32 numbers.
// Bound by computing the tiles and by latency between the three phases.
#include "common/dependency.cuh"
#include "common/spectra.cuh"
#include "common/tensor.cuh"

#define PAIRS ((ORDER + 1) * (ORDER + 2) / 2)
#define ROW_TILES ((PAIRS + 7) / 8)
#define PADDED_PAIRS (8 * ROW_TILES)             // padded to whole tiles
#define SHARE (MIRRORED_WARPS / MIRRORED_WAVES)  // warps per wave vector
#define TILES ((ROW_TILES + SHARE - 1) / SHARE)  // row tiles per warp
#define SPAN (3 * ORDER + 1)                     // orders -ORDER to 2 ORDER of a degree
#define OPERATOR_PAIRS ((2 * ORDER + 1) * (ORDER + 1))
#define OPERATOR_SIZE ((2 * ORDER + 1) * SPAN)
#define COLUMNS_SIZE (8 * PADDED_PAIRS + 2)  // + 2: the next wave vector uses other banks
#define ROUNDS(items, workers) (((items) + (workers) - 1) / (workers))
#define H0 (D0 / 2 + 1)
#define H1 (D1 / 2 + 1)
#define STORED (H0 * H1 * WAVES2)  // wave vectors of the octant that the kernel takes

// x, or -x if the sign bit of `sign` is set
__device__ __forceinline__ float with_sign(float x, unsigned sign) {
    return __uint_as_float(__float_as_uint(x) ^ (sign & 0x80000000u));
}

__device__ __forceinline__ double with_sign(double x, unsigned sign) {
    return __hiloint2double(__double2hiint(x) ^ int(sign & 0x80000000u), __double2loint(x));
}

// i^power z
__device__ __forceinline__ real2 times_power_of_i(real2 z, int power) {
    return {with_sign(power & 1 ? z.y : z.x, unsigned(power + 1) << 30),
            with_sign(power & 1 ? z.x : z.y, unsigned(power) << 30)};
}

// Degrees and orders of all pairs, as l << 8 | m.
struct Pairs {
    int packed[OPERATOR_PAIRS] = {};
    __device__ constexpr Pairs() {
        for (int l = 0, number = 0; l <= 2 * ORDER; l++)
            for (int m = 0; m <= l; m++) packed[number++] = l << 8 | m;
    }
};
__constant__ constexpr Pairs all_pairs;

struct Pair {
    int l, m;
    __device__ explicit Pair(int number)
        : l(all_pairs.packed[number] >> 8), m(all_pairs.packed[number] & 255) {}
    __device__ int real_part() const { return l * l + l + m; }
    __device__ int imaginary_part() const { return l * l + l - m; }
};

// A mirror image of a stored wave vector: bit 0 of its number mirrors y, bit 1 mirrors z.
struct Image {
    int number;
    bool distinct;    // whether it differs from the images of lower numbers
    long long place;  // of its first term
    __device__ Image(int wave, int number) : number(number) {
        const int k0 = wave / (H1 * WAVES2), k1 = wave / WAVES2 % H1;
        const bool y = number & 1 && k1 > 0 && 2 * k1 < D1, z = number & 2 && k0 > 0 && 2 * k0 < D0;
        distinct = number == y + 2 * z;
        place = ((z ? D0 - k0 : k0) * PLANE_ROWS + (y ? D1 - k1 : k1)) * (long long)WAVES2 +
                wave % WAVES2;
    }
    // mirroring multiplies the real and the imaginary part of a pair by these powers of i, 0 or 2
    __device__ int power(const Pair& pair) const { return number & (pair.l + pair.m) << 1; }
    __device__ int power_imaginary() const { return (number & 1) << 1; }
};

// sum += a b + c d. Tensor cores round towards zero, so that sums of many float products are
// accumulated outside of them.
__device__ __forceinline__ void multiply_add(real (&sum)[4], const real (&a)[4], const real (&b)[2],
                                             const real (&c)[4], const real (&d)[2]) {
    real part[4] = {};
    real(&result)[4] = Factor<4>::SPLIT ? part : sum;
    const Factor<2> right[2] = {split(b), split(d)};  // first, which takes fewer registers
    multiply_add(result, split(a), right[0]);
    multiply_add(result, split(c), right[1]);
#pragma unroll
    for (int i = 0; i < 4 && Factor<4>::SPLIT; i++) sum[i] += part[i];
}

// A lane's part b of the columns of a tile, and the pointers from which it computes its entries of
// the matrix.
struct Column {
    const char *sum, *difference;  // P and Q of row 0
    real parity, b[2];
    __device__ Column(const real2* order_0, const real* columns, int number) {
        const Pair pair(min(number, PAIRS - 1));
        sum = reinterpret_cast<const char*>(order_0 + pair.l * SPAN + pair.m);
        difference = reinterpret_cast<const char*>(order_0 + pair.l * SPAN - pair.m);
        parity = pair.m % 2 ? -1 : 1;
        b[0] = columns[16 * number];
        b[1] = columns[16 * number + 8];
    }
    __device__ __forceinline__ void entries(int row, real (&a)[4]) const {
        const real2 p = *reinterpret_cast<const real2*>(sum + row),
                    q = *reinterpret_cast<const real2*>(difference + row);
        a[0] = p.x + parity * q.x;
        a[1] = p.y + parity * q.y;
        a[2] = p.y - parity * q.y;
        a[3] = parity * q.x - p.x;
    }
};

constexpr int PARTS = 32 * MIRRORED_WARPS / MIRRORED_WAVES;  // threads per wave vector

// Loads the operator of a wave vector to `terms` and an image of its moments to `copy`; each of
// PARTS threads does its part.
__device__ __forceinline__ void load(const real2* __restrict__ moments,
                                     const real* __restrict__ operator_terms, const Image& image,
                                     int part, real2* terms, real2* copy) {
    constexpr int COLUMN_ROUNDS = ROUNDS(PADDED_PAIRS, PARTS / 4),
                  OPERATOR_ROUNDS = ROUNDS(OPERATOR_PAIRS, PARTS);
    // all loads are issued before the first is used
    real2 column[COLUMN_ROUNDS][2], term[OPERATOR_ROUNDS];
#pragma unroll
    for (int i = 0; i < COLUMN_ROUNDS; i++) {
        const Pair pair(min(part / 4 + i * (PARTS / 4), PAIRS - 1));
        column[i][0] = moments[pair.real_part() * TERM_STRIDE];
        column[i][1] = moments[pair.imaginary_part() * TERM_STRIDE];
    }
#pragma unroll
    for (int i = 0; i < OPERATOR_ROUNDS; i++) {
        const Pair pair(min(part + i * PARTS, OPERATOR_PAIRS - 1));
        term[i] = {operator_terms[pair.real_part() * (long long)STORED],
                   operator_terms[pair.imaginary_part() * (long long)STORED]};
    }
#pragma unroll
    for (int i = 0; i < COLUMN_ROUNDS; i++) {
        const int number = part / 4 + i * (PARTS / 4);
        const Pair pair(min(number, PAIRS - 1));
        const int power = pair.l + image.power(pair);
        const real2 c = times_power_of_i(column[i][0], power),
                    s = times_power_of_i(column[i][1], power + image.power_imaginary());
        // P + Q contains order 0 twice
        const real once = number < PAIRS ? 1 : 0, half = pair.m > 0 ? once : once / 2;
        const bool used = i < PADDED_PAIRS / (PARTS / 4) || number < PADDED_PAIRS;
        if (used) copy[8 * number] = {half * c.x, half * c.y};
        if (used) copy[8 * number + 4] = {once * s.x, once * s.y};
    }
#pragma unroll
    for (int i = 0; i < OPERATOR_ROUNDS; i++) {
        const int number = part + i * PARTS;
        const bool used = i < OPERATOR_PAIRS / PARTS || number < OPERATOR_PAIRS;
        const Pair pair(min(number, OPERATOR_PAIRS - 1));
        const real c = 2 * term[i].x, s = pair.m > 0 ? 2 * term[i].y : 0;
        real2* const order_0 = terms + pair.l * SPAN + ORDER;
        if (used) order_0[pair.m] = {c, s};
        if (used && pair.m > 0 && pair.m <= ORDER)
            order_0[-pair.m] = {with_sign(c, pair.m << 31), with_sign(s, ~pair.m << 31)};
    }
}

// Stores the image's local expansions, which have replaced its moments.
__device__ __forceinline__ void store(const real2* copy, const Image& image, int part,
                                      real2* __restrict__ local) {
#pragma unroll
    for (int i = 0; i < ROUNDS(PAIRS, PARTS / 4); i++) {
        const int number = part / 4 + i * (PARTS / 4);
        if (i == ROUNDS(PAIRS, PARTS / 4) - 1 && number >= PAIRS) break;
        const Pair pair(number);
        const int power = image.power(pair) - pair.l;
        const real2 c = copy[8 * number], s = copy[8 * number + 4];
        const real half = pair.m > 0 ? real(1) : real(0.5);
        local[pair.real_part() * TERM_STRIDE] =
            times_power_of_i(real2{half * c.x, half * c.y}, power);
        if (pair.m > 0)
            local[pair.imaginary_part() * TERM_STRIDE] =
                times_power_of_i(s, power + image.power_imaginary());
    }
}

extern "C" __global__ void __launch_bounds__(32 * MIRRORED_WARPS) convolve_mirrored(
    const real2* __restrict__ moments /* (SETS, TERMS, D0, D1, WAVES2), or see spectra.cuh */,
    const real* __restrict__ operator_terms /* ((2 ORDER + 1)^2, H0, H1, WAVES2) */,
    real2* __restrict__ local /* likewise */) {
    extern __shared__ char memory[];
    wait_for_previous_kernel();
    // (MIRRORED_WAVES, OPERATOR_SIZE)
    real2* const terms = reinterpret_cast<real2*>(memory);
    // (MIRRORED_WAVES, COLUMNS_SIZE)
    real2* const columns = terms + MIRRORED_WAVES * OPERATOR_SIZE;

    // this thread copies the operator and one image of the moments of one wave vector
    const int own = threadIdx.x % MIRRORED_WAVES, part = threadIdx.x / MIRRORED_WAVES;
    const int wave = blockIdx.x * MIRRORED_WAVES + own;
    const Image image(min(wave, STORED - 1), part % 4);
    const bool copies = wave < STORED && image.distinct;
    real2* const copy = columns + own * COLUMNS_SIZE + image.number;
    moments += image.place;
    local += image.place;
    if (SETS > 1) {
        moments += blockIdx.y * (TERM_STRIDE * TERMS);
        local += blockIdx.y * (TERM_STRIDE * TERMS);
    }
    operator_terms += min(wave, STORED - 1);
    load(moments, operator_terms, image, part, terms + own * OPERATOR_SIZE, copy);
    __syncthreads();

    // this warp computes row tiles of one wave vector
    const int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4, warp = threadIdx.x / 32;
    const int first = warp % SHARE * TILES;
    const real2* const order_0 = terms + warp / SHARE * OPERATOR_SIZE + ORDER;
    real2* const own_columns = columns + warp / SHARE * COLUMNS_SIZE;
    int row[TILES];  // byte offsets
    real sum[TILES][4] = {};
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const Pair pair(min((first + i) * 8 + group, PAIRS - 1));
        row[i] = (pair.l * SPAN + pair.m) * sizeof(real2);
    }
#pragma unroll 1
    for (int number = member; number < PADDED_PAIRS; number += 8) {
        const real* const own_column = reinterpret_cast<const real*>(own_columns) + group;
        const Column left(order_0, own_column, number), right(order_0, own_column, number + 4);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            real a[4], c[4];
            left.entries(row[i], a);
            right.entries(row[i], c);
            multiply_add(sum[i], a, left.b, c, right.b);
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const int number = (first + i) * 8 + group;
        if (number >= PAIRS) continue;
        own_columns[8 * number + member] = {sum[i][0], sum[i][1]};
        own_columns[8 * number + 4 + member] = {sum[i][2], sum[i][3]};
    }
    __syncthreads();
    if (copies) store(copy, image, part, local);
}
