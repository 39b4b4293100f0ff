#include "custom_nonbonded_force.h"

#include <cmath>

#include "force_survey.h"
#include "openmm/common/ContextSelector.h"
#include "cuda_platform.h"
#include "separation.h"

using namespace OpenMM;

namespace fmm {

static void copySettings(const CustomNonbondedForce& from, CustomNonbondedForce& to) {
    copyLimits(from, to);
    to.setEnergyFunction(from.getEnergyFunction());
    to.setUseLongRangeCorrection(from.getUseLongRangeCorrection());
}

CustomParameters::CustomParameters(const CustomNonbondedForce& force, const PairEnergy& energy)
    : typeOfParticle(energy.typeOfParticle), energy(energy) {
    interaction.setDistances(force);
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
    try {
        setValues(now);
    } catch (const NotSeparable& reason) {
        throw OpenMMException(
            "the Lennard-Jones pairs of a CustomNonbondedForce cannot be computed"
            " among their sites with these values of its global parameters: " +
            std::string(reason.what()) + "; use lennard_jones=\"openmm\" in use_fmm()");
    }
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

// The long-range correction times the volume: the interaction beyond the cutoff and the part that
// the switching function removes, averaged over all pairs of particles, each with itself included,
// as in OpenMM. The integrals are exact here, and accurate to 1e-5 in OpenMM.
static double dispersionOf(const Interaction& interaction, double particles) {
    const double cutoff = interaction.cutoff, from = interaction.switching;
    double twelfth = std::pow(cutoff, -9) / 9, sixth = std::pow(cutoff, -3) / 3;
    if (from > 0) {
        const int steps = 1000;  // by Simpson's rule
        const double h = (cutoff - from) / steps;
        for (int k = 0; k <= steps; k++) {
            const double r = from + k * h, u = double(k) / steps,
                         weight = (k == 0 || k == steps ? 1 : (k % 2 ? 4 : 2)) * h / 3;
            const double removed = u * u * u * (10 - u * (15 - 6 * u));
            twelfth += weight * removed * std::pow(r, -10);
            sixth += weight * removed * std::pow(r, -4);
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
      cuda(firstContext(context)),
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
    if (claim.serve(force, parameters.interaction, obstacle, [&] { make(force); })) return;
    makeDelegate<CalcCustomNonbondedForceKernel>(delegate, *this, context);
    delegate->initialize(system, force);
}

void CustomNonbondedKernel::make(const CustomNonbondedForce& force) {
    ContextSelector selector(cuda);
    copySettings(force, settings);
    pairs.start(force, parameters.interaction, claim.isAlone());
    describe(force);
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
    // the Context's values are adopted at the next evaluation
    parameters = CustomParameters(force, energy);
    describe(force);
}

}  // namespace fmm
