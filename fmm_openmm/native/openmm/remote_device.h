// A further device that computes a share of the FMM and of the Lennard-Jones pairs of a Context.
#pragma once
#include <memory>
#include <string>

#include "../core/executor.h"
#include "cuda_host.h"
#include "openmm/cuda/CudaContext.h"

namespace fmm {

// The CUDA context of the device, and copies of OpenMM's arrays there. Members require OpenMM's own
// context to be current; what they queue is not waited for. Errors throw Failure.
class RemoteDevice {
public:
    // `collector` is the program that sends a device's results and adds them to OpenMM's.
    RemoteDevice(OpenMM::CudaContext& cuda, CUdevice device, const std::string& collector);
    ~RemoteDevice();
    RemoteDevice(const RemoteDevice&) = delete;

    // Makes the device's context current while it exists; no effect for a null pointer.
    class Entry {
    public:
        explicit Entry(const RemoteDevice* device);
        ~Entry();
        Entry(const Entry&) = delete;

    private:
        const bool entered;
    };

    // The host of executors on the device.
    Host& host() const;

    // Streams for the FMM and for the Lennard-Jones pairs. Their work follows send(); that on the
    // second one may use neither atom indices nor low-order parts of positions.
    CUstream coulombStream() const { return coulomb; }
    CUstream pairStream() const { return pairs; }

    // Queue copying OpenMM's positions and clearing forces and energy, after work that was queued
    // before `ready`.
    void send(CUevent ready);

    // Queue copying forces and energy to OpenMM's device once they are computed; making OpenMM's
    // current stream wait for that; and adding them to OpenMM's there.
    void sendBack(bool forces, bool energy);
    void await();
    void add(bool forces, bool energy);

    // Pinned memory for the sums of an evaluation of the FMM; they are there after awaitSums(),
    // which requires that markSums() has followed the copy.
    Sums* sums() const { return pinned; }
    void markSums();
    const Sums& awaitSums() const;

    void synchronise() const;

    // Whether data between the devices do not pass through the memory of the host.
    bool isPeer() const { return peer; }

private:
    class RemoteHost;
    friend class Entry;

    void start(const std::string& collector);
    void allowAccess();
    void release();

    OpenMM::CudaContext& cuda;
    const CUdevice device;
    CUcontext context = nullptr;
    bool peer = false;
    std::unique_ptr<RemoteHost> remote;
    std::unique_ptr<CudaHost> own;
    std::unique_ptr<Executor> sending;  // on this device
    std::unique_ptr<Executor> adding;   // on OpenMM's
    CUstream coulomb = nullptr, pairs = nullptr;
    CUevent arrived = nullptr, joined = nullptr, summed = nullptr;
    Sums* pinned = nullptr;
};

}  // namespace fmm
