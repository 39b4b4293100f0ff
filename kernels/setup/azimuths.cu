// azimuths: the derivative of the lattice operator along one generator as functions of the azimuth
// phi, for lattice_work.cu,
//
//     DE_L = w (T_L0 + 2 sum_{even m > 0} Tc_Lm cos m phi + Ts_Lm sin m phi)
//     DO_L = w  2 sum_{odd m} Tc_Lm sin m phi - Ts_Lm cos m phi
//
// with the real (Tc) and imaginary (Ts) parts of its terms. w is twice the weight of an azimuth in
// the mean, because lattice_work computes only one of the equal products (l, j) and (j, l). A
// thread owns an element of a row. In float64; bound by sines and cosines.
#include "common/azimuths.cuh"
#include "common/real.cuh"

extern "C" __global__ void __launch_bounds__(256)
    azimuths(int waves, const double* __restrict__ derivative /* ((2 ORDER + 1)^2, waves) */,
             real2* __restrict__ rows /* (ROWS, waves): DE, DO */) {
    const int wave = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y,
              in_pair = row % (3 * ORDER + 1);  // row of an even azimuth and the next one
    if (wave >= waves) return;
    const bool second = in_pair > 2 * ORDER;
    const int azimuth = row / (3 * ORDER + 1) * 2 + second, L = second ? in_pair - ORDER : in_pair;
    const double* const order_0 = derivative + (L * L + L) * (long long)waves + wave;
    double even = order_0[0], odd = 0;
    for (int m = 1; m <= L; m++) {
        const double c = order_0[m * (long long)waves], s = order_0[-m * (long long)waves];
        double sine, cosine;
        sincospi(m * azimuth % (2 * AZIMUTHS) / double(AZIMUTHS), &sine, &cosine);
        if (m % 2 == 0)
            even += 2 * (c * cosine + s * sine);
        else
            odd += 2 * (c * sine - s * cosine);
    }
    const double weight = (L > ORDER ? 2.0 : 4.0) / AZIMUTHS;
    rows[row * (long long)waves + wave] = {real(weight * even), real(weight * odd)};
}
