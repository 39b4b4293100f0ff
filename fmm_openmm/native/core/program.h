// A deserialised program: buffers, kernels and steps. fmm_openmm/backends/cuda/serial.py defines
// the format and its meaning.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "format.h"

namespace fmm {

struct Kernel {
    std::string name;
    int source;
    int shared;
    bool waits;  // itself for the kernel before it
};

struct Buffer {
    std::string name;
    BufferKind kind;
    int64_t bytes;
    bool kept;         // whether Executor::save copies it
    std::string data;  // initial contents, or empty
};

struct Argument {
    int buffer;      // -1: a scalar
    int64_t offset;  // bytes
    std::string scalar;
};

struct Step {
    StepKind kind;
    int phase, stream;
    int kernel, grid[3], block;
    bool cooperative;
    std::vector<Argument> arguments;
    int buffer;
    int event;
};

struct Program {
    std::vector<std::string> sources;
    std::vector<Kernel> kernels;
    std::vector<Buffer> buffers;
    std::vector<std::string> phases;
    int streams, events;
    std::vector<Step> steps;

    explicit Program(const std::string& bytes);

    bool has(const std::string& buffer) const;
    int buffer(const std::string& name) const;  // throws if there is none
    int phase(const std::string& name) const;   // -1: no step has this phase
};

}  // namespace fmm
