"""Cost model: the seconds an evaluation takes, by backend."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CostModel:
    """Seconds an evaluation takes on one backend, as a sum over its stages' work.

    Attributes:
        pair: a pair of parts in p2p.  part_term: a part and a term in p2m and l2p.  part: a part in
            the other stages.
        box_term: a box and a term in the FFTs.  box_term2: a box and a pair of terms in the
            convolution.
        order: an order, in the latency of the chain of stages of the far field.
        strewn: a box and a term where neighbours are strewn over memory (``BoxLattice.in_rows``).
        box_near: a box and a box of its near stencil.  box: a box that holds particles, in p2p.
        at_once: boxes that p2p works on side by side, so that fewer take as long, and the last of
            many half as long.
        beside: what the far field takes at least, with p2p beside it.
        rotation: order from which m2l by rotation is faster than by matrices.
        rounding: error of float32 arithmetic over :func:`fmm_openmm.expansions.error.single_noise`,
            which is a CPU's.
        double: the model of float64, if that is another.
    """

    pair: float
    part_term: float
    part: float
    box_term: float
    box_term2: float
    box_near: float
    box: float = 0.0
    order: float = 0.0
    at_once: float = 0.0
    beside: float = 0.0
    strewn: float = 0.0
    rotation: int = 1
    rounding: float = 1.0
    double: "CostModel | None" = None

    def __call__(
        self,
        parts: float,
        filled: float,
        boxes: int,
        near: int,
        order: int,
        levels: int = 0,
        in_rows: bool = True,
    ) -> float:
        terms = (order + 1) ** 2
        box_term = self.box_term if in_rows else self.box_term + self.strewn
        root = boxes / 8**levels
        # a box has eight times as many near ones as its parent
        interactions = 8 / 7 * (boxes - root) * filled * 7 * near
        pairs = self.pair * parts * (parts / (filled * boxes) * near)
        side_by_side = pairs * self.at_once / (filled * boxes)
        return (
            max(pairs + side_by_side / 2, side_by_side - self.beside)
            + parts * (self.part + self.part_term * terms)
            + root * (box_term * terms + self.box_term2 * terms * terms)
            + interactions * self.box_term2 * terms * terms
            + boxes * filled * (self.box_near * near + self.box)
            + self.order * order
        )


CPU_COST = CostModel(
    pair=3.8e-10, part_term=2e-9, part=1.5e-7, box_term=3.4e-8, box_term2=3.2e-10, box_near=2.7e-8,
    rotation=9
)  # fmt: skip
"""One thread of an AMD EPYC at float32, fitted to timings of the 21,480-atom water
of ``docs/accuracy.md``."""

CUDA_COST = CostModel(
    pair=5.9e-13, part_term=6.5e-14, part=1.24e-9, box_term=2.9e-12, box_term2=1.75e-13,
    box_near=1.9e-11, box=2.9e-9, order=2.05e-6, at_once=2100, beside=2e-5, strewn=1.6e-11,
    rounding=2.15, double=CostModel(
        pair=2.5e-12, part_term=2.4e-12, part=7e-11, box_term=2e-11, box_term2=1.15e-13,
        box_near=1.1e-11, box=7.8e-10, at_once=2100, beside=2e-5, strewn=3.2e-11,
    ),
)  # fmt: skip
"""An NVIDIA H200. In float32 fitted to whole MD steps of water, 21,384 to 922,752 atoms, within
3 %, beside the Lennard-Jones pairs of the oxygens: ``part`` holds what parts cost that only
smoothing makes, so times without it come out too long, by the same for all. ``strewn`` was
fitted to dodecahedra, the model of float64 to the stages' times at 962,280 atoms. ``rounding``
covers the 1.0e-5 of TIP4P-Ew water at a smoothing of 0.025: reciprocal roots are approximate,
and all sums are in float32."""
