// Tiles of target terms. Every tile has the same number of terms of each parity, so that the parity
// of a row is known at compile time.
//
//   TILES, ROWS   number of tiles; rows of a tile, a multiple of 4, some of them empty
#pragma once
#include "irregular.cuh"

struct Tiles {
    int parity[ROWS], term[TILES][ROWS];  // -1: empty row
};

__host__ __device__ constexpr Tiles make_tiles() {
    Tiles tiles = {};
    for (int tile = 0; tile < TILES; tile++)
        for (int row = 0; row < ROWS; row++) tiles.term[tile][row] = -1;
    int begin = 0;  // first row of this parity
    for (int q = 0; q < 8; q++) {
        int n = 0;
        for (int l = 0; l <= ORDER; l++)
            for (int m = -l; m <= l; m++)
                if (parity(l, m) == q) {
                    tiles.term[n % TILES][begin + n / TILES] = l * l + l + m;
                    n++;
                }
        const int end = begin + (n + TILES - 1) / TILES;
        for (; begin < end; begin++) tiles.parity[begin] = q;
    }
    return tiles;
}

static __device__ constexpr Tiles TERM_TILES = make_tiles();
