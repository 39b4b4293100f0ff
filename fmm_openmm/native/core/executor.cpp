#include "executor.h"

#include <algorithm>
#include <chrono>
#include <future>

namespace fmm {

static const size_t ALIGNMENT = 256;

// Compilation that takes longer is reported: the kernels are in no cache.
static const std::chrono::seconds SLOW(1);

Graph::~Graph() {
    if (executable) cuGraphExecDestroy(executable);
}

Executor::Executor(Host& host, const std::string& bytes)
    : host(host), program(bytes), highestPriority(streamPriorities().highest) {
    try {
        allocate();
        allocateFlags();
        findArrays();
        compile();
        for (int i = 1; i < program.streams; i++) {
            sideStreams.push_back(nullptr);
            sideStreams.back() = makeStream(i == BACKGROUND);
        }
        for (int i = 0; i < program.events; i++) {
            events.push_back(nullptr);
            check(cuEventCreate(&events.back(), CU_EVENT_DISABLE_TIMING), "making an event");
        }
    } catch (...) {
        release();
        throw;
    }
}

Executor::~Executor() {
    release();
}

void Executor::release() {
    for (CUevent event : events)
        if (event) cuEventDestroy(event);
    for (CUstream stream : sideStreams)
        if (stream) cuStreamDestroy(stream);
    for (CUmodule module : modules) cuModuleUnload(module);
    for (const auto& [name, flag] : flags) cuMemFreeHost((void*)flag);
    if (memory) cuMemFree(memory);
}

// Allocates all buffers and the saved copies in one block, each aligned.
void Executor::allocate() {
    std::vector<size_t> offsets;
    size_t total = 0;
    auto reserve = [&total](int64_t bytes) {
        const size_t offset = total;
        total += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        return offset;
    };
    for (const auto& buffer : program.buffers)
        offsets.push_back(reserve(buffer.kind == OWN ? buffer.bytes : 0));
    for (size_t i = 0; i < program.buffers.size(); i++)
        if (program.buffers[i].kept)
            saved.push_back(
                {offsets[i], reserve(program.buffers[i].bytes), program.buffers[i].bytes});
    check(cuMemAlloc(&memory, total),
          "allocating " + std::to_string(total >> 20) + " MiB" + host.place());
    for (auto& buffer : saved) {
        buffer.buffer += memory;
        buffer.copy += memory;
    }
    for (size_t i = 0; i < offsets.size(); i++) {
        auto& buffer = program.buffers[i];
        addresses.push_back(buffer.kind == OWN ? memory + offsets[i] : 0);
        if (buffer.data.empty()) continue;
        check(cuMemcpyHtoD(addresses[i], buffer.data.data(), buffer.data.size()),
              "copying " + buffer.name);
        std::string().swap(buffer.data);
    }
    // copies from pageable memory are not ordered with the streams of an evaluation
    check(cuCtxSynchronize(), "copying");
}

void Executor::allocateFlags() {
    for (size_t i = 0; i < addresses.size(); i++) {
        if (program.buffers[i].kind != FLAG) continue;
        int* flag;
        check(cuMemHostAlloc((void**)&flag, sizeof(int), CU_MEMHOSTALLOC_DEVICEMAP),
              "allocating pinned memory");
        *flag = 0;
        flags[program.buffers[i].name] = flag;
        check(cuMemHostGetDevicePointer(&addresses[i], flag, 0), "mapping pinned memory");
    }
}

void Executor::compile() {
    std::vector<std::future<CUmodule>> compiling;
    for (const auto& source : program.sources)
        compiling.push_back(
            std::async(std::launch::async, [this, &source] { return host.compile(source); }));
    const auto later = std::chrono::steady_clock::now() + SLOW;
    for (auto& module : compiling)
        if (module.wait_until(later) != std::future_status::ready) {
            host.reportCompilation();
            break;
        }
    std::exception_ptr failure;
    for (auto& module : compiling) {
        try {
            modules.push_back(module.get());
        } catch (...) {
            failure = std::current_exception();
        }
    }
    if (failure) std::rethrow_exception(failure);
    for (const auto& kernel : program.kernels) {
        functions.push_back(nullptr);
        check(cuModuleGetFunction(&functions.back(), modules[kernel.source], kernel.name.c_str()),
              "finding " + kernel.name);
        if (kernel.shared > 0)
            check(
                cuFuncSetAttribute(functions.back(),
                                   CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared),
                "setting the shared memory of " + kernel.name);
    }
    limitCooperativeGrids();
    limitEarlyLaunches();
}

// Reduces the grids of cooperative launches to the number of blocks that fit on the device.
void Executor::limitCooperativeGrids() {
    CUdevice device;
    check(cuCtxGetDevice(&device), "asking the device");
    for (auto& step : program.steps) {
        if (!step.cooperative) continue;
        const auto& kernel = program.kernels[step.kernel];
        int processors, blocks, isSupported;
        check(cuDeviceGetAttribute(&isSupported, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, device),
              "asking the device");
        if (!isSupported)
            throw Failure("the device has no cooperative launch, which " + kernel.name + " needs");
        check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
              "asking the device");
        check(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, functions[step.kernel],
                                                          step.block, kernel.shared),
              "asking for room for " + kernel.name);
        if (blocks == 0) throw Failure("no multiprocessor has room for a block of " + kernel.name);
        step.grid[0] = std::min(step.grid[0], processors * blocks);
    }
}

// Keeps Kernel::waits where the driver can capture programmatic dependent launches and the compiled
// kernel does wait.
void Executor::limitEarlyLaunches() {
    int driver, architecture;
    check(cuDriverGetVersion(&driver), "asking the driver");
    for (size_t i = 0; i < functions.size(); i++) {
        check(cuFuncGetAttribute(&architecture, CU_FUNC_ATTRIBUTE_PTX_VERSION, functions[i]),
              "asking for an architecture");
        program.kernels[i].waits &= driver >= 12030 && architecture >= 90;
    }
}

void Executor::findArrays() {
    arraysFound = true;
    for (size_t i = 0; i < addresses.size(); i++)
        if (program.buffers[i].kind == EXTERNAL && addresses[i] == 0)
            arraysFound = host.find(program.buffers[i].name, addresses[i]) && arraysFound;
}

void Executor::run(const std::string& phase, CUstream stream, bool urgent) {
    if (!arraysFound) findArrays();
    queue(program.phase(phase), stream, urgent);
}

void Executor::run(Graph& graph, CUstream stream) {
    if (!graph.hasRun) {
        for (const auto& phase : graph.phases) run(phase, stream);
        graph.hasRun = true;
        return;
    }
    if (!graph.executable) capture(graph, stream);
    check(cuGraphLaunch(graph.executable, stream), "launching a graph");
}

void Executor::capture(Graph& graph, CUstream stream) {
    CUgraph captured;
    check(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
    try {
        for (const auto& phase : graph.phases) queue(program.phase(phase), stream);
    } catch (...) {
        cuStreamEndCapture(stream, &captured);
        throw;
    }
    check(cuStreamEndCapture(stream, &captured), "capturing");
    CUgraphExec instance = nullptr;
    const CUresult result =
        cuGraphInstantiate(&instance, captured, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    cuGraphDestroy(captured);
    check(result, "making a graph");
    graph.executable = instance;
}

void Executor::save(CUstream stream) {
    for (const auto& buffer : saved)
        check(cuMemcpyDtoDAsync(buffer.copy, buffer.buffer, buffer.bytes, stream),
              "keeping buffers");
}

void Executor::restore(CUstream stream) {
    for (const auto& buffer : saved)
        check(cuMemcpyDtoDAsync(buffer.buffer, buffer.copy, buffer.bytes, stream),
              "restoring buffers");
}

void Executor::queue(int phase, CUstream caller, bool urgent) {
    const Step* previous = nullptr;  // on the caller's stream
    for (const auto& step : program.steps) {
        if (step.phase != phase) continue;
        const CUstream stream = step.stream == 0 ? caller : sideStreams[step.stream - 1];
        switch (step.kind) {
            case LAUNCH:
                launch(step, stream,
                       step.stream == 0 && previous && previous->kind == LAUNCH &&
                           program.kernels[step.kernel].waits,
                       urgent);
                break;
            case MEMSET:
                check(cuMemsetD8Async(addresses[step.buffer], 0, program.buffers[step.buffer].bytes,
                                      stream),
                      "clearing");
                break;
            case RECORD:
                check(cuEventRecord(events[step.event], stream), "recording an event");
                break;
            case WAIT:
                check(cuStreamWaitEvent(stream, events[step.event], 0), "waiting for an event");
        }
        if (step.stream == 0 && step.kind != RECORD) previous = &step;
    }
}

// An early launch may begin before the previous kernel of the stream has ended.
void Executor::launch(const Step& step, CUstream stream, bool early, bool urgent) {
    std::vector<CUdeviceptr> pointers(step.arguments.size());
    std::vector<void*> arguments;
    for (size_t i = 0; i < step.arguments.size(); i++) {
        const auto& argument = step.arguments[i];
        if (argument.buffer >= 0) {
            pointers[i] = addresses[argument.buffer] + argument.offset;
            arguments.push_back(&pointers[i]);
        } else
            arguments.push_back(const_cast<char*>(argument.scalar.data()));
    }
    const auto& kernel = program.kernels[step.kernel];
    CUlaunchAttribute attributes[2] = {};
    int number = 0;
    if (step.cooperative) {
        attributes[number].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attributes[number++].value.cooperative = 1;
    } else if (early) {
        attributes[number].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[number++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (urgent) {
        attributes[number].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
        attributes[number++].value.priority = highestPriority;
    }
    CUlaunchConfig config = {};
    config.gridDimX = step.grid[0];
    config.gridDimY = step.grid[1];
    config.gridDimZ = step.grid[2];
    config.blockDimX = step.block;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = kernel.shared;
    config.hStream = stream;
    config.attrs = attributes;
    config.numAttrs = number;
    const CUresult launched =
        cuLaunchKernelEx(&config, functions[step.kernel], arguments.data(), nullptr);
    if (launched != CUDA_SUCCESS) check(launched, "launching " + kernel.name);
}

void Executor::upload(const std::string& buffer, const void* data, int64_t bytes, CUstream stream) {
    const int index = program.buffer(buffer);
    if (bytes != program.buffers[index].bytes)
        throw Failure(buffer + " has another size than before");
    check(cuMemcpyHtoDAsync(addresses[index], data, bytes, stream), "copying " + buffer);
}

void Executor::upload(const std::string& buffer, const std::string& data, CUstream stream) {
    upload(buffer, data.data(), data.size(), stream);
}

bool Executor::download(const std::string& buffer, void* data, int64_t bytes) const {
    const int index = program.buffer(buffer);
    return bytes == program.buffers[index].bytes &&
           cuMemcpyDtoH(data, addresses[index], bytes) == CUDA_SUCCESS;
}

CUdeviceptr Executor::address(const std::string& buffer) const {
    return addresses[program.buffer(buffer)];
}

int64_t Executor::bytes(const std::string& buffer) const {
    return program.buffers[program.buffer(buffer)].bytes;
}

bool Executor::takeFlag(const std::string& buffer) {
    volatile int& flag = *flags.at(buffer);
    const bool raised = flag;
    flag = 0;
    return raised;
}

}  // namespace fmm
