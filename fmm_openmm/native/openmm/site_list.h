// Lennard-Jones interactions of some of the particles, the sites, in OpenMM's CUDA context: the
// host side of kernels/pairs/lennard_jones_list.cu and lennard_jones_pairs.cu.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../core/executor.h"
#include "cuda_host.h"
#include "remote_devices.h"

namespace fmm {

// The sites and their interaction.
struct Interaction {
    bool periodic = false;
    // nm; 0 if there is none
    double cutoff = 0, switching = 0;
    int types = 0;
    // of every site: its index in OpenMM's arrays, its type
    std::vector<int> slot, type;
    // coefficients of 1/r^12 and -1/r^6, or of f and -g, (types, types)
    std::vector<double> repulsion, attraction;
    // source of f and g (pair_energy.h); empty for 1/r^12 and 1/r^6
    std::string functions;
    // excluded partners of site s: partner[start[s]] to partner[start[s + 1] - 1], ascending
    std::vector<int> start, partner;

    // Set periodicity, cutoff and switching distance from a force.
    template <class Force>
    void setDistances(const Force& force) {
        const auto method = force.getNonbondedMethod();
        periodic = method == Force::CutoffPeriodic;
        cutoff = method == Force::NoCutoff ? 0 : force.getCutoffDistance();
        switching =
            cutoff > 0 && force.getUseSwitchingFunction() ? force.getSwitchingDistance() : 0;
    }

    // Make sites of the particles that have a type, not -1. Excluded pairs are given by particles.
    void setSites(const std::vector<int>& typeOfParticle,
                  const std::vector<std::pair<int, int>>& excluded);
};

// Requires OpenMM's context to be current. Throws like Executor.
class SiteList {
public:
    SiteList(OpenMM::CudaContext& cuda, const Interaction& interaction);
    ~SiteList();
    SiteList(const SiteList&) = delete;

    // Use another interaction. Takes as long as constructing a new object if the sites differ.
    // After an error, prepare() tries again.
    void update(const Interaction& interaction);

    // Use other coefficients.
    void setTable(const Interaction& interaction);

    // Whether kernels have the highest priority instead of that of OpenMM's current stream.
    void setUrgent(bool value) { urgent = value; }

    // Queue on OpenMM's current stream fetching the coordinates of sites, and sorting them if lists
    // are outdated.
    void prepare();

    // Queue on OpenMM's current stream computing forces and energy, which are added to OpenMM's.
    // Call prepare() first.
    void compute(bool forces, bool energy);

    // Whether a site was recently found beyond the images adjacent to the periodic cell.
    bool hasStrayed() const { return strayed; }

private:
    // What each device has.
    struct Replica {
        RemoteDevice* device = nullptr;  // null for OpenMM's own
        State* state = nullptr;          // pinned; the device's last report
        CUevent reported = nullptr;
        std::unique_ptr<Executor> executor;  // null after an error
    };

    template <class Act>
    void onEachDevice(Act act);
    void runOnEachDevice(const std::string& phase);
    void addReplica(RemoteDevice* device);
    void findRemotes();
    void release();
    void discardPrograms();
    bool isBuilt() const;
    void build();
    void upload();
    void uploadTable();
    void readBox();
    void uploadCell();
    void uploadParts();
    void ensureCapacity();
    void grow();
    void report();
    void requestReports();
    void readReports();
    void adaptBuffer();

    OpenMM::CudaContext& cuda;
    CudaHost host;
    Interaction interaction;
    double buffer;  // nm; the list is rebuilt when a site has moved by half of it
    bool urgent = false;
    double box[9] = {};
    double builtFor[9] = {};         // the box for which the program was built
    int entries = 0, masked = 0;     // maximum lengths of lists so far
    bool capacityUnverified = true;  // whether the capacity of lists has not been tested yet
    bool strayed = false;
    bool tooLong = false;  // whether a list exceeded its capacity
    int evaluations = 0, forcedBuilds = 0, builds = 0;
    int partsVersion = 0;                    // of the parts of the devices in use
    std::shared_ptr<RemoteDevices> remotes;  // further devices; null if there are none
    std::vector<Replica> replicas;           // the first is OpenMM's device
};

}  // namespace fmm
