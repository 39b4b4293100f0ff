"""m2m: computes the moments of every level from those of the leaves."""

from dataclasses import replace

import numpy as np

from fmm_openmm.expansions.translations import Translations, to_parent
from fmm_openmm.octree import PARITIES, Octree, children, from_parent
from fmm_openmm.stages import Moments


def m2m(moments: Moments, octree: Octree, order: int, operator: Translations) -> list[Moments]:
    """See :meth:`fmm_openmm.stages.Stages.m2m`."""
    by_level = [moments]
    for lattice in octree.lattices[:0:-1]:
        boxes = sum(
            operator.m2m(
                children(by_level[0].boxes, lattice.counts, parity).reshape(-1, (order + 1) ** 2).T,
                shift,
            )
            for parity, shift in zip(PARITIES, from_parent(lattice.boxes), strict=True)
        )
        by_level.insert(0, replace(moments, boxes=np.transpose(boxes) * to_parent(order)))
    return by_level
