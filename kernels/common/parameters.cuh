// The parameter block of the pipeline.
#pragma once

// Values that may change between evaluations without rebuilding the graph. Matrices are stored row
// by row, box and cell vectors as rows, as in BoxLattice.
struct Parameters {
    double inverse[9];  // positions in nm times this matrix are box coordinates
    double boxes[9];    // box vectors, mean box widths
    double slope[9];    // inverse of boxes
    double potential;   // Coulomb constant / box width: converts potentials to kJ/mol/e
    double field;       // Coulomb constant / box width^2: converts fields
    double cell[9];     // cell vectors, mean box widths
    double origin[3];   // nm, if boxes cover only the particles; else 0
};

// Where the particles of a slab lie that OpenMM may have wrapped along box vector c.
struct Layer {
    double middle;    // height of their middle, nm
    double farthest;  // how far from it particles may lie, nm: not quite half the height of the box
    double c[3];      // nm
};
