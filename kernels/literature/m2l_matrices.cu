// m2l_matrices: the matrices of m2l_p4_symmetric and m2l_p4_parity, in tiles of target terms. A
// thread owns an entry.
#include "tiles.cuh"

extern "C" __global__ void matrices(
    const real* __restrict__ harmonics /* (vectors, HARMONICS) */,
    real* __restrict__ matrix /* (vectors, TERMS, TILES, ROWS): source term, target term */) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (row >= TILES * ROWS) return;
    const int a = TERM_TILES.term[row / ROWS][row % ROWS];
    const real value = a < 0 ? real(0) : matrix_entry(harmonics + blockIdx.z * HARMONICS, a, b);
    matrix[(blockIdx.z * (long long)TERMS + b) * (TILES * ROWS) + row] = value;
}
