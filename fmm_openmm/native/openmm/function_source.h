// CUDA source for functions of the distance.
#pragma once
#include <map>
#include <string>

#include "lepton/ParsedExpression.h"

namespace fmm {

// Definitions of some real variables, on one line, in which what comes twice is computed once. They
// make use of `r`, of its inverse and its square under these names, of reciprocal(), and of
// whatever other variables the functions have. Throws NotSeparable if there is no
// source for some operation.
std::string sourceOf(const std::map<std::string, Lepton::ParsedExpression>& functions);

}  // namespace fmm
