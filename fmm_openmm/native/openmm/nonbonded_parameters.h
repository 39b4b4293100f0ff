// Parameters of a NonbondedForce without charges: its sites, their types, and its exceptions.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "openmm/NonbondedForce.h"
#include "openmm/internal/ContextImpl.h"
#include "site_list.h"

namespace fmm {

class NonbondedParameters {
public:
    NonbondedParameters() {}

    // Exceptions that were computed with the previous parameters are still computed, even if they
    // are zero now, and the global parameters of offsets keep their numbers.
    NonbondedParameters(const OpenMM::NonbondedForce& force, const NonbondedParameters& previous);

    // Why the plugin cannot compute such a force; empty if it can.
    std::string obstacle() const;

    // Adopt the Context's values of the global parameters of offsets; false if they have not
    // changed.
    bool setValues(OpenMM::ContextImpl& context);

    // Compute the table of pairs of types for these values, or for zeros if there are none yet.
    void combine();

    // k q q', sigma, 4 epsilon and a 0 for every exception, for these values.
    std::vector<double> exceptionData() const;

    std::vector<std::string> names;  // names of the global parameters
    Interaction interaction;
    std::vector<int> typeOfParticle;               // -1: not a site
    std::vector<std::vector<int>> exceptionPairs;  // of exceptions with an interaction
    std::vector<std::pair<int, int>> excluded;     // particles of all exceptions
    std::vector<int> exceptionKinds;               // of all exceptions

private:
    // Coefficients of a global parameter's value.
    struct Offset {
        int parameter;  // index in `names`
        double charge, sigma, epsilon;
    };
    // Parameters of a particle, or of an exception, whose charge is the product of both charges.
    struct PairParameters {
        double charge, sigma, epsilon;
        std::vector<Offset> offsets;

        PairParameters at(const std::vector<double>& values) const;
        std::vector<double> flattened() const;
    };

    void readParticles(const OpenMM::NonbondedForce& force);
    void readExceptions(const OpenMM::NonbondedForce& force, const NonbondedParameters& previous);
    int numberOf(const std::string& parameter);

    // Offsets by the index of their particle or exception; read(k, name, index, offset) reads the
    // k-th.
    template <class Read>
    std::map<int, std::vector<Offset>> readOffsets(int count, Read read);

    std::vector<double> values;
    bool known = false;                      // whether they are a Context's values
    std::vector<PairParameters> types;       // types of sites
    std::vector<PairParameters> exceptions;  // of exceptions with an interaction
};

}  // namespace fmm
