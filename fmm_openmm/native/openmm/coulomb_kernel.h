// The kernel of a PythonForce on the CUDA platform: ours for an FMMForce,
// OpenMM's own for every other.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "coulomb_program.h"
#include "python.h"
#include "side_stream.h"
#include "openmm/PythonForce.h"
#include "openmm/kernels.h"

namespace fmm {

class CoulombKernel : public OpenMM::CalcPythonForceKernel {
public:
    CoulombKernel(const std::string& name, const OpenMM::Platform& platform,
                  OpenMM::ContextImpl& context);
    ~CoulombKernel();
    void initialize(const OpenMM::ContextImpl& context, const OpenMM::PythonForce& force) override;
    double execute(OpenMM::ContextImpl& context, bool includeForces, bool includeEnergy) override;

    // The potentials of the last evaluation, in the program's precision;
    // false if there are none of this size.
    bool readPotentials(void* data, int64_t bytes);

    // Whether an FMM is under way in this context, of whose System every force, the FMM's included,
    // is added by atomics.
    static bool isUnderWay(OpenMM::CudaContext& cuda);

private:
    class Start;
    class Finish;

    void prepare();
    void discard();
    void begin(bool includeForces, bool includeEnergy);
    void hasten();
    double finish(bool includeForces, bool includeEnergy);
    double again();
    void complete(CUstream last, bool copiesEnergy);
    void readContext();
    void readBox();
    void readPositions();
    std::map<int, std::string> request(int what);
    std::map<int, std::string> requestWithPositions(int what);
    void adopt(std::map<int, std::string>& answer);
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
    bool several = false;     // devices: the FMM is computed on the first
    bool placed = false;      // there was a program for the positions
    std::string failure;      // why there was none at the first evaluation
    int moves = 0;            // of the boxes since particles were last inside
    int unexamined = 0;       // evaluations since Python saw the positions
    bool atomics = false;     // forces are added beside those of others, not after them
    bool unfinished = false;  // begun, and not finished
    bool outside = false;     // the boxes do not cover the particles any more
    bool undefined = false;   // the energy was not a number
    int group = 0;
    std::vector<std::string> names;
    std::vector<double> values;
    double box[9];
    int64_t seen = -1;
    std::unique_ptr<CoulombProgram> program;
    std::vector<double> positions;  // for Python, during a request
    CUstream stream = nullptr;
    std::unique_ptr<SideStream> urgent;  // of OpenMM's, where it is hastened
    CUevent begun = nullptr, done = nullptr;
    double* energy = nullptr;  // pinned
};

}  // namespace fmm
