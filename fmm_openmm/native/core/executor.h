// Runs a program in the CUDA context of a host: memory, compiled kernels, streams, CUDA graphs.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "driver.h"
#include "host.h"
#include "program.h"

namespace fmm {

// Phases that are queued as one CUDA graph. It is captured when it is queued first.
class Graph {
public:
    explicit Graph(const std::vector<std::string>& phases) : phases(phases) {}
    ~Graph();
    Graph(const Graph&) = delete;

    bool isCaptured() const { return executable; }

    const std::vector<std::string> phases;

private:
    friend class Executor;
    CUgraphExec executable = nullptr;
};

// All members need the host's context to be current. What fails throws Failure, or what the host
// throws; nothing is left behind.
class Executor {
public:
    Executor(Host& host, const std::string& bytes);
    ~Executor();
    Executor(const Executor&) = delete;

    // Queue the steps of a phase; none if the program has no such phase.
    void run(const std::string& phase, CUstream stream);

    // Queue a graph. Its kernels must have run before it is captured, because the driver may load
    // code at first use, which must not happen meanwhile.
    void run(Graph& graph, CUstream stream);

    // Queue copying the contents of all buffers that are kept to a place beside, and from there
    // back.
    void keep(CUstream stream);
    void restore(CUstream stream);

    bool has(const std::string& buffer) const { return program.has(buffer); }
    CUdeviceptr address(const std::string& buffer) const;

    // Queue overwriting a buffer; `data` may change as soon as this returns.
    void upload(const std::string& buffer, const void* data, int64_t bytes, CUstream stream);
    void upload(const std::string& buffer, const std::string& data, CUstream stream);

    // Copy a buffer to the host; false if it has another size.
    bool download(const std::string& buffer, void* data, int64_t bytes) const;

    // Whether kernels have raised a flag; lowers it. The steps that raise it must have ended.
    bool takeFlag(const std::string& buffer);

private:
    void allocate();
    void allocateFlags();
    void compile();
    void fitCooperative();
    void findArrays();
    void capture(Graph& graph, CUstream stream);
    void queue(int phase, CUstream caller);
    void launch(const Step& step, CUstream stream);
    void release();

    Host& host;
    Program program;
    // A buffer, and a place for its contents.
    struct Kept {
        CUdeviceptr buffer, place;
        int64_t bytes;
    };

    CUdeviceptr memory = 0;
    std::vector<CUdeviceptr> addresses;
    std::vector<Kept> kept;
    std::map<std::string, volatile int*> flags;  // pinned
    std::vector<CUmodule> modules;
    std::vector<CUfunction> functions;
    std::vector<CUstream> side;
    std::vector<CUevent> events;
    bool complete = false;  // whether the host had all of its arrays
};

}  // namespace fmm
