// slab: the lattice operator of a slab, from that of a periodic cell of the same boxes; formula in
// fmm_openmm/expansions/operators/slab.py.
//
// What the images along z add to the terms of degree l and orders m and -m is, for each wave
// vector,
//
//     sum_G  (-1)^l G^(l - m) ((x + i y)^m's real part for m, imaginary part for -m)
//            times i^m (f + (-1)^(l - m) conj(f)), real part for even l, imaginary part for odd l,
//     f = 2 pi / (A G) u sum_j exp(j (G z + i phi)),
//
// over the aliases (x, y) of length G of the wave vector in the plane, and the displacements j of
// layers of height z and phase phi. The geometric series over j is written so that its largest term
// and u, which together decay as exp(-G (C - largest |z|)), are one exponential.
//
//   slab_images  a thread per wave vector and order m; it subtracts from the operator
//
// Arguments: layers, layers of boxes in the slab; period, layers from one image to the next; cut,
// the largest length of an alias.
#include "setup/wave_vectors.cuh"

#define TOP (2 * ORDER)

__device__ __forceinline__ double2 quotient(double2 a, double2 b) {
    const double scale = 1 / (b.x * b.x + b.y * b.y);
    return {(a.x * b.x + a.y * b.y) * scale, (a.y * b.x - a.x * b.y) * scale};
}

// 1 - exp(-decay + i phase)
__device__ __forceinline__ double2 complement(double decay, double phase) {
    const double size = exp(-decay), half = sin(0.5 * phase);
    return {-expm1(-decay) + 2 * size * half * half, -size * sin(phase)};
}

extern "C" __global__ void slab_images(
    int waves, int layers, int period, double cut, int alias_count,
    const int* __restrict__ group /* (15): as of operator_terms */,
    const int2* __restrict__ aliases /* (alias_count) */, const Parameters* __restrict__ parameters,
    real* __restrict__ operator_of /* ((2 ORDER + 1)^2, waves) */) {
    const int wave = blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y;
    if (wave >= waves) return;
    double fraction[3];
    fractions(fraction, wave, group);
    const double *b = parameters->boxes, *inverse = parameters->slope;
    const double area = b[0] * b[4], height = b[8], along = -2 * PI * fraction[2];

    double2 sum[TOP + 1];
    for (int l = m; l <= TOP; l++) sum[l] = {0, 0};
    for (int k = 0; k < alias_count; k++) {
        const double f0 = fraction[0] + aliases[k].x, f1 = fraction[1] + aliases[k].y;
        const double x = 2 * PI * f0 * inverse[0], y = 2 * PI * (f0 * inverse[3] + f1 * inverse[4]);
        const double g = sqrt(x * x + y * y);
        if (g > cut) continue;
        if (g < 1e-9) {  // the mean over the plane
            if (m > 0) continue;
            for (int j = 1 - layers; j < layers; j++) {
                const double z = j * height, c = period * height;
                sum[0].x += (2 * PI * z * z / c + PI * c / 3) * cos(j * along) / area;
                sum[1].x -= 4 * PI * z / c * sin(j * along) / area;
                sum[2].x += 8 * PI / (3 * c) * cos(j * along) / area;
            }
            continue;
        }
        const double a = g * height, tilt = x * b[6] + y * b[7], phi = tilt + along;
        const int count = 2 * layers - 1;
        const double size = 2 * PI / (area * g) * exp(-a * (period - layers + 1));
        double2 f;
        sincos((layers - 1) * phi - period * tilt, &f.y, &f.x);
        f = {size * f.x, size * f.y};
        f = product(f, quotient(complement(count * a, -count * phi), complement(a, -phi)));
        f = quotient(f, complement(period * a, -period * tilt));

        const double quarter = m / 2 % 2 ? -2 : 2;
        const double even = m % 2 ? -quarter * f.y : quarter * f.x,
                     odd = m % 2 ? -quarter * f.x : -quarter * f.y;
        double2 power = {1, 0};
        for (int i = 0; i < m; i++) power = product(power, {x, y});
        for (int l = m; l <= TOP; l++) {
            const double factor = l % 2 ? odd : even;
            sum[l].x += factor * power.x;
            sum[l].y += factor * power.y;
            power = {g * power.x, g * power.y};
        }
    }
    for (int l = m; l <= TOP; l++) {
        const double scale = (l / 2 % 2 ? -1.0 : 1.0) / POINTS;
        operator_of[(l * l + l + m) * (long long)waves + wave] -= real(scale * sum[l].x);
        if (m > 0) operator_of[(l * l + l - m) * (long long)waves + wave] -= real(scale * sum[l].y);
    }
}
