// Excluded pairs in p2p. An excluded source within the near stencil is masked, so that p2p never
// adds it; one beyond it was added by the far field and is subtracted.
#pragma once
#include "common/p2p_sums.cuh"
#if COPIES
#include "common/tag.cuh"
#endif

// Arrays in which excluded pairs are looked up; see the kernel's parameters.
struct ExclusionTables {
    int n;
    const real4* __restrict__ xq;
    const int* __restrict__ sorted;
    const int* __restrict__ place;
    const Located* __restrict__ located;
    const real4* __restrict__ fraction;
    const int* __restrict__ row_of;
    const int* __restrict__ partner_start;
    const int* __restrict__ partner;
    const Parameters* __restrict__ parameters;
#if COPIES
    Given given;
    const Pattern* __restrict__ pattern;
    const Tag* __restrict__ tag;
    const int* __restrict__ copy_of;
#endif
};

// Translation, in boxes, to the image of particle b that is excluded for particle a: none, or with
// MINIMUM_IMAGE that of the nearest image.
__device__ __forceinline__ int3 excluded_image(const Located& a, const Located& b, const real4& u,
                                               const real4& v, const Parameters* p) {
    int3 shift = {0, 0, 0};
#if MINIMUM_IMAGE
    double d[3], c[3] = {double(u.x) - v.x + (a.box[0] - b.box[0]),
                         double(u.y) - v.y + (a.box[1] - b.box[1]),
                         double(u.z) - v.z + (a.box[2] - b.box[2])};
    const double *e = p->boxes, *h = p->cell;
    d[0] = c[0] * e[0] + c[1] * e[3] + c[2] * e[6];
    d[1] = c[1] * e[4] + c[2] * e[7];
    d[2] = c[2] * e[8];
    const int m2 = int(rint(d[2] / h[8]));
    d[0] -= m2 * h[6];
    d[1] -= m2 * h[7];
    const int m1 = int(rint(d[1] / h[4]));
    d[0] -= m1 * h[3];
    const int m0 = int(rint(d[0] / h[0]));
    shift.x = m0 * N0 + m1 * C10 + m2 * C20;
    shift.y = m1 * N1 + m2 * C21;
    shift.z = m2 * N2;
#endif
    return shift;
}

// A lane's position in the list of excluded partners of its target's particle; `share` lanes divide
// the list. The list begins with the particle itself, which matters only if the particle is split:
// a part always excludes itself. The particles of a rank (COPIES) share patterns, without
// themselves.
struct ExclusionCursor {
    int share, target, particle, next, last;
    int box[3];
#if COPIES
    int first, number;  // the first of the others, and number of the particle among all
#endif
};

__device__ __forceinline__ int partner_at(const ExclusionTables& tables,
                                          const ExclusionCursor& cursor, int k) {
#if COPIES
    if (SMOOTHED && k < cursor.first) return cursor.particle;
    const int number = cursor.number + tables.partner[k], place = number - tables.given.first;
    return place >= 0 && place < tables.given.count ? place : tables.copy_of[number];
#else
    return tables.partner[k];
#endif
}

__device__ __forceinline__ ExclusionCursor begin_exclusions(const ExclusionTables& tables, int lane,
                                                            int batch, int targets) {
    const int shift = targets > 16 ? 0 : (targets > 8 ? 1 : 2);
    ExclusionCursor cursor = {1 << shift, lane >> shift};
    if (cursor.target < targets) {
        const int part = tables.sorted[batch + cursor.target];
        cursor.particle = part >> 3;
#if COPIES
        const int i = cursor.particle;
        const Tag tag = i < tables.given.count ? Tag{tables.given.first + i, tables.pattern[i]}
                                               : tables.tag[i - tables.given.count];
        cursor.number = tag.number;
        cursor.first = tables.partner_start[tag.pattern.number()];
        cursor.next = cursor.first - 1 + (lane & (cursor.share - 1));
        cursor.last = tables.partner_start[tag.pattern.number() + 1];
#else
        cursor.next = tables.partner_start[cursor.particle] + (lane & (cursor.share - 1));
        cursor.last = tables.partner_start[cursor.particle + 1];
#endif
        const Located at = tables.located[cursor.particle];
        if (!is_split(at)) cursor.next++;
#pragma unroll
        for (int axis = 0; axis < 3; axis++)
            cursor.box[axis] = at.box[axis] + step_of(at, part & 7, axis);
    }
    return cursor;
}

// Minus what excluded pairs beyond the near stencil contribute to a target, and to the work.
struct FarField {
    const real4* target;
    Work& work;
    Field sum = {0, 0, 0, 0};

    // Subtracts a source, number `part`, at displacement -d from the target.
    __device__ __forceinline__ void subtract(const real4& source, int part, real dx, real dy,
                                             real dz) {
        const real inverse = inverse_root(dx * dx + dy * dy + dz * dz);
        const real v = source.w * inverse, f = v * inverse * inverse;
        sum.phi -= v;
        sum.x -= f * dx;
        sum.y -= f * dy;
        sum.z -= f * dz;
        work.subtract_pair(target->w, f, dx, dy, dz);
    }

    __device__ __forceinline__ bool any() const {
        return sum.phi != 0 || sum.x != 0 || sum.y != 0 || sum.z != 0;
    }

    __device__ __forceinline__ void add_lane(int bit) { sum += shuffle_xor(sum, bit); }
};

// Row of the near stencil, n boxes from a box; -1 beyond it.
__device__ __forceinline__ int near_row(const int* __restrict__ row_of, int3 n) {
    constexpr unsigned WIDTH0 = 2 * REACH0 + 1, WIDTH1 = 2 * REACH1 + 1, WIDTH2 = 2 * REACH2 + 1;
    const unsigned from0 = n.x + REACH0, from1 = n.y + REACH1, from2 = n.z + REACH2;
    if (from0 < WIDTH0 && from1 < WIDTH1 && from2 < WIDTH2)
        return row_of[from0 + WIDTH0 * (from1 + WIDTH1 * from2)];
    return -1;
}

// Masks one part of an excluded partner, n boxes from the target's box, if it is near; otherwise
// subtracts its contribution from `far`.
template <class Far>
__device__ __forceinline__ void mask_or_subtract(Shared& s, const ExclusionTables& tables,
                                                 int target, int target_part, int part, int3 n,
                                                 int window, Far& far) {
    const int row = near_row(tables.row_of, n);
    if (row >= 0) {
        const int source = part - s.to_part[row] - window;
        if (source >= 0 && source < WINDOW) {
            atomicOr(&s.mask[source], target_bit(source, target));
            atomicMax(&s.last_masked[target], source + 1);
        }
    } else if (window == 0) {
        const real4 from = tables.xq[part], to = tables.xq[target_part];
        const double* e = tables.parameters->boxes;
        far.subtract(from, part, to.x - from.x - real(n.x * e[0] + n.y * e[3] + n.z * e[6]),
                     to.y - from.y - real(n.y * e[4] + n.z * e[7]),
                     to.z - from.z - real(n.z * e[8]));
    }
}

// Applies the exclusions of all targets of a batch. Returns whether any is beyond the near stencil;
// then the first of the lanes that share a target has the sum of what is subtracted from it.
template <class Far>
__device__ __forceinline__ bool apply_exclusions(Shared& s, const ExclusionTables& tables,
                                                 const ExclusionCursor& cursor, int batch,
                                                 int window, Far& far) {
    for (int k = cursor.next; k < cursor.last; k += cursor.share) {
        const int i = cursor.particle, j = partner_at(tables, cursor, k);
        const Located other = tables.located[j];
        int3 image = {0, 0, 0};
        if (MINIMUM_IMAGE && j != i)
            image = excluded_image(tables.located[i], other, tables.fraction[i], tables.fraction[j],
                                   tables.parameters);
        for_each_corner(other, [&](int corner) {
            const int3 n = {other.box[0] + step_of(other, corner, 0) + image.x - cursor.box[0],
                            other.box[1] + step_of(other, corner, 1) + image.y - cursor.box[1],
                            other.box[2] + step_of(other, corner, 2) + image.z - cursor.box[2]};
            const int part = tables.place[entry_of(j, corner, tables.n)];
            mask_or_subtract(s, tables, cursor.target, batch + cursor.target, part, n, window, far);
        });
    }
    if (!__any_sync(FULL, far.any())) return false;
    for (int d = 1; d < cursor.share; d *= 2) far.add_lane(d);
    return (threadIdx.x & (cursor.share - 1)) == 0;
}
