// What an executor asks of whatever owns the CUDA context that it works in.
#pragma once
#include <string>

#include <cuda.h>

namespace fmm {

class Host {
public:
    virtual ~Host() = default;

    // The module of a kernel source. Several threads ask at once, to which no CUDA context is
    // current.
    virtual CUmodule compile(const std::string& source) = 0;

    // Tells the address of an array that is not the executor's; false if it is not there yet.
    virtual bool find(const std::string& array, CUdeviceptr& address) = 0;
};

}  // namespace fmm
