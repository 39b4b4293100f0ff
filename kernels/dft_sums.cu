// dft_sums: Fourier transforms by direct summation, for lengths that have prime factors above 13 or
// do not fit into shared memory. Part of the stage lattice; conventions as in dft.cu.
//
// A thread owns one value of the result. Bound by the sums, which have one term per value along the
// axis.
#include "common/plane_spectra.cuh"

// The exponent of e^(2 pi i / length) in the next term.
__device__ __forceinline__ int next(int power, int k, int length) {
    power += k;
    return power < length ? power : power - length;
}

// Complex transform along an axis of stride `inner`.
extern "C" __global__ void sums(int outer, int length, int inner, int sign,
                                const real2* __restrict__ roots /* (length) */,
                                const real2* __restrict__ from /* (outer, length, inner) */,
                                real2* __restrict__ to /* (outer, length, inner) */) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= (long long)outer * length * inner) return;
    const int k = i / inner % length;
    from += i - (long long)k * inner;
    real2 sum = {0, 0};
    for (int n = 0, power = 0; n < length; n++, power = next(power, k, length)) {
        const real2 x = from[n * (long long)inner], root = roots[power];
        sum.x += x.x * root.x;
        sum.x -= sign * x.y * root.y;
        sum.y += x.y * root.x;
        sum.y += sign * x.x * root.y;
    }
    to[i] = sum;
}

// Real transform along the last axis.
extern "C" __global__ void sums_forward(
    const real2* __restrict__ roots /* (D2) */,
    const real* __restrict__ grids /* (GRIDS, PLANES0, D1, D2) */,
#if DIVIDED
    real2* __restrict__ own, const int2* __restrict__ range,
#endif
    real2* __restrict__ spectra /* (GRIDS, PLANES0, D1, HALF), or see spectra.cuh */) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= (long long)GRIDS * PLANES0 * D1 * HALF) return;
    const int k = i % HALF;
    const real* x = grids + i / HALF * D2;
    real2 sum = {0, 0};
    for (int n = 0, power = 0; n < D2; n++, power = next(power, k, D2)) {
        sum.x += x[n] * roots[power].x;
        sum.y -= x[n] * roots[power].y;
    }
#if DIVIDED
    const PlaneSpectra<real2> planes = {spectra, own, range};
    *planes.at(i / (PLANES0 * D1 * HALF), i / HALF % (PLANES0 * D1), k) = sum;
#else
    spectra[i] = sum;
#endif
}

extern "C" __global__ void sums_inverse(
    const real2* __restrict__ roots /* (D2) */,
#if DIVIDED
    const real2* __restrict__ own, const int2* __restrict__ range,
#endif
    const real2* __restrict__ spectra /* (GRIDS, PLANES0, D1, HALF), or see spectra.cuh */,
    real* __restrict__ grids /* (GRIDS, PLANES0, D1, D2) */) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= (long long)GRIDS * PLANES0 * D1 * D2) return;
    const int n = i % D2;
#if DIVIDED
    const PlaneSpectra<const real2> planes = {spectra, own, range};
    const auto x = [&](int k) {
        return *planes.at(i / (PLANES0 * D1 * D2), i / D2 % (PLANES0 * D1), k);
    };
#else
    const auto x = [&](int k) { return spectra[i / D2 * HALF + k]; };
#endif
    real sum = x(0).x;
    for (int k = 1, power = n; k < HALF; k++, power = next(power, n, D2)) {
        // a value and its conjugate, unless they are the same
        const real weight = 2 * k == D2 ? 1 : 2;
        const real2 z = x(k);
        sum += weight * (z.x * roots[power].x - z.y * roots[power].y);
    }
    grids[i] = sum;
}
