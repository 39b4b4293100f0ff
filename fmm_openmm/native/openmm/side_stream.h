// A stream that temporarily replaces OpenMM's own.
#pragma once
#include "openmm/cuda/CudaContext.h"

namespace fmm {

// A stream of the highest priority. With the default flags it synchronises with OpenMM's own
// stream, the legacy default stream, so that if an error leaves OpenMM on this stream, its copies
// are still in order. Requires OpenMM's context to be current; errors throw Failure.
class SideStream {
public:
    explicit SideStream(OpenMM::CudaContext& cuda, unsigned flags = CU_STREAM_DEFAULT);
    ~SideStream();
    SideStream(const SideStream&) = delete;

    // Make work that will be queued on this stream wait for everything that OpenMM has queued so
    // far.
    void mark();

    // Make OpenMM queue its work on this stream.
    void enter();

    // Return OpenMM to its own stream, which waits for the work queued on this one. No effect if
    // OpenMM does not use this stream.
    void leave();

    bool isEntered() const { return entered; }

private:
    void release();

    OpenMM::CudaContext& cuda;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    bool entered = false;
};

}  // namespace fmm
