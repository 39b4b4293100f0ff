#include "nonbonded.h"

#include <algorithm>
#include <cmath>

#include "OpenMM.h"
#include "forces.h"
#include "kernel.h"
#include "openmm/common/BondedUtilities.h"
#include "openmm/common/ContextSelector.h"
#include "openmm/cuda/CudaKernelFactory.h"
#include "openmm/cuda/CudaNonbondedUtilities.h"
#include "openmm/internal/ContextImpl.h"
#include "openmm/internal/NonbondedForceImpl.h"
#include "openmm/reference/SimTKOpenMMRealType.h"
#include "separation.h"

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

// Coulomb and Lennard-Jones interaction of a pair: k q q', sigma, 4 epsilon.
static const char* EXCEPTION_SOURCE = R"(
    real3 between = make_real3(pos2.x-pos1.x, pos2.y-pos1.y, pos2.z-pos1.z);
    WRAP
    const real inverse = RSQRT(between.x*between.x + between.y*between.y + between.z*between.z);
    const real charges = PARAMETERS[index].x*inverse, reach = PARAMETERS[index].y*inverse,
               depth = PARAMETERS[index].z;
    const real sixth = reach*reach*reach*reach*reach*reach;
    energy += charges + depth*sixth*(sixth-1);
    const real push = inverse*inverse*(charges + depth*sixth*(12*sixth-6));
    real3 force1 = make_real3(-push*between.x, -push*between.y, -push*between.z);
    real3 force2 = make_real3(push*between.x, push*between.y, push*between.z);
)";

static CudaContext& firstOf(ContextImpl& context) {
    return *static_cast<CudaPlatform::PlatformData*>(context.getPlatformData())->contexts[0];
}

template <class Kernel>
static void makeOwn(std::unique_ptr<Kernel>& delegate, Kernel& kernel, ContextImpl& context) {
    delegate.reset(static_cast<Kernel*>(
        CudaKernelFactory().createKernelImpl(kernel.getName(), kernel.getPlatform(), context)));
}

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
    if (!sites.slot.empty()) engine.reset(new LennardJones(cuda, sites));
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
    if (!engine && !sites.slot.empty()) engine.reset(new LennardJones(cuda, sites));
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
    if (energy || !sites.periodic || !NativeKernel::isUnderWay(cuda)) return false;
    Vec3 a, b, c;
    cuda.getPeriodicBoxVectors(a, b, c);
    const double number = sites.slot.size(), sphere = 4 * M_PI / 3 * std::pow(sites.cutoff, 3);
    if (number * number * sphere < MANY_PAIRS * cuda.getNumAtoms() * a[0] * b[1] * c[2])
        return false;
    for (auto* force : cuda.getForceInfos())
        if (!dynamic_cast<Identities*>(force) && force->getNumParticleGroups() > 0) return true;
    return false;
}

// After an error of another force, see NativeKernel::discard().
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

Claim::~Claim() {
    if (asked && python.closePairs) python.closePairs(this);
}

bool Claim::ask(const Force& force, const Interaction& interaction, const std::string& obstacle) {
    const System& system = context.getSystem();
    std::vector<const char*> pickled;
    std::vector<int64_t> sizes;
    for (int i = 0; i < system.getNumForces(); i++)
        if (auto* other = dynamic_cast<const PythonForce*>(&system.getForce(i))) {
            pickled.push_back(other->getPickledFunction().data());
            sizes.push_back(other->getPickledFunction().size());
        }
    if (pickled.empty()) return false;
    const bool several = firstOf(context).getPlatformData().contexts.size() > 1;
    const std::string why = several ? "the Context is on several devices" : obstacle;
    companion = forceWithList(context, force);
    const std::string name = force.getName();
    const Pairs pairs = {&context.getOwner(),
                         pickled.data(),
                         sizes.data(),
                         (int)pickled.size(),
                         name.c_str(),
                         system.getNumParticles(),
                         (int)interaction.slot.size(),
                         interaction.cutoff > 0,
                         why.c_str(),
                         companion.c_str()};
    Inbox inbox;
    asked = true;
    python.claimPairs(this, &pairs, &inbox);
    inbox.check();
    if (inbox.items.count(FAILURE)) throw OpenMMException(inbox.items[FAILURE]);
    return inbox.items.count(CLAIM);
}

// NonbondedForce

NonbondedParameters::Own NonbondedParameters::Own::at(const std::vector<double>& values) const {
    Own found = {charge, sigma, epsilon, {}};
    for (const auto& offset : offsets) {
        found.charge += values[offset.parameter] * offset.charge;
        found.sigma += values[offset.parameter] * offset.sigma;
        found.epsilon += values[offset.parameter] * offset.epsilon;
    }
    return found;
}

std::vector<double> NonbondedParameters::Own::all() const {
    std::vector<double> found = {charge, sigma, epsilon};
    for (const auto& offset : offsets)
        found.insert(found.end(),
                     {(double)offset.parameter, offset.charge, offset.sigma, offset.epsilon});
    return found;
}

NonbondedParameters::NonbondedParameters(const NonbondedForce& force,
                                         const NonbondedParameters& before)
    : names(before.names), values(before.names.size()) {
    readParticles(force);
    readExceptions(force, before);
    const auto method = force.getNonbondedMethod();
    interaction.periodic = method == NonbondedForce::CutoffPeriodic;
    interaction.cutoff = method == NonbondedForce::NoCutoff ? 0 : force.getCutoffDistance();
    interaction.switching = interaction.cutoff > 0 && force.getUseSwitchingFunction()
                                ? force.getSwitchingDistance()
                                : 0;
    interaction.types = types.size();
    interaction.setSites(typeOfParticle, excluded);
}

std::string NonbondedParameters::obstacle() const {
    return types.size() > MAX_TYPES
               ? "its sites are of more than " + std::to_string(MAX_TYPES) + " types"
               : "";
}

int NonbondedParameters::numberOf(const std::string& parameter) {
    for (size_t k = 0; k < names.size(); k++)
        if (names[k] == parameter) return k;
    names.push_back(parameter);
    values.push_back(0);
    return names.size() - 1;
}

template <class Read>
std::map<int, std::vector<NonbondedParameters::Offset>> NonbondedParameters::readOffsets(
    int count, Read read) {
    std::map<int, std::vector<Offset>> found;
    for (int k = 0; k < count; k++) {
        std::string parameter;
        int index;
        Offset offset;
        read(k, parameter, index, offset);
        offset.parameter = numberOf(parameter);
        found[index].push_back(offset);
    }
    return found;
}

void NonbondedParameters::readParticles(const NonbondedForce& force) {
    const auto offsets =
        readOffsets(force.getNumParticleParameterOffsets(),
                    [&](int k, std::string& name, int& i, Offset& offset) {
                        force.getParticleParameterOffset(k, name, i, offset.charge, offset.sigma,
                                                         offset.epsilon);
                    });
    Numbering numbering;
    for (int i = 0; i < force.getNumParticles(); i++) {
        Own own;
        force.getParticleParameters(i, own.charge, own.sigma, own.epsilon);
        bool isSite = own.epsilon != 0;
        const auto found = offsets.find(i);
        if (found != offsets.end()) {
            own.offsets = found->second;
            for (const auto& offset : own.offsets) isSite = isSite || offset.epsilon != 0;
        }
        typeOfParticle.push_back(isSite ? numbering.of(own.all()) : -1);
        if (typeOfParticle.back() == (int)types.size()) types.push_back(own);
    }
}

void NonbondedParameters::readExceptions(const NonbondedForce& force,
                                         const NonbondedParameters& before) {
    const auto offsets =
        readOffsets(force.getNumExceptionParameterOffsets(),
                    [&](int k, std::string& name, int& i, Offset& offset) {
                        force.getExceptionParameterOffset(k, name, i, offset.charge, offset.sigma,
                                                          offset.epsilon);
                    });
    Numbering numbering;
    for (int k = 0; k < force.getNumExceptions(); k++) {
        int first, second;
        Own own;
        force.getExceptionParameters(k, first, second, own.charge, own.sigma, own.epsilon);
        const auto found = offsets.find(k);
        if (found != offsets.end()) own.offsets = found->second;
        const bool counted = k < (int)before.exceptionKinds.size() && before.exceptionKinds[k] >= 0;
        const bool counts = counted || own.charge != 0 || own.epsilon != 0 || !own.offsets.empty();
        excluded.emplace_back(first, second);
        exceptionKinds.push_back(counts ? numbering.of(own.all()) : -1);
        if (!counts) continue;
        exceptions.push_back(own);
        exceptionPairs.push_back({first, second});
    }
}

bool NonbondedParameters::setValues(ContextImpl& context) {
    std::vector<double> now;
    for (const auto& name : names) now.push_back(context.getParameter(name));
    if (known && now == values) return false;
    values = now;
    known = true;
    combine();
    return true;
}

// Pairs of types, by the rule of Lorentz and Berthelot.
void NonbondedParameters::combine() {
    interaction.repulsion.clear();
    interaction.attraction.clear();
    std::vector<Own> now;
    for (const auto& type : types) now.push_back(type.at(values));
    for (const auto& a : now)
        for (const auto& b : now) {
            const double sixth = std::pow(0.5 * (a.sigma + b.sigma), 6),
                         depth = 4 * std::sqrt(a.epsilon * b.epsilon);
            interaction.repulsion.push_back(depth * sixth * sixth);
            interaction.attraction.push_back(depth * sixth);
        }
}

std::vector<double> NonbondedParameters::exceptionData() const {
    std::vector<double> data;
    for (const auto& exception : exceptions) {
        const Own now = exception.at(values);
        data.insert(data.end(), {ONE_4PI_EPS0 * now.charge, now.sigma, 4 * now.epsilon, 0.0});
    }
    return data;
}

// What updateParametersInContext leaves as it was when the Context was made.
template <class Nonbonded>
static void copyLimits(const Nonbonded& from, Nonbonded& to) {
    to.setNonbondedMethod(from.getNonbondedMethod());
    to.setCutoffDistance(from.getCutoffDistance());
    to.setUseSwitchingFunction(from.getUseSwitchingFunction());
    to.setSwitchingDistance(from.getSwitchingDistance());
}

static void copySettings(const NonbondedForce& from, NonbondedForce& to) {
    copyLimits(from, to);
    to.setUseDispersionCorrection(from.getUseDispersionCorrection());
    to.setIncludeDirectSpace(from.getIncludeDirectSpace());
}

static void copySettings(const CustomNonbondedForce& from, CustomNonbondedForce& to) {
    copyLimits(from, to);
    to.setEnergyFunction(from.getEnergyFunction());
    to.setUseLongRangeCorrection(from.getUseLongRangeCorrection());
}

NonbondedKernel::NonbondedKernel(const std::string& name, const Platform& platform,
                                 ContextImpl& context)
    : CalcNonbondedForceKernel(name, platform),
      context(context),
      cuda(firstOf(context)),
      claim(context),
      pairs(context) {}

void NonbondedKernel::initialize(const System& system, const NonbondedForce& force) {
    std::string obstacle = obstacleOf(force);
    if (obstacle.empty()) {
        parameters = NonbondedParameters(force, {});
        obstacle = parameters.obstacle();
    }
    if (claim.ask(force, parameters.interaction, obstacle)) try {
            make(system, force);
            return;
        } catch (const Interrupted&) {
            throw;
        } catch (const std::exception& error) {
            claim.ask(force, parameters.interaction, error.what());
        }
    makeOwn<CalcNonbondedForceKernel>(delegate, *this, context);
    delegate->initialize(system, force);
}

void NonbondedKernel::make(const System& system, const NonbondedForce& force) {
    ContextSelector selector(cuda);
    copySettings(force, settings);
    parameters.combine();  // the Context has no parameters yet
    pairs.start(force, parameters.interaction, claim.isAlone());
    addExceptions(force);
    describe(system, force);
}

// What OpenMM and the energy need beside the pairs.
void NonbondedKernel::describe(const System& system, const NonbondedForce& force) {
    if (force.getUseDispersionCorrection())
        pairs.dispersion = NonbondedForceImpl::calcDispersionCorrection(system, force);
    pairs.setIdentities(
        Identities(parameters.typeOfParticle, parameters.excluded, parameters.exceptionKinds));
}

void NonbondedKernel::addExceptions(const NonbondedForce& force) {
    if (parameters.exceptionPairs.empty()) return;
    const bool isDouble = cuda.getUseDoublePrecision();
    exceptionParameters.initialize(cuda, parameters.exceptionPairs.size(),
                                   4 * (isDouble ? sizeof(double) : sizeof(float)),
                                   "pairExceptions");
    uploadExceptions();
    auto& bonded = cuda.getBondedUtilities();
    const bool wraps =
        parameters.interaction.periodic && force.getExceptionsUsePeriodicBoundaryConditions();
    const std::map<std::string, std::string> replacements = {
        {"PARAMETERS", bonded.addArgument(exceptionParameters, isDouble ? "double4" : "float4")},
        {"WRAP", wraps ? "APPLY_PERIODIC_TO_DELTA(between)" : ""}};
    bonded.addInteraction(parameters.exceptionPairs,
                          cuda.replaceStrings(EXCEPTION_SOURCE, replacements),
                          force.getForceGroup());
}

void NonbondedKernel::uploadExceptions() {
    if (!exceptionParameters.isInitialized()) return;
    const std::vector<double> data = parameters.exceptionData();
    const std::vector<float> rounded(data.begin(), data.end());
    // not at once, but in the order of the stream that OpenMM computes on
    exceptionParameters.upload(
        cuda.getUseDoublePrecision() ? (const void*)data.data() : (const void*)rounded.data(),
        false);
}

double NonbondedKernel::execute(ContextImpl& context, bool includeForces, bool includeEnergy,
                                bool includeDirect, bool includeReciprocal) {
    if (delegate)
        return delegate->execute(context, includeForces, includeEnergy, includeDirect,
                                 includeReciprocal);
    ContextSelector selector(cuda);
    const bool changed = parameters.setValues(context);
    if (outdated)
        pairs.update(parameters.interaction);
    else if (changed)
        pairs.setTable(parameters.interaction);
    if (outdated || changed) uploadExceptions();
    outdated = false;
    return includeDirect ? pairs.execute(includeForces, includeEnergy) : 0;
}

void NonbondedKernel::copyParametersToContext(ContextImpl& context, const NonbondedForce& given,
                                              int firstParticle, int lastParticle,
                                              int firstException, int lastException) {
    if (delegate) {
        delegate->copyParametersToContext(context, given, firstParticle, lastParticle,
                                          firstException, lastException);
        return;
    }
    if (given.getNumParticles() != cuda.getNumAtoms())
        throw OpenMMException("updateParametersInContext: The number of particles has changed");
    NonbondedForce force = given;
    copySettings(settings, force);
    std::string obstacle = obstacleOf(force);
    NonbondedParameters now;
    if (obstacle.empty()) {
        now = NonbondedParameters(force, parameters);
        obstacle = now.obstacle();
    }
    if (!obstacle.empty())
        throw OpenMMException(
            "updateParametersInContext: the Context was made for a NonbondedForce without charges "
            "whose Lennard-Jones pairs fmm_openmm computes, but now " +
            obstacle);
    // sites are places in OpenMM's arrays, so only pairs that all molecules of a kind exclude can
    // be excluded
    if (now.excluded != parameters.excluded)
        throw OpenMMException("updateParametersInContext: The set of exceptions has changed");
    if (now.exceptionPairs != parameters.exceptionPairs)
        throw OpenMMException(
            "updateParametersInContext: The set of non-excluded exceptions has changed");
    if (now.names.size() != parameters.names.size())
        throw OpenMMException(
            "updateParametersInContext: The parameter of a parameter offset has changed");
    ContextSelector selector(cuda);
    // pairs and exceptions follow at the next evaluation, both, even if OpenMM fails to regroup
    // molecules now
    parameters = now;
    outdated = true;
    describe(context.getSystem(), force);
}

void NonbondedKernel::getPMEParameters(double& alpha, int& nx, int& ny, int& nz) const {
    if (!delegate)
        throw OpenMMException("getPMEParametersInContext: This Context is not using PME");
    delegate->getPMEParameters(alpha, nx, ny, nz);
}

void NonbondedKernel::getLJPMEParameters(double& alpha, int& nx, int& ny, int& nz) const {
    if (!delegate)
        throw OpenMMException("getLJPMEParametersInContext: This Context is not using LJPME");
    delegate->getLJPMEParameters(alpha, nx, ny, nz);
}

// CustomNonbondedForce

CustomParameters::CustomParameters(const CustomNonbondedForce& force, const PairEnergy& energy)
    : typeOfParticle(energy.typeOfParticle), energy(energy) {
    const auto method = force.getNonbondedMethod();
    interaction.periodic = method == CustomNonbondedForce::CutoffPeriodic;
    interaction.cutoff = method == CustomNonbondedForce::NoCutoff ? 0 : force.getCutoffDistance();
    interaction.switching = interaction.cutoff > 0 && force.getUseSwitchingFunction()
                                ? force.getSwitchingDistance()
                                : 0;
    interaction.types = energy.types;
    interaction.setSites(typeOfParticle, exclusionsOf(force));
    std::vector<double> defaults;
    for (int k = 0; k < force.getNumGlobalParameters(); k++)
        defaults.push_back(force.getGlobalParameterDefaultValue(k));
    setValues(defaults);
}

bool CustomParameters::setValues(ContextImpl& context) {
    std::vector<double> now;
    for (const auto& name : energy.names) now.push_back(context.getParameter(name));
    if (known && now == values) return false;
    setValues(now);
    known = true;
    return true;
}

void CustomParameters::setValues(const std::vector<double>& now) {
    PairTable table = energy.at(now);
    interaction.repulsion.swap(table.a);
    interaction.attraction.swap(table.b);
    interaction.functions.swap(table.functions);
    values = now;
}

// The correction for what is beyond the cutoff, and for what the switching function takes off: a
// mean over all pairs of particles, each with itself included, as OpenMM's. Its integrals are exact
// here, OpenMM's to 1e-5.
static double dispersionOf(const Interaction& interaction, double particles) {
    const double cutoff = interaction.cutoff, from = interaction.switching;
    double twelfth = std::pow(cutoff, -9) / 9, sixth = std::pow(cutoff, -3) / 3;
    if (from > 0) {
        const int steps = 1000;  // by Simpson's rule
        const double h = (cutoff - from) / steps;
        for (int k = 0; k <= steps; k++) {
            const double r = from + k * h, u = double(k) / steps,
                         weight = (k == 0 || k == steps ? 1 : (k % 2 ? 4 : 2)) * h / 3;
            const double taken = u * u * u * (10 - u * (15 - 6 * u));
            twelfth += weight * taken * std::pow(r, -10);
            sixth += weight * taken * std::pow(r, -4);
        }
    }
    std::vector<double> count(interaction.types);
    for (int type : interaction.type) count[type]++;
    double sum = 0;
    for (int i = 0; i < interaction.types; i++)
        for (int j = 0; j <= i; j++) {
            const double pairs = i == j ? count[i] * (count[i] + 1) / 2 : count[i] * count[j];
            const int k = i * interaction.types + j;
            sum += pairs * (interaction.repulsion[k] * twelfth - interaction.attraction[k] * sixth);
        }
    return 4 * M_PI * particles * sum / (particles + 1);
}

CustomNonbondedKernel::CustomNonbondedKernel(const std::string& name, const Platform& platform,
                                             ContextImpl& context)
    : CalcCustomNonbondedForceKernel(name, platform),
      context(context),
      cuda(firstOf(context)),
      claim(context),
      settings("0"),
      pairs(context) {}

void CustomNonbondedKernel::initialize(const System& system, const CustomNonbondedForce& force) {
    PairEnergy energy;
    std::string obstacle = obstacleOf(force, energy);
    if (obstacle.empty()) try {
            parameters = CustomParameters(force, energy);
        } catch (const NotSeparable& reason) {
            obstacle = reason.what();
        }
    if (claim.ask(force, parameters.interaction, obstacle)) try {
            ContextSelector selector(cuda);
            copySettings(force, settings);
            pairs.start(force, parameters.interaction, claim.isAlone());
            describe(force);
            return;
        } catch (const Interrupted&) {
            throw;
        } catch (const std::exception& error) {
            claim.ask(force, parameters.interaction, error.what());
        }
    makeOwn<CalcCustomNonbondedForceKernel>(delegate, *this, context);
    delegate->initialize(system, force);
}

void CustomNonbondedKernel::describe(const CustomNonbondedForce& force) {
    excluded = exclusionsOf(force);
    pairs.setIdentities(Identities(parameters.typeOfParticle, excluded, {}));
}

double CustomNonbondedKernel::execute(ContextImpl& context, bool includeForces,
                                      bool includeEnergy) {
    if (delegate) return delegate->execute(context, includeForces, includeEnergy);
    ContextSelector selector(cuda);
    outdated = parameters.setValues(context) || outdated;
    if (outdated) {
        pairs.update(parameters.interaction);
        if (settings.getUseLongRangeCorrection() && parameters.interaction.periodic)
            pairs.dispersion = dispersionOf(parameters.interaction, cuda.getNumAtoms());
        outdated = false;
    }
    return pairs.execute(includeForces, includeEnergy);
}

void CustomNonbondedKernel::copyParametersToContext(ContextImpl& context,
                                                    const CustomNonbondedForce& given,
                                                    int firstParticle, int lastParticle) {
    if (delegate) {
        delegate->copyParametersToContext(context, given, firstParticle, lastParticle);
        return;
    }
    if (given.getNumParticles() != cuda.getNumAtoms())
        throw OpenMMException("updateParametersInContext: The number of particles has changed");
    CustomNonbondedForce force(given);
    copySettings(settings, force);
    PairEnergy energy;
    const std::string obstacle = obstacleOf(force, energy);
    if (!obstacle.empty())
        throw OpenMMException(
            "updateParametersInContext: the Context was made for a CustomNonbondedForce whose "
            "pairs fmm_openmm computes, but now " +
            obstacle);
    if (exclusionsOf(force) != excluded)
        throw OpenMMException("updateParametersInContext: The set of exclusions has changed");
    if (energy.names != parameters.names())
        throw OpenMMException(
            "updateParametersInContext: The set of global parameters has changed");
    ContextSelector selector(cuda);
    // followed by the Context's values at the next evaluation
    parameters = CustomParameters(force, energy);
    describe(force);
}

}  // namespace fmm
