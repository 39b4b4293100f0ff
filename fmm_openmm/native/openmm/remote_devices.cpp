#include "remote_devices.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "../core/driver.h"
#include "openmm/OpenMMException.h"
#include "openmm/common/ContextSelector.h"

// CUDA 13 gives this name to a newer function, which drivers for CUDA 12 lack.
#undef cuEventElapsedTime
extern "C" CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end);

using namespace OpenMM;

namespace fmm {

// Evaluations from a change of the parts to the next measurement, at first and once the changes are
// small, and from a measurement until it is read.
static const int FIRST_INTERVAL = 16, LAST_INTERVAL = 256, DELAY = 8;

// ms between two events if OpenMM's device does not wait between them.
static const float NO_WAIT = 0.006f;

// Largest and smallest relative change of the parts of further devices.
static const double FIRST_STEP = 0.1, LAST_STEP = 0.005;

// Limits of the parts of all further devices together.
static const double LEAST = 0.02, MOST = 0.98;

class RemoteDevices::Start : public ComputeContext::ForcePreComputation {
public:
    explicit Start(std::weak_ptr<RemoteDevices> owner) : owner(owner) {}
    void computeForceAndEnergy(bool, bool, int) override {
        if (auto devices = owner.lock()) devices->begin();
    }
    std::weak_ptr<RemoteDevices> owner;
};

class RemoteDevices::Finish : public ComputeContext::ForcePostComputation {
public:
    explicit Finish(std::weak_ptr<RemoteDevices> owner) : owner(owner) {}
    double computeForceAndEnergy(bool forces, bool energy, int) override {
        if (auto devices = owner.lock()) devices->finish(forces, energy);
        return 0;
    }

private:
    std::weak_ptr<RemoteDevices> owner;
};

// The device of an index or UUID.
static CUdevice deviceOf(const std::string& name) {
    int number;
    check(cuDeviceGetCount(&number), "asking for devices");
    for (int i = 0; i < number; i++) {
        CUdevice device;
        check(cuDeviceGet(&device, i), "asking for a device");
        if (name == std::to_string(i) || name == uuidOf(device)) return device;
    }
    throw OpenMMException("there is no device " + name + " among the " + std::to_string(number) +
                          " of this computer");
}

RemoteDevices::RemoteDevices(CudaContext& cuda) : cuda(cuda), step(FIRST_STEP) {}

std::shared_ptr<RemoteDevices> RemoteDevices::make(CudaContext& cuda, const std::string& names,
                                                   const std::string& collector) {
    if (cuda.getPlatformData().contexts.size() > 1)
        throw OpenMMException("the Context itself is on several devices");
    std::shared_ptr<RemoteDevices> made(new RemoteDevices(cuda));
    if (names == "auto") {
        const auto peers = peersOf(cuda.getDevice());
        if (peers.empty()) throw OpenMMException("no other device has access to its memory");
        made->add(peers.front(), collector);
    } else {
        bool isOwnNamed = false;
        std::istringstream text(names);
        for (std::string name; std::getline(text, name, '\0');) {
            const CUdevice device = deviceOf(name);
            if (device == cuda.getDevice())
                isOwnNamed = true;
            else
                made->add(device, collector);
        }
        if (!isOwnNamed)
            throw OpenMMException("the Context is on device " +
                                  std::to_string(cuda.getDeviceIndex()) +
                                  ", which is not among them");
    }
    if (made->devices.empty()) return nullptr;
    made->fractions.assign(made->number(), 1.0 / (made->number() + 1));
    check(cuEventCreate(&made->ready, CU_EVENT_DISABLE_TIMING), "making an event");
    for (int i = 0; i <= made->number(); i++) {
        made->waited.push_back(nullptr);
        check(cuEventCreate(&made->waited.back(), CU_EVENT_DEFAULT), "making an event");
    }
    cuda.addPreComputation(new Start(made));
    return made;
}

void RemoteDevices::add(CUdevice device, const std::string& collector) {
    if (modelOf(device) != modelOf(cuda.getDevice()))
        throw OpenMMException("device " + uuidOf(device) + " is a " + modelOf(device) +
                              ", the Context's a " + modelOf(cuda.getDevice()));
    devices.emplace_back(new RemoteDevice(cuda, device, collector));
    const std::string through =
        devices.back()->isPeer() ? "peer access" : "the memory of the host, which is slow";
    python.note(
        ("device " + uuidOf(device) + " shares the work; data pass through " + through).c_str());
}

RemoteDevices::~RemoteDevices() {
    ContextSelector selector(cuda);
    devices.clear();
    if (ready) cuEventDestroy(ready);
    for (CUevent event : waited)
        if (event) cuEventDestroy(event);
}

std::shared_ptr<RemoteDevices> RemoteDevices::in(CudaContext& cuda) {
    for (auto* each : cuda.getPreComputations())
        if (auto* start = dynamic_cast<Start*>(each))
            if (auto found = start->owner.lock()) return found;
    return nullptr;
}

void RemoteDevices::finishEvaluations() {
    cuda.addPostComputation(new Finish(shared_from_this()));
}

Part RemoteDevices::part(int device) const {
    const auto end = [&](int before) {
        return 1 - std::accumulate(fractions.begin() + before, fractions.end(), 0.0);
    };
    return {device == 0 ? 0 : end(device - 1), end(device)};
}

void RemoteDevices::begin() {
    isSent = false;
    check(cuEventRecord(ready, cuda.getCurrentStream()), "recording an event");
}

void RemoteDevices::send() {
    if (isSent) return;
    isSent = true;
    for (auto& device : devices) device->send(ready);
}

void RemoteDevices::finish(bool forces, bool energy) {
    if (!isSent) return;
    isSent = false;
    for (auto& device : devices) device->sendBack(forces, energy);
    const int interval = step > LAST_STEP ? FIRST_INTERVAL : LAST_INTERVAL;
    const bool measures = ++evaluations == interval;
    if (measures) recordTime(0);
    for (int i = 0; i < number(); i++) {
        devices[i]->await();
        if (measures) recordTime(i + 1);
    }
    for (auto& device : devices) device->add(forces, energy);
    if (evaluations == interval + DELAY) balance();
}

void RemoteDevices::recordTime(int i) {
    check(cuEventRecord(waited[i], cuda.getCurrentStream()), "recording an event");
}

// The last of the further devices for which OpenMM's device has waited; -1 if for none.
int RemoteDevices::latest() const {
    int found = -1;
    check(cuEventSynchronize(waited.back()), "computing");
    for (int i = 0; i < number(); i++) {
        float wait;
        check(cuEventElapsedTime(&wait, waited[i], waited[i + 1]), "measuring time");
        if (wait > NO_WAIT) found = i;
    }
    return found;
}

// OpenMM's device should wait for the others as little as possible without being the last itself.
// Deterministic forces need parts that do not depend on timing.
void RemoteDevices::balance() {
    evaluations = 0;
    if (cuda.getPlatformData().deterministicForces) return;
    const int late = latest(), wanted = late < 0 ? 1 : -1;
    if (direction != 0)
        step =
            wanted == direction ? std::min(1.5 * step, FIRST_STEP) : std::max(step / 2, LAST_STEP);
    direction = wanted;
    for (int i = 0; i < number(); i++)
        if (late < 0 || late == i)
            fractions[i] = std::max(fractions[i] * (1 + wanted * step), LEAST / number());
    const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
    for (double& fraction : fractions) fraction *= std::min(1.0, MOST / sum);
    changes++;
}

void RemoteDevices::synchronise() const {
    for (auto& device : devices) device->synchronise();
}

}  // namespace fmm
