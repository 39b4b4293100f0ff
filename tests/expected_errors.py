"""Print the table of expected errors of ``docs/explanation/accuracy.md``:
``python -m tests.expected_errors [NAME ...]``.

Expected over measured errors after an evaluation, RMS and largest, and what ``measure_errors``
returns over measured errors, for the test set, the boxes that OpenMM ships, thermal crystals and
random systems, at three tolerances, against an Ewald sum. Errors below ``NOTHING`` of the tolerance
are left out, and errors below ``EXACT``.
"""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openmm
from openmm import app, unit

from fmm_openmm import CoulombSolver
from fmm_openmm.oracle import ewald_sum
from tests import hostile_systems as hostile
from tests.crystals import CRYSTALS
from tests.systems import SYSTEMS, Built, build, charge_arrays

TOLERANCES = (5e-4, 1e-5, 1e-7)

NOTHING = 0.003
"""Measured error over tolerance below which an estimate does not matter."""

EXACT = 1e-9
"""Error that the Ewald sum itself may have: it wraps charges into the cell, which rounds distances
in a cluster."""

SHIPPED = {
    "spce": ("spce", ["spce.xml"]),
    "tip3p": ("tip3p", ["tip3p.xml"]),
    "tip4pew": ("tip4pew", ["tip4pew.xml"]),
    "tip5p": ("tip5p", ["tip5p.xml"]),
    "swm4ndp": ("swm4ndp", ["swm4ndp.xml"]),
    "opc": ("tip3p", ["opc.xml"]),
    "POPC": ("POPC", ["amber14/lipid17.xml", "amber14/tip3p.xml"]),
}
"""Name -> file of the box in ``openmm/app/data`` and its force field."""

AMPLITUDES = (0.014, 0.07)
"""RMS displacements in thermal crystals, in distances of nearest neighbours."""

SEEDS = range(12)


@dataclass(frozen=True, eq=False)
class Case:
    """Arguments of a solver, and positions, shape (n, 3), nm."""

    charges: np.ndarray
    cell: np.ndarray
    exclusions: np.ndarray | None
    positions: np.ndarray


def of_system(built) -> Case:
    a = charge_arrays(built)
    return Case(a.charges, a.box_vectors, a.exclusions, a.positions)


def shipped(name: str) -> Case:
    """A box of ``openmm/app/data``."""
    file, fields = SHIPPED[name]
    pdb = app.PDBFile(str(Path(app.__file__).parent / "data" / f"{file}.pdb"))
    field, modeller = app.ForceField(*fields), app.Modeller(pdb.topology, pdb.positions)
    modeller.addExtraParticles(field)
    system = field.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.8 * unit.nanometer
    )
    platform = openmm.Platform.getPlatform("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(modeller.positions)
    context.computeVirtualSites()
    x = context.getState(positions=True).getPositions(asNumpy=True)._value
    cell = [vector._value for vector in system.getDefaultPeriodicBoxVectors()]
    return of_system(Built(name, system, np.array(x), np.array(cell), None))


def crystal(name: str, amplitude: float, seed: int = 5) -> Case:
    """About 600 ions, displaced at random."""
    found = CRYSTALS[name]
    found = found.supercell(*3 * [max(1, round(np.cbrt(600 / len(found.charges))))])
    noise = np.random.default_rng(seed).normal(size=found.positions.shape) / np.sqrt(3)
    x = found.positions + amplitude * found.distance * noise
    return Case(found.charges, found.box_vectors, None, x)


def random_case(kind: str, seed: int) -> Case:
    found = hostile.system(kind, seed)
    return Case(found.charges, found.cell, found.exclusions, found.positions)


def cases() -> Iterator[tuple[str, list]]:
    """Names of rows, and functions that make the cases of each."""
    for name in SYSTEMS:
        yield name, [lambda name=name: of_system(build(name))]
    for name in SHIPPED:
        yield f"{name}, shipped", [lambda name=name: shipped(name)]
    for amplitude in AMPLITUDES:
        yield (
            f"crystals, displaced by {amplitude:g}",
            [lambda name=name, a=amplitude: crystal(name, a) for name in CRYSTALS],
        )
    for kind in hostile.KINDS:
        yield (
            f"{kind}, at random",
            [lambda kind=kind, seed=seed: random_case(kind, seed) for seed in SEEDS],
        )


@dataclass(frozen=True)
class Errors:
    """Measured and expected errors, relative to the RMS force."""

    rms: float
    largest: float
    expected_rms: float
    expected_largest: float


def relative(forces: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """RMS and largest error of forces, shape (n, 3), relative to the RMS force."""
    errors = np.linalg.norm(forces - exact, axis=1) / np.sqrt((exact**2).sum(1).mean())
    return float(np.sqrt((errors**2).mean())), float(errors.max())


def solver_of(case: Case, tolerance: float, **options) -> CoulombSolver:
    """A solver for a case, which has evaluated nothing yet."""
    return CoulombSolver(
        case.charges,
        case.cell,
        case.exclusions,
        tolerance=tolerance,
        backend="cpu",
        positions=case.positions,
        **options,
    )


def errors(case: Case, tolerance: float, exact: np.ndarray, **options) -> Errors:
    """Errors of a solver after an evaluation, given the exact forces, shape (n, 3)."""
    solver = solver_of(case, tolerance, **options)
    found, p = relative(solver.compute(case.positions).forces, exact), solver.parameters
    return Errors(*found, p.expected_error, p.expected_largest_error)


def main() -> None:
    wanted = sys.argv[1:]
    print(
        "| systems | particles | error / tolerance | expected / measured "
        "| largest / tolerance | expected / measured "
        "| `measure_errors` / measured |\n|---|---|---|---|---|---|---|"
    )
    for row, makers in cases():
        if wanted and not any(name in row for name in wanted):
            continue
        found, ratios, sizes = [], [], []
        for make in makers:
            case = make()
            exact = ewald_sum(case.positions, case.charges, case.cell, case.exclusions).forces
            sizes.append(len(exact))
            for tolerance in TOLERANCES:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    each = errors(case, tolerance, exact)
                    own = solver_of(case, tolerance).measure_errors(case.positions)
                if each.rms > max(NOTHING * tolerance, EXACT):
                    found.append(
                        (
                            each.rms / tolerance,
                            each.expected_rms / each.rms,
                            each.largest / tolerance,
                            each.expected_largest / each.largest,
                        )
                    )
                    ratios += [own.rms / each.rms, own.largest / each.largest]
        columns = map(span_of, [*zip(*found, strict=True), ratios]) if found else 5 * [""]
        print(f"| {row} | {span_of(sizes, '.0f')} | {' | '.join(columns)} |", flush=True)


def span_of(values, form: str = ".2g") -> str:
    """Smallest, median and largest value; smallest and largest of three."""
    values = sorted(values)
    shown = (
        [values[0], values[len(values) // 2], values[-1]]
        if len(values) > 3
        else values[:: max(1, len(values) - 1)]
    )
    return " to ".join(dict.fromkeys(format(value, form) for value in shown))


if __name__ == "__main__":
    main()
