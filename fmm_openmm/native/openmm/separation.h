// Pair energies as sums of products of a function of both particles' parameters and a function of
// everything else.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "lepton/ExpressionTreeNode.h"
#include "openmm/OpenMMException.h"

namespace fmm {

// Relative deviation up to which a value is taken to equal another, or a linear combination of
// others.
static const double MAX_DEVIATION = 1e-9;

static const char NOT_FINITE[] = "a number in its energy is not finite";

// The reason why an energy does not have the required form.
class NotSeparable : public OpenMM::OpenMMException {
public:
    using OpenMM::OpenMMException::OpenMMException;
};

struct Product {
    Lepton::ExpressionTreeNode parameters, function;
};

bool dependsOn(const Lepton::ExpressionTreeNode& node, const std::set<std::string>& variables);

// Separates an energy into a sum of products, valid for all values of its variables; `parameters`
// names the particles' parameters. Products of sums are expanded, so that the result does not
// depend on trial values. The functions of all products differ. Throws NotSeparable.
std::vector<Product> separated(const Lepton::ExpressionTreeNode& energy,
                               const std::set<std::string>& parameters);

// The same sum reduced to at most two products, for given values of the parameters:
//
//     sum_k values[k][p] function[k] = first[p] f - second[p] g      for every pair p
struct TwoProducts {
    std::vector<double> first, second;
    Lepton::ExpressionTreeNode f, g;

    // Throws NotSeparable if more than two are needed, or if a value is not finite.
    TwoProducts(const std::vector<std::vector<double>>& values,
                const std::vector<Product>& products);
};

}  // namespace fmm
