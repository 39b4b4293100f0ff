// The C interface of the plugin, which fmm_openmm/integration/native/plugin.py loads with ctypes.
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

// Contexts without a PythonForce, and therefore without an FMMForce, get OpenMM's own kernels.
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

// Replace the kernels of PythonForces on the CUDA platform, and those of nonbonded forces in
// Contexts with a PythonForce.
void fmm_register(const fmm::Callbacks* callbacks) {
    fmm::python = *callbacks;
    Platform& platform = Platform::getPlatformByName("CUDA");
    auto* factory = new Factory();  // lives as long as the process
    platform.registerKernelFactory(CalcPythonForceKernel::Name(), factory);
    platform.registerKernelFactory(CalcNonbondedForceKernel::Name(), factory);
    platform.registerKernelFactory(CalcCustomNonbondedForceKernel::Name(), factory);
}

// Called when Python exits; Contexts may outlive it.
void fmm_leave() {
    fmm::python.close = fmm::python.close_pairs = nullptr;
}

// Deliver an item during a callback.
void fmm_deliver(fmm::Inbox* inbox, int kind, const char* data, int64_t size) {
    inbox->items[kind] = std::string(data, size);
}

// Copy the potentials of a kernel's last evaluation; 0 if there are none of this size.
int fmm_potentials(fmm::CoulombKernel* kernel, void* data, int64_t bytes) {
    try {
        return kernel->readPotentials(data, bytes);
    } catch (const std::exception&) {
        return 0;
    }
}

// Called when a force definition has changed: kernels request their charges at the next evaluation.
void fmm_changed() {
    __sync_fetch_and_add(&fmm::revision, 1);
}
}
