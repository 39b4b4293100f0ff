// The results of a particle: sums over its parts, in OpenMM's units.
#pragma once
#include "common/parts.cuh"
#include "common/share.cuh"

// The results of the parts, and the arrays that assign them to particles.
struct PartResults {
    int n;
    const Located* __restrict__ located;
    const real4* __restrict__ fraction;
    const int* __restrict__ place;
    const real4* __restrict__ far;
    const real4* __restrict__ near;
    const Parameters* __restrict__ parameters;
    int first, end;  // parts that have results, of a share of the boxes

    __device__ bool hold(int k) const { return !HAS_SHARE || (k >= first && k < end); }
};

__device__ __forceinline__ PartResults
results_of_parts(int n, const Located* __restrict__ located, const real4* __restrict__ fraction,
                 const int* __restrict__ place, const real4* __restrict__ far,
                 const real4* __restrict__ near, const Parameters* __restrict__ parameters,
                 const int* __restrict__ start, const BoxRange* __restrict__ share) {
    const BoxRange boxes = target_boxes(share);
    const int first = HAS_SHARE ? start[boxes.first] : 0, end = HAS_SHARE ? start[boxes.end] : 0;
    return {n, located, fraction, place, far, near, parameters, first, end};
}

// Potential and field at particle i, of those of its parts that have results; and whether any and
// all of them do.
struct Result {
    real4 sum;
    bool any, whole;
};

__device__ __forceinline__ Result result_of(int i, const PartResults& parts) {
    const Located at = parts.located[i];
    real phi = 0, ex = 0, ey = 0, ez = 0;
    bool any = !HAS_SHARE, whole = true;
    for_each_corner(at, [&](int corner) {
        const int k = parts.place[entry_of(8 * i + corner, parts.n)];
        if (!parts.hold(k)) {
            whole = false;
            return;
        }
        any = true;
        const real4 a = parts.far[k], b = parts.near[k];
        const real p = a.x + b.x, fx = a.y + b.y, fy = a.z + b.z, fz = a.w + b.w;
#if SMOOTHED
        const Part part = part_of(at, parts.fraction[i], corner, parts.parameters);
        phi += part.weight * p;
        ex += part.weight * fx - part.slope_x * p;
        ey += part.weight * fy - part.slope_y * p;
        ez += part.weight * fz - part.slope_z * p;
#else
        phi = p; ex = fx; ey = fy; ez = fz;
#endif
    });
    const real scale = real(parts.parameters->field);
    return {
        {phi * real(parts.parameters->potential), ex * scale, ey * scale, ez * scale}, any, whole};
}
