// translations: tables of m2l for the vectors between the centres of boxes. All arithmetic is in
// float64, for float tables too. A thread per vector.
//
//   zero_rows    A_0b, the row of the translation matrix for the term of degree 0 (m2l_add.cu)
//   harmonics    irregular harmonics, for m2l by matrices
//   rotations    for m2l by rotation (common/rotation.cuh): exp(i m theta) and 2 (-1)^n n! /
//                R^(n+1); for planes exp(-i m alpha)
#include "common/vectors.cuh"

#define ROW ((TERMS + 1) / 2 * 2)
#define HARMONICS ((2 * ORDER + 1) * (2 * ORDER + 1))

// Calls visit(l, m, real part, imaginary part) for the irregular harmonics (l - m)! (l + m)! R_lm /
// r^(2 l + 1) up to degree `top`, in loops over m and l, as in fmm_openmm/expansions/harmonics.py.
template <class Visit>
__device__ void irregular_of(const Vector& r, int top, Visit visit) {
    const double inverse = 1 / r.square();
    double c = sqrt(inverse), s = 0;  // S_mm
    for (int m = 0; m <= top; m++) {
        double before = 0, factor = 1;  // S_lm over S_mm
        for (int l = m; l <= top; l++) {
            visit(l, m, factor * c, factor * s);
            const double next =
                ((2 * l + 1) * r.z * factor - double((l + m) * (l - m)) * before) * inverse;
            before = factor;
            factor = next;
        }
        const double scale = (2 * m + 1) * inverse, next_c = (r.x * c - r.y * s) * scale;
        s = (r.x * s + r.y * c) * scale;
        c = next_c;
    }
}

extern "C" __global__ void zero_rows(
    int count, const int4* __restrict__ offsets /* (count), target - source */,
    const Parameters* __restrict__ parameters, double* __restrict__ rows /* (count, ROW) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    irregular_of(Vector(offsets[i], parameters), ORDER, [&](int l, int m, double c, double s) {
        double* row = rows + (long long)i * ROW + l * l + l;
        row[m] = (m == 0 ? 1 : 2) * c;
        if (m > 0) row[-m] = 2 * s;
    });
    if (ROW > TERMS) rows[(long long)i * ROW + TERMS] = 0;
}

extern "C" __global__ void harmonics(int count, const int4* __restrict__ offsets,
                                     const Parameters* __restrict__ parameters,
                                     real* __restrict__ terms /* (count, HARMONICS) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    irregular_of(Vector(offsets[i], parameters), 2 * ORDER, [&](int l, int m, double c, double s) {
        real* own = terms + (long long)i * HARMONICS + l * l + l;
        own[m] = real(c);
        if (m > 0) own[-m] = real(s);
    });
}

extern "C" __global__ void rotations(
    int count, const int4* __restrict__ offsets /* (count); w: whether it is a plane's */,
    const int4* __restrict__ planes /* (count): a vector in each plane, other than its axis */,
    const Parameters* __restrict__ parameters,
    real* __restrict__ table /* (count, 4 (ORDER + 1)) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const Vector r(offsets[i], parameters), u(planes[i], parameters);
    const bool plane = offsets[i].w;
    const double theta = atan2((r.y * u.y + r.z * u.z) / sqrt(u.y * u.y + u.z * u.z), r.x),
                 inverse = 1 / sqrt(r.square());
    const double angle = plane ? -(atan2(u.y, u.z) + 1.57079632679489661923) : theta;
    real *own = table + (long long)i * (4 * (ORDER + 1)), *power = own + 2 * (ORDER + 1);
    for (int m = 0; m <= ORDER; m++) {
        own[2 * m] = real(cos(m * angle));
        own[2 * m + 1] = real(sin(m * angle));
    }
    double value = plane ? 0 : 2 * inverse;
    for (int n = 0; n <= 2 * ORDER; n++, value *= -n * inverse) power[n] = real(value);
    power[2 * ORDER + 1] = 0;
}
