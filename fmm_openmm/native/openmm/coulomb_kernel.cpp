#include "coulomb_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "OpenMM.h"
#include "force_survey.h"
#include "identities.h"
#include "openmm/common/ContextSelector.h"
#include "cuda_platform.h"

using namespace OpenMM;

namespace fmm {

// particles from which p2p leaves OpenMM's kernels no room
static const int CROWDED = 50000;

Callbacks python;
volatile int64_t revision = 0;

// As OpenMM's PME: the computation starts on a stream of its own before the other forces, and is
// awaited after them. With several devices these two run on a thread of OpenMM's, while the
// caller's may hold Python's lock: then it starts in execute().
class CoulombKernel::Start : public ComputeContext::ForcePreComputation {
public:
    explicit Start(CoulombKernel& owner) : owner(owner) {}
    void computeForceAndEnergy(bool includeForces, bool includeEnergy, int groups) override {
        owner.discard();
        if (owner.several || !(groups & (1 << owner.group))) return;
        owner.begin(includeForces, includeEnergy);
        owner.hasten();
    }
    CoulombKernel& owner;
};

class CoulombKernel::Finish : public ComputeContext::ForcePostComputation {
public:
    explicit Finish(CoulombKernel& owner) : owner(owner) {}
    double computeForceAndEnergy(bool includeForces, bool includeEnergy, int groups) override {
        return groups & (1 << owner.group) ? owner.finish(includeForces, includeEnergy) : 0.0;
    }

private:
    CoulombKernel& owner;
};

CoulombKernel::CoulombKernel(const std::string& name, const Platform& platform,
                             ContextImpl& context)
    : CalcPythonForceKernel(name, platform), context(context), cuda(firstOf(context)) {}

CoulombKernel::~CoulombKernel() {
    ContextSelector selector(cuda);
    release();
    if (opened && python.close) python.close(this);
}

// OpenMM's stream may be adding our forces to its own.
void CoulombKernel::synchronise() {
    check(cuStreamSynchronize(stream), "computing");
    check(cuStreamSynchronize(cuda.getCurrentStream()), "computing");
}

void CoulombKernel::release() {
    urgent.reset();
    if (stream) cuStreamSynchronize(stream);
    cuStreamSynchronize(cuda.getCurrentStream());
    program.reset();
    if (stream) cuStreamDestroy(stream);
    if (begun) cuEventDestroy(begun);
    if (done) cuEventDestroy(done);
    if (energy) cuMemFreeHost(energy);
    stream = nullptr;
    begun = done = nullptr;
    energy = nullptr;
}

// Whether a PythonForce acts on all particles; OpenMM 8.5 knows no other.
template <class Kind>
static auto actsOnAll(const Kind& force, int) -> decltype(force.getParticles().empty()) {
    return force.getParticles().empty();
}

template <class Kind>
static bool actsOnAll(const Kind&, long) {
    return true;
}

void CoulombKernel::initialize(const ContextImpl&, const PythonForce& force) {
    this->force = &force;
    DevicePlace place(cuda);
    place.group = force.getForceGroup();
    const auto& pickled = force.getPickledFunction();
    Inbox claim;
    if (actsOnAll(force, 0)) {
        python.open(this, &context.getOwner(), pickled.data(), pickled.size(), &place, &claim);
        claim.check();
    }
    opened = claim.items.count(CLAIM);
    const auto& devices =
        static_cast<CudaPlatform::PlatformData*>(context.getPlatformData())->contexts;
    several = devices.size() > 1;
    if (claim.items.count(EXCLUSIONS))
        for (auto* each : devices) each->addForce(new ExcludedPairs(claim.items[EXCLUSIONS]));
    if (opened) {
        group = place.group;
        periodic = force.usesPeriodicBoundaryConditions();
        const System& system = context.getSystem();
        atomics = true;
        for (int i = 0; i < system.getNumForces(); i++)
            atomics =
                atomics && (&system.getForce(i) == &force || addsByAtomics(system.getForce(i)));
        std::istringstream asked(claim.items[CLAIM]);
        for (std::string name; std::getline(asked, name, '\0');) names.push_back(name);
        try {
            ContextSelector selector(cuda);
            prepare();
            cuda.addPreComputation(new Start(*this));
            cuda.addPostComputation(new Finish(*this));
        } catch (const Interrupted&) {
            throw;
        } catch (const std::exception& error) {
            useHostBridge(error.what());
        }
    } else
        useHostBridge("");
}

// From now on OpenMM's own kernel does the work.
void CoulombKernel::useHostBridge(const std::string& reason) {
    if (!reason.empty()) {
        Inbox settled;
        python.settle(this, reason.c_str(), &settled);
        settled.check();
        if (settled.items.count(FAILURE)) throw OpenMMException(settled.items[FAILURE]);
        ContextSelector selector(cuda);
        release();
    }
    makeOwn<CalcPythonForceKernel>(delegate, *this, context);
    delegate->initialize(context, *force);
}

// What can fail fails here, before anything is computed: memory, compilation. The box is the
// default one. Boxes in empty space wait for the first positions.
void CoulombKernel::prepare() {
    if (!periodic && context.getSystem().usesPeriodicBoundaryConditions())
        throw OpenMMException("it is not periodic, but another force of the System is");
    stream = makeStream();
    check(cuEventCreate(&begun, CU_EVENT_DISABLE_TIMING), "making an event");
    check(cuEventCreate(&done, cuda.getEventFlags()), "making an event");
    check(cuMemHostAlloc((void**)&energy, sizeof(double), 0), "allocating pinned memory");
    Vec3 a, b, c;
    context.getSystem().getDefaultPeriodicBoxVectors(a, b, c);
    copyBox(a, b, c, box);
    auto answer = request(PROGRAM);
    if (answer.count(PROGRAM)) adopt(answer);
}

double CoulombKernel::execute(ContextImpl& context, bool includeForces, bool includeEnergy) {
    if (several) {
        ContextSelector selector(cuda);
        begin(includeForces, includeEnergy);
    }
    if (!failure.empty() && !delegate) {
        useHostBridge(failure);
        cuda.setForcesValid(false);  // OpenMM starts again
    }
    return delegate ? delegate->execute(context, includeForces, includeEnergy) : 0.0;
}

// After an error of another force: what had been begun may have added to the forces that OpenMM has
// cleared since. It starts again.
void CoulombKernel::discard() {
    if (!unfinished) return;
    unfinished = false;
    if (urgent) urgent->leave();
    again();
}

void CoulombKernel::begin(bool includeForces, bool includeEnergy) {
    if (delegate) return;
    failure.clear();
    // before anything is overwritten: OpenMM's stream may still be adding the last forces
    letWait(stream, cuda.getCurrentStream(), begun);
    try {
        if (undefined) explain();
        if (outside) follow();
        readContext();
    } catch (const BadInput&) {
        throw;
    } catch (const std::exception& error) {
        if (placed) throw;
        failure = error.what();
        return;
    }
    const End end = !includeForces ? End::ENERGY : (atomics ? End::FORCES : End::LATER);
    unfinished = true;
    program->evaluate(stream, end, includeEnergy);
    complete(stream, includeEnergy && end != End::LATER);
}

void CoulombKernel::complete(CUstream last, bool copiesEnergy) {
    if (copiesEnergy) program->copyEnergy(energy, last);
    check(cuEventRecord(done, last), "recording an event");
}

// OpenMM's own stream has the lowest priority there is. Its search for neighbours is a chain of
// small kernels, which would wait there until the last block of p2p has begun, and all its forces
// with it. So OpenMM works on a stream as urgent as ours until the FMM is finished, unless one of
// its forces changes it by itself, as PME does.
void CoulombKernel::hasten() {
    if (!unfinished || !atomics || cuda.getNumAtoms() < CROWDED) return;
    if (!urgent) urgent.reset(new SideStream(cuda));
    urgent->mark();
    urgent->enter();
}

bool CoulombKernel::isUnderWay(CudaContext& cuda) {
    for (auto* each : cuda.getPreComputations())
        if (auto* start = dynamic_cast<Start*>(each))
            return start->owner.unfinished && start->owner.atomics;
    return false;
}

double CoulombKernel::finish(bool includeForces, bool includeEnergy) {
    if (!unfinished) return 0;
    unfinished = false;
    if (urgent) urgent->leave();
    if (program->follows()) {
        outside = program->particlesOutside();
        if (outside) return again();
        moves = 0;
    }
    check(cuStreamWaitEvent(cuda.getCurrentStream(), done, 0), "waiting for an event");
    if (includeForces && !atomics) {
        program->exportForces(cuda.getCurrentStream());
        complete(cuda.getCurrentStream(), includeEnergy);
    }
    if (!includeEnergy) return 0;
    // OpenMM is about to wait for its own energy; ours keeps float64 this way, whatever the
    // precision of its buffer
    check(cuEventSynchronize(done), "computing");
    undefined = !std::isfinite(*energy);
    return undefined ? again() : *energy;
}

// OpenMM computes all forces again, once we add nothing more to these.
double CoulombKernel::again() {
    check(cuStreamSynchronize(stream), "computing");
    cuda.setForcesValid(false);
    return 0;
}

bool CoulombKernel::readPotentials(void* data, int64_t bytes) {
    ContextSelector selector(cuda);
    return program && cuEventSynchronize(done) == CUDA_SUCCESS &&
           program->readPotentials(data, bytes);
}

}  // namespace fmm
