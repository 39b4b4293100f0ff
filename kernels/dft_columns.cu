// dft_columns: complex Fourier transforms, in place, of the spectra of real grids along the first
// axis (forward0, inverse0) and the second axis (forward1, inverse1). Part of the stage lattice;
// conventions as in dft.cu.
//
// A block owns DFT_COLUMNS0 or DFT_COLUMNS1 neighbouring columns; 0 means that this axis is not
// transformed here. Bound by memory.
#include "common/dependency.cuh"
#include "common/dft_lines.cuh"

extern __shared__ char memory[];

// Columns along the first axis, see spectra.cuh.
#if DIVIDED
#define OUTER0 1
#define INNER0 (GRIDS * D1 * WAVES2)
#else
#define OUTER0 GRIDS
#define INNER0 (D1 * WAVES2)
#endif

// Columns of D values with stride INNER, of OUTER x INNER in all, COUNT per block.
template <int D, int OUTER, int INNER, int COUNT, int SIGN>
__device__ __forceinline__ void columns(const real2* __restrict__ roots, real2* spectra) {
    real2* tile = reinterpret_cast<real2*>(memory);  // (D, COUNT)
    const long long all = (long long)OUTER * INNER, first = blockIdx.x * (long long)COUNT;
    auto top = [&](int line) {
        const long long c = first + line;
        return spectra + c / INNER * (D * INNER) + c % INNER;
    };
    transform<D, COUNT, SIGN>(
        roots,
        [&](int line, int n) { return first + line < all ? top(line)[n * INNER] : real2{0, 0}; },
        [&](int line, int p) -> real2& { return tile[p * COUNT + line]; },
        [&](int line, int, int k, real2 z) {
            if (first + line < all) top(line)[k * INNER] = z;
        });
}

#if DFT_COLUMNS0
extern "C" __global__ void __launch_bounds__(DFT_THREADS)
    forward0(const real2* __restrict__ roots /* (D0 + D1 + D2) */,
             real2* spectra /* (GRIDS, D0, D1, WAVES2), or see spectra.cuh */) {
    wait_for_previous_kernel();
    columns<D0, OUTER0, INNER0, DFT_COLUMNS0, -1>(roots, spectra);
}

extern "C" __global__ void __launch_bounds__(DFT_THREADS)
    inverse0(const real2* __restrict__ roots /* (D0 + D1 + D2) */,
             real2* spectra /* (GRIDS, D0, D1, WAVES2), or see spectra.cuh */) {
    wait_for_previous_kernel();
    columns<D0, OUTER0, INNER0, DFT_COLUMNS0, 1>(roots, spectra);
}
#endif

#if DFT_COLUMNS1
extern "C" __global__ void __launch_bounds__(DFT_THREADS)
    forward1(const real2* __restrict__ roots /* (D0 + D1 + D2) */,
             real2* spectra /* (GRIDS, D0, D1, WAVES2), or (D0, GRIDS, ..) */) {
    wait_for_previous_kernel();
    columns<D1, GRIDS * D0, WAVES2, DFT_COLUMNS1, -1>(roots + D0, spectra);
}

extern "C" __global__ void __launch_bounds__(DFT_THREADS)
    inverse1(const real2* __restrict__ roots /* (D0 + D1 + D2) */,
             real2* spectra /* (GRIDS, D0, D1, WAVES2), or (D0, GRIDS, ..) */) {
    wait_for_previous_kernel();
    columns<D1, GRIDS * D0, WAVES2, DFT_COLUMNS1, 1>(roots + D0, spectra);
}
#endif
