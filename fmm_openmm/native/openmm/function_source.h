// CUDA source for functions of the distance.
#pragma once
#include <map>
#include <string>

#include "lepton/ParsedExpression.h"

namespace fmm {

// CUDA definitions, on one line, of real variables with the given names; common subexpressions are
// computed once. They use `r`, its inverse as `inverse` and its square as `square`, reciprocal(),
// and all other variables of the functions. Throws NotSeparable if an operation has no CUDA source.
std::string sourceOf(const std::map<std::string, Lepton::ParsedExpression>& functions);

}  // namespace fmm
