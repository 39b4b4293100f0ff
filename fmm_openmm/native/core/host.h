// The owner of the CUDA context in which an executor works.
#pragma once
#include <string>

#include <cuda.h>

namespace fmm {

class Host {
public:
    virtual ~Host() = default;

    // Compile a kernel source to a module. Called by several threads at once, on which no CUDA
    // context is current.
    virtual CUmodule compile(const std::string& source) = 0;

    // Tell the user that kernels are being compiled, which takes a while. Called by the thread that
    // waits for them.
    virtual void reportCompilation() {}

    // Where its memory is, at the end of messages; empty if that need not be said.
    virtual std::string place() const { return ""; }

    // Find the address of an array that the host owns; false if it is not allocated yet.
    virtual bool find(const std::string& array, CUdeviceptr& address) = 0;
};

}  // namespace fmm
