// F, the swap of x and z in harmonics: R_lm(Q y) = sum_k F_mk R_lk(y) with Q = swap. F does not mix
// real and imaginary parts, and half of its entries vanish.
#pragma once
#include "common/real.cuh"

// F for every degree, real and imaginary parts. The recurrences follow from d(R o Q)/dz = (dR/dx) o
// Q and, for k = l, from the same relation with x and z swapped.
struct SwapXZ {
    double real_part[ORDER + 1][ORDER + 1][ORDER + 1],
        imaginary_part[ORDER + 1][ORDER + 1][ORDER + 1];
};

__host__ __device__ constexpr SwapXZ make_swap_xz() {
    SwapXZ f = {};
    f.real_part[0][0][0] = 1;
    for (int l = 1; l <= ORDER; l++)
        for (int m = 0; m <= l; m++) {
            for (int k = 0; k < l; k++) {
                const double next = m < ORDER ? f.real_part[l - 1][m + 1][k] : 0;
                f.real_part[l][m][k] = m == 0 ? -next : (f.real_part[l - 1][m - 1][k] - next) / 2;
                if (m == 0) continue;
                const double next_imaginary = m < ORDER ? f.imaginary_part[l - 1][m + 1][k] : 0;
                f.imaginary_part[l][m][k] =
                    (f.imaginary_part[l - 1][m - 1][k] - next_imaginary) / 2;
            }
            f.real_part[l][m][l] = 2 * f.real_part[l - 1][m][l - 1] +
                                   (l > 1 ? (l == 2 ? 2 : 1) * f.real_part[l][m][l - 2] : 0);
            f.imaginary_part[l][m][l] =
                2 * f.imaginary_part[l - 1][m][l - 1] + (l > 2 ? f.imaginary_part[l][m][l - 2] : 0);
            if (l == 1) f.imaginary_part[1][1][1] = 1;
        }
    return f;
}

static __device__ constexpr SwapXZ SWAP_XZ = make_swap_xz();
