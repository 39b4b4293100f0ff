#include "remote_device.h"

#include "openmm/common/ContextSelector.h"

using namespace OpenMM;

namespace fmm {

// Arrays of the same names and sizes as OpenMM's. Positions are copies of OpenMM's, forces and
// energy are added to OpenMM's.
class RemoteDevice::RemoteHost : public CudaHost {
public:
    struct Array {
        CUdeviceptr original, copy;
        size_t bytes;
    };

    RemoteHost(CudaContext& cuda, const RemoteDevice& owner) : CudaHost(cuda), owner(owner) {
        add("posq", cuda.getPosq());
        if (cuda.getUseMixedPrecision()) add("posq_correction", cuda.getPosqCorrection());
        add("atom_index", cuda.getAtomIndexArray());
        add("force_buffer", cuda.getLongForceBuffer());
        add("energy_buffer", 0, owner.adding->bytes("sent_energy"));
    }

    ~RemoteHost() {
        for (auto& [name, array] : arrays) cuMemFree(array.copy);
    }

    CUmodule compile(const std::string& source) override {
        Entry entry(&owner);
        return load(source);
    }

    std::string place() const override { return " on device " + uuidOf(owner.device); }

    bool find(const std::string& name, CUdeviceptr& address) override {
        const auto found = arrays.find(name);
        address = found == arrays.end() ? 0 : found->second.copy;
        return true;
    }

    const Array& array(const std::string& name) const { return arrays.at(name); }
    bool has(const std::string& name) const { return arrays.count(name); }

private:
    void add(const std::string& name, CudaArray& array) {
        add(name, array.getDevicePointer(), array.getSize() * array.getElementSize());
    }

    void add(const std::string& name, CUdeviceptr original, size_t bytes) {
        CUdeviceptr copy;
        check(cuMemAlloc(&copy, bytes), "allocating " + name + place());
        arrays[name] = {original, copy, bytes};
    }

    const RemoteDevice& owner;
    std::map<std::string, Array> arrays;
};

RemoteDevice::Entry::Entry(const RemoteDevice* device) : entered(device != nullptr) {
    if (entered) check(cuCtxPushCurrent(device->context), "entering a further device");
}

RemoteDevice::Entry::~Entry() {
    CUcontext left;
    if (entered) cuCtxPopCurrent(&left);
}

RemoteDevice::RemoteDevice(CudaContext& cuda, CUdevice device, const std::string& collector)
    : cuda(cuda), device(device) {
    try {
        start(collector);
    } catch (...) {
        release();
        throw;
    }
}

RemoteDevice::~RemoteDevice() {
    ContextSelector selector(cuda);
    release();
}

void RemoteDevice::start(const std::string& collector) {
    check(cuDevicePrimaryCtxRetain(&context, device), "using device " + uuidOf(device));
    allowAccess();
    own.reset(new CudaHost(cuda));
    adding.reset(new Executor(*own, collector));
    Entry entry(this);
    remote.reset(new RemoteHost(cuda, *this));
    sending.reset(new Executor(*remote, collector));
    coulomb = makeStream();
    pairs = makeStream();
    for (CUevent* event : {&arrived, &joined, &summed})
        check(cuEventCreate(event, CU_EVENT_DISABLE_TIMING), "making an event");
    check(cuMemHostAlloc((void**)&pinned, sizeof(Sums), 0), "allocating pinned memory");
}

// Without access, the driver copies through the memory of the host.
void RemoteDevice::allowAccess() {
    int there, back;
    check(cuDeviceCanAccessPeer(&there, cuda.getDevice(), device), "asking the devices");
    check(cuDeviceCanAccessPeer(&back, device, cuda.getDevice()), "asking the devices");
    peer = there && back;
    if (!peer) return;
    const auto enable = [](CUcontext other) {
        const CUresult result = cuCtxEnablePeerAccess(other, 0);
        if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
            check(result, "allowing access between devices");
    };
    enable(context);
    Entry entry(this);
    enable(cuda.getContext());
}

void RemoteDevice::release() {
    if (!context) return;
    adding.reset();
    {
        Entry entry(this);
        for (CUstream stream : {coulomb, pairs})
            if (stream) {
                cuStreamSynchronize(stream);
                cuStreamDestroy(stream);
            }
        for (CUevent event : {arrived, joined, summed})
            if (event) cuEventDestroy(event);
        if (pinned) cuMemFreeHost(pinned);
        sending.reset();
        remote.reset();
    }
    cuDevicePrimaryCtxRelease(device);
}

Host& RemoteDevice::host() const {
    return *remote;
}

void RemoteDevice::send(CUevent ready) {
    Entry entry(this);
    makeWait(coulomb, pairs, joined);  // pairs of an evaluation that was abandoned
    for (const std::string name : {"force_buffer", "energy_buffer"}) {
        const auto& array = remote->array(name);
        check(cuMemsetD8Async(array.copy, 0, array.bytes, coulomb), "clearing");
    }
    check(cuStreamWaitEvent(coulomb, ready, 0), "waiting for an event");
    for (const std::string name : {"posq", "posq_correction", "atom_index"}) {
        if (!remote->has(name)) continue;
        const auto& array = remote->array(name);
        check(cuMemcpyPeerAsync(array.copy, context, array.original, cuda.getContext(), array.bytes,
                                coulomb),
              "copying positions");
        if (name == "posq") makeWait(pairs, coulomb, arrived);
    }
}

void RemoteDevice::sendBack(bool forces, bool energy) {
    Entry entry(this);
    makeWait(coulomb, pairs, joined);
    const auto copy = [&](CUdeviceptr from, const std::string& to) {
        check(cuMemcpyPeerAsync(adding->address(to), cuda.getContext(), from, context,
                                adding->bytes(to), coulomb),
              "copying results");
    };
    if (forces) {
        sending->run(phase::EXPORT, coulomb);
        copy(sending->address("sent_forces"), "sent_forces");
    }
    if (energy) copy(remote->array("energy_buffer").copy, "sent_energy");
    check(cuEventRecord(arrived, coulomb), "recording an event");
}

void RemoteDevice::await() {
    check(cuStreamWaitEvent(cuda.getCurrentStream(), arrived, 0), "waiting for an event");
}

void RemoteDevice::add(bool forces, bool energy) {
    if (forces) adding->run(phase::FORCES, cuda.getCurrentStream());
    if (energy) adding->run(phase::ENERGY, cuda.getCurrentStream());
}

void RemoteDevice::markSums() {
    Entry entry(this);
    check(cuEventRecord(summed, coulomb), "recording an event");
}

const Sums& RemoteDevice::awaitSums() const {
    check(cuEventSynchronize(summed), "computing");
    return *pinned;
}

void RemoteDevice::synchronise() const {
    Entry entry(this);
    check(cuStreamSynchronize(coulomb), "computing");
    check(cuStreamSynchronize(pairs), "computing");
}

}  // namespace fmm
