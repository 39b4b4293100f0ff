// All further devices of a Context, and how the work is shared among them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "remote_device.h"

namespace fmm {

// A part of the work, from 0 to 1.
struct Part {
    double first, end;
};

// Requires OpenMM's context to be current. Throws Failure, or OpenMMException if a device cannot be
// used.
class RemoteDevices : public std::enable_shared_from_this<RemoteDevices> {
public:
    // `names` are indices or UUIDs separated by 0, with that of the Context's own device among
    // them; or "auto" for one further device of the same model. The devices take part in the
    // Context's evaluations as long as the result exists; finishEvaluations() follows when all else
    // has been added to the Context.
    static std::shared_ptr<RemoteDevices> make(OpenMM::CudaContext& cuda, const std::string& names,
                                               const std::string& collector);
    ~RemoteDevices();
    RemoteDevices(const RemoteDevices&) = delete;

    // Those of a Context; null if it has none.
    static std::shared_ptr<RemoteDevices> in(OpenMM::CudaContext& cuda);

    void finishEvaluations();

    int number() const { return devices.size(); }
    RemoteDevice& operator[](int i) const { return *devices[i]; }

    // Queue copying positions to the devices, once in an evaluation.
    void send();

    // The part of a device: 0 is OpenMM's, i + 1 further device i. They change with version().
    Part part(int device) const;
    int version() const { return changes; }

    void synchronise() const;

private:
    class Start;
    class Finish;

    explicit RemoteDevices(OpenMM::CudaContext& cuda);
    void add(CUdevice device, const std::string& collector);
    void begin();
    void finish(bool forces, bool energy);
    void recordTime(int i);
    int latest() const;
    void balance();

    OpenMM::CudaContext& cuda;
    std::vector<std::unique_ptr<RemoteDevice>> devices;
    std::vector<double> fractions;  // the part of each further device
    double step;                    // by which they change, as a fraction of them
    int direction = 0, changes = 0;
    int evaluations = 0;          // since the last change
    std::vector<CUevent> waited;  // before OpenMM's device waits, and after each further device
    CUevent ready = nullptr;
    bool isSent = false;
};

}  // namespace fmm
