// The kernel of a PythonForce on the CUDA platform: computes the FMM for an FMMForce, and delegates
// to OpenMM's own kernel for all other forces.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "coulomb_program.h"
#include "python.h"
#include "remote_devices.h"
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

    // Copy the potentials of the last evaluation, in the program's precision; false if there are
    // none of this size.
    bool readPotentials(void* data, int64_t bytes);

    // Begin an evaluation of the FMM if it is due in this context. Returns whether one is pending
    // and all forces of the System, the FMM's included, are added by atomics.
    static bool beginIn(OpenMM::CudaContext& cuda);

private:
    class Start;
    class Finish;

    void prepare();
    void abandonPending();
    void begin();
    void evaluateRemotely();
    void raisePriority();
    double finish();
    double invalidateAndRetry();
    void recordCompletion(CUstream last, bool copiesSums);
    void readContext();
    void readBox();
    void readPositions();
    std::map<int, std::string> request(int what);
    std::map<int, std::string> requestWithPositions(int what);
    void adopt(std::map<int, std::string>& answer);
    void makePrograms(const std::string& program);
    void discardPrograms();
    void setBox();
    void setParts();
    template <class Act>
    void onEachDevice(Act act);

    // Calls act(program, device) for all further devices, whose context is then current.
    template <class Act>
    void onEachRemote(Act act) {
        for (size_t i = 0; i < remotePrograms.size(); i++) {
            RemoteDevice& device = (*remotes)[i];
            RemoteDevice::Entry entry(&device);
            act(remotePrograms[i], device);
        }
    }

    void moveBoxes();
    void refine();
    void diagnoseEnergy();
    void useHostBridge(const std::string& reason);
    void synchronise();
    void release();

    OpenMM::ContextImpl& context;
    OpenMM::CudaContext& cuda;
    const OpenMM::PythonForce* force = nullptr;
    std::unique_ptr<OpenMM::CalcPythonForceKernel> delegate;
    bool claimed = false, periodic = true;
    bool multiDevice = false;       // several devices: the FMM is computed on the first
    bool placed = false;            // a program has been made for actual positions
    std::string failure;            // why no program could be made at the first evaluation
    int consecutiveMoves = 0;       // moves of the boxes since all particles were last inside
    int evaluationsSinceCheck = 0;  // evaluations since positions were last sent to Python
    bool atomics = false;           // whether forces may be added concurrently with others
    bool due = false;               // OpenMM has asked for an evaluation, which has not begun
    bool includeForces = false, includeEnergy = false;  // what it has asked for
    bool pending = false;                               // an evaluation has begun and not finished
    bool outside = false;                               // the boxes no longer cover the particles
    bool energyNotFinite = false;  // the last energy or a force was NaN or infinite
    bool wantsSums = false;        // the pending evaluation delivers sums
    bool examined = false;         // sums are known for present charges and boxes
    bool unsuited = false;         // the last sums exceeded their limits
    bool refined = false;          // Python has been asked about them
    int group = 0;
    std::vector<std::string> names;
    std::vector<double> values;
    double box[9];
    int64_t seenRevision = -1;
    CudaHost host;
    std::unique_ptr<CoulombProgram> program;
    std::shared_ptr<RemoteDevices> remotes;  // further devices; null if there are none
    std::vector<std::unique_ptr<CoulombProgram>> remotePrograms;
    int partsVersion = -1;          // of the parts of the devices that programs have
    std::vector<double> positions;  // sent to Python with a request
    CUstream stream = nullptr;
    std::unique_ptr<SideStream> priorityStream;  // replaces OpenMM's stream in large systems
    CUevent begun = nullptr, done = nullptr;
    Sums* sums = nullptr;  // pinned
};

}  // namespace fmm
