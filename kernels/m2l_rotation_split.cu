// m2l_rotation_split: M2L of a level of an octree by rotation, see common/rotation.cuh, of many terms; several lanes a target.
//
// A group of SHARES warps has 32 targets of one child position, so that its lanes share r. M' and L'' of SOURCES at once lie in
// shared memory, a column a lane. Each warp rotates some of the degrees, whose sums over a plane it keeps in registers, and
// translates some of the orders. Warps that do the same for the groups of a block belong to the same scheduler, which so has a
// few instructions to fetch only, and executes them for several groups or sources in turn. Loops are unrolled, entries of F are
// immediates.
//
//   SHARES    warps of a group, a multiple of 4
//   GROUPS    of a block at most           BLOCKS    of a multiprocessor, at least
#include "common/rotation.cuh"

static __device__ constexpr Split<SHARES> SPLIT;

// Copies of numbers to shared memory have arrived, at the thread that asked for them, when `arrived` returns.
struct Copies {
    real* to;
    const real* __restrict__ from;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned int address;

    __device__ __forceinline__ Copies(real* to, const real* from) : to(to), from(from), address(__cvta_generic_to_shared(to)) {}
    __device__ __forceinline__ void ask(int i) const {
        if (sizeof(real) == 4)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address + 4 * i), "l"(from + i) : "memory");
        else asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address + 8 * i), "l"(from + i) : "memory");
    }
    static __device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
    __device__ __forceinline__ Copies(real* to, const real* from) : to(to), from(from) {}
    __device__ __forceinline__ void ask(int i) const { to[i] = from[i]; }
    static __device__ __forceinline__ void arrived() {}
#endif
};

// Of the degrees of a warp over the sources in a plane: sum_r Z(-theta) F^T S L''.
using Sums = real[SPLIT.most];

// The work of warp SHARE of a group. Degrees are gone through from high to low.
template <int SHARE>
struct Share {
    // Adds L'' of some sources to the sums; then the moments of those `coming` take their place.
    template <int L = ORDER>
    static __device__ __forceinline__ void back(int count, int coming, const Turn* along, real* columns, const real* next,
                                                const unsigned int* offset, Sums& sums) {
        if constexpr (SPLIT.degree[L] == SHARE) {
#pragma unroll 1
            for (int n = 0; n < count; n++) {
                Degree<L> x, y;
#pragma unroll
                for (int k = 0; k <= 2 * L; k++) x[k] = columns[(n * TERMS + L * L + k) * WARP];
                flip<L, true>(x, y);
                turn<L, -1>(y, along[n].phase);
#pragma unroll
                for (int k = 0; k <= 2 * L; k++) sums[SPLIT.before[L] + k] += y[k];
            }
#pragma unroll 1
            for (int n = 0; n < coming; n++) {
                const Copies copies(columns + n * (TERMS * WARP), next + offset[n * WARP]);
#pragma unroll
                for (int k = 0; k <= 2 * L; k++) copies.ask((L * L + k) * WARP);
            }
        }
        if constexpr (L > 0) back<L - 1>(count, coming, along, columns, next, offset, sums);
    }

    // Adds the sums of a plane, turned back, to `local` or, at first, sets it.
    template <int L = ORDER>
    static __device__ __forceinline__ void finish(bool initial, const real2* __restrict__ alpha, Sums& sums, real* local) {
        if constexpr (SPLIT.degree[L] == SHARE) {
            Degree<L> x, y;
#pragma unroll
            for (int k = 0; k <= 2 * L; k++) {
                x[k] = sums[SPLIT.before[L] + k];
                sums[SPLIT.before[L] + k] = 0;
            }
            flip<L, true>(x, y);
            turn<L, -1>(y, alpha);
            add_degree<L>(initial, y, local);
        }
        if constexpr (L > 0) finish<L - 1>(initial, alpha, sums, local);
    }

    // Moments to M'.
    template <int L = ORDER>
    static __device__ __forceinline__ void forward(int count, const Turn* along, real* columns) {
        if constexpr (SPLIT.degree[L] == SHARE) {
#pragma unroll 1
            for (int n = 0; n < count; n++) {
                Degree<L> x, y;
                real* own = columns + (n * TERMS + L * L) * WARP;
#pragma unroll
                for (int k = 0; k <= 2 * L; k++) x[k] = own[k * WARP];
                turn<L, 1>(x, along[n].phase);
                flip<L>(x, y);
#pragma unroll
                for (int k = 0; k <= 2 * L; k++) own[k * WARP] = y[k];
            }
        }
        if constexpr (L > 0) forward<L - 1>(count, along, columns);
    }

    // Along z: M' to S L''.
    template <int M = 0>
    static __device__ __forceinline__ void translate(int count, const Turn* along, real* columns) {
        if constexpr (SPLIT.order[M] == SHARE) {
#pragma unroll 1
            for (int n = 0; n < count; n++) {
                real power[2 * ORDER + 1];
#pragma unroll
                for (int k = 2 * M; k <= 2 * ORDER; k++) power[k] = along[n].power[k];
#pragma unroll 1
                for (int part = 0; part <= (M > 0); part++) {    // real, imaginary
                    real* own = columns + (n * TERMS - 2 * M * part) * WARP;
                    real x[ORDER + 1];
#pragma unroll
                    for (int j = M; j <= ORDER; j++) x[j] = own[(j * j + j + M) * WARP];
#pragma unroll
                    for (int l = M; l <= ORDER; l++) {
                        real sum = 0;
#pragma unroll
                        for (int j = M; j <= ORDER; j++) sum += power[l + j] * x[j];
                        own[(l * l + l + M) * WARP] = M == 0 ? sum / 2 : (M % 2 == 1 ? -sum : sum);
                    }
                }
            }
        }
        if constexpr (M < ORDER) translate<M + 1>(count, along, columns);
    }
};

// What the warps need of the sources at hand and of those before, or the next.
struct Staged {
    Turn along[2][SOURCES];
    unsigned int offset[GROUPS][SOURCES][WARP];    // of the next sources of each group in their plane
    int count, plane;                              // of the next
};

// The way of a warp through its share of an interaction list.
struct Way {
    Staged& s;
    const Target target;
    const int lane, own, here, from, to;    // own: which group of the block; here: threads of a share of the work
    const int4* __restrict__ list;
    const Turn *__restrict__ turns, *__restrict__ turns_of_planes;
    const real* __restrict__ turned;
    real *columns, *local;
    bool initial;
    int4 source[SOURCES];

    __device__ __forceinline__ void look_up(int i) {
#pragma unroll
        for (int n = 0; n < SOURCES; n++) source[n] = list[min(i + n, to - 1)];
    }

    // Stages the sources from number i on, as many as are in one plane, which were looked up before.
    __device__ __forceinline__ void stage(int i, Turn* next) {
        const int plane = plane_of(source[0]);
        int count = 1;
#pragma unroll
        for (int n = 1; n < SOURCES; n++) count += count == n && i + n < to && plane_of(source[n]) == plane;
        if (own == 0 && lane == 0) {
            s.count = count;
            s.plane = plane;
        }
#pragma unroll
        for (int n = 0; n < SOURCES; n++) {
            s.offset[own][n][lane] = target.source(source[n]);
            const Copies copies(reinterpret_cast<real*>(next + n), reinterpret_cast<const real*>(turns + turn_of(source[n])));
            for (int k = own * WARP + lane; k < NUMBERS; k += here) copies.ask(k);
        }
        look_up(i + count);
    }

    template <int SHARE>
    __device__ __forceinline__ void go() {
        if (SHARE == 0) {
            look_up(from);
            stage(from, s.along[0]);
            Copies::arrived();
        }
        __syncthreads();
        Sums of_plane;
#pragma unroll
        for (int k = 0; k < SPLIT.most; k++) of_plane[k] = 0;
        int count = 0, plane = s.plane;
#pragma unroll 1
        for (int i = from, turn = 0;; turn ^= 1) {
            const int coming = i < to ? s.count : 0, coming_plane = i < to ? s.plane : -1;
            const real* next = turned + s.plane * plane_length(target.half);
            Share<SHARE>::back(count, coming, s.along[turn ^ 1], columns, next, &s.offset[own][0][lane], of_plane);
            if (coming_plane != plane) {
                Share<SHARE>::finish(initial, turns_of_planes[plane].phase, of_plane, local);
                initial = false;
                plane = coming_plane;
            }
            if (coming == 0) break;
            count = coming;
            Copies::arrived();
            Share<SHARE>::forward(count, s.along[turn], columns);
            __syncthreads();
            i += count;
            if (SHARE == 0 && i < to) stage(i, s.along[turn ^ 1]);
            Share<SHARE>::translate(count, s.along[turn], columns);
            if (SHARE == 0) Copies::arrived();
            __syncthreads();
        }
    }

    template <int SHARE = 0>
    __device__ __forceinline__ void go(int share) {
        if (share == SHARE) go<SHARE>();
        else if constexpr (SHARE + 1 < SHARES) go<SHARE + 1>(share);
    }
};

extern "C" __global__ void __launch_bounds__(WARP * SHARES * GROUPS, BLOCKS)
m2l_rotation_split(int half, int initial, const int* __restrict__ start /* (8 gridDim.z + 1) */, const int4* __restrict__ list,
                   const Turn* __restrict__ turns /* (translations) */, const Turn* __restrict__ turns_of_planes /* (planes) */,
                   const real* __restrict__ turned /* (planes) slabs */, real* __restrict__ sums /* (gridDim.z) slabs */) {
    extern __shared__ char memory[];    // for each group (SOURCES, TERMS, WARP)
    __shared__ Staged staged;
    const int lane = threadIdx.x % WARP, share = threadIdx.x / WARP % SHARES, own = threadIdx.x / (WARP * SHARES);
    const int most = blockDim.x / (WARP * SHARES), before = blockIdx.x * most, group = before + own, groups = groups_of(half);
    if (group >= groups) return;
    start += blockIdx.y * gridDim.z + blockIdx.z;
    real* columns = reinterpret_cast<real*>(memory) + own * (SOURCES * TERMS * WARP) + lane;
    real* local = sums + slab_of(blockIdx.z, blockIdx.y, group, half) + lane;
    if (start[0] == start[1]) return clear(initial, share, SHARES, local);
    Way way = {staged, Target(group * WARP + lane, half), lane, own, min(groups - before, most) * WARP, start[0], start[1],
               list, turns, turns_of_planes, turned, columns, local, initial != 0};
    way.go(share);
}
