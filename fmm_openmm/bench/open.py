"""Water droplets: direct sum, treecode and FMM in free space, and FMM in a nearly empty periodic
cell."""

import warnings
from collections.abc import Iterator

import numpy as np

from fmm_openmm.bench.scaling import EDGE
from fmm_openmm.bench.solver import Evaluation, relative_error
from fmm_openmm.bench.systems import DENSITY, SITES, in_cell, tiled_charges, water
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.implementations import METHODS
from fmm_openmm.oracle import direct_sum, ewald_sum

SIZES = (1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7)

PATIENCE = 0.3
"""Time of a direct sum, s, above which it is not measured for larger droplets."""

LINEAR = tuple(method for method in METHODS if method != "direct")
"""Methods that are measured for all droplets."""


def droplet(atoms: float) -> ChargeSystem:
    """The whole molecules nearest to the centre of a box of water, about ``atoms`` particles."""
    base = water(EDGE)
    diameter = np.cbrt(6 * atoms / (np.pi * DENSITY)) + 0.5
    box = tiled_charges(base.charges, 3 * (int(np.ceil(diameter / EDGE)),))
    x, _ = in_cell(box)
    molecules = round(atoms / SITES)
    first = SITES * np.sort(np.argsort(np.linalg.norm(x[::SITES] - x.mean(0), axis=1))[:molecules])
    chosen = (first[:, None] + np.arange(SITES)).ravel()
    new = np.full(len(box), -1)
    new[chosen] = np.arange(len(chosen))
    exclusions = new[box.exclusions]
    return ChargeSystem(box.charges[chosen], x[chosen], None, exclusions[(exclusions >= 0).all(1)])


def measure(most: float, tolerance: float, backend: str = "auto") -> Iterator[dict]:
    """One row for each size, up to ``most`` atoms, and method: atoms, method, seconds, force error
    against the direct sum in float64 (None where that would take too long), parameters.

    Ends early if memory does not suffice; the last row then holds the reason, ``stopped``.
    """
    quadratic = True  # whether the direct sum is still worth its time
    for size in SIZES:
        if size > 1.001 * most:
            return
        try:
            for row in rows_of(droplet(size), METHODS if quadratic else LINEAR, tolerance, backend):
                if row["method"] == "direct":
                    quadratic = row["seconds"] <= PATIENCE
                yield row
        except MemoryError as error:  # also CuPy's
            yield {"atoms": SITES * round(size / SITES), "stopped": f"out of memory: {error}"}
            return


def rows_of(charges: ChargeSystem, methods, tolerance: float, backend: str) -> Iterator[dict]:
    """Rows of one size; with force errors if "direct" is one of the methods."""
    exact = (
        Evaluation(charges, backend=backend, method="direct", precision="double").forces
        if "direct" in methods
        else None
    )
    for method in methods:
        with warnings.catch_warnings():  # the treecode is deprecated but for this comparison
            warnings.simplefilter("ignore", DeprecationWarning)
            evaluation = Evaluation(charges, backend=backend, method=method, tolerance=tolerance)
        yield {
            "atoms": len(charges),
            "method": method,
            "seconds": evaluation.seconds(),
            "force_error": None if exact is None else relative_error(evaluation.forces, exact),
            "parameters": describe(evaluation.solver.parameters),
        }


def measure_cell(
    atoms: float, edge: float, tolerance: float, backend: str = "auto"
) -> Iterator[dict]:
    """One row each for a filled cube, a droplet in free space, and the droplet in a periodic cube.

    A row holds system, atoms, seconds (on a GPU of the graph alone), call_seconds, force error and
    parameters.

    Args:
        atoms: number of atoms.
        edge: edge of the periodic cube around the droplet, nm.
        tolerance, backend: tolerance and backend of the solver.
    """
    cube, charges = water(round(np.cbrt(atoms / DENSITY), 1)), droplet(atoms)
    place = edge * np.eye(3)
    cell = ChargeSystem(charges.charges, charges.positions, place, charges.exclusions)
    images = ewald_sum(charges.positions, charges.charges, place, charges.exclusions).forces
    alone = direct_sum(charges.positions, charges.charges, charges.exclusions).forces
    for name, system, exact in (
        ("filled cube", cube.charges, cube.exact),
        ("droplet in free space", charges, alone),
        (f"droplet in a cube of {edge:g} nm", cell, images),
    ):
        evaluation = Evaluation(
            system, backend=backend, tolerance=tolerance, positions=system.positions
        )
        yield {
            "system": name,
            "atoms": len(system),
            "seconds": evaluation.graph_seconds(),
            "call_seconds": evaluation.call_seconds(),
            "force_error": relative_error(evaluation.forces, exact),
            "parameters": describe(evaluation.solver.parameters),
        }


def describe(parameters) -> str:
    """Summary of the parameters in a few words."""
    if hasattr(parameters, "theta"):
        return (
            ""
            if parameters.theta is None
            else f"order {parameters.order}, theta {parameters.theta:g}"
        )
    return (
        f"order {parameters.order}, radius {parameters.near_radius:g}, "
        f"{np.diag(parameters.grid).tolist()}"
    )


def crossover(rows: list[dict], faster: str, slower: str) -> float | None:
    """Number of atoms above which a method is faster than another, interpolated logarithmically;
    None if there is no such number."""
    times = {
        method: {row["atoms"]: row["seconds"] for row in rows if row["method"] == method}
        for method in (faster, slower)
    }
    atoms = np.array(sorted(times[faster].keys() & times[slower].keys()), float)
    if len(atoms) < 2:
        return None
    ratio = np.log([times[faster][n] / times[slower][n] for n in atoms])
    ahead = np.flatnonzero(ratio < 0)
    if len(ahead) == 0:
        return None
    k = ahead[0]
    if k == 0:
        return float(atoms[0])
    return float(np.exp(np.interp(0.0, [ratio[k], ratio[k - 1]], np.log([atoms[k], atoms[k - 1]]))))
