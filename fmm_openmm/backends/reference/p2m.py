"""p2m: computes the moments of the boxes from their parts."""

import numpy as np

from fmm_openmm.expansions.harmonics import regular
from fmm_openmm.stages import Moments, Parts


def p2m(parts: Parts, order: int) -> Moments:
    """See :meth:`fmm_openmm.stages.Stages.p2m`."""
    boxes = len(parts.start) - 1
    box = np.repeat(np.arange(boxes), np.diff(parts.start))
    moments = np.stack(
        [np.bincount(box, parts.charge * r, boxes) for r in regular(parts.x, order)], 1
    )
    return Moments(moments, parts.charge.sum(), parts.charge @ parts.x, parts.charge @ parts.x**2)
