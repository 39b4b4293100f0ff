#include "site_pairs.h"

#include <cmath>

#include "coulomb_kernel.h"
#include "openmm/common/ContextSelector.h"
#include "openmm/cuda/CudaNonbondedUtilities.h"
#include "cuda_platform.h"

using namespace OpenMM;

namespace fmm {

// OpenMM reorders atoms on the host every 250 steps, for the sake of its list of pairs, and moves
// molecules into the box. Without that list only the second is wanted, now and then, so that
// coordinates do not grow coarse and one that is not a number is noticed: after DELAY_AFTER steps
// OpenMM is told that it did so just now, MAX_DELAYS times.
static const int DELAY_AFTER = 200, MAX_DELAYS = 50;

// Pairs within the cutoff, counted from both sides, over the particles of the System, from which
// OpenMM's bonded forces are computed beside them: about 800 with CHARMM36, 150 with lipids of
// Amber, whose bonded forces then hinder the FMM.
static const double MANY_PAIRS = 400;

// Forgets how often reordering was put off once it has happened.
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
    void computeForceAndEnergy(bool, bool, int) override { owner.discard(); }

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

SitePairs::SitePairs(ContextImpl& context) : cuda(firstOf(context)) {}

SitePairs::~SitePairs() {
    ContextSelector selector(cuda);
    side.reset();
    engine.reset();
}

void SitePairs::start(const Force& force, const Interaction& interaction, bool alone) {
    sites = interaction;
    // in order with OpenMM's own stream it would wait for the pairs there
    side.reset(new SideStream(cuda, CU_STREAM_NON_BLOCKING));
    if (!sites.slot.empty()) engine.reset(new SiteList(cuda, sites));
    cuda.addPreComputation(new Begin(*this));
    cuda.addPostComputation(new End(*this));
    // nothing is listed, but OpenMM reorders atoms, and checks the box and the agreement of forces,
    // as if there were such pairs
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
    if (engine) {
        engine->prepare();
        const bool beside = runsBeside(energy);
        if (beside) side->mark();
        engine->compute(forces, energy);
        if (beside) side->enter();
    }
    if (dispersion == 0) return 0;
    Vec3 a, b, c;
    cuda.getPeriodicBoxVectors(a, b, c);
    return dispersion / (a[0] * b[1] * c[2]);
}

// OpenMM computes bonded forces last, alone on the device, where they take nearly as long as they
// do beside pairs: they wait for memory most of the time. They add to energies, but not by atomics.
bool SitePairs::runsBeside(bool energy) {
    if (energy || !sites.periodic || !CoulombKernel::isUnderWay(cuda)) return false;
    Vec3 a, b, c;
    cuda.getPeriodicBoxVectors(a, b, c);
    const double number = sites.slot.size(), sphere = 4 * M_PI / 3 * std::pow(sites.cutoff, 3);
    if (number * number * sphere < MANY_PAIRS * cuda.getNumAtoms() * a[0] * b[1] * c[2])
        return false;
    for (auto* force : cuda.getForceInfos())
        if (!dynamic_cast<Identities*>(force) && force->getNumParticleGroups() > 0) return true;
    return false;
}

// After an error of another force, see CoulombKernel::discard().
void SitePairs::discard() {
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
