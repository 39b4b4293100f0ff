"""``CoulombSolver``: Coulomb energies, forces, potentials and fields of point charges, periodic
along three directions, two, one or none."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from fmm_openmm.arrays import is_on_device, to_host
from fmm_openmm.backends import BACKENDS, turn
from fmm_openmm.boundary import Boundary, check_neutral
from fmm_openmm.box import Frame, check_cell_vectors
from fmm_openmm.charge_sets import DeviceCoulombMatrix
from fmm_openmm.checks import (
    check_charge_sets,
    check_charges,
    check_choice,
    check_exclusions,
    check_flag,
    check_groups,
    check_points,
    check_positions,
)
from fmm_openmm.dipole_term import TIN_FOIL, DipoleTerm
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.evaluation import Evaluation
from fmm_openmm.implementations import (
    METHODS,
    SUMS,
    check_method,
    warn_if_literature,
)
from fmm_openmm.neutralization import Neutralization
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.placed_term import PlacedTerm
from fmm_openmm.planning.request import TOLERANCE, FMMParameters, Request, RequestKeywords
from fmm_openmm.results import (
    ChargeSetsResult,
    CoulombResult,
    MeasuredErrors,
    like,
)
from fmm_openmm.sums import SumParameters

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.sparse.linalg import LinearOperator
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

    A net charge is refused, unless ``neutralization`` gives what carries its opposite. A dipole
    moment needs no correction.

    Args:
        charges: shape (n,), e.
        box_vectors: rows a, b, c in OpenMM's reduced form, shape (3, 3), nm; None with an open
            boundary. Those without images have no effect: the matrix must be lower triangular with
            a positive diagonal, but only the others must be reduced by each other.
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
            positions give. It is found as in OpenMM, by rounding along c, then b, then a, so that
            it may be another one if no image is closer than half the smallest width of the cell.
            No effect with an open boundary.
        positions: typical positions, shape (n, 3), nm. They are used only to estimate how much of
            the cell is empty, which makes droplets, slabs and single molecules much faster; without
            them the cell is assumed to be filled. In a nearly empty cell the boxes cover only the
            particles, as with an open boundary, as long as the particles stay together and neither
            ``grid`` nor ``levels`` is given. With an open boundary the parameters are chosen for
            these positions, else for those of the first evaluation.
        method: "fmm"; with an open boundary also "direct", the sum over all pairs, or (deprecated)
            "treecode", an octree whose distant cells act through their moments. ``order`` then is
            the order of the moments; other explicit parameters apply only to the FMM.
        slab_correction: with a periodic boundary, correct the interaction of the slabs of a stack
            along c, after Yeh and Berkowitz (1999) and, with a net charge, Ballenegger, Arnold and
            Cerda (2009). The normal of the slab is that of a and b, in reduced box vectors the axis
            z. The cell must hold vacuum; ``boundary="slab"`` needs neither.
        surface_dielectric: dielectric constant of the surroundings of an infinite crystal, from 1
            (vacuum) to infinity (tin foil, the default), after de Leeuw, Perram and Smith (1980).
            The net charge must be zero. For this term and for ``slab_correction`` the dipole moment
            is that of the positions as they are given: ions must not be wrapped, and molecules must
            be whole.
        neutralization: sheets, lines or cylinders that carry the opposite of the net charge of a
            slab or wire, in equal parts; without them a net charge is refused. Uniform sheets next
            to a slab: heights along z, shape (k,), nm. Lines parallel to a wire: points on them,
            shape (k, 3), nm; or cylinders: points on their axes and radii, shape (k, 4), nm. The
            energy is that of all charges.
        options: explicit parameters, see :class:`FMMParameters`.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names argument and value.
        UnsupportedError: backend "cuda" without CuPy or a GPU, a method, backend, ``m2l`` or
            ``neutralization`` that is not available with the other arguments, or a net charge in a
            slab, in a wire or with ``surface_dielectric``.

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
        slab_correction: bool = False,
        surface_dielectric: float = TIN_FOIL,
        neutralization: "ArrayLike | None" = None,
        **options: "Unpack[RequestKeywords]",
    ):
        self._boundary = Boundary.from_name(boundary)
        self._method = check_choice(method, METHODS, "method")
        check_choice(backend, BACKENDS, "backend")
        checked = check_charges(charges)
        self._count = len(checked)
        self.neutralization = Neutralization.from_option(neutralization, self._boundary)
        dipole_term = DipoleTerm.from_options(slab_correction, surface_dielectric, self._boundary)
        self._term: DipoleTerm | Neutralization | None = self.neutralization or dipole_term
        self._check_net_charge(checked)
        if method != "fmm":
            check_method(method, self._boundary.name, self._boundary.is_open, backend)
        self._box_vectors = check_cell_vectors(box_vectors, self._boundary)
        self._own = Frame.from_cell(self._boundary.cell(self._box_vectors))
        if self.neutralization is not None:
            self.neutralization.at(np.zeros((1, 3)), self._own.given)  # refuses what crosses
        request = Request(tolerance, precision=precision, **options)
        request.check_boundary(self._boundary)
        pairs = check_exclusions(exclusions, self._count)
        typical = None
        if positions is not None:
            typical = check_positions(to_host(positions), self._count) @ self._own.axes
        self.evaluation = Evaluation(
            checked,
            self._own.cell,
            request,
            pairs,
            check_flag(exclusions_periodic, "exclusions_periodic") and not self._boundary.is_open,
            method,
            backend,
            typical,
        )
        if method != "fmm":
            warn_if_literature("method", SUMS, method, self.backend, "fmm")

    def __repr__(self) -> str:
        planner = self.evaluation.planner
        problem, found = planner.problem, planner.parameters
        return (
            f"CoulombSolver({self._count} particles, {len(problem.exclusions)} exclusions, "
            f"{self._boundary.name}, tolerance {problem.request.tolerance:g}, "
            f"backend {self.backend!r}, "
            f"{'parameters not chosen yet' if found is None else found})"
        )

    @property
    def parameters(self) -> FMMParameters | SumParameters:
        """The parameters for the box vectors given at creation, with the expected errors.

        If the boxes cover only the particles, the parameters used last. The expected errors are
        relative to the forces of an ordinary liquid until an evaluation has found the RMS force,
        and from then on to that. After :meth:`measure_errors` they are those measured, times 1.7,
        as long as the parameters stay.

        Raises:
            ValueError: the parameters depend on positions, and there are none yet.
        """
        planner = self.evaluation.planner
        found = planner.parameters
        if found is None:
            raise ValueError(
                "`parameters` are chosen for positions: give `positions`, or call `compute` first"
            )
        return found if self._method != "fmm" else planner.expected(found)

    @property
    def backend(self) -> str:
        """The backend in use."""
        return self.evaluation.backend

    @property
    def boundary(self) -> str:
        """The first name of the boundary, which tells along which box vectors there are images."""
        return self._boundary.name

    @property
    def box_vectors(self) -> np.ndarray | None:
        """The box vectors given at creation, shape (3, 3), nm, a copy; None with an open
        boundary."""
        return None if self._box_vectors is None else self._box_vectors.copy()

    @property
    def charges(self) -> np.ndarray:
        """The charges, shape (n,), e; a copy."""
        return self.evaluation.charges.copy()

    @property
    def has_term(self) -> bool:
        """Whether results include a dipole term or the interaction with what neutralises the
        charges."""
        return self._term is not None

    def set_charges(self, charges: "ArrayLike") -> None:
        """Replace the charges, shape (n,), e.

        Exclusions are kept. Parameters are kept too, unless bare ions replace neutral molecules,
        far fewer particles carry the charge or, with an open boundary, the net charge becomes far
        larger. With backend "cuda" the charges may be a CuPy array: they then stay on the device,
        the call does not wait for it, and parameters are kept in any case; NaN shows in the
        results.

        Raises:
            ValueError: wrong shape or values.
            UnsupportedError: a net charge that the boundary does not allow.
        """
        replaced: Any = charges
        stay = is_on_device(charges) and self.backend == "cuda" and self._method == "fmm"
        replaced = replaced.astype(np.float64) if stay else check_charges(to_host(replaced))
        if replaced.shape != (self._count,):
            raise ValueError(
                f"`charges` must have shape {(self._count,)} as at creation, got {replaced.shape}"
            )
        self._check_net_charge(replaced)
        self.evaluation.set_charges(replaced)

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
        potentials: bool = True,
    ) -> CoulombResult: ...
    @overload
    def compute(
        self,
        positions: "ArrayLike",
        box_vectors: "ArrayLike | None" = None,
        *,
        charges: "ArrayLike",
        points: "ArrayLike | None" = None,
        virial: bool = False,
        fields: bool = True,
        potentials: bool = True,
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
        potentials: bool = True,
    ) -> CoulombResult | ChargeSetsResult:
        """Compute energy, forces, potentials and fields; on request also potentials and fields at
        other points, the virial, or the results of many sets of charges.

        Args:
            positions: shape (n, 3), nm; wrapped into the box or not. With backend "cuda" they may
                be any CuPy array. The results then stay on the device, in the precision of the
                solver, the energy with shape (1,), the virial in float64. Errors show as NaN. The
                first call with its parameters waits for the device and examines the forces; others
                do not wait, and examine the forces of the call before them. With an open boundary,
                or in a nearly empty cell, the energy is read back to see whether the boxes cover
                the particles, and invalid positions raise errors; with ``points`` the positions are
                then copied to the host and the results back.
            box_vectors: shape (3, 3), nm, if they differ from those given at creation; None with an
                open boundary. A uniform scaling costs nothing. Another shape rebuilds the lattice
                operator, as do particles that leave the space covered by the boxes. A strain of
                more than two percent requires new boxes: grid and parameters are kept as far as the
                error estimate allows.
            charges: K sets of charges in place of the solver's, shape (K, n), e. The result is a
                :class:`ChargeSetsResult`, with the parameters and precision chosen for the solver's
                charges. What depends on positions alone is computed once, for eight sets together
                on a GPU; with levels there one set is computed after the other. ``points`` and
                ``virial`` are then computed for each set; the virial takes a plain evaluation for
                each, and on a GPU so do points. Positions on a device are copied to the host for
                them, and the results back.
            points: shape (m, 3), nm: potentials and fields there, too, as for particles without
                charge.
            virial: compute the virial, too, where the positions are. This takes the operators of
                ten strained cells, once for every shape of the cell; on a GPU also another program,
                with as much memory again. With levels, and on a GPU in nearly empty cells, the
                whole result is that of another solver, on the CPU, with one level of boxes over the
                whole cell.
            fields: whether sets of charges need fields and forces, or potentials alone.
            potentials: whether sets of charges need potentials; without them neither fields nor
                forces, but the matrix, which takes less time on a GPU.

        Raises:
            MemoryError: with backend "cuda", device memory does not suffice. All of it is released,
                and the solver remains usable.
            UnsupportedError: the order is too high for single precision; with backend "cuda", the
                kernels cannot be compiled here.
            ValueError: wrong shapes, coordinates that are not finite or far out of range, or
                coincident charged particles that are not excluded; with backend "cuda" also if one
                of the two has no charge.

        Warns:
            UserWarning: ``precision="single"`` misses the tolerance because charges are too close
                to each other or forces too small; given parameters miss it because forces are
                small; positions on a device missed it in the call before this one; with
                ``slab_correction``, positions on the host span more than the height of the cell.
                The third is issued at every such call, the others once.
        """
        frame = self._frame(box_vectors)
        wanted = virial, fields, potentials
        if frame.is_users:
            result = self._computed_for(positions, frame.cell, charges, points, *wanted)
        else:
            x, turned = self._turned(positions, frame), None
            if points is not None:
                turned = check_points(to_host(points)) @ frame.axes
            result = self._computed_for(x, frame.cell, charges, turned, *wanted)
            result = like(_turned_back(result, frame.axes), positions)
        return self._with_term(result, positions, frame.given, charges, points)

    def _computed_for(
        self, positions, cell: np.ndarray, charges, points, virial: bool, fields: bool,
        potentials: bool
    ) -> CoulombResult | ChargeSetsResult:  # fmt: skip
        """:meth:`compute` in the coordinates of :meth:`_frame`."""
        if charges is None and points is None and not virial:
            return self.evaluation.compute(positions, cell)
        if self._method != "fmm" and (virial or charges is not None):
            raise UnsupportedError(
                f"`charges` and `virial` need `method='fmm'`, got {self._method!r}"
            )
        if charges is not None:
            return self.evaluation.sets(
                positions, cell, charges, fields, points, virial, potentials
            )
        if points is None:
            return self.evaluation.with_virial(positions, cell)
        return self.evaluation.at_points(positions, cell, points, virial)

    def _check_net_charge(self, charges: Any) -> None:
        """Refuse a net charge that nothing neutralises."""
        check_neutral(charges, self._boundary, self._term)

    def _with_term(
        self, result, positions, cell: np.ndarray, charges, points
    ) -> CoulombResult | ChargeSetsResult:
        """A result with the dipole term or what neutralises the charges, if any; arguments as in
        :meth:`compute`."""
        if self._term is None:
            return result
        known = result.potentials if charges is None else result.matrix
        placed = self._place_term(positions, cell, is_on_device(known))
        if points is not None and not is_on_device(points):
            points = check_points(points)
        if charges is not None:
            if not is_on_device(charges):
                charges = check_charge_sets(charges, self._count)
            return placed.add_to_sets(result, charges, points)
        return placed.add(result, self.evaluation.newest_charges, points)

    def _place_term(self, positions, cell, on_device: bool) -> PlacedTerm:
        """The dipole term or what neutralises the charges, at positions, on the host or the
        device."""
        term: Any = self._term
        if on_device and is_on_device(positions):
            return term.at(positions, cell)
        x = check_positions(to_host(positions), self._count)
        term.check_span(x, self.evaluation.charges, cell)
        return term.at(x, cell)

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
        frame = self._frame(box_vectors)
        x, group = self._turned(positions, frame), check_groups(to_host(groups), self._count)
        matrix = self.evaluation.matrix(x, frame.cell)
        energies = matrix.among_groups(self.evaluation.charges, group)
        if self._term is None:
            return energies
        placed = self._place_term(positions, frame.given, is_on_device(energies))
        return energies + placed.among_groups(self.evaluation.charges, group)

    def coulomb_operator(
        self, positions: "ArrayLike", box_vectors: "ArrayLike | None" = None
    ) -> "LinearOperator":
        """The Coulomb matrix at fixed positions, which takes charges, shape (n,), e, to potentials,
        shape (n,), kJ/mol/e: for charges that change while positions stay.

        Particles are sorted once, when the operator is made, and not again in its products. The
        columns of a matrix are multiplied together. The operator is symmetric, and later
        evaluations of the solver do not change it.

        Args:
            positions, box_vectors: see :meth:`compute`.

        Returns:
            shape (n, n), float64; for positions on a device an operator of CuPy
            (``cupyx.scipy.sparse.linalg.LinearOperator``), which takes arrays on the device.

        Raises:
            UnsupportedError: ``method`` is not "fmm".
            MemoryError, ValueError: as :meth:`compute`.
        """
        self._require_fmm("coulomb_operator")
        frame = self._frame(box_vectors)
        x = self._turned(positions, frame)
        matrix = self.evaluation.matrix(x, frame.cell)
        if self._term is None:
            return matrix.operator()
        on_device = isinstance(matrix, DeviceCoulombMatrix)
        return self._place_term(positions, frame.given, on_device).operator(matrix.operator())

    def _require_fmm(self, name: str) -> None:
        if self._method != "fmm":
            raise UnsupportedError(f"`{name}` needs `method='fmm'`, got {self._method!r}")

    def parameters_for(self, box_vectors: "ArrayLike | None") -> FMMParameters:
        """The parameters that an evaluation with the given box vectors uses.

        They are those in use, or those chosen at creation, unless the shape of the boxes has
        changed too much for them.

        Args:
            box_vectors: see :meth:`compute`; None for the box vectors of the solver.

        Raises:
            ValueError: the box vectors are invalid, or given with an open boundary.
        """
        frame, planner = self._frame(box_vectors), self.evaluation.planner
        if planner.problem.uses_region:
            return self.parameters  # type: ignore[return-value]
        return planner.expected(planner.preview(None, frame.cell).parameters)

    def measure_errors(
        self, positions: "ArrayLike", box_vectors: "ArrayLike | None" = None
    ) -> MeasuredErrors:
        """Measure the errors of the forces that :meth:`compute` returns for these positions.

        The forces are compared with those of expansions of a higher order in double precision,
        which takes the time of another solver's first evaluation. Errors are found to about 5 %;
        of those below 1e-9, which double precision makes, only the magnitude.

        From then on, and until parameters are chosen anew, ``parameters.expected_error`` and
        ``parameters.expected_largest_error`` are these errors times 1.7. At other positions of a
        liquid the errors are within this factor; in crystals and in systems of a few charges they
        vary with the positions by more.

        Args:
            positions, box_vectors: see :meth:`compute`.

        Raises:
            UnsupportedError: ``method`` is not "fmm", or the order is above 35.
            MemoryError, ValueError: as :meth:`compute`; the solver remains usable.

        Example:
            >>> solver = CoulombSolver([1.0, -1.0, 1.0, -1.0], 2 * np.eye(3), backend="cpu")
            >>> x = [[0.0, 0.0, 0.0], [0.3, 0.0, 0.0], [1.0, 1.1, 1.0], [1.0, 1.4, 1.2]]
            >>> solver.measure_errors(x).rms < 5e-4
            True
        """
        self._require_fmm("measure_errors")
        frame = self._frame(box_vectors)
        return self.evaluation.measure_errors(self._turned(positions, frame), frame.cell)

    def _frame(self, box_vectors) -> Frame:
        """The cell of the box vectors in use, and the coordinates it is computed in."""
        if box_vectors is None:
            return self._own
        vectors = check_cell_vectors(box_vectors, self._boundary)
        return Frame.from_cell(self._boundary.cell(vectors))

    def _turned(self, positions, frame: Frame):
        """Positions in the coordinates of a frame; checked if these are not the user's, unless they
        stay on a device."""
        if frame.is_users:
            return positions
        stay = is_on_device(positions) and self.backend == "cuda"
        if stay and positions.shape == (self._count, 3):
            return turn(positions.astype(np.float64, copy=False), frame.axes)
        return check_positions(to_host(positions), self._count) @ frame.axes


Result = TypeVar("Result", bound="CoulombResult | ChargeSetsResult")


def _turned_back(result: Result, axes: np.ndarray) -> Result:
    """The result in other coordinates.

    Args:
        axes: unit vectors of the coordinates of the result in the other ones, in columns, shape
            (3, 3).
    """
    changed: dict[str, Any] = {
        name: turn(value, axes.T)
        for name in ("forces", "fields", "point_fields")
        if (value := getattr(result, name, None)) is not None
    }
    virial = getattr(result, "virial", None)
    if virial is not None:
        changed["virial"] = _transposed(turn(_transposed(turn(virial, axes.T)), axes.T))
    return replace(result, **changed)


def _transposed(matrices):
    """Matrices, shape (..., 3, 3), transposed."""
    return matrices.swapaxes(-1, -2)
