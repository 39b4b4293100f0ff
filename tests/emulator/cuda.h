// CUDA on one thread of the host: enough of the language for the kernels of this project, one block after the other.
//
// Every thread of a block is a context of its own; they take turns at barriers and where lanes of a warp meet. What waits for
// what can never come is an error, as is a lane that leaves before the others of its mask have met it.
#pragma once
#include <math.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct uint3 { unsigned x, y, z; };
struct int2 { int x, y; };
struct int3 { int x, y, z; };
struct alignas(16) int4 { int x, y, z, w; };
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
struct alignas(16) double2 { double x, y; };
struct double3 { double x, y, z; };

inline uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

constexpr std::size_t STACK = 128 * 1024, DYNAMIC = 256 * 1024;
alignas(128) inline char dynamic_shared[DYNAMIC];

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    unsigned number = 0;
    bool done = false;
};

// Lanes of a warp that have named the same mask and exchange a value.
struct Meeting {
    unsigned arrived = 0, left = 0;
    std::uint64_t value[32];
};

inline std::vector<Thread> threads;
inline ucontext_t scheduler;
inline std::vector<std::map<unsigned, Meeting>> meetings;  // of each warp, by mask
inline unsigned current, alive, waiting, round;
inline bool progress;
inline const char* fault;
inline void (*body)(void*);
inline void* body_argument;

inline void yield() { swapcontext(&threads[current].context, &scheduler); }

template <class Condition>
void wait_until(Condition condition) {
    while (!condition()) yield();
    progress = true;
}

inline void entry() {
    body(body_argument);
    threads[current].done = true;
    alive--;
    if (waiting > 0 && waiting == alive) {
        waiting = 0;
        round++;
    }
    progress = true;
    yield();
}

inline void barrier() {
    const unsigned mine = round;
    progress = true;
    if (++waiting == alive) {
        waiting = 0;
        round++;
    }
    wait_until([&] { return round != mine; });
}

inline int lane() { return threads[current].number % 32; }

// The values of all lanes of a mask, by lane.
template <class T>
std::vector<T> exchange(unsigned mask, T value) {
    static_assert(sizeof(T) <= 8);
    const unsigned bit = 1u << lane(), first = threads[current].number / 32 * 32;
    unsigned present = 0;  // a mask may name lanes beyond the block
    for (unsigned k = 0; k < 32; k++) present |= unsigned(first + k < threads.size()) << k;
    mask &= present;
    if (!(mask & bit)) fault = "a lane is not in its own mask";
    Meeting& meeting = meetings[threads[current].number / 32][mask];
    wait_until([&] { return !(meeting.arrived & bit); });  // of the time before
    std::memcpy(&meeting.value[lane()], &value, sizeof(T));
    meeting.arrived |= bit;
    wait_until([&] { return meeting.arrived == mask; });
    std::vector<T> values(32);
    for (int k = 0; k < 32; k++)
        if (mask >> k & 1) std::memcpy(&values[k], &meeting.value[k], sizeof(T));
    meeting.left |= bit;
    wait_until([&] { return meeting.left == mask || meeting.left == 0; });
    if (meeting.left == mask) meeting.left = meeting.arrived = 0;
    return values;
}

// Runs body for all threads of all blocks; what went wrong, or nothing.
inline const char* run(uint3 grid, unsigned block) {
    gridDim = grid;
    blockDim = {block, 1, 1};
    threads.resize(block);
    fault = nullptr;
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
                std::memset(dynamic_shared, 0xa5, DYNAMIC);
                meetings.assign((block + 31) / 32, {});
                alive = block;
                waiting = round = 0;
                for (unsigned k = 0; k < block; k++) {
                    Thread& thread = threads[k];
                    thread.stack.resize(STACK);
                    thread.number = k;
                    thread.done = false;
                    getcontext(&thread.context);
                    thread.context.uc_stack.ss_sp = thread.stack.data();
                    thread.context.uc_stack.ss_size = STACK;
                    thread.context.uc_link = nullptr;
                    makecontext(&thread.context, entry, 0);
                }
                while (alive > 0) {
                    progress = false;
                    for (current = 0; current < block; current++) {
                        if (threads[current].done) continue;
                        threadIdx = {current, 0, 0};
                        swapcontext(&scheduler, &threads[current].context);
                    }
                    if (fault) return fault;
                    if (!progress) return "threads wait for each other for ever";
                }
            }
    return nullptr;
}

template <class... A, std::size_t... I>
const char* launch(void (*kernel)(A...), uint3 grid, unsigned block, void** arguments, std::index_sequence<I...>) {
    const auto call = [&] { kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...); };
    body = [](void* call_of) { (*static_cast<decltype(call)*>(call_of))(); };
    body_argument = const_cast<void*>(static_cast<const void*>(&call));
    return run(grid, block);
}

template <class... A>
const char* launch(void (*kernel)(A...), uint3 grid, unsigned block, void** arguments) {
    return launch(kernel, grid, block, arguments, std::index_sequence_for<A...>());
}

}  // namespace emulator

// A function launch_<kernel> for callers of the library; what went wrong, or nothing.
#define LAUNCHER(kernel)                                                                                       \
    extern "C" __attribute__((visibility("default"))) const char* launch_##kernel(unsigned x, unsigned y, unsigned z, \
                                                                                  unsigned block, void** arguments) { \
        return emulator::launch(kernel, {x, y, z}, block, arguments);                                              \
    }

inline void __syncthreads() { emulator::barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::exchange(mask, 0); }
inline void __threadfence() {}
inline unsigned __activemask() { return 1u << emulator::lane(); }  // of lanes that have come together by chance, any may be missing

template <class T>
T __shfl_sync(unsigned mask, T value, int from) { return emulator::exchange(mask, value)[from & 31]; }
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int other) { return emulator::exchange(mask, value)[emulator::lane() ^ other]; }
template <class T>
T __shfl_up_sync(unsigned mask, T value, int by) {
    const auto values = emulator::exchange(mask, value);
    return emulator::lane() >= by ? values[emulator::lane() - by] : value;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const auto values = emulator::exchange(mask, predicate);
    unsigned found = 0;
    for (int k = 0; k < 32; k++) found |= unsigned((mask >> k & 1) && values[k] != 0) << k;
    return found;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
    const auto values = emulator::exchange(mask, value);
    unsigned found = 0;
    for (int k = 0; k < 32; k++) found |= unsigned((mask >> k & 1) && values[k] == value) << k;
    return found;
}

template <class T, class U>
T atomicAdd(T* at, U value) { const T old = *at; *at = old + T(value); return old; }
template <class T, class U>
T atomicOr(T* at, U value) { const T old = *at; *at = old | T(value); return old; }
template <class T, class U>
T atomicMax(T* at, U value) { const T old = *at; *at = std::max(old, T(value)); return old; }
template <class T, class U>
T atomicExch(T* at, U value) { const T old = *at; *at = T(value); return old; }

template <class T>
T __ldg(const T* at) { return *at; }
template <class A, class B>
std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int k = 0; k < 32; k++) reversed |= (x >> k & 1) << (31 - k);
    return reversed;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float rsqrt(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline void sincospi(double x, double* s, double* c) { *s = sin(M_PI * x); *c = cos(M_PI * x); }
template <class To, class From>
To bits_as(From from) { To to; std::memcpy(&to, &from, sizeof to); return to; }
inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
inline int __double2loint(double x) { return int(bits_as<std::uint64_t>(x)); }
inline int __double2hiint(double x) { return int(bits_as<std::uint64_t>(x) >> 32); }
inline double __hiloint2double(int high, int low) { return bits_as<double>(std::uint64_t(unsigned(high)) << 32 | unsigned(low)); }
inline long long __double2ll_rn(double x) { return std::isnan(x) ? INT64_MIN : llrint(x); }
