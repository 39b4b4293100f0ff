// The Lennard-Jones interaction of some particles, the sites, inside OpenMM's CUDA context: what is
// beside the kernels of kernels/pairs/lennard_jones_list.cu and
// kernels/pairs/lennard_jones_pairs.cu.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../core/executor.h"
#include "cuda_host.h"

namespace fmm {

// Which sites interact, and how.
struct Interaction {
    bool periodic = false;
    // nm; 0: none
    double cutoff = 0, switching = 0;
    int types = 0;
    // of every site: its place in OpenMM's arrays, its type
    std::vector<int> slot, type;
    // of 1/r^12 and -1/r^6, or of f and -g, (types, types)
    std::vector<double> repulsion, attraction;
    // source of f and g (pair_energy.h), empty: 1/r^12 and 1/r^6
    std::string functions;
    // excluded partners of site s: partner[start[s]] onwards, ascending
    std::vector<int> start, partner;

    // Periodicity, cutoff and switching distance of a force.
    template <class Force>
    void setDistances(const Force& force) {
        const auto method = force.getNonbondedMethod();
        periodic = method == Force::CutoffPeriodic;
        cutoff = method == Force::NoCutoff ? 0 : force.getCutoffDistance();
        switching =
            cutoff > 0 && force.getUseSwitchingFunction() ? force.getSwitchingDistance() : 0;
    }

    // The particles as sites that have a type, -1: none. Excluded pairs are of particles.
    void setSites(const std::vector<int>& typeOfParticle,
                  const std::vector<std::pair<int, int>>& excluded);
};

// Needs OpenMM's context to be current. What fails throws, as an Executor does.
class SiteList {
public:
    SiteList(OpenMM::CudaContext& cuda, const Interaction& interaction);
    ~SiteList();
    SiteList(const SiteList&) = delete;

    // Go on with other parameters; other sites take as long as a new object. What fails is tried
    // again by prepare().
    void update(const Interaction& interaction);

    // The same if only coefficients differ.
    void setTable(const Interaction& interaction);

    // Queue on OpenMM's current stream what the pairs need: where sites are,
    // and whose lists are outdated.
    void prepare();

    // Queue adding forces and energy to OpenMM's, on its current stream, after prepare().
    void compute(bool forces, bool energy);

    // Whether a site was beyond the cells beside the periodic one not long ago.
    bool hasStrayed() const { return strayed; }

private:
    void release();
    void build();
    void upload();
    void uploadTable();
    void readBox();
    void placeSites();
    void makeRoom(CUstream stream);
    void grow();
    void report(CUstream stream);
    void adaptBuffer();

    OpenMM::CudaContext& cuda;
    CudaHost host;
    Interaction interaction;
    double buffer;  // nm: sites may move by half of it before the list is made anew
    double box[9] = {};
    double builtFor[9] = {};      // the box that the program has room for
    int entries = 0, masked = 0;  // longest lists so far
    bool roomUnknown = true;      // whether the program's room for lists has not been tried
    bool strayed = false;
    int evaluations = 0, forced = 0, builds = 0;
    State* state = nullptr;  // pinned: what the device reported last
    CUevent reported = nullptr;
    std::unique_ptr<Executor> executor;  // none if it could not be made
};

}  // namespace fmm
