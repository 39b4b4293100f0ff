// OpenMM's CUDA context as the host of executors, and its description for Python.
#pragma once
#include <string>
#include <vector>

#include "../core/host.h"
#include "openmm/cuda/CudaContext.h"
#include "python.h"

namespace fmm {

class CudaHost : public Host {
public:
    explicit CudaHost(OpenMM::CudaContext& context) : context(context) {}
    CUmodule compile(const std::string& source) override;
    void reportCompilation() override;
    bool find(const std::string& array, CUdeviceptr& address) override;

protected:
    // Compiles a source for the device and loads it in the current context.
    CUmodule load(const std::string& source) const;

private:
    OpenMM::CudaContext& context;
};

std::string modelOf(CUdevice device);

// The UUID as nvidia-smi prints it.
std::string uuidOf(CUdevice device);

// Other devices of the same model to whose memory a device has access.
std::vector<CUdevice> peersOf(CUdevice device);

// Properties of a Context and of its first device, for Python.
struct DevicePlace : Place {
    explicit DevicePlace(OpenMM::CudaContext& cuda);
    DevicePlace(const DevicePlace&) = delete;

private:
    const std::string name;
};

}  // namespace fmm
