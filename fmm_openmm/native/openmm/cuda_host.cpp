#include "cuda_host.h"

#include <cstdio>

#include "../core/driver.h"
#include "openmm/common/ContextSelector.h"

using namespace OpenMM;

namespace fmm {

// OpenMM puts its own definitions in front of a source, some under names that our kernels use.
static const char* OWN_NAMES =
    "#define real fmm_real\n"
    "#define real2 fmm_real2\n"
    "#define real3 fmm_real3\n"
    "#define real4 fmm_real4\n"
    "#define mixed fmm_mixed\n";

CUmodule CudaHost::compile(const std::string& source) {
    ContextSelector selector(context);
    return load(source);
}

CUmodule CudaHost::load(const std::string& source) const {
    return context.createModule(OWN_NAMES + source, COMPILER_OPTIONS);
}

void CudaHost::reportCompilation() {
    python.report_compilation();
}

bool CudaHost::find(const std::string& array, CUdeviceptr& address) {
    if (array == "posq") address = context.getPosq().getDevicePointer();
    // exists only in mixed precision, and only then is it read
    else if (array == "posq_correction")
        address =
            context.getUseMixedPrecision() ? context.getPosqCorrection().getDevicePointer() : 0;
    else if (array == "atom_index")
        address = context.getAtomIndexArray().getDevicePointer();
    else if (array == "force_buffer")
        address = context.getLongForceBuffer().getDevicePointer();
    else if (array == "energy_buffer") {  // allocated after the forces are initialised
        if (!context.getEnergyBuffer().isInitialized()) return false;
        address = context.getEnergyBuffer().getDevicePointer();
    } else
        throw Failure("OpenMM has no array " + array);
    return true;
}

std::string modelOf(CUdevice device) {
    char name[256];
    check(cuDeviceGetName(name, sizeof(name), device), "asking a device");
    return name;
}

std::string uuidOf(CUdevice device) {
    CUuuid uuid;
    check(cuDeviceGetUuid(&uuid, device), "asking a device");
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char digits[3];
        std::snprintf(digits, sizeof(digits), "%02x", (unsigned char)uuid.bytes[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) text += "-";
        text += digits;
    }
    return text;
}

std::vector<CUdevice> peersOf(CUdevice device) {
    int number;
    std::vector<CUdevice> peers;
    check(cuDeviceGetCount(&number), "asking for devices");
    for (int i = 0; i < number; i++) {
        CUdevice other;
        int access = 0;
        check(cuDeviceGet(&other, i), "asking for a device");
        if (other == device || modelOf(other) != modelOf(device)) continue;
        check(cuDeviceCanAccessPeer(&access, device, other), "asking the devices");
        if (access) peers.push_back(other);
    }
    return peers;
}

DevicePlace::DevicePlace(CudaContext& cuda) : Place(), name(modelOf(cuda.getDevice())) {
    const CUdevice device = cuda.getDevice();
    check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
          "asking the device");
    check(cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                               device),
          "asking the device");
    model = name.c_str();
    precision = cuda.getUseDoublePrecision()
                    ? DOUBLE_PRECISION
                    : (cuda.getUseMixedPrecision() ? MIXED_PRECISION : SINGLE_PRECISION);
    particles = cuda.getNumAtoms();
    padded = cuda.getPaddedNumAtoms();
    devices = cuda.getPlatformData().contexts.size();
    peers = peersOf(device).size();
    energies = cuda.getNumThreadBlocks() * CudaContext::ThreadBlockSize;
}

}  // namespace fmm
