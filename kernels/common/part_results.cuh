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
    // the parts of which the device computes the near and the far field, if several share the work
    BoxRange with_near, with_far;

    __device__ bool hold(int k, const BoxRange& parts) const {
        return !HAS_SHARE || (k >= parts.first && k < parts.end);
    }
};

__device__ __forceinline__ BoxRange parts_in(const BoxRange& boxes, const int* __restrict__ start) {
    return HAS_SHARE ? BoxRange{start[boxes.first], start[boxes.end]} : boxes;
}

__device__ __forceinline__ PartResults
results_of_parts(int n, const Located* __restrict__ located, const real4* __restrict__ fraction,
                 const int* __restrict__ place, const real4* __restrict__ far,
                 const real4* __restrict__ near, const Parameters* __restrict__ parameters,
                 const int* __restrict__ start, const Share* __restrict__ share) {
    return {n,
            located,
            fraction,
            place,
            far,
            near,
            parameters,
            parts_in(near_boxes(share), start),
            parts_in(far_boxes(share), start)};
}

// Potential and field at particle i, as far as the device computes them; and whether it computes
// any of it and all of it.
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
        const bool has_near = parts.hold(k, parts.with_near),
                   has_far = parts.hold(k, parts.with_far);
        any |= has_near || has_far;
        whole &= has_near && has_far;
        if (!has_near && !has_far) return;
        const real4 none = {0, 0, 0, 0}, a = has_far ? parts.far[k] : none,
                    b = has_near ? parts.near[k] : none;
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
