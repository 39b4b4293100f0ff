#include "force_survey.h"

#include <set>

#include "OpenMM.h"
#include "separation.h"

using namespace OpenMM;

namespace fmm {

// Number of pairs of interaction groups per particle from which OpenMM's list is cheaper than
// computing all of them: about the number of pairs that OpenMM computes with a list, in whole
// tiles, in water with a cutoff of 0.9 nm.
static const double MANY_GROUP_PAIRS = 400;

template <class... Kinds>
static bool isOneOf(const Force& force) {
    return ((dynamic_cast<const Kinds*>(&force) != nullptr) || ...);
}

bool addsByAtomics(const Force& force) {
    if (auto* nonbonded = dynamic_cast<const NonbondedForce*>(&force))
        return nonbonded->getNonbondedMethod() <=
               NonbondedForce::CutoffPeriodic;  // Ewald and PME may not
    return isOneOf<HarmonicBondForce, HarmonicAngleForce, PeriodicTorsionForce, RBTorsionForce,
                   CMAPTorsionForce, CustomBondForce, CustomAngleForce, CustomTorsionForce,
                   CustomCompoundBondForce, CustomCentroidBondForce, CustomNonbondedForce,
                   CustomHbondForce, CustomExternalForce, CMMotionRemover, AndersenThermostat,
                   MonteCarloBarostat, MonteCarloAnisotropicBarostat, MonteCarloMembraneBarostat,
                   MonteCarloFlexibleBarostat>(force);
}

template <class Nonbonded>
static bool switchesFromZero(const Nonbonded& force) {
    return force.getUseSwitchingFunction() && force.getSwitchingDistance() <= 0;
}

std::string obstacleOf(const NonbondedForce& force) {
    const auto method = force.getNonbondedMethod();
    if (method == NonbondedForce::LJPME) return "its dispersion is LJPME's";
    if (method > NonbondedForce::CutoffPeriodic) return "its method is Ewald or PME";
    if (!force.getIncludeDirectSpace()) return "its direct space is left out";
    if (switchesFromZero(force)) return "its switching function begins at 0";
    double charge, sigma, epsilon;
    for (int i = 0; i < force.getNumParticles(); i++) {
        force.getParticleParameters(i, charge, sigma, epsilon);
        if (charge != 0) return "it holds charges";
    }
    for (int k = 0; k < force.getNumParticleParameterOffsets(); k++) {
        std::string parameter;
        int particle;
        force.getParticleParameterOffset(k, parameter, particle, charge, sigma, epsilon);
        if (charge != 0) return "it holds offsets of charges";
    }
    return "";
}

std::string obstacleOf(const CustomNonbondedForce& force, PairEnergy& energy) {
    if (force.getNumInteractionGroups() > 0) return "it has interaction groups";
    if (force.getNumComputedValues() > 0) return "it has computed values";
    if (force.getNumEnergyParameterDerivatives() > 0)
        return "it has derivatives with respect to global parameters";
    if (switchesFromZero(force)) return "its switching function begins at 0";
    try {
        energy = PairEnergy(force);
    } catch (const NotSeparable& reason) {
        return reason.what();
    }
    const bool corrected = force.getUseLongRangeCorrection() &&
                           force.getNonbondedMethod() == CustomNonbondedForce::CutoffPeriodic;
    return corrected && !energy.isPlain()
               ? "it has a long-range correction, and its energy is not A/r^12 - B/r^6"
               : "";
}

std::vector<std::pair<int, int>> exclusionsOf(const CustomNonbondedForce& force) {
    std::vector<std::pair<int, int>> excluded(force.getNumExclusions());
    for (int k = 0; k < (int)excluded.size(); k++)
        force.getExclusionParticles(k, excluded[k].first, excluded[k].second);
    return excluded;
}

// OpenMM skips distant pairs of interaction groups only if it builds a list of all particles, and
// otherwise computes all of them.
static bool hasManyGroupPairs(const CustomNonbondedForce& force) {
    if (force.getNonbondedMethod() == CustomNonbondedForce::NoCutoff) return false;
    double pairs = 0;
    for (int k = 0; k < force.getNumInteractionGroups(); k++) {
        std::set<int> first, second;
        force.getInteractionGroupParameters(k, first, second);
        pairs += (double)first.size() * second.size();
    }
    return pairs > MANY_GROUP_PAIRS * force.getNumParticles();
}

std::string forceWithList(ContextImpl& context, const Force& force) {
    const System& system = context.getSystem();
    for (int i = 0; i < system.getNumForces(); i++) {
        const Force& other = system.getForce(i);
        if (&other == &force) continue;
        bool lists = isOneOf<CustomGBForce, GBSAOBCForce, ConstantPotentialForce>(other);
        if (auto* nonbonded = dynamic_cast<const NonbondedForce*>(&other))
            lists = nonbonded->getIncludeDirectSpace() && !obstacleOf(*nonbonded).empty();
        if (auto* custom = dynamic_cast<const CustomNonbondedForce*>(&other)) {
            PairEnergy unused;
            lists = custom->getNumInteractionGroups() > 0 ? hasManyGroupPairs(*custom)
                                                          : !obstacleOf(*custom, unused).empty();
        }
        if (lists) return other.getName();
    }
    return dynamic_cast<const DPDIntegrator*>(&context.getIntegrator()) ? "DPDIntegrator" : "";
}

}  // namespace fmm
