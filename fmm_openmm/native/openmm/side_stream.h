// A stream on which OpenMM computes for a while in place of its own.
#pragma once
#include "openmm/cuda/CudaContext.h"

namespace fmm {

// A stream of the highest priority there is. Unless told otherwise it is in order with OpenMM's
// own, as its copies are: if an error leaves OpenMM on it, nothing overtakes them. Needs OpenMM's
// context to be current; what fails throws Failure.
class SideStream {
public:
    explicit SideStream(OpenMM::CudaContext& cuda, unsigned flags = CU_STREAM_DEFAULT);
    ~SideStream();
    SideStream(const SideStream&) = delete;

    // What OpenMM has queued so far comes before all that it will queue on this stream.
    void mark();

    // OpenMM works on this stream from now on.
    void enter();

    // OpenMM goes on where it did before, after what it queued on this stream; nothing if it does
    // not work on it.
    void leave();

    bool isEntered() const { return entered; }

private:
    void release();

    OpenMM::CudaContext& cuda;
    CUstream stream = nullptr;
    CUevent reached = nullptr;
    bool entered = false;
};

}  // namespace fmm
