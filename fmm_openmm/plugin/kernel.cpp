#include "kernel.h"

#include <algorithm>
#include <cmath>

#include "openmm/System.h"
#include "openmm/common/ContextSelector.h"
#include "openmm/cuda/CudaKernelFactory.h"
#include "openmm/internal/ContextImpl.h"

using namespace OpenMM;

namespace fmm {

static const size_t SHAPES_KEPT = 2;       // so that a rejected change of the box costs nothing
static const double SAME_SHAPE = 1e-12;

Callbacks python;
volatile int64_t revision = 0;

// As OpenMM's PME: the computation starts on a stream of its own before the other forces, and is awaited after them.
class NativeKernel::Start : public ComputeContext::ForcePreComputation {
public:
    explicit Start(NativeKernel& owner) : owner(owner) {}
    void computeForceAndEnergy(bool includeForces, bool includeEnergy, int groups) override {
        if (groups & (1 << owner.group)) owner.begin(includeEnergy);
    }
private:
    NativeKernel& owner;
};

class NativeKernel::Finish : public ComputeContext::ForcePostComputation {
public:
    explicit Finish(NativeKernel& owner) : owner(owner) {}
    double computeForceAndEnergy(bool includeForces, bool includeEnergy, int groups) override {
        return groups & (1 << owner.group) ? owner.finish(includeForces, includeEnergy) : 0.0;
    }
private:
    NativeKernel& owner;
};

static void copyBox(const Vec3& a, const Vec3& b, const Vec3& c, double* box) {
    for (int i = 0; i < 3; i++) {
        box[i] = a[i];
        box[3 + i] = b[i];
        box[6 + i] = c[i];
    }
}

// By how much `box` is larger than `other`, which has the same shape; 0 if it has another.
static double scaleOf(const double* box, const double* other) {
    const double factor = std::cbrt(box[0] * box[4] * box[8] / (other[0] * other[4] * other[8]));
    const double largest = std::max({box[0], box[4], box[8]});
    for (int i = 0; i < 9; i++)
        if (!(std::fabs(box[i] - factor * other[i]) <= SAME_SHAPE * largest)) return 0;
    return factor;
}

NativeKernel::NativeKernel(const std::string& name, const Platform& platform, ContextImpl& context)
    : CalcPythonForceKernel(name, platform), context(context),
      cuda(*static_cast<CudaPlatform::PlatformData*>(context.getPlatformData())->contexts[0]) {}

NativeKernel::~NativeKernel() {
    ContextSelector selector(cuda);
    release();
    if (opened) python.close(this);
}

void NativeKernel::release() {
    if (stream) cuStreamSynchronize(stream);
    shapes.clear();
    if (stream) cuStreamDestroy(stream);
    if (begun) cuEventDestroy(begun);
    if (done) cuEventDestroy(done);
    if (energy) cuMemFreeHost(energy);
    stream = nullptr;
    begun = done = nullptr;
    energy = nullptr;
}

void NativeKernel::initialize(const ContextImpl&, const PythonForce& force) {
    int processors, shared;
    check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.getDevice()), "asking the device");
    check(cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, cuda.getDevice()),
          "asking the device");
    const int precision = cuda.getUseDoublePrecision() ? 2 : (cuda.getUseMixedPrecision() ? 1 : 0);
    const auto& pickled = force.getPickledFunction();
    Inbox claim;
    if (force.getParticles().empty())
        python.open(this, &context.getOwner(), pickled.data(), pickled.size(), precision, cuda.getNumAtoms(),
                    cuda.getPaddedNumAtoms(), processors, shared, &claim);
    opened = claim.items.count(CLAIM);
    if (opened) {
        group = force.getForceGroup();
        for (const auto& item : force.getGlobalParameters()) {
            names.push_back(item.first);
            values.push_back(item.second);
        }
        Inbox settled;
        try {
            ContextSelector selector(cuda);
            prepare();
            cuda.addPreComputation(new Start(*this));
            cuda.addPostComputation(new Finish(*this));
            python.settle(this, "", &settled);
            return;
        } catch (const std::exception& error) {
            ContextSelector selector(cuda);
            release();
            python.settle(this, error.what(), &settled);
        }
        if (settled.items.count(FAILURE)) throw OpenMMException(settled.items[FAILURE]);
    }
    delegate.reset(static_cast<CalcPythonForceKernel*>(CudaKernelFactory().createKernelImpl(getName(), getPlatform(), context)));
    delegate->initialize(context, force);
}

// What can fail fails here, before anything is computed: memory, compilation, FFT plans. The box is the default one.
void NativeKernel::prepare() {
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a stream");
    check(cuEventCreate(&begun, CU_EVENT_DISABLE_TIMING), "making an event");
    check(cuEventCreate(&done, cuda.getEventFlags()), "making an event");
    check(cuMemHostAlloc((void**) &energy, sizeof(double), 0), "allocating pinned memory");
    Vec3 a, b, c;
    context.getSystem().getDefaultPeriodicBoxVectors(a, b, c);
    copyBox(a, b, c, box);
    adopt(request(PROGRAM, nullptr)[PROGRAM]);
}

double NativeKernel::execute(ContextImpl& context, bool includeForces, bool includeEnergy) {
    return delegate ? delegate->execute(context, includeForces, includeEnergy) : 0.0;
}

void NativeKernel::begin(bool includeEnergy) {
    readContext();
    Executor& executor = *shapes[0].executor;
    check(cuEventRecord(begun, cuda.getCurrentStream()), "recording an event");
    check(cuStreamWaitEvent(stream, begun, 0), "waiting for an event");
    executor.evaluate(stream);
    if (includeEnergy)
        check(cuMemcpyDtoHAsync(energy, executor.address("energy"), sizeof(double), stream), "copying the energy");
    check(cuEventRecord(done, stream), "recording an event");
}

double NativeKernel::finish(bool includeForces, bool includeEnergy) {
    check(cuStreamWaitEvent(cuda.getCurrentStream(), done, 0), "waiting for an event");
    if (includeForces) shapes[0].executor->exportForces(cuda.getCurrentStream());
    if (!includeEnergy) return 0;
    // OpenMM is about to wait for its own energy; ours keeps float64 this way, whatever the precision of its buffer
    check(cuEventSynchronize(done), "computing");
    if (std::isnan(*energy)) explain();
    return *energy;
}

// Follow the Context's box vectors and global parameters, and changes of the force.
void NativeKernel::readContext() {
    std::vector<double> now;
    for (const auto& name : names) now.push_back(context.getParameter(name));
    Vec3 a, b, c;
    cuda.getPeriodicBoxVectors(a, b, c);
    copyBox(a, b, c, box);
    if (!placed || now != values || seen != revision) {
        seen = revision;
        values = now;
        std::vector<double> positions;
        if (!placed) {  // once: they tell how much of the cell is empty
            std::vector<Vec3> known;
            context.getPositions(known);
            for (const auto& x : known) positions.insert(positions.end(), {x[0], x[1], x[2]});
        }
        auto answer = request(CHARGES, positions.empty() ? nullptr : positions.data());
        placed = true;
        if (answer.count(CHARGES)) charges = answer[CHARGES];
        if (answer.count(PROGRAM)) {
            shapes.clear();
            charges.clear();
            adopt(answer[PROGRAM]);
        }
    }
    if (!useKept()) adopt(request(PROGRAM, nullptr)[PROGRAM]);
    Shape& shape = shapes[0];
    if (!std::equal(box, box + 9, shape.current)) scale(shape);
    if (shape.charges != charges) {
        shape.executor->upload("charges", charges.data(), charges.size(), stream);
        shape.charges = charges;
    }
}

// Whether a program for the shape of the box is there; it then is the first.
bool NativeKernel::useKept() {
    for (auto& shape : shapes)
        if (scaleOf(box, shape.box) != 0) {
            if (&shape != &shapes[0]) std::swap(shape, shapes[0]);
            return true;
        }
    return false;
}

std::map<int, std::string> NativeKernel::request(int what, const double* positions) {
    std::vector<const char*> texts;
    for (const auto& name : names) texts.push_back(name.c_str());
    Inbox inbox;
    python.request(this, what, box, positions, texts.data(), values.data(), texts.size(), &inbox);
    if (inbox.items.count(FAILURE)) throw OpenMMException(inbox.items[FAILURE]);
    return std::move(inbox.items);
}

// Make a program the one in use. It holds the present charges.
void NativeKernel::adopt(const std::string& bytes) {
    if (shapes.size() == SHAPES_KEPT) {
        check(cuStreamSynchronize(stream), "computing");
        check(cuStreamSynchronize(cuda.getCurrentStream()), "computing");
        shapes.pop_back();
    }
    Shape shape;
    shape.executor.reset(new Executor(cuda, bytes));
    std::copy(box, box + 9, shape.box);
    std::copy(box, box + 9, shape.current);
    shape.charges = charges;
    shapes.insert(shapes.begin(), std::move(shape));
}

// The parameter block (kernels/common/types.cuh) for another size of the box.
void NativeKernel::scale(Shape& shape) {
    static const int INVERSE = 0, POTENTIAL = 27, FIELD = 28;
    const std::string& made = shape.executor->initial("parameters");
    std::vector<double> block(made.size() / sizeof(double));
    std::memcpy(block.data(), made.data(), made.size());
    const double factor = 1 / scaleOf(box, shape.box);
    for (int i = INVERSE; i < INVERSE + 9; i++) block[i] *= factor;
    block[POTENTIAL] *= factor;
    block[FIELD] *= factor * factor;
    shape.executor->upload("parameters", block.data(), made.size(), stream);
    std::copy(box, box + 9, shape.current);
}

// Say what is wrong with an energy that is not a number.
void NativeKernel::explain() {
    std::vector<Vec3> positions;
    context.getPositions(positions);
    for (size_t i = 0; i < positions.size(); i++)
        for (int axis = 0; axis < 3; axis++)
            if (!(std::fabs(positions[i][axis]) < 1e9))
                throw OpenMMException("FMMForce: the coordinates of particle " + std::to_string(i) + " are not finite or absurdly far");
    throw OpenMMException("FMMForce: the energy is not a number; particles that are not excluded coincide");
}

}  // namespace fmm
