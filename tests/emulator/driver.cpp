// The CUDA driver on the CPU, as far as the executor of fmm_openmm/native/core calls it: kernels
// are the emulator's, all streams are one, and what is queued is done at once unless it is
// captured.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "executor.h"

namespace {

struct Entry {
    const char* (*launch)(unsigned, unsigned, unsigned, unsigned, void**);
    std::vector<int> sizes;  // of its arguments, bytes
};

using Work = std::function<void()>;
using Works = std::vector<Work>;

std::map<std::string, Entry> entries;
std::map<std::string, CUdeviceptr> arrays;
std::string fault;
Works* captured = nullptr;
int dummy;
const int HIGHEST_PRIORITY = -2;

CUresult queue(const Work& work) {
    if (captured)
        captured->push_back(work);
    else
        work();
    return CUDA_SUCCESS;
}

template <class Handle>
CUresult make(Handle* handle) {
    *handle = reinterpret_cast<Handle>(&dummy);
    return CUDA_SUCCESS;
}

CUresult copy(void* to, const void* from, size_t bytes) {
    return queue([=] { std::memcpy(to, from, bytes); });
}

}  // namespace

extern "C" {
int compile_ms = 0;  // how long a compilation takes
int reports = 0;     // how many were reported
int urgent = 0;      // kernels launched with the highest priority
}

namespace {

struct Arrays : fmm::Host {
    CUmodule compile(const std::string&) override {
        std::this_thread::sleep_for(std::chrono::milliseconds(compile_ms));
        return reinterpret_cast<CUmodule>(&dummy);
    }
    void reportCompilation() override { reports++; }
    bool find(const std::string& array, CUdeviceptr& address) override {
        return address = arrays.at(array);
    }
} host;

// What went wrong, or nothing.
const char* message_of(const Work& work) {
    fault.clear();
    try {
        work();
    } catch (const std::exception& error) {
        fault = error.what();
    }
    return fault.c_str();
}

}  // namespace

#define DO(function, ...)                    \
    CUresult CUDAAPI function(__VA_ARGS__) { \
        return CUDA_SUCCESS;                 \
    }

extern "C" {
DO(cuCtxSynchronize)
DO(cuEventDestroy, CUevent)
DO(cuEventRecord, CUevent, CUstream)
DO(cuFuncSetAttribute, CUfunction, CUfunction_attribute, int)
DO(cuGraphDestroy, CUgraph)
DO(cuModuleUnload, CUmodule)
DO(cuStreamDestroy, CUstream)
DO(cuStreamWaitEvent, CUstream, CUevent, unsigned)

CUresult CUDAAPI cuGetErrorString(CUresult, const char** text) {
    *text = "the emulator has none";
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
    *value = 4;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDriverGetVersion(int* version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
    *value = 90;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
    *blocks = 2;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = HIGHEST_PRIORITY;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned, int) {
    return make(stream);
}
CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned) {
    return make(event);
}
CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    void* memory = std::aligned_alloc(256, bytes);
    std::memset(memory, 0xA5, bytes);
    *address = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
    std::free((void*)address);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    *memory = std::malloc(bytes);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemFreeHost(void* memory) {
    std::free(memory);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* address, void* memory, unsigned) {
    *address = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
    return copy((void*)to, from, bytes);
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
    return copy((void*)to, from, bytes);
}
CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
    return copy(to, (void*)from, bytes);
}
CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
    return copy((void*)to, (void*)from, bytes);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream) {
    return queue([=] { std::memset((void*)to, value, bytes); });
}
CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    const auto found = entries.find(name);
    if (found == entries.end()) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(&found->second);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                  void** arguments, void**) {
    const Entry& entry = *reinterpret_cast<Entry*>(function);
    for (unsigned i = 0; i < config->numAttrs; i++)
        urgent += config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PRIORITY &&
                  config->attrs[i].value.priority == HIGHEST_PRIORITY;
    std::vector<std::string> values;
    for (size_t i = 0; i < entry.sizes.size(); i++)
        values.emplace_back((const char*)arguments[i], entry.sizes[i]);
    return queue([&entry, values, at = *config]() mutable {
        std::vector<void*> pointers;
        for (auto& value : values) pointers.push_back(value.data());
        const char* wrong =
            entry.launch(at.gridDimX, at.gridDimY, at.gridDimZ, at.blockDimX, pointers.data());
        if (wrong) throw fmm::Failure(wrong);
    });
}
CUresult CUDAAPI cuStreamBeginCapture(CUstream, CUstreamCaptureMode) {
    captured = new Works;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamEndCapture(CUstream, CUgraph* graph) {
    *graph = reinterpret_cast<CUgraph>(captured);
    captured = nullptr;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* made, CUgraph graph, unsigned long long) {
    *made = reinterpret_cast<CUgraphExec>(graph);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec graph) {
    delete reinterpret_cast<Works*>(graph);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph, CUstream) {
    for (const Work& work : *reinterpret_cast<Works*>(graph)) work();
    return CUDA_SUCCESS;
}

// The interface of tests/native/test_executor.py.

void add_kernel(const char* name, void* launch, const int* sizes, int count) {
    entries[name] = {reinterpret_cast<decltype(Entry::launch)>(launch), {sizes, sizes + count}};
}

void add_array(const char* name, void* memory) {
    arrays[name] = reinterpret_cast<CUdeviceptr>(memory);
}

const char* start(fmm::Executor** executor, const char* program, int64_t bytes) {
    return message_of([=] { *executor = new fmm::Executor(host, {program, (size_t)bytes}); });
}

const char* run(fmm::Executor* executor, const char* phase, int urgent) {
    return message_of([=] { executor->run(phase, nullptr, urgent); });
}

const char* replay(fmm::Executor* executor, fmm::Graph* graph) {
    return message_of([=] { executor->run(*graph, nullptr); });
}

const char* upload(fmm::Executor* executor, const char* buffer, const char* data, int64_t bytes) {
    return message_of([=] { executor->upload(buffer, data, bytes, nullptr); });
}

int download(fmm::Executor* executor, const char* buffer, void* data, int64_t bytes) {
    return executor->download(buffer, data, bytes);
}

int take_flag(fmm::Executor* executor, const char* buffer) {
    return executor->takeFlag(buffer);
}

void keep(fmm::Executor* executor) {
    executor->save(nullptr);
}

void restore(fmm::Executor* executor) {
    executor->restore(nullptr);
}

fmm::Graph* make_graph(const char* const* phases, int number) {
    return new fmm::Graph({phases, phases + number});
}

void end(fmm::Executor* executor, fmm::Graph* graph) {
    delete graph;
    delete executor;
}
}
