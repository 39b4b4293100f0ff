"""Compare FMM, and PME as the System sets it, with a converged sum.

Electrostatics alone, exceptions excluded. The reference is an Ewald sum, or,
in large systems, PME in double precision at a tight tolerance.
"""

from dataclasses import asdict, dataclass

import numpy as np
import openmm
from openmm import unit

from fmm_openmm import ChargeSystem, UnsupportedError
from fmm_openmm.cli import inputs
from fmm_openmm.cli.options import add_fmm_arguments, add_platform_argument, fmm_options, platform
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.convert.openmm_system import nonbonded_force
from fmm_openmm.oracle import ewald_sum

EWALD_LIMIT = 50_000
"""Particles up to which "auto" takes the Ewald sum: about half a minute."""

TIGHT = 1e-7
"""``ewaldErrorTolerance`` of PME as a reference."""


@dataclass
class Comparison:
    """One method beside the reference.

    Attributes:
        energy: kJ/mol.
        relative_energy_error: |U - U_ref| / |U_ref|.
        relative_rms_force_error: |F - F_ref| / |F_ref| over all particles.
        max_force_error: largest |F_i - F_ref,i|, kJ/mol/nm.
    """

    method: str
    energy: float
    relative_energy_error: float
    relative_rms_force_error: float
    max_force_error: float

    @classmethod
    def of(cls, method: str, energy: float, forces: np.ndarray, reference) -> "Comparison":
        """Compare with the pair ``reference`` of energy and forces (n, 3)."""
        exact_energy, exact_forces = reference
        errors, size = np.linalg.norm(forces - exact_forces, axis=1), np.linalg.norm(exact_forces)
        scale = abs(exact_energy) or 1.0
        return cls(
            method,
            energy,
            abs(energy - exact_energy) / scale,
            float(np.linalg.norm(errors) / (size or 1.0)),
            float(errors.max()),
        )


def add_arguments(parser) -> None:
    """FILE, the reference, the FMM options and the platform that computes PME."""
    inputs.add_arguments(parser)
    parser.add_argument("--reference", choices=("auto", "ewald", "pme"), default="auto")
    parser.add_argument("--pme-tolerance", type=float, help="ewaldErrorTolerance of PME (default: the System's)")
    add_platform_argument(parser)
    add_plot_argument(parser)
    add_fmm_arguments(parser)


def run(args, terminal) -> Outcome:
    """Read, compute three times, compare."""
    drawing = figure(args.plot)
    chosen = platform(args)
    with terminal.progress("reading") as advance:
        molecules = inputs.load(args)
        charges = ChargeSystem.from_openmm(molecules.system, molecules.positions)
        if charges.box_vectors is None:
            raise UnsupportedError("validate needs a periodic box: give one with --box")
        force = nonbonded_force(molecules.system)
        tolerance = force.getEwaldErrorTolerance() if args.pme_tolerance is None else args.pme_tolerance
        if not 0 < tolerance < 1:
            raise ValueError(f"--pme-tolerance must lie between 0 and 1, got {tolerance}")
        use_ewald = args.reference == "ewald" or (args.reference == "auto" and len(charges) <= EWALD_LIMIT)
        advance(description="FMM")
        solver = charges.solver(**fmm_options(args))
        fmm = solver.compute(charges.positions)
        advance(description="PME")
        pme = pme_of(charges, force.getCutoffDistance(), tolerance, chosen)
        advance(description="reference")
        if use_ewald:
            exact = ewald_sum(*_arrays(charges))
            reference = exact.energy, exact.forces
        else:
            reference = pme_of(charges, force.getCutoffDistance(), TIGHT, _reference_platform())
    rows = [
        Comparison.of(f"FMM {args.tolerance:g}", fmm.energy, fmm.forces, reference),
        Comparison.of(f"PME {tolerance:g}", *pme, reference),
    ]
    name = "Ewald" if use_ewald else f"PME {TIGHT:g}, double"
    terminal.table(
        ("method", "energy kJ/mol", "energy error", "RMS force error", "largest kJ/mol/nm"),
        [(name, f"{reference[0]:.6f}", "", "", "")]
        + [
            (
                row.method,
                f"{row.energy:.6f}",
                f"{row.relative_energy_error:.2e}",
                f"{row.relative_rms_force_error:.2e}",
                f"{row.max_force_error:.2e}",
            )
            for row in rows
        ],
        title=f"{len(charges)} particles, electrostatics alone; errors of energy and forces are relative",
    )
    passed = rows[0].relative_rms_force_error <= args.tolerance
    closer = min(rows, key=lambda row: row.relative_rms_force_error).method.split()[0]
    terminal.say(f"FMM {'meets' if passed else 'MISSES'} its tolerance; {closer} has the smaller force error")
    if drawing:
        draw(drawing, {rows[0].method: fmm.forces - reference[1], rows[1].method: pme[1] - reference[1]})
        drawing.savefig(args.plot)
    result = {
        "particles": len(charges),
        "reference": {"method": name, "energy": reference[0]},
        "fmm": {**asdict(rows[0]), "parameters": asdict(solver.parameters)},
        "pme": asdict(rows[1]),
        "tolerance": args.tolerance,
        "passed": passed,
    }
    return Outcome(result, passed)


def _arrays(charges: ChargeSystem):
    return charges.positions, charges.charges, charges.box_vectors, charges.exclusions, charges.exclusions_periodic


def _reference_platform() -> openmm.Platform:
    return openmm.Platform.getPlatformByName("Reference")


def pme_of(charges: ChargeSystem, cutoff, tolerance: float, on: openmm.Platform | None) -> tuple[float, np.ndarray]:
    """Energy (kJ/mol) and forces (n, 3) (kJ/mol/nm) of the charges alone by OpenMM's PME.

    Virtual sites are particles like any other here, so forces stay where they act.
    """
    system, force = openmm.System(), openmm.NonbondedForce()
    for charge in charges.charges:
        system.addParticle(1.0)
        force.addParticle(charge, 0.1, 0.0)
    for i, j in charges.exclusions.tolist():
        force.addException(i, j, 0.0, 0.1, 0.0)
    force.setExceptionsUsePeriodicBoundaryConditions(charges.exclusions_periodic)
    force.setNonbondedMethod(force.PME)
    force.setCutoffDistance(cutoff)
    force.setEwaldErrorTolerance(tolerance)
    system.setDefaultPeriodicBoxVectors(*charges.box_vectors)
    system.addForce(force)
    integrator = openmm.VerletIntegrator(0.001)
    context = openmm.Context(system, integrator, on) if on else openmm.Context(system, integrator)
    context.setPositions(charges.positions)
    state = context.getState(energy=True, forces=True)
    forces = state.getForces(asNumpy=True).value_in_unit(unit.kilojoule_per_mole / unit.nanometer)
    return state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole), forces


def draw(drawing, errors) -> None:
    """The distribution of the force errors, kJ/mol/nm: ``errors`` maps a method to its (n, 3)."""
    axes = drawing.add_subplot()
    sizes = {name: np.linalg.norm(error, axis=1) for name, error in errors.items()}
    low = min(size[size > 0].min(initial=1.0) for size in sizes.values())
    high = max(max(size.max() for size in sizes.values()), 2 * low)
    for name, size in sizes.items():
        axes.hist(size, bins=np.geomspace(low, high, 80), histtype="step", label=name)
    axes.set_xscale("log")
    axes.set_xlabel("force error of a particle, kJ/mol/nm")
    axes.set_ylabel("particles")
    axes.legend()
