// What the kernel of an FMMForce asks Python, and when.
#include <algorithm>

#include "coulomb_kernel.h"
#include "openmm/internal/ContextImpl.h"
#include "cuda_platform.h"

using namespace OpenMM;

namespace fmm {

// of the boxes to positions that stay the same: one is enough
static const int MOST_MOVES = 3;

// evaluations after which boxes that follow the particles may be too many
static const int EXAMINED = 10000;

// Follow the Context's global parameters and box vectors, and changes of the force.
void CoulombKernel::readContext() {
    if (values.empty()) {
        // each is declared by this force or by another, which may have been initialised later
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
    const bool due = program && program->follows() && ++unexamined >= EXAMINED;
    const bool changed = !placed || now != values || seen != latest || due;
    values = now;
    if (changed) seen = -1;  // if anything fails, ask again
    if (!program || !program->isIn(box)) readBox();
    if (!changed) return;
    auto answer = requestWithPositions(CHARGES);
    if (answer.count(CHARGES))
        program->setCharges(answer[CHARGES], stream);
    else
        adopt(answer);
    placed = true;
    seen = latest;
}

// Python is asked where the present boxes do not serve.
void CoulombKernel::readBox() {
    if (program && program->boxesServe(box)) return program->enter(box, stream);
    auto answer = requestWithPositions(program ? PARAMETERS : PROGRAM);
    adopt(answer);
}

// Positions are sent once, to tell how much of the cell is empty, and where the boxes cover the
// particles only.
std::map<int, std::string> CoulombKernel::requestWithPositions(int what) {
    if (!placed || !program || program->follows()) readPositions();
    unexamined = 0;
    return request(what);
}

std::map<int, std::string> CoulombKernel::request(int what) {
    std::vector<const char*> texts;
    for (const auto& name : names) texts.push_back(name.c_str());
    Inbox inbox;
    python.request(this, what, box, positions.empty() ? nullptr : positions.data(), texts.data(),
                   values.data(), values.size(), &inbox);  // none yet, or all
    positions.clear();
    if (!inbox.items.count(DONE)) {  // whether Python's program is ours is not known: start anew
        synchronise();
        program.reset();
    }
    inbox.check();
    if (inbox.items.count(BAD_INPUT)) throw BadInput(inbox.items[BAD_INPUT]);
    if (inbox.items.count(FAILURE)) throw OpenMMException(inbox.items[FAILURE]);
    return std::move(inbox.items);
}

// Go on with what Python gave for the present box: boxes that serve it, and a program unless the
// last one has them.
void CoulombKernel::adopt(std::map<int, std::string>& answer) {
    if (answer.count(PROGRAM)) {
        synchronise();
        program.reset();
        program.reset(new CoulombProgram(cuda, answer[PROGRAM]));
    }
    program->setBoxes(answer[PARAMETERS]);
    program->enter(box, stream);
}

void CoulombKernel::readPositions() {
    // it may be at work on the threads that getPositions() needs, for a CustomNonbondedForce with a
    // long-range correction
    cuda.getWorkThread().flush();
    std::vector<Vec3> known;
    context.getPositions(known);
    for (const auto& x : known) positions.insert(positions.end(), {x[0], x[1], x[2]});
}

// Particles have left the boxes: go on with others.
void CoulombKernel::follow() {
    outside = false;
    const int before = moves;
    moves = 0;
    if (before == MOST_MOVES) throw OpenMMException("FMMForce: no boxes cover the particles");
    auto answer = requestWithPositions(PARAMETERS);
    adopt(answer);
    moves = before + 1;
}

// Python says what was wrong with positions for which the energy was not a number.
void CoulombKernel::explain() {
    undefined = false;
    readPositions();
    request(FAILURE);
}

}  // namespace fmm
