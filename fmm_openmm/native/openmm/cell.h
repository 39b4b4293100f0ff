// How a cell is strained from another, and the parameter block of the pipeline in it. Needs neither
// OpenMM nor CUDA.
#pragma once
#include <cmath>

#include "abi.h"

namespace fmm {

// row by row, lower triangular; rows of cells and boxes are vectors
typedef double Matrix[9];

// other = scale cell (1 + e), as strain() of fmm_openmm/box/vectors.py.
// What is no such cell is within nothing.
class Strain {
public:
    Strain(const double* cell, const double* other);

    // Whether the components of e on the diagonal are at most `stretch`,
    // those below it at most `shear`.
    bool within(double stretch, double shear) const;

    // A matrix times (1 + e), and the inverse of 1 + e times a matrix.
    void apply(Matrix& matrix) const;
    void undo(Matrix& matrix) const;

    double scale;

private:
    Matrix deformation;  // 1 + e
};

// The boxes of a program, as Python tells of them.
struct Boxes : BoxesData {
    bool serve(const double* other) const { return Strain(cell, other).within(stretch, shear); }
    Parameters parametersIn(const double* other) const;
};

inline Strain::Strain(const double* cell, const double* other) {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            double rest = other[3 * i + j];
            for (int k = 0; k < i; k++) rest -= cell[3 * i + k] * deformation[3 * k + j];
            deformation[3 * i + j] = rest / cell[4 * i];
        }
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
        for (int j = 0; j < 3; j++) {  // columns to the right are those of the matrix still
            double sum = 0;
            for (int k = j; k < 3; k++) sum += matrix[3 * i + k] * deformation[3 * k + j];
            matrix[3 * i + j] = sum;
        }
}

inline void Strain::undo(Matrix& matrix) const {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {  // rows above are those of the result already
            double rest = matrix[3 * i + j];
            for (int k = 0; k < i; k++) rest -= deformation[3 * i + k] * matrix[3 * k + j];
            matrix[3 * i + j] = rest / deformation[4 * i];
        }
}

inline Parameters Boxes::parametersIn(const double* other) const {
    const Strain strain(cell, other);
    Parameters found = parameters;
    strain.apply(found.boxes);
    strain.apply(found.cell);
    strain.undo(found.slope);
    strain.undo(found.inverse);
    for (double& component : found.inverse) component /= strain.scale;
    found.potential /= strain.scale;
    found.field /= strain.scale * strain.scale;
    for (double& component : found.origin) component *= strain.scale;
    return found;
}

}  // namespace fmm
