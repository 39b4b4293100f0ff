// The decision whether the plugin computes the pairs of a force.
#pragma once
#include <string>

#include "openmm/Force.h"
#include "openmm/internal/ContextImpl.h"
#include "python.h"
#include "site_list.h"

namespace fmm {

// Asks Python whether the plugin computes the pairs of a force, on behalf of the kernels of both
// nonbonded forces, and tells Python when it no longer does.
class Claim {
public:
    Claim(OpenMM::ContextImpl& context) : context(context) {}
    ~Claim();

    // `obstacle` is the reason why the plugin cannot compute them, or empty.
    bool ask(const OpenMM::Force& force, const Interaction& interaction,
             const std::string& obstacle);

    // Ask, and if the answer is yes, call make(). If that fails, ask again with the reason as
    // obstacle and return false.
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

    // Whether no other force makes OpenMM build its list of all pairs of near particles. Known once
    // ask() was called.
    bool isAlone() const { return companion.empty(); }

private:
    OpenMM::ContextImpl& context;
    bool asked = false;
    std::string companion;
};

}  // namespace fmm
