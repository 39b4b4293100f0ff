// What kernels that take the place of OpenMM's own ask of its CUDA platform.
#pragma once
#include <memory>

#include "openmm/cuda/CudaContext.h"
#include "openmm/cuda/CudaKernelFactory.h"
#include "openmm/cuda/CudaPlatform.h"
#include "openmm/internal/ContextImpl.h"

namespace fmm {

// The context of the first device.
inline OpenMM::CudaContext& firstOf(OpenMM::ContextImpl& context) {
    return *static_cast<OpenMM::CudaPlatform::PlatformData*>(context.getPlatformData())
                ->contexts[0];
}

// OpenMM's own kernel, to do the work of one of ours.
template <class Kernel>
void makeOwn(std::unique_ptr<Kernel>& delegate, Kernel& kernel, OpenMM::ContextImpl& context) {
    delegate.reset(static_cast<Kernel*>(OpenMM::CudaKernelFactory().createKernelImpl(
        kernel.getName(), kernel.getPlatform(), context)));
}

// Vectors in rows.
inline void copyBox(const OpenMM::Vec3& a, const OpenMM::Vec3& b, const OpenMM::Vec3& c,
                    double* box) {
    for (int i = 0; i < 3; i++) {
        box[i] = a[i];
        box[3 + i] = b[i];
        box[6 + i] = c[i];
    }
}

// What updateParametersInContext leaves as it was when the Context was made.
template <class Nonbonded>
void copyLimits(const Nonbonded& from, Nonbonded& to) {
    to.setNonbondedMethod(from.getNonbondedMethod());
    to.setCutoffDistance(from.getCutoffDistance());
    to.setUseSwitchingFunction(from.getUseSwitchingFunction());
    to.setSwitchingDistance(from.getSwitchingDistance());
}

}  // namespace fmm
