// Loads in place: the compiler would move the load of a prefetch to the first use of its value.
#pragma once
#include "common/real.cuh"

__device__ __forceinline__ unsigned load_now(const unsigned* from) {
#ifdef __CUDA_ARCH__
    unsigned value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
#else
    return *from;
#endif
}

// Loads from memory that the kernel does not write.
template <class Real4>
__device__ __forceinline__ Real4 load_now(const Real4* __restrict__ from) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(Real4) == 16) {
        Real4 v;
        asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "l"(from));
        return v;
    }
#endif
    return *from;
}
