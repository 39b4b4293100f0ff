// dft: real three-dimensional Fourier transforms of grids that fit into shared memory. Part of the
// stage lattice.
//
//     forward   X_k = sum_n x_n e^(-2 pi i n.k / D)
//     inverse   x_n = sum_k X_k e^(+2 pi i n.k / D)     (unnormalised)
//
// A block owns one grid of D0 x D1 x D2 points. It transforms pairs of planes along the last two
// axes, then the independent half of the spectrum along the first axis; the inverse reverses these
// steps. Bound by latency.
#include "common/dependency.cuh"
#include "common/dft_plane_pairs.cuh"

#define PAIRS ((D0 + 1) / 2)
#define COLUMNS (D1 * HALF)

extern "C" __global__ void __launch_bounds__(DFT_THREADS)
    forward(const real2* __restrict__ roots /* (D0 + D1 + D2) */,
            const real* __restrict__ grids /* (GRIDS, D0, D1, D2) */,
            real2* __restrict__ spectra /* (GRIDS, D0, D1, HALF) */) {
    extern __shared__ char memory[];
    wait_for_previous_kernel();
    real2* planes = reinterpret_cast<real2*>(memory);  // (PAIRS, D1, PITCH)
    real2* half = planes + PAIRS * D1 * PITCH;         // (D0, COLUMNS)
    const real* grid = grids + blockIdx.x * (long long)POINTS;
    real2* spectrum = spectra + blockIdx.x * (long long)(D0 * COLUMNS);
    planes_forward<PAIRS>(roots + D0, planes, [&](int pair, int row, int column) {
        const real* from = grid + (2 * pair * D1 + row) * D2 + column;
        return real2{from[0], 2 * pair + 1 < D0 ? from[D1 * D2] : real(0)};
    });
    __syncthreads();
    transform<D0, COLUMNS, -1>(
        roots,
        [&](int line, int n) {
            real2 a, b;
            separate(planes, n / 2, line / HALF, line % HALF, a, b);
            return n % 2 == 0 ? a : b;
        },
        [&](int line, int p) -> real2& { return half[p * COLUMNS + line]; },
        [&](int line, int, int k, real2 z) { spectrum[k * COLUMNS + line] = z; });
}

extern "C" __global__ void __launch_bounds__(DFT_THREADS)
    inverse(const real2* __restrict__ roots /* (D0 + D1 + D2) */,
            const real2* __restrict__ spectra /* (GRIDS, D0, D1, HALF) */,
            real* __restrict__ grids /* (GRIDS, D0, D1, D2) */) {
    extern __shared__ char memory[];
    wait_for_previous_kernel();
    real2* planes = reinterpret_cast<real2*>(memory);  // (PAIRS, D1, PITCH)
    real2* half = planes + PAIRS * D1 * PITCH;         // (D0, COLUMNS)
    const real2* spectrum = spectra + blockIdx.x * (long long)(D0 * COLUMNS);
    real* grid = grids + blockIdx.x * (long long)POINTS;
    auto column = [&](int line, int p) -> real2& { return half[p * COLUMNS + line]; };
    transform<D0, COLUMNS, 1>(
        roots, [&](int line, int k) { return spectrum[k * COLUMNS + line]; }, column,
        [&](int line, int p, int, real2 z) { column(line, p) = z; });
    __syncthreads();
    planes_inverse<PAIRS>(
        roots + D0, planes,
        [&](int pair, int k1, int k2, real2& a, real2& b) {
            const int line = k1 * HALF + k2;
            a = column(line, place<D0>(2 * pair));
            b = 2 * pair + 1 < D0 ? column(line, place<D0>(2 * pair + 1)) : real2{0, 0};
        },
        [&](int pair, int row, int n, real2 z) {
            real* to = grid + (2 * pair * D1 + row) * D2 + n;
            to[0] = z.x;
            if (2 * pair + 1 < D0) to[D1 * D2] = z.y;
        });
}
