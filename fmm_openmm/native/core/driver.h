// CUDA driver calls that report errors by exceptions.
#pragma once
#include <stdexcept>
#include <string>

#include <cuda.h>

namespace fmm {

// An error that users see with the prefix FMMForce, the force that they made.
class Failure : public std::runtime_error {
public:
    explicit Failure(const std::string& reason) : std::runtime_error("FMMForce: " + reason) {}
};

// Throws Failure, with `action` and the driver's message, unless the result is CUDA_SUCCESS.
void check(CUresult result, const std::string& action);

// Numerically, the lowest priority of a stream is the largest number.
struct Priorities {
    int lowest, highest;
};
Priorities streamPriorities();

// Makes a stream of the highest priority, or one step below it if `background`. The far field is a
// chain of small kernels with the highest priority, the near field runs in the background, and both
// precede the large nonbonded kernel that runs concurrently.
CUstream makeStream(bool background = false, unsigned flags = CU_STREAM_NON_BLOCKING);

// Makes work that is queued on `waiting` from now on wait for all work queued on `other` so far;
// `event` is recorded for that purpose.
void makeWait(CUstream waiting, CUstream other, CUevent event);

}  // namespace fmm
