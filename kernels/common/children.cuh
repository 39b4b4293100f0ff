// Translations between a parent and its eight children: E of fmm_openmm/expansions/translations.py,
// from the tables of setup/children.cu, for expansions in shared memory, (TERMS, TRANSLATE_BOXES).
// A thread owns a box and every ROWS-th term.
//
//   ROTATED            whether translations are B^-1 E(r z) B, with a rotation B, or dense matrices
//   TRANSLATE_BOXES    boxes per block      TRANSLATE_THREADS  threads per block
#pragma once
#include "common/levels.cuh"

#define ROWS (TRANSLATE_THREADS / TRANSLATE_BOXES)  // threads per box
#define ROTATION_ENTRIES ((ORDER + 1) * (2 * ORDER + 1) * (2 * ORDER + 3) / 3)
// entries per child: B, B^-1 and r^n / n!; or E
#define TABLE (ROTATED ? 2 * ROTATION_ENTRIES + ORDER + 1 : TERMS * TERMS)

// First entry of degree l in a block-diagonal matrix, of which only the blocks are stored.
__host__ __device__ constexpr int block_of(int l) {
    return l * (4 * l * l - 1) / 3;
}

// Calls visit(a) for the terms that the thread owns.
template <class Visit>
__device__ __forceinline__ void for_each_term(Visit visit) {
    for (int a = threadIdx.x / TRANSLATE_BOXES; a < TERMS; a += ROWS) visit(a);
}

#if ROTATED
// Row a of a block-diagonal matrix, or of its transpose, times x.
__device__ __forceinline__ real rotated_row(const real* __restrict__ blocks, bool transposed,
                                            const real* x, int a) {
    const int l = degree_of(a), n = 2 * l + 1, row = a - l * l;
    const real* entry = blocks + block_of(l) + (transposed ? row : row * n);
    real sum = 0;
    for (int k = 0; k < n; k++)
        sum += entry[transposed ? k * n : k] * x[(l * l + k) * TRANSLATE_BOXES];
    return sum;
}

// Row a of E(r z), or of its transpose, times x.
__device__ __forceinline__ real translated_row(const real* __restrict__ powers, bool transposed,
                                               const real* x, int a) {
    const int l = degree_of(a), m = a - l * l - l;
    real sum = 0;
    if (transposed)
        for (int j = l; j <= ORDER; j++)
            sum += powers[j - l] * x[(j * j + j + m) * TRANSLATE_BOXES];
    else
        for (int j = m < 0 ? -m : m; j <= l; j++)
            sum += powers[l - j] * x[(j * j + j + m) * TRANSLATE_BOXES];
    return sum;
}
#endif

// Calls store(a, value) for the thread's terms of E x or E^T x. x and y belong to the thread's box;
// x must have been written by all threads and is overwritten, y is workspace.
template <class Store>
__device__ __forceinline__ void translate(const real* __restrict__ table, bool transposed, real* x,
                                          real* y, Store store) {
    __syncthreads();
#if ROTATED
    const real *forth = table, *back = table + ROTATION_ENTRIES;
    for_each_term([&](int a) {
        y[a * TRANSLATE_BOXES] = rotated_row(transposed ? back : forth, transposed, x, a);
    });
    __syncthreads();
    for_each_term([&](int a) {
        x[a * TRANSLATE_BOXES] = translated_row(table + 2 * ROTATION_ENTRIES, transposed, y, a);
    });
    __syncthreads();
    for_each_term(
        [&](int a) { store(a, rotated_row(transposed ? forth : back, transposed, x, a)); });
#else
    for_each_term([&](int a) {
        const int l = degree_of(a);  // E is lower triangular in degrees
        real sum = 0;
        if (transposed)
            for (int b = l * l; b < TERMS; b++)
                sum += table[b * TERMS + a] * x[b * TRANSLATE_BOXES];
        else
            for (int b = 0; b < (l + 1) * (l + 1); b++)
                sum += table[a * TERMS + b] * x[b * TRANSLATE_BOXES];
        store(a, sum);
    });
#endif
    __syncthreads();
}
