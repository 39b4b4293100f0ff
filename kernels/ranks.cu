// ranks: particles that many GPUs share. Each GPU owns a range of boxes. It receives copies of all
// particles with a part in a box that is near one of its own, and of the excluded partners of the
// particles with a part in one of its own.
//
//   mark_particles  the ranks in whose boxes each particle that this rank was given has parts, and
//                   those that own boxes near these, and need a copy. A thread per particle
//   keep_copies     makes the copies for this rank and enters them into the lists, concurrently
//                   with the next three kernels and the exchange. A thread per particle
//   mark_partners   adds the ranks that need a copy because they own an excluded partner, and
//                   counts the copies for each other rank; if it adds this rank, makes the copy as
//                   keep_copies does. A thread per particle
//   sum_lists       from these counts to the places of copies. A block for CHUNK counts
//   make_copies     makes the copies for other ranks. A thread per particle
//   place_copies    unpacks those from other ranks and enters them into the lists. A thread per
//                   place of a copy
//   clear_totals    clears the sums of results from other ranks, with the priority of its stream,
//                   which a memset in a graph does not have. A thread per particle
//   sum_strain      with VIRIAL, the share of the rank's boxes and wave vectors in the products of
//                   the virial with the generators of strain, see gather.cu. A thread for several
//                   parts
//   gather_copies   results of other ranks' copies from their parts in the rank's boxes, to be
//                   returned. A thread per place
//   add_returned    adds the results from another rank to those from others. A thread per place of
//                   a result
//   finish          results of the particles that this rank was given: from their parts in its own
//                   boxes, and from other ranks; and sums over particles. A thread for several
//                   particles
//   add_energies    the energy of all particles from the sums of all ranks. A thread
//
// To enter a copy into the lists, a rank appends its parts to the lists of their boxes.
//
// A pattern is a list of excluded partners, as differences between their numbers among all
// particles and that of the particle itself. Particles with the same list share it, as in the
// molecules of a liquid.
//
// Sets of ranks are masks of 32 bits. Ranks are numbered by their distance from this one,
// cyclically. There is a place for the copy of each particle that the rank was given, in their
// order, whether it needs the copy or not; then room for a number of copies from each other rank,
// and likewise for each. Those with a part in the boxes of the rank that gets them come first, and
// are in the order of the particles. Numbers of copies may exceed the room: the host, which learns
// this after the evaluation, then makes more and repeats it. Bound by memory latency.
//
// Positions may be elsewhere at each evaluation: mark_particles leaves their address to the kernels
// after it, whose arguments never change.
#include "common/grid_sums.cuh"
#include "common/part_results.cuh"
#include "common/reduce.cuh"
#include "common/tag.cuh"
#if VIRIAL
#include "common/strain.cuh"
#endif

typedef const POSITION* Positions;  // (n, 3)

// Room for the copies of one rank, with the first place in arrays for all ranks: of copies from it,
// of copies for it, and of the results that it returns. Those for this rank itself are not sent.
struct Room {
    int from, from_room, to, to_room, back, back_room;
};

// Numbers of copies: all, and those with a part in the boxes of the rank that has them.
struct Number {
    int all, own;
};

// Distance of the rank that the copy at place i is from, if there is one.
__device__ __forceinline__ int distance_of(int i, const Room* __restrict__ rooms, int ranks) {
    int distance = ranks - 1;
    while (i < rooms[distance].from) distance--;
    return distance;
}

// Whether there is a copy from another rank at place i.
__device__ __forceinline__ bool is_copy(int i, int distance, const Room* __restrict__ rooms,
                                        const Number* __restrict__ number) {
    const Room room = rooms[distance];
    return i - room.from < min(number[distance].all, room.from_room);
}

// Ranks of a box.
struct BoxRanks {
    unsigned owner, near;  // the one that owns it, and those that own boxes near it
};

// Locates particle i, see parts.cuh.
__device__ __forceinline__ Located locate(int i, const POSITION* __restrict__ positions,
                                          real charge, const Parameters* __restrict__ parameters,
                                          real4& fraction) {
    Located at, located;
    locate_particle(
        0, in_boxes(positions[3 * i], positions[3 * i + 1], positions[3 * i + 2], parameters),
        charge, &located, &fraction, at);
    return at;
}

extern "C" __global__ void mark_particles(
    int n, const POSITION* __restrict__ positions /* (n, 3) */,
    const real* __restrict__ charges /* (n) */, const Parameters* __restrict__ parameters, int rank,
    const BoxRanks* __restrict__ ranks /* (BOXES) */, unsigned* __restrict__ owners /* (n) */,
    unsigned* __restrict__ wanted /* (n) */, Pattern* __restrict__ pattern /* (n) */,
    Positions* __restrict__ address /* (1) */, int* __restrict__ ticket /* (1): zeroed */,
    int counts, int* __restrict__ count /* (counts): zeroed */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) *address = positions, *ticket = 0;
    for (int k = i; k < counts; k += gridDim.x * blockDim.x) count[k] = 0;
    if (i >= n) return;
    real4 fraction;
    const Located at = locate(i, positions, charges[i], parameters, fraction);
    unsigned own = 0, near = 0;
    for_each_corner(at, [&](int corner) {
        const BoxRanks box = ranks[box_of(at, corner)];
        own |= box.owner;
        near |= box.near;
    });
    owners[i] = own;
    wanted[i] = near;
    const bool is_own = own >> rank & 1;
    if (pattern[i].is_own() != is_own) pattern[i] = pattern[i].with_own(is_own);
}

// Calls visit(distance, list, lanes) for the copies of a warp's particles for each other rank: an
// even list of those with a part in its boxes, an odd one of others, and the lanes that have one.
template <class Visit>
__device__ __forceinline__ void for_each_list(int rank, int ranks, unsigned own, unsigned wanted,
                                              Visit visit) {
    for (int s = 1; s < ranks; s++) {
        const int other = rank + s < ranks ? rank + s : rank + s - ranks;
        const unsigned first = __ballot_sync(FULL, own >> other & 1);
        visit(s, 2 * s - 2, first);
        visit(s, 2 * s - 1, __ballot_sync(FULL, wanted >> other & 1) & ~first);
    }
}

// Makes the copy of particle i for this rank, and enters it into the lists.
__device__ __forceinline__ void keep(int i, const POSITION* __restrict__ positions,
                                     const real* __restrict__ charges,
                                     const Parameters* __restrict__ parameters,
                                     Located* __restrict__ located, real4* __restrict__ fraction,
                                     const Lists& lists) {
    const Located at = locate(i, positions, charges[i], parameters, fraction[i]);
    located[i] = at;
    append_parts(i, at, lists);
}

extern "C" __global__ void keep_copies(
    int n, int rank, const Positions* __restrict__ address /* (1) */,
    const real* __restrict__ charges /* (n) */, const Parameters* __restrict__ parameters,
    const unsigned* wanted /* (n) */, int room /* of all copies */,
    Located* __restrict__ located /* (room) */, real4* __restrict__ fraction,
    int* __restrict__ count /* (BOXES) */, int* __restrict__ arrived /* (BOXES, LISTED) */,
    int* __restrict__ next /* (CORNERS, room) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && wanted[i] >> rank & 1)
        keep(i, *address, charges, parameters, located, fraction, {room, count, arrived, next});
}

extern "C" __global__ void mark_partners(
    int n, int rank, int ranks, int first /* number of particle 0 among all */,
    const Positions* __restrict__ address, const real* __restrict__ charges,
    const Pattern* __restrict__ pattern, const Parameters* __restrict__ parameters,
    const int* __restrict__ pattern_start /* (patterns + 1) */,
    const int* __restrict__ partner /* of each pattern */,
    const unsigned* __restrict__ owners /* (all) */,
    unsigned* wanted /* (n): the bit of this rank, which keep_copies reads meanwhile, is kept */,
    int* __restrict__ listed /* (2 (ranks - 1), warps) */, int room, Located* __restrict__ located,
    real4* __restrict__ fraction, int* __restrict__ count, int* __restrict__ arrived,
    int* __restrict__ next) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, warps = gridDim.x * (blockDim.x / 32);
    const unsigned here = 1u << rank;
    unsigned own = 0, near = 0, needed = 0;
    if (i < n) {
        own = owners[first + i];
        near = wanted[i];
        const int shared = pattern[i].number();
        for (int k = pattern_start[shared]; k < pattern_start[shared + 1]; k++)
            needed |= owners[first + i + partner[k]];
        if (needed & ~near & ~here) wanted[i] = near | (needed & ~here);
        if (needed & ~near & here)
            keep(i, *address, charges, parameters, located, fraction, {room, count, arrived, next});
    }
    for_each_list(rank, ranks, own, near | needed, [&](int, int list, unsigned lanes) {
        if (threadIdx.x % 32 == 0) listed[list * warps + i / 32] = __popc(lanes);
    });
}

#define CHUNK (4 * SUM_BLOCK)

// The sum of the values of the threads before this one in its block, and of all.
__device__ __forceinline__ int sum_before(int value, int& all) {
    __shared__ int sum[SUM_BLOCK / 32];
    const int lane = threadIdx.x % 32;
    const int here = prefix_sum(value);
    int of_warps = 0;
    __syncthreads();  // the sums of the call before have been read
    if (lane == 31) sum[threadIdx.x / 32] = here;
    __syncthreads();
    all = 0;
    for (int w = 0; w < SUM_BLOCK / 32; w++) {
        if (w == threadIdx.x / 32) of_warps = all;
        all += sum[w];
    }
    return of_warps + here - value;
}

extern "C" __global__ void __launch_bounds__(SUM_BLOCK)
    sum_lists(int n /* a multiple of 4 */,
              int4* listed /* (n / 4): replaced by the sums, within a chunk, up to each */,
              int* before /* (chunks): sums of the chunks before each */,
              int* ticket /* (1): zero, before and after */) {
    __shared__ bool last;
    const int k = blockIdx.x * SUM_BLOCK + threadIdx.x;
    int4 v = {0, 0, 0, 0};
    if (4 * k < n) v = listed[k];
    int all;
    const int from = sum_before(v.x + v.y + v.z + v.w, all);
    if (4 * k < n)
        listed[k] = int4{from + v.x, from + v.x + v.y, from + v.x + v.y + v.z,
                         from + v.x + v.y + v.z + v.w};
    if (threadIdx.x == 0) {
        before[blockIdx.x] = all;
        __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    if (threadIdx.x == 0) *ticket = 0;
    int sum = 0;
    for (int first = 0; first < gridDim.x; first += SUM_BLOCK) {
        const int chunk = first + threadIdx.x;
        const int own = chunk < gridDim.x ? reinterpret_cast<volatile int*>(before)[chunk] : 0;
        const int place = sum + sum_before(own, all);
        if (chunk < gridDim.x) before[chunk] = place;
        sum += all;
    }
}

// Numbers of copies in the lists of all warps.
struct Listed {
    const int* __restrict__ listed;  // (2 (ranks - 1), warps): sums as of sum_lists
    const int* __restrict__ before;
    int warps;

    // Sum of the first k numbers.
    __device__ __forceinline__ int first(int k) const {
        return k > 0 ? listed[k - 1] + before[(k - 1) / CHUNK] : 0;
    }

    // Place of the copy of particle i, in a list, among those for the same rank; `lanes` of its
    // warp have one.
    __device__ __forceinline__ int place(int list, int i, unsigned lanes) const {
        return first(list * warps + i / 32) - first(list / 2 * 2 * warps) +
               __popc(lanes & ((1u << threadIdx.x % 32) - 1));
    }
};

struct Copies {
    Located* located;
    real4* fraction;  // u, charge
    Tag* tag;
};

// A copy on its way.
struct Packed {
    char bytes[sizeof(Located) + sizeof(real4) + sizeof(Tag)];
};

// The copies from or for one rank on their way: its room holds one array after the other.
__device__ __forceinline__ Copies unpacked(const Packed* begin, int room) {
    Located* located = (Located*)begin;
    real4* fraction = reinterpret_cast<real4*>(located + room);
    return {located, fraction, reinterpret_cast<Tag*>(fraction + room)};
}

extern "C" __global__ void make_copies(
    int n, int rank, int ranks, int first, const Positions* __restrict__ address,
    const real* __restrict__ charges, const Pattern* __restrict__ pattern,
    const Parameters* __restrict__ parameters, const unsigned* __restrict__ owners /* (n) */,
    const unsigned* __restrict__ wanted /* (n) */,
    const int* __restrict__ listed /* (2 (ranks - 1), warps) */, const int* __restrict__ before,
    const Room* __restrict__ rooms /* (ranks) */,
    Number* __restrict__ sent_number /* (ranks): from the second on */,
    Packed* __restrict__ sent /* of copies for other ranks */,
    int* __restrict__ returned_to /* particle of each result that others return */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const Listed lists = {listed, before, int(gridDim.x * (blockDim.x / 32))};
    if (i > 0 && i < ranks) {
        const int begin = lists.first((2 * i - 2) * lists.warps);
        sent_number[i] = {lists.first(2 * i * lists.warps) - begin,
                          lists.first((2 * i - 1) * lists.warps) - begin};
    }
    const unsigned owner = i < n ? owners[i] : 0, near = i < n ? wanted[i] : 0;
    for_each_list(rank, ranks, owner, near, [&](int distance, int list, unsigned lanes) {
        if (!(lanes >> threadIdx.x % 32 & 1)) return;
        const Room room = rooms[distance];
        const int k = lists.place(list, i, lanes);
        const bool is_own = list % 2 == 0;
        if (is_own && k < room.back_room) returned_to[room.back + k] = i;
        if (k >= room.to_room) return;
        const Copies to = unpacked(sent + room.to, room.to_room);
        to.located[k] = locate(i, *address, charges[i], parameters, to.fraction[k]);
        to.tag[k] = {first + i, pattern[i].with_own(is_own)};
    });
}

extern "C" __global__ void place_copies(
    int ranks, const Room* __restrict__ rooms /* (ranks) */,
    const Number* __restrict__ number /* (ranks) */,
    const Packed* __restrict__ received /* of copies from other ranks */, int n /* places */,
    Located* __restrict__ located, real4* __restrict__ fraction, int* __restrict__ count,
    int* __restrict__ arrived, int* __restrict__ next, Tag* __restrict__ tag /* (n - given) */,
    int* __restrict__ copy_of /* (all): of each particle of another rank that has one */) {
    const int given = rooms[0].from_room, i = given + blockIdx.x * blockDim.x + threadIdx.x;
    const int distance = distance_of(i, rooms, ranks);
    if (i >= n || !is_copy(i, distance, rooms, number)) return;
    const Room room = rooms[distance];
    const Copies from = unpacked(received + (room.from - given), room.from_room);
    const int k = i - room.from;
    const Located at = from.located[k];
    located[i] = at;
    fraction[i] = from.fraction[k];
    const Tag its = from.tag[k];
    tag[i - given] = its;
    copy_of[its.number] = i;
    append_parts(i, at, {n, count, arrived, next});
}

extern "C" __global__ void clear_totals(int n, real4* totals /* (n) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) totals[i] = {0, 0, 0, 0};
}

#if VIRIAL
extern "C" __global__ void __launch_bounds__(256)
    sum_strain(const int* __restrict__ start /* (BOXES + 1) */,
               const Share* __restrict__ share /* (1) */,
               const real4* __restrict__ xq /* (parts) */,
               const real4* __restrict__ far /* (parts) */, int lattice_works,
               const double* __restrict__ lattice_work /* (lattice_works, GENERATORS) */,
               const real* __restrict__ near_work /* (BOXES, 2, WORK_SUMS), of boxes with parts */,
               double* partial /* (blocks, GENERATORS) */, int* ticket /* (1), zero */,
               double* __restrict__ sums /* (GENERATORS) */) {
    const BoxRange boxes = near_boxes(share), parts = parts_in(boxes, start);
    double own[GENERATORS] = {};
    add_works(own, lattice_works, lattice_work, boxes, start, near_work);
    for (int k = parts.first + blockIdx.x * blockDim.x + threadIdx.x; k < parts.end;
         k += gridDim.x * blockDim.x)
        add_part(own, xq[k], far[k]);
    if (!sum_over_grid<256>(own, partial, ticket)) return;
    for (int g = 0; g < GENERATORS; g++) sums[g] = own[g];
}
#endif

extern "C" __global__ void gather_copies(
    int n /* places */, int ranks, const Room* __restrict__ rooms /* (ranks) */,
    const Number* __restrict__ number /* (ranks) */, const Tag* __restrict__ tag /* (n - given) */,
    const Located* __restrict__ located, const real4* __restrict__ fraction,
    const int* __restrict__ place, const real4* __restrict__ far, const real4* __restrict__ near,
    const Parameters* __restrict__ parameters, const int* __restrict__ start /* (BOXES + 1) */,
    const Share* __restrict__ share /* (1) */,
    real4* __restrict__ results /* (n): potential, field */) {
    const int given = rooms[0].from_room, i = given + blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || !is_copy(i, distance_of(i, rooms, ranks), rooms, number) ||
        !tag[i - given].pattern.is_own())
        return;
    results[i] = result_of(i, results_of_parts(n, located, fraction, place, far, near, parameters,
                                               start, share))
                     .sum;
}

extern "C" __global__ void add_returned(int distance, const Room* __restrict__ rooms /* (ranks) */,
                                        const Number* __restrict__ sent_number /* (ranks) */,
                                        const int* __restrict__ returned_to,
                                        const real4* __restrict__ returned,
                                        real4* __restrict__ totals) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    const Room room = rooms[distance];
    if (k >= min(sent_number[distance].own, room.back_room)) return;
    const real4 more = returned[room.back + k];
    real4& total = totals[returned_to[room.back + k]];
    total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
}

extern "C" __global__ void __launch_bounds__(256, sizeof(real) == 4 ? 4 : 2)
    finish(int n, int ranks, const Room* __restrict__ rooms /* (ranks) */,
           const Number* __restrict__ sent_number /* (ranks) */,
           const Pattern* __restrict__ pattern /* (n) */, int room /* of copies */,
           const Located* __restrict__ located, const real4* __restrict__ fraction,
           const int* __restrict__ place, const real4* __restrict__ far, const real4* __restrict__ near,
           const Parameters* __restrict__ parameters, const int* __restrict__ start /* (BOXES + 1) */,
           const Share* __restrict__ share /* (1) */,
           const real4* __restrict__ totals /* (n): potential, field, of other ranks */,
           const real* __restrict__ charges /* (n) */,
           const double* __restrict__ largest /* (1): potential, in charges per box width */,
           real* __restrict__ potentials /* (n) */, real* __restrict__ fields /* (n, 3) */,
           real* __restrict__ forces /* (n, 3) */, double* partial /* (blocks, 6) */,
           int* ticket /* (1), zero */,
           double* __restrict__ sums /* (7): q^2 E^2, q^2 |E|^3, q^2 phi^2, charges and
                                        particles without result, q Phi; number of ranks for whose
                                        copies there was no room */) {
    const PartResults parts =
        results_of_parts(room, located, fraction, place, far, near, parameters, start, share);
    double own[6] = {0, 0, 0, 0, 0, 0};
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const bool here = pattern[i].is_own();
        real4 total = {0, 0, 0, 0};
        if (ranks > 1 && (SMOOTHED || !here)) total = totals[i];
        if (here) {
            const real4 here = result_of(i, parts).sum;
            total = {total.x + here.x, total.y + here.y, total.z + here.z, total.w + here.w};
        }
        const real q = charges[i], scale = 1 / real(parameters->field);
        const real x = scale * total.y, y = scale * total.z, z = scale * total.w,
                   square = x * x + y * y + z * z;
        const bool exists = fabs(total.x) <= *largest * parameters->potential &&
                            isfinite(total.y) && isfinite(total.z) && isfinite(total.w);
        if (q != 0) {
            const double work = double(q) * double(q) * double(square);
            own[0] += work;
            own[1] += work * double(sqrt(square));
            // a division of doubles after the loop would take registers from it
            const double product = double(q) * double(total.x / real(parameters->potential));
            own[2] += product * product;
            own[3] += !exists;
        }
        own[4] += !exists;
        if (exists) own[5] += double(q) * double(total.x);
        const real none = real(nan(""));
        potentials[i] = exists ? total.x : none;
        const real field[3] = {total.y, total.z, total.w};
#pragma unroll
        for (int axis = 0; axis < 3; axis++) {
            fields[3 * i + axis] = exists ? field[axis] : none;
            forces[3 * i + axis] = exists ? q * field[axis] : real(0);
        }
    }
    if (!sum_over_grid<256>(own, partial, ticket)) return;
    for (int k = 0; k < 6; k++) sums[k] = own[k];
    int lacking = 0;
    for (int s = 1; s < ranks; s++)
        lacking += sent_number[s].all > rooms[s].to_room || sent_number[s].own > rooms[s].back_room;
    sums[6] = lacking;
}

extern "C" __global__ void add_energies(int ranks, int stride,
                                        const double* __restrict__ sums /* (ranks, stride) */,
                                        double* __restrict__ energy /* (1) */) {
    double twice = 0;
    for (int r = 0; r < ranks; r++) twice += sums[r * stride + 5];
    *energy = 0.5 * twice;
}
