#include "claim.h"

#include <vector>

#include "force_survey.h"
#include "openmm/PythonForce.h"
#include "openmm/System.h"
#include "cuda_platform.h"

using namespace OpenMM;

namespace fmm {

Claim::~Claim() {
    if (asked && python.close_pairs) python.close_pairs(this);
}

bool Claim::ask(const Force& force, const Interaction& interaction, const std::string& obstacle) {
    const System& system = context.getSystem();
    std::vector<const void*> pickled;
    std::vector<int64_t> sizes;
    for (int i = 0; i < system.getNumForces(); i++)
        if (auto* other = dynamic_cast<const PythonForce*>(&system.getForce(i))) {
            pickled.push_back(other->getPickledFunction().data());
            sizes.push_back(other->getPickledFunction().size());
        }
    if (pickled.empty()) return false;
    companion = forceWithList(context, force);
    const std::string name = force.getName();
    const Pairs pairs = {&context.getOwner(),
                         pickled.data(),
                         sizes.data(),
                         (int)pickled.size(),
                         name.c_str(),
                         system.getNumParticles(),
                         (int)interaction.slot.size(),
                         interaction.cutoff > 0,
                         obstacle.c_str(),
                         companion.c_str()};
    Inbox inbox;
    asked = true;
    python.claim_pairs(this, &pairs, &inbox);
    inbox.check();
    if (inbox.items.count(FAILURE)) throw OpenMMException(inbox.items[FAILURE]);
    return inbox.items.count(CLAIM);
}

}  // namespace fmm
