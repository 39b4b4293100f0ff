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

// Number of particles from which p2p occupies the whole device for long.
static const int LARGE_SYSTEM = 50000;

Callbacks python;
volatile int64_t revision = 0;

// Like OpenMM's PME, the computation starts on its own stream before the other forces and is
// awaited after them. With several devices OpenMM calls both on a worker thread, while the calling
// thread may hold Python's lock; the computation then starts with the first force that the calling
// thread executes, this or another one of ours, and waits for nothing that was queued in between.
class CoulombKernel::Start : public ComputeContext::ForcePreComputation {
public:
    explicit Start(CoulombKernel& owner) : owner(owner) {}
    void computeForceAndEnergy(bool includeForces, bool includeEnergy, int groups) override {
        owner.abandonPending();
        owner.due = !owner.delegate && (groups & (1 << owner.group));
        if (!owner.due) return;
        owner.includeForces = includeForces;
        owner.includeEnergy = includeEnergy;
        check(cuEventRecord(owner.begun, owner.cuda.getCurrentStream()), "recording an event");
        if (!owner.multiDevice) owner.begin();
    }
    CoulombKernel& owner;
};

class CoulombKernel::Finish : public ComputeContext::ForcePostComputation {
public:
    explicit Finish(CoulombKernel& owner) : owner(owner) {}
    double computeForceAndEnergy(bool, bool, int groups) override {
        return groups & (1 << owner.group) ? owner.finish() : 0.0;
    }

private:
    CoulombKernel& owner;
};

CoulombKernel::CoulombKernel(const std::string& name, const Platform& platform,
                             ContextImpl& context)
    : CalcPythonForceKernel(name, platform),
      context(context),
      cuda(firstContext(context)),
      host(cuda) {}

CoulombKernel::~CoulombKernel() {
    ContextSelector selector(cuda);
    release();
    if (claimed && python.close) python.close(this);
}

// Also waits for OpenMM's stream, which may be adding forces from our buffers.
void CoulombKernel::synchronise() {
    check(cuStreamSynchronize(stream), "computing");
    check(cuStreamSynchronize(cuda.getCurrentStream()), "computing");
    if (remotes) remotes->synchronise();
}

void CoulombKernel::release() {
    priorityStream.reset();
    if (stream) cuStreamSynchronize(stream);
    cuStreamSynchronize(cuda.getCurrentStream());
    discardPrograms();
    remotes.reset();
    if (stream) cuStreamDestroy(stream);
    if (begun) cuEventDestroy(begun);
    if (done) cuEventDestroy(done);
    if (sums) cuMemFreeHost(sums);
    stream = nullptr;
    begun = done = nullptr;
    sums = nullptr;
}

// Whether a PythonForce acts on all particles; in OpenMM 8.5 every one does.
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
    claimed = claim.items.count(CLAIM);
    const auto& devices = cuda.getPlatformData().contexts;
    multiDevice = devices.size() > 1;
    if (claim.items.count(EXCLUSIONS))
        for (auto* each : devices) each->addForce(new ExcludedPairs(claim.items[EXCLUSIONS]));
    if (claimed) {
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
            if (claim.items.count(DEVICES))
                remotes = RemoteDevices::make(cuda, claim.items[DEVICES], claim.items[COLLECTOR]);
            prepare();
            cuda.addPreComputation(new Start(*this));
            cuda.addPostComputation(new Finish(*this));
            if (remotes) remotes->finishEvaluations();
        } catch (const Interrupted&) {
            throw;
        } catch (const std::exception& error) {
            useHostBridge(error.what());
        }
    } else
        useHostBridge("");
}

// Delegates to OpenMM's own kernel, which calls the host bridge, from now on.
void CoulombKernel::useHostBridge(const std::string& reason) {
    if (!reason.empty()) {
        Inbox inbox;
        python.settle(this, reason.c_str(), &inbox);
        inbox.check();
        if (inbox.items.count(FAILURE)) throw OpenMMException(inbox.items[FAILURE]);
        ContextSelector selector(cuda);
        release();
    }
    makeDelegate<CalcPythonForceKernel>(delegate, *this, context);
    delegate->initialize(context, *force);
}

// Allocates and compiles everything for the default box, so that errors occur before anything is
// computed. Boxes in free space are made later, for the first positions.
void CoulombKernel::prepare() {
    if (!periodic && context.getSystem().usesPeriodicBoundaryConditions())
        throw OpenMMException("it is not periodic, but another force of the System is");
    stream = makeStream();
    check(cuEventCreate(&begun, CU_EVENT_DISABLE_TIMING), "making an event");
    check(cuEventCreate(&done, cuda.getEventFlags()), "making an event");
    check(cuMemHostAlloc((void**)&sums, sizeof(Sums), 0), "allocating pinned memory");
    Vec3 a, b, c;
    context.getSystem().getDefaultPeriodicBoxVectors(a, b, c);
    copyBox(a, b, c, box);
    auto answer = request(PROGRAM);
    if (answer.count(PROGRAM)) adopt(answer);
}

double CoulombKernel::execute(ContextImpl& context, bool includeForces, bool includeEnergy) {
    if (multiDevice) {
        ContextSelector selector(cuda);
        begin();
    }
    if (!failure.empty() && !delegate) {
        useHostBridge(failure);
        cuda.setForcesValid(false);  // makes OpenMM compute all forces again
    }
    return delegate ? delegate->execute(context, includeForces, includeEnergy) : 0.0;
}

// Called if another force failed during the last evaluation. The pending evaluation may have added
// to forces that OpenMM has cleared since, so OpenMM must compute all forces again.
void CoulombKernel::abandonPending() {
    if (!pending) return;
    pending = false;
    if (priorityStream) priorityStream->leave();
    invalidateAndRetry();
}

void CoulombKernel::begin() {
    if (!due) return;
    due = false;
    failure.clear();
    // OpenMM's stream may still be adding the forces of the last evaluation
    check(cuStreamWaitEvent(stream, begun, 0), "waiting for an event");
    try {
        if (energyNotFinite) diagnoseEnergy();
        if (unsuited) refine();
        if (outside) moveBoxes();
        readContext();
    } catch (const BadInput&) {
        throw;
    } catch (const std::exception& error) {
        if (placed) throw;
        failure = error.what();
        return;
    }
    const End end = !includeForces ? End::ENERGY : (atomics ? End::FORCES : End::DEFERRED);
    pending = true;
    wantsSums = includeEnergy || !examined;
    if (remotes) remotes->send();
    program->evaluate(stream, end, wantsSums);
    recordCompletion(stream, wantsSums && end != End::DEFERRED);
    evaluateRemotely();
    raisePriority();
}

void CoulombKernel::evaluateRemotely() {
    onEachRemote([&](std::unique_ptr<CoulombProgram>& each, RemoteDevice& device) {
        const CUstream queue = device.coulombStream();
        each->evaluate(queue, includeForces ? End::FORCES : End::ENERGY, wantsSums);
        if (!wantsSums) return;
        each->copySums(device.sums(), queue);
        device.markSums();
    });
}

void CoulombKernel::recordCompletion(CUstream last, bool copiesSums) {
    if (copiesSums) program->copySums(sums, last);
    check(cuEventRecord(done, last), "recording an event");
}

// OpenMM's stream has the lowest priority. Its neighbour search is a chain of small kernels, which
// would be delayed until the last block of p2p has started, and with it all of OpenMM's forces.
// Therefore OpenMM works on a stream of high priority until the FMM is finished, unless one of its
// forces changes the stream itself, as PME does.
void CoulombKernel::raisePriority() {
    if (!atomics || cuda.getNumAtoms() < LARGE_SYSTEM) return;
    if (!priorityStream) priorityStream.reset(new SideStream(cuda));
    priorityStream->mark();
    priorityStream->enter();
}

bool CoulombKernel::beginIn(CudaContext& cuda) {
    for (auto* each : cuda.getPreComputations())
        if (auto* start = dynamic_cast<Start*>(each)) {
            start->owner.begin();
            return start->owner.pending && start->owner.atomics;
        }
    return false;
}

double CoulombKernel::finish() {
    if (!pending) return 0;
    pending = false;
    if (priorityStream) priorityStream->leave();
    if (program->coversOnlyParticles()) {
        outside = program->particlesOutside();
        if (outside) return invalidateAndRetry();
        consecutiveMoves = 0;
    }
    check(cuStreamWaitEvent(cuda.getCurrentStream(), done, 0), "waiting for an event");
    if (includeForces && !atomics) {
        program->exportForces(cuda.getCurrentStream());
        recordCompletion(cuda.getCurrentStream(), wantsSums);
    }
    if (!wantsSums) {
        refined = false;
        return 0;
    }
    // waiting costs little because OpenMM is about to wait for its own energy; returning the FMM's
    // energy this way keeps it in float64 for any precision of OpenMM's buffer
    check(cuEventSynchronize(done), "computing");
    for (int i = 0; i < (int)remotePrograms.size(); i++) {
        // only particles for which a device has both fields are in its sums, but for the energy
        const Sums& remote = (*remotes)[i].awaitSums();
        const Part part = remotes->part(i + 1);
        sums->energy += remote.energy;
        sums->squares += remote.squares / (part.end - part.first);
        sums->cubes += remote.cubes / (part.end - part.first);
        sums->potentials += remote.potentials / (part.end - part.first);
    }
    const bool finite = std::isfinite(sums->energy) && std::isfinite(sums->squares);
    energyNotFinite = includeEnergy && !finite;
    // asked once for the same positions; if options fix the parameters the answer changes nothing
    unsuited = finite && !refined && program->exceedsLimits(*sums);
    examined = finite;
    refined = false;
    return energyNotFinite || unsuited ? invalidateAndRetry() : sums->energy;
}

// Makes OpenMM compute all forces again, after all work that adds to the present ones has
// completed.
double CoulombKernel::invalidateAndRetry() {
    check(cuStreamSynchronize(stream), "computing");
    cuda.setForcesValid(false);
    return 0;
}

template <class Real>
static void addTo(Real* sum, const std::vector<char>& part) {
    const Real* added = reinterpret_cast<const Real*>(part.data());
    for (size_t k = 0; k < part.size() / sizeof(Real); k++) sum[k] += added[k];
}

bool CoulombKernel::readPotentials(void* data, int64_t bytes) {
    ContextSelector selector(cuda);
    if (!program || cuEventSynchronize(done) != CUDA_SUCCESS ||
        !program->readPotentials(data, bytes))
        return false;
    bool complete = true;
    onEachRemote([&](std::unique_ptr<CoulombProgram>& each, RemoteDevice& device) {
        device.awaitSums();
        std::vector<char> part(bytes);
        complete = complete && each->readPotentials(part.data(), bytes);
        if (bytes == int64_t(sizeof(double)) * cuda.getNumAtoms())
            addTo(static_cast<double*>(data), part);
        else
            addTo(static_cast<float*>(data), part);
    });
    return complete;
}

}  // namespace fmm
