// The kernel of CustomNonbondedForce, as that of NonbondedForce (nonbonded_force.h).
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

// What a CustomNonbondedForce holds.
class CustomParameters {
public:
    CustomParameters() {}
    CustomParameters(const OpenMM::CustomNonbondedForce& force, const PairEnergy& energy);

    // Takes the values of the global parameters; false if they are as before.
    bool setValues(OpenMM::ContextImpl& context);

    const std::vector<std::string>& names() const { return energy.names; }

    Interaction interaction;
    std::vector<int> typeOfParticle;  // -1: no site

private:
    void setValues(const std::vector<double>& now);

    PairEnergy energy;
    std::vector<double> values;
    bool known = false;  // whether these are a Context's
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
    OpenMM::CustomNonbondedForce settings;  // those of the force, without particles
    std::vector<std::pair<int, int>> excluded;
    bool outdated = false;  // whether pairs are not yet computed with these parameters
    SitePairs pairs;
};

}  // namespace fmm
