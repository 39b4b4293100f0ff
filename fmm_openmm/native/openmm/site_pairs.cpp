#include "site_pairs.h"

#include <cmath>

#include "coulomb_kernel.h"
#include "openmm/common/ContextSelector.h"
#include "openmm/cuda/CudaNonbondedUtilities.h"
#include "cuda_platform.h"

using namespace OpenMM;

namespace fmm {

// OpenMM reorders atoms on the host every 250 steps for its list of pairs, and wraps molecules into
// the box. If OpenMM builds no list, only wrapping is needed, and only occasionally, to keep
// coordinates accurate in single precision and to detect NaN. Therefore the counter of steps since
// the last reordering is reset after DELAY_AFTER steps, up to MAX_DELAYS times in a row.
static const int DELAY_AFTER = 200, MAX_DELAYS = 50;

// Number of pairs within the cutoff per particle of the System, each pair counted twice, from which
// OpenMM's bonded forces are computed concurrently with the pairs. With fewer, the pairs have the
// highest priority, and bonded forces follow while the FMM is still at work. About 800 with
// CHARMM36, 150 with Amber lipids.
static const double MANY_PAIRS = 400;

// Resets the number of delays after a reordering.
class DelayCounter : public ComputeContext::ReorderListener {
public:
    explicit DelayCounter(std::shared_ptr<int> delays) : delays(delays) {}
    void execute() override { *delays = 0; }

private:
    std::shared_ptr<int> delays;
};

class SitePairs::Begin : public ComputeContext::ForcePreComputation {
public:
    explicit Begin(SitePairs& owner) : owner(owner) {}
    void computeForceAndEnergy(bool, bool, int) override { owner.abandonPending(); }

private:
    SitePairs& owner;
};

class SitePairs::End : public ComputeContext::ForcePostComputation {
public:
    explicit End(SitePairs& owner) : owner(owner) {}
    double computeForceAndEnergy(bool, bool, int) override {
        owner.side->leave();
        return 0;
    }

private:
    SitePairs& owner;
};

SitePairs::SitePairs(ContextImpl& context) : cuda(firstContext(context)) {}

SitePairs::~SitePairs() {
    ContextSelector selector(cuda);
    side.reset();
    engine.reset();
}

void SitePairs::start(const Force& force, const Interaction& interaction, bool alone) {
    sites = interaction;
    // a stream that synchronises with OpenMM's own would wait for the pairs
    side.reset(new SideStream(cuda, CU_STREAM_NON_BLOCKING));
    if (!sites.slot.empty()) engine.reset(new SiteList(cuda, sites));
    cuda.addPreComputation(new Begin(*this));
    cuda.addPostComputation(new End(*this));
    // an interaction without particles: OpenMM builds no list, but reorders atoms and checks the
    // box and the consistency of cutoffs as usual
    const bool limited = sites.cutoff > 0;
    cuda.getNonbondedUtilities().addInteraction(limited, sites.periodic, false, sites.cutoff, {},
                                                "", force.getForceGroup(), false);
    if (!limited || !alone) return;
    delays = std::make_shared<int>(0);
    cuda.addReorderListener(new DelayCounter(delays));
}

void SitePairs::setIdentities(const Identities& other) {
    if (identities) {
        *identities = other;
        cuda.invalidateMolecules(identities);
    } else {
        identities = new Identities(other);
        cuda.addForce(identities);
    }
}

void SitePairs::update(const Interaction& interaction) {
    sites = interaction;
    if (sites.slot.empty())
        engine.reset();
    else if (engine)
        engine->update(sites);
}

void SitePairs::setTable(const Interaction& interaction) {
    sites.repulsion = interaction.repulsion;
    sites.attraction = interaction.attraction;
    if (engine) engine->setTable(sites);
}

double SitePairs::execute(bool forces, bool energy) {
    if (!engine && !sites.slot.empty()) engine.reset(new SiteList(cuda, sites));
    delayReordering();
    const bool isPending = CoulombKernel::beginIn(cuda);
    if (engine) {
        const bool many = hasManyPairs();
        engine->setUrgent(isPending && !many);
        engine->prepare();
        // with the energy OpenMM's bonded forces are added without atomics
        const bool concurrent = isPending && many && !energy && hasBondedForces();
        if (concurrent) side->mark();
        engine->compute(forces, energy);
        if (concurrent) side->enter();
    }
    if (dispersion == 0) return 0;
    Vec3 a, b, c;
    cuda.getPeriodicBoxVectors(a, b, c);
    return dispersion / (a[0] * b[1] * c[2]);
}

bool SitePairs::hasManyPairs() const {
    if (!sites.periodic) return false;
    Vec3 a, b, c;
    cuda.getPeriodicBoxVectors(a, b, c);
    const double number = sites.slot.size(), sphere = 4 * M_PI / 3 * std::pow(sites.cutoff, 3);
    return number * number * sphere >= MANY_PAIRS * cuda.getNumAtoms() * a[0] * b[1] * c[2];
}

// OpenMM computes bonded forces after the pairs. They are bound by memory latency and take little
// longer concurrently with other kernels.
bool SitePairs::hasBondedForces() const {
    for (auto* force : cuda.getForceInfos())
        if (!dynamic_cast<Identities*>(force) && force->getNumParticleGroups() > 0) return true;
    return false;
}

// Called if another force failed during the last evaluation, see CoulombKernel::abandonPending().
void SitePairs::abandonPending() {
    if (!side->isEntered()) return;
    side->leave();
    cuda.setForcesValid(false);
}

void SitePairs::delayReordering() {
    if (!delays || !engine || engine->hasStrayed() || *delays == MAX_DELAYS) return;
    const int steps = cuda.getStepsSinceReorder();
    if (steps <= DELAY_AFTER || steps >= 2 * DELAY_AFTER) return;
    cuda.setStepsSinceReorder(0);
    ++*delays;
}

}  // namespace fmm
