// A serialised program: buffers, kernels and steps. fmm_openmm/backends/cuda/serial.py defines the
// format and its meaning.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "openmm/OpenMMException.h"

namespace fmm {

struct Kernel {
    std::string name;
    int source;
    int shared;
};

struct Buffer {
    std::string name;
    int64_t bytes;     // 0: OpenMM's
    bool shaped;       // depends on the shape of the cell, and on nothing else that changes
    std::string data;  // initial contents, or empty
};

struct Argument {
    int buffer;      // -1: a scalar
    int64_t offset;  // bytes
    std::string scalar;
};

struct Step {
    enum Kind { LAUNCH, MEMSET, RECORD, WAIT };
    enum Phase {
        EVALUATE,
        EXPORT,
        SETUP,
        AHEAD,
        GATHER,
        NOTHING,
        LIST,
        FORCES,
        ENERGY,
        BOTH,
        SEARCH
    };
    int kind, phase, stream;
    int kernel, grid[3], block;
    bool cooperative;
    std::vector<Argument> arguments;
    int buffer;
    int event;
};

struct Program {
    // the stream of lower priority, as in fmm_openmm/backends/cuda/program.py
    static constexpr int BACKGROUND = 1;
    std::vector<std::string> sources;
    std::vector<Kernel> kernels;
    std::vector<Buffer> buffers;
    int streams, events;
    std::vector<Step> steps;

    explicit Program(const std::string& bytes);
    int buffer(const std::string& name) const;
    bool has(const std::string& buffer) const;

private:
    const char* at;
    const char* end;
    int64_t integer();
    std::string block();
};

inline int64_t Program::integer() {
    int64_t value;
    if (end - at < 8) throw OpenMM::OpenMMException("FMMForce: a program ends too early");
    std::memcpy(&value, at, 8);
    at += 8;
    return value;
}

inline std::string Program::block() {
    const int64_t size = integer();
    if (size < 0 || end - at < size)
        throw OpenMM::OpenMMException("FMMForce: a program ends too early");
    at += size;
    return std::string(at - size, size);
}

inline Program::Program(const std::string& bytes)
    : at(bytes.data()), end(bytes.data() + bytes.size()) {
    static const std::string magic("FMMprog\0", 8);
    if (bytes.compare(0, 8, magic) != 0) throw OpenMM::OpenMMException("FMMForce: not a program");
    at += 8;
    if (integer() != 8)
        throw OpenMM::OpenMMException(
            "FMMForce: the plugin and the package are of different versions");
    sources.resize(integer());
    for (auto& source : sources) {
        block();  // the file's name, which the source tells the compiler
        source = block();
    }
    kernels.resize(integer());
    for (auto& kernel : kernels) {
        kernel.name = block();
        kernel.source = integer();
        kernel.shared = integer();
    }
    buffers.resize(integer());
    for (auto& buffer : buffers) {
        buffer.name = block();
        buffer.bytes = integer();
        buffer.shaped = integer();
        buffer.data = block();
    }
    streams = integer();
    events = integer();
    steps.resize(integer());
    for (auto& step : steps) {
        step.kind = integer();
        step.phase = integer();
        step.stream = integer();
        switch (step.kind) {
            case Step::LAUNCH:
                step.kernel = integer();
                for (int& blocks : step.grid) blocks = integer();
                step.block = integer();
                step.cooperative = integer();
                step.arguments.resize(integer());
                for (auto& argument : step.arguments) {
                    argument.buffer = integer();
                    if (argument.buffer < 0)
                        argument.scalar = block();
                    else
                        argument.offset = integer();
                }
                break;
            case Step::MEMSET:
                step.buffer = integer();
                break;
            default:
                step.event = integer();
        }
    }
}

inline bool Program::has(const std::string& buffer) const {
    for (const auto& each : buffers)
        if (each.name == buffer) return true;
    return false;
}

inline int Program::buffer(const std::string& name) const {
    for (int i = 0; i < (int)buffers.size(); i++)
        if (buffers[i].name == name) return i;
    throw OpenMM::OpenMMException("FMMForce: a program lacks the buffer " + name);
}

}  // namespace fmm
