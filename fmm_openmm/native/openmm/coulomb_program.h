// The FMM's program in a CUDA context with OpenMM's arrays. Its boxes deform with the periodic
// cell.
#pragma once
#include <string>

#include "../core/executor.h"
#include "cell.h"
#include "cuda_host.h"
#include "remote_devices.h"

namespace fmm {

// The final step of an evaluation.
enum class End {
    FORCES,   // add forces to OpenMM's
    ENERGY,   // compute no forces
    DEFERRED  // the caller will call exportForces()
};

// All members require the host's context to be current.
class CoulombProgram {
public:
    // `eventFlags` are those of events that OpenMM waits for. If several devices share the work,
    // one of them has the far field.
    CoulombProgram(OpenMM::CudaContext& cuda, Host& host, const std::string& program,
                   unsigned eventFlags, bool hasFarField = true);
    ~CoulombProgram();
    CoulombProgram(const CoulombProgram&) = delete;

    // Use these boxes, serialised BoxesData from Python.
    void setBoxes(const std::string& bytes);
    bool boxesServe(const double* box) const { return boxes.serve(box); }

    // Whether the parameter block on the device is that of a periodic box.
    bool isSetFor(const double* box) const;

    // Upload the parameter block of a periodic box and, if the shape of the box has changed,
    // compute the lattice operator. Whatever is in an unknown state after an error is set up again.
    void setBox(const double* box, CUstream stream);

    void setCharges(const std::string& charges, CUstream stream);

    // Compute the near field in a part of the boxes, from the next evaluation on. Requires a
    // program for several devices.
    void setPart(const Part& part, CUstream stream);

    // Queue an evaluation at OpenMM's positions. Potentials and the energy are computed if
    // `potentials` is set.
    void evaluate(CUstream stream, End end, bool potentials);

    // Queue the deferred end of the last evaluation: potentials and energy if requested, and
    // forces, which are added to OpenMM's.
    void exportForces(CUstream stream);

    // Queue copying the sums of the last evaluation to pinned memory.
    void copySums(Sums* sums, CUstream stream);

    // Set limits for the sums, serialised ForceLimits from Python; they depend on the charges.
    void setLimits(const std::string& bytes);

    // Whether Python must be asked for parameters that suit the forces.
    bool exceedsLimits(const Sums& sums) const {
        const double close = limits.cubes * sums.cubes + limits.constant;
        const double small = limits.smallest + limits.potentials * sums.potentials;
        return (sums.squares > 0 && sums.squares < close) || sums.squares < small ||
               sums.squares > limits.largest;
    }

    // Copy the potentials of the last evaluation; false if their size differs.
    bool readPotentials(void* data, int64_t bytes) const;

    // Whether the boxes cover only the particles, not a periodic cell.
    bool coversOnlyParticles() const { return sorted != nullptr; }

    // For such boxes the planner's thresholds: see BoxesData.
    int recheckInterval() const { return int(boxes.recheck); }
    int maxMoves() const { return int(boxes.moves); }

    // Whether a particle was outside such boxes in the last evaluation, whose results are then
    // invalid. Waits for the stage sort only.
    bool particlesOutside();

private:
    void setUpShape(const double* box, CUstream stream);
    void setCellOffsets(CUstream stream);

    OpenMM::CudaContext& cuda;
    const bool hasFarField;
    Executor executor;
    Graph withForces, withoutForces, deferred;
    bool potentialsWanted = true;  // the value of potentials_wanted on the device
    CUevent sorted = nullptr;      // null unless boxes cover only the particles
    int allBoxes[4];               // first and end of all boxes, for near and far field
    Boxes boxes = {};
    ForceLimits limits = {};
    // a matrix of zeros means none
    Matrix current = {};                       // box of the parameter block on the device
    Matrix shaped = {};                        // box of the lattice operator in use
    Matrix saved = {};                         // box of the saved lattice operator
    std::vector<OpenMM::mm_int4> cellOffsets;  // on the device; empty unless a term needs them
};

}  // namespace fmm
