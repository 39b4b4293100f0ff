#include "site_list.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

using namespace OpenMM;

namespace fmm {

static const double FIRST_BUFFER = 0.1, MIN_BUFFER = 0.03;  // nm
static const double MAX_BUFFER_SHARE = 0.25;                // fraction of the cutoff
static const double MIN_BUFFER_CHANGE = 1.1;                // as a factor
static const double LIST_COST = 2.5;  // cost of building a list relative to computing its pairs
// evaluations between reports, and from a report until it is read
static const int REPORT_INTERVAL = 128, REPORT_DELAY = 32;
// ratio of an edge of the box to the one for which the program was built
static const double MAX_BOX_CHANGE = 1.2;

template <class T>
static std::string bytesOf(const std::vector<T>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

void Interaction::setSites(const std::vector<int>& typeOfParticle,
                           const std::vector<std::pair<int, int>>& excluded) {
    slot.clear();
    type.clear();
    std::vector<int> site(typeOfParticle.size(), -1);
    for (int i = 0; i < (int)typeOfParticle.size(); i++) {
        if (typeOfParticle[i] < 0) continue;
        site[i] = slot.size();
        slot.push_back(i);
        type.push_back(typeOfParticle[i]);
    }
    std::vector<std::pair<int, int>> pairs;
    for (const auto& [i, j] : excluded) {
        if (site[i] < 0 || site[j] < 0) continue;
        pairs.emplace_back(site[i], site[j]);
        pairs.emplace_back(site[j], site[i]);
    }
    std::sort(pairs.begin(), pairs.end());
    start.assign(slot.size() + 1, 0);
    partner.clear();
    for (const auto& [i, j] : pairs) {
        start[i + 1]++;
        partner.push_back(j);
    }
    for (size_t s = 0; s < slot.size(); s++) start[s + 1] += start[s];
}

// Calls act(replica, stream) for every device.
template <class Act>
void SiteList::onEachDevice(Act act) {
    for (auto& each : replicas) {
        RemoteDevice::Entry entry(each.device);
        act(each, each.device ? each.device->pairStream() : cuda.getCurrentStream());
    }
}

void SiteList::runOnEachDevice(const std::string& phase) {
    onEachDevice(
        [&](Replica& each, CUstream stream) { each.executor->run(phase, stream, urgent); });
}

SiteList::SiteList(CudaContext& cuda, const Interaction& interaction)
    : cuda(cuda),
      host(cuda),
      interaction(interaction),
      buffer(std::min(FIRST_BUFFER, MAX_BUFFER_SHARE * interaction.cutoff)) {
    try {
        addReplica(nullptr);
        readBox();
        build();
    } catch (...) {
        release();
        throw;
    }
}

SiteList::~SiteList() {
    release();
}

void SiteList::addReplica(RemoteDevice* device) {
    RemoteDevice::Entry entry(device);
    replicas.emplace_back();
    Replica& made = replicas.back();
    made.device = device;
    check(cuMemHostAlloc((void**)&made.state, sizeof(State), 0), "allocating pinned memory");
    check(cuEventCreate(&made.reported, cuda.getEventFlags()), "making an event");
}

void SiteList::release() {
    discardPrograms();
    for (auto& each : replicas) {
        RemoteDevice::Entry entry(each.device);
        if (each.reported) cuEventDestroy(each.reported);
        if (each.state) cuMemFreeHost(each.state);
    }
    replicas.clear();
}

void SiteList::discardPrograms() {
    onEachDevice([](Replica& each, CUstream stream) {
        cuStreamSynchronize(stream);
        each.executor.reset();
    });
}

// Finds further devices, which may be there only after all kernels have been initialised. A program
// that shares the pairs with them is built next.
void SiteList::findRemotes() {
    if (remotes || !(remotes = RemoteDevices::in(cuda))) return;
    discardPrograms();
    for (int i = 0; i < remotes->number(); i++) addReplica(&(*remotes)[i]);
}

void SiteList::readBox() {
    Vec3 vectors[3];
    cuda.getPeriodicBoxVectors(vectors[0], vectors[1], vectors[2]);
    for (int i = 0; i < 9; i++) box[i] = interaction.periodic ? vectors[i / 3][i % 3] : 0;
}

// Builds a program for the present box, with capacity for the longest lists so far.
void SiteList::build() {
    discardPrograms();
    Sites sites = {};
    sites.number = interaction.slot.size();
    sites.types = interaction.types;
    sites.partners = interaction.partner.size();
    sites.deterministic = cuda.getPlatformData().deterministicForces;
    sites.entries = entries;
    sites.masked = masked;
    sites.cutoff = interaction.cutoff;
    sites.switching = interaction.switching;
    sites.radius = interaction.cutoff + buffer;
    sites.shared = remotes != nullptr;
    sites.functions = interaction.functions.c_str();
    std::copy(box, box + 9, sites.box);
    std::copy(box, box + 9, builtFor);
    DevicePlace place(cuda);
    Inbox inbox;
    python.pair_program(&sites, &place, &inbox);
    inbox.check();
    if (inbox.items.count(FAILURE)) throw OpenMMException(inbox.items[FAILURE]);
    onEachDevice([&](Replica& each, CUstream) {
        each.executor.reset(
            new Executor(each.device ? each.device->host() : host, inbox.items[PROGRAM]));
    });
    forcedBuilds = 0;
    upload();
    capacityUnverified = true;
}

// Uploads sites and coefficients; lists will be rebuilt.
void SiteList::upload() {
    onEachDevice([&](Replica& each, CUstream stream) {
        each.executor->upload("slot", bytesOf(interaction.slot), stream);
        each.executor->upload("type", bytesOf(interaction.type), stream);
        each.executor->upload("start", bytesOf(interaction.start), stream);
        if (!interaction.partner.empty())
            each.executor->upload("partner", bytesOf(interaction.partner), stream);
    });
    uploadTable();
    uploadCell();
    runOnEachDevice(phase::SETUP);
    builds = 0;
}

void SiteList::uploadTable() {
    const bool plain = interaction.functions.empty();
    std::vector<double> table;
    for (size_t k = 0; k < interaction.repulsion.size(); k++) {
        table.push_back((plain ? 12 : 1) * interaction.repulsion[k]);
        table.push_back((plain ? 6 : 1) * interaction.attraction[k]);
    }
    const std::vector<float> rounded(table.begin(), table.end());
    const std::string bytes = cuda.getUseDoublePrecision() ? bytesOf(table) : bytesOf(rounded);
    onEachDevice(
        [&](Replica& each, CUstream stream) { each.executor->upload("pairs", bytes, stream); });
}

void SiteList::update(const Interaction& other) {
    const bool same =
        other.types == interaction.types && other.slot == interaction.slot &&
        other.start == interaction.start && other.partner == interaction.partner &&
        other.cutoff == interaction.cutoff && other.switching == interaction.switching &&
        other.periodic == interaction.periodic && other.functions == interaction.functions;
    const bool moved = other.type != interaction.type;  // types of sites have changed
    interaction = other;
    if (!isBuilt()) return;
    if (!same)
        build();
    else if (moved)
        upload();
    else
        uploadTable();
}

void SiteList::setTable(const Interaction& other) {
    interaction.repulsion = other.repulsion;
    interaction.attraction = other.attraction;
    if (isBuilt()) uploadTable();
}

// Uploads the cell and invalidates the list. The radius includes a margin for rounding of
// coordinates in the cell, half a unit in the last place for both sites, when the list is built and
// when it is used. The parts of the devices change with the list.
void SiteList::uploadCell() {
    if (remotes) uploadParts();
    if (interaction.cutoff == 0) return;
    const double widest = std::max({box[0], box[4], box[8], interaction.cutoff});
    const double rounding = (cuda.getUseDoublePrecision() ? 0x1p-53 : 0x1p-24) * widest;
    Cell cell;
    std::copy(box, box + 9, cell.vectors);
    cell.radius = (interaction.cutoff + buffer) * (1 + 1e-6) + 4 * rounding;
    cell.limit = 0.25 * buffer * buffer;
    onEachDevice([&](Replica& each, CUstream stream) {
        each.executor->upload("cell", &cell, sizeof(cell), stream);
        check(cuMemsetD32Async(each.executor->address("state") + offsetof(State, built), 0, 1,
                               stream),
              "clearing");
    });
    forcedBuilds++;
}

void SiteList::uploadParts() {
    partsVersion = remotes->version();
    int device = 0;
    onEachDevice([&](Replica& each, CUstream stream) {
        const Part part = remotes->part(device++);
        const int rows[2] = {(int)std::lround(part.first * WHOLE),
                             (int)std::lround(part.end * WHOLE)};
        each.executor->upload("share", rows, sizeof(rows), stream);
    });
}

bool SiteList::isBuilt() const {
    return std::all_of(replicas.begin(), replicas.end(),
                       [](const Replica& each) { return bool(each.executor); });
}

void SiteList::prepare() {
    findRemotes();
    if (remotes) remotes->send();
    double before[9];
    std::copy(box, box + 9, before);
    readBox();
    bool fits = isBuilt();
    for (int i = 0; i < 9; i += 4)
        fits = fits && box[i] <= MAX_BOX_CHANGE * builtFor[i] &&
               builtFor[i] <= MAX_BOX_CHANGE * box[i];
    if (!fits)
        build();
    else if (!std::equal(box, box + 9, before) || (remotes && partsVersion != remotes->version()))
        uploadCell();
    runOnEachDevice(phase::LIST);
    if (capacityUnverified && interaction.cutoff > 0) ensureCapacity();
    capacityUnverified = false;
}

void SiteList::compute(bool forces, bool energy) {
    runOnEachDevice(!forces ? phase::ENERGY : (energy ? phase::BOTH : phase::FORCES));
    if (interaction.cutoff > 0) report();
}

// Waits for the first list and enlarges the capacity until all lists fit.
void SiteList::ensureCapacity() {
    for (;;) {
        runOnEachDevice(phase::SEARCH);
        requestReports();
        readReports();
        if (!tooLong) return;
        grow();
        runOnEachDevice(phase::LIST);
    }
}

// Enlarges the capacity of lists. Until then, the kernels compute pairs without lists where these
// are too long, which is slow but complete.
void SiteList::grow() {
    for (const auto& each : replicas) {
        entries = std::max(entries, each.state->entries);
        masked = std::max(masked, each.state->masked);
    }
    build();
}

// Copies the devices' states, and reads them a fixed number of evaluations later: nothing waits for
// the copies, and the consequences do not depend on timing.
void SiteList::report() {
    const int since = ++evaluations % REPORT_INTERVAL;
    if (since == 0)
        requestReports();
    else if (since == REPORT_DELAY && evaluations > REPORT_INTERVAL) {
        readReports();
        if (tooLong)
            grow();
        else
            adaptBuffer();
    }
}

void SiteList::requestReports() {
    onEachDevice([](Replica& each, CUstream stream) {
        check(cuMemcpyDtoHAsync(each.state, each.executor->address("state"), sizeof(State), stream),
              "copying");
        check(cuEventRecord(each.reported, stream), "recording an event");
    });
}

void SiteList::readReports() {
    strayed = tooLong = false;
    for (const auto& each : replicas) {
        check(cuEventSynchronize(each.reported), "computing");
        strayed = strayed || each.state->strayed;
        tooLong = tooLong || each.state->too_long;
    }
}

// Chooses the buffer that minimises the cost of lists and pairs. Both grow as the cube of the
// list's radius, and the lifetime of a list is proportional to its buffer as long as sites move
// ballistically. With the speed in nm per evaluation, relative to the buffer that it uses up,
//
//     cost = (cutoff + buffer)^3 (1 + LIST_COST speed / buffer)
//
// is least for 3 buffer^2 + 2 LIST_COST speed buffer = LIST_COST speed cutoff. Lists that were
// rebuilt because the box changed are not counted.
void SiteList::adaptBuffer() {
    const State& state = *replicas.front().state;
    const int lists = state.builds - builds - forcedBuilds;
    builds = state.builds;
    forcedBuilds = 0;
    const double speed = LIST_COST * std::max(0, lists) * buffer / REPORT_INTERVAL;
    double wanted = (std::sqrt(speed * speed + 3 * speed * interaction.cutoff) - speed) / 3;
    wanted = std::min(std::max(wanted, MIN_BUFFER), MAX_BUFFER_SHARE * interaction.cutoff);
    if (wanted < MIN_BUFFER_CHANGE * buffer && buffer < MIN_BUFFER_CHANGE * wanted) return;
    capacityUnverified = capacityUnverified || wanted > buffer;
    buffer = wanted;
    uploadCell();
}

}  // namespace fmm
