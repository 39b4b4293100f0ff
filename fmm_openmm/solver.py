"""``CoulombSolver``: Coulomb energies, forces, potentials and fields of point charges, periodic
or in empty space."""

import threading
from dataclasses import dataclass, replace

import numpy as np

from fmm_openmm.backends import BACKENDS, backend_class, choose_backend, fallback, open_sum
from fmm_openmm.box import check_box_vectors
from fmm_openmm.checks import (
    FARTHEST,
    check_charges,
    check_choice,
    check_exclusions,
    check_positions,
)
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.expansions.error import rounding_error
from fmm_openmm.implementations import M2L, METHODS
from fmm_openmm.planning.boxes import Filling, Region
from fmm_openmm.planning.cost import CPU_COST, CUDA_COST
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.planner import Placement
from fmm_openmm.planning.request import TOLERANCE, FMMParameters, Request
from fmm_openmm.stages import Stages
from fmm_openmm.sums import SumParameters, choose_sum
from fmm_openmm.units import COULOMB_CONSTANT

_evaluation = threading.Lock()
"""One evaluation at a time: each uses all cores, and not every threading layer of Numba may be
entered twice."""

EXAMINED = 64
"""Evaluations of positions on the device, with boxes that follow the particles, after which
these are compared with their extent again: particles that leave show at once, boxes that have
become too many do not."""

ENORMOUS = 2e8
"""Potential in units of the largest charge per box width that only particles at
the same place have."""


@dataclass(frozen=True, eq=False)
class CoulombResult:
    """Result of one evaluation, float64.

    Attributes:
        energy: kJ/mol.
        forces: shape (n, 3), kJ/mol/nm.
        potentials: at each particle, of all others and, with a periodic boundary, of every image
            and of the background; shape (n,), kJ/mol/e. The derivative of the energy with respect
            to the particle's charge.
        fields: shape (n, 3), kJ/mol/nm/e, with ``forces = charges * fields``.

    At an uncharged particle that lies on a charge from which it is not excluded, potential and
    field are NaN and the force is zero.
    """

    energy: float
    forces: np.ndarray
    potentials: np.ndarray
    fields: np.ndarray


class CoulombSolver:
    r"""Coulomb interaction of n point charges by the fast multipole method.

    .. math:: U = \frac{k_e}{2} \sum_{i,j} \sum_{n}{}' \frac{q_i q_j}{|x_i - x_j - n|}
                  - k_e \sum_{(i,j)\ excluded} \frac{q_i q_j}{|x_i - x_j|}

    over all periodic images n (the prime leaves out i = j at n = 0), with tin-foil boundary and,
    for a net charge, a uniform neutralising background: the conventions of OpenMM's PME. With
    ``boundary="open"`` the particles are in empty space: n = 0 alone, for any net charge, with
    potentials that vanish at infinity.

    Args:
        charges: shape (n,), e.
        box_vectors: rows a, b, c in OpenMM's reduced form, shape (3, 3), nm; None with an open
            boundary.
        exclusions: pairs whose interaction is left out, shape (m, 2).
        tolerance: relative RMS force error ``|F - F_exact| / |F_exact|`` to meet, 1e-10 to 0.1.
        boundary: "periodic" or "open".
        precision: "single", "double", or "auto": single for tolerances down to 5e-6 on a CPU and
            1e-5 on a GPU, among bare ions down to 1.2e-5 and 2.7e-5; and double from the first
            evaluation on in which charges are so close to each other that single precision would
            not do.
        backend: "cuda", "cpu", "reference" (readable and slow), or "auto": "cuda" where it is
            usable and its memory suffices, else "cpu". A warning says why; without an NVIDIA GPU it
            is a line of the log (``fmm_openmm``, level INFO).
        order, grid, near_radius, smoothing, levels, m2l: explicit parameters, see
            :class:`FMMParameters`. With an open boundary the grid follows the particles and cannot
            be given. The operators "p4_dynamic", "p4_symmetric" and "p4_parity" are on the GPU
            only, the latter two for rectangular boxes.
        exclusions_periodic: exclude the nearest image of a pair, instead of the image that the
            positions give. Without effect with an open boundary, where there is one image.
        positions: typical positions, shape (n, 3), nm. Used only to see how much of the cell is
            empty, which makes droplets, slabs and single molecules much faster; without them the
            cell is taken to be filled. Where it is nearly empty the boxes cover the particles only,
            and follow them as with an open boundary, as long as they stay together and neither
            ``grid`` nor ``levels`` are given. With an open boundary the parameters are chosen for
            them, else for those of the first evaluation.
        method: "fmm"; or with an open boundary "direct", every pair, or "treecode", an octree whose
            far cells act through their moments. ``order`` is that of the moments then; other
            explicit parameters belong to the FMM.

    Raises:
        ValueError, TypeError: bad input, naming the argument and the value.
        UnsupportedError: backend "cuda" without CuPy or a GPU, or a method or ``m2l`` that does not
            go with the rest.
    """

    def __init__(
        self,
        charges,
        box_vectors,
        exclusions=None,
        tolerance: float = TOLERANCE,
        boundary: str = "periodic",
        precision: str = "auto",
        backend: str = "auto",
        order: int | None = None,
        grid=None,
        near_radius: float | None = None,
        smoothing: float | None = None,
        levels: int | None = None,
        exclusions_periodic: bool = False,
        positions=None,
        m2l: str | None = None,
        method: str = "fmm",
    ):
        self._open = check_choice(boundary, ("periodic", "open"), "boundary") == "open"
        self._method = check_choice(method, METHODS, "method")
        check_choice(backend, BACKENDS, "backend")
        self._charges = check_charges(charges)
        if method != "fmm":
            _check_method(method, boundary, backend)
        if self._open:
            self._cell(box_vectors)
            _check_open(grid)
        elif box_vectors is None:
            raise ValueError(
                "`box_vectors` must be given with `boundary='periodic'`: "
                "ask for 'open' in empty space"
            )
        else:
            self._box_vectors = check_box_vectors(box_vectors)
        self._exclusions = check_exclusions(exclusions, len(self._charges))
        minimum_image = bool(exclusions_periodic) and not self._open
        request = Request(tolerance, precision, order, grid, near_radius, smoothing, levels, m2l)
        self._automatic = backend == "auto"
        backend = choose_backend(backend)
        backend_class(backend)  # refuses what this machine cannot do
        if m2l and backend not in M2L[m2l]:
            raise UnsupportedError(
                f"`m2l={m2l!r}` needs `backend='cuda'`, got {backend!r}: use 'p4' or 'rotation'"
            )
        if positions is not None:
            positions = check_positions(positions, len(self._charges))
        load, cell = Load.of(self._charges, self._exclusions), self._cell(None)
        self._placement = Placement(request, load, self._exclusions, minimum_image, cell)
        if cell is not None and positions is not None:
            self._placement = self._placement.seeing(positions, cell)
        # the two used last, the latest first, and their boxes
        self._kept: list[tuple[Stages, Region | Filling]] = []
        self._planned: Region | Filling | None = None  # chosen for the positions given here
        self._warned = False  # of single precision
        self._unexamined = 0  # evaluations since the extent of the particles was looked at
        self._parameters: FMMParameters | SumParameters | None = None
        self._use(backend)
        if method == "fmm" and self._placement.follows and positions is not None:
            boxes = self._chosen_boxes(positions, cell)
            self._parameters, self._planned = boxes.parameters, boxes

    @property
    def parameters(self) -> FMMParameters | SumParameters:
        """What is used for the box vectors given at creation, and the error it expects. Where
        the boxes follow the particles what was used last; a ``ValueError`` if there are no
        positions yet to choose it for."""
        if self._parameters is None:
            raise ValueError(
                "`parameters` are chosen for positions: give `positions`, or call `compute` first"
            )
        return self._parameters

    @property
    def backend(self) -> str:
        """The backend in use."""
        return self._backend

    @property
    def charges(self) -> np.ndarray:
        """The charges, shape (n,), e; a copy."""
        return self._charges.copy()

    def set_charges(self, charges) -> None:
        """Replace the charges, shape (n,), e. Exclusions stay, and so do the parameters unless
        far more of the charge is on bare ions now, far fewer particles carry it or, with an open
        boundary, the net charge is far larger."""
        charges = check_charges(charges)
        if charges.shape != self._charges.shape:
            raise ValueError(
                f"`charges` must have shape {self._charges.shape} as at creation, "
                f"got {charges.shape}"
            )
        with _evaluation:
            placement = self._placement.including(charges)
            if placement is not self._placement:
                self._plan(placement)
                self._kept, self._planned, self._sum = [], None, None
            self._charges = charges
            for each in (*self._stages, *filter(None, [self._sum])):
                each.set_charges(charges)

    def compute(self, positions, box_vectors=None) -> CoulombResult:
        """Energy, forces, potentials and fields.

        Args:
            positions: shape (n, 3), nm; wrapped into the box or not. With backend "cuda" they may
                lie on the device (any CuPy array): then so do the results, in the precision of the
                solver, the energy with shape (1,); nothing waits for the device, and instead of
                errors there are NaNs. With an open boundary, or in a nearly empty cell, the energy
                is read back, which tells whether the boxes cover the particles; bad positions are
                errors. Whether single precision does is not looked at.
            box_vectors: shape (3, 3), nm, if they differ from those given at creation. A uniform
                scaling costs nothing, another shape rebuilds the lattice operator, and one that is
                strained by more than two percent has grid and parameters chosen anew. With an open
                boundary None. Particles that leave the space that the boxes cover rebuild the
                operator.

        Raises:
            MemoryError: with backend "cuda", device memory does not suffice. Nothing is kept there;
                the solver stays usable.
            UnsupportedError: the order is too high for single precision; with backend "cuda", the
                kernels cannot be compiled here.
            ValueError: bad shapes, coordinates that are not finite or absurdly far, charged
                particles that coincide and are not excluded; with backend "cuda" also if one of the
                two has no charge.

        Warns: UserWarning: ``precision="single"`` misses the tolerance, since charges are close to
            each other; once.
        """
        cell = self._cell(box_vectors)
        if not hasattr(positions, "__cuda_array_interface__"):
            positions = check_positions(positions, len(self._charges))
        elif positions.shape != (len(self._charges), 3):
            raise ValueError(
                f"`positions` must have shape ({len(self._charges)}, 3), got {positions.shape}"
            )
        with _evaluation:
            while True:
                kept = bool(self._stages)
                try:
                    return self._evaluated(positions, cell)
                except (MemoryError, UnsupportedError) as error:
                    fault = error.with_traceback(None)  # which holds device memory
                self._kept, self._sum = [], None
                # what other shapes held may be enough
                if not (kept and isinstance(fault, MemoryError)):
                    self._fall_back(fault)

    def _evaluated(self, positions, cell: np.ndarray | None) -> CoulombResult:
        on_device = hasattr(positions, "__cuda_array_interface__")
        if on_device and self._backend != "cuda":
            positions, on_device = check_positions(_on_host(positions), len(self._charges)), False
        if self._method != "fmm":
            return self._summed(positions, on_device)
        self._unexamined += 1
        if on_device and self._placement.follows and self._kept and self._unexamined < EXAMINED:
            stages, kept = self._kept[0]
            boxes = kept.scaled(cell)
            result = boxes and self._computed_on_device(positions, stages, boxes)
            if result and np.isfinite(result.energy.get()).all():
                return result
        stages, boxes = self._stages_for(positions, cell)
        if on_device:
            return self._computed_on_device(positions, stages, boxes)
        x, enormous = positions, ENORMOUS
        if self._placement.follows:
            x = self._placement.gathered(positions, cell, boxes.centre) - boxes.origin
            enormous *= min(max(1.0, boxes.width), 2e3)  # boxes may be as wide as space is empty
        potentials, fields = stages.evaluate(x, boxes.width)
        placement = self._resolving(fields, boxes)
        if placement is not self._placement:
            return self._replanned(placement, positions, cell)
        return self._result(potentials, fields, boxes.width, enormous, positions, cell)

    def _resolving(self, fields: np.ndarray, boxes: Region | Filling) -> Placement:
        """The placement, or one of double precision if these fields, in box units,
        tell that it takes that."""
        if boxes.parameters.precision == "double" or self._warned:
            return self._placement
        per_box = len(self._charges) / (self._placement.load.filled * boxes.lattice.size)
        error = rounding_error(self._charges, fields, per_box)
        placement = self._placement.resolving(error)
        self._warned = (
            placement is self._placement and self._placement.request.tolerance < error < np.inf
        )
        return placement

    def _replanned(self, placement: Placement, positions, cell: np.ndarray | None) -> CoulombResult:
        """With another placement, from now on unless it fails."""
        before = self._placement, self._parameters, self._kept, self._planned
        self._plan(placement)
        self._kept, self._planned = [], None
        try:
            return self._evaluated(positions, cell)
        except BaseException:
            self._placement, self._parameters, self._kept, self._planned = before
            raise

    def _summed(self, positions, on_device: bool) -> CoulombResult:
        """By a method without boxes."""
        p = self._parameters
        if self._sum is None:
            dtype = np.dtype(p.precision).type
            self._sum = open_sum(self._backend, p.method)(
                self._charges, self._exclusions, dtype, *p.settings
            )
        potentials, fields = self._sum.evaluate(positions)
        if not on_device:
            return self._result(
                _on_host(potentials), _on_host(fields), 1.0, ENORMOUS, positions, None
            )
        potentials *= COULOMB_CONSTANT
        fields *= COULOMB_CONSTANT
        charges = self._sum.charges
        return CoulombResult(
            (0.5 * charges @ potentials).reshape(1), charges[:, None] * fields, potentials, fields
        )

    @staticmethod
    def _computed_on_device(positions, stages: Stages, boxes: Region | Filling) -> CoulombResult:
        """Not a number if a particle lies outside of boxes that cover the particles only."""
        return CoulombResult(
            *(array.copy() for array in stages.compute(positions, boxes.width, boxes.origin))
        )

    def _result(
        self, potentials, fields, width: float, enormous: float, positions, cell
    ) -> CoulombResult:
        """What the stages return, in kJ/mol and nm."""
        undefined = ~(
            (np.abs(potentials) <= enormous * np.abs(self._charges).max())
            & np.isfinite(fields).all(1)
        )
        bad = np.flatnonzero(undefined & (self._charges != 0.0))
        if len(bad):
            raise ValueError(self._coincidence(bad[0], positions, cell))
        potentials[undefined] = fields[undefined] = 0.0
        potentials *= COULOMB_CONSTANT / width
        fields *= COULOMB_CONSTANT / width**2
        energy, forces = 0.5 * float(self._charges @ potentials), self._charges[:, None] * fields
        potentials[undefined] = fields[undefined] = np.nan
        return CoulombResult(energy, forces, potentials, fields)

    def _fall_back(self, fault: Exception) -> None:
        """Go on with the CPU backend, if the choice of it was ours; else raise ``fault``."""
        m2l = self._placement.request.m2l
        if self._backend != "cuda" or not self._automatic or (m2l and "cpu" not in M2L[m2l]):
            raise fault
        warn(fallback(fault))
        self._use("cpu")

    def _use(self, backend: str) -> None:
        self._planned, self._sum = None, None
        self._backend, self._make_stages = backend, backend_class(backend)
        cost = CUDA_COST if backend == "cuda" else CPU_COST
        self._plan(replace(self._placement, cost=cost, device=self._make_stages.device()))

    def _plan(self, placement: Placement) -> None:
        """Go on with this placement, and its parameters as far as they do not
        depend on positions."""
        if self._method != "fmm":
            self._parameters = choose_sum(self._method, placement.request, placement.load)
        elif not placement.follows:
            self._parameters = placement.parameters
        self._placement = placement

    def parameters_for(self, box_vectors) -> FMMParameters:
        """What is used for the given box vectors: what is in use, or was chosen at creation,
        while the boxes keep their shape, or nearly."""
        cell = self._cell(box_vectors)
        return self.parameters if self._placement.follows else self._filling(cell).parameters

    @property
    def _stages(self) -> list[Stages]:
        return [stages for stages, _ in self._kept]

    def _stages_for(self, positions, cell: np.ndarray | None) -> tuple[Stages, Region | Filling]:
        """Stages and their boxes, which serve; the two used last are kept, so that a rejected
        box change costs nothing."""
        self._unexamined = 0
        if (
            self._placement.follows
            and (cell is not None or not self._kept)
            and hasattr(positions, "get")
        ):
            positions = check_positions(_on_host(positions), len(self._charges))
        for stages, kept in self._kept:
            boxes = self._fitted(kept, positions, cell)
            if boxes:
                self._kept.remove((stages, kept))
                break
        else:
            boxes = self._chosen_boxes(positions, cell)
            stages = self._made(boxes)
        self._kept = [(stages, boxes), *self._kept[:1]]
        if self._placement.follows:
            self._parameters = boxes.parameters
        return stages, boxes

    def _fitted(
        self, boxes: Region | Filling | None, positions, cell: np.ndarray | None
    ) -> Region | Filling | None:
        """The boxes as they serve the cell and cover the positions; None if they cannot."""
        boxes = boxes and boxes.scaled(cell)
        if not (boxes and self._placement.follows):
            return boxes
        x = self._placement.gathered(positions, cell, boxes.centre)
        low, high = (_on_host(bound).astype(np.float64) for bound in (x.min(0), x.max(0)))
        if not max(np.abs(low).max(), np.abs(high).max()) <= FARTHEST:  # they lie on the device
            check_positions(_on_host(x), len(self._charges))
        return boxes.around(low, high)

    def _chosen_boxes(self, positions, cell: np.ndarray | None) -> Region | Filling:
        """Boxes other than those kept; over the whole of a periodic cell from
        when these are cheaper."""
        if self._placement.follows:
            kept = self._kept[0][1] if self._kept else None
            region = self._fitted(self._planned, positions, cell) or self._placement.region(
                _on_host(positions), cell, kept
            )
            if region:
                return region
            self._kept = []
            self._plan(self._placement.over_cell(positions, cell))
        return self._filling(cell)

    def _filling(self, cell: np.ndarray) -> Filling:
        """Boxes over the whole of a cell: those used last while they serve it."""
        return self._placement.filling(cell, self._kept[0][1] if self._kept else None)

    def _made(self, boxes: Region | Filling) -> Stages:
        """Stages for the boxes: the older of those kept, if they can adopt them, else new ones."""
        p, lattice = boxes.parameters, boxes.lattice
        dtype = np.dtype(p.precision).type
        if len(self._kept) == 2 and self._stages[1].adopt(lattice, p.order, p.smoothing, dtype):
            return self._stages[1]
        arguments = (
            lattice,
            p.order,
            p.smoothing,
            self._charges,
            self._exclusions,
            self._placement.minimum_image,
            dtype,
        )
        if p.levels:
            return self._make_stages(*arguments, p.levels, p.m2l)
        return self._make_stages(*arguments)

    def _cell(self, box_vectors) -> np.ndarray | None:
        """The box vectors in use; None with an open boundary."""
        if self._open:
            if box_vectors is not None:
                raise ValueError("`box_vectors` must be None with `boundary='open'`")
            return None
        return self._box_vectors if box_vectors is None else check_box_vectors(box_vectors)

    def _coincidence(self, particle: int, positions: np.ndarray, cell: np.ndarray | None) -> str:
        delta = positions - positions[particle]
        images = np.zeros_like(delta) if cell is None else np.rint(delta @ np.linalg.inv(cell))
        if cell is not None:
            delta -= images @ cell
        # among equals, charged ones first
        distance = np.linalg.norm(delta, axis=1) + 1e-6 * (self._charges == 0.0)
        partners = self._exclusions[(self._exclusions == particle).any(1)]
        if not self._placement.minimum_image:
            # of others another image is excluded
            partners = partners[~images[partners].any((1, 2))]
        distance[partners] = distance[particle] = np.inf
        return (
            f"`positions`: particles {particle} and {int(distance.argmin())} "
            "coincide and are not excluded"
        )


def _on_host(array) -> np.ndarray:
    """A NumPy or CuPy array as a NumPy array."""
    return array.get() if hasattr(array, "get") else array


def _check_method(method: str, boundary: str, backend: str) -> None:
    """Refuse what does not go with a method without boxes."""
    if boundary != "open":
        raise UnsupportedError(f"`method={method!r}` needs `boundary='open'`, got {boundary!r}")
    if backend == "reference":
        raise UnsupportedError(
            f"`method={method!r}` is not available with `backend='reference'`: use 'cpu' or 'cuda'"
        )


def _check_open(grid) -> None:
    """Refuse what does not go with an open boundary."""
    if grid is not None:
        raise ValueError(
            "`grid` must be None with `boundary='open'`, where the boxes follow the particles, "
            f"got {grid!r}"
        )
