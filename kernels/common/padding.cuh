// Axes along which the boxes cover only the particles, without periodic images among the boxes. The
// counts matrix has no off-diagonal elements in the row and column of such an axis.
//
//   PADDED0, PADDED1, PADDED2  whether an axis is padded
#pragma once

#define ANY_PADDED (PADDED0 || PADDED1 || PADDED2)

__device__ __forceinline__ constexpr bool is_padded(int axis) {
    return axis == 0 ? PADDED0 : axis == 1 ? PADDED1 : PADDED2;
}
