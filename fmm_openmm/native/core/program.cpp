#include "program.h"

#include <cstring>

#include "driver.h"

namespace fmm {

namespace {

class Reader {
public:
    Reader(const char* begin, const char* end) : at(begin), end(end) {}

    int64_t integer() {
        int64_t value;
        std::memcpy(&value, take(sizeof(value)), sizeof(value));
        return value;
    }

    std::string block() {
        const int64_t size = integer();
        return std::string(take(size), size);
    }

private:
    const char* take(int64_t size) {
        if (size < 0 || end - at < size) throw Failure("a program ends too early");
        at += size;
        return at - size;
    }

    const char *at, *end;
};

void readLaunch(Reader& read, Step& step) {
    step.kernel = read.integer();
    for (int& blocks : step.grid) blocks = read.integer();
    step.block = read.integer();
    step.cooperative = read.integer();
    step.arguments.resize(read.integer());
    for (auto& argument : step.arguments) {
        argument.buffer = read.integer();
        if (argument.buffer < 0)
            argument.scalar = read.block();
        else
            argument.offset = read.integer();
    }
}

}  // namespace

Program::Program(const std::string& bytes) {
    if (bytes.compare(0, sizeof(MAGIC), MAGIC, sizeof(MAGIC)) != 0) throw Failure("not a program");
    Reader read(bytes.data() + sizeof(MAGIC), bytes.data() + bytes.size());
    if (read.integer() != VERSION)
        throw Failure("the plugin and the package are of different versions");
    sources.resize(read.integer());
    for (auto& source : sources) {
        read.block();  // the file's name, which the source contains in #line directives
        source = read.block();
    }
    kernels.resize(read.integer());
    for (auto& kernel : kernels) {
        kernel.name = read.block();
        kernel.source = read.integer();
        kernel.shared = read.integer();
        kernel.waits = read.integer();
    }
    buffers.resize(read.integer());
    for (auto& buffer : buffers) {
        buffer.name = read.block();
        buffer.kind = BufferKind(read.integer());
        buffer.bytes = read.integer();
        buffer.kept = read.integer();
        buffer.data = read.block();
    }
    phases.resize(read.integer());
    for (auto& phase : phases) phase = read.block();
    streams = read.integer();
    events = read.integer();
    steps.resize(read.integer());
    for (auto& step : steps) {
        step.kind = StepKind(read.integer());
        step.phase = read.integer();
        step.stream = read.integer();
        step.cooperative = false;
        if (step.kind == LAUNCH)
            readLaunch(read, step);
        else if (step.kind == MEMSET)
            step.buffer = read.integer();
        else
            step.event = read.integer();
    }
}

bool Program::has(const std::string& buffer) const {
    for (const auto& candidate : buffers)
        if (candidate.name == buffer) return true;
    return false;
}

int Program::buffer(const std::string& name) const {
    for (int i = 0; i < (int)buffers.size(); i++)
        if (buffers[i].name == name) return i;
    throw Failure("a program lacks the buffer " + name);
}

int Program::phase(const std::string& name) const {
    for (int i = 0; i < (int)phases.size(); i++)
        if (phases[i] == name) return i;
    return -1;
}

}  // namespace fmm
