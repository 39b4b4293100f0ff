// trace: the coefficients of the trace term (fmm_openmm/expansions/background.py),
//
//     c_k Q of x_k^2,   -2 c_k D_k of x_k,   the constant sum_k c_k S_k
//
// from the charge Q, the dipole moment D and the second moments S_k about the boxes' centres. Q and
// D are the spectrum of the moments at wave vector 0; p2m leaves a partial sum of S_k per block. A
// rank that does not have wave vector 0 leaves out Q and D.
//
// A block for each set of charges. Bound by latency, and concurrent with the convolution.
#include "common/types.cuh"

extern "C" __global__ void trace(
    const real2* __restrict__ spectrum /* (SETS, TERMS, waves) of the moments */,
    int waves /* 0 without wave vector 0 */,
    const double* __restrict__ square /* (SETS, squares) */, int squares,
    const double* __restrict__ background /* (3): c */,
    double* __restrict__ terms /* (SETS, 7): x^2, y^2, z^2, x, y, z, 1 */) {
    __shared__ double partial[1024];
    if (SETS > 1) {
        spectrum += blockIdx.x * (long long)waves * TERMS;
        square += blockIdx.x * (long long)squares;
        terms += 7 * blockIdx.x;
    }
    double s = 0;
    for (int b = threadIdx.x; b < squares; b += blockDim.x) s += square[b];
    partial[threadIdx.x] = s;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        for (int k = 0; k < 6; k++) terms[k] = 0;
        terms[6] = partial[0];
        if (waves == 0) return;
        const double charge = spectrum[0].x;
        for (int axis = 0; axis < 3; axis++) terms[axis] = background[axis] * charge;
        terms[3] = -4 * background[0] * spectrum[3 * (long long)waves].x;  // R_11 = (x + i y) / 2
        terms[4] = -4 * background[1] * spectrum[1 * (long long)waves].x;
        terms[5] = -2 * background[2] * spectrum[2 * (long long)waves].x;
    }
}
