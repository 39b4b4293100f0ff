"""Lennard-Jones interaction of the sites, the particles that have one, as a program inside OpenMM's
CUDA context.

The kernels say how it works (``kernels/pairs/lennard_jones_list.cu``,
``kernels/pairs/lennard_jones_pairs.cu``). Buffers that the executor fills, before
:data:`fmm_openmm.backends.cuda.program.SETUP` where nothing else is said:

===========  ==================  ===================================================================
``slot``     (sites,) int32      where OpenMM's arrays hold each site
``type``     (sites,) int32      its type
``start``    (sites + 1,) int32  excluded partners of site s, ascending, are
                                 ``partner[start[s]:start[s + 1]]``
``partner``  (partners,) int32
``pairs``    (types, types, 2)   12 A and 6 B, kJ/mol nm^12 and kJ/mol nm^6, or A and B where there
                                 are ``functions``; may change between evaluations
``cell``     (11,) float64       box vectors in rows, radius of the list, nm, square of a site's
                                 displacement up to which the list holds, nm^2; may change, with a
                                 new list
``state``    (8,) int32          ``State`` of ``kernels/pairs/sites.cuh``; the first zeroed for a
                                 new list
``share``    (2,) int32          first and end of the rows of cells whose pairs this device computes
                                 where several share them, in units of 1 / ``WHOLE``; may
                                 change, with a new list
===========  ==================  ===================================================================
"""

import math
from ctypes import sizeof
from dataclasses import dataclass

import numpy as np

from fmm_openmm.backends.cuda.abi import WHOLE, Cell, State
from fmm_openmm.backends.cuda.program import (
    SETUP,
    Device,
    Interface,
    Phase,
    Program,
    ProgramBuilder,
)
from fmm_openmm.backends.cuda.source import real_type

CLUSTER = 4
"""Sites of a cluster: ``CLUSTER`` of ``kernels/pairs/sites.cuh``."""

SITE_BITS = 25
"""Bits of an entry of a list for its site: ``SITE_BITS`` of ``kernels/pairs/sites.cuh``."""

FEW, LONG = 10_000, 400
"""Sites up to which, and entries of a list from which, 32 lanes share a cluster instead of 16."""

MANY = 100_000
"""Sites above which a kernel of its own finds the neighbours before the pairs are computed."""

SEARCH_BLOCKS = 16
"""Blocks per multiprocessor, at most, of the kernel that finds neighbours: they end one after the
other, so that other kernels run at the same time as the last ones, and cost little where lists are
valid."""

LIST_THREADS, PAIR_THREADS = 256, 128
"""Threads per block: ``THREADS`` of the kernels."""


@dataclass(frozen=True)
class Sites:
    """The sites of a System and their interaction, as far as a program depends on them.

    Attributes:
        number: number of sites.
        types: number of types; the sites of a type have the same parameters.
        partners: number of excluded partners of all sites, twice the number of excluded pairs.
        cutoff: nm; None for none.
        switching: distance from which the interaction is switched off, nm; None for none.
        box_vectors: shape (3, 3), nm; None in free space.
        radius: initial radius of the list, nm.
        deterministic: whether the order of sums may not depend on which thread comes first.
        entries, masked: longest lists of a cluster known so far; 0 before there are any.
        energies: elements of OpenMM's energy buffer.
        functions: source of the functions f and g of a pair's energy A f(r) - B g(r) and of their
            slopes (``kernels/pairs/pair.cuh``); empty for 1/r^12 and 1/r^6.
        shared: whether several devices share the pairs.
    """

    number: int
    types: int
    partners: int
    cutoff: float | None
    switching: float | None
    box_vectors: np.ndarray | None
    radius: float
    deterministic: bool
    entries: int
    masked: int
    energies: int
    functions: str = ""
    shared: bool = False

    @property
    def lanes(self) -> int:
        """Lanes that share a cluster."""
        return 32 if self.number < FEW or self._are_long else 16

    def half(self, precision: str) -> bool:
        """Whether lists hold every pair once instead of twice: if they are long, except in double
        precision or if sums must be deterministic."""
        return (
            self.cutoff is not None
            and self._are_long
            and not self.deterministic
            and precision != "double"
        )

    @property
    def searched(self) -> bool:
        """Whether a kernel of its own finds the neighbours; else the kernel of the pairs does."""
        return self.cutoff is not None and self.number > MANY

    @property
    def _are_long(self) -> bool:
        """Whether the list of a cluster is long."""
        return self._expected > LONG

    @property
    def _expected(self) -> float:
        """Entries of a cluster at the density of the box; 0 in free space."""
        volume = np.inf if self.box_vectors is None else float(np.prod(np.diag(self.box_vectors)))
        return self.number / volume * 4 / 3 * math.pi * (1.25 * self.radius) ** 3

    @property
    def cells(self) -> int:
        """Capacity for cells: in a box filled with water a cell holds two sites."""
        return max(1024, 2 * self.number)

    @property
    def rows(self) -> int:
        """Capacity for rows of cells along x: a third more than the present number, and at most
        one per site."""
        if self.box_vectors is None:
            return max(64, self.number // 4)
        along = np.maximum(1.0, 2 * np.diag(self.box_vectors)[1:] / self.radius)
        return int(min(max(64, 1.3 * along.prod() + 16), max(64, self.number)))

    @property
    def capacity(self) -> int:
        """Capacity for sites, with rows padded to whole clusters."""
        most = (
            self.number + (CLUSTER - 1) * min(self.rows, self.number)
            if self.cutoff
            else self.number
        )
        return -(-most // CLUSTER) * CLUSTER

    @property
    def clusters(self) -> int:
        """Maximum number of clusters."""
        return self.capacity // CLUSTER

    @property
    def list_length(self) -> int:
        """Capacity for the entries of a cluster: a quarter more than the longest list known or, if
        none is known, than the number expected at the density of the box."""
        step = 2 * self.lanes
        return -(-int(1.25 * (self.entries or self._expected) + step) // step) * step

    @property
    def masked_length(self) -> int:
        """Capacity for the entries of a cluster that have masks: its own sites and excluded
        partners."""
        return max(CLUSTER + (60 if self.partners else 0), int(1.25 * self.masked))


def build(sites: Sites, device: Device, interface: Interface, blocks: int | None = None) -> Program:
    """The program for some sites.

    Args:
        sites: what is computed.
        device: the device's facts.
        interface: OpenMM's arrays.
        blocks: number of blocks that sort the sites; None for the fastest number.

    Raises:
        ValueError: too many sites for an entry of a list.
    """
    if sites.capacity >= 1 << SITE_BITS:  # the number after them is of a site that is far from all
        raise ValueError(
            f"{sites.number:,} sites are more than a list of Lennard-Jones pairs can hold"
        )
    double = interface.precision == "double"
    resident = 2 if double else (3 if sites.box_vectors is None else 4)  # as registers allow
    together = min(device.multiprocessors * resident, sites.capacity // LIST_THREADS + 1)
    b = ProgramBuilder()
    b.macros(**_macros(sites, interface, resident))
    _buffers(b, sites, interface)
    _begin(b, sites)
    _list(b, sites, blocks or together)
    if sites.cutoff is not None:
        _search(b, sites, device)
    for wanted in (Phase.FORCES, Phase.ENERGY, Phase.BOTH):
        _pairs(b, sites, interface, wanted)
    return b.program


def _macros(sites: Sites, interface: Interface, resident: int) -> dict:
    real = real_type(_real(interface))
    return {
        "REAL": real,
        "POSQ": real,
        "ENERGY_TYPE": "float" if interface.precision == "single" else "double",
        "LIMITED": int(sites.cutoff is not None),
        "PERIODIC": int(sites.box_vectors is not None),
        "PARTNERS": int(sites.partners > 0),
        "SWITCHED": int(sites.switching is not None),
        "CUTOFF": repr(float(sites.cutoff or 0.0)),
        "SWITCHING": repr(float(sites.switching or 0.0)),
        "TYPES": sites.types,
        "PAIR_LANES": sites.lanes,
        "HALF": int(sites.half(interface.precision)),
        "SEARCHED": int(sites.searched),
        "LIST_BLOCKS": resident,
        "DETERMINISTIC": int(sites.deterministic),
        "HAS_SHARE": int(sites.shared),
        **({"PAIR_FUNCTIONS": sites.functions} if sites.functions else {}),
    }


def _real(interface: Interface) -> np.dtype:
    return np.dtype(np.float64 if interface.precision == "double" else np.float32)


def _site_blocks(sites: Sites) -> int:
    """Blocks of a thread a site."""
    return sites.capacity // PAIR_THREADS + 1


def _begin(b: ProgramBuilder, sites: Sites) -> None:
    b.stage(SETUP, "lennard_jones_list", begin_sites=0)
    for buffer in ("state", "count", "length", "reaction"):
        b.memset(buffer)
    b.launch(
        "begin_sites", _site_blocks(sites), PAIR_THREADS, np.int32(sites.capacity),
        np.int32(sites.number), "slot", "type", "start", "partner", "partners", "home", "number",
        "reference", "position", "state",
    )  # fmt: skip


def _list(b: ProgramBuilder, sites: Sites, blocks: int) -> None:
    """Fetch the positions of the sites and, with a cutoff, sort the sites if the list of pairs is
    outdated.

    Args:
        blocks: number of blocks that sort the sites.
    """
    capacity = np.int32(sites.capacity)
    b.stage("list", "lennard_jones_list", Phase.LIST, fetch_sites=0)
    b.launch(
        "fetch_sites", _site_blocks(sites), PAIR_THREADS, capacity, "posq", "cell", "home",
        "reference", "position", "state",
    )  # fmt: skip
    if sites.cutoff is None:
        return
    b.stage("list", "lennard_jones_list", Phase.LIST, list_sites=0)
    b.launch(
        "list_sites", blocks, LIST_THREADS, capacity, np.int32(sites.rows), np.int32(sites.cells),
        "posq", "type", "cell", "home", "sorted", "reference", "position", "number",
        "number_before", "place", "count", "row_start", "row_sites", "grid", "state",
        cooperative=True,
    )  # fmt: skip


def _search(b: ProgramBuilder, sites: Sites, device: Device) -> None:
    """The list of pairs where the old one is outdated; on the executor's request alone if the
    kernel of the pairs finds it as well."""
    phase = Phase.LIST if sites.searched else Phase.SEARCH
    blocks = min(-(-sites.clusters * 32 // LIST_THREADS), device.multiprocessors * SEARCH_BLOCKS)
    b.stage("search", "lennard_jones_list", phase, search_sites=0)
    b.launch(
        "search_sites", blocks, LIST_THREADS, np.int32(sites.capacity), "home", "position",
        "number", "row_start", "grid", "cell", "partners", "partner", "entry", "masked", "length",
        *_lengths(sites), "share", "state",
    )  # fmt: skip


def _lengths(sites: Sites) -> tuple[np.int32, np.int32]:
    return np.int32(sites.list_length), np.int32(sites.masked_length)


def _pairs(b: ProgramBuilder, sites: Sites, interface: Interface, wanted: str) -> None:
    """Forces, energy or both of the pairs."""
    kernel = f"lennard_jones_{wanted}"
    capacity, padded = np.int32(sites.capacity), np.int32(interface.padded)
    b.stage(wanted, "lennard_jones_pairs", wanted, **{kernel: 0})
    b.launch(
        kernel, -(-sites.clusters * sites.lanes // PAIR_THREADS), PAIR_THREADS, capacity,
        *_lengths(sites), "home", "position", "number", "row_start", "grid", "entry", "masked",
        "length", "pairs", "cell", "partners", "partner", "share", "state", "force_buffer", padded,
        "reaction", "energy_buffer", np.int32(sites.energies),
    )  # fmt: skip
    if sites.half(interface.precision) and wanted != Phase.ENERGY:
        b.stage(wanted, "lennard_jones_pairs", collect_reactions=0)
        b.launch(
            "collect_reactions", _site_blocks(sites), PAIR_THREADS, capacity, "home", "reaction",
            "force_buffer", padded,
        )  # fmt: skip


def _buffers(b: ProgramBuilder, sites: Sites, interface: Interface) -> None:
    capacity, clusters, listed = sites.capacity, sites.clusters, sites.cutoff is not None
    real = _real(interface)
    for name, shape, dtype in (
        ("slot", sites.number, np.int32),
        ("type", sites.number, np.int32),
        ("start", sites.number + 1, np.int32),
        ("partner", max(1, sites.partners), np.int32),
        ("partners", (sites.number, 4), np.int32),
        ("pairs", (sites.types, sites.types, 2), real),
        ("cell", sizeof(Cell) // 8, np.float64),
        ("state", sizeof(State) // 4, np.int32),
        ("home", (capacity, 4), np.int32),
        ("position", (capacity + 1, 4), real),
        ("number", capacity, np.int32),
        ("reference", (capacity, 4), real),
        ("count", sites.cells if listed else 1, np.int32),
        ("entry", (clusters, sites.list_length) if listed else 1, np.uint32),
        ("masked", (clusters, sites.masked_length, 2) if listed else 1, np.uint32),
        ("length", (clusters, 4) if listed else 1, np.int32),
        ("row_start", sites.rows + sites.cells if listed else 1, np.int32),
        ("grid", 8, np.float64),
        ("reaction", (capacity + 1, 4) if sites.half(interface.precision) else 1, np.float32),
    ):
        b.buffer(name, shape, dtype)
    b.table("share", [0, WHOLE], np.int32)
    if listed:
        for name, shape in (
            ("sorted", (capacity, 4)),
            ("number_before", capacity),
            ("place", (capacity, 2)),
            ("row_sites", sites.rows if sites.shared else 1),
        ):
            b.buffer(name, shape, np.int32)
    b.buffer("posq", (interface.padded, 4), real, external=True)
    b.buffer("force_buffer", (3, interface.padded), np.int64, external=True)
    energy = np.float32 if interface.precision == "single" else np.float64
    b.buffer("energy_buffer", sites.energies, energy, external=True)
