// dft_planes: real Fourier transforms of grids along the last two axes (ROWS = D1) or along the
// last axis only (ROWS = 1). Part of the stage lattice; conventions as in dft.cu.
//
// A block owns DFT_PAIRS pairs of neighbouring planes of a grid, in shared memory. Bound by memory.
#include "common/dependency.cuh"
#include "common/dft_plane_pairs.cuh"
#include "common/plane_spectra.cuh"

#define PLANES (PLANES0 * D1 / ROWS)
#define PAIRS ((PLANES + 1) / 2)

#if DIVIDED
#define SPECTRA spectra, own_spectra, range
#else
#define SPECTRA spectra
#endif

extern __shared__ char memory[];

// Pair number q: its term, its first plane, and whether it has a second plane.
struct Pair {
    long long term;
    int plane;
    bool both, exists;

    __device__ explicit Pair(int q)
        : term(q / PAIRS),
          plane(q % PAIRS * 2),
          both(plane + 1 < PLANES),
          exists(q < GRIDS * PAIRS) {}
};

// Value (k1, k2) of the spectrum of the first or second plane of a pair.
template <class Value>
__device__ __forceinline__ Value& value_of(const PlaneSpectra<Value>& spectra, const Pair& pair,
                                           int second, int k1, int k2) {
#if DIVIDED
    return *spectra.at(pair.term, (pair.plane + second) * ROWS + k1, k2);
#else
    Value* first = spectra.others + ((pair.term * PLANES + pair.plane) * ROWS + k1) * HALF + k2;
    return first[second * ROWS * HALF];
#endif
}

extern "C" __global__ void __launch_bounds__(DFT_THREADS)
    forward_planes(const real2* __restrict__ roots /* (D0 + D1 + D2) */,
                   const real* __restrict__ grids /* (GRIDS, PLANES0, D1, D2) */,
#if DIVIDED
                   real2* __restrict__ own_spectra, const int2* __restrict__ range,
#endif
                   real2* __restrict__ spectra /* (GRIDS, PLANES0, D1, HALF), or spectra.cuh */) {
    wait_for_previous_kernel();
    real2* tile = reinterpret_cast<real2*>(memory);  // (DFT_PAIRS, ROWS, PITCH)
    planes_forward<DFT_PAIRS>(roots + D0 + D1 - ROWS, tile, [&](int pair, int row, int column) {
        const Pair own(blockIdx.x * DFT_PAIRS + pair);
        if (!own.exists) return real2{0, 0};
        const real* from = grids + ((own.term * PLANES + own.plane) * ROWS + row) * D2 + column;
        return real2{from[0], own.both ? from[ROWS * D2] : real(0)};
    });
    __syncthreads();
    for (int t = threadIdx.x; t < DFT_PAIRS * ROWS * HALF; t += blockDim.x) {
        const int k2 = t % HALF, k1 = t / HALF % ROWS, pair = t / (HALF * ROWS);
        const Pair own(blockIdx.x * DFT_PAIRS + pair);
        if (!own.exists) return;
        real2 a, b;
        separate(tile, pair, k1, k2, a, b);
        const PlaneSpectra<real2> to = {SPECTRA};
        value_of(to, own, 0, k1, k2) = a;
        if (own.both) value_of(to, own, 1, k1, k2) = b;
    }
}

extern "C" __global__ void __launch_bounds__(DFT_THREADS)
    inverse_planes(const real2* __restrict__ roots /* (D0 + D1 + D2) */,
#if DIVIDED
                   const real2* __restrict__ own_spectra, const int2* __restrict__ range,
#endif
                   const real2* __restrict__ spectra /* (GRIDS, PLANES0, D1, HALF), likewise */,
                   real* __restrict__ grids /* (GRIDS, PLANES0, D1, D2) */) {
    wait_for_previous_kernel();
    real2* tile = reinterpret_cast<real2*>(memory);  // (DFT_PAIRS, ROWS, PITCH)
    planes_inverse<DFT_PAIRS>(
        roots + D0 + D1 - ROWS, tile,
        [&](int pair, int k1, int k2, real2& a, real2& b) {
            const Pair own(blockIdx.x * DFT_PAIRS + pair);
            a = b = real2{0, 0};
            if (!own.exists) return;
            const PlaneSpectra<const real2> from = {SPECTRA};
            a = value_of(from, own, 0, k1, k2);
            if (own.both) b = value_of(from, own, 1, k1, k2);
        },
        [&](int pair, int row, int n, real2 z) {
            const Pair own(blockIdx.x * DFT_PAIRS + pair);
            if (!own.exists) return;
            real* to = grids + ((own.term * PLANES + own.plane) * ROWS + row) * D2 + n;
            to[0] = z.x;
            if (own.both) to[ROWS * D2] = z.y;
        });
}
