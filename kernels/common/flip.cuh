// F, the exchange of x and z: R_lm(Q y) = sum_k F_mk R_lk(y). It keeps real and imaginary parts
// apart, and half of its entries vanish.
#pragma once
#include "common/real.cuh"

// F of every degree, real and imaginary parts. From d(R o Q)/dz = (dR/dx) o Q, and with x and z
// exchanged for k = l.
struct Flip {
    double real_part[ORDER + 1][ORDER + 1][ORDER + 1],
        imaginary_part[ORDER + 1][ORDER + 1][ORDER + 1];
};

__host__ __device__ constexpr Flip make_flip() {
    Flip f = {};
    f.real_part[0][0][0] = 1;
    for (int l = 1; l <= ORDER; l++)
        for (int m = 0; m <= l; m++) {
            for (int k = 0; k < l; k++) {
                const double above = m < ORDER ? f.real_part[l - 1][m + 1][k] : 0;
                f.real_part[l][m][k] = m == 0 ? -above : (f.real_part[l - 1][m - 1][k] - above) / 2;
                if (m == 0) continue;
                const double beyond = m < ORDER ? f.imaginary_part[l - 1][m + 1][k] : 0;
                f.imaginary_part[l][m][k] = (f.imaginary_part[l - 1][m - 1][k] - beyond) / 2;
            }
            f.real_part[l][m][l] = 2 * f.real_part[l - 1][m][l - 1] +
                                   (l > 1 ? (l == 2 ? 2 : 1) * f.real_part[l][m][l - 2] : 0);
            f.imaginary_part[l][m][l] =
                2 * f.imaginary_part[l - 1][m][l - 1] + (l > 2 ? f.imaginary_part[l][m][l - 2] : 0);
            if (l == 1) f.imaginary_part[1][1][1] = 1;
        }
    return f;
}

static __device__ constexpr Flip FLIP = make_flip();
