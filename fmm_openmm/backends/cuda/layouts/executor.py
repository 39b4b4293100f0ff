"""Layouts of P2P on the GPU through CuPy."""

from fmm_openmm.backends.cuda.executor import Run
from fmm_openmm.backends.cuda.layouts import Neighbourhood, charges_of, program
from fmm_openmm.backends.cuda.layouts.model import KEPT, Costs, choose, key
from fmm_openmm.backends.cuda.loader import device_name
from fmm_openmm.box import BoxLattice
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.stages import Accumulator, Parts


class P2P(Run):
    """A layout on the boxes of some parts, ready to be run on the current stream: stages "copy" and "p2p".

    Args:
        layout: a name in :data:`fmm_openmm.backends.cuda.layouts.LAYOUTS`.
        of: boxes and near boxes.
        dtype: float32 or float64.

    Attributes:
        xq: positions relative to box centres, box widths, and charges, e, shape (m, 4); to be filled.
        results: potentials, e per box width, and fields, e per square box width, shape (m, 4).

    Raises:
        MemoryError: device memory does not suffice.
    """

    def __init__(self, layout: str, of: Neighbourhood, dtype):
        super().__init__(program(layout, of, dtype))
        self.xq, self.results = self.buffers["xq"], self.buffers["results"]


def p2p(layout: str | None, lattice: BoxLattice, parts: Parts, dtype, out: Accumulator) -> str:
    """As :func:`fmm_openmm.backends.reference.p2p.p2p`, with nothing left out but each part itself.

    Args:
        layout: its name, or None for the one that the model of their times finds faster.

    Returns:
        the name of the layout.

    Raises:
        UnsupportedError: an open lattice, a near stencil too large, or particles split into parts; None without the costs that
            the model needs.
        MemoryError: device memory does not suffice.
    """
    of = Neighbourhood.of(lattice, parts.start)
    layout = layout or choose(of.density, of.near.shape[1], known_costs(dtype))
    run = P2P(layout, of, dtype)
    run.xq.set(charges_of(parts, dtype))
    run.queue()
    results = run.results.get()
    out.potentials += results[:, 0]
    out.fields += results[:, 1:]
    return layout


def known_costs(dtype) -> Costs:
    """What was measured on this model of GPU.

    Raises:
        UnsupportedError: nothing was.
    """
    costs = KEPT.read().get(key(device_name(), dtype))
    if costs is None:
        raise UnsupportedError(
            f"to choose a layout of P2P needs costs measured on {device_name()}: run `fmm-openmm bench layouts`"
        )
    return costs
