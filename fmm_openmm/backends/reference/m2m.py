"""m2m: moments of the leaves to those of every level above."""

from dataclasses import replace

from fmm_openmm.expansions.translations import Translations, to_parent
from fmm_openmm.octree import PARITIES, Octree, children, from_parent
from fmm_openmm.stages import Moments


def m2m(moments: Moments, octree: Octree, order: int, operator: Translations) -> list[Moments]:
    """See :meth:`fmm_openmm.stages.Stages.m2m`."""
    pyramid = [moments]
    for lattice in octree.lattices[:0:-1]:
        boxes = sum(
            operator.m2m(
                children(pyramid[0].boxes, lattice.counts, parity).reshape(-1, (order + 1) ** 2).T,
                shift,
            )
            for parity, shift in zip(PARITIES, from_parent(lattice.boxes), strict=True)
        )
        pyramid.insert(0, replace(moments, boxes=boxes.T * to_parent(order)))
    return pyramid
