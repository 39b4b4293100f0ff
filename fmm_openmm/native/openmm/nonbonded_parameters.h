// What a NonbondedForce without charges holds: its sites, their types, and its exceptions.
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

}  // namespace fmm
