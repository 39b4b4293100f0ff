#include "driver.h"

#include <algorithm>

namespace fmm {

void check(CUresult result, const std::string& action) {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    throw Failure(action + ": " + (text ? text : "CUDA error " + std::to_string(result)));
}

Priorities streamPriorities() {
    Priorities found;
    check(cuCtxGetStreamPriorityRange(&found.lowest, &found.highest), "asking for priorities");
    return found;
}

CUstream makeStream(bool background, unsigned flags) {
    const auto [lowest, highest] = streamPriorities();
    CUstream stream;
    check(cuStreamCreateWithPriority(&stream, flags, std::min(lowest, highest + background)),
          "making a stream");
    return stream;
}

void makeWait(CUstream waiting, CUstream other, CUevent event) {
    check(cuEventRecord(event, other), "recording an event");
    check(cuStreamWaitEvent(waiting, event, 0), "waiting for an event");
}

}  // namespace fmm
