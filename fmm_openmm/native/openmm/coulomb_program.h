// The FMM's program in OpenMM's CUDA context, and its boxes, which follow the cell.
#pragma once
#include <string>

#include "../core/executor.h"
#include "cell.h"
#include "cuda_host.h"

namespace fmm {

// What ends an evaluation.
enum class End {
    FORCES,  // forces are added to OpenMM's
    ENERGY,  // there are no forces
    LATER    // exportForces() comes
};

// All members need OpenMM's context to be current.
class CoulombProgram {
public:
    CoulombProgram(OpenMM::CudaContext& cuda, const std::string& program);
    ~CoulombProgram();
    CoulombProgram(const CoulombProgram&) = delete;

    // Go on with boxes as Python tells of them, if need be other ones than before.
    void setBoxes(const std::string& told);
    bool boxesServe(const double* box) const { return boxes.serve(box); }

    // Whether the parameter block on the device is of a periodic box.
    bool isIn(const double* box) const;

    // Have the parameter block of a periodic box on the device and, for another shape of it, the
    // lattice operator. What is unknown after a failure is made again.
    void enter(const double* box, CUstream stream);

    void setCharges(const std::string& charges, CUstream stream);

    // Queue an evaluation of OpenMM's positions. Potentials and the energy are computed if they are
    // wanted.
    void evaluate(CUstream stream, End end, bool potentials);

    // Queue the end of the last evaluation: its potentials and energy if they were wanted, and its
    // forces, which are added to OpenMM's.
    void exportForces(CUstream stream);

    // Queue copying the energy of the last evaluation to pinned memory.
    void copyEnergy(double* energy, CUstream stream);

    // Copy the potentials of the last evaluation; false if they have another size.
    bool readPotentials(void* data, int64_t bytes) const;

    // Whether the boxes cover the particles only.
    bool follows() const { return sorted != nullptr; }

    // Whether a particle of the last evaluation is outside such boxes: its results are of no use.
    // Waits for the stage sort alone.
    bool particlesOutside();

private:
    void setUpShape(const double* box, CUstream stream);

    CudaHost host;
    Executor executor;
    Graph addingForces, leavingForcesOut, open;
    bool potentialsWanted = true;  // what the buffer of this name holds
    CUevent sorted = nullptr;      // none unless boxes follow the particles
    Boxes boxes = {};
    // zero: none
    Matrix current = {};  // box of the parameter block on the device
    Matrix shaped = {};   // of the lattice operator in use
    Matrix kept = {};     // of the lattice operator beside it
};

}  // namespace fmm
