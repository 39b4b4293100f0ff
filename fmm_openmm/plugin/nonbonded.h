// The kernels of NonbondedForce and CustomNonbondedForce on the CUDA platform, in Contexts with an
// FMMForce: where Python says so their Lennard-Jones pairs are computed among those particles that
// have such an interaction, and OpenMM lists none for them. Otherwise, and in all other Contexts,
// OpenMM's own kernels do the work.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lennard_jones.h"
#include "openmm/common/ComputeForceInfo.h"
#include "openmm/CustomNonbondedForce.h"
#include "openmm/cuda/CudaArray.h"
#include "openmm/kernels.h"
#include "pair_energy.h"
#include "side_stream.h"

namespace fmm {

// Whether the pairs of a force are computed here: what both kernels ask before they are made, and
// give back at their end.
class Claim {
public:
    Claim(OpenMM::ContextImpl& context) : context(context) {}
    ~Claim();

    // `obstacle` says why that is not possible, or is empty.
    bool ask(const OpenMM::Force& force, const Interaction& interaction,
             const std::string& obstacle);

    // Whether nothing else has OpenMM list all pairs of particles near each other,
    // once it was asked.
    bool isAlone() const { return companion.empty(); }

private:
    OpenMM::ContextImpl& context;
    bool asked = false;
    std::string companion;
};

// Particles are identical if they are of the same type, groups of them if
// they are of the same kind.
class Identities : public OpenMM::ComputeForceInfo {
public:
    Identities(const std::vector<int>& type, const std::vector<std::pair<int, int>>& groups,
               const std::vector<int>& kind)
        : type(type), groups(groups), kind(kind) {}
    bool areParticlesIdentical(int particle1, int particle2) override {
        return type[particle1] == type[particle2];
    }
    int getNumParticleGroups() override { return groups.size(); }
    void getParticlesInGroup(int index, std::vector<int>& particles) override {
        particles = {groups[index].first, groups[index].second};
    }
    bool areGroupsIdentical(int group1, int group2) override {
        return kind.empty() || kind[group1] == kind[group2];
    }

private:
    std::vector<int> type;  // of every particle
    std::vector<std::pair<int, int>> groups;
    std::vector<int> kind;  // of every group, or empty: of one
};

// Types that particles have in common, or kinds of exceptions:
// a number for every one that is different.
class Numbering {
public:
    int of(const std::vector<double>& parameters) {
        return numbers.emplace(parameters, numbers.size()).first->second;
    }
    int count() const { return numbers.size(); }

private:
    std::map<std::vector<double>, int> numbers;
};

// Pairs of sites in a Context, and what OpenMM has to know of them.
// They need OpenMM's context to be current.
class SitePairs {
public:
    explicit SitePairs(OpenMM::ContextImpl& context);
    ~SitePairs();

    // Once, when the Context is made. What fails throws before OpenMM knows of anything, or as
    // OpenMM's own kernel would.
    void start(const OpenMM::Force& force, const Interaction& interaction, bool alone);

    // Which particles OpenMM may exchange when it reorders atoms.
    void setIdentities(const Identities& other);

    // Go on with others; what fails is tried again at the next evaluation.
    void update(const Interaction& interaction);

    // The same if only coefficients differ.
    void setTable(const Interaction& interaction);

    // Queue adding forces and energy to OpenMM's. Returns the energy of the dispersion correction.
    double execute(bool forces, bool energy);

    double dispersion = 0;  // kJ/mol nm^3

private:
    class Begin;
    class End;

    bool runsBeside(bool energy);
    void discard();
    void delayReordering();

    OpenMM::CudaContext& cuda;
    Interaction sites;
    std::unique_ptr<LennardJones> engine;  // none without sites
    std::unique_ptr<SideStream> side;      // of OpenMM's other forces
    Identities* identities = nullptr;      // OpenMM's, once it has been told of them
    std::shared_ptr<int> delays;           // of OpenMM's reordering, none if it may not wait
};

// What a NonbondedForce without charges holds.
class NonbondedParameters {
public:
    NonbondedParameters() {}

    // Exceptions that counted before count still, though they may be zero now, and global
    // parameters that offsets used keep their numbers.
    NonbondedParameters(const OpenMM::NonbondedForce& force, const NonbondedParameters& before);

    // Why such a force cannot be computed among its sites, or nothing.
    std::string obstacle() const;

    // Takes the values of the global parameters that offsets use; false if they are as before.
    bool setValues(OpenMM::ContextImpl& context);

    // Makes the table of pairs of types at these values, or at zero before there are any.
    void combine();

    // k q q', sigma and 4 epsilon of every exception at these values, with a 0 behind them.
    std::vector<double> exceptionData() const;

    std::vector<std::string> names;  // of the global parameters
    Interaction interaction;
    std::vector<int> typeOfParticle;               // -1: no site
    std::vector<std::vector<int>> exceptionPairs;  // those that are not merely excluded
    std::vector<std::pair<int, int>> excluded;     // all
    std::vector<int> exceptionKinds;               // of all

private:
    // What a global parameter adds, times its value.
    struct Offset {
        int parameter;  // its number among `names`
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
    void readExceptions(const OpenMM::NonbondedForce& force, const NonbondedParameters& before);
    int numberOf(const std::string& parameter);

    // Offsets of particles or exceptions, by their index; `read` tells the k-th.
    template <class Read>
    std::map<int, std::vector<Offset>> readOffsets(int count, Read read);

    std::vector<double> values;
    bool known = false;           // whether these are a Context's
    std::vector<Own> types;       // of sites
    std::vector<Own> exceptions;  // those that are not merely excluded
};

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
    OpenMM::NonbondedForce settings;  // those of the force, without particles
    bool outdated = false;            // whether pairs are not yet computed with these parameters
    OpenMM::CudaArray exceptionParameters;
    SitePairs pairs;
};

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
