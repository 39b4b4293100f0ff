#include "nonbonded_force.h"

#include <map>
#include <vector>

#include "force_survey.h"
#include "openmm/common/BondedUtilities.h"
#include "openmm/common/ContextSelector.h"
#include "openmm/internal/NonbondedForceImpl.h"
#include "cuda_platform.h"

using namespace OpenMM;

namespace fmm {

// Coulomb and Lennard-Jones interaction of an exception; PARAMETERS holds k q q', sigma and 4
// epsilon.
static const char* EXCEPTION_SOURCE = R"(
    real3 displacement = make_real3(pos2.x-pos1.x, pos2.y-pos1.y, pos2.z-pos1.z);
    WRAP
    const real inverse_r = RSQRT(displacement.x*displacement.x + displacement.y*displacement.y +
                                 displacement.z*displacement.z);
    const real coulomb = PARAMETERS[index].x*inverse_r,
               sigma_over_r = PARAMETERS[index].y*inverse_r,
               four_epsilon = PARAMETERS[index].z;
    const real sixth_power = sigma_over_r*sigma_over_r*sigma_over_r*
                             sigma_over_r*sigma_over_r*sigma_over_r;
    energy += coulomb + four_epsilon*sixth_power*(sixth_power-1);
    const real force_over_r = inverse_r*inverse_r*
                              (coulomb + four_epsilon*sixth_power*(12*sixth_power-6));
    real3 force1 = make_real3(-force_over_r*displacement.x, -force_over_r*displacement.y,
                              -force_over_r*displacement.z);
    real3 force2 = make_real3(force_over_r*displacement.x, force_over_r*displacement.y,
                              force_over_r*displacement.z);
)";

static void copySettings(const NonbondedForce& from, NonbondedForce& to) {
    copyLimits(from, to);
    to.setUseDispersionCorrection(from.getUseDispersionCorrection());
    to.setIncludeDirectSpace(from.getIncludeDirectSpace());
}

NonbondedKernel::NonbondedKernel(const std::string& name, const Platform& platform,
                                 ContextImpl& context)
    : CalcNonbondedForceKernel(name, platform),
      context(context),
      cuda(firstContext(context)),
      claim(context),
      pairs(context) {}

void NonbondedKernel::initialize(const System& system, const NonbondedForce& force) {
    std::string obstacle = obstacleOf(force);
    if (obstacle.empty()) {
        parameters = NonbondedParameters(force, {});
        obstacle = parameters.obstacle();
    }
    if (claim.serve(force, parameters.interaction, obstacle, [&] { make(system, force); })) return;
    makeDelegate<CalcNonbondedForceKernel>(delegate, *this, context);
    delegate->initialize(system, force);
}

void NonbondedKernel::make(const System& system, const NonbondedForce& force) {
    ContextSelector selector(cuda);
    copySettings(force, settings);
    parameters.combine();  // the Context has no values of parameters yet
    pairs.start(force, parameters.interaction, claim.isAlone());
    addExceptions(force);
    describe(system, force);
}

// Sets the dispersion correction, and the identities of particles for OpenMM.
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
        {"WRAP", wraps ? "APPLY_PERIODIC_TO_DELTA(displacement)" : ""}};
    bonded.addInteraction(parameters.exceptionPairs,
                          cuda.replaceStrings(EXCEPTION_SOURCE, replacements),
                          force.getForceGroup());
}

void NonbondedKernel::uploadExceptions() {
    if (!exceptionParameters.isInitialized()) return;
    const std::vector<double> data = parameters.exceptionData();
    const std::vector<float> rounded(data.begin(), data.end());
    // asynchronously, in the order of OpenMM's current stream
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
    // sites are indices in OpenMM's arrays, so that a pair can be excluded only if all molecules of
    // that kind exclude it
    if (now.excluded != parameters.excluded)
        throw OpenMMException("updateParametersInContext: The set of exceptions has changed");
    if (now.exceptionPairs != parameters.exceptionPairs)
        throw OpenMMException(
            "updateParametersInContext: The set of non-excluded exceptions has changed");
    if (now.names.size() != parameters.names.size())
        throw OpenMMException(
            "updateParametersInContext: The parameter of a parameter offset has changed");
    ContextSelector selector(cuda);
    // pairs and exceptions are both updated at the next evaluation, even if OpenMM now fails to
    // regroup molecules
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

}  // namespace fmm
