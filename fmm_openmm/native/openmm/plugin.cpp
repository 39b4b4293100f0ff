// The C interface of the plugin, which fmm_openmm/integration/plugin.py loads with ctypes.
#include <exception>

#include "coulomb_kernel.h"
#include "custom_nonbonded_force.h"
#include "nonbonded_force.h"
#include "openmm/KernelFactory.h"
#include "openmm/Platform.h"
#include "openmm/System.h"
#include "openmm/cuda/CudaKernelFactory.h"
#include "openmm/internal/ContextImpl.h"

using namespace OpenMM;

namespace {

// Contexts without a PythonForce, and so without an FMMForce, get OpenMM's own kernels.
class Factory : public KernelFactory {
public:
    KernelImpl* createKernelImpl(std::string name, const Platform& platform,
                                 ContextImpl& context) const override {
        if (name == CalcPythonForceKernel::Name())
            return new fmm::CoulombKernel(name, platform, context);
        const System& system = context.getSystem();
        for (int i = 0; i < system.getNumForces(); i++)
            if (dynamic_cast<const PythonForce*>(&system.getForce(i))) {
                if (name == CalcNonbondedForceKernel::Name())
                    return new fmm::NonbondedKernel(name, platform, context);
                return new fmm::CustomNonbondedKernel(name, platform, context);
            }
        return CudaKernelFactory().createKernelImpl(name, platform, context);
    }
};

}  // namespace

extern "C" {

// Take over the PythonForces of the CUDA platform, and the pairs of Contexts with an FMMForce.
void fmm_register(const fmm::Callbacks* callbacks) {
    fmm::python = *callbacks;
    Platform& platform = Platform::getPlatformByName("CUDA");
    auto* factory = new Factory();  // as long as the process lives
    platform.registerKernelFactory(CalcPythonForceKernel::Name(), factory);
    platform.registerKernelFactory(CalcNonbondedForceKernel::Name(), factory);
    platform.registerKernelFactory(CalcCustomNonbondedForceKernel::Name(), factory);
}

// Python ends; Contexts may live longer.
void fmm_leave() {
    fmm::python.close = fmm::python.close_pairs = nullptr;
}

// Hand an item over during a callback.
void fmm_deliver(fmm::Inbox* inbox, int kind, const char* data, int64_t size) {
    inbox->items[kind] = std::string(data, size);
}

// The potentials of a kernel's last evaluation; 0 if there are none of this size.
int fmm_potentials(fmm::CoulombKernel* kernel, void* data, int64_t bytes) {
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
