// The azimuths at which lattice_work multiplies functions of the moments, and the rows in which
// derivatives of the lattice operator are stored as functions of the azimuth: of an even azimuth a
// row for each degree L, of an odd one only for degrees above ORDER.
#pragma once

#define AZIMUTHS (2 * (ORDER + 1))  // pi / AZIMUTHS apart
#define ROWS ((ORDER + 1) * (3 * ORDER + 1))

// The first row of an azimuth.
__device__ __forceinline__ int first_row(int azimuth) {
    return azimuth / 2 * (3 * ORDER + 1) + azimuth % 2 * (2 * ORDER + 1);
}
