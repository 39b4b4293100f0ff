// m2l_rotation: M2L of a level of an octree by rotation (common/rotation.cuh), between the two
// kernels of m2l_planes.cu. A lane owns a target.
//
// A block has up to 32 M2L_WARPS targets of one child position, so that all lanes share the vector
// r. It loops over their sources in one plane, or a share of these, for terms of one parity. The
// warps synchronise at every source, which lets them share instruction fetches. Loops are unrolled,
// and entries of F are immediate operands. M' and L'' are in registers as far as possible; the
// moments of the next source replace L'' as it is consumed. Sums are in registers or in shared
// memory, one column per lane.
//
// If registers cannot hold M', or the code exceeds the instruction cache, a block computes only the
// real or only the imaginary parts of M' of its parity.
//
//   M2L_WARPS   maximum warps per block      BLOCKS  minimum blocks per multiprocessor
//   FRAME_HELD  numbers of M' in registers, lowest degrees first; the others are in shared memory
//   SUMS_HELD   sums in registers, lowest degrees first
#include "common/rotation.cuh"

#define ROTATION_LENGTH (4 * (ORDER + 1))
#define HALF_TERMS ((ORDER + 1) * (ORDER + 2) / 2)  // maximum number of terms of one parity
#define PREFETCH_DEGREES 2  // degrees of moments loaded in advance if M' cannot hold them

// Asynchronous copies to shared memory. wait_for_copies waits for those that the same thread
// issued.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ __forceinline__ void copy_async(real* to, const real* __restrict__ from) {
    const unsigned int address = __cvta_generic_to_shared(to);
    if (sizeof(real) == 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from)
                     : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
#else
__device__ __forceinline__ void copy_async(real* to, const real* __restrict__ from) {
    *to = *from;
}
__device__ __forceinline__ void wait_for_copies() {}
#endif

// Number of the translation of a list entry; w holds it above the child position.
__device__ __forceinline__ int translation_of(const int4& entry) {
    return entry.w >> 3;
}

// Prevents the compiler from moving loads and stores across this point, which would take registers.
// Loads from read-only memory are not affected.
__device__ __forceinline__ void scheduling_fence() {
    __syncwarp();
}

// Index of the real term of degree l and order k among the terms of a parity. The imaginary term is
// just before it.
template <int PARITY>
__device__ __forceinline__ constexpr int cosine(int l, int k) {
    return l * (l + 1) / 2 - PARITY * l + k;
}

// An array of a lane; the first HELD numbers are in registers, the others in a column of shared
// memory.
template <int COUNT, int HELD>
struct Numbers {
    static constexpr int IN_SHARED_MEMORY = COUNT > HELD ? COUNT - HELD : 0;
    real held[HELD + 1], *column;

    __device__ __forceinline__ explicit Numbers(real* column) : column(column) {}
    __device__ __forceinline__ real& operator[](int i) {
        return i < HELD ? held[i] : column[(i - HELD) * WARP];
    }
    // a number in shared memory may be read after wait_for_copies
    __device__ __forceinline__ void read(int i, const real* from) {
        if (i < HELD)
            held[i] = *from;
        else
            copy_async(&column[(i - HELD) * WARP], from);
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < HELD; i++) held[i] = 0;
#pragma unroll 4
        for (int i = 0; i < IN_SHARED_MEMORY; i++) column[i * WARP] = 0;
    }
};

using Sums = Numbers<HALF_TERMS, SUMS_HELD>;
using Powers = Array<real, 2 * ORDER + 1>;

// Writes the sums of degrees L to 0 to an expansion in global memory.
template <int PARITY, int L = ORDER>
__device__ __forceinline__ void store(Sums& sums, real* __restrict__ local) {
#pragma unroll
    for (int k = (L + PARITY) % 2; k <= L; k += 2) {
        local[(L * L + L + k) * WARP] = sums[cosine<PARITY>(L, k)];
        if (k > 0) local[(L * L + L - k) * WARP] = sums[cosine<PARITY>(L, k) - 1];
    }
    if constexpr (L > 0) store<PARITY, L - 1>(sums, local);
}

// Operations on the terms of one parity at the orders FROM, FROM + STEP, .. of the frame g. In this
// frame M' and L'' have one number for each degree and order: a real part if order and parity are
// both even or both odd, else an imaginary part.
template <int PARITY, int FROM>
struct Part {
    static constexpr int STEP = PARITY == 0 ? PARTS_EVEN : PARTS_ODD;
    // order 0 has no imaginary part
    static constexpr int FIRST = PARITY == 1 && FROM == 0 ? STEP : FROM;
    using Other = Part<PARITY, STEP - 1 - FROM>;

    static __host__ __device__ constexpr bool imaginary(int m) { return (m + PARITY) % 2 == 1; }
    static constexpr bool REAL_PART = STEP == 1 || !imaginary(FROM),
                          IMAGINARY_PART = STEP == 1 || imaginary(FROM);

    // Index of the number of degree l and order m in a frame.
    static __host__ __device__ constexpr int place(int l, int m) {
        const int d = l - FIRST;
        return (STEP == 1 ? d * (d + 1) / 2 : (d + 1) * (d + 1) / 4) + (m - FIRST) / STEP;
    }
    static constexpr int COUNT = place(ORDER + 1, FIRST);
    using Frame = Numbers<COUNT, FRAME_HELD>;
    using InRegisters = Numbers<COUNT, COUNT>;

    // The term of M_plane that is loaded to that index; both have the same number of terms.
    static __host__ __device__ constexpr int term(int l, int m) {
        const int k = PARITY == 0 ? m + (m + l) % 2 : m - (m + l + 1) % 2;
        return imaginary(m) ? l - k : l + k;
    }

    // Loads moments of degrees L down to LEAST.
    template <int LEAST, int L, class To>
    static __device__ __forceinline__ void load(const real* moments, To& to) {
#pragma unroll
        for (int m = FIRST; m <= L; m += STEP)
            to.read(place(L, m), moments + (L * L + term(L, m)) * WARP);
        if constexpr (L > LEAST) load<LEAST, L - 1>(moments, to);
    }

    // Rotates moments of degrees L down to 0 by theta, M_plane to M'. `other` holds the moments
    // that have no place in the frame.
    template <int L = ORDER>
    static __device__ __forceinline__ void forward(const real* moments, const real2* theta,
                                                   Frame& frame,
                                                   typename Other::InRegisters& other) {
        Degree<L> x;
        Array<real, L + 1> y = {};
        if constexpr (STEP == 2 && L >= PREFETCH_DEGREES)
            Other::template load<L - PREFETCH_DEGREES, L - PREFETCH_DEGREES>(moments, other);
#pragma unroll
        for (int m = FIRST; m <= L; m += STEP) x[term(L, m)] = frame[place(L, m)];
        if constexpr (STEP == 2) {
#pragma unroll
            for (int m = Other::FIRST; m <= L; m += STEP)
                x[Other::term(L, m)] = other[Other::place(L, m)];
        }
        rotate_z<L, 1, (L + PARITY) % 2, 2>(x, theta);
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2)
#pragma unroll
            for (int m = FIRST; m <= L; m += STEP)
                if (!imaginary(m))
                    y[m] += real(SWAP_XZ.real_part[L][m][k]) * x[L + k];
                else if (k > 0)
                    y[m] += real(SWAP_XZ.imaginary_part[L][m][k]) * x[L - k];
#pragma unroll
        for (int m = FIRST; m <= L; m += STEP) frame[place(L, m)] = y[m];
        scheduling_fence();
        if constexpr (L > 0) forward<L - 1>(moments, theta, frame, other);
    }

    // Translates along z, M' to L'', for the orders M, M + STEP, ..
    template <int M = FIRST>
    static __device__ __forceinline__ void translate(const Powers& power, Frame& frame) {
        Array<real, ORDER + 1> y = {};
#pragma unroll
        for (int j = M; j <= ORDER; j++) {
            const real x = frame[place(j, M)];
#pragma unroll
            for (int l = M; l <= ORDER; l++) y[l] += power[l + j] * x;
        }
#pragma unroll
        for (int l = M; l <= ORDER; l++) frame[place(l, M)] = y[l];
        scheduling_fence();
        if constexpr (M + STEP <= ORDER) translate<M + STEP>(power, frame);
    }

    // Rotates S L'' back and adds it to the sums, for degrees L down to 0; the moments of the next
    // source, if any, replace L''.
    template <int L = ORDER>
    static __device__ __forceinline__ void back(Frame& frame, const real2* theta, Sums& sums,
                                                const real* next) {
        // independent chains of multiply-adds per term, two for doubles because of their latency
        constexpr int CHAINS = sizeof(real) / 4;
        Array<Degree<L>, CHAINS> x = {};
        Degree<L> sum;
#pragma unroll
        for (int m = FIRST; m <= L; m += STEP) {
            // S without the signs included in moments and powers
            const double s = m == 0 ? 0.5 : (m % 2 == 0 ? 1 : -1);
            const real y = frame[place(L, m)];
#pragma unroll
            for (int k = (L + PARITY) % 2; k <= L; k += 2)
                if (!imaginary(m))
                    x[m / 2 % CHAINS][L + k] += real(s * SWAP_XZ.real_part[L][m][k]) * y;
                else if (k > 0)
                    x[m / 2 % CHAINS][L - k] += real(s * SWAP_XZ.imaginary_part[L][m][k]) * y;
        }
        if (next) load<L, L>(next, frame);
        // all loads before all stores, which they would otherwise wait for
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2) {
            if (k > 0) sum[L - k] = sums[cosine<PARITY>(L, k) - 1];
            if (k > 0 || REAL_PART) sum[L + k] = sums[cosine<PARITY>(L, k)];
        }
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2) {
            const real2 w = theta[k];
            const real c = CHAINS == 1 ? x[0][L + k] : x[0][L + k] + x[CHAINS - 1][L + k];
            const real s = CHAINS == 1 ? x[0][L - k] : x[0][L - k] + x[CHAINS - 1][L - k];
            if (k == 0 && REAL_PART) sum[L] += c;
            if (k > 0 && REAL_PART) sum[L + k] += w.x * c, sum[L - k] -= w.y * c;
            if (k > 0 && IMAGINARY_PART) sum[L + k] += w.y * s, sum[L - k] += w.x * s;
        }
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2) {
            if (k > 0) sums[cosine<PARITY>(L, k) - 1] = sum[L - k];
            if (k > 0 || REAL_PART) sums[cosine<PARITY>(L, k)] = sum[L + k];
        }
        scheduling_fence();
        if constexpr (L > 0) back<L - 1>(frame, theta, sums, next);
    }

    // Sums over a list of sources and writes to `local`.
    static __device__ __forceinline__ void add(const Target& target, const int4* __restrict__ list,
                                               int count, const Rotation* __restrict__ turns,
                                               const real* moments, Rotation* rotations,
                                               real* column, real* __restrict__ local) {
        Sums sums(column);
        sums.clear();
        if (count > 0) {
            Frame frame(column + Sums::IN_SHARED_MEMORY * WARP);
            const real* next = nullptr;
            int4 source = list[0];
            // prefetches the rotation and the moments of entry i, and the entry after it
            auto prefetch = [&](int i) {
                const real* from = reinterpret_cast<const real*>(turns + translation_of(source));
                real* to = reinterpret_cast<real*>(rotations + i % 2);
                next = moments + target.source(source);
                if (threadIdx.x < WARP)
                    for (int k = threadIdx.x; k < ROTATION_LENGTH; k += WARP)
                        copy_async(to + k, from + k);
                source = list[min(i + 1, count - 1)];
            };
            prefetch(0);
            load<0, ORDER>(next, frame);
#pragma unroll 1
            for (int i = 0; i < count; i++) {
                const Rotation& rotation = rotations[i % 2];
                const real* current = next;
                typename Other::InRegisters other(nullptr);
                Powers power;
                if constexpr (STEP == 2)
                    Other::template load<
                        (ORDER < PREFETCH_DEGREES ? 0 : ORDER + 1 - PREFETCH_DEGREES), ORDER>(
                        current, other);
                wait_for_copies();
                __syncthreads();
                if (i + 1 < count)
                    prefetch(i + 1);
                else
                    next = nullptr;
                forward(current, rotation.phase, frame, other);
#pragma unroll
                for (int n = 0; n <= 2 * ORDER; n++) power[n] = rotation.power[n];
                translate(power, frame);
                back(frame, rotation.phase, sums, next);
            }
        }
        store<PARITY>(sums, local);
    }
};

extern "C" __global__ void __launch_bounds__(WARP* M2L_WARPS, BLOCKS)
    m2l_rotation(int half, int shares, const int* __restrict__ start /* (8 planes shares + 1) */,
                 const int4* __restrict__ list,
                 const Rotation* __restrict__ turns /* (translations) */,
                 const real* turned /* (planes) slabs */,
                 real* __restrict__ sums /* (PARTS_EVEN planes shares) slabs */) {
    extern __shared__ char memory[];  // per warp, the numbers that are not in registers, (.., WARP)
    __shared__ Rotation rotations[2];
    constexpr int EVEN = Part<0, 0>::Frame::IN_SHARED_MEMORY,
                  ODD = Part<1, 0>::Frame::IN_SHARED_MEMORY, PARTS = PARTS_EVEN + PARTS_ODD;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, child = blockIdx.y;
    const int groups = groups_of(half), group = blockIdx.x * (blockDim.x / WARP) + warp;
    const int lists = gridDim.z / PARTS, part = blockIdx.z / lists, nth = blockIdx.z % lists;
    if (group >= groups) return;
    const Target target(group * WARP + lane, half);
    const real* moments = turned + nth / shares * plane_length(half);
    real* column = reinterpret_cast<real*>(memory) +
                   warp * ((Sums::IN_SHARED_MEMORY + (EVEN > ODD ? EVEN : ODD)) * WARP) + lane;
    real* local = sums + slab_of(part / 2 * lists + nth, child, group, half) + lane;
    const int from = start[child * lists + nth], count = start[child * lists + nth + 1] - from;
    list += from;
    if (part == 0) Part<0, 0>::add(target, list, count, turns, moments, rotations, column, local);
    if (part == 1) Part<1, 0>::add(target, list, count, turns, moments, rotations, column, local);
    if constexpr (PARTS_EVEN == 2)
        if (part == 2)
            Part<0, 1>::add(target, list, count, turns, moments, rotations, column, local);
    if constexpr (PARTS_ODD == 2)
        if (part == 3)
            Part<1, 1>::add(target, list, count, turns, moments, rotations, column, local);
}
