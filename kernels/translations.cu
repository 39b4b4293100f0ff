// translations: what m2m, m2l and l2l need of the box vectors in the parameter block. All in double, for tables of floats too.
//
//   zero_rows        A_0b of every translation of m2l: what its term of degree 0 is computed from, in float64 (m2l_add.cu)
//   harmonics        irregular harmonics of translations, for m2l by matrices
//   rotations        of translations, for m2l by rotation (kernels/m2l_rotation.cu): exp(i m alpha), exp(i m theta), n! / R^(n+1)
//   shifts           regular harmonics of the vectors from a parent's centre to its children's
//   child_tables     of the translations between them, see common/children.cuh
//
// Harmonics in loops over m and l, as in fmm_openmm/expansions/harmonics.py; a thread a vector or an entry.
#include "common/children.cuh"
#include "common/types.cuh"

#define ROW ((TERMS + 1) / 2 * 2)
#define HARMONICS ((2 * ORDER + 1) * (2 * ORDER + 1))

struct Vector {
    double x, y, z;

    __device__ Vector(double i0, double i1, double i2, const Parameters* parameters) {
        const double* b = parameters->boxes;
        x = i0 * b[0] + i1 * b[3] + i2 * b[6];
        y = i0 * b[1] + i1 * b[4] + i2 * b[7];
        z = i0 * b[2] + i1 * b[5] + i2 * b[8];
    }
    __device__ Vector(int4 offset, const Parameters* parameters) : Vector(offset.x, offset.y, offset.z, parameters) {}
    __device__ double square() const { return x * x + y * y + z * z; }
    __device__ double theta() const { return atan2(sqrt(x * x + y * y), z); }
    __device__ double phi() const { return atan2(y, x); }
};

__device__ Vector shift_of(int child, const Parameters* parameters) {
    return Vector((child & 1) - 0.5, (child >> 1 & 1) - 0.5, (child >> 2) - 0.5, parameters);
}

// Calls visit(l, m, real part, imaginary part) for the regular harmonics up to a degree.
template <class Visit>
__device__ void regular_of(const Vector& r, int top, Visit visit) {
    double c = 1, s = 0;    // R_mm
    for (int m = 0; m <= top; m++) {
        double before = 0, factor = 1;    // R_lm over R_mm
        for (int l = m; l <= top; l++) {
            visit(l, m, factor * c, factor * s);
            const double next = ((2 * l + 1) * r.z * factor - r.square() * before) / ((l + 1 + m) * (l + 1 - m));
            before = factor;
            factor = next;
        }
        const double scale = 1.0 / (2 * m + 2), turned = (r.x * c - r.y * s) * scale;
        s = (r.x * s + r.y * c) * scale;
        c = turned;
    }
}

// The same for the irregular ones, (l - m)! (l + m)! R_lm / r^(2 l + 1).
template <class Visit>
__device__ void irregular_of(const Vector& r, int top, Visit visit) {
    const double inverse = 1 / r.square();
    double c = sqrt(inverse), s = 0;      // S_mm
    for (int m = 0; m <= top; m++) {
        double before = 0, factor = 1;    // S_lm over S_mm
        for (int l = m; l <= top; l++) {
            visit(l, m, factor * c, factor * s);
            const double next = ((2 * l + 1) * r.z * factor - double((l + m) * (l - m)) * before) * inverse;
            before = factor;
            factor = next;
        }
        const double scale = (2 * m + 1) * inverse, turned = (r.x * c - r.y * s) * scale;
        s = (r.x * s + r.y * c) * scale;
        c = turned;
    }
}

extern "C" __global__ void zero_rows(int count, const int4* __restrict__ offsets /* (count), target - source */,
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

extern "C" __global__ void harmonics(int count, const int4* __restrict__ offsets, const Parameters* __restrict__ parameters,
                                     real* __restrict__ terms /* (count, HARMONICS) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    irregular_of(Vector(offsets[i], parameters), 2 * ORDER, [&](int l, int m, double c, double s) {
        real* own = terms + (long long)i * HARMONICS + l * l + l;
        own[m] = real(c);
        if (m > 0) own[-m] = real(s);
    });
}

extern "C" __global__ void rotations(int count, const int4* __restrict__ offsets, const Parameters* __restrict__ parameters,
                                     real* __restrict__ table /* (count, 6 (ORDER + 1)) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const Vector r(offsets[i], parameters);
    const double alpha = r.phi() + 1.57079632679489661923, theta = r.theta(), inverse = 1 / sqrt(r.square());
    real *own = table + (long long)i * (6 * (ORDER + 1)), *power = own + 4 * (ORDER + 1);
    for (int m = 0; m <= ORDER; m++) {
        own[2 * m] = real(cos(m * alpha));
        own[2 * m + 1] = real(sin(m * alpha));
        own[2 * (ORDER + 1 + m)] = real(cos(m * theta));
        own[2 * (ORDER + 1 + m) + 1] = real(sin(m * theta));
    }
    double value = inverse;
    for (int n = 0; n <= 2 * ORDER; n++, value *= n * inverse) power[n] = real(value);
    power[2 * ORDER + 1] = 0;
}

extern "C" __global__ void shifts(const Parameters* __restrict__ parameters, double* __restrict__ terms /* (8, TERMS) */) {
    const int child = threadIdx.x;
    regular_of(shift_of(child, parameters), ORDER, [&](int l, int m, double c, double s) {
        double* own = terms + child * TERMS + l * l + l;
        own[m] = c;
        if (m > 0) own[-m] = s;
    });
}

#if ROTATED
// Entries of J, blocks of degree l.
struct Exchange {
    const double* own;
    int l;
    __device__ double operator()(int m, int k) const { return own[(m + l) * (2 * l + 1) + k + l]; }
};

extern "C" __global__ void child_tables(const double* __restrict__ exchange /* (TURN_ENTRIES) */, const double* __restrict__ shifts,
                                        const Parameters* __restrict__ parameters, real* __restrict__ tables /* (8, TABLE) */) {
    const int entry = blockIdx.x * blockDim.x + threadIdx.x, child = blockIdx.y;
    const Vector shift = shift_of(child, parameters);
    real* table = tables + child * TABLE;
    if (entry <= ORDER) {
        double power = 1;
        for (int n = 1; n <= entry; n++) power *= sqrt(shift.square()) / n;
        table[2 * TURN_ENTRIES + entry] = real(power);
    }
    if (entry >= TURN_ENTRIES) return;
    int l = 0;
    while (block_of(l + 1) <= entry) l++;
    const int n = 2 * l + 1, m = (entry - block_of(l)) / n - l, k = (entry - block_of(l)) % n - l;
    const Exchange j = {exchange + block_of(l), l};
    const double theta = shift.theta(), phi = shift.phi();
    double forth = 0, back = 0;    // J Z(theta) J Z(-phi) and Z(phi) J Z(-theta) J; Z_mm = cos m g, Z_m,-m = -sin m g
    for (int i = -l; i <= l; i++) {
        const double c = cos(i * theta), s = sin(i * theta);
        forth += (j(m, i) * c + j(m, -i) * s) * (j(i, k) * cos(k * phi) - j(i, -k) * sin(k * phi));
        back += (cos(m * phi) * j(m, i) - sin(m * phi) * j(-m, i)) * (c * j(i, k) + s * j(-i, k));
    }
    table[entry] = real(forth);
    table[TURN_ENTRIES + entry] = real(back);
}
#else
// R_lm of any order m, real part and imaginary part.
__device__ double2 complex_term(const double* terms, int l, int m) {
    const int k = m < 0 ? -m : m;
    if (l < 0 || k > l) return double2{0, 0};
    const double c = terms[l * l + l + k], s = k == 0 ? 0 : terms[l * l + l - k];
    if (m >= 0) return double2{c, s};
    return k % 2 == 0 ? double2{c, -s} : double2{-c, s};
}

extern "C" __global__ void child_tables(const double* __restrict__, const double* __restrict__ shifts,
                                        const Parameters* __restrict__, real* __restrict__ tables /* (8, TABLE) */) {
    const int entry = blockIdx.x * blockDim.x + threadIdx.x, child = blockIdx.y;
    if (entry >= TERMS * TERMS) return;
    const int a = entry / TERMS, l = degree_of(a), m = a - l * l - l, mu = m < 0 ? -m : m;
    const int b = entry % TERMS, j = degree_of(b), k = b - j * j - j, nu = k < 0 ? -k : k;
    // R_jk and R_j,-k = (-1)^k conj R_jk of x times what they meet in R_lm(x + shift)
    const double2 p = complex_term(shifts + child * TERMS, l - j, mu - nu);
    double2 q = complex_term(shifts + child * TERMS, l - j, mu + nu);
    const double sign = nu == 0 ? 0 : (nu % 2 == 0 ? 1 : -1);
    q = double2{sign * q.x, sign * q.y};
    const double2 real_part = {p.x + q.x, p.y + q.y}, imaginary_part = {q.y - p.y, p.x - q.x};
    const double2 of = k < 0 ? imaginary_part : real_part;
    tables[child * TABLE + entry] = real(m < 0 ? of.y : of.x);
}
#endif
