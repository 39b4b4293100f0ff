// Runs a program inside OpenMM's CUDA context: memory, compiled kernels,
// and the CUDA graph of an evaluation.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "openmm/cuda/CudaContext.h"
#include "program.h"
#include "../openmm/python.h"

namespace fmm {

// What Python is told of a Context's first device.
struct DevicePlace : Place {
    explicit DevicePlace(OpenMM::CudaContext& cuda);
    DevicePlace(const DevicePlace&) = delete;

private:
    char name[256];
};

// All members need OpenMM's context to be current. What fails throws OpenMMException;
// nothing is left behind.
class Executor {
public:
    Executor(OpenMM::CudaContext& context, const std::string& bytes);
    ~Executor();
    Executor(const Executor&) = delete;

    // Queue the steps of one phase. Step::SETUP is what depends on the shape of the cell in the
    // parameter block: it comes before the first evaluation, and for every new shape.
    void run(Step::Phase phase, CUstream stream);

    // Queue copying what these steps have left to a place beside, and from there back.
    void keepShape(CUstream stream);
    void restoreShape(CUstream stream);

    // Queue an evaluation of OpenMM's positions, and what ends it: Step::EXPORT adds the forces to
    // OpenMM's, Step::GATHER leaves them out, Step::NOTHING leaves either to exportForces.
    // Potentials and the energy are computed if they are wanted.
    void evaluate(CUstream stream, Step::Phase end, bool potentials);

    // Whether the boxes cover the particles only.
    bool follows() const { return outside != nullptr; }

    // Whether a particle of the last evaluation is outside such boxes: its results are of no use.
    // Waits for the stage sort alone.
    bool particlesOutside();

    // Queue the end of the last evaluation: its potentials and energy if they were wanted, and its
    // forces, which are added to OpenMM's.
    void exportForces(CUstream stream);

    // Queue overwriting a buffer; `data` may change as soon as this returns.
    void upload(const std::string& buffer, const std::string& data, CUstream stream);

    // Copy a buffer to the host; false if it has another size.
    bool download(const std::string& buffer, void* data, int64_t bytes) const;

    CUdeviceptr address(const std::string& buffer) const;

private:
    void allocate();
    void compile();
    void findArrays();
    CUgraphExec capture(CUstream stream, Step::Phase end);
    void queue(int phase, CUstream caller);
    void launch(const Step& step, CUstream stream);
    void release();

    OpenMM::CudaContext& context;
    Program program;
    // A buffer that depends on the shape of the cell, and a place for its contents.
    struct Kept {
        CUdeviceptr buffer, place;
        int64_t bytes;
    };

    CUdeviceptr memory = 0;
    std::vector<CUdeviceptr> addresses;
    std::vector<Kept> shaped;
    std::vector<CUmodule> modules;
    std::vector<CUfunction> functions;
    std::vector<CUstream> side;
    std::vector<CUevent> events;
    std::map<Step::Phase, CUgraphExec> graphs;  // an evaluation, by what ends it
    bool complete = true;                       // whether OpenMM had all of its arrays
    bool potentialsWanted = true;               // what the buffer of this name holds
    volatile int* outside = nullptr;            // pinned; the device sets it
    CUevent sorted = nullptr;
};

void check(CUresult result, const std::string& doing);

// Of high priority: the far field is a chain of small kernels, the nonbonded kernel beside it is
// one large. The near field comes between, one step below the highest.
CUstream makeStream(bool background = false, unsigned flags = CU_STREAM_NON_BLOCKING);

// What is queued on a stream from now on waits for what has been queued on another; `reached` is
// used for that.
void letWait(CUstream later, CUstream earlier, CUevent reached);

}  // namespace fmm
