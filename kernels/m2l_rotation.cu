// m2l_rotation: M2L of a level of an octree by rotation, see common/rotation.cuh, between the
// kernels of m2l_planes.cu; a lane a target.
//
// A block has up to 32 M2L_WARPS targets of one child position, so that its lanes share r, and goes
// through their sources in one plane, or a share of these, for terms of one parity. Its warps meet
// at every source, so that they share the instructions they fetch. Loops are unrolled, entries of F
// are immediates. M' and L'' are in registers, as far as they hold them, and moments of the next
// source take over as L'' is used up; sums are in registers or in shared memory, a column a lane.
//
// Where registers do not hold M', or the instruction cache not the code, a block is for the real or
// the imaginary parts only of what M' has of its parity.
//
//   M2L_WARPS   warps a block at most      BLOCKS  of a multiprocessor, at least
//   FRAME_HELD  numbers of M' in registers, of the lowest degrees; the others are in shared memory
//   SUMS_HELD   sums in registers, of the lowest degrees
#include "common/rotation.cuh"

#define TURN_LENGTH (4 * (ORDER + 1))
#define HALF_TERMS ((ORDER + 1) * (ORDER + 2) / 2)  // of one parity, at most
#define AHEAD 2  // degrees of which moments are on their way, where they do not find room in M'

// Copies of numbers to shared memory have arrived, at the thread that asked for them, when
// `arrived` returns.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ __forceinline__ void ask(real* to, const real* __restrict__ from) {
    const unsigned int address = __cvta_generic_to_shared(to);
    if (sizeof(real) == 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from)
                     : "memory");
}
__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
#else
__device__ __forceinline__ void ask(real* to, const real* __restrict__ from) {
    *to = *from;
}
__device__ __forceinline__ void arrived() {}
#endif

// In w of an entry of a list: child, translation.
__device__ __forceinline__ int turn_of(const int4& entry) {
    return entry.w >> 3;
}

// Keeps loads and stores on their side, where else they would be moved far ahead and take
// registers: but not loads of what is said to be read-only.
__device__ __forceinline__ void separate() {
    __syncwarp();
}

// Where the cosine term of degree l and order k is among the terms of a parity;
// before it comes the sine term.
template <int PARITY>
__device__ __forceinline__ constexpr int cosine(int l, int k) {
    return l * (l + 1) / 2 - PARITY * l + k;
}

// Numbers of a lane, the first ones in registers, the others in a column of shared memory.
template <int COUNT, int HELD>
struct Numbers {
    static constexpr int BESIDE = COUNT > HELD ? COUNT - HELD : 0;
    real held[HELD + 1], *column;

    __device__ __forceinline__ explicit Numbers(real* column) : column(column) {}
    __device__ __forceinline__ real& operator[](int i) {
        return i < HELD ? held[i] : column[(i - HELD) * WARP];
    }
    // in shared memory it has only arrived after `arrived`
    __device__ __forceinline__ void read(int i, const real* from) {
        if (i < HELD)
            held[i] = *from;
        else
            ask(&column[(i - HELD) * WARP], from);
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < HELD; i++) held[i] = 0;
#pragma unroll 4
        for (int i = 0; i < BESIDE; i++) column[i * WARP] = 0;
    }
};

using Sums = Numbers<HALF_TERMS, SUMS_HELD>;

// Degree L of the sums to an expansion in global memory, and on to the next.
template <int PARITY, int L = ORDER>
__device__ __forceinline__ void store(Sums& sums, real* __restrict__ local) {
#pragma unroll
    for (int k = (L + PARITY) % 2; k <= L; k += 2) {
        local[(L * L + L + k) * WARP] = sums[cosine<PARITY>(L, k)];
        if (k > 0) local[(L * L + L - k) * WARP] = sums[cosine<PARITY>(L, k) - 1];
    }
    if constexpr (L > 0) store<PARITY, L - 1>(sums, local);
}

// What is done with terms of one parity at orders FROM, FROM + STEP, .. of the frame g. There M'
// and L'' have one number for each degree and order: a real part if order and parity are both even
// or both odd, else an imaginary part.
template <int PARITY, int FROM>
struct Part {
    static constexpr int STEP = PARITY == 0 ? PARTS_EVEN : PARTS_ODD;
    // order 0 has no imaginary part
    static constexpr int FIRST = PARITY == 1 && FROM == 0 ? STEP : FROM;
    using Other = Part<PARITY, STEP - 1 - FROM>;

    static __host__ __device__ constexpr bool imaginary(int m) { return (m + PARITY) % 2 == 1; }
    static constexpr bool REAL_PART = STEP == 1 || !imaginary(FROM),
                          IMAGINARY_PART = STEP == 1 || imaginary(FROM);

    // Where the number of degree l and order m is in a frame.
    static __host__ __device__ constexpr int place(int l, int m) {
        const int d = l - FIRST;
        return (STEP == 1 ? d * (d + 1) / 2 : (d + 1) * (d + 1) / 4) + (m - FIRST) / STEP;
    }
    static constexpr int COUNT = place(ORDER + 1, FIRST);
    using Frame = Numbers<COUNT, FRAME_HELD>;
    using InRegisters = Numbers<COUNT, COUNT>;

    // Which term of the degree, about the plane, has that place before: there are as many.
    static __host__ __device__ constexpr int term(int l, int m) {
        const int k = PARITY == 0 ? m + (m + l) % 2 : m - (m + l + 1) % 2;
        return imaginary(m) ? l - k : l + k;
    }

    // Degree L of moments, and on down to degree LEAST.
    template <int LEAST, int L, class To>
    static __device__ __forceinline__ void load(const real* moments, To& to) {
#pragma unroll
        for (int m = FIRST; m <= L; m += STEP)
            to.read(place(L, m), moments + (L * L + term(L, m)) * WARP);
        if constexpr (L > LEAST) load<LEAST, L - 1>(moments, to);
    }

    // Degree L of the moments, turned by theta, to M'; and on to the next. `other`: those that have
    // no place in the frame.
    template <int L = ORDER>
    static __device__ __forceinline__ void forward(const real* moments, const real2* theta,
                                                   Frame& frame,
                                                   typename Other::InRegisters& other) {
        Degree<L> x;
        real y[L + 1] = {};
        if constexpr (STEP == 2 && L >= AHEAD)
            Other::template load<L - AHEAD, L - AHEAD>(moments, other);
#pragma unroll
        for (int m = FIRST; m <= L; m += STEP) x[term(L, m)] = frame[place(L, m)];
        if constexpr (STEP == 2) {
#pragma unroll
            for (int m = Other::FIRST; m <= L; m += STEP)
                x[Other::term(L, m)] = other[Other::place(L, m)];
        }
        turn<L, 1, (L + PARITY) % 2, 2>(x, theta);
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2)
#pragma unroll
            for (int m = FIRST; m <= L; m += STEP)
                if (!imaginary(m))
                    y[m] += real(FLIP.real_part[L][m][k]) * x[L + k];
                else if (k > 0)
                    y[m] += real(FLIP.imaginary_part[L][m][k]) * x[L - k];
#pragma unroll
        for (int m = FIRST; m <= L; m += STEP) frame[place(L, m)] = y[m];
        separate();
        if constexpr (L > 0) forward<L - 1>(moments, theta, frame, other);
    }

    // Along z: the column of order M of M' to that of L'', and on to the next.
    template <int M = FIRST>
    static __device__ __forceinline__ void translate(const real (&power)[2 * ORDER + 1],
                                                     Frame& frame) {
        real y[ORDER + 1] = {};
#pragma unroll
        for (int j = M; j <= ORDER; j++)
#pragma unroll
            for (int l = M; l <= ORDER; l++) y[l] += power[l + j] * frame[place(j, M)];
#pragma unroll
        for (int l = M; l <= ORDER; l++) frame[place(l, M)] = y[l];
        separate();
        if constexpr (M + STEP <= ORDER) translate<M + STEP>(power, frame);
    }

    // Degree L of S L'', turned back and added to the sums; moments of the next source, if any,
    // take its place; and on to the next.
    template <int L = ORDER>
    static __device__ __forceinline__ void back(Frame& frame, const real2* theta, Sums& sums,
                                                const real* next) {
        // of multiply-adds for each term: of doubles they take longer
        constexpr int CHAINS = sizeof(real) / 4;
        Degree<L> x[2] = {}, sum;
#pragma unroll
        for (int m = FIRST; m <= L; m += STEP) {
            // S, but for what comes with moments and powers
            const double s = m == 0 ? 0.5 : (m % 2 == 0 ? 1 : -1);
#pragma unroll
            for (int k = (L + PARITY) % 2; k <= L; k += 2)
                if (!imaginary(m))
                    x[m / 2 % CHAINS][L + k] +=
                        real(s * FLIP.real_part[L][m][k]) * frame[place(L, m)];
                else if (k > 0)
                    x[m / 2 % CHAINS][L - k] +=
                        real(s * FLIP.imaginary_part[L][m][k]) * frame[place(L, m)];
        }
        if (next) load<L, L>(next, frame);
        // loads before stores, so that they need not wait for these
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2) {
            if (k > 0) sum[L - k] = sums[cosine<PARITY>(L, k) - 1];
            if (k > 0 || REAL_PART) sum[L + k] = sums[cosine<PARITY>(L, k)];
        }
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2) {
            const real2 w = theta[k];
            const real c = CHAINS == 1 ? x[0][L + k] : x[0][L + k] + x[1][L + k];
            const real s = CHAINS == 1 ? x[0][L - k] : x[0][L - k] + x[1][L - k];
            if (k == 0 && REAL_PART) sum[L] += c;
            if (k > 0 && REAL_PART) sum[L + k] += w.x * c, sum[L - k] -= w.y * c;
            if (k > 0 && IMAGINARY_PART) sum[L + k] += w.y * s, sum[L - k] += w.x * s;
        }
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2) {
            if (k > 0) sums[cosine<PARITY>(L, k) - 1] = sum[L - k];
            if (k > 0 || REAL_PART) sums[cosine<PARITY>(L, k)] = sum[L + k];
        }
        separate();
        if constexpr (L > 0) back<L - 1>(frame, theta, sums, next);
    }

    // The sum over a list of sources to `local`.
    static __device__ __forceinline__ void add(const Target& target, const int4* __restrict__ list,
                                               int count, const Turn* __restrict__ turns,
                                               const real* moments, Turn* along, real* column,
                                               real* __restrict__ local) {
        Sums sums(column);
        sums.clear();
        if (count > 0) {
            Frame frame(column + Sums::BESIDE * WARP);
            const real* next = nullptr;
            int4 source = list[0];
            // of entry i, which is known; then of the next, so that it is in time
            auto look_up = [&](int i) {
                const real* from = reinterpret_cast<const real*>(turns + turn_of(source));
                real* to = reinterpret_cast<real*>(along + i % 2);
                next = moments + target.source(source);
                if (threadIdx.x < WARP)
                    for (int k = threadIdx.x; k < TURN_LENGTH; k += WARP) ask(to + k, from + k);
                source = list[min(i + 1, count - 1)];
            };
            look_up(0);
            load<0, ORDER>(next, frame);
#pragma unroll 1
            for (int i = 0; i < count; i++) {
                const Turn& turn = along[i % 2];
                const real* own = next;
                typename Other::InRegisters other(nullptr);
                real power[2 * ORDER + 1];
                if constexpr (STEP == 2)
                    Other::template load<(ORDER < AHEAD ? 0 : ORDER + 1 - AHEAD), ORDER>(own,
                                                                                         other);
                arrived();
                __syncthreads();
                if (i + 1 < count)
                    look_up(i + 1);
                else
                    next = nullptr;
                forward(own, turn.phase, frame, other);
#pragma unroll
                for (int n = 0; n <= 2 * ORDER; n++) power[n] = turn.power[n];
                translate(power, frame);
                back(frame, turn.phase, sums, next);
            }
        }
        store<PARITY>(sums, local);
    }
};

extern "C" __global__ void __launch_bounds__(WARP* M2L_WARPS, BLOCKS)
    m2l_rotation(int half, int shares, const int* __restrict__ start /* (8 planes shares + 1) */,
                 const int4* __restrict__ list, const Turn* __restrict__ turns /* (translations) */,
                 const real* turned /* (planes) slabs */,
                 real* __restrict__ sums /* (PARTS_EVEN planes shares) slabs */) {
    extern __shared__ char memory[];  // for each warp what registers do not hold, (.., WARP)
    __shared__ Turn along[2];
    constexpr int EVEN = Part<0, 0>::Frame::BESIDE, ODD = Part<1, 0>::Frame::BESIDE,
                  PARTS = PARTS_EVEN + PARTS_ODD;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, child = blockIdx.y;
    const int groups = groups_of(half), group = blockIdx.x * (blockDim.x / WARP) + warp;
    const int lists = gridDim.z / PARTS, part = blockIdx.z / lists, nth = blockIdx.z % lists;
    if (group >= groups) return;
    const Target target(group * WARP + lane, half);
    const real* moments = turned + nth / shares * plane_length(half);
    real* column = reinterpret_cast<real*>(memory) +
                   warp * ((Sums::BESIDE + (EVEN > ODD ? EVEN : ODD)) * WARP) + lane;
    real* local = sums + slab_of(part / 2 * lists + nth, child, group, half) + lane;
    const int from = start[child * lists + nth], count = start[child * lists + nth + 1] - from;
    list += from;
    if (part == 0) Part<0, 0>::add(target, list, count, turns, moments, along, column, local);
    if (part == 1) Part<1, 0>::add(target, list, count, turns, moments, along, column, local);
    if constexpr (PARTS_EVEN == 2)
        if (part == 2) Part<0, 1>::add(target, list, count, turns, moments, along, column, local);
    if constexpr (PARTS_ODD == 2)
        if (part == 3) Part<1, 1>::add(target, list, count, turns, moments, along, column, local);
}
