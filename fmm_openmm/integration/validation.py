"""``validate``: FMM and OpenMM's PME against a converged sum over the charges of a
System.

In free space there is no PME: FMM alone against the sum over all pairs, OpenMM's NoCutoff or this
package's own.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import openmm

from fmm_openmm.boundary import OPEN, PERIODIC, Boundary
from fmm_openmm.checks import check_choice, check_positions
from fmm_openmm.convert.nonbonded import nonbonded_forces
from fmm_openmm.convert.openmm_system import (
    default_box,
    defaults_in,
    nonbonded_force,
    system_of_charges,
)
from fmm_openmm.dipole_term import DipoleTerm
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.integration.conversion.original import Original
from fmm_openmm.integration.definition import Definition
from fmm_openmm.integration.force import FMMForce, find_fmm
from fmm_openmm.integration.guard.edits import check_system, converted_force
from fmm_openmm.integration.report import Comparison, ValidationReport
from fmm_openmm.integration.slab_pme import vacuum_cell
from fmm_openmm.neutralization import Neutralization
from fmm_openmm.options import suggests_keywords
from fmm_openmm.oracle import ORACLES
from fmm_openmm.planning.request import SolverKeywords, SolverOptions
from fmm_openmm.progress import show_progress
from fmm_openmm.units import COULOMB_CONSTANT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

SLAB = Boundary.from_name("slab")

OPENMM = {Boundary(PERIODIC): "pme", SLAB: "pme", Boundary(OPEN): "nocutoff"}
"""References computed by OpenMM, by boundary."""

REFERENCES = {
    boundary: (oracle.name, *([OPENMM[boundary]] if boundary in OPENMM else []))
    for boundary, oracle in ORACLES.items()
}
"""Names of references by boundary, the default first."""

REFERENCE_NAMES = tuple(dict.fromkeys(name for names in REFERENCES.values() for name in names))
"""Names of the references of all boundaries."""

CONVERGED = 1e-7
"""``ewaldErrorTolerance`` of PME as the reference, whose relative force error then is a few
1e-6."""

LEAST_TOLERANCE = 5e-6
"""Tolerance below which that error decides the verdict."""

CONVERGED_CUTOFFS = (1.4, 2.0, 3.0)
"""Cutoffs of PME as the reference, nm: the first one that fits the box and whose grid is not too
large."""

LARGEST_GRID = 2**28
"""Largest number of points of PME's grid on the Reference platform, 16 bytes each, which takes a
minute. From ``2**31`` points on the platform crashes."""

WIDEST_CUTOFF = 0.45
"""Largest ratio of the cutoff to the smallest box width; at ratios closer to one half PME's pair
list loses pairs in skewed cells."""

WIDEST_CUTOFF_TILTED = 0.33
"""The same for a cell that is not rectangular, in which the Reference platform of OpenMM 8.6 loses
pairs if fewer than three cutoffs fit along z: an error of 4e-3 of the forces in a rhombic
dodecahedron of 3 nm with a cutoff of 0.9 nm."""

CANCELLED = 0.1
"""Smallest RMS force that errors are relative to, in units of the force between two RMS charges at
the mean distance of particles. The exact forces of a perfect crystal or a single ion are zero."""


@suggests_keywords(like=SolverOptions)
def validate(
    system: openmm.System,
    positions: "ArrayLike",
    reference: str | None = None,
    *,
    tolerance: float | None = None,
    boundary: str | None = None,
    precision: str | None = None,
    backend: str | None = None,
    slab_correction: bool | None = None,
    surface_dielectric: float | None = None,
    neutralization: "ArrayLike | None" = None,
    progress: bool = False,
    **options: "Unpack[SolverKeywords]",
) -> ValidationReport:
    """Compare FMM, computed by a :class:`fmm_openmm.CoulombSolver`, and PME with a converged sum.

    Charges and boundary are those of the System's FMMForce, or else of its NonbondedForce, with
    parameter offsets at their defaults. The box is the System's default. The System is not changed.

    Args:
        system: with a NonbondedForce, or converted by :func:`fmm_openmm.use_fmm`.
        positions: shape (n, 3), nm. Molecules must be whole: PME's energy of an exception across
            the box face depends on its splitting parameter.
        reference: with periodic boundary conditions "ewald" (the default), an Ewald sum converged
            to rounding (less than half a minute for 50,000 particles on two cores), or "pme", the
            Reference platform's PME at a tight tolerance, unless its grid would be too large. PME
            of a slab is that of a box with vacuum of 2.5 times its longest period, corrected after
            Yeh and Berkowitz; a wire has no PME. Without periodic boundary conditions "direct" (the
            default), the sum over all pairs, or "nocutoff", the same by the Reference platform.
        tolerance: largest relative RMS force error. If neither this nor any of the following
            options but ``boundary`` is given, the options of the System's FMMForce are used;
            otherwise options that are not given have the defaults of :class:`fmm_openmm.FMMForce`.
        boundary: along which box vectors the charges have images, as in
            :class:`fmm_openmm.FMMForce`; None for that of the System.
        precision: "single", "double" or "auto".
        backend: "auto", "cuda", "cpu" or "reference".
        slab_correction, surface_dielectric, neutralization: the dipole term of FMM, PME and the
            converged sum, or what neutralises the charges there, as in
            :class:`fmm_openmm.FMMForce`; None for that of the System.
        progress: show on stderr, in a terminal or a notebook, what is computed now.
        options: options of the expansion.

    Raises:
        ValueError, TypeError: an argument is invalid.
        UnsupportedError: the System has no single force with charges,
            :func:`fmm_openmm.check_system` refuses it, or the box is too large for the reference
            "pme".

    Warns:
        UserWarning: the reference "pme" is not accurate enough for the tolerance.
    """
    if not isinstance(system, openmm.System):
        raise TypeError(f"`system` must be an openmm.System, got {type(system).__name__}")
    check_choice(reference, (None, *REFERENCE_NAMES), "reference")
    definition, nonbonded = electrostatics(system)
    structure = definition.structure.with_boundary(boundary)
    references = REFERENCES[structure.boundary]
    reference = reference or references[0]
    if reference not in references:
        raise ValueError(
            f"`reference` must be {' or '.join(map(repr, references))} with the "
            f"{structure.boundary.name} boundary of this System, got {reference!r}"
        )
    named: dict[str, Any] = {"tolerance": tolerance, "precision": precision, "backend": backend}
    named |= {"slab_correction": slab_correction, "surface_dielectric": surface_dielectric}
    named |= {"neutralization": neutralization}
    given: dict[str, Any] = {**named, **options}
    given = {name: value for name, value in given.items() if value is not None}
    chosen = definition.options.replaced_by(given)
    slab, neutralizer = structure.boundary == SLAB, chosen.neutralizer(structure.boundary)
    term = chosen.term(structure.boundary)
    terms: Any = (term,) if term is not None else ()
    charges, cell = charges_and_cell(system, definition)
    positions = check_positions(positions, structure.particles)
    if cell is not None:
        positions = structure.unwrapped(positions, cell, neutralizer)
    pme_cell: Any = cell
    if slab:
        pme_cell = vacuum_cell(positions, pme_cell)
    pme_terms = (DipoleTerm(slab_correction=True), *terms) if slab else terms
    if reference == "pme" and reference_cutoff(pme_cell) is None:
        widths = " x ".join(f"{width:g}" for width in np.diag(pme_cell))
        raise UnsupportedError(
            f"`reference='pme'` would need a grid of more than {LARGEST_GRID:,} points in this "
            f"box, {widths} nm: take 'ewald'"
        )
    if reference == "pme" and chosen.tolerance < LEAST_TOLERANCE:
        warn(
            "PME as the reference has a relative force error of a few 1e-6 itself, which the "
            f"tolerance of {chosen.tolerance:g} does not allow for: take 'ewald'"
        )
    pme, least = None, 0.0
    with show_progress("FMM", shown=progress) as advance:
        solver = structure.solver(chosen, charges, cell, positions)
        fmm = solver.compute(positions)
        advance(description=f"reference, {reference}")
        used = (pme_cell, pme_terms) if reference == "pme" else (cell, terms)
        name, exact = _reference(reference, charges, structure, positions, *used)
        if "pme" in references:
            advance(description="PME")
            pme = _pme(charges, structure, positions, pme_cell, nonbonded, pme_terms)
            distance = np.cbrt(np.prod(np.diag(pme_cell)) / len(charges))
            least = CANCELLED * COULOMB_CONSTANT * np.mean(charges**2) / distance**2
    return ValidationReport(
        particles=structure.particles,
        tolerance=chosen.tolerance,
        parameters=solver.parameters,  # type: ignore[arg-type]
        reference=name,
        reference_energy=float(exact[0]),
        fmm=Comparison.from_results(
            f"FMM {chosen.tolerance:g}", (fmm.energy, fmm.forces), exact, least
        ),
        pme=Comparison.from_results(*pme, exact, least) if isinstance(pme, tuple) else None,  # type: ignore[call-arg]
        backend=solver.backend,
        pme_left_out=pme if isinstance(pme, str) else None,
        error_norm=chosen.error_norm,
    )


def _reference(reference: str, charges, structure, positions, cell, terms) -> tuple[str, tuple]:
    """Name of the converged sum, and its energy and forces, with the terms."""
    oracle = ORACLES[structure.boundary]
    if reference == oracle.name:
        cell = structure.boundary.cell(cell)
        result = oracle.sum(positions, charges, cell, structure.exclusions, structure.periodic)
        for term in terms:
            result = term.at(positions, cell).add(result, charges)
        return oracle.title, (result.energy, result.forces)
    if reference == "pme":
        vacuum = ", with vacuum" if structure.boundary == SLAB else ""
        return f"PME at {CONVERGED:g} in double precision{vacuum}", _by_openmm(
            charges,
            structure,
            positions,
            cell,
            reference_cutoff(cell),  # type: ignore[arg-type]
            CONVERGED,
            terms=terms,
        )
    return "NoCutoff in double precision", _by_openmm(charges, structure, positions)


def _pme(charges, structure, positions, cell, nonbonded, terms) -> tuple | str:
    """Name of PME, and its energy and forces; or the reason why it is omitted."""
    tolerance, parameters = nonbonded.getEwaldErrorTolerance(), nonbonded.getPMEParameters()
    if structure.boundary == SLAB:  # in another box than these are set for
        parameters = openmm.NonbondedForce().getPMEParameters()
    cutoff = min(nonbonded.getCutoffDistance()._value, _widest_cutoff(cell))
    as_set = parameters[0]._value != 0  # else the tolerance decides
    points = (
        np.prod(parameters[1:], dtype=float) if as_set else grid_points(cell, cutoff, tolerance)
    )
    if points > LARGEST_GRID:
        return (
            f"left out, as it would need a grid of {points:.2g} points, more than {LARGEST_GRID:,}"
        )
    found = _by_openmm(charges, structure, positions, cell, cutoff, tolerance, parameters, terms)
    vacuum = ", vacuum" if structure.boundary == SLAB else ""
    return "PME as set" if as_set else f"PME {tolerance:g}{vacuum}", found


def reference_cutoff(cell: np.ndarray) -> float | None:
    """Cutoff of PME as the reference, nm, in a cell, shape (3, 3), nm; None if the grid of PME
    would be too large."""
    for cutoff in CONVERGED_CUTOFFS:
        cutoff = min(cutoff, _widest_cutoff(cell))
        if grid_points(cell, cutoff, CONVERGED) <= LARGEST_GRID:
            return cutoff
    return None


def grid_points(cell: np.ndarray, cutoff: float, tolerance: float) -> float:
    """Number of points of PME's grid on OpenMM's Reference platform, from the User Guide:
    ``2 alpha d / (3 tolerance^(1/5))`` along an edge of length d, with
    ``alpha = sqrt(-log(2 tolerance)) / cutoff``."""
    alpha = np.sqrt(max(-np.log(2.0 * tolerance), 0.0)) / cutoff
    return float(np.prod(np.ceil(2.0 * alpha * np.diag(cell) / (3.0 * tolerance**0.2)).clip(6)))


def _widest_cutoff(cell: np.ndarray) -> float:
    tilted = np.tril(cell, -1).any()
    return (WIDEST_CUTOFF_TILTED if tilted else WIDEST_CUTOFF) * np.diag(cell).min()


def electrostatics(system: openmm.System) -> tuple[Definition, openmm.NonbondedForce]:
    """The definition of charges and exclusions, and the NonbondedForce with the settings of PME,
    which is a new one if the System has none."""
    converted = find_fmm(system)
    if not converted:
        nonbonded = nonbonded_force(system)
        return FMMForce.from_nonbonded(nonbonded)._definition, nonbonded
    if len(converted) > 1:
        raise UnsupportedError(
            f"`system` must hold one FMMForce to read charges from, it holds {len(converted)}"
        )
    check_system(system)
    definition = converted[0]._definition
    if definition.original is not None:
        nonbonded = converted_force(system, Original.unpack(definition.original))
    else:
        nonbonded = next(iter(nonbonded_forces(system)), None)
    return definition, openmm.NonbondedForce() if nonbonded is None else nonbonded


def charges_and_cell(
    system: openmm.System, definition: Definition
) -> tuple[np.ndarray, np.ndarray | None]:
    """Charges, shape (n,), e, at the defaults of the global parameters, and the default cell of a
    System, shape (3, 3), nm; None in free space."""
    charges = definition.parameters.charges(defaults_in(system))
    return charges, definition.structure.cell(default_box(system))


def _by_openmm(
    charges,
    structure,
    positions,
    cell=None,
    cutoff: float = 1.0,
    tolerance: float = CONVERGED,
    pme_parameters=(0, 0, 0, 0),
    terms: Sequence[DipoleTerm | Neutralization] = (),
) -> tuple[float, np.ndarray]:
    """Energy, kJ/mol, and forces, shape (n, 3), kJ/mol/nm, of the charges on the Reference
    platform, in float64: by PME, with the terms, or by NoCutoff without a cell.

    Virtual sites are treated as ordinary particles, which keep their forces.
    """
    system, force = system_of_charges(charges, structure.exclusions, structure.periodic, cell)
    if cell is not None:
        force.setCutoffDistance(cutoff)
        force.setEwaldErrorTolerance(tolerance)
        force.setPMEParameters(*pme_parameters)
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(positions)
    state = context.getState(energy=True, forces=True)
    energy, forces = state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value
    for term in terms:
        added, _, fields = term.at(positions, cell).evaluate(charges)
        energy, forces = energy + float(added), forces + charges[:, None] * fields
    return energy, forces
