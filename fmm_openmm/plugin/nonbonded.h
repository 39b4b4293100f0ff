// The kernels of NonbondedForce and CustomNonbondedForce on the CUDA platform, in Contexts with an FMMForce: where Python says so
// their Lennard-Jones pairs are computed among those particles that have such an interaction, and OpenMM lists none for them.
// Otherwise, and in all other Contexts, OpenMM's own kernels do the work.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lennard_jones.h"
#include "openmm/common/ComputeForceInfo.h"
#include "openmm/cuda/CudaArray.h"
#include "openmm/kernels.h"

namespace fmm {

// Whether the pairs of a force are computed here: what both kernels ask before they are made, and give back at their end.
class Claim {
public:
    Claim(OpenMM::ContextImpl& context) : context(context) {}
    ~Claim();

    // `obstacle` says why that is not possible, or is empty.
    bool ask(const OpenMM::Force& force, const Interaction& interaction, const std::string& obstacle);

private:
    OpenMM::ContextImpl& context;
    bool asked = false;
};

// Particles are identical if they are of the same type, groups of them if they are of the same kind.
class Identities : public OpenMM::ComputeForceInfo {
public:
    Identities(const std::vector<int>& type, const std::vector<std::pair<int, int>>& groups, const std::vector<int>& kind)
        : type(type), groups(groups), kind(kind) {}
    bool areParticlesIdentical(int particle1, int particle2) override { return type[particle1] == type[particle2]; }
    int getNumParticleGroups() override { return groups.size(); }
    void getParticlesInGroup(int index, std::vector<int>& particles) override {
        particles = {groups[index].first, groups[index].second};
    }
    bool areGroupsIdentical(int group1, int group2) override { return kind.empty() || kind[group1] == kind[group2]; }

private:
    std::vector<int> type;                         // of every particle
    std::vector<std::pair<int, int>> groups;
    std::vector<int> kind;                         // of every group, or empty: of one
};

// Types that particles have in common, or kinds of exceptions: a number for every one that is different.
class Numbering {
public:
    int of(const std::vector<double>& parameters) { return numbers.emplace(parameters, numbers.size()).first->second; }
    int count() const { return numbers.size(); }

private:
    std::map<std::vector<double>, int> numbers;
};

// What a NonbondedForce without charges holds.
class NonbondedParameters {
public:
    NonbondedParameters() {}
    explicit NonbondedParameters(const OpenMM::NonbondedForce& force);

    // Sets values of the global parameters that offsets use; false if they are as before.
    bool setValues(const std::vector<double>& now);

    // k q q', sigma and 4 epsilon of every exception at these values, with a 0 behind them.
    std::vector<double> exceptionData() const;

    std::vector<std::string> names;                // of the global parameters
    Interaction interaction;
    std::vector<int> typeOfParticle;               // -1: no site
    std::vector<std::vector<int>> exceptionPairs;  // those that are not merely excluded
    std::vector<std::pair<int, int>> excluded;     // all
    std::vector<int> exceptionKinds;               // of all

private:
    // What a global parameter adds, times its value.
    struct Offset {
        int parameter;             // its number among `names`
        double charge, sigma, epsilon;
    };
    // Of particles or exceptions. The charge is an exception's product.
    struct Own {
        double charge, sigma, epsilon;
        std::vector<Offset> offsets;

        Own at(const std::vector<double>& values) const;
        std::vector<double> all() const;
    };

    void readParticles(const OpenMM::NonbondedForce& force);
    void readExceptions(const OpenMM::NonbondedForce& force);
    int numberOf(const std::string& parameter);
    void combine();

    std::vector<double> values;
    std::vector<Own> types;                        // of sites
    std::vector<Own> exceptions;                   // those that are not merely excluded
};

class NonbondedKernel : public OpenMM::CalcNonbondedForceKernel {
public:
    NonbondedKernel(const std::string& name, const OpenMM::Platform& platform, OpenMM::ContextImpl& context);
    ~NonbondedKernel();
    void initialize(const OpenMM::System& system, const OpenMM::NonbondedForce& force) override;
    double execute(OpenMM::ContextImpl& context, bool includeForces, bool includeEnergy, bool includeDirect,
                   bool includeReciprocal) override;
    void copyParametersToContext(OpenMM::ContextImpl& context, const OpenMM::NonbondedForce& force, int firstParticle,
                                 int lastParticle, int firstException, int lastException) override;
    void getPMEParameters(double& alpha, int& nx, int& ny, int& nz) const override;
    void getLJPMEParameters(double& alpha, int& nx, int& ny, int& nz) const override;

private:
    void make(const OpenMM::System& system, const OpenMM::NonbondedForce& force);
    void addExceptions(const OpenMM::NonbondedForce& force);
    void uploadExceptions();

    OpenMM::ContextImpl& context;
    OpenMM::CudaContext& cuda;
    Claim claim;
    std::unique_ptr<OpenMM::CalcNonbondedForceKernel> delegate;
    NonbondedParameters parameters;
    Identities* identities = nullptr;              // OpenMM's, once it has been told of them
    OpenMM::CudaArray exceptionParameters;
    std::unique_ptr<LennardJones> pairs;           // none without sites
    bool waits = false;                            // whether OpenMM's reordering of atoms may wait
    double dispersion = 0;                         // kJ/mol nm^3
};

class CustomNonbondedKernel : public OpenMM::CalcCustomNonbondedForceKernel {
public:
    CustomNonbondedKernel(const std::string& name, const OpenMM::Platform& platform, OpenMM::ContextImpl& context);
    ~CustomNonbondedKernel();
    void initialize(const OpenMM::System& system, const OpenMM::CustomNonbondedForce& force) override;
    double execute(OpenMM::ContextImpl& context, bool includeForces, bool includeEnergy) override;
    void copyParametersToContext(OpenMM::ContextImpl& context, const OpenMM::CustomNonbondedForce& force, int firstParticle,
                                 int lastParticle) override;

private:
    void make(const OpenMM::CustomNonbondedForce& force);

    OpenMM::ContextImpl& context;
    OpenMM::CudaContext& cuda;
    Claim claim;
    std::unique_ptr<OpenMM::CalcCustomNonbondedForceKernel> delegate;
    Identities* identities = nullptr;              // OpenMM's, once it has been told of them
    std::vector<int> typeOfParticle;
    Interaction interaction;
    std::unique_ptr<LennardJones> pairs;
    bool waits = false;                            // whether OpenMM's reordering of atoms may wait
    double dispersion = 0;                         // kJ/mol nm^3
};

}  // namespace fmm
