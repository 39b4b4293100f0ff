// Who computes the pairs of a force.
#pragma once
#include <string>

#include "openmm/Force.h"
#include "openmm/internal/ContextImpl.h"
#include "python.h"
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

    // Ask, and if so make what computes them. Should that fail, ask again with the reason, and go
    // on without: false.
    template <class Make>
    bool serve(const OpenMM::Force& force, const Interaction& interaction,
               const std::string& obstacle, Make make) {
        if (!ask(force, interaction, obstacle)) return false;
        try {
            make();
            return true;
        } catch (const Interrupted&) {
            throw;
        } catch (const std::exception& error) {
            ask(force, interaction, error.what());
            return false;
        }
    }

    // Whether nothing else has OpenMM list all pairs of particles near each other,
    // once it was asked.
    bool isAlone() const { return companion.empty(); }

private:
    OpenMM::ContextImpl& context;
    bool asked = false;
    std::string companion;
};

}  // namespace fmm
