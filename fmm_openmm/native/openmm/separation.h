// Energies of pairs as sums of products: of a function of the parameters of both particles, and one
// of everything else.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "lepton/ExpressionTreeNode.h"
#include "openmm/OpenMMException.h"

namespace fmm {

// relative, of a value from another, or from a combination of others, that it is
static const double MAX_DEVIATION = 1e-9;

// Why an energy has not the form asked for.
class NotSeparable : public OpenMM::OpenMMException {
public:
    using OpenMM::OpenMMException::OpenMMException;
};

struct Product {
    Lepton::ExpressionTreeNode parameters, function;
};

bool dependsOn(const Lepton::ExpressionTreeNode& node, const std::set<std::string>& variables);

// An energy as a sum of products, whatever the values of its variables are; `parameters` names
// those that are particles'. Sums are multiplied out, so that nothing needs to be tried. No two
// products have the same function. Throws NotSeparable.
std::vector<Product> separated(const Lepton::ExpressionTreeNode& energy,
                               const std::set<std::string>& parameters);

// The same sum with two products at most, less their signs:
//
//     sum_k values[k][p] function[k] = first[p] f - second[p] g      for every pair p
struct TwoProducts {
    std::vector<double> first, second;
    Lepton::ExpressionTreeNode f, g;

    // Throws NotSeparable if there are more, or if a value is not finite.
    TwoProducts(const std::vector<std::vector<double>>& values,
                const std::vector<Product>& products);
};

}  // namespace fmm
