// The requests of CoulombKernel to Python.
#include <algorithm>

#include "coulomb_kernel.h"
#include "openmm/internal/ContextImpl.h"
#include "cuda_platform.h"

using namespace OpenMM;

namespace fmm {

// Bring the program up to date with the Context's global parameters and box vectors and with
// changes of the force.
void CoulombKernel::readContext() {
    if (values.empty()) {
        // other forces may declare parameters, and may be initialised after this one
        const auto isUnknown = [&](const std::string& name) {
            return context.getParameters().count(name) == 0;
        };
        names.erase(std::remove_if(names.begin(), names.end(), isUnknown), names.end());
    }
    std::vector<double> now;
    for (const auto& name : names) now.push_back(context.getParameter(name));
    if (periodic) {
        Vec3 a, b, c;
        cuda.getPeriodicBoxVectors(a, b, c);
        copyBox(a, b, c, box);
    }
    const int64_t latest = revision;
    // a region may have far more boxes by now than its particles need
    const bool due = program && program->coversOnlyParticles() &&
                     ++evaluationsSinceCheck >= program->recheckInterval();
    const bool changed = !placed || now != values || seenRevision != latest || due;
    values = now;
    if (changed) seenRevision = -1;  // forces another request if this one fails
    if (!program || !program->isSetFor(box)) readBox();
    if (remotes && remotes->version() != partsVersion) setParts();
    if (!changed) return;
    auto answer = requestWithPositions(CHARGES);
    if (answer.count(CHARGES)) {
        examined = false;
        onEachDevice(
            [&](CoulombProgram& each, CUstream queue) { each.setCharges(answer[CHARGES], queue); });
        program->setLimits(answer[FORCES]);
    } else
        adopt(answer);
    placed = true;
    seenRevision = latest;
}

// Set the box; ask Python for other boxes if the present ones cannot be used in it.
void CoulombKernel::readBox() {
    if (program && program->boxesServe(box)) return setBox();
    auto answer = requestWithPositions(program ? PARAMETERS : PROGRAM);
    adopt(answer);
}

// Positions are sent with the first request, from which Python determines how much of the cell is
// empty, and with every request if boxes cover only the particles.
std::map<int, std::string> CoulombKernel::requestWithPositions(int what) {
    if (!placed || !program || program->coversOnlyParticles()) readPositions();
    evaluationsSinceCheck = 0;
    return request(what);
}

std::map<int, std::string> CoulombKernel::request(int what) {
    std::vector<const char*> texts;
    for (const auto& name : names) texts.push_back(name.c_str());
    Inbox inbox;
    python.request(this, what, box, positions.empty() ? nullptr : positions.data(), texts.data(),
                   values.data(), values.size(),  // the values of all parameters, or none yet
                   what == FORCES ? sums : nullptr, &inbox);
    positions.clear();
    if (!inbox.items.count(DONE)) {  // Python's program may differ from ours
        synchronise();
        discardPrograms();
    }
    inbox.check();
    if (inbox.items.count(BAD_INPUT)) throw BadInput(inbox.items[BAD_INPUT]);
    if (inbox.items.count(FAILURE)) throw OpenMMException(inbox.items[FAILURE]);
    return std::move(inbox.items);
}

// Adopt Python's answer for the present box: boxes, limits of forces, and a program unless the
// present one is compatible.
void CoulombKernel::adopt(std::map<int, std::string>& answer) {
    if (answer.count(PROGRAM)) {
        synchronise();
        examined = false;
        discardPrograms();
        try {
            makePrograms(answer[PROGRAM]);
        } catch (...) {  // some devices may have got theirs
            discardPrograms();
            throw;
        }
    }
    onEachDevice([&](CoulombProgram& each, CUstream) { each.setBoxes(answer[PARAMETERS]); });
    program->setLimits(answer[FORCES]);
    setBox();
}

// The first further device has the far field, which takes about as long as what OpenMM's device
// does besides forces.
void CoulombKernel::makePrograms(const std::string& bytes) {
    program.reset(new CoulombProgram(cuda, host, bytes, cuda.getEventFlags(), !remotes));
    if (!remotes) return;
    for (int i = 0; i < remotes->number(); i++) {
        RemoteDevice& device = (*remotes)[i];
        RemoteDevice::Entry entry(&device);
        remotePrograms.emplace_back(
            new CoulombProgram(cuda, device.host(), bytes, CU_EVENT_DISABLE_TIMING, i == 0));
    }
    setParts();
}

void CoulombKernel::discardPrograms() {
    onEachRemote([](std::unique_ptr<CoulombProgram>& each, RemoteDevice&) { each.reset(); });
    remotePrograms.clear();
    program.reset();
}

// Calls act(program, stream) for OpenMM's device and all further ones.
template <class Act>
void CoulombKernel::onEachDevice(Act act) {
    act(*program, stream);
    onEachRemote([&](std::unique_ptr<CoulombProgram>& each, RemoteDevice& device) {
        act(*each, device.coulombStream());
    });
}

void CoulombKernel::setBox() {
    onEachDevice([&](CoulombProgram& each, CUstream queue) { each.setBox(box, queue); });
}

void CoulombKernel::setParts() {
    int device = 0;
    onEachDevice([&](CoulombProgram& each, CUstream queue) {
        each.setPart(remotes->part(device++), queue);
    });
    partsVersion = remotes->version();
}

void CoulombKernel::readPositions() {
    // the work thread may be using the threads that getPositions() needs, for the long-range
    // correction of a CustomNonbondedForce
    cuda.getWorkThread().flush();
    std::vector<Vec3> known;
    context.getPositions(known);
    for (const auto& x : known) positions.insert(positions.end(), {x[0], x[1], x[2]});
}

// Ask Python to move the boxes after particles have left them.
void CoulombKernel::moveBoxes() {
    outside = false;
    const int before = consecutiveMoves;
    consecutiveMoves = 0;
    if (program && before >= program->maxMoves())
        throw OpenMMException("FMMForce: no boxes cover the particles");
    auto answer = requestWithPositions(PARAMETERS);
    adopt(answer);
    consecutiveMoves = before + 1;
}

// Ask Python for parameters that suit the forces of the last evaluation.
void CoulombKernel::refine() {
    unsuited = false;
    auto answer = requestWithPositions(FORCES);
    adopt(answer);
    refined = true;
}

// Ask Python why the energy of the present positions was not finite; it answers with an error.
void CoulombKernel::diagnoseEnergy() {
    energyNotFinite = false;
    readPositions();
    request(FAILURE);
}

}  // namespace fmm
