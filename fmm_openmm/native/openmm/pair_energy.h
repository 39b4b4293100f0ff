// The energy of a CustomNonbondedForce, if it has this form for particles of types s and t:
//
//     E(r) = A_st f(r) - B_st g(r)
//
// f and g are common to all pairs and may depend on global parameters, A and B may not. If
// possible, f = 1/r^12 and g = 1/r^6.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lepton/ParsedExpression.h"
#include "openmm/CustomNonbondedForce.h"

namespace fmm {

// The energy for given values of the global parameters.
struct PairTable {
    std::vector<double> a, b;  // (types, types)
    std::string functions;     // source of f, g, f_slope and g_slope (function_source.h); empty:
                               // 1/r^12 and 1/r^6
};

class PairEnergy {
public:
    PairEnergy() {}

    // Throws NotSeparable, with the reason, if the energy does not have this form for all values of
    // the global parameters.
    explicit PairEnergy(const OpenMM::CustomNonbondedForce& force);

    PairTable at(const std::vector<double>& values) const;

    // Whether f and g are 1/r^12 and 1/r^6 for all values of the global parameters.
    bool isPlain() const { return plain; }

    std::vector<std::string> names;   // names of the global parameters
    std::vector<int> typeOfParticle;  // -1: no interactions
    int types = 0;

private:
    std::vector<double> a, b;  // (types, types)
    bool plain = true;
    bool chosen = false;  // particles' parameters choose between functions of the distance
    Lepton::ParsedExpression f, g;
};

}  // namespace fmm
