// Fourier transforms of pairs of real planes A, B, each (ROWS, D2), as those of the complex planes
// Z = A + iB in shared memory:
//
//     A_k = (Z_k + conj Z_-k) / 2        B_k = (Z_k - conj Z_-k) / 2i
//
// Columns are transformed first, then rows, so that neighbouring threads read neighbouring values
// of A and B.
#pragma once
#include "common/dft_lines.cuh"
#include "common/spectra.cuh"

#define ROWS DFT_ROWS
#define PITCH DFT_PITCH

// Value p of a row in a tile of planes (.., ROWS, PITCH). The pitch is odd, so that the values of a
// column are in different banks. If there is room, a gap after every 16 values does the same for
// values of a row at multiples of 16.
__device__ __forceinline__ real2& at(real2* tile, int row, int p) {
    return tile[row * PITCH + (PITCH > D2 + 1 ? p + p / 16 : p)];
}

__device__ __forceinline__ int opposite(int k, int length) {
    return k == 0 ? 0 : length - k;
}

// Transforms COUNT pairs of planes load(pair, row, column) = A + iB to Z in a tile. `roots` holds
// those of ROWS, then those of D2.
template <int COUNT, class Load>
__device__ __forceinline__ void planes_forward(const real2* __restrict__ roots, real2* tile,
                                               Load load) {
    auto column = [&](int line, int p) -> real2& {
        return at(tile, line / D2 * ROWS + p, line % D2);
    };
    auto row = [&](int line, int p) -> real2& { return at(tile, line, p); };
    transform<ROWS, COUNT * D2, -1>(
        roots, [&](int line, int n) { return load(line / D2, n, line % D2); }, column,
        [&](int line, int p, int, real2 z) { column(line, p) = z; });
    __syncthreads();
    transform<D2, COUNT * ROWS, -1>(roots + ROWS, row, row,
                                    [&](int line, int p, int, real2 z) { row(line, p) = z; });
}

// A_k and B_k of a pair from the result of planes_forward.
__device__ __forceinline__ void separate(real2* tile, int pair, int k1, int k2, real2& a,
                                         real2& b) {
    const real2 z = at(tile, pair * ROWS + place<ROWS>(k1), place<D2>(k2));
    const real2 w =
        at(tile, pair * ROWS + place<ROWS>(opposite(k1, ROWS)), place<D2>(opposite(k2, D2)));
    a = real2{real(0.5) * (z.x + w.x), real(0.5) * (z.y - w.y)};
    b = real2{real(0.5) * (z.y + w.y), real(0.5) * (w.x - z.x)};
}

// The inverse: calls store(pair, row, column, A + iB) for COUNT pairs, from load(pair, k1, k2, A_k,
// B_k) for k2 < HALF.
template <int COUNT, class Load, class Store>
__device__ __forceinline__ void planes_inverse(const real2* __restrict__ roots, real2* tile,
                                               Load load, Store store) {
    for (int t = threadIdx.x; t < COUNT * ROWS * HALF; t += blockDim.x) {
        const int k2 = t % HALF, k1 = t / HALF % ROWS, pair = t / (HALF * ROWS);
        real2 a, b;
        load(pair, k1, k2, a, b);
        at(tile, pair * ROWS + k1, k2) = real2{a.x - b.y, a.y + b.x};
        if (0 < k2 && 2 * k2 < D2)
            at(tile, pair * ROWS + opposite(k1, ROWS), D2 - k2) = real2{a.x + b.y, b.x - a.y};
    }
    __syncthreads();
    auto row = [&](int line, int p) -> real2& { return at(tile, line, p); };
    auto column = [&](int line, int p) -> real2& {
        return at(tile, line / D2 * ROWS + p, place<D2>(line % D2));
    };
    transform<D2, COUNT * ROWS, 1>(roots + ROWS, row, row,
                                   [&](int line, int p, int, real2 z) { row(line, p) = z; });
    __syncthreads();
    transform<ROWS, COUNT * D2, 1>(roots, column, column, [&](int line, int, int n, real2 z) {
        store(line / D2, n, line % D2, z);
    });
}
