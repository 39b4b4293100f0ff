"""The programs that the plugin runs inside OpenMM's CUDA platform.

A :class:`Session` represents one force in one Context. The plugin requests a program when the
Context is created, when its cell is strained by more than :data:`fmm_openmm.box.MAX_STRAIN`, and
when particles have left the boxes of a region. It requests charges when a global parameter or the
definition of the force has changed, and other parameters when the first evaluation, or a later one
with energy, finds forces that do not suit the present ones: of charges that are too close to each
other for single precision, or far smaller than in a liquid. It requests nothing in ordinary steps
and trial moves of a barostat.
"""

from ctypes import sizeof
from dataclasses import astuple, replace

import numpy as np

from fmm_openmm.backends.cuda import abi
from fmm_openmm.backends.cuda.abi import Delivery, ForceLimits, Place, Sums
from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.pipeline.setup_tables import serves
from fmm_openmm.backends.cuda.program import Program, Share
from fmm_openmm.backends.cuda.serial import serialise
from fmm_openmm.backends.cuda.shares import build as build_collector
from fmm_openmm.boundary import check_neutral
from fmm_openmm.box import MAX_STRAIN, SAME_SHAPE, BoxLattice, Frame, check_box_vectors
from fmm_openmm.checks import check_charges, check_positions
from fmm_openmm.dipole_term import DipoleTerm
from fmm_openmm.errors import openmm_callback
from fmm_openmm.integration.definition import Structure, pair_set
from fmm_openmm.integration.identity import Bridge
from fmm_openmm.integration.native import plugin
from fmm_openmm.integration.native.placement import Placement
from fmm_openmm.neutralization import Cylinders
from fmm_openmm.planning.boxes import Boxes
from fmm_openmm.planning.cost import CUDA_COST
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.planner import MAX_MOVES, RECHECK_INTERVAL_IN_OPENMM, Planner
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import FMMParameters
from fmm_openmm.specification import Specification

COINCIDENT = 1e-7
"""Distance, relative to the box or the extent of the particles, below which float32 does not
separate two particles."""

WORTH_TWO_DEVICES = 250_000
"""Number of particles from which ``devices="auto"`` uses a second device. With NVLink a step on two
H200 takes 1.19 times one on one H200 at 70,752 atoms of water, and 0.89 at 252,360."""


class Session:
    """One force in one Context of the CUDA platform.

    Args:
        bridge: bridge of the force.
        kernel, context: addresses of the plugin's kernel and of the Context.
        place: description of the Context.

    Attributes:
        particles: number of particles of the System.
        reason: reason why the host bridge computes the force after all; None if it does not.
        knows_images: whether the Context has been checked to know how often particles have crossed
            the box, without which a dipole term is not computed.
    """

    def __init__(self, bridge: Bridge, kernel: int, context: int, place: Place):
        self.bridge, self.context = bridge, context
        self.kernel, self._group, self._model = kernel, place.group, place.model.decode()
        self.particles = place.particles
        self._interface, self._device = place.interface, place.device
        self._energies = place.energies
        options = bridge.definition.options
        double = options.precision == "auto" and self._interface.precision == "double"
        self._request = options.request("double" if double else None)
        self._devices = options.devices_for(place.particles >= WORTH_TWO_DEVICES and place.peers)
        self.reason: str | None = None
        self._boundary = bridge.fix_structure().boundary
        self._term = options.term(self._boundary)
        self._neutralizer = options.neutralizer(self._boundary)
        self.knows_images = False
        self._planner: Planner | None = None
        self._seen = False  # whether the filled fraction is known
        self._made: Specification | None = None  # of the last program, and its axes
        self._axes = np.eye(3)
        self._placement: Placement | None = None  # that was last delivered

    @property
    def native_only(self) -> str | None:
        """The option that no other bridge serves in the Context, as it is written; None if there is
        none. The host bridge would get wrapped positions."""
        options = self.bridge.definition.options
        if options.bridge == "native" or options.named_devices:
            return options.native_only
        return str(self._term) if isinstance(self._term, DipoleTerm) else None

    def further_devices(self) -> dict[int, bytes]:
        """Deliveries that name several devices, and the program that adds up their results; none
        if one device computes."""
        if not self._devices:
            return {}
        return {
            Delivery.DEVICES: "\0".join(self._devices).encode(),
            Delivery.COLLECTOR: serialise(build_collector(self._interface, self._energies)),
        }

    def program(
        self, cell: np.ndarray, values: dict, positions: np.ndarray | None = None
    ) -> dict[int, bytes]:
        """Deliveries for a cell: the boxes (:func:`describe`), limits of forces, and a program
        unless the last one is suitable. Empty if a region is needed and there are no positions yet.

        Args:
            cell: box vectors, shape (3, 3), nm.
            values: values of the global parameters.
            positions: shape (n, 3), nm; needed for a region.
        """
        frame = self._frame(cell)
        charges, structure = self._inputs(values)
        if self._planner is None:
            load = Load.from_charges(charges, structure.exclusions)
            minimum_image = structure.periodic and not self._boundary.is_open
            self._planner = Planner(
                Problem(
                    self._request,
                    load,
                    structure.exclusions,
                    minimum_image,
                    frame.cell,
                    CUDA_COST,
                    self._model,
                )
            )
        placement = None
        if self.planner.problem.uses_region:
            if positions is None:
                return {}
            positions = self._placed(positions, cell)
            if self._boundary.is_partial:
                placement = Placement(self._boundary, cell, positions)
            positions = positions @ frame.axes
        plan = self.planner.plan(positions, frame.cell, left=True)
        wanted, found = plan.specification(charges), {}
        if self._made is None or not serves(self._made, wanted) or self._turns_cylinders(frame):
            self.forget()  # in case of an error
            self._dtype, self._axes = wanted.dtype, frame.axes
            found[Delivery.PROGRAM] = serialise(self._build(wanted, frame))
            self._made = wanted
        self._placement = placement
        packed = None if placement is None else placement.packed(frame.axes)
        found[Delivery.PARAMETERS] = describe(
            self._made.lattice, plan.boxes, cell, packed
        ).tobytes()
        return found | self._limits(charges)

    def _build(self, wanted: Specification, frame: Frame) -> Program:
        interface = replace(self._interface, turned=not frame.is_users)
        term = self._term
        if isinstance(term, Cylinders):
            term = term.turned(frame.axes)
        boxes = int(wanted.lattice.span.prod())
        share = Share(0, boxes, boxes) if self._devices else None
        return build(wanted, self._device, interface, share=share, term=term)

    def _turns_cylinders(self, frame: Frame) -> bool:
        """Whether cylinders that are part of the last program lie along other axes."""
        return isinstance(self._term, Cylinders) and not np.array_equal(self._axes, frame.axes)

    def charges(
        self, cell: np.ndarray, values: dict, positions: np.ndarray | None
    ) -> dict[int, bytes]:
        """Deliveries for new charges: the charges and limits of forces, or a program with other
        parameters if the tolerance requires them or a region has become far too large.

        Args:
            cell: box vectors, shape (3, 3), nm.
            values: values of the global parameters.
            positions: shape (n, 3), nm: at the first evaluation, to find the filled fraction of the
                cell, and always for a region.
        """
        charges, _ = self._inputs(values)
        if isinstance(self._term, DipoleTerm) and not self.knows_images:
            raise ValueError(self._term.unknown_images)
        frame, places, together = self._frame(cell), None, True
        if positions is not None:
            places = self._placed(positions, cell)
            if self._term is not None:
                self._term.check_span(places, charges, frame.given)
            together = self._placement is None or self._placement.holds(places)
            places = places @ frame.axes
            self._seen = True
        with openmm_callback():
            fits = self.planner.accepts(charges, places, frame.cell)
        if fits and self._made and together:
            found = {Delivery.CHARGES: charges.astype(self._dtype).tobytes()}
            return found | self._limits(charges)
        self.forget()
        return self.program(cell, values, positions)

    def refine(
        self, cell: np.ndarray, values: dict, positions: np.ndarray | None, sums: Sums
    ) -> dict[int, bytes]:
        """Deliveries after an evaluation beyond the limits of forces: those of :meth:`program`,
        with a program that suits the forces, unless the options fix what does not; a warning then
        says what it costs.

        Args:
            cell: box vectors, shape (3, 3), nm.
            values: values of the global parameters.
            positions: shape (n, 3), nm; needed for a region.
            sums: sums of the evaluation.
        """
        charges, _ = self._inputs(values)
        found = sums.squares, sums.cubes, sums.potentials
        with openmm_callback():
            self.planner.accepts_forces(charges, *found, self._frame(cell).cell)
        return self.program(cell, values, positions)

    @property
    def planner(self) -> Planner:
        """Planner of the boxes.

        Raises:
            RuntimeError: before the first program, which it is made for.
        """
        if self._planner is None:
            raise RuntimeError("there is no program yet")
        return self._planner

    def _limits(self, charges: np.ndarray) -> dict[int, bytes]:
        """The delivery of the limits of forces for charges, shape (n,), e."""
        limits = self.planner.force_limits(charges)
        return {Delivery.FORCES: bytes(ForceLimits(*astuple(limits)))}

    def potentials(self, context) -> np.ndarray | None:
        """Potentials at all particles, shape (n,), kJ/mol/e, float64, after a new evaluation; None
        if the host bridge has made it.

        Args:
            context: the Context of the session.
        """
        context.getState(energy=True, groups={self._group})
        if self.reason:
            return None
        found = np.empty(self.particles, self._dtype)
        if not plugin.load().fmm_potentials(self.kernel, found.ctypes.data, found.nbytes):
            raise RuntimeError("the potentials cannot be copied from the device")
        return found.astype(np.float64)

    def forget(self) -> None:
        """Discard the last program."""
        self._made = None

    def explain(self, cell: np.ndarray, positions: np.ndarray) -> str:
        """Reason why an energy is not finite.

        Raises:
            ValueError: a coordinate is not finite or far out of range; the message names the
                particle.
        """
        boundary, positions = self._boundary, self._placed(positions, cell)
        if self._neutralizer is not None:
            self._neutralizer.check_span(positions, np.zeros(self.particles), cell)
        if boundary.is_open:
            points = positions / max(np.ptp(positions, axis=0).max(), 1e-300)
        else:
            points = boundary.wrap(positions, cell)
        tree = boundary.tree(points)
        excluded = pair_set(self.bridge.fix_structure().exclusions)
        for first, point in enumerate(points):  # one by one, as up to n^2 pairs may coincide
            for second in sorted(tree.query_ball_point(point, COINCIDENT)):
                if second > first and (first, second) not in excluded:
                    return (
                        f"`positions`: particles {first} and {second} coincide and are not excluded"
                    )
        return "the energy is not a number"

    def parameters_for(
        self, cell: np.ndarray, positions: np.ndarray | None = None
    ) -> FMMParameters:
        """Parameters for box vectors, shape (3, 3), nm; before the first evaluation those for
        positions, shape (n, 3), nm."""
        frame = self._frame(cell)
        if positions is not None:
            positions = self._together(positions, cell) @ frame.axes
        planner, cell = self.planner, frame.cell
        if positions is not None and not self._seen:
            expected = planner.problem.with_positions(positions, cell)
            if expected is not planner.problem:
                planner = Planner(replace(expected, cell=cell))
        return planner.preview(positions, cell).parameters

    def _placed(self, positions: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Checked positions, shape (n, 3), nm; those of a slab or wire in the images that lie
        together, as near as possible to the place that was last delivered, or to what neutralises
        it.

        Args:
            cell: box vectors, shape (3, 3), nm.
        """
        positions = check_positions(positions, self.particles)
        if not self._boundary.is_partial:
            return positions
        positions = self._together(positions, cell)
        if self._neutralizer is not None:
            return positions
        here = Placement(self._boundary, cell)
        return here.next_to(self._placement or here, positions)

    def _together(self, positions: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Positions, shape (n, 3), nm; those of a slab or wire in the images that lie together,
        next to what neutralises it."""
        return self.bridge.fix_structure().unwrapped(positions, cell, self._neutralizer)

    def _frame(self, cell: np.ndarray) -> Frame:
        """The cell of box vectors, shape (3, 3), nm, in the coordinates of the boxes."""
        return Frame.from_cell(
            self._boundary.cell(None if self._boundary.is_open else check_box_vectors(cell))
        )

    def _inputs(self, values: dict) -> tuple[np.ndarray, Structure]:
        charges, structure = self.bridge.inputs(values)
        if len(charges) != self.particles:
            raise ValueError(
                f"the FMMForce has {len(charges)} particles, but the System has {self.particles}"
            )
        charges = check_charges(charges)
        check_neutral(charges, self._boundary, self._term)
        return charges, structure


def describe(
    made_for: BoxLattice, boxes: Boxes, cell: np.ndarray, placement: np.ndarray | None = None
) -> np.ndarray:
    """Data by which the plugin adjusts the boxes of a program to the cell: ``BoxesData`` of
    :mod:`fmm_openmm.backends.cuda.abi`, shape (87,).

    Args:
        made_for: lattice that the program was built for.
        boxes: boxes in use.
        cell: box vectors, shape (3, 3), nm.
        placement: of a slab or wire, packed; None for others.
    """
    lattice, region = made_for.unstrained, (RECHECK_INTERVAL_IN_OPENMM, MAX_MOVES)
    if lattice.is_padded:  # a region, which serves this shape of the cell
        limits = SAME_SHAPE, SAME_SHAPE
        place = parameter_block(boxes.lattice, boxes.width, boxes.origin)
    else:
        limits = MAX_STRAIN, SAME_SHAPE if made_for.are_cuboids else MAX_STRAIN
        cell, place = lattice.cell, parameter_block(lattice, 1.0)  # at a width of 1 nm
    if placement is None:
        placement = np.zeros(sizeof(abi.Placement) // 8)
    return np.concatenate([limits, region, cell.ravel(), placement, place])
