#include "executor.h"

#include <algorithm>
#include <future>

#include "openmm/common/ContextSelector.h"

using OpenMM::OpenMMException;

namespace fmm {

static const size_t ALIGNMENT = 256;

// OpenMM puts definitions of its own before a source; these are also names of ours.
static const char* OWN_NAMES =
    "#define real fmm_real\n"
    "#define real2 fmm_real2\n"
    "#define real3 fmm_real3\n"
    "#define real4 fmm_real4\n"
    "#define mixed fmm_mixed\n";

static const char* COMPILER_OPTIONS = "--std=c++17 --ftz=true";

void check(CUresult result, const std::string& doing) {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    throw OpenMMException("FMMForce: " + doing + ": " +
                          (text ? text : "CUDA error " + std::to_string(result)));
}

DevicePlace::DevicePlace(OpenMM::CudaContext& cuda) : Place() {
    const CUdevice device = cuda.getDevice();
    check(cuDeviceGetName(name, sizeof(name), device), "asking the device");
    check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
          "asking the device");
    check(cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                               device),
          "asking the device");
    model = name;
    precision = cuda.getUseDoublePrecision() ? 2 : (cuda.getUseMixedPrecision() ? 1 : 0);
    particles = cuda.getNumAtoms();
    padded = cuda.getPaddedNumAtoms();
}

CUstream makeStream(bool background, unsigned flags) {
    int lowest, highest;
    CUstream stream;
    check(cuCtxGetStreamPriorityRange(&lowest, &highest), "making a stream");
    check(cuStreamCreateWithPriority(&stream, flags, std::min(lowest, highest + background)),
          "making a stream");
    return stream;
}

void letWait(CUstream later, CUstream earlier, CUevent reached) {
    check(cuEventRecord(reached, earlier), "recording an event");
    check(cuStreamWaitEvent(later, reached, 0), "waiting for an event");
}

Executor::Executor(OpenMM::CudaContext& context, const std::string& bytes)
    : context(context), program(bytes) {
    try {
        allocate();
        if (program.has("outside")) {
            check(cuMemHostAlloc((void**)&outside, sizeof(int), CU_MEMHOSTALLOC_DEVICEMAP),
                  "allocating pinned memory");
            *outside = 0;
            check(cuEventCreate(&sorted, context.getEventFlags()), "making an event");
        }
        findArrays();
        compile();
        for (int i = 1; i < program.streams; i++) {
            side.push_back(nullptr);
            side.back() = makeStream(i == Program::BACKGROUND);
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
    for (const auto& [end, graph] : graphs)
        if (graph) cuGraphExecDestroy(graph);
    for (CUevent event : events)
        if (event) cuEventDestroy(event);
    for (CUstream stream : side)
        if (stream) cuStreamDestroy(stream);
    for (CUmodule module : modules) cuModuleUnload(module);
    if (sorted) cuEventDestroy(sorted);
    if (outside) cuMemFreeHost((void*)outside);
    if (memory) cuMemFree(memory);
}

// One allocation for all buffers, and a second place for those that depend on the shape of the
// cell, each on a boundary of its own.
void Executor::allocate() {
    std::vector<size_t> offsets;
    size_t total = 0;
    auto reserve = [&total](int64_t bytes) {
        const size_t offset = total;
        total += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        return offset;
    };
    for (const auto& buffer : program.buffers) offsets.push_back(reserve(buffer.bytes));
    for (size_t i = 0; i < program.buffers.size(); i++)
        if (program.buffers[i].shaped)
            shaped.push_back(
                {offsets[i], reserve(program.buffers[i].bytes), program.buffers[i].bytes});
    check(cuMemAlloc(&memory, total), "allocating " + std::to_string(total >> 20) + " MiB");
    for (auto& kept : shaped) {
        kept.buffer += memory;
        kept.place += memory;
    }
    for (size_t i = 0; i < offsets.size(); i++) {
        auto& buffer = program.buffers[i];
        addresses.push_back(buffer.bytes > 0 ? memory + offsets[i] : 0);
        if (buffer.data.empty()) continue;
        check(cuMemcpyHtoD(addresses[i], buffer.data.data(), buffer.data.size()),
              "copying " + buffer.name);
        std::string().swap(buffer.data);
    }
    // the streams of an evaluation do not wait for copies from pageable memory
    check(cuCtxSynchronize(), "copying");
}

void Executor::compile() {
    std::vector<std::future<CUmodule>> compiling;
    for (const auto& source : program.sources)
        compiling.push_back(std::async(std::launch::async, [this, &source] {
            OpenMM::ContextSelector selector(context);
            return context.createModule(OWN_NAMES + source, COMPILER_OPTIONS);
        }));
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
        functions.push_back(context.getKernel(modules[kernel.source], kernel.name));
        if (kernel.shared > 0)
            check(
                cuFuncSetAttribute(functions.back(),
                                   CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared),
                "setting the shared memory of " + kernel.name);
    }
    for (auto& step : program.steps) {
        // all blocks of such a launch have to be on the device at once
        if (!step.cooperative) continue;
        const auto& kernel = program.kernels[step.kernel];
        int processors, blocks, able;
        check(cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH,
                                   context.getDevice()),
              "asking the device");
        if (!able)
            throw OpenMMException("FMMForce: the device has no cooperative launch, which " +
                                  kernel.name + " needs");
        check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                   context.getDevice()),
              "asking the device");
        check(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, functions[step.kernel],
                                                          step.block, kernel.shared),
              "asking for room for " + kernel.name);
        if (blocks == 0)
            throw OpenMMException("FMMForce: no multiprocessor has room for a block of " +
                                  kernel.name);
        step.grid[0] = std::min(step.grid[0], processors * blocks);
    }
}

// Addresses of the buffers that are OpenMM's, or the host's.
void Executor::findArrays() {
    for (size_t i = 0; i < addresses.size(); i++) {
        const auto& name = program.buffers[i].name;
        if (addresses[i] != 0) continue;
        if (name == "posq")
            addresses[i] = context.getPosq().getDevicePointer();
        else if (name == "posq_correction")  // read in mixed precision only, and there only then
            addresses[i] =
                context.getUseMixedPrecision() ? context.getPosqCorrection().getDevicePointer() : 0;
        else if (name == "atom_index")
            addresses[i] = context.getAtomIndexArray().getDevicePointer();
        else if (name == "force_buffer")
            addresses[i] = context.getLongForceBuffer().getDevicePointer();
        else if (name == "energy_buffer") {  // made after the forces
            complete = context.getEnergyBuffer().isInitialized();
            if (complete) addresses[i] = context.getEnergyBuffer().getDevicePointer();
        } else if (name == "outside")
            check(cuMemHostGetDevicePointer(&addresses[i], (void*)outside, 0),
                  "mapping pinned memory");
        else
            throw OpenMMException("FMMForce: OpenMM has no array " + name);
    }
}

void Executor::run(Step::Phase phase, CUstream stream) {
    if (!complete) findArrays();
    queue(phase, stream);
}

void Executor::keepShape(CUstream stream) {
    for (const auto& kept : shaped)
        check(cuMemcpyDtoDAsync(kept.place, kept.buffer, kept.bytes, stream),
              "keeping the lattice operator");
}

void Executor::restoreShape(CUstream stream) {
    for (const auto& kept : shaped)
        check(cuMemcpyDtoDAsync(kept.buffer, kept.place, kept.bytes, stream),
              "restoring the lattice operator");
}

void Executor::evaluate(CUstream stream, Step::Phase end, bool potentials) {
    if (potentials != potentialsWanted) {
        check(cuMemsetD32Async(address("potentials_wanted"), potentials, 1, stream),
              "telling what is wanted");
        potentialsWanted = potentials;
    }
    CUgraphExec& graph = graphs[end];
    if (!graph) graph = capture(stream, end);
    queue(Step::AHEAD, stream);
    if (follows()) check(cuEventRecord(sorted, stream), "recording an event");
    check(cuGraphLaunch(graph, stream), "launching a graph");
}

CUgraphExec Executor::capture(CUstream stream, Step::Phase end) {
    // once step by step, because the driver may load code at first use, which must not happen while
    // a graph is captured
    for (auto phase : {Step::AHEAD, Step::EVALUATE, Step::GATHER}) queue(phase, stream);
    CUgraph captured;
    check(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
    try {
        queue(Step::EVALUATE, stream);
        queue(end, stream);
    } catch (...) {
        cuStreamEndCapture(stream, &captured);
        throw;
    }
    check(cuStreamEndCapture(stream, &captured), "capturing");
    CUgraphExec graph;
    const CUresult made =
        cuGraphInstantiate(&graph, captured, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    cuGraphDestroy(captured);
    check(made, "making a graph");
    return graph;
}

bool Executor::particlesOutside() {
    check(cuEventSynchronize(sorted), "computing");
    const bool found = *outside;
    *outside = 0;
    return found;
}

void Executor::exportForces(CUstream stream) {
    queue(Step::EXPORT, stream);
}

void Executor::queue(int phase, CUstream caller) {
    for (const auto& step : program.steps) {
        if (step.phase != phase) continue;
        const CUstream stream = step.stream == 0 ? caller : side[step.stream - 1];
        switch (step.kind) {
            case Step::LAUNCH:
                launch(step, stream);
                break;
            case Step::MEMSET:
                check(cuMemsetD8Async(addresses[step.buffer], 0, program.buffers[step.buffer].bytes,
                                      stream),
                      "clearing");
                break;
            case Step::RECORD:
                check(cuEventRecord(events[step.event], stream), "recording an event");
                break;
            case Step::WAIT:
                check(cuStreamWaitEvent(stream, events[step.event], 0), "waiting for an event");
        }
    }
}

void Executor::launch(const Step& step, CUstream stream) {
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
    CUlaunchAttribute cooperative = {};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    cooperative.value.cooperative = 1;
    CUlaunchConfig config = {};
    config.gridDimX = step.grid[0];
    config.gridDimY = step.grid[1];
    config.gridDimZ = step.grid[2];
    config.blockDimX = step.block;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = kernel.shared;
    config.hStream = stream;
    config.attrs = &cooperative;
    config.numAttrs = step.cooperative;
    const CUresult launched =
        cuLaunchKernelEx(&config, functions[step.kernel], arguments.data(), nullptr);
    if (launched != CUDA_SUCCESS) check(launched, "launching " + kernel.name);
}

void Executor::upload(const std::string& buffer, const std::string& data, CUstream stream) {
    const int index = program.buffer(buffer);
    if ((int64_t)data.size() != program.buffers[index].bytes)
        throw OpenMMException("FMMForce: " + buffer + " has another size than before");
    check(cuMemcpyHtoDAsync(addresses[index], data.data(), data.size(), stream),
          "copying " + buffer);
}

bool Executor::download(const std::string& buffer, void* data, int64_t bytes) const {
    const int index = program.buffer(buffer);
    return bytes == program.buffers[index].bytes &&
           cuMemcpyDtoH(data, addresses[index], bytes) == CUDA_SUCCESS;
}

CUdeviceptr Executor::address(const std::string& buffer) const {
    return addresses[program.buffer(buffer)];
}

}  // namespace fmm
