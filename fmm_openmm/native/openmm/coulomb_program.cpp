#include "coulomb_program.h"

#include <algorithm>
#include <cstring>

using namespace OpenMM;

namespace fmm {

static void copyBox(const double* box, Matrix& copy) {
    std::copy(box, box + 9, copy);
}

static void forget(Matrix& box) {
    std::fill(box, box + 9, 0.0);
}

static bool isKnown(const Matrix& box) {
    return box[0] > 0;
}

// Not if one is unknown.
static bool haveOneShape(const double* box, const double* other) {
    return Strain(other, box).within(SAME_SHAPE, SAME_SHAPE);
}

CoulombProgram::CoulombProgram(CudaContext& cuda, const std::string& program)
    : host(cuda),
      executor(host, program),
      addingForces({phase::EVALUATE, phase::EXPORT}),
      leavingForcesOut({phase::EVALUATE, phase::GATHER}),
      open({phase::EVALUATE}) {
    if (executor.has("outside"))
        check(cuEventCreate(&sorted, cuda.getEventFlags()), "making an event");
}

CoulombProgram::~CoulombProgram() {
    if (sorted) cuEventDestroy(sorted);
}

void CoulombProgram::setBoxes(const std::string& told) {
    if (told.size() != sizeof(Boxes))
        throw Failure("the plugin and the package are of different versions");
    std::memcpy(&boxes, told.data(), sizeof(Boxes));
    forget(current);
    if (!follows()) return;
    // the same box may have been set up for others
    forget(shaped);
    forget(kept);
}

bool CoulombProgram::isIn(const double* box) const {
    return std::equal(box, box + 9, current);
}

void CoulombProgram::enter(const double* box, CUstream stream) {
    forget(current);
    const Parameters parameters = boxes.parametersIn(box);
    executor.upload("parameters", &parameters, sizeof(parameters), stream);
    if (!haveOneShape(box, shaped)) setUpShape(box, stream);
    copyBox(box, current);
}

// The lattice operator of a shape: the one kept beside that in use, as after a rejected trial move,
// or a new one.
void CoulombProgram::setUpShape(const double* box, CUstream stream) {
    if (haveOneShape(box, kept)) {
        forget(shaped);
        executor.restore(stream);
    } else {
        if (isKnown(shaped) && !haveOneShape(shaped, kept)) {
            forget(kept);
            executor.keep(stream);
            copyBox(shaped, kept);
        }
        forget(shaped);
        executor.run(phase::SETUP, stream);
    }
    copyBox(box, shaped);
}

void CoulombProgram::setCharges(const std::string& charges, CUstream stream) {
    executor.upload("charges", charges, stream);
}

void CoulombProgram::evaluate(CUstream stream, End end, bool potentials) {
    if (potentials != potentialsWanted) {
        check(cuMemsetD32Async(executor.address("potentials_wanted"), potentials, 1, stream),
              "telling what is wanted");
        potentialsWanted = potentials;
    }
    Graph& graph =
        end == End::FORCES ? addingForces : (end == End::ENERGY ? leavingForcesOut : open);
    if (!graph.isCaptured())
        for (auto* name : {phase::AHEAD, phase::EVALUATE, phase::GATHER})
            executor.run(name, stream);
    executor.run(phase::AHEAD, stream);
    if (follows()) check(cuEventRecord(sorted, stream), "recording an event");
    executor.run(graph, stream);
}

void CoulombProgram::exportForces(CUstream stream) {
    executor.run(phase::EXPORT, stream);
}

void CoulombProgram::copyEnergy(double* energy, CUstream stream) {
    check(cuMemcpyDtoHAsync(energy, executor.address("energy"), sizeof(double), stream),
          "copying the energy");
}

bool CoulombProgram::readPotentials(void* data, int64_t bytes) const {
    return executor.download("potentials", data, bytes);
}

bool CoulombProgram::particlesOutside() {
    check(cuEventSynchronize(sorted), "computing");
    return executor.takeFlag("outside");
}

}  // namespace fmm
