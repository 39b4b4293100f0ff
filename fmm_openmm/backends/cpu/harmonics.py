"""Regular solid harmonics of many points at once, by the recurrences of
``expansions/harmonics.py``; one point per lane.

p2m and l2p fill a tile of lanes with the parts of as many boxes as find room. Each box begins at a
multiple of ``GROUP`` lanes, and one with more parts than lanes is taken in pieces that begin in the
first lane, so that sums over its parts do not depend on its neighbours.
"""

from fmm_openmm.backends.cpu.threads import LANES, inline

TILE = 64
"""Lanes of a tile: loops over so many are fast, and harmonics of usual orders stay in the cache."""

GROUP = 8
"""Lanes of the fastest vector instructions, in float32."""


@inline
def load(x, begin, used, lane):
    """Fill ``lane`` (3, LANES) with the points from ``begin`` in ``x`` (n, 3); lanes beyond
    ``used`` repeat the first."""
    for w in range(LANES):
        p = begin + (w if w < used else 0)
        lane[0, w], lane[1, w], lane[2, w] = x[p, 0], x[p, 1], x[p, 2]


@inline
def load_tile(x, start, box, part, step, lane, piece):
    """Fill ``lane`` (3, TILE) with parts of every ``step``-th box, the first of them ``part`` of
    ``box``, and ``piece`` (TILE // GROUP, 4) with the box, first part, number of parts and first
    lane of each piece.

    Returns:
        the number of pieces, and box and part with which to continue.
    """
    pieces, lanes = 0, 0
    while box < len(start) - 1:
        count = min(start[box + 1] - part, TILE)
        if lanes + count > TILE:
            break
        if count:
            piece[pieces, 0], piece[pieces, 1] = box, part
            piece[pieces, 2], piece[pieces, 3] = count, lanes
            pieces += 1
            for w in range(count):
                for axis in range(3):
                    lane[axis, lanes + w] = x[part + w, axis]
            lanes += (count + GROUP - 1) // GROUP * GROUP
            part += count
        if part == start[box + 1]:
            box += step
            part = start[min(box, len(start) - 1)]
    return pieces, box, part


@inline
def regular(x, y, z, order, out):
    """Fill ``out`` (terms, lanes) with R_a at the points (x, y, z), each (lanes,)."""
    real = out.dtype.type
    row = out[0]
    for w in range(len(x)):
        row[w] = real(1.0)
    for m in range(order + 1):
        diagonal = m * m + m
        if m:
            scale = real(1.0) / real(2 * m)
            c, s = out[(m - 1) * m + m - 1], out[(m - 1) * m - m + 1]
            row, other = out[diagonal + m], out[diagonal - m]
            if m == 1:
                for w in range(len(x)):
                    row[w], other[w] = scale * x[w], scale * y[w]
            else:
                for w in range(len(x)):
                    row[w] = scale * (x[w] * c[w] - y[w] * s[w])
                    other[w] = scale * (x[w] * s[w] + y[w] * c[w])
        for imaginary in range(2 if m else 1):
            signed = -m if imaginary else m
            for l in range(m + 1, order + 1):
                scale = real(1.0) / real((l + m) * (l - m))
                up = real(2 * l - 1) * scale
                row, below = out[l * l + l + signed], out[(l - 1) * l + signed]
                if l == m + 1:
                    for w in range(len(x)):
                        row[w] = up * z[w] * below[w]
                else:
                    other = out[(l - 2) * (l - 1) + signed]
                    for w in range(len(x)):
                        r2 = x[w] * x[w] + y[w] * y[w] + z[w] * z[w]
                        row[w] = up * z[w] * below[w] - scale * r2 * other[w]
