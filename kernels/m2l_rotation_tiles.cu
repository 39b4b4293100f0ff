// m2l_rotation_tiles: M2L of a level of an octree by rotation, O(p^3) for each pair of boxes, on tensor cores.
//
// The vector r from the source's centre to the target's, of length R and angles theta and phi, is turned onto the z axis. The
// translation along z keeps the order m:
//
//     M' = Y Z(-phi) M        L''_lm = sum_j (l + j)! / R^(l+j+1) M'_jm        L = Z(phi) Y^T S L''
//
// Z(b) multiplies order m by exp(i m b). Y, the turn by theta about y, keeps degrees and real and imaginary parts apart: with the
// exchange F of x and z, Y = Z(pi/2) F Z(theta) F Z(-pi/2). S is (-1)^(l+m), twice that for m > 0.
//
// All three are products of small matrices, one a degree or an order, with a column for each of 32 targets of one child
// position, which share r. A block owns such a group and one share of the interaction list. M' lies in shared memory, L'' in its
// place. A warp makes M' and L of its degrees l, and L'' of the orders ORDER - l, on tensor cores, 8 x 8 numbers of a matrix at a
// time: those of Y from memory, split into TF32 numbers beforehand; those of the translation depend on l + j only. The sums L are
// added to in global memory, by one thread each, in order. Bound by latency: two fifths of the cycles issue an instruction.
#include "common/flip.cuh"
#include "common/levels.cuh"
#include "common/tensor.cuh"
#include "common/vectors.cuh"

#define STEP ((ORDER + 1) | 1)                             // odd: other banks for the next order
#define PITCH (sizeof(real) == 4 ? WARP + 8 : WARP + 4)    // of a row of M': other banks for the next one

// Tiles of degrees below l in one direction: as many along rows as along columns, for real and for imaginary parts
__host__ __device__ constexpr int tiles_before(int l) {
    int tiles = 0;
    for (int k = 0; k < l; k++) tiles += 2 * (k / 8 + 1) * (k / 8 + 1);
    return tiles;
}

// A lane's part of a tile: first numbers, and of floats second ones
template <class T>
struct Stored { typedef real2 type; };
template <>
struct Stored<float> { typedef real4 type; };
typedef Stored<real>::type Tile;

__device__ void store(const Factor<2>& x, real2& tile) { tile = {x.first[0], x.first[1]}; }
__device__ void store(const Factor<2>& x, real4& tile) { tile = {x.first[0], x.first[1], x.second[0], x.second[1]}; }
__device__ __forceinline__ Factor<2> load(const real2& tile) { return {{tile.x, tile.y}, {}}; }
__device__ __forceinline__ Factor<2> load(const real4& tile) { return {{tile.x, tile.y}, {tile.z, tile.w}}; }

// Of a translation
struct Turned {
    Tile there[tiles_before(ORDER + 1)][WARP], back[tiles_before(ORDER + 1)][WARP];    // Y and Y^T, zeros beyond orders l
    real2 phase[ORDER + 1];                                                            // exp(i m phi)
    real power[2 * ORDER + 2];                                                         // n! / R^(n+1), a zero
};

// The degrees of each warp, as bits: the next largest to the one that has least to do
struct Deal {
    unsigned int degrees[M2L_WARPS];
};

__host__ __device__ constexpr Deal make_deal() {
    Deal deal = {};
    int work[M2L_WARPS] = {};
    for (int l = ORDER; l >= 0; l--) {
        int least = 0;
        for (int warp = 1; warp < M2L_WARPS; warp++)
            if (work[warp] < work[least]) least = warp;
        deal.degrees[least] |= 1u << l;
        work[least] += 1 + 3 * (l / 8 + 1);
    }
    return deal;
}

static __device__ constexpr Deal DEAL = make_deal();

// Which number of 8 is column 0 .. 7 of a product, so that a lane has the same two of its results as of its terms
__device__ __forceinline__ int placed(int column) { return column / 2 + column % 2 * 4; }

// Y_mk of real (0) or imaginary (1) parts, from cosines and sines of multiples of theta
__device__ double turned(int l, int m, int k, int part, const double2* circle) {
    if (m > l || k > l || (part == 1 && (m == 0 || k == 0))) return 0;
    // order k times (-i)^k, order m times i^m: real numbers become imaginary where the order is odd
    const int from = (part + k) % 2, to = (part + m) % 2;
    double sum = 0;
    for (int a = 0; a <= l; a++) {
        const double first = from == 0 ? FLIP.real_part[l][a][k] : FLIP.imaginary_part[l][a][k];
        const double last = to == 0 ? FLIP.real_part[l][m][a] : FLIP.imaginary_part[l][m][a];
        sum += last * (from == to ? circle[a].x : to == 1 ? circle[a].y : -circle[a].y) * first;
    }
    // real: (-i)^k = (-1)^(k/2), or -i (-1)^((k-1)/2); imaginary: i times that
    const bool before = (k / 2 + (part == 0 && k % 2 == 1)) % 2, after = (m / 2 + (part == 0 && m % 2 == 1)) % 2;
    return before != after ? -sum : sum;
}

extern "C" __global__ void __launch_bounds__(256)
rotation_tiles(const int4* __restrict__ vectors /* (gridDim.x) */, const Parameters* __restrict__ parameters,
               Turned* __restrict__ table /* (gridDim.x) */) {
    __shared__ double2 circle[ORDER + 1];
    const Vector r(vectors[blockIdx.x], parameters);
    Turned& own = table[blockIdx.x];
    for (int m = threadIdx.x; m <= ORDER; m += blockDim.x) {
        circle[m] = {cos(m * r.theta()), sin(m * r.theta())};
        own.phase[m] = {real(cos(m * r.phi())), real(sin(m * r.phi()))};
    }
    if (threadIdx.x == 0) {
        const double inverse = 1 / sqrt(r.square());
        double value = inverse;
        for (int n = 0; n <= 2 * ORDER; n++, value *= n * inverse) own.power[n] = real(value);
        own.power[2 * ORDER + 1] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tiles_before(ORDER + 1) * WARP; i += blockDim.x) {
        int l = 0;
        while (tiles_before(l + 1) <= i / WARP) l++;
        const int along = l / 8 + 1, tile = i / WARP - tiles_before(l), part = tile / (along * along);
        const int result = 8 * (tile / along % along) + placed(i % WARP / 4), term = 8 * (tile % along) + i % 4;
        real there[2], back[2];
        for (int n = 0; n < 2; n++) {
            there[n] = real(turned(l, result, term + 4 * n, part, circle));
            back[n] = real(turned(l, term + 4 * n, result, part, circle));
        }
        store(split(there), own.there[i / WARP][i % WARP]);
        store(split(back), own.back[i / WARP][i % WARP]);
    }
}

extern __shared__ real memory[];    // (ORDER + 1, STEP, PITCH): M', then L''

// Keeps the compiler from computing every place anew that is a constant away from this one.
__device__ __forceinline__ int held(int place) {
    asm("" : "+r"(place));
    return place;
}

// A lane g, t of a warp: has numbers t and t + 4 of every 8, of targets g + 8 box.
struct Lane {
    int g, t;

    // Where degree l and order m of target g are: real parts of order m and imaginary ones of order ORDER + 1 - m share STEP rows
    __device__ __forceinline__ int real_row(int l, int m) const { return (m * STEP + l) * PITCH + g; }
    __device__ __forceinline__ int imaginary_row(int l, int m) const {
        return ((ORDER + 1 - m) * STEP + ORDER - l) * PITCH + g;
    }
};

// A stage for degrees given as bits, each of up to 8 T orders
template <class Stage, class... Arguments>
__device__ __forceinline__ void for_degrees(unsigned int degrees, const Arguments&... arguments) {
#pragma unroll 1
    for (; degrees != 0; degrees &= degrees - 1) {
        const int l = __ffs(degrees) - 1;
        if (l < 8) Stage::template of_degree<1>(l, arguments...);
        else if (ORDER < 16 || l < 16) Stage::template of_degree<2>(l, arguments...);
        else Stage::template of_degree<3>(l, arguments...);
    }
}

// sum += tiles times x of 8 terms and 32 targets: a column of T x T tiles
template <int T, class Matrix>
__device__ __forceinline__ void multiply_column(real (&sum)[T][2][4], const real (&x)[2][4], Matrix tile) {
    const Factor<4> low = split(x[0]), high = split(x[1]);
#pragma unroll
    for (int b = 0; b < T; b++) {
        const Factor<2> factor = tile(b);
        multiply_add(sum[b][0], low, factor);
        multiply_add(sum[b][1], high, factor);
    }
}

// Where a lane's part of a degree's tiles begins
template <int T>
__device__ __forceinline__ const Tile* tiles_of(int l, const Lane& lane, const Tile (&tiles)[tiles_before(ORDER + 1)][WARP]) {
    return tiles[tiles_before(8 * T - 8) + (l - 8 * T + 8) * (2 * T * T)] + 4 * lane.g + lane.t;
}

// Degree l: M'
struct Forward {
    template <int T>
    static __device__ __forceinline__ void of_degree(int l, const Lane& lane, const real* const (&from)[4], const Turned& turned) {
        const Tile* const tiles = tiles_of<T>(l, lane, turned.there);
        const real2* const phase = turned.phase + lane.t;
        const real *cosine[4], *sine[4];
#pragma unroll
        for (int box = 0; box < 4; box++) {
            cosine[box] = from[box] + (l * l + l + lane.t) * WARP;
            sine[box] = from[box] + (l * l + l - lane.t) * WARP;
        }
        real sum[2][T][2][4] = {};
#pragma unroll
        for (int a = 0; a < T; a++) {
            real x[2][2][4] = {};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int n = 8 * a + 4 * i;
                if (lane.t + n > l) continue;
                const real2 w = phase[n];
#pragma unroll
                for (int box = 0; box < 4; box++) {
                    const real c = cosine[box][n * WARP], s = lane.t + n > 0 ? sine[box][-n * WARP] : 0;
                    x[0][box / 2][2 * i + box % 2] = w.x * c + w.y * s;
                    x[1][box / 2][2 * i + box % 2] = w.x * s - w.y * c;
                }
            }
#pragma unroll
            for (int part = 0; part < 2; part++)
                multiply_column<T>(sum[part], x[part], [&](int b) { return load(tiles[((part * T + b) * T + a) * WARP]); });
        }
        const int real_row = held(lane.real_row(l, lane.t)), imaginary_row = held(lane.imaginary_row(l, lane.t));
#pragma unroll
        for (int n = 0; n < 2 * T; n++) {
            const int m = lane.t + 4 * n;
#pragma unroll
            for (int box = 0; box < 4; box++) {
                const int i = 2 * (box % 2) + n % 2;
                if (m <= l) memory[real_row + 4 * n * (STEP * PITCH) + 8 * box] = sum[0][n / 2][box / 2][i];
                if (m <= l && m > 0) memory[imaginary_row - 4 * n * (STEP * PITCH) + 8 * box] = sum[1][n / 2][box / 2][i];
            }
        }
    }
};

// Order m, negative for imaginary parts, degrees in the order of their rows: L'' in the place of M'
template <int T>
__device__ __forceinline__ void translate(int m, const Lane& lane, const Turned& turned) {
    const int count = ORDER + 1 - (m < 0 ? -m : m);
    const int column = held((m < 0 ? lane.imaginary_row(ORDER, -m) : lane.real_row(m, m)) + lane.t * PITCH);
    const real sign = ((placed(lane.g) + (m < 0 ? count - 1 : 0)) % 2 == 0 ? 1 : -1) * (m == 0 ? 1 : 2);
    Factor<2> tiles[2 * T - 1];    // the matrix, whose entries depend on the sum of the row's and the column's number
#pragma unroll
    for (int e = 0; e < 2 * T - 1; e++) {
        real pair[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int number = 8 * e + 4 * i + placed(lane.g) + lane.t;
            pair[i] = sign * turned.power[m < 0 ? max(2 * ORDER - number, 0) : min(2 * m + number, 2 * ORDER)];
        }
        tiles[e] = split(pair);
    }
    real sum[T][2][4] = {};
#pragma unroll
    for (int a = 0; a < T; a++) {
        real x[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int box = 0; box < 4; box++)
                x[box / 2][2 * i + box % 2] =
                    lane.t + 8 * a + 4 * i < count ? memory[column + (8 * a + 4 * i) * PITCH + 8 * box] : 0;
        multiply_column<T>(sum, x, [&](int b) { return tiles[a + b]; });
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2 * T; n++)
#pragma unroll
        for (int box = 0; box < 4; box++)
            if (lane.t + 4 * n < count) memory[column + 4 * n * PITCH + 8 * box] = sum[n / 2][box / 2][2 * (box % 2) + n % 2];
}

// Orders m and -m, of as many degrees as degree l = ORDER - m has orders
struct Translate {
    template <int T>
    static __device__ __forceinline__ void of_degree(int l, const Lane& lane, const Turned& turned) {
        const int m = ORDER - l;
#pragma unroll 1
        for (int each = m; each >= -m; each -= max(2 * m, 1)) translate<T>(each, lane, turned);
    }
};

// Degree l: L, added to the sums of target g
struct Back {
    template <int T>
    static __device__ __forceinline__ void of_degree(int l, const Lane& lane, const Turned& turned, real* sums) {
        const Tile* const tiles = tiles_of<T>(l, lane, turned.back);
        const int real_row = held(lane.real_row(l, lane.t)), imaginary_row = held(lane.imaginary_row(l, lane.t));
        real sum[2][T][2][4] = {};
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int a = 0; a < T; a++) {
                real x[2][4] = {};
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int n = 8 * a + 4 * i, m = lane.t + n;
                    if (m > l || (part == 1 && m == 0)) continue;
                    const int row = part == 0 ? real_row + n * (STEP * PITCH) : imaginary_row - n * (STEP * PITCH);
#pragma unroll
                    for (int box = 0; box < 4; box++) x[box / 2][2 * i + box % 2] = memory[row + 8 * box];
                }
                multiply_column<T>(sum[part], x, [&](int b) { return load(tiles[((part * T + b) * T + a) * WARP]); });
            }
        real *const cosine = sums + (l * l + l + lane.t) * WARP, *const sine = sums + (l * l + l - lane.t) * WARP;
        const real2* const phase = turned.phase + lane.t;
#pragma unroll
        for (int n = 0; n < 2 * T; n++) {
            const int m = lane.t + 4 * n;
            if (m > l) continue;
            const real2 w = phase[4 * n];
#pragma unroll
            for (int box = 0; box < 4; box++) {
                const int i = 2 * (box % 2) + n % 2;
                const real c = sum[0][n / 2][box / 2][i], s = sum[1][n / 2][box / 2][i];
                atomicAdd(&cosine[4 * n * WARP + 8 * box], w.x * c - w.y * s);
                if (m > 0) atomicAdd(&sine[-4 * n * WARP + 8 * box], w.x * s + w.y * c);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARP * M2L_WARPS, BLOCKS)
m2l_rotation_tiles(int half, int count, const int4* __restrict__ list /* (8, count) */,
                   const Turned* __restrict__ table /* (translations) */, const real* __restrict__ moments /* slabs */,
                   real* __restrict__ sums /* (gridDim.z) slabs */) {
    const int number = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = blockIdx.x, child = blockIdx.y;
    const Lane lane = {number / 4, number % 4};
    const unsigned int degrees = DEAL.degrees[warp];
    const Target target(group * WARP + number, half);
    sums += ((blockIdx.z * gridDim.y + child) * (long long)gridDim.x + group) * (TERMS * WARP);
    for (int a = warp; a < TERMS; a += M2L_WARPS) sums[a * WARP + number] = 0;
    sums += lane.g;
    __syncthreads();
#pragma unroll 1
    for (int i = blockIdx.z; i < count; i += gridDim.z) {
        const int4 source = list[child * count + i];
        const Turned& turned = table[source.w >> 3];
        const long long begin = target.source(source);
        const real* from[4];
#pragma unroll
        for (int box = 0; box < 4; box++) from[box] = moments + __shfl_sync(FULL, begin, lane.g + 8 * box);
        __syncwarp();
        for_degrees<Forward>(degrees, lane, from, turned);
        __syncthreads();
        for_degrees<Translate>(degrees, lane, turned);
        __syncthreads();
        for_degrees<Back>(degrees, lane, turned, sums);
    }
}
