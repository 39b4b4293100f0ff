"""Random systems that are hard for float32 or for a grid of boxes, each against an Ewald sum."""

import itertools
import warnings
from dataclasses import dataclass

import numpy as np

import fmm_openmm as fmm
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT

TOLERANCES = (5e-4, 1e-4, 1e-5, 1e-6, 1e-8)

MISSED = 1.5
"""Error over tolerance that counts as a miss: of few charges the error is one of a distribution."""

MOST = 120
"""Charges of a system, at most."""


@dataclass(frozen=True, eq=False)
class System:
    """Charges in a cell.

    Attributes:
        positions: shape (n, 3), nm.
        charges: shape (n,), e.
        cell: vectors in rows, shape (3, 3), nm.
        exclusions: pairs, shape (m, 2), or None.
    """

    positions: np.ndarray
    charges: np.ndarray
    cell: np.ndarray
    exclusions: np.ndarray | None = None

    @property
    def spacing(self) -> float:
        """Distance of neighbours, nm."""
        return (abs(np.linalg.det(self.cell)) / len(self.charges)) ** (1 / 3)

    def force_scale(self, exact: np.ndarray) -> float:
        """Norm of forces that errors are relative to: those of molecules relative to a hundredth of
        what neighbours exert, at least."""
        q = self.charges
        neighbours = COULOMB_CONSTANT * np.mean(q * q) / self.spacing**2 * np.sqrt(len(q))
        return max(np.linalg.norm(exact), 0.0 if self.exclusions is None else 0.01 * neighbours)


def random_cell(rng, edge: float) -> np.ndarray:
    """Cubic, rectangular or skewed, with edges of up to e times this, nm."""
    shape = rng.integers(3)
    edges = edge * (np.ones(3) if shape == 0 else np.exp(rng.uniform(-1, 1, 3)))
    cell = np.diag(edges)
    if shape == 2:
        tilt = rng.uniform(-0.5, 0.5, 3)
        cell[1, 0], cell[2, 0], cell[2, 1] = tilt * edges[[0, 0, 1]]
    return cell


def random_charges(rng, number: int) -> np.ndarray:
    """Charges of any size or of 1 e, neutral or not."""
    q = rng.normal(size=number) if rng.random() < 0.5 else rng.choice([-1.0, 1.0], number)
    return q - q.mean() if rng.random() < 0.7 else q


def lattice(number: int) -> np.ndarray:
    """The first points of a cube of a simple cubic lattice, shape (number, 3)."""
    edge = int(np.ceil(number ** (1 / 3)))
    return np.array(list(itertools.product(range(edge), repeat=3)), float)[:number]


def gas(rng, number, cell):
    return System(rng.random((number, 3)) @ cell, random_charges(rng, number), cell)


def cluster(rng, number, cell):
    """All charges within 1e-4 to 0.3 nm."""
    x = rng.random(3) @ cell + 10 ** rng.uniform(-4, -0.5) * rng.normal(size=(number, 3))
    return System(x, random_charges(rng, number), cell)


def cluster_beside_others(rng, number, cell):
    """Half of the charges, and others anywhere."""
    there, around = gas(rng, number, cell), cluster(rng, number, cell)
    x = np.where(np.arange(number)[:, None] % 2, there.positions, around.positions)
    return System(x, there.charges, cell)


def pairs(rng, number, cell):
    """Each charge has another 1e-4 to 0.1 nm away."""
    half = rng.random((number // 2 + 1, 3)) @ cell
    apart = 10 ** rng.uniform(-4, -1) * rng.normal(size=half.shape)
    return System(np.concatenate([half, half + apart])[:number], random_charges(rng, number), cell)


def droplet(rng, number, cell):
    x = rng.random(3) @ cell + 0.3 * lattice(number) + 0.05 * rng.normal(size=(number, 3))
    return System(x, random_charges(rng, number), cell)


def crystal(rng, number, cell):
    """Rock salt of a constant of 0.16 to 1 nm, displaced."""
    del number, cell
    x, constant = lattice(64), 10 ** rng.uniform(-0.8, 0)
    q = 1 - 2.0 * (x.sum(1) % 2)
    x = constant * (x + 10 ** rng.uniform(-2.5, -0.8) * rng.normal(size=x.shape))
    return System(x, q, 4 * constant * np.eye(3))


def layer(rng, number, cell):
    thickness = 10 ** rng.uniform(-3, -0.5)
    x = (rng.random((number, 3)) * [1, 1, thickness]) @ cell
    return System(x, random_charges(rng, number), cell)


def molecules(rng, number, cell):
    """Three charges each, far from each other, without interactions inside."""
    first = 3 * np.arange(number // 3 + 1)
    near = 0.1 * rng.normal(size=(len(first), 3, 3))
    near[:, 0] = 0
    x = ((rng.random((len(first), 3)) @ cell)[:, None] + near).reshape(-1, 3)
    inside = np.concatenate([first[:, None] + pair for pair in ([0, 1], [0, 2], [1, 2])])
    return System(x, np.tile([-0.8, 0.4, 0.4], len(first)), cell, inside)


def mixture(rng, number, cell):
    """Charges over four decades."""
    there = gas(rng, number, cell)
    q = there.charges * 10 ** rng.uniform(-2, 2, number)
    return System(there.positions, q - q.mean() * (rng.random() < 0.7), cell)


KINDS = {
    make.__name__: make
    for make in (
        gas,
        cluster,
        cluster_beside_others,
        pairs,
        droplet,
        crystal,
        layer,
        molecules,
        mixture,
    )
}


def system(kind: str, seed: int) -> System:
    """A system of a kind, always the same for a seed."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    edge = 10 ** rng.uniform(0.3, 1.0 if kind == "molecules" else 2.5)
    return KINDS[kind](rng, int(rng.integers(2, MOST)), random_cell(rng, edge))


@dataclass(frozen=True)
class Verdict:
    """What a solver with default options did.

    Attributes:
        outcome: "kept", "warned" (refused, or warned of its precision) or "missed".
        ratio: relative RMS force error over the tolerance; infinite if it was refused.
    """

    outcome: str
    ratio: float


def judge(system: System, tolerance: float, backend: str = "cpu") -> Verdict:
    """Whether the forces keep a tolerance."""
    x, q, cell = system.positions, system.charges, system.cell
    exact = ewald_sum(x, q, cell, system.exclusions).forces
    scale = system.force_scale(exact)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            solver = fmm.CoulombSolver(
                q, cell, exclusions=system.exclusions, tolerance=tolerance, backend=backend
            )
            forces = solver.compute(x).forces
        except (ValueError, fmm.UnsupportedError):
            return Verdict("warned", np.inf)
    ratio = float(np.linalg.norm(forces - exact) / (scale or 1.0) / tolerance)
    if ratio <= MISSED:
        return Verdict("kept", ratio)
    return Verdict("warned" if has_warning(caught) else "missed", ratio)


def has_warning(caught: list) -> bool:
    """Whether precision is the subject of a warning."""
    return any("single precision" in str(each.message) for each in caught)
