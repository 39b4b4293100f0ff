// Products of small matrices: on tensor cores if the device has them, else by shuffles in a warp.
#pragma once
#include "common/real.cuh"

#ifdef __CUDA_ARCH__
#define ARCHITECTURE __CUDA_ARCH__
#else
#define ARCHITECTURE 0
#endif

// d += a b with a 16 x 8 and b 8 x 8, in the layout of tensor cores. Lane 4 g + t holds the entries
// (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of a, (t, g), (t + 4, g) of b, and (g, 2 t), (g, 2
// t + 1), (g + 8, 2 t), (g + 8, 2 t + 1) of d.
template <class T>
__device__ __forceinline__ void multiply_without_tensor_cores(T (&d)[4], const T (&a)[4],
                                                              const T (&b)[2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const T upper = __shfl_sync(FULL, a[k / 4 * 2], 4 * g + k % 4),
                lower = __shfl_sync(FULL, a[k / 4 * 2 + 1], 4 * g + k % 4);
        const T even = __shfl_sync(FULL, b[k / 4], 8 * t + k % 4),
                odd = __shfl_sync(FULL, b[k / 4], 8 * t + 4 + k % 4);
        d[0] += upper * even;
        d[1] += upper * odd;
        d[2] += lower * even;
        d[3] += lower * odd;
    }
}

__device__ __forceinline__ void multiply_add(float (&d)[4], const float (&a)[4],
                                             const float (&b)[2]) {
#if ARCHITECTURE >= 800
    const unsigned *x = reinterpret_cast<const unsigned*>(a),
                   *y = reinterpret_cast<const unsigned*>(b);
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
#else
    multiply_without_tensor_cores(d, a, b);
#endif
}

__device__ __forceinline__ void multiply_add(double (&d)[4], const double (&a)[4],
                                             const double (&b)[2]) {
#if ARCHITECTURE >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
        "%9}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#elif ARCHITECTURE >= 800
#pragma unroll
    for (int k = 0; k < 4; k++)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(d[k % 2 * 2]), "+d"(d[k % 2 * 2 + 1])
            : "d"(a[k]), "d"(b[k / 2]));
#else
    multiply_without_tensor_cores(d, a, b);
#endif
}

// x truncated to the precision of TF32.
__device__ __forceinline__ float truncate_to_tf32(float x) {
    return __uint_as_float(__float_as_uint(x) & 0xffffe000u);
}

// A lane's entries of a factor, a (N = 4) or b (N = 2). Floats are split into sums of two TF32
// numbers (H. Ootomo and R. Yokota, Int. J. High Perform. Comput. Appl. 36, 475 (2022),
// doi:10.1177/10943420221090256).
template <int N>
struct Factor {
    static constexpr bool SPLIT = ARCHITECTURE >= 800 && sizeof(real) == 4;
    real first[N], second[N];
};

// The first numbers of b are rounded to nearest, so that the error of the omitted product is
// unbiased.
template <int N>
__device__ __forceinline__ Factor<N> split(const real (&x)[N]) {
    Factor<N> parts;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const real rounded =
            Factor<N>::SPLIT && N == 2 ? x[i] + (x[i] - truncate_to_tf32(x[i])) : x[i];
        parts.first[i] = Factor<N>::SPLIT ? truncate_to_tf32(rounded) : x[i];
        parts.second[i] = x[i] - parts.first[i];
    }
    return parts;
}

// d += a b, without the product of the second parts.
__device__ __forceinline__ void multiply_add(real (&d)[4], const Factor<4>& a, const Factor<2>& b) {
    if (Factor<4>::SPLIT) {
        multiply_add(d, a.first, b.second);
        multiply_add(d, a.second, b.first);
    }
    multiply_add(d, a.first, b.first);
}
