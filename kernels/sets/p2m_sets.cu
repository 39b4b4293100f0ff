// p2m_sets: p2m for several sets of charges of the same parts, which p2m has sorted:
//
//   share_charges  charges of the parts: charge of the particle times weight. A thread per part
//   p2m_sets       moments of the boxes,
//
//     M_a = sum_j Q_j R_a(x_j)
//
// A block of eight warps owns SETS_BOXES boxes. For SETS_CHUNK parts at a time, four threads per
// part compute its harmonics in shared memory. Then a warp owns a box and a lane owns a term, which
// it sums over these parts for all sets at once. The moments are stored box by box, so that writes
// are coalesced. Bound by latency and by reads of shared memory.
#include "common/charge_sets.cuh"
#include "common/harmonics.cuh"
#include "common/parts.cuh"

#define THREADS 256
#define SHARES 4                // threads that share the orders m of a part's harmonics
#define PITCH (SETS_CHUNK + 1)  // lanes that read different terms use different banks

extern "C" __global__ void share_charges(
    int n, const int* __restrict__ start /* (BOXES + 1) */,
    const int* __restrict__ sorted /* (parts) */, const Located* __restrict__ located,
    const real4* __restrict__ fraction, const Parameters* __restrict__ parameters,
    const real* __restrict__ charges /* (n, SETS) */,
    real4* __restrict__ shared_out /* (QUADS, parts + 1): the last ones are zero */) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x, parts = start[BOXES];
    if (k > parts) return;
    real weight = 0;
    int particle = 0;
    if (k < parts) {
        const int part = sorted[k];
        particle = part >> 3;
        weight = SMOOTHED
                     ? part_of(located[particle], fraction[particle], part & 7, parameters).weight
                     : real(1);
    }
    const long long stride = CORNERS * (long long)n + 1;
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++) {
        real q[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            q[c] = 4 * quad + c < SETS ? weight * charges[particle * (long long)SETS + 4 * quad + c]
                                       : real(0);
        shared_out[quad * stride + k] = real4{q[0], q[1], q[2], q[3]};
    }
}

// The harmonics of a share of the orders m of a part to its column of a tile (TERMS, PITCH).
template <int SHARE>
__device__ __forceinline__ void tabulate(const real4& part, real* column) {
    const real r2 = part.x * part.x + part.y * part.y + part.z * part.z;
    real2 power = {1, 0};
#pragma unroll
    for (int m = 0; m < first_order(SHARE + 1, SHARES); m++) {
        if (m >= first_order(SHARE, SHARES)) {
            real q[ORDER + 1];
            degree_factors<ORDER>(m, part.z, r2, q);
#pragma unroll
            for (int l = m; l <= ORDER; l++) {
                column[term(l, m) * PITCH] = q[l] * power.x;
                if (m > 0) column[term(l, -m) * PITCH] = q[l] * power.y;
            }
        }
        power = next_power(m, part.x, part.y, power);
    }
}

__device__ __forceinline__ void tabulate(int share, const real4& part, real* column) {
    switch (share) {
        case 0:
            return tabulate<0>(part, column);
        case 1:
            return tabulate<1>(part, column);
        case 2:
            return tabulate<2>(part, column);
        default:
            return tabulate<3>(part, column);
    }
}

// Adds parts `from` to `to` of a tile to the moments of a box for all sets.
__device__ __forceinline__ void add_parts(const real* tile, const real4* charge, int from, int to,
                                          bool initial, real* moments /* (SETS, TERMS, BOXES) */) {
#pragma unroll 1
    for (int a = threadIdx.x % 32; a < TERMS; a += 32) {
        real sum[SETS] = {};
#pragma unroll 4
        for (int j = from; j < to; j++) {
            const real r = tile[a * PITCH + j];
            const ChargeQuads q = charges_at(charge, SETS_CHUNK, j);
#pragma unroll
            for (int set = 0; set < SETS; set++) sum[set] += q[set] * r;
        }
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            real& moment = moments[(set * TERMS + a) * SETS_BOXES];
            moment = initial ? sum[set] : moment + sum[set];
        }
    }
}

// sum_k c_k S_k of a box's parts for all sets; a warp.
__device__ __forceinline__ void store_squares(const real4* __restrict__ xq,
                                              const real4* __restrict__ charges, long long stride,
                                              int begin, int end,
                                              const double* __restrict__ background,
                                              double* __restrict__ square /* (SETS, BOXES) */) {
    double sum[SETS] = {};
    for (int k = begin + threadIdx.x % 32; k < end; k += 32) {
        const real4 part = xq[k];
        const double weighted = background[0] * double(part.x * part.x) +
                                background[1] * double(part.y * part.y) +
                                background[2] * double(part.z * part.z);
        const ChargeQuads q = charges_at(charges, stride, k);
#pragma unroll
        for (int set = 0; set < SETS; set++) sum[set] += double(q[set]) * weighted;
    }
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#pragma unroll
        for (int d = 16; d > 0; d /= 2) sum[set] += __shfl_xor_sync(FULL, sum[set], d);
        if (threadIdx.x % 32 == 0) square[set * BOXES] = sum[set];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    p2m_sets(int n, const int* __restrict__ start /* (BOXES + 1) */,
             const real4* __restrict__ xq /* (parts) */,
             const real4* __restrict__ charges /* (QUADS, parts + 1) */,
             const int* __restrict__ slot /* (BOXES) */,
             const double* __restrict__ background /* (3) */,
             real* __restrict__ moments /* (SETS), at slot[box] + STRIDE * term */,
             double* __restrict__ square /* (SETS, BOXES): sum_k c_k S_k */) {
    extern __shared__ char memory[];
    real4* const charge = reinterpret_cast<real4*>(memory);                  // (QUADS, SETS_CHUNK)
    real* const own = reinterpret_cast<real*>(charge + QUADS * SETS_CHUNK);  // (SETS, TERMS, boxes)
    real* const tile = own + SETS * TERMS * SETS_BOXES;                      // (TERMS, PITCH)
    const int first_box = blockIdx.x * SETS_BOXES, boxes = min(SETS_BOXES, BOXES - first_box);
    const int warp = threadIdx.x / 32, first = start[first_box], last = start[first_box + boxes];
    const long long stride = CORNERS * (long long)n + 1;
    int from = first;
    do {
        const int to = min(from + SETS_CHUNK, last);
        for (int t = threadIdx.x; t < SHARES * SETS_CHUNK; t += THREADS) {
            const int column = t % SETS_CHUNK, share = t / SETS_CHUNK;
            if (from + column >= to) continue;
            tabulate(share, xq[from + column], tile + column);
            if (share > 0) continue;
#pragma unroll
            for (int k = 0; k < QUADS; k++)
                charge[k * SETS_CHUNK + column] = charges[k * stride + from + column];
        }
        __syncthreads();
        for (int b = warp; b < boxes; b += THREADS / 32) {
            const int begin = start[first_box + b], end = start[first_box + b + 1];
            add_parts(tile, charge, max(begin, from) - from, min(end, to) - from, from == first,
                      own + b);
        }
        __syncthreads();
        from = to;
    } while (from < last);
    for (int b = warp; b < boxes; b += THREADS / 32)
        store_squares(xq, charges, stride, start[first_box + b], start[first_box + b + 1],
                      background, square + first_box + b);
    const int column = threadIdx.x % SETS_BOXES;
    if (column >= boxes) return;
    real* const to = moments + slot[first_box + column];
    for (int row = threadIdx.x / SETS_BOXES; row < SETS * TERMS; row += THREADS / SETS_BOXES)
        to[row * (long long)STRIDE] = own[row * SETS_BOXES + column];
}
