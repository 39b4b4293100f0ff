"""``CoulombSolver``: Coulomb energies, forces, potentials and fields of point charges, periodic
along three directions, two, one or none."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from scipy.sparse.linalg import LinearOperator

from fmm_openmm.arrays import is_on_device, to_host
from fmm_openmm.backends import BACKENDS, backend_class, choose_backend, fallback, open_sum
from fmm_openmm.boundary import Boundary, check_neutral
from fmm_openmm.box import Frame, check_box_vectors
from fmm_openmm.charge_sets import EVALUATION, CoulombMatrix, DeviceCoulombMatrix
from fmm_openmm.checks import (
    check_charges,
    check_choice,
    check_exclusions,
    check_extent,
    check_groups,
    check_points,
    check_points_shape,
    check_positions,
)
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.implementations import (
    M2L,
    METHODS,
    SUMS,
    check_m2l,
    check_method,
    warn_if_literature,
)
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.planning.cost import CPU_COST, CUDA_COST
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.planner import Plan, Planner
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import TOLERANCE, FMMParameters, Request, RequestKeywords
from fmm_openmm.results import (
    MAX_POTENTIAL,
    ChargeSetsResult,
    CoulombResult,
    like,
    name_coincidence,
    split,
    spread,
    turned,
)
from fmm_openmm.stages import Evaluator
from fmm_openmm.sums import SumParameters, SumPlanner
from fmm_openmm.units import COULOMB_CONSTANT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack


@lists_options(Request)
class CoulombSolver:
    r"""Coulomb interaction of n point charges by the fast multipole method.

    .. math:: U = \frac{k_e}{2} \sum_{i,j} \sum_{n}{}' \frac{q_i q_j}{|x_i - x_j - n|}
                  - k_e \sum_{(i,j)\ excluded} \frac{q_i q_j}{|x_i - x_j|}

    The sum over n runs over all periodic images; the prime omits i = j at n = 0. The boundary is
    tin-foil, and a uniform background neutralises a net charge, as in OpenMM's PME. With
    ``boundary="open"`` the particles are in free space: only n = 0 contributes, the net charge is
    arbitrary, and potentials vanish at infinity.

    A slab has images along two of the box vectors, a wire along one. The other vectors are ignored:
    perpendicular to those of the images there is vacuum. There is no background. The potential of a
    charge and its images is the finite part of their sum. Far from a slab, whose cell has the area
    A, or from a wire of period c, it is

    .. math:: -\frac{2 \pi k_e}{A} |z| \qquad \text{or} \qquad
              -\frac{2 k_e}{c} \ln \frac{\rho}{c}

    The charges must be neutral in total. A dipole moment needs no correction.

    Args:
        charges: shape (n,), e.
        box_vectors: rows a, b, c in OpenMM's reduced form, shape (3, 3), nm; None with an open
            boundary. Those without images are ignored.
        exclusions: excluded pairs, shape (m, 2).
        tolerance: largest relative RMS force error ``|F - F_exact| / |F_exact|``, 1e-10 to 0.1.
        boundary: "periodic", "open", or the box vectors along which there are images: any of "ab",
            "bc", "ac", "a", "b" and "c", with "slab" for "ab" and "wire" for "c".
        precision: "single", "double", or "auto". With "auto" single precision is used for
            tolerances down to 5e-6 on a CPU and 1e-5 on a GPU, for bare ions down to 5.3e-6 and
            2.7e-5. The solver changes to double precision at the first evaluation in which charges
            are so close to each other that single precision would miss the tolerance.
        backend: "cuda", "cpu", "reference" (readable and slow), or "auto": "cuda" if it is usable
            and its memory suffices, else "cpu". A warning gives the reason; without an NVIDIA GPU
            it is only logged (``fmm_openmm``, level INFO).
        exclusions_periodic: exclude the nearest image of a pair instead of the image that the
            positions give. No effect with an open boundary.
        positions: typical positions, shape (n, 3), nm. They are used only to estimate how much of
            the cell is empty, which makes droplets, slabs and single molecules much faster; without
            them the cell is assumed to be filled. In a nearly empty cell the boxes cover only the
            particles, as with an open boundary, as long as the particles stay together and neither
            ``grid`` nor ``levels`` is given. With an open boundary the parameters are chosen for
            these positions, else for those of the first evaluation.
        method: "fmm"; with an open boundary also "direct", the sum over all pairs, or (deprecated)
            "treecode", an octree whose distant cells act through their moments. ``order`` then is
            the order of the moments; other explicit parameters apply only to the FMM.
        options: explicit parameters, see :class:`FMMParameters`.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names argument and value.
        UnsupportedError: backend "cuda" without CuPy or a GPU, a method, backend or ``m2l`` that
            is not available with the other arguments, or a net charge in a slab or wire.

    Warns:
        DeprecationWarning: a method or ``m2l`` of the literature, which is there for comparison.
    """

    @suggests_keywords(like=Request)
    def __init__(
        self,
        charges: "ArrayLike",
        box_vectors: "ArrayLike | None",
        exclusions: "ArrayLike | None" = None,
        tolerance: float = TOLERANCE,
        boundary: str = "periodic",
        precision: str = "auto",
        backend: str = "auto",
        *,
        exclusions_periodic: bool = False,
        positions: "ArrayLike | None" = None,
        method: str = "fmm",
        **options: "Unpack[RequestKeywords]",
    ):
        self._boundary = Boundary.from_name(boundary)
        self._method = check_choice(method, METHODS, "method")
        check_choice(backend, BACKENDS, "backend")
        self._host_charges = check_charges(charges)
        self._device_charges: Any = None  # if newer
        self._count = len(self._host_charges)
        check_neutral(self._host_charges, self._boundary)
        if method != "fmm":
            check_method(method, self._boundary.name, self._boundary.is_open, backend)
        if self._boundary.is_open:
            self._cell(box_vectors)
        elif box_vectors is None:
            raise ValueError(
                f"`box_vectors` must be given with `boundary={boundary!r}`: "
                "use `boundary='open'` for free space"
            )
        else:
            self._box_vectors = check_box_vectors(box_vectors)
        if not self._boundary.fills_space:
            _check_grid(options.get("grid"), self._boundary)
        self._exclusions = check_exclusions(exclusions, len(self._charges))
        minimum_image = bool(exclusions_periodic) and not self._boundary.is_open
        self._arguments: dict[str, Any] = {
            "tolerance": tolerance,
            "precision": precision,
            **options,
        }
        self._minimum_image = minimum_image
        self._variants: dict[str, CoulombSolver] = {}
        request = Request(tolerance, precision=precision, **options)
        self._automatic = backend == "auto"
        backend = choose_backend(backend)
        backend_class(backend)  # refuses what this machine cannot do
        if request.m2l:
            check_m2l(request.m2l, backend)
        if method != "fmm":
            warn_if_literature("method", SUMS, method, backend, "fmm")
        if positions is not None:
            positions = self._checked_positions(positions, None)
        load, cell = Load.from_charges(self._charges, self._exclusions), self._cell(None)
        problem = Problem(request, load, self._exclusions, minimum_image, cell)
        if positions is not None:
            problem = problem.with_positions(positions, cell)
        problem = self._on_backend(backend, problem)
        # with a memory of two plans a rejected change of the box costs nothing
        self._planner: Any = (
            Planner(problem, memory=2, fixed_cell=True)
            if method == "fmm"
            else SumPlanner(method, problem)
        )
        self._evaluators: dict[int, Any] = {}  # by the choice of their plans
        if method == "fmm" and positions is not None:
            self._planner.prepare(positions, cell)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        request, found = self._planner.problem.request, self._planner.parameters
        return (
            f"CoulombSolver({len(self._charges)} particles, {len(self._exclusions)} exclusions, "
            f"{self._boundary.name}, tolerance {request.tolerance:g}, "
            f"backend {self._backend!r}, "
            f"{'parameters not chosen yet' if found is None else found})"
        )

    @property
    def parameters(self) -> FMMParameters | SumParameters:
        """The parameters for the box vectors given at creation, with the expected errors.

        If the boxes cover only the particles, the parameters used last. The expected errors are
        relative to the forces of an ordinary liquid until an evaluation of positions on the host
        has found the RMS force, and from then on to that.

        Raises:
            ValueError: the parameters depend on positions, and there are none yet.
        """
        found = self._planner.parameters
        if found is None:
            raise ValueError(
                "`parameters` are chosen for positions: give `positions`, or call `compute` first"
            )
        return found if self._method != "fmm" else self._planner.with_forces(found)

    @property
    def backend(self) -> str:
        """The backend in use."""
        return self._backend

    @property
    def charges(self) -> np.ndarray:
        """The charges, shape (n,), e; a copy."""
        return self._charges.copy()

    def set_charges(self, charges: "ArrayLike") -> None:
        """Replace the charges, shape (n,), e.

        Exclusions are kept. Parameters are kept too, unless bare ions replace neutral molecules,
        far fewer particles carry the charge or, with an open boundary, the net charge becomes far
        larger. With backend "cuda" the charges may be a CuPy array: they then stay on the device,
        the call does not wait for it, and parameters are kept in any case; NaN shows in the
        results."""
        replaced: Any = charges
        stay = is_on_device(charges) and self._backend == "cuda" and self._method == "fmm"
        replaced = replaced.astype(np.float64) if stay else check_charges(to_host(replaced))
        if replaced.shape != (self._count,):
            raise ValueError(
                f"`charges` must have shape {(self._count,)} as at creation, got {replaced.shape}"
            )
        check_neutral(replaced, self._boundary)
        with EVALUATION:
            if stay:
                self._device_charges = replaced
            else:
                if not self._planner.accepts(replaced):
                    self._evaluators = {}
                self._host_charges, self._device_charges = replaced, None
            self._variants = {}
            for evaluator in self._evaluators.values():
                evaluator.set_charges(replaced)

    @property
    def _charges(self) -> np.ndarray:
        """The charges on the host, shape (n,), e; copied from the device where they are newer."""
        if self._device_charges is not None:
            self._host_charges = check_charges(to_host(self._device_charges))
            self._device_charges = None
        return self._host_charges

    @overload
    def compute(
        self,
        positions: "ArrayLike",
        box_vectors: "ArrayLike | None" = None,
        *,
        charges: None = None,
        points: "ArrayLike | None" = None,
        virial: bool = False,
        fields: bool = True,
    ) -> CoulombResult: ...
    @overload
    def compute(
        self,
        positions: "ArrayLike",
        box_vectors: "ArrayLike | None" = None,
        *,
        charges: "ArrayLike",
        points: None = None,
        virial: bool = False,
        fields: bool = True,
    ) -> ChargeSetsResult: ...
    def compute(
        self,
        positions: "ArrayLike",
        box_vectors: "ArrayLike | None" = None,
        *,
        charges: "ArrayLike | None" = None,
        points: "ArrayLike | None" = None,
        virial: bool = False,
        fields: bool = True,
    ) -> CoulombResult | ChargeSetsResult:
        """Energy, forces, potentials and fields; on request also at other points, the virial, or
        for many sets of charges.

        Args:
            positions: shape (n, 3), nm; wrapped into the box or not. With backend "cuda" they may
                be any CuPy array. The results then stay on the device, in the precision of the
                solver, the energy with shape (1,), the virial in float64. The call does not wait
                for the device, errors show as NaN, and whether single precision suffices is not
                checked. With an open boundary, or in a nearly empty cell, the energy is read back
                to see whether the boxes cover the particles, and invalid positions raise errors.
                With ``points`` there the positions are copied to the host and the results back.
            box_vectors: shape (3, 3), nm, if they differ from those given at creation; None with an
                open boundary. A uniform scaling costs nothing. Another shape rebuilds the lattice
                operator, as do particles that leave the space covered by the boxes. A strain of
                more than two percent has grid and parameters chosen anew.
            charges: K sets of charges in place of the solver's, shape (K, n), e. The result is a
                :class:`ChargeSetsResult`, with the parameters and precision chosen for the solver's
                charges. What depends on positions alone is computed once, for eight sets together
                on a GPU; with levels there one set is computed after the other.
            points: shape (m, 3), nm: potentials and fields there, too, as of particles without
                charge.
            virial: compute the virial, too, where the positions are. This takes the operators of
                ten strained cells, once for every shape of the cell; on a GPU also another program,
                with as much memory again. With levels and in nearly empty cells the whole result is
                that of another solver, on the CPU, with one level of boxes over the whole cell.
            fields: whether sets of charges need fields and forces, or potentials alone.

        Raises:
            MemoryError: with backend "cuda", device memory does not suffice. All of it is released,
                and the solver remains usable.
            UnsupportedError: the order is too high for single precision; with backend "cuda", the
                kernels cannot be compiled here.
            ValueError: wrong shapes, coordinates that are not finite or far out of range, or
                coincident charged particles that are not excluded; with backend "cuda" also if one
                of the two has no charge; ``charges`` together with ``points`` or ``virial``.

        Warns:
            UserWarning: ``precision="single"`` misses the tolerance because charges are too close
                to each other; once.
        """
        frame = self._frame(box_vectors)
        if frame is None:
            return self._computed_for(positions, box_vectors, charges, points, virial, fields)
        x = self._checked_positions(positions, box_vectors)
        if points is not None:
            points = check_points(to_host(points)) @ frame.axes
        result = self._computed_for(x, box_vectors, charges, points, virial, fields)
        return like(turned(result, frame.axes), positions)

    def _computed_for(
        self, positions, box_vectors, charges, points, virial: bool, fields: bool
    ) -> CoulombResult | ChargeSetsResult:
        """:meth:`compute` in the coordinates of :meth:`_frame`."""
        if charges is None and points is None and not virial:
            cell = self._cell(box_vectors)
            return self._retried(lambda: self._evaluated(positions, cell))
        if charges is not None and (virial or points is not None):
            raise ValueError("`charges` cannot be combined with `points` or `virial`")
        if self._method != "fmm" and points is None:
            raise UnsupportedError(
                f"`charges` and `virial` need `method='fmm'`, got {self._method!r}"
            )
        if charges is not None:
            matrix = self._coulomb_matrix(positions, box_vectors)
            return like(matrix.evaluate(charges, fields), positions)
        if points is None:
            return self._with_virial(positions, box_vectors)
        if self._stays_on_device(positions) and self._expands_at_points:
            return self._with_points_on_device(positions, box_vectors, points, virial)
        x = check_positions(to_host(positions), self._count)
        result = self._with_points(x, box_vectors, check_points(to_host(points)), virial)
        return like(result, positions)

    def _with_virial(self, positions, box_vectors) -> CoulombResult:
        """The result with the virial, where boxes have levels or do not fill the cell by another
        solver."""
        problem = self._planner.problem
        covers_particles = problem.uses_region and self._boundary.fills_space
        if problem.request.levels or covers_particles:
            single_level = {"levels": None, "m2l": None, "grid": None}
            backend = "reference" if self._backend == "reference" else "cpu"
            variant = self._variant("virial", self._charges, backend=backend, **single_level)
            return like(variant._with_virial(to_host(positions), box_vectors), positions)
        cell = self._cell(box_vectors)
        result = self._retried(lambda: self._evaluated(positions, cell, virial=True))
        return replace(like(result, positions), volume=_volume(cell))  # type: ignore[arg-type]

    @property
    def _expands_at_points(self) -> bool:
        """Whether expansions and sources give potentials at points: boxes must cover the cell."""
        problem = self._planner.problem
        levels = self._backend == "cuda" and problem.request.levels
        fills = self._method == "fmm" and self._boundary.fills_space and not problem.uses_region
        return fills and not levels

    def _with_points_on_device(self, positions, box_vectors, points, virial: bool) -> CoulombResult:
        """The result with potentials and fields at points, on the device."""
        cell = self._cell(box_vectors)
        if is_on_device(points):
            check_points_shape(points.shape)
        else:
            points = check_points(points)
        result = self._retried(lambda: self._evaluated(positions, cell))
        with EVALUATION:
            evaluator: Any = self._evaluator_for(self._planner.plan(positions, cell))
            potentials, fields = evaluator.compute_at(points)
        undefined = ~(abs(potentials) < np.inf)
        potentials[undefined] = fields[undefined] = np.nan
        if virial:
            result = self._with_virial(positions, box_vectors)
        return replace(result, point_potentials=potentials, point_fields=fields)

    def _with_points(
        self, positions: np.ndarray, box_vectors, points: np.ndarray, virial: bool
    ) -> CoulombResult:
        """The result with potentials and fields at points: where boxes cover the cell from
        expansions and sources, else as of additional particles without charge."""
        n, cell = len(positions), self._cell(box_vectors)
        if self._expands_at_points:
            if virial:
                result = self._with_virial(positions, box_vectors)
            else:
                result = self._retried(lambda: self._evaluated(positions, cell))
            with EVALUATION:
                plan = self._planner.plan(positions, cell)
                width = plan.boxes.width
                at_points = self._evaluator_for(plan).evaluate_at(positions, points, width)  # type: ignore[attr-defined]
            largest = float(np.abs(self._charges).max())
            return result.with_points(at_points, width, largest)
        charges = np.concatenate([self._charges, np.zeros(len(points))])
        variant = self._variant("points", charges, method=self._method)
        try:
            x = np.concatenate([positions, points])
            both: Any = variant._computed_for(x, box_vectors, None, None, False, True)
        except ValueError:  # on a GPU particles without charge must not lie on charges
            apart = ~self._boundary.coincide(points, positions, cell)
            if apart.all():
                raise
            if not apart.any():
                known = self._computed_for(positions, box_vectors, None, None, virial, True)
                return spread(known, apart)  # type: ignore[arg-type]
            result = self._with_points(positions, box_vectors, points[apart], virial)
            return spread(result, apart)
        return split(both, n, self._with_virial(positions, box_vectors).virial if virial else None)

    def _coulomb_matrix(self, positions, box_vectors) -> CoulombMatrix | DeviceCoulombMatrix:
        """What evaluates sets of charges at these positions. On the host the solver's own charges
        show first whether single precision suffices."""
        cell = self._cell(box_vectors)
        if self._stays_on_device(positions) and not self._planner.problem.request.levels:
            with EVALUATION:
                plan = self._planner.plan(positions, cell)
                evaluator: Any = self._evaluator_for(plan)
                particles = evaluator.charge_sets(positions, plan.boxes.width, plan.boxes.origin)
            return DeviceCoulombMatrix(particles)
        positions = check_positions(to_host(positions), self._count)
        if not self._planner.is_examined:
            self._retried(lambda: self._evaluated(positions, cell))
        with EVALUATION:
            plan = self._planner.plan(positions, cell)
            x, max_potential = self._in_boxes(plan, positions, cell)
            particles = self._evaluator_for(plan).charge_sets(x, plan.boxes.width)
        return CoulombMatrix(
            particles,
            plan.boxes.width,
            max_potential,
            lambda particle: self._refuse_coincidence(particle, positions, cell),
        )

    def interaction_energies(
        self,
        positions: "ArrayLike",
        groups: "ArrayLike",
        box_vectors: "ArrayLike | None" = None,
    ) -> np.ndarray:
        r"""Coulomb energies among groups of particles.

        Groups A and B, A not B, interact by ``matrix[A, B] + matrix[B, A]``, which is
        ``2 * matrix[A, B]``; the energy of a group by itself, with its own periodic images and, if
        it is charged, its neutralising background, is ``matrix[A, A]``:

        .. math:: M_{AB} = \frac{1}{2} \sum_{i \in A} q_i \phi_B(x_i)

        with the potential of the charges in B, excluded pairs left out. The sum of the matrix is
        the energy of all.

        Args:
            positions: see :meth:`compute`.
            groups: the group of each particle, numbers from 0 to G - 1, shape (n,) integer.
            box_vectors: see :meth:`compute`.

        Returns:
            shape (G, G), symmetric, kJ/mol; of CuPy where positions are evaluated on the device.

        Raises:
            ValueError, TypeError: groups are not numbered from 0 without gaps, or as
                :meth:`compute`.

        Example:
            >>> solver = CoulombSolver([0.4, -0.4, 1.0], None, boundary="open")
            >>> x = [[0, 0, 0], [0.1, 0, 0], [0, 0, 0.5]]
            >>> matrix = solver.interaction_energies(x, [0, 0, 1])  # a dipole and an ion
            >>> round(float(matrix[0, 1] + matrix[1, 0]), 3)
            2.158
        """
        self._require_fmm("interaction_energies")
        x = self._turned(positions, box_vectors)
        group = check_groups(to_host(groups), self._count)
        return self._coulomb_matrix(x, box_vectors).among_groups(self._charges, group)

    def coulomb_operator(
        self, positions: "ArrayLike", box_vectors: "ArrayLike | None" = None
    ) -> LinearOperator:
        """The Coulomb matrix at fixed positions, which takes charges, shape (n,), e, to potentials,
        shape (n,), kJ/mol/e: for charges that change while positions stay.

        A product sorts nothing and lists nothing. Several columns are computed together. The
        operator is symmetric, and stays as it is whatever the solver computes afterwards.

        Args:
            positions, box_vectors: see :meth:`compute`.

        Returns:
            shape (n, n), float64; for positions on a device an operator of CuPy
            (``cupyx.scipy.sparse.linalg.LinearOperator``), which takes arrays on the device.
        """
        self._require_fmm("coulomb_operator")
        x = self._turned(positions, box_vectors)
        return self._coulomb_matrix(x, box_vectors).operator()

    def _require_fmm(self, name: str) -> None:
        if self._method != "fmm":
            raise UnsupportedError(f"`{name}` needs `method='fmm'`, got {self._method!r}")

    def _variant(self, name: str, charges: np.ndarray, **changes) -> "CoulombSolver":
        """A solver of the same options but for ``changes``, for charges of which the first are
        those of this solver; kept under its name as long as their number stays."""
        known = self._variants.get(name)
        if known is None or len(known.charges) != len(charges):
            known = self._variants[name] = CoulombSolver(
                charges,
                None if self._boundary.is_open else self._box_vectors,
                self._exclusions,
                boundary=self._boundary.name,
                exclusions_periodic=self._minimum_image,
                **{"backend": self._backend, **self._arguments, **changes},
            )
        return known

    def _retried(self, evaluate: Callable[[], CoulombResult]) -> CoulombResult:
        """The result of ``evaluate``, once more where memory held for other shapes may suffice, or
        on another backend."""
        with EVALUATION:
            while True:
                kept = bool(self._evaluators)
                try:
                    return evaluate()
                except (MemoryError, UnsupportedError) as error:
                    fault = error.with_traceback(None)  # which holds device memory
                self._evaluators = {}
                self._planner.forget()
                # the memory held for other shapes may suffice
                if not (kept and isinstance(fault, MemoryError)):
                    self._fall_back(fault)

    def _evaluated(self, positions, cell: np.ndarray | None, virial: bool = False) -> CoulombResult:
        if self._stays_on_device(positions):
            return self._evaluated_on_device(positions, cell, virial)
        positions = check_positions(to_host(positions), self._count)
        width, max_potential, work = 1.0, MAX_POTENTIAL, None
        if self._method == "fmm":
            plan = self._planner.plan(positions, cell)
            x, max_potential = self._in_boxes(plan, positions, cell)
            width, evaluator = plan.boxes.width, self._evaluator_for(plan)
            if virial:
                potentials, fields, work = evaluator.evaluate_with_virial(x, width)  # type: ignore[attr-defined]
            else:
                potentials, fields = evaluator.evaluate(x, width)
            problem = self._planner.check_precision(self._charges, fields)
            if problem is not self._planner.problem:
                return self._replanned(problem, positions, cell, virial)
        else:
            potentials, fields = map(to_host, self._sum().evaluate(positions))
        result = self._checked(potentials, fields, positions, cell, width, max_potential)
        if work is not None:
            work = work * (COULOMB_CONSTANT / width) + np.eye(3) * (result.energy / 3)
        return replace(result, virial=work, volume=_volume(cell))

    def _stays_on_device(self, positions) -> bool:
        """Whether positions are evaluated where they are, on a device."""
        if not is_on_device(positions) or self._backend != "cuda":
            return False
        if positions.shape != (self._count, 3):
            raise ValueError(
                f"`positions` must have shape ({self._count}, 3), got {positions.shape}"
            )
        return True

    @staticmethod
    def _in_boxes(
        plan: Plan, positions: np.ndarray, cell: np.ndarray | None
    ) -> tuple[np.ndarray, float]:
        """Positions relative to the boxes of a plan, and the potential of particles at the same
        place in units of the largest charge per box width."""
        boxes = plan.boxes
        if not plan.problem.uses_region:
            return positions, MAX_POTENTIAL
        x = plan.problem.gather(positions, cell, boxes.centre) - boxes.origin  # type: ignore[union-attr]
        return x, MAX_POTENTIAL * min(max(1.0, boxes.width), 2e3)  # sparse systems have wide boxes

    def _evaluated_on_device(
        self, positions, cell: np.ndarray | None, virial: bool
    ) -> CoulombResult:
        if self._method != "fmm":
            return self._summed_on_device(positions)
        plan = self._planner.reuse(cell)
        if plan and plan.choice in self._evaluators:
            result = self._computed(positions, plan, virial)
            if np.isfinite(to_host(result.energy)).all():  # else particles have left the boxes
                return result
        if self._planner.problem.uses_region:
            check_extent(positions, self._count)
        return self._computed(positions, self._planner.plan(positions, cell), virial)

    def _computed(self, positions, plan: Plan, virial: bool) -> CoulombResult:
        """The result of a plan, on the device; NaN if a particle lies outside of a region."""
        boxes, evaluator = plan.boxes, self._evaluator_for(plan)
        if virial:
            evaluator = evaluator.with_virial  # type: ignore[attr-defined]
        found = evaluator.compute(positions, boxes.width, boxes.origin)  # type: ignore[attr-defined]
        return CoulombResult(*(array.copy() for array in found))

    def _replanned(
        self, problem: Problem, positions, cell: np.ndarray | None, virial: bool
    ) -> CoulombResult:
        """Evaluate with plans for another problem and keep these unless the evaluation fails."""
        before = copy.copy(self._planner), self._evaluators
        self._planner.revise(problem)
        self._evaluators = {}
        try:
            return self._evaluated(positions, cell, virial)
        except BaseException:
            self._planner, self._evaluators = before
            raise

    def _summed_on_device(self, positions) -> CoulombResult:
        """The result of a method without boxes, on the device."""
        evaluator = self._sum()
        return CoulombResult.on_device(evaluator.charges, *evaluator.evaluate(positions))

    def _sum(self):
        """The method without boxes, made on first use."""
        if not self._evaluators:
            p = self._planner.parameters
            dtype = np.dtype(p.precision).type
            make = open_sum(self._backend, p.method)
            self._evaluators[0] = make(self._charges, self._exclusions, dtype, *p.settings)  # type: ignore[call-arg]
        return self._evaluators[0]

    def _checked(
        self, potentials, fields, positions, cell, width: float, max_potential: float
    ) -> CoulombResult:
        """The result in kJ/mol and nm, after a check for coincident charges."""
        result = CoulombResult.from_boxes(self._charges, potentials, fields, width, max_potential)
        bad = np.flatnonzero(np.isnan(result.potentials) & (self._charges != 0.0))
        if len(bad):
            self._refuse_coincidence(bad[0], positions, cell)
        return result

    def _refuse_coincidence(self, particle: int, positions, cell: np.ndarray | None) -> None:
        raise ValueError(
            name_coincidence(
                particle, positions, cell, self._charges, self._exclusions, self._minimum_image
            )
        )

    def _fall_back(self, fault: Exception) -> None:
        """Change to the CPU backend if the backend was chosen automatically; else raise
        ``fault``."""
        problem = self._planner.problem
        m2l = problem.request.m2l
        if self._backend != "cuda" or not self._automatic or (m2l and "cpu" not in M2L[m2l]):
            raise fault
        warn(fallback(fault))
        self._planner.revise(self._on_backend("cpu", problem))

    def _on_backend(self, backend: str, problem: Problem) -> Problem:
        """Select a backend and return the problem for it."""
        self._backend, self._evaluator_class = backend, backend_class(backend)
        cost = CUDA_COST if backend == "cuda" else CPU_COST
        return replace(problem, cost=cost, device=self._evaluator_class.device())

    def parameters_for(self, box_vectors: "ArrayLike | None") -> FMMParameters:
        """The parameters for the given box vectors: those in use or chosen at creation, as long as
        the boxes nearly keep their shape."""
        cell = self._cell(box_vectors)
        if self._planner.problem.uses_region:
            return self.parameters  # type: ignore[return-value]
        return self._planner.with_forces(self._planner.preview(None, cell).parameters)

    @property
    def _used_evaluators(self) -> list[Evaluator]:
        """The stages in use, the most recently used first."""
        made = self._evaluators
        return [made[choice] for choice in self._planner.choices if choice in made]

    def _evaluator_for(self, plan: Plan) -> Evaluator:
        """The stages for a plan: those made for its choice, else stages of a forgotten plan that
        can adopt its boxes, else new ones."""
        if plan.choice in self._evaluators:
            return self._evaluators[plan.choice]
        wanted = plan.specification(self._charges)
        made, known = self._evaluators.items(), self._planner.choices
        spare = [
            evaluator
            for choice, evaluator in made
            if choice not in known and evaluator.adopt(wanted)
        ]
        self._evaluators = {choice: evaluator for choice, evaluator in made if choice in known}
        self._evaluators[plan.choice] = spare[0] if spare else self._evaluator_class(wanted)
        return self._evaluators[plan.choice]

    def _cell(self, box_vectors) -> np.ndarray | None:
        """The cell of the box vectors in use; None with an open boundary."""
        if self._boundary.is_open:
            if box_vectors is not None:
                raise ValueError("`box_vectors` must be None with `boundary='open'`")
            return None
        cell = self._users_cell(box_vectors)
        return Frame.from_cell(cell).cell if self._boundary.is_partial else cell

    def _users_cell(self, box_vectors) -> np.ndarray:
        """The cell of the box vectors in use, in the coordinates of the user."""
        vectors = self._box_vectors if box_vectors is None else check_box_vectors(box_vectors)
        return self._boundary.cell(vectors)  # type: ignore[return-value]

    def _frame(self, box_vectors) -> Frame | None:
        """The coordinates that a slab or wire is computed in; None where they are the user's."""
        if not self._boundary.is_partial:
            return None
        frame = Frame.from_cell(self._users_cell(box_vectors))
        return None if frame.is_users else frame

    def _checked_positions(self, positions, box_vectors) -> np.ndarray:
        """Positions, shape (n, 3), nm, in the coordinates of :meth:`_frame`."""
        return self._turned(check_positions(to_host(positions), self._count), box_vectors)

    def _turned(self, positions, box_vectors):
        """Positions in the coordinates of :meth:`_frame`; checked if these are not the user's."""
        frame = self._frame(box_vectors)
        if frame is None:
            return positions
        return check_positions(to_host(positions), self._count) @ frame.axes


def _volume(cell: np.ndarray | None) -> float | None:
    """Volume of a cell, nm^3; None unless it is periodic along all directions."""
    if cell is None or np.isinf(np.diag(cell)).any():
        return None
    return float(np.prod(np.diag(cell)))


def _check_grid(grid, boundary: Boundary) -> None:
    """Refuse a grid where boxes follow the particles."""
    if grid is not None:
        raise ValueError(
            f"`grid` must be None with `boundary={boundary.name!r}`, where it is chosen for the "
            f"particles, got {grid!r}"
        )
