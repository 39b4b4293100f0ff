#include "side_stream.h"

#include <memory>

#include "../core/driver.h"
#include "openmm/cuda/CudaQueue.h"

using namespace OpenMM;

namespace fmm {

SideStream::SideStream(CudaContext& cuda, unsigned flags) : cuda(cuda) {
    try {
        stream = makeStream(false, flags);
        check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "making an event");
    } catch (...) {
        release();
        throw;
    }
}

SideStream::~SideStream() {
    if (entered) cuda.restoreDefaultQueue();
    cuStreamSynchronize(stream);
    release();
}

void SideStream::release() {
    if (stream) cuStreamDestroy(stream);
    if (event) cuEventDestroy(event);
}

void SideStream::mark() {
    makeWait(stream, cuda.getCurrentStream(), event);
}

void SideStream::enter() {
    cuda.setCurrentQueue(std::make_shared<CudaQueue>(stream));
    entered = true;
}

void SideStream::leave() {
    if (!entered) return;
    entered = false;
    cuda.restoreDefaultQueue();
    makeWait(cuda.getCurrentStream(), stream, event);
}

}  // namespace fmm
