// Calls of the CUDA driver that say what failed.
#pragma once
#include <stdexcept>
#include <string>

#include <cuda.h>

namespace fmm {

// What cannot be done; users read it under the name of the force they made.
class Failure : public std::runtime_error {
public:
    explicit Failure(const std::string& reason) : std::runtime_error("FMMForce: " + reason) {}
};

void check(CUresult result, const std::string& doing);

// Of high priority: the far field is a chain of small kernels, the nonbonded kernel beside it is
// one large. The near field comes between, one step below the highest.
CUstream makeStream(bool background = false, unsigned flags = CU_STREAM_NON_BLOCKING);

// What is queued on a stream from now on waits for what has been queued on another; `reached` is
// used for that.
void letWait(CUstream later, CUstream earlier, CUevent reached);

}  // namespace fmm
