// The C interface of the plugin, which fmm_openmm/integration/plugin.py loads with ctypes.
#include <exception>

#include "kernel.h"
#include "openmm/KernelFactory.h"
#include "openmm/Platform.h"

using namespace OpenMM;

namespace {

class Factory : public KernelFactory {
public:
    KernelImpl* createKernelImpl(std::string name, const Platform& platform, ContextImpl& context) const override {
        return new fmm::NativeKernel(name, platform, context);
    }
};

}  // namespace

extern "C" {

// Take over the PythonForces of the CUDA platform.
void fmm_register(const fmm::Callbacks* callbacks) {
    fmm::python = *callbacks;
    Platform::getPlatformByName("CUDA").registerKernelFactory(CalcPythonForceKernel::Name(), new Factory());
}

// Python ends; Contexts may live longer.
void fmm_leave() {
    fmm::python.close = nullptr;
}

// Hand an item over during a callback.
void fmm_deliver(fmm::Inbox* inbox, int kind, const char* data, int64_t size) {
    inbox->items[kind] = std::string(data, size);
}

// The potentials of a kernel's last evaluation; 0 if there are none of this size.
int fmm_potentials(fmm::NativeKernel* kernel, void* data, int64_t bytes) {
    try {
        return kernel->readPotentials(data, bytes);
    } catch (const std::exception&) {
        return 0;
    }
}

// A definition has changed: kernels ask for their charges at the next evaluation.
void fmm_changed() {
    __sync_fetch_and_add(&fmm::revision, 1);
}

}
