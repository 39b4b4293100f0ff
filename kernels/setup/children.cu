// children: tables of m2m and l2l from the box vectors in the parameter block. All arithmetic is in
// float64, for float tables too.
//
//   shifts          regular harmonics of the vectors from a parent's centre to its children's. A
//                   thread per vector
//   child_tables    translations along these vectors (common/children.cuh). A thread per entry
#include "common/children.cuh"
#include "common/vectors.cuh"

__device__ Vector shift_of(int child, const Parameters* parameters) {
    return Vector((child & 1) - 0.5, (child >> 1 & 1) - 0.5, (child >> 2) - 0.5, parameters);
}

// Calls visit(l, m, real part, imaginary part) for the regular harmonics up to degree `top`, in
// loops over m and l, as in fmm_openmm/expansions/harmonics.py.
template <class Visit>
__device__ void regular_of(const Vector& r, int top, Visit visit) {
    double c = 1, s = 0;  // R_mm
    for (int m = 0; m <= top; m++) {
        double before = 0, factor = 1;  // R_lm over R_mm
        for (int l = m; l <= top; l++) {
            visit(l, m, factor * c, factor * s);
            const double next =
                ((2 * l + 1) * r.z * factor - r.square() * before) / ((l + 1 + m) * (l + 1 - m));
            before = factor;
            factor = next;
        }
        const double scale = 1.0 / (2 * m + 2), next_c = (r.x * c - r.y * s) * scale;
        s = (r.x * s + r.y * c) * scale;
        c = next_c;
    }
}

extern "C" __global__ void shifts(const Parameters* __restrict__ parameters,
                                  double* __restrict__ terms /* (8, TERMS) */) {
    const int child = threadIdx.x;
    regular_of(shift_of(child, parameters), ORDER, [&](int l, int m, double c, double s) {
        double* own = terms + child * TERMS + l * l + l;
        own[m] = c;
        if (m > 0) own[-m] = s;
    });
}

#if ROTATED
// Block of degree l of J, the matrix that swaps y and z.
struct SwapYZ {
    const double* own;
    int l;
    __device__ double operator()(int m, int k) const { return own[(m + l) * (2 * l + 1) + k + l]; }
};

extern "C" __global__ void child_tables(const double* __restrict__ exchange /* (TURN_ENTRIES) */,
                                        const double* __restrict__ shifts,
                                        const Parameters* __restrict__ parameters,
                                        real* __restrict__ tables /* (8, TABLE) */) {
    const int entry = blockIdx.x * blockDim.x + threadIdx.x, child = blockIdx.y;
    const Vector shift = shift_of(child, parameters);
    real* table = tables + child * TABLE;
    if (entry <= ORDER) {
        double power = 1;
        for (int n = 1; n <= entry; n++) power *= sqrt(shift.square()) / n;
        table[2 * ROTATION_ENTRIES + entry] = real(power);
    }
    if (entry >= ROTATION_ENTRIES) return;
    int l = 0;
    while (block_of(l + 1) <= entry) l++;
    const int n = 2 * l + 1, m = (entry - block_of(l)) / n - l, k = (entry - block_of(l)) % n - l;
    const SwapYZ j = {exchange + block_of(l), l};
    const double theta = shift.theta(), phi = shift.phi();
    // J Z(theta) J Z(-phi) and Z(phi) J Z(-theta) J; Z_mm = cos m g, Z_m,-m = -sin m g
    double forth = 0, back = 0;
    for (int i = -l; i <= l; i++) {
        const double c = cos(i * theta), s = sin(i * theta);
        forth += (j(m, i) * c + j(m, -i) * s) * (j(i, k) * cos(k * phi) - j(i, -k) * sin(k * phi));
        back += (cos(m * phi) * j(m, i) - sin(m * phi) * j(-m, i)) * (c * j(i, k) + s * j(-i, k));
    }
    table[entry] = real(forth);
    table[ROTATION_ENTRIES + entry] = real(back);
}
#else
// The complex harmonic R_lm of any order m.
__device__ double2 complex_term(const double* terms, int l, int m) {
    const int k = m < 0 ? -m : m;
    if (l < 0 || k > l) return double2{0, 0};
    const double c = terms[l * l + l + k], s = k == 0 ? 0 : terms[l * l + l - k];
    if (m >= 0) return double2{c, s};
    return k % 2 == 0 ? double2{c, -s} : double2{-c, s};
}

extern "C" __global__ void child_tables(const double* __restrict__,
                                        const double* __restrict__ shifts,
                                        const Parameters* __restrict__,
                                        real* __restrict__ tables /* (8, TABLE) */) {
    const int entry = blockIdx.x * blockDim.x + threadIdx.x, child = blockIdx.y;
    if (entry >= TERMS * TERMS) return;
    const int a = entry / TERMS, l = degree_of(a), m = a - l * l - l, mu = m < 0 ? -m : m;
    const int b = entry % TERMS, j = degree_of(b), k = b - j * j - j, nu = k < 0 ? -k : k;
    // coefficients of R_jk(x) and of R_j,-k(x) = (-1)^k conj R_jk(x) in R_lm(x + shift)
    const double2 p = complex_term(shifts + child * TERMS, l - j, mu - nu);
    double2 q = complex_term(shifts + child * TERMS, l - j, mu + nu);
    const double sign = nu == 0 ? 0 : (nu % 2 == 0 ? 1 : -1);
    q = double2{sign * q.x, sign * q.y};
    const double2 real_part = {p.x + q.x, p.y + q.y}, imaginary_part = {q.y - p.y, p.x - q.x};
    const double2 entry_parts = k < 0 ? imaginary_part : real_part;
    tables[child * TABLE + entry] = real(m < 0 ? entry_parts.y : entry_parts.x);
}
#endif
