// Pairs of sites beside OpenMM's other forces.
#pragma once
#include <memory>

#include "identities.h"
#include "openmm/Force.h"
#include "openmm/cuda/CudaContext.h"
#include "side_stream.h"
#include "site_list.h"

namespace fmm {

// Pairs of sites in a Context, and what OpenMM has to know of them.
// They need OpenMM's context to be current.
class SitePairs {
public:
    explicit SitePairs(OpenMM::ContextImpl& context);
    ~SitePairs();

    // Once, when the Context is made. What fails throws before OpenMM knows of anything, or as
    // OpenMM's own kernel would.
    void start(const OpenMM::Force& force, const Interaction& interaction, bool alone);

    // Which particles OpenMM may exchange when it reorders atoms.
    void setIdentities(const Identities& other);

    // Go on with others; what fails is tried again at the next evaluation.
    void update(const Interaction& interaction);

    // The same if only coefficients differ.
    void setTable(const Interaction& interaction);

    // Queue adding forces and energy to OpenMM's. Returns the energy of the dispersion correction.
    double execute(bool forces, bool energy);

    double dispersion = 0;  // kJ/mol nm^3

private:
    class Begin;
    class End;

    bool runsBeside(bool energy);
    void discard();
    void delayReordering();

    OpenMM::CudaContext& cuda;
    Interaction sites;
    std::unique_ptr<SiteList> engine;  // none without sites
    std::unique_ptr<SideStream> side;  // of OpenMM's other forces
    Identities* identities = nullptr;  // OpenMM's, once it has been told of them
    std::shared_ptr<int> delays;       // of OpenMM's reordering, none if it may not wait
};

}  // namespace fmm
