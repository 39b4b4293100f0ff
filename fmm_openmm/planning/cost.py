"""Cost model of an evaluation, by backend."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CostModel:
    """Time of an evaluation on one backend, as a sum over the operations of its stages.

    All times are in seconds, each for one operation.

    Attributes:
        pair: pair of parts in p2p.
        part_term: part and expansion term in p2m and l2p.
        part: part in the other stages.
        box_term: box and term in the FFTs.
        box_term2: box and pair of terms in the convolution.
        box_near: box and box of its near stencil.
        box: box that holds particles, in p2p.
        order: latency of the chain of far-field stages, for each order.
        concurrent: number of boxes that p2p processes at the same time. Fewer take as long as that
            many; the last ones of many take half as long on average.
        overlap: least time of the far field, with which p2p overlaps.
        scattered: box and term, added where boxes that are neighbours in space are not neighbours
            in memory (``BoxLattice.in_rows``).
        rotation: order from which m2l by rotation is faster than by matrices.
        rounding: error of float32 arithmetic relative to
            :func:`fmm_openmm.expansions.error.single_noise`, which describes a CPU.
        examined: whether every evaluation examines its forces for rounding errors.
        double: the model for float64, if it differs.
    """

    pair: float
    part_term: float
    part: float
    box_term: float
    box_term2: float
    box_near: float
    box: float = 0.0
    order: float = 0.0
    concurrent: float = 0.0
    overlap: float = 0.0
    scattered: float = 0.0
    rotation: int = 1
    rounding: float = 1.0
    examined: bool = False
    double: "CostModel | None" = None

    def __call__(
        self,
        parts: float,
        filled: float,
        boxes: int,
        near: float,
        order: int,
        levels: int = 0,
        in_rows: bool = True,
    ) -> float:
        terms = (order + 1) ** 2
        box_term = self.box_term if in_rows else self.box_term + self.scattered
        root = boxes / 8**levels
        # m2l: the children of the near boxes of a parent, less the near boxes of the child
        interactions = 8 / 7 * (boxes - root) * filled * 7 * near
        pairs = self.pair * parts * (parts / (filled * boxes) * near)
        wave = pairs * self.concurrent / (filled * boxes)
        return (
            max(pairs + wave / 2, wave - self.overlap)
            + parts * (self.part + self.part_term * terms)
            + root * (box_term * terms + self.box_term2 * terms * terms)
            + interactions * self.box_term2 * terms * terms
            + boxes * filled * (self.box_near * near + self.box)
            + self.order * order
        )


CPU_COST = CostModel(
    pair=3.8e-10, part_term=2e-9, part=1.5e-7, box_term=3.4e-8, box_term2=3.2e-10, box_near=2.7e-8,
    rotation=9, examined=True
)  # fmt: skip
"""One thread of an AMD EPYC in float32, fitted to timings of the 21,480-atom water box of
``docs/explanation/accuracy.md``."""

CUDA_COST = CostModel(
    pair=5.9e-13, part_term=6.5e-14, part=1.24e-9, box_term=2.9e-12, box_term2=1.75e-13,
    box_near=1.9e-11, box=2.9e-9, order=2.05e-6, concurrent=2100, overlap=2e-5, scattered=1.6e-11,
    rounding=2.15, double=CostModel(
        pair=2.5e-12, part_term=2.4e-12, part=7e-11, box_term=2e-11, box_term2=1.15e-13,
        box_near=1.1e-11, box=7.8e-10, concurrent=2100, overlap=2e-5, scattered=3.2e-11,
    ),
)  # fmt: skip
"""NVIDIA H200. The model of float32 is fitted to whole MD steps of water with 21,384 to 922,752
atoms, Lennard-Jones pairs of the oxygens included, within 3 %. ``part`` includes the cost of the
additional parts that smoothing makes; times without smoothing are therefore overestimated, all by
the same amount. ``scattered`` is fitted to dodecahedra, the model of float64 to the times of the
stages at 962,280 atoms. ``rounding`` covers the error of 1.0e-5 that TIP4P-Ew water has at a
smoothing of 0.025: reciprocal square roots are approximate, and all sums are in float32."""
