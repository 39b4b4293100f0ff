// The kernel of CustomNonbondedForce, analogous to that of NonbondedForce (nonbonded_force.h).
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "claim.h"
#include "openmm/CustomNonbondedForce.h"
#include "openmm/kernels.h"
#include "pair_energy.h"
#include "site_pairs.h"

namespace fmm {

// Parameters of a CustomNonbondedForce.
class CustomParameters {
public:
    CustomParameters() {}
    CustomParameters(const OpenMM::CustomNonbondedForce& force, const PairEnergy& energy);

    // Adopt the Context's values of the global parameters; false if they have not changed.
    bool setValues(OpenMM::ContextImpl& context);

    const std::vector<std::string>& names() const { return energy.names; }

    Interaction interaction;
    std::vector<int> typeOfParticle;  // -1: not a site

private:
    void setValues(const std::vector<double>& now);

    PairEnergy energy;
    std::vector<double> values;
    bool known = false;  // whether they are a Context's values
};

class CustomNonbondedKernel : public OpenMM::CalcCustomNonbondedForceKernel {
public:
    CustomNonbondedKernel(const std::string& name, const OpenMM::Platform& platform,
                          OpenMM::ContextImpl& context);
    void initialize(const OpenMM::System& system,
                    const OpenMM::CustomNonbondedForce& force) override;
    double execute(OpenMM::ContextImpl& context, bool includeForces, bool includeEnergy) override;
    void copyParametersToContext(OpenMM::ContextImpl& context,
                                 const OpenMM::CustomNonbondedForce& force, int firstParticle,
                                 int lastParticle) override;

private:
    void make(const OpenMM::CustomNonbondedForce& force);
    void describe(const OpenMM::CustomNonbondedForce& force);

    OpenMM::ContextImpl& context;
    OpenMM::CudaContext& cuda;
    Claim claim;
    std::unique_ptr<OpenMM::CalcCustomNonbondedForceKernel> delegate;
    CustomParameters parameters;
    OpenMM::CustomNonbondedForce settings;  // the force's settings, without particles
    std::vector<std::pair<int, int>> excluded;
    bool outdated = false;  // whether `pairs` does not have these parameters yet
    SitePairs pairs;
};

}  // namespace fmm
