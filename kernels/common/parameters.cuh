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

// Where the particles of a slab or wire lie that OpenMM may have wrapped along the box vectors
// without images, the free ones. Rows are box vectors; other vectors have zeros in both matrices.
struct Placement {
    double middle[3];    // fractional coordinates of their middle
    double farthest[3];  // how far from it particles may lie: not quite half of the vector
    double normals[9];   // fractional coordinates are their products with positions, 1/nm
    double vectors[9];   // nm
    double axes[9];      // unit vectors of the boxes' coordinates, in columns
};
