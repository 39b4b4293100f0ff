// Executes a program in the CUDA context of a host: memory, compiled kernels, streams, CUDA graphs.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "driver.h"
#include "host.h"
#include "program.h"

namespace fmm {

// Phases that are queued together: one by one the first time, because the driver may load code at
// the first launch of a kernel, which capture does not allow; as one CUDA graph from then on.
class Graph {
public:
    explicit Graph(const std::vector<std::string>& phases) : phases(phases) {}
    ~Graph();
    Graph(const Graph&) = delete;

private:
    friend class Executor;
    const std::vector<std::string> phases;
    bool hasRun = false;
    CUgraphExec executable = nullptr;
};

// All members require the host's context to be current. Errors are thrown as Failure, or as the
// host's exceptions; no resources leak.
class Executor {
public:
    Executor(Host& host, const std::string& bytes);
    ~Executor();
    Executor(const Executor&) = delete;

    // Queue the steps of a phase, with the highest priority instead of the stream's if `urgent`. No
    // effect if the program has no such phase.
    void run(const std::string& phase, CUstream stream, bool urgent = false);

    void run(Graph& graph, CUstream stream);

    // Queue saving copies of all buffers that the program marks as kept, or restoring them.
    void save(CUstream stream);
    void restore(CUstream stream);

    bool has(const std::string& buffer) const { return program.has(buffer); }
    CUdeviceptr address(const std::string& buffer) const;
    int64_t bytes(const std::string& buffer) const;

    // Queue overwriting a buffer. `data` may be reused as soon as this returns.
    void upload(const std::string& buffer, const void* data, int64_t bytes, CUstream stream);
    void upload(const std::string& buffer, const std::string& data, CUstream stream);

    // Copy a buffer to the host; false if its size differs.
    bool download(const std::string& buffer, void* data, int64_t bytes) const;

    // Return whether kernels have raised a flag, and lower it. The steps that raise it must have
    // completed.
    bool takeFlag(const std::string& buffer);

private:
    void allocate();
    void allocateFlags();
    void compile();
    void limitCooperativeGrids();
    void limitEarlyLaunches();
    void findArrays();
    void capture(Graph& graph, CUstream stream);
    void queue(int phase, CUstream caller, bool urgent = false);
    void launch(const Step& step, CUstream stream, bool early, bool urgent);
    void release();

    Host& host;
    Program program;
    // A buffer and the memory for its saved copy.
    struct SavedBuffer {
        CUdeviceptr buffer, copy;
        int64_t bytes;
    };

    const int highestPriority;
    CUdeviceptr memory = 0;
    std::vector<CUdeviceptr> addresses;
    std::vector<SavedBuffer> saved;
    std::map<std::string, volatile int*> flags;  // pinned
    std::vector<CUmodule> modules;
    std::vector<CUfunction> functions;
    std::vector<CUstream> sideStreams;
    std::vector<CUevent> events;
    bool arraysFound = false;  // whether the host has provided all of its arrays
};

}  // namespace fmm
