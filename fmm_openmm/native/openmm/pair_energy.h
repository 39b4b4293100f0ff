// The energy of a CustomNonbondedForce, where it is of this form for particles of types s and t:
//
//     E(r) = A_st f(r) - B_st g(r)
//
// with f and g that all pairs have in common; they may depend on global parameters, A and B do not.
// f = 1/r^12 and g = 1/r^6 where that is possible.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lepton/ParsedExpression.h"
#include "openmm/CustomNonbondedForce.h"

namespace fmm {

// At some values of the global parameters.
struct PairTable {
    std::vector<double> a, b;  // (types, types)
    std::string functions;     // source of f, g, f_slope and g_slope (function_source.h); empty:
                               // 1/r^12 and 1/r^6
};

class PairEnergy {
public:
    PairEnergy() {}

    // Throws NotSeparable, with the reason, if the energy has not this form, whatever the values of
    // the global parameters.
    explicit PairEnergy(const OpenMM::CustomNonbondedForce& force);

    PairTable at(const std::vector<double>& values) const;

    // Whether f and g are 1/r^12 and 1/r^6, whatever the values of the global parameters.
    bool isPlain() const { return plain; }

    std::vector<std::string> names;   // of the global parameters
    std::vector<int> typeOfParticle;  // -1: it interacts with none
    int types = 0;

private:
    std::vector<double> a, b;  // (types, types)
    bool plain = true;
    Lepton::ParsedExpression f, g;
};

}  // namespace fmm
