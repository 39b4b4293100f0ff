// Helpers of kernels that replace OpenMM's own on the CUDA platform.
#pragma once
#include <memory>

#include "openmm/cuda/CudaContext.h"
#include "openmm/cuda/CudaKernelFactory.h"
#include "openmm/cuda/CudaPlatform.h"
#include "openmm/internal/ContextImpl.h"

namespace fmm {

// The CudaContext of the first device.
inline OpenMM::CudaContext& firstContext(OpenMM::ContextImpl& context) {
    return *static_cast<OpenMM::CudaPlatform::PlatformData*>(context.getPlatformData())
                ->contexts[0];
}

// Make OpenMM's own kernel, to which one of ours delegates.
template <class Kernel>
void makeDelegate(std::unique_ptr<Kernel>& delegate, Kernel& kernel, OpenMM::ContextImpl& context) {
    delegate.reset(static_cast<Kernel*>(OpenMM::CudaKernelFactory().createKernelImpl(
        kernel.getName(), kernel.getPlatform(), context)));
}

// Copies box vectors to the rows of a matrix.
inline void copyBox(const OpenMM::Vec3& a, const OpenMM::Vec3& b, const OpenMM::Vec3& c,
                    double* box) {
    for (int i = 0; i < 3; i++) {
        box[i] = a[i];
        box[3 + i] = b[i];
        box[6 + i] = c[i];
    }
}

// Copies the settings that updateParametersInContext does not change.
template <class Nonbonded>
void copyLimits(const Nonbonded& from, Nonbonded& to) {
    to.setNonbondedMethod(from.getNonbondedMethod());
    to.setCutoffDistance(from.getCutoffDistance());
    to.setUseSwitchingFunction(from.getUseSwitchingFunction());
    to.setSwitchingDistance(from.getSwitchingDistance());
}

}  // namespace fmm
