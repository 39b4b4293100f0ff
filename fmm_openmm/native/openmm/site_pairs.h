// Lennard-Jones pairs of sites in a Context, alongside OpenMM's other forces.
#pragma once
#include <memory>

#include "identities.h"
#include "openmm/Force.h"
#include "openmm/cuda/CudaContext.h"
#include "side_stream.h"
#include "site_list.h"

namespace fmm {

// The pairs of sites, and what OpenMM must know about them. Requires OpenMM's context to be
// current.
class SitePairs {
public:
    explicit SitePairs(OpenMM::ContextImpl& context);
    ~SitePairs();

    // Called once, when the Context is created. Throws before it changes anything in OpenMM, or an
    // error that OpenMM's own kernel would throw too.
    void start(const OpenMM::Force& force, const Interaction& interaction, bool alone);

    // Set the identities by which OpenMM decides which molecules it may exchange when it reorders
    // atoms.
    void setIdentities(const Identities& other);

    // Use another interaction. After an error this is retried at the next evaluation.
    void update(const Interaction& interaction);

    // Use other coefficients.
    void setTable(const Interaction& interaction);

    // Queue computing forces and energy, which are added to OpenMM's. Returns the energy of the
    // dispersion correction.
    double execute(bool forces, bool energy);

    double dispersion = 0;  // kJ/mol nm^3

private:
    class Begin;
    class End;

    bool hasManyPairs() const;
    bool hasBondedForces() const;
    void abandonPending();
    void delayReordering();

    OpenMM::CudaContext& cuda;
    Interaction sites;
    std::unique_ptr<SiteList> engine;  // null if there are no sites
    std::unique_ptr<SideStream> side;  // for OpenMM's other forces
    Identities* identities = nullptr;  // owned by OpenMM; null until set
    std::shared_ptr<int>
        delays;  // number of delays of OpenMM's reordering; null if it must not be delayed
};

}  // namespace fmm
