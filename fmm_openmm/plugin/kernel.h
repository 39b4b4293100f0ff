// The kernel of a PythonForce on the CUDA platform: ours for an FMMForce, OpenMM's own for every other.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executor.h"
#include "openmm/PythonForce.h"
#include "openmm/kernels.h"

namespace fmm {

enum Delivery { CLAIM, PROGRAM, PARAMETERS, CHARGES, FAILURE, EXCLUSIONS, BAD_INPUT, DONE };

// What Python hands over during a call; DONE comes last. Without it Python was interrupted (Ctrl-C).
struct Inbox {
    std::map<int, std::string> items;
    bool complete() const {
        return items.count(DONE);
    }
};

// Where a force is computed: of the Context its precision (0 single, 1 mixed, 2 double) and numbers of particles, of its first
// device the model, multiprocessors and shared memory a block.
struct Place {
    int precision, particles, padded, processors, shared, group;
    const char* model;
};

// Python's side (fmm_openmm/integration/native.py), which answers by fmm_deliver() into the inbox before it returns, DONE last.
struct Callbacks {
    // Is this force ours? Delivers EXCLUSIONS, pairs of int32, unless these are periodic; and CLAIM if it is to be served here.
    void (*open)(void* session, void* context, const char* pickled, int64_t size, const Place* place, Inbox* inbox);
    // For a box and values of the global parameters. PROGRAM: a program and its parameter block. PARAMETERS: the block
    // alone, if the latest program serves the shape as well; with positions for boxes that cover these, without them perhaps
    // nothing. CHARGES: charges, or a program if these need another. FAILURE: why the energy is not a number. Instead of an
    // answer: BAD_INPUT, what the user must mend, or FAILURE.
    void (*request)(void* session, int what, const double* box, const double* positions, const char* const* names,
                    const double* values, int count, Inbox* inbox);
    // The host bridge serves this force from now on, for this reason. Delivers FAILURE if the user allows the native one only.
    void (*settle)(void* session, const char* reason, Inbox* inbox);
    void (*close)(void* session);    // null once Python is about to end
};

extern Callbacks python;

// Counts changes of force definitions; kernels ask for the charges again when it has changed.
extern volatile int64_t revision;

class NativeKernel : public OpenMM::CalcPythonForceKernel {
public:
    NativeKernel(const std::string& name, const OpenMM::Platform& platform, OpenMM::ContextImpl& context);
    ~NativeKernel();
    void initialize(const OpenMM::ContextImpl& context, const OpenMM::PythonForce& force) override;
    double execute(OpenMM::ContextImpl& context, bool includeForces, bool includeEnergy) override;

    // The potentials of the last evaluation, in the program's precision; false if there are none of this size.
    bool readPotentials(void* data, int64_t bytes);

private:
    class Start;
    class Finish;
    class ExcludedPairs;
    // A shape of the cell, and the parameter block for one size of it. Other sizes differ in the parameter block only.
    struct Shape {
        double box[9];
        std::string block;
    };

    void prepare();
    void discard();
    void letWait(CUstream later, CUstream earlier);
    void begin(bool includeForces, bool includeEnergy);
    void hasten();
    double finish(bool includeForces, bool includeEnergy);
    void slowDown();
    double again();
    void complete(CUstream last, bool copiesEnergy);
    void readContext();
    void readBox();
    void readPositions();
    std::map<int, std::string> request(int what);
    std::map<int, std::string> requestWithPositions(int what);
    void adopt(std::map<int, std::string>& answer);
    void resize(const Shape& shape);
    void follow();
    void explain();
    void useHostBridge(const std::string& reason);
    void synchronise();
    void release();

    OpenMM::ContextImpl& context;
    OpenMM::CudaContext& cuda;
    const OpenMM::PythonForce* force = nullptr;
    std::unique_ptr<OpenMM::CalcPythonForceKernel> delegate;
    bool opened = false, periodic = true;
    bool several = false;          // devices: the FMM is computed on the first
    bool placed = false;           // there was a program for the positions
    std::string failure;           // why there was none at the first evaluation
    int moves = 0;                 // of the boxes since particles were last inside
    int unexamined = 0;            // evaluations since Python saw the positions
    bool atomics = false;          // forces are added beside those of others, not after them
    bool unfinished = false;       // begun, and not finished
    bool hastened = false;         // OpenMM works on our urgent stream
    bool outside = false;          // the boxes do not cover the particles any more
    bool undefined = false;        // the energy was not a number
    int group = 0;
    std::vector<std::string> names;
    std::vector<double> values;
    double box[9];
    int64_t seen = -1;
    std::unique_ptr<Executor> executor;
    std::vector<Shape> shapes;     // known ones, the latest first
    double current[9];             // box of the parameter block on the device
    std::vector<double> positions; // for Python, during a request
    CUstream stream = nullptr, urgent = nullptr;
    CUevent begun = nullptr, done = nullptr;
    double* energy = nullptr;      // pinned
};

}  // namespace fmm
