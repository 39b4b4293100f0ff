"""The algorithm: one line per stage."""

from typing import TypeVar

Array = TypeVar("Array")
"""An array, or the name of a buffer that will hold it where stages describe a program."""


def evaluate(stages, positions: Array, width: float | Array) -> tuple[Array, Array]:
    """Potentials (n,) in e per box width and fields (n, 3) in e per square box width at the
    particles.

    Args:
        stages: a backend's :class:`fmm_openmm.stages.Stages`, made for the charges, exclusions and
            cell shape in question.
        positions: shape (n, 3) float64, nm.
        width: mean box width, nm.
    """
    parts = stages.sort(positions, width)
    out = far_field(stages, parts) if stages.has_far_field else stages.nothing(parts)
    near = stages.exclusions(parts, out)
    stages.p2p(parts, near, out)
    return stages.gather(parts, out)


def far_field(stages, parts):
    """Potentials and fields of the boxes that are not near, at the parts."""
    moments = stages.p2m(parts)
    return stages.l2p(parts, moments, expand(stages, parts, moments))


def expand(stages, targets, moments):
    """Local expansions of the leaves that hold target parts, from the moments of all leaves."""
    pyramid = stages.m2m(targets, moments)
    local = stages.lattice_m2l(pyramid[0])
    for level in range(1, len(pyramid)):
        local = stages.m2l(pyramid[level], stages.l2l(local, level), level)
    return local
