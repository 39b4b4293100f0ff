// CUDA on one thread of the host: enough of the language for the kernels of this project. What runs
// them is in machine.cpp.
#pragma once
#include <math.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct uint3 {
    unsigned x, y, z;
};
struct int2 {
    int x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct int3 {
    int x, y, z;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) {
    return {x, y, z, w};
}
struct alignas(16) double2 {
    double x, y;
};
struct double3 {
    double x, y, z;
};

#pragma GCC visibility push(default)
extern uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

alignas(128) extern char dynamic_shared[];

int lane();
void barrier();
// The value of a lane of a mask, whose lanes all bring one.
std::uint64_t exchange(unsigned mask, std::uint64_t value, int from);
// The lanes of a mask whose value is the wanted one, as bits.
unsigned lanes_with(unsigned mask, std::uint64_t value, std::uint64_t wanted);
// Runs body for all threads of all blocks; what went wrong, or nothing. Static shared memory lies
// between two addresses.
const char* run(uint3 grid, unsigned block, void (*body)(void*), void* argument, char* shared,
                char* shared_end);

}  // namespace emulator
#pragma GCC visibility pop

// The library's variables without initial values, of the linker: its kernels' static shared memory.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

namespace emulator {

template <class T>
std::uint64_t bits_of(T value) {
    static_assert(sizeof(T) <= 8);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
T exchange_of(unsigned mask, T value, int from) {
    const std::uint64_t bits = exchange(mask, bits_of(value), from);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class... A, std::size_t... I>
const char* launch(void (*kernel)(A...), uint3 grid, unsigned block, void** arguments,
                   std::index_sequence<I...>) {
    auto call = [&] { kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...); };
    return run(
        grid, block, [](void* call_of) { (*static_cast<decltype(call)*>(call_of))(); }, &call,
        __bss_start, _end);
}

template <class... A>
const char* launch(void (*kernel)(A...), uint3 grid, unsigned block, void** arguments) {
    return launch(kernel, grid, block, arguments, std::index_sequence_for<A...>());
}

}  // namespace emulator

// A function launch_<kernel> for callers of the library; what went wrong, or nothing.
#define LAUNCHER(kernel)                                                           \
    extern "C" __attribute__((visibility("default"))) const char* launch_##kernel( \
        unsigned x, unsigned y, unsigned z, unsigned block, void** arguments) {    \
        return emulator::launch(kernel, {x, y, z}, block, arguments);              \
    }

inline void __syncthreads() {
    emulator::barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emulator::exchange(mask, 0, 0);
}
inline void __threadfence() {}
inline unsigned __activemask() {
    return 1u << emulator::lane();
}  // of lanes that have come together by chance, any may be missing

template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
    return emulator::exchange_of(mask, value, from & 31);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int other) {
    return emulator::exchange_of(mask, value, emulator::lane() ^ other);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int by) {
    const int lane = emulator::lane();
    return emulator::exchange_of(mask, value, lane >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulator::lanes_with(mask, predicate != 0, 1);
}
inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
    const std::uint64_t bits = emulator::bits_of(value);
    return emulator::lanes_with(mask, bits, bits);
}

// Not inlined: the compiler would read ahead of a condition.
template <class T, class U>
__attribute__((noinline)) T atomicAdd(T* at, U value) {
    const T old = *at;
    *at = old + T(value);
    return old;
}
template <class T, class U>
T atomicOr(T* at, U value) {
    const T old = *at;
    *at = old | T(value);
    return old;
}
template <class T, class U>
T atomicMax(T* at, U value) {
    const T old = *at;
    *at = old < T(value) ? T(value) : old;
    return old;
}
template <class T, class U>
T atomicExch(T* at, U value) {
    const T old = *at;
    *at = T(value);
    return old;
}

template <class T>
T __ldg(const T* at) {
    return *at;
}
template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int k = 0; k < 32; k++) reversed |= (x >> k & 1) << (31 - k);
    return reversed;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __saturatef(float x) {
    return x > 0 ? fminf(x, 1.0f) : 0.0f;
}
inline float rsqrtf(float x) {
    return 1 / sqrtf(x);
}
inline float rsqrt(float x) {
    return 1 / sqrtf(x);
}
inline double rsqrt(double x) {
    return 1 / sqrt(x);
}
template <class Real>
void sincospi(Real x, Real* s, Real* c) {
    *s = sin(M_PI * x);
    *c = cos(M_PI * x);
}
template <class To, class From>
To bits_as(From from) {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) {
    return bits_as<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
    return bits_as<float>(x);
}
inline int __double2loint(double x) {
    return int(bits_as<std::uint64_t>(x));
}
inline int __double2hiint(double x) {
    return int(bits_as<std::uint64_t>(x) >> 32);
}
inline double __hiloint2double(int high, int low) {
    return bits_as<double>(std::uint64_t(unsigned(high)) << 32 | unsigned(low));
}
inline long long __double2ll_rn(double x) {
    return std::isnan(x) ? INT64_MIN : llrint(x);
}
