#include "coulomb_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

using namespace OpenMM;

namespace fmm {

static void copyBox(const double* box, Matrix& copy) {
    std::copy(box, box + 9, copy);
}

static void clear(Matrix& box) {
    std::fill(box, box + 9, 0.0);
}

static bool isKnown(const Matrix& box) {
    return box[0] > 0;
}

// The phases of an evaluation up to `last`. Those for several devices are not in other programs.
static std::vector<std::string> phasesTo(const std::vector<std::string>& last, bool hasFarField) {
    std::vector<std::string> phases = {phase::EVALUATE};
    if (hasFarField) phases.push_back(phase::FAR);
    phases.push_back(phase::NEAR);
    phases.insert(phases.end(), last.begin(), last.end());
    return phases;
}

CoulombProgram::CoulombProgram(CudaContext& cuda, Host& host, const std::string& program,
                               unsigned eventFlags, bool hasFarField)
    : cuda(cuda),
      hasFarField(hasFarField),
      executor(host, program),
      withForces(phasesTo({phase::EXPORT}, hasFarField)),
      withoutForces(phasesTo({phase::GATHER}, hasFarField)),
      deferred(phasesTo({}, hasFarField)) {
    if (executor.has("outside")) check(cuEventCreate(&sorted, eventFlags), "making an event");
    if (!executor.download("share", allBoxes, sizeof(allBoxes)))
        throw Failure("the plugin and the package are of different versions");
}

CoulombProgram::~CoulombProgram() {
    if (sorted) cuEventDestroy(sorted);
}

template <class T>
static void read(const std::string& bytes, T& value) {
    if (bytes.size() != sizeof(T))
        throw Failure("the plugin and the package are of different versions");
    std::memcpy(&value, bytes.data(), sizeof(T));
}

void CoulombProgram::setLimits(const std::string& bytes) {
    read(bytes, limits);
}

void CoulombProgram::setBoxes(const std::string& bytes) {
    read(bytes, boxes);
    clear(current);
    if (!coversOnlyParticles()) return;
    // the operator of the same box may belong to other boxes
    clear(shaped);
    clear(saved);
}

bool CoulombProgram::isSetFor(const double* box) const {
    return std::equal(box, box + 9, current);
}

void CoulombProgram::setBox(const double* box, CUstream stream) {
    clear(current);
    const Parameters parameters = boxes.parametersIn(box);
    executor.upload("parameters", &parameters, sizeof(parameters), stream);
    if (executor.has("placement"))
        executor.upload("placement", &boxes.placement, sizeof(boxes.placement), stream);
    if (!boxes.haveSameShape(box, shaped)) setUpShape(box, stream);
    copyBox(box, current);
}

// Sets up the lattice operator of a shape: restores the saved one, as after a rejected trial move,
// or computes a new one.
void CoulombProgram::setUpShape(const double* box, CUstream stream) {
    if (boxes.haveSameShape(box, saved)) {
        clear(shaped);
        executor.restore(stream);
    } else {
        if (isKnown(shaped) && !boxes.haveSameShape(shaped, saved)) {
            clear(saved);
            executor.save(stream);
            copyBox(shaped, saved);
        }
        clear(shaped);
        executor.run(phase::SETUP, stream);
    }
    copyBox(box, shaped);
}

void CoulombProgram::setCharges(const std::string& charges, CUstream stream) {
    executor.upload("charges", charges, stream);
}

// Brings the box vectors that OpenMM has added to each atom up to date. They are compared because
// OpenMM changes them in more places than it reports: at a new order of atoms, new positions, a
// checkpoint, a trial move.
void CoulombProgram::setCellOffsets(CUstream stream) {
    const auto& latest = cuda.getPosCellOffsets();
    const size_t bytes = cuda.getNumAtoms() * sizeof(mm_int4);
    if (!cellOffsets.empty() && std::memcmp(cellOffsets.data(), latest.data(), bytes) == 0) return;
    cellOffsets.clear();
    executor.upload("cell_offsets", latest.data(), bytes, stream);
    cellOffsets.assign(latest.begin(), latest.begin() + cuda.getNumAtoms());
}

void CoulombProgram::setPart(const Part& part, CUstream stream) {
    const int all = allBoxes[1];
    const int share[4] = {(int)std::lround(part.first * all), (int)std::lround(part.end * all), 0,
                          hasFarField ? all : 0};
    executor.upload("share", share, sizeof(share), stream);
}

void CoulombProgram::evaluate(CUstream stream, End end, bool potentials) {
    if (executor.has("cell_offsets")) setCellOffsets(stream);
    if (potentials != potentialsWanted) {
        check(cuMemsetD32Async(executor.address("potentials_wanted"), potentials, 1, stream),
              "requesting potentials");
        potentialsWanted = potentials;
    }
    Graph& graph =
        end == End::FORCES ? withForces : (end == End::ENERGY ? withoutForces : deferred);
    executor.run(phase::AHEAD, stream);
    if (coversOnlyParticles()) check(cuEventRecord(sorted, stream), "recording an event");
    executor.run(graph, stream);
}

void CoulombProgram::exportForces(CUstream stream) {
    executor.run(phase::EXPORT, stream);
}

void CoulombProgram::copySums(Sums* sums, CUstream stream) {
    check(cuMemcpyDtoHAsync(sums, executor.address("sums"), sizeof(Sums), stream),
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
