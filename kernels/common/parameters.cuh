// The parameter block of the pipeline.
#pragma once

// What changes from call to call without a new graph. Rows of boxes and columns of
// inverse as in BoxLattice.
struct Parameters {
    double inverse[9];  // positions in nm to box coordinates: row vector times matrix
    double boxes[9];    // box vectors, mean box widths
    double slope[9];    // inverse of boxes
    double potential;   // Coulomb constant / width: potentials to kJ/mol/e
    double field;       // Coulomb constant / width^2
    double cell[9];     // cell vectors, mean box widths
    double origin[3];   // nm, where boxes cover the particles only; else 0
};
