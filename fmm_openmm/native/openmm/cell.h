// The strain between two periodic cells, and the pipeline's parameter block in a strained cell.
// Depends on neither OpenMM nor CUDA.
#pragma once
#include <algorithm>
#include <cmath>

#include "abi.h"

namespace fmm {

// 3 x 3, row by row, lower triangular; the rows of a cell are its vectors.
typedef double Matrix[9];

// other = scale cell (1 + e), as strain() of fmm_openmm/box/vectors.py. Invalid cells are within no
// limits.
class Strain {
public:
    // Of two vectors that have images the third row of 1 + e scales as they do on average.
    Strain(const double* cell, const double* other, int vectors = 3);

    // Whether the diagonal components of e are at most `stretch` and those below the diagonal at
    // most `shear`.
    bool within(double stretch, double shear) const;

    // Multiply a matrix by 1 + e from the right, or by its inverse from the left.
    void apply(Matrix& matrix) const;
    void undo(Matrix& matrix) const;

    double scale;

private:
    Matrix deformation;  // 1 + e
};

// The boxes of a program, from Python.
struct Boxes : BoxesData {
    // The place of a slab or wire is known for one value of the free vectors only.
    bool serve(const double* other) const {
        for (int k = 0; k < 3; k++) {
            const double* vector = placement.vectors + 3 * k;
            if (isFree(k) && !std::equal(vector, vector + 3, other + 3 * k)) return false;
        }
        return strain(cell, other).within(stretch, shear);
    }

    // False if one of them is unknown.
    bool haveSameShape(const double* box, const double* other) const {
        return strain(other, box).within(SAME_SHAPE, SAME_SHAPE);
    }

    Parameters parametersIn(const double* other) const;

private:
    bool isFree(int vector) const { return placement.vectors[4 * vector] > 0; }
    bool isSlab() const { return isFree(2) && !isFree(0) && !isFree(1); }

    // Other slabs and wires are valid in no other cell.
    Strain strain(const double* from, const double* to) const {
        return Strain(from, to, isSlab() ? 2 : 3);
    }
};

inline Strain::Strain(const double* cell, const double* other, int vectors) : deformation() {
    for (int i = 0; i < vectors; i++)
        for (int j = 0; j < 3; j++) {
            double remainder = other[3 * i + j];
            for (int k = 0; k < i; k++) remainder -= cell[3 * i + k] * deformation[3 * k + j];
            deformation[3 * i + j] = remainder / cell[4 * i];
        }
    if (vectors == 2) deformation[8] = std::sqrt(deformation[0] * deformation[4]);
    scale = std::cbrt(deformation[0] * deformation[4] * deformation[8]);
    for (double& component : deformation) component /= scale;
}

inline bool Strain::within(double stretch, double shear) const {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            const double limit = i == j ? stretch : (i > j ? shear : 0);
            if (!(std::fabs(deformation[3 * i + j] - (i == j)) <= limit)) return false;
        }
    return scale > 0;
}

inline void Strain::apply(Matrix& matrix) const {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {  // columns to the right still hold the input
            double sum = 0;
            for (int k = j; k < 3; k++) sum += matrix[3 * i + k] * deformation[3 * k + j];
            matrix[3 * i + j] = sum;
        }
}

inline void Strain::undo(Matrix& matrix) const {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {  // rows above already hold the result
            double remainder = matrix[3 * i + j];
            for (int k = 0; k < i; k++) remainder -= deformation[3 * i + k] * matrix[3 * k + j];
            matrix[3 * i + j] = remainder / deformation[4 * i];
        }
}

inline Parameters Boxes::parametersIn(const double* other) const {
    const Strain strain = this->strain(cell, other);
    Parameters strained = parameters;
    strain.apply(strained.boxes);
    strain.apply(strained.cell);
    strain.undo(strained.slope);
    strain.undo(strained.inverse);
    for (double& component : strained.inverse) component /= strain.scale;
    strained.potential /= strain.scale;
    strained.field /= strain.scale * strain.scale;
    for (double& component : strained.origin) component *= strain.scale;
    if (isSlab())  // it stays where it is
        strained.origin[2] += placement.middle[2] * placement.vectors[8] * (1 - strain.scale);
    return strained;
}

}  // namespace fmm
