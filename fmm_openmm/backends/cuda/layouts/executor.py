"""Layouts of P2P on the GPU through CuPy."""

import cupy

from fmm_openmm.backends.cuda.executor import allocated, bound, compiled
from fmm_openmm.backends.cuda.faults import out_of_memory
from fmm_openmm.backends.cuda.layouts import Neighbourhood, charges_of, program
from fmm_openmm.backends.cuda.layouts.model import KEPT, Costs, choose, key
from fmm_openmm.backends.cuda.loader import device_name
from fmm_openmm.box import BoxLattice
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.stages import Accumulator, Parts


class P2P:
    """A layout on the boxes of some parts, ready to be run on the current stream.

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
        built = program(layout, of, dtype)
        try:
            buffers = allocated(built)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise out_of_memory(error, sum(buffer.nbytes for buffer in built.buffers.values())) from None
        self.xq, self.results = buffers["xq"], buffers["results"]
        kernels = compiled(built)
        self._steps = {"copy": [], "p2p": []}
        for step in built.steps:
            self._steps[step.stage].append(bound(step, built, kernels, buffers, {}))

    def queue(self, *stages: str) -> None:
        """Queue "copy", "p2p" or, without names, both."""
        for stage in stages or self._steps:
            for step in self._steps[stage]:
                step()


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
