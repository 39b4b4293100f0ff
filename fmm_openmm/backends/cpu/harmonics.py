"""Regular solid harmonics of ``LANES`` points at once, by the recurrences of
``expansions/harmonics.py``; one point per lane."""

from fmm_openmm.backends.cpu.threads import LANES, inline


@inline
def load(x, begin, used, lane):
    """Fill ``lane`` (3, LANES) with the points from ``begin`` in ``x`` (n, 3); lanes beyond
    ``used`` repeat the first."""
    for w in range(LANES):
        p = begin + (w if w < used else 0)
        lane[0, w], lane[1, w], lane[2, w] = x[p, 0], x[p, 1], x[p, 2]


@inline
def regular(x, y, z, order, out):
    """Fill ``out`` (terms, LANES) with R_a at the points (x, y, z), each (LANES,)."""
    real = out.dtype.type
    for w in range(LANES):
        out[0, w] = real(1.0)
    for m in range(order + 1):
        diagonal = m * m + m
        for imaginary in range(2 if m else 1):
            a = diagonal - m if imaginary else diagonal + m
            if m:
                c, s = (m - 1) * m + m - 1, (m - 1) * m - m + 1
                scale = real(1.0) / real(2 * m)
                if m == 1:
                    for w in range(LANES):
                        out[a, w] = scale * (y[w] if imaginary else x[w])
                elif imaginary:
                    for w in range(LANES):
                        out[a, w] = scale * (x[w] * out[s, w] + y[w] * out[c, w])
                else:
                    for w in range(LANES):
                        out[a, w] = scale * (x[w] * out[c, w] - y[w] * out[s, w])
            signed = -m if imaginary else m
            for l in range(m + 1, order + 1):
                a, b = l * l + l + signed, (l - 1) * l + signed
                scale = real(1.0) / real((l + m) * (l - m))
                up = real(2 * l - 1) * scale
                if l == m + 1:
                    for w in range(LANES):
                        out[a, w] = up * z[w] * out[b, w]
                else:
                    c = (l - 2) * (l - 1) + signed
                    for w in range(LANES):
                        r2 = x[w] * x[w] + y[w] * y[w] + z[w] * z[w]
                        out[a, w] = up * z[w] * out[b, w] - scale * r2 * out[c, w]
