"""``potential_map``: the electrostatic potential on a grid, averaged over a trajectory."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.arrays import to_host
from fmm_openmm.boundary import OPEN, PERIODIC, Boundary
from fmm_openmm.checks import check_choice, check_number, check_numbers, check_positions
from fmm_openmm.convert.cells import reduce_box
from fmm_openmm.convert.frames import Frame
from fmm_openmm.convert.orientation import free_directions
from fmm_openmm.integration.frame_placement import FramePlacement
from fmm_openmm.integration.frame_solver import FrameSolver
from fmm_openmm.integration.frame_tasks import FrameTasks, Given
from fmm_openmm.integration.gaussian_charges import excess_of_points
from fmm_openmm.integration.map_files import write_cube, write_dx
from fmm_openmm.solver import CoulombSolver
from fmm_openmm.units import BOHR, GAS_CONSTANT, HARTREE, VOLT

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from numpy.typing import ArrayLike

ANGSTROM = 0.1
"""1 Angstrom in nm."""

MARGINS = (0.0, 1e3)
"""Limits of the margin, nm."""

SPACINGS = (1e-3, 1e3)
"""Limits of the spacing, nm."""

WIDTHS = (0.0, 1.0)
"""Limits of the width of Gaussian charges, nm."""

TEMPERATURES = (1e-3, 1e6)
"""Limits of the temperature, K."""

AXES = ("x", "y", "z")

UNITS: dict[str, Callable[[float], float]] = {
    "kJ/mol/e": lambda temperature: 1.0,
    "kT/e": lambda temperature: GAS_CONSTANT * temperature,
    "V": lambda temperature: VOLT,
}
"""Units of potentials, in kJ/mol/e at a temperature, K."""


@dataclass(frozen=True, eq=False, repr=False)
class PotentialMap:
    """An electrostatic potential on a grid.

    Attributes:
        values: at the points, shape (nx, ny, nz), kJ/mol/e. Point (i, j, k) lies at
            ``origin + i / nx * vectors[0] + j / ny * vectors[1] + k / nz * vectors[2]``.
        origin: shape (3,), nm.
        vectors: vectors of the region that the grid divides, shape (3, 3), nm, one per row: the
            mean box vectors if the grid covers the periodic cell.
        frames: number of frames that ``values`` are a mean of.
    """

    values: np.ndarray
    origin: np.ndarray
    vectors: np.ndarray
    frames: int

    def __repr__(self) -> str:
        counts = " x ".join(map(str, self.values.shape))
        return f"PotentialMap({counts} points, mean of {self.frames} frames)"

    @property
    def steps(self) -> np.ndarray:
        """Vectors from point to point along the three axes, shape (3, 3), nm."""
        return self.vectors / np.array(self.values.shape)[:, None]

    @property
    def points(self) -> np.ndarray:
        """The points, shape (nx, ny, nz, 3), nm."""
        return self.origin + grid_fractions(self.values.shape) @ self.vectors

    def profile(self, axis: str = "z") -> tuple[np.ndarray, np.ndarray]:
        """Average over the planes of the grid perpendicular to an axis.

        Args:
            axis: "x", "y" or "z", for the planes of points with the same first, second or third
                index. In a skewed cell these are the planes of two of the vectors.

        Returns:
            Positions of the planes along their normal, shape (k,), nm; means, shape (k,), kJ/mol/e.
        """
        number = AXES.index(check_choice(axis, AXES, "axis"))
        others = [index for index in range(3) if index != number]
        normal = np.cross(*self.vectors[others])
        normal *= np.sign(normal @ self.vectors[number]) / np.linalg.norm(normal)
        step = self.steps[number] @ normal
        places = self.origin @ normal + step * np.arange(self.values.shape[number])
        return places, self.values.mean(tuple(others))

    def save(
        self,
        path: str | os.PathLike,
        *,
        units: str = "kJ/mol/e",
        temperature: float = 300.0,
        atoms: "tuple[Sequence[int], ArrayLike] | None" = None,
    ) -> None:
        """Write the map to a file. The suffix determines the format.

        ``.dx``: OpenDX, lengths in Angstrom. ``.cube`` or ``.cub``: Gaussian cube, lengths in Bohr
        and values in Hartree/e, which the format prescribes. ``.npz``: the arrays ``values``,
        ``origin`` and ``vectors``, and ``frames``, as they are here.

        Args:
            path: file to write; an existing file is replaced.
            units: unit of the values in an OpenDX file: "kJ/mol/e", "kT/e" (as in APBS) or "V".
            temperature: temperature for "kT/e", K.
            atoms: atomic numbers, shape (n,), and positions, shape (n, 3), nm, for a cube file,
                which is written without atoms otherwise.

        Raises:
            ValueError: an argument is invalid; the message names it.
        """
        file, kind = Path(path), Path(path).suffix.lower()
        check_choice(units, tuple(UNITS), "units")
        temperature = check_number(temperature, "temperature", *TEMPERATURES, "kelvin")
        if units != "kJ/mol/e" and kind != ".dx":
            raise ValueError(f"`units` must be 'kJ/mol/e' with {kind} files, got {units!r}")
        title = f"electrostatic potential, {units}, mean of {self.frames} frames"
        if kind == ".dx":
            values = self.values / UNITS[units](temperature)
            write_dx(file, values, self.origin / ANGSTROM, self.steps / ANGSTROM, title)
        elif kind in (".cube", ".cub"):
            numbers, places = atoms or ((), np.zeros((0, 3)))
            places = check_numbers(places, "nanometer", "atoms").reshape(-1, 3)
            placed = [int(z) for z in numbers], places / BOHR
            title = title.replace(units, "Hartree/e")
            write_cube(
                file, self.values / HARTREE, self.origin / BOHR, self.steps / BOHR, placed, title
            )
        elif kind == ".npz":
            np.savez(file, **vars(self))
        else:
            raise ValueError(f"`path` must end in .dx, .cube, .cub or .npz, got {path}")


@dataclass(frozen=True)
class _Grid:
    """Points that fill a region.

    Attributes:
        counts: numbers of points along the vectors.
        origin: shape (3,), nm.
        vectors: vectors of the region, shape (3, 3), nm.
        follows: which of them are box vectors, whose place those of a frame take, shape (3,).
    """

    counts: tuple[int, ...]
    origin: np.ndarray
    vectors: np.ndarray
    follows: tuple[bool, bool, bool]

    def region(self, box_vectors) -> np.ndarray:
        """The vectors of the region in a frame, shape (3, 3), nm."""
        if box_vectors is None or not any(self.follows):
            return self.vectors
        box = check_numbers(box_vectors, "nanometer", "box_vectors")
        return np.where(np.array(self.follows)[:, None], box, self.vectors)


def potential_map(
    frames: Any,
    solver_or_system: Given,
    spacing: float = 0.1,
    executor: "Executor | None" = None,
    progress: bool = True,
    *,
    origin: "ArrayLike | None" = None,
    vectors: "ArrayLike | None" = None,
    margin: float = 0.5,
    charge_width: float = 0.0,
    threads: int | None = None,
) -> PotentialMap:
    r"""The potential of all charges and their images on a grid, averaged over a trajectory.

    .. math:: \phi(x) = k_e \sum_i \sum_{n} \frac{q_i}{|x - x_i - n|}

    The sum is that of :class:`fmm_openmm.CoulombSolver` without exclusions: with periodic boundary
    conditions its mean over the cell is zero. The potential diverges at point charges. If
    ``charge_width`` replaces each charge by a Gaussian, :math:`1 / r` becomes
    :math:`\operatorname{erf}(r / \sqrt 2 w) / r`.

    The grid covers the periodic cell. If the cell changes between frames, its points move
    with it, and values at the same fractional coordinates are averaged. In free space, and across
    the periodic vectors of a slab or wire, the grid covers the particles of the first frame and a
    margin around them. The particles of a slab or wire are placed as by
    :func:`fmm_openmm.analyse`.

    Args:
        frames, solver_or_system, executor, progress, threads: as in :func:`fmm_openmm.analyse`.
        spacing: largest distance between neighbouring points along the axes, nm.
        origin: origin of the grid, shape (3,), nm; by default that of the coordinates, except along
            directions without images, where it is ``margin`` below the lowest particle.
        vectors: edges of a region to cover in place of the cell, shape (3, 3), nm. The region is
            the same in all frames.
        margin: distance of the faces of the grid from the particles of the first frame along
            directions without images, nm.
        charge_width: standard deviation w of the Gaussian charges, nm; 0 for point charges. With
            ``spacing`` or more, averages of the map are those of the potential. The mean over a
            periodic cell of volume V with the net charge Q is then :math:`-2 \pi k_e w^2 Q / V`.
            In single precision values at 0.001 nm from a charge of water have errors of a few
            kJ/mol/e, which grow with the inverse square of the distance.

    Raises:
        ValueError, TypeError, UnsupportedError, AnalysisError: as :func:`fmm_openmm.analyse`; the
            arrays of an AnalysisError are ``values``, ``origin`` and ``vectors``.
        ValueError: there are no frames, or a point lies on a charge.
    """
    spacing = check_number(spacing, "spacing", *SPACINGS, "nanometer")
    charge_width = check_number(charge_width, "charge_width", *WIDTHS, "nanometer")
    margin = check_number(margin, "margin", *MARGINS, "nanometer")
    work = FrameTasks(frames, solver_or_system, executor, progress, threads)
    if work.first is None:
        work.check({})
        raise ValueError("`frames` must have at least one frame")
    grid = _grid(work.solver, work.first, spacing, origin, vectors, margin)
    total, region = np.zeros(grid.counts), np.zeros((3, 3))
    for _, (values, covered) in work.results(partial(potentials_on_grid, grid, charge_width)):
        total += values
        region += covered
    count = max(1, len(work.done))
    found = PotentialMap(total / count, grid.origin, region / count, len(work.done))
    work.check({name: getattr(found, name) for name in ("values", "origin", "vectors")})
    return found


def potentials_on_grid(
    grid: _Grid, charge_width: float, solver: FrameSolver, positions, box_vectors
) -> tuple[np.ndarray, np.ndarray]:
    """The potentials of a frame, shape (nx, ny, nz), kJ/mol/e, and the vectors of the region."""
    region = grid.region(box_vectors)
    points = (grid.origin + grid_fractions(grid.counts) @ region).reshape(-1, 3)
    values = np.array(solver.compute(positions, box_vectors, points=points).point_potentials)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(
            f"`origin`: the grid point at {points[bad[0]].round(4).tolist()} nm lies on a charge"
        )
    if charge_width:
        x = check_positions(positions, len(solver.charges))
        cell = solver.cell(box_vectors)
        values -= excess_of_points(points, x, solver.charges, cell, charge_width)
    return values.reshape(grid.counts), region


def grid_fractions(counts: Sequence[int]) -> np.ndarray:
    """Fractional coordinates of the points of a grid, shape (nx, ny, nz, 3)."""
    axes = [np.arange(count) / count for count in counts]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1)


def _grid(solver, first, spacing: float, origin, vectors, margin: float) -> _Grid:
    """The grid over the given region, else over the cell and, along directions without images, the
    particles of the first frame."""
    follows, lowest = PERIODIC, np.zeros(3)
    if vectors is not None:
        follows, vectors = OPEN, check_numbers(vectors, "nanometer", "vectors")
        if vectors.shape != (3, 3) or not abs(np.linalg.det(vectors)) > 0:
            raise ValueError(f"`vectors` must be three independent rows, got {vectors.tolist()}")
    elif isinstance(solver, CoulombSolver):
        boundary = Boundary.from_name(solver.boundary)
        vectors, lowest = _covered(boundary, solver, first, margin)
        follows = boundary.periodic
    elif first.box_vectors is not None:
        vectors = reduce_box(first.box_vectors, Boundary())
    else:
        raise ValueError("`vectors` must be given for frames without box vectors")
    origin = lowest if origin is None else check_numbers(origin, "nanometer", "origin")
    if origin.shape != (3,):
        raise ValueError(f"`origin` must have shape (3,), got {origin.shape}")
    lengths = np.linalg.norm(vectors, axis=1)
    counts = np.maximum(1, np.ceil(lengths / spacing - 1e-9)).astype(int)
    return _Grid(tuple(counts.tolist()), origin, vectors, follows)


def _covered(
    boundary: Boundary, solver: CoulombSolver, first: Frame, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors, shape (3, 3), nm, and lowest corner, shape (3,), nm, of a region: the box vectors
    and, perpendicular to those with images, the extent of the particles of the first frame."""
    vectors, periodic = np.eye(3), np.array(boundary.periodic)
    if not boundary.is_open:
        box = solver.box_vectors if first.box_vectors is None else first.box_vectors
        vectors = reduce_box(box, boundary)
    if boundary.fills_space:
        return vectors, np.zeros(3)
    arrays = first.positions, first.box_vectors
    placement = FramePlacement.from_first(boundary, *arrays, solver.neutralization)
    placed, _ = placement.place(*arrays)
    positions = check_positions(to_host(placed), len(solver.charges))
    directions = np.eye(3) if boundary.is_open else free_directions(vectors, periodic)
    along = positions @ directions.T
    low, high = along.min(0) - margin, along.max(0) + margin
    vectors[~periodic] = (high - low)[:, None] * directions
    return vectors, low @ directions
