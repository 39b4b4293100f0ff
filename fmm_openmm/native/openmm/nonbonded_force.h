// The kernel of NonbondedForce on the CUDA platform, in Contexts with an FMMForce. If Python
// agrees, it computes Lennard-Jones pairs only among the particles that have such an interaction,
// and OpenMM builds no list for them. Otherwise it delegates to OpenMM's own kernel.
#pragma once
#include <memory>
#include <string>

#include "claim.h"
#include "nonbonded_parameters.h"
#include "openmm/cuda/CudaArray.h"
#include "openmm/kernels.h"
#include "site_pairs.h"

namespace fmm {

class NonbondedKernel : public OpenMM::CalcNonbondedForceKernel {
public:
    NonbondedKernel(const std::string& name, const OpenMM::Platform& platform,
                    OpenMM::ContextImpl& context);
    void initialize(const OpenMM::System& system, const OpenMM::NonbondedForce& force) override;
    double execute(OpenMM::ContextImpl& context, bool includeForces, bool includeEnergy,
                   bool includeDirect, bool includeReciprocal) override;
    void copyParametersToContext(OpenMM::ContextImpl& context, const OpenMM::NonbondedForce& force,
                                 int firstParticle, int lastParticle, int firstException,
                                 int lastException) override;
    void getPMEParameters(double& alpha, int& nx, int& ny, int& nz) const override;
    void getLJPMEParameters(double& alpha, int& nx, int& ny, int& nz) const override;

private:
    void make(const OpenMM::System& system, const OpenMM::NonbondedForce& force);
    void describe(const OpenMM::System& system, const OpenMM::NonbondedForce& force);
    void addExceptions(const OpenMM::NonbondedForce& force);
    void uploadExceptions();

    OpenMM::ContextImpl& context;
    OpenMM::CudaContext& cuda;
    Claim claim;
    std::unique_ptr<OpenMM::CalcNonbondedForceKernel> delegate;
    NonbondedParameters parameters;
    OpenMM::NonbondedForce settings;  // the force's settings, without particles
    bool outdated = false;            // whether `pairs` does not have these parameters yet
    OpenMM::CudaArray exceptionParameters;
    SitePairs pairs;
};

}  // namespace fmm
