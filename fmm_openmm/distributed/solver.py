"""``DistributedSolver``: the Coulomb interaction of charges that many ranks share."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.arrays import bounds, is_on_device, namespace, to_host
from fmm_openmm.backends import backend_class, turn
from fmm_openmm.boundary import Boundary, check_neutral
from fmm_openmm.box import Frame, check_cell_vectors
from fmm_openmm.checks import (
    check_charges,
    check_extent,
    check_flag,
    check_integer_pairs,
    check_numbers,
    check_positions,
    check_unmasked,
)
from fmm_openmm.dipole_term import TIN_FOIL, DipoleTerm
from fmm_openmm.distributed.communication import agree, decide, on_first, shared_fate, summed
from fmm_openmm.distributed.homes import Homes, Route
from fmm_openmm.distributed.stages import DistributedStages, Links
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.evaluation import volume
from fmm_openmm.neutralization import Neutralization
from fmm_openmm.options import suggests_keywords
from fmm_openmm.placed_term import PlacedTerm
from fmm_openmm.planning.boxes import Boxes, Region
from fmm_openmm.planning.cost import CPU_COST, CUDA_COST
from fmm_openmm.planning.forces import ForceLimits
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.planner import Plan, Planner
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import TOLERANCE, FMMParameters, Request, RequestKeywords
from fmm_openmm.results import (
    MAX_POTENTIAL,
    CoulombResult,
    largest_potential,
    like,
)
from fmm_openmm.specification import Specification
from fmm_openmm.units import COULOMB_CONSTANT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

_SAME = {
    name: f"`{name}` of rank {{rank}} must be the same as those of rank 0"
    for name in ("options", "box_vectors", "positions", "virial")
}
"""Messages that refuse what ranks do not have in common."""

_ALL_IDS = "`ids` must be given by all ranks or by none"


class DistributedSolver:
    """:class:`fmm_openmm.CoulombSolver` for particles that the ranks of MPI share, on their CPUs or
    on their GPUs, one each.

    Each rank gives the particles that it has, wherever they are, and gets their results. The ranks
    share the boxes, whatever particles they have given. All methods are collective: every rank
    calls them, a rank without particles too. The results are those of ``CoulombSolver`` up to
    rounding, within the same tolerance.

    Arguments that a rank refuses are refused on all of them, with the number of that rank in the
    message. Any other failure of a rank within a call ends all of them.

    Args:
        comm: communicator of mpi4py; only collective operations are called on it.
        charges: of the particles of this rank, shape (n,), e; n may be 0.
        box_vectors, tolerance, boundary, precision, exclusions_periodic, slab_correction,
            surface_dielectric, neutralization: as for ``CoulombSolver``, the same on every rank.
        exclusions: excluded pairs, shape (m, 2), of numbers in ``ids``, of particles on any ranks.
            Each pair is given by one rank or several.
        ids: numbers that identify the particles of this rank among all, shape (n,), integer; by
            default they are numbered from 0 through all ranks.
        backend: "cpu", or "cuda" for CuPy's current device of each rank, the same on every rank.
            The GPUs exchange their data by NCCL.
        options: explicit parameters, see :class:`FMMParameters`, without ``levels``.

    Raises:
        ValueError, TypeError, UnsupportedError: see ``CoulombSolver``.

    At creation rank 0 holds the charges, ids and exclusions of all particles. With a boundary that
    is not periodic along all three directions it holds their positions, too, whenever boxes are
    chosen for them.
    """

    @suggests_keywords(like=Request)
    def __init__(
        self,
        comm,
        charges: "ArrayLike",
        box_vectors: "ArrayLike | None",
        exclusions: "ArrayLike | None" = None,
        tolerance: float = TOLERANCE,
        boundary: str = "periodic",
        precision: str = "auto",
        *,
        exclusions_periodic: bool = False,
        ids: "ArrayLike | None" = None,
        backend: str = "cpu",
        slab_correction: bool = False,
        surface_dielectric: float = TIN_FOIL,
        neutralization: "ArrayLike | None" = None,
        **options: "Unpack[RequestKeywords]",
    ):
        with shared_fate(comm):
            self._comm, dipole_options = comm, (slab_correction, surface_dielectric)

            def check():
                if backend not in ("cpu", "cuda"):
                    raise ValueError(f"`backend` must be 'cpu' or 'cuda', got {backend!r}")
                backend_class(backend)  # refuses what this machine cannot do
                self._boundary = Boundary.from_name(boundary)
                self._vectors = check_cell_vectors(box_vectors, self._boundary)
                self._own_frame = self._frame(self._vectors)
                neutralizer = Neutralization.from_option(neutralization, self._boundary)
                dipole_term = DipoleTerm.from_options(*dipole_options, self._boundary)
                self._term: Any = neutralizer or dipole_term
                if neutralizer:
                    neutralizer.at(np.zeros((1, 3)), self._own_frame.given)  # refuses what crosses
                request = Request(tolerance, precision=precision, **options)
                if request.levels:
                    raise ValueError(
                        "`levels` must be None or 0 with ranks that share one level of boxes, got "
                        f"{request.levels!r}"
                    )
                request.check_boundary(self._boundary)
                check_flag(exclusions_periodic, "exclusions_periodic")
                own, pairs = _charges(charges), check_integer_pairs(exclusions, "exclusions")
                return request, own, _ids(ids, len(own)), pairs

            def common(given) -> dict:
                terms = *dipole_options, str(self._term)
                options = repr((given[0], boundary, exclusions_periodic, backend, *terms))
                return {_SAME["options"]: options, _SAME["box_vectors"]: _bytes(self._vectors)}

            request, self._charges, self._ids, pairs = agree(comm, check, common)
            self._periodic = bool(exclusions_periodic) and not self._boundary.is_open
            self._gpu: Any = None if backend == "cpu" else connected_gpu(comm)
            own = np.empty(0, np.int64) if self._ids is None else self._ids
            arrays = [on_first(comm, each) for each in (self._charges, own, pairs.reshape(-1))]
            has_ids = comm.gather(self._ids is not None)
            self._planner: Any = None
            links = agree(comm, lambda: self._arrange(request, has_ids, *arrays) if has_ids else [])
            self._links = Links.from_first(comm, links)
            self._largest = self._highest(np.abs(self._charges).max(initial=0.0))
            self._choice = -1
            self._boxes: Boxes | None = None
            self._cell = np.zeros((3, 3))
            self._limits: ForceLimits | None = None
            self._stages: Any = None
            self._parameters: FMMParameters | None = None
            self._homes: Homes | None = None

    def _arrange(
        self,
        request: Request,
        has_ids: list[bool],
        charges: list[np.ndarray],
        numbers: list[np.ndarray],
        pairs: list[np.ndarray],
    ) -> list[Links]:
        """On rank 0: make the planner, and return the links of each rank.

        Args:
            has_ids, charges, numbers, pairs: of each rank whether it has ids, and its charges, ids
                and pairs, one-dimensional.
        """
        offsets = np.cumsum([0, *map(len, charges)])
        merged = check_charges(np.concatenate(charges))
        check_neutral(merged, self._boundary, self._term)
        given = {has for has, mine in zip(has_ids, charges, strict=True) if len(mine)}
        if len(given) > 1:
            raise ValueError("`ids` must be given by all ranks with particles or by none")
        ids = np.concatenate(numbers) if True in given else None
        excluded = _numbered(np.concatenate(pairs).reshape(-1, 2), ids, len(merged))
        load = Load.from_charges(merged, excluded)
        cell = self._own_frame.cell
        cost, device = (CUDA_COST, self._gpu.name) if self._gpu else (CPU_COST, None)
        problem = Problem(request, load, excluded, self._periodic, cell, cost, device)
        self._all_charges = merged
        self._planner = Planner(problem, memory=2, fixed_cell=True)
        return Links.by_rank(excluded, offsets)

    @property
    def parameters(self) -> FMMParameters | None:
        """The parameters of the last evaluation; None before the first. The expected errors are
        relative to the forces of the evaluation after which they were last compared with these: the
        first one with the charges and boxes, or a later one whose forces are far smaller."""
        return self._parameters

    def set_charges(self, charges: "ArrayLike", *, ids: "ArrayLike | None" = None) -> None:
        """Replace the charges of the particles of this rank, shape (n,), e.

        Exclusions are kept. Parameters are kept, too, unless bare ions replace neutral molecules,
        far fewer particles carry the charge or, with an open boundary, the net charge becomes far
        larger.

        Args:
            charges: in the order of those at creation, or of ``ids``.
            ids: as of :meth:`compute`.

        Raises:
            ValueError, TypeError: wrong shapes or values; nothing changes after this and all other
                errors.
            UnsupportedError: a net charge that the boundary does not allow.
        """
        comm = self._comm
        with shared_fate(comm):

            def check():
                number = len(self._charges) if ids is None else np.size(ids)
                own = _charges(charges)
                if len(own) != number:
                    raise ValueError(f"`charges` must have shape {(number,)}, got {own.shape}")
                return own, _ids(ids, number)

            replaced, numbers = agree(comm, check, lambda _: {_ALL_IDS: ids is not None})
            route = self._route(numbers)
            if route:
                replaced = route.to_homes(replaced[:, None])[:, 0].copy()
            everyones = on_first(comm, replaced)

            def adopt() -> bool:
                merged = np.concatenate(everyones)
                check_neutral(merged, self._boundary, self._term)
                accepted = self._planner.accepts(merged)
                self._all_charges = merged
                return accepted

            if not decide(comm, adopt):
                self._boxes = None
            self._limits = None
            self._charges = replaced
            self._largest = self._highest(np.abs(replaced).max(initial=0.0))
            if self._stages is not None:
                self._stages.given_charges = replaced

    def compute(
        self,
        positions: "ArrayLike",
        box_vectors: "ArrayLike | None" = None,
        *,
        ids: "ArrayLike | None" = None,
        virial: bool = False,
    ) -> CoulombResult:
        """Energy of all particles, and forces, potentials and fields of those of this rank.

        Args:
            positions: of the particles of this rank, in the order of their charges, shape (n, 3),
                nm, on the host or a GPU, on every rank alike; the results are where the positions
                are. With ``backend="cuda"`` they stay on the GPU unless ``ids`` are given.
            box_vectors: shape (3, 3), nm, the same on every rank, if they differ from those given
                at creation.
            ids: numbers of the particles whose positions this rank gives, shape (n,), if particles
                have changed their ranks since creation. Each particle is on one rank. The results
                are those of these particles. Every rank then holds a table of all particles.
            virial: whether to compute the virial of all particles, the same on every rank. This
                takes the operators of ten strained cells, once for every shape of the cell.

        Raises:
            ValueError: wrong shapes, coordinates that are not finite or far out of range, or
                coincident charged particles that are not excluded.
        """
        comm, charges, given = self._comm, self._charges, positions
        with shared_fate(comm):
            stays = is_on_device(positions) and self._gpu is not None and ids is None

            def check():
                vectors, frame = self._vectors, self._own_frame
                if box_vectors is not None:
                    vectors = check_cell_vectors(box_vectors, self._boundary)
                    frame = self._frame(vectors)
                number = len(charges) if ids is None else np.size(ids)
                if not number and not np.size(positions):
                    none = (self._gpu.arrays if stays else np).empty((0, 3))
                    return none, vectors, frame, _ids(ids, 0)
                if stays:
                    return self._checked_on_device(positions), vectors, frame, None
                x = check_positions(to_host(positions), number)
                if isinstance(self._term, Neutralization):
                    self._term.check_span(x, charges, frame.given)
                return x, vectors, frame, _ids(ids, number)

            def common(checked) -> dict:
                return {
                    _SAME["positions"]: stays,
                    _SAME["box_vectors"]: _bytes(checked[1]),
                    _SAME["virial"]: bool(virial),
                    _ALL_IDS: ids is not None,
                }

            def begin(checked) -> None:
                if self._stages is not None:
                    x, _, frame, _ = checked  # positions in another frame are turned first
                    boxes = self._kept_boxes(frame.cell) if stays and frame.is_users else None
                    self._stages.begin(x, boxes.width if boxes else None)

            x, _, frame, numbers = agree(comm, check, common, begin if self._gpu else None)
            route = self._route(numbers)
            if route:
                x = route.to_homes(x)
            axes, cell = frame.axes, frame.cell
            term = self._placed_term(x, frame.given, stays) if self._term else None
            if not frame.is_users:
                x = turn(x, axes)
            if not stays:
                x = np.ascontiguousarray(x)
            while True:
                boxes = self._planned(x, cell)
                limit, relative, width = MAX_POTENTIAL, x, boxes.width
                if isinstance(boxes, Region):
                    limit, relative = largest_potential(width), _moved(x, -boxes.origin)
                found = self._stages.compute(relative, width, limit * self._largest, virial)
                *sums, faults, undefined, twice_energy = found.sums
                if undefined and stays:
                    agree(comm, lambda: self._check_extent(x))
                if self._suffices(boxes.parameters, sums):
                    break
            potentials, fields, forces = found.potentials, found.fields, found.forces
            if faults:
                agree(comm, lambda: self._refuse_coincidence(potentials, route))
            work = found.work
            if not frame.is_users:
                fields, forces = turn(fields, axes.T), turn(forces, axes.T)
            if work is not None:
                work = work * (COULOMB_CONSTANT / width) + np.eye(3) * (twice_energy / 6)
                work = axes @ work @ axes.T
            result = CoulombResult(found.energy, forces, potentials, fields, work, volume(cell))
            if term:
                result = term.add(result, charges)
            if route:
                result = _sent_back(result, route)
            return like(result, given)

    def _placed_term(self, x: Any, cell: np.ndarray, stays: bool) -> PlacedTerm:
        """The dipole term or what neutralises the charges, at the positions of this rank."""
        comm, term = self._comm, self._term
        if isinstance(term, DipoleTerm) and not stays:
            ends = np.concatenate(comm.allgather(_ends(x[self._charges != 0.0])))
            if comm.rank == 0:
                term.check_span(ends, np.isfinite(ends[:, 0]), cell)
        return term.at(x, cell).shared(lambda sums: namespace(sums).asarray(summed(comm, sums)))

    def _kept_boxes(self, cell: np.ndarray) -> Boxes | None:
        """The boxes of the last evaluation, if they suit all positions in a cell."""
        same = cell is self._cell or np.array_equal(cell, self._cell)
        return self._boxes if same and self._boundary.fills_space else None

    def _planned(self, x: np.ndarray, cell: np.ndarray) -> Boxes:
        """The boxes, with the stages made for them."""
        comm, planner, fills = self._comm, self._planner, self._boundary.fills_space
        if boxes := self._kept_boxes(cell):
            return boxes
        bounds = None
        if not fills:  # else the boxes cover the cell
            ends = comm.gather(_ends(x))
            chooses = False
            if planner:
                lows, highs = zip(*ends, strict=True)
                bounds = np.array([np.min(lows, 0), np.max(highs, 0)])
                chooses = planner.problem.uses_region and not planner.fits(bounds, cell)
            if comm.bcast(chooses):
                everywhere = comm.gather(to_host(x))
                bounds = everywhere and np.concatenate(everywhere)

        def plan() -> tuple[int, Boxes]:
            found: Plan = planner.plan(bounds, cell)
            return found.choice, found.boxes

        choice, boxes = decide(comm, plan)
        if choice != self._choice:
            p, none = boxes.parameters, np.empty((0, 2), np.int64)
            specification = Specification(
                boxes.lattice,
                p.order,
                p.smoothing,
                np.empty(0),
                none,
                self._periodic,
                np.dtype(p.precision),
            )
            self._stages = None  # whose memory the new ones may need
            self._stages = self._made(specification)
            self._choice, self._limits = choice, None
        self._boxes, self._cell = boxes, cell
        return boxes

    def _made(self, specification: Specification) -> Any:
        """The stages on the CPUs or on the GPUs."""
        comm, charges, links, gpu = self._comm, self._charges, self._links, self._gpu
        if gpu is None:
            return DistributedStages(comm, specification, charges, links)
        from fmm_openmm.distributed.gpu_stages import GpuStages

        return agree(comm, lambda: GpuStages(comm, specification, charges, links, gpu))

    def _suffices(self, parameters: FMMParameters, sums: list[float]) -> bool:
        """Whether the parameters suit the fields and potentials, given the sums of
        :func:`fmm_openmm.expansions.error.force_sums`; if not, the next plan has other boxes."""
        if self._limits and self._limits.hold(*sums):
            return True

        def examine() -> tuple[ForceLimits | None, FMMParameters]:
            planner, charges = self._planner, self._all_charges
            suits = planner.accepts_forces(charges, *sums)
            limits = planner.force_limits(charges) if suits else None
            return limits, planner.with_forces(parameters)

        self._limits, self._parameters = decide(self._comm, examine)
        if self._limits is None:
            self._boxes = None
        return self._limits is not None

    def _route(self, ids: np.ndarray | None) -> Route | None:
        """The way of particles to the ranks that they had at creation; None without ``ids``."""
        comm = self._comm
        if ids is None:
            return None
        if self._homes is None:
            self._homes = Homes.from_ranks(comm, self._ids, len(self._charges))
        return self._homes.route(ids)

    def _refuse_coincidence(self, potentials, route: Route | None) -> None:
        bad = np.flatnonzero(np.isnan(to_host(potentials)) & (self._charges != 0.0))
        if len(bad):
            particle = f"particle {bad[0]} of this rank"
            if route and self._ids is not None:
                particle = f"the particle with ID {self._ids[bad[0]]}"
            raise ValueError(f"`positions` place {particle} on another charge that is not excluded")

    def _checked_on_device(self, positions):
        """Positions on the device, float64. If they fill a cell, coordinates are checked only once
        a result is undefined, as it is where they are not finite."""
        if positions.shape != (len(self._charges), 3):
            raise ValueError(
                f"`positions` must have shape ({len(self._charges)}, 3), got {positions.shape}"
            )
        x = self._gpu.arrays.ascontiguousarray(positions, np.float64)
        if not self._boundary.fills_space:
            self._check_extent(x)
        return x

    @staticmethod
    def _check_extent(positions) -> None:
        if len(positions):
            check_extent(positions, len(positions))

    def _frame(self, vectors: np.ndarray | None) -> Frame:
        """The coordinates that a cell is computed in."""
        return Frame.from_cell(self._boundary.cell(vectors))

    def _highest(self, value: float) -> float:
        return max(self._comm.allgather(float(value)))


def connected_gpu(comm) -> Any:
    """The current GPU of this rank, connected with those of the other ranks."""
    from fmm_openmm.backends.cuda.execute.cupy.ranks import GpuRank
    from fmm_openmm.backends.cuda.pipeline.ranks import MOST_RANKS

    def found() -> GpuRank:
        if comm.size > MOST_RANKS:
            raise UnsupportedError(
                f"`backend='cuda'` takes at most {MOST_RANKS} ranks, got {comm.size}"
            )
        return GpuRank()

    gpu = agree(comm, found)
    places = comm.allgather(gpu.place)

    def check():
        first = places.index(gpu.place)
        if first != comm.rank:
            raise ValueError(
                f"`backend='cuda'` needs a GPU for each rank, but rank {first} uses the same: make "
                "another one current, cupy.cuda.Device(number).use()"
            )
        return gpu.nccl_id() if comm.rank == 0 and comm.size > 1 else None

    identifier = comm.bcast(agree(comm, check))
    if identifier:
        gpu.connect(comm.size, comm.rank, identifier)
    return gpu


def _bytes(vectors: np.ndarray | None) -> bytes | None:
    return None if vectors is None else vectors.tobytes()


def _sent_back(result: CoulombResult, route: Route) -> CoulombResult:
    """A result with those of the particles whose positions this rank has given."""
    columns = result.potentials, result.fields, result.forces
    rows = route.from_homes(np.column_stack(columns))
    potentials, fields, forces = map(np.ascontiguousarray, np.split(rows, (1, 4), axis=1))
    return replace(result, potentials=potentials[:, 0], fields=fields, forces=forces)


def _ends(x) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest coordinates; infinite without particles."""
    if not len(x):
        return np.full(3, np.inf), np.full(3, -np.inf)
    return bounds(x)


def _moved(x, by: np.ndarray):
    """Positions moved by a vector on the host."""
    return x + namespace(x).asarray(by)


def _charges(charges) -> np.ndarray:
    own = check_numbers(charges, "elementary_charge", "charges")
    return check_charges(own) if own.size else np.empty(0)


def _ids(ids, particles: int) -> np.ndarray | None:
    if ids is None:
        return None
    check_unmasked(ids, "ids")
    array = np.asarray(ids)
    if array.shape != (particles,) or (particles and array.dtype.kind not in "iu"):
        raise ValueError(
            f"`ids` must be integers of shape ({particles},), got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array.astype(np.int64)


def _numbered(pairs: np.ndarray, ids: np.ndarray | None, n: int) -> np.ndarray:
    """Excluded pairs of ids, shape (m, 2), as pairs of places in ``ids``, each once; without ids
    they are pairs of places. Sorting is fast if molecules follow one after the other.

    Args:
        n: number of particles.
    """
    place, found = pairs, (pairs >= 0) & (pairs < n)
    if ids is not None:
        order = np.argsort(ids, kind="stable")
        known = ids[order]
        if (known[1:] == known[:-1]).any():
            twice = known[1:][known[1:] == known[:-1]][0]
            raise ValueError(f"`ids` must be unique, got {twice} twice")
        nearest = np.minimum(np.searchsorted(known, pairs), n - 1)
        place, found = order[nearest], known[nearest] == pairs
    if not found.all():
        raise ValueError(f"`exclusions` name particle {pairs[~found][0]}, which no rank has")
    if (pairs[:, 0] == pairs[:, 1]).any():
        itself = pairs[pairs[:, 0] == pairs[:, 1]][0, 0]
        raise ValueError(f"`exclusions` pair particle {itself} with itself")
    first, second = np.minimum(*place.T), np.maximum(*place.T)
    keys = first * n + second
    order = np.argsort(keys, kind="stable")
    order = order[np.diff(keys[order], prepend=-1) > 0]
    return np.column_stack([first[order], second[order]])
