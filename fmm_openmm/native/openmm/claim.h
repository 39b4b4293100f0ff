// Who computes the pairs of a force.
#pragma once
#include <string>

#include "openmm/Force.h"
#include "openmm/internal/ContextImpl.h"
#include "site_list.h"

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

}  // namespace fmm
