// The interaction of one pair, by kernels/pairs/pair.cuh on the host: force over distance and
// energy, for the tests.
#include "cuda.h"
#include "pairs/pair.cuh"

extern "C" __attribute__((visibility("default"))) void pair(double square, double x, double y,
                                                            double* found) {
    const Pair pair = pair_at<true>(real(square), {real(x), real(y)});
    found[0] = pair.force_over_r;
    found[1] = pair.energy;
}
