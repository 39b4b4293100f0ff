"""Compare FMM, and PME with the settings of the System, with a converged sum.

Electrostatics alone, exceptions excluded. The reference is an Ewald sum or,
in large systems, PME in double precision at a tight tolerance; in free space
it is the sum over all pairs, and there is no PME. PME is omitted, with a
note, if its grid would not fit into memory. The FMM is the stand-alone
solver, not the FMMForce of a Context. For a slab, PME uses a box with vacuum
and the correction of Yeh and Berkowitz.
"""

from dataclasses import asdict

import numpy as np

from fmm_openmm import find_fmm, validate
from fmm_openmm.cli import inputs, notes
from fmm_openmm.cli.options import add_fmm_arguments, fmm_options
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.convert.openmm_system import default_box, nonbonded_force
from fmm_openmm.integration.validation import REFERENCE_NAMES, reference_cutoff

EWALD_LIMIT = 50_000
"""Largest number of particles for which "auto" selects the Ewald sum, about half a minute."""


EXAMPLE = """fmm-openmm validate protein.pdb --forcefield amber14-all.xml \\
      amber14/tip3p.xml --plot=errors.png"""


def add_arguments(parser) -> None:
    """Add the arguments of the command: files, reference, PME tolerance and FMM options."""
    inputs.add_arguments(parser)
    parser.add_argument(
        "--reference",
        choices=("auto", *REFERENCE_NAMES),
        default="auto",
        help="method of the reference: ewald or pme in a periodic box, direct or nocutoff "
        "(OpenMM's sum over all pairs) in free space (default: auto, as described above)",
    )
    parser.add_argument(
        "--pme-tolerance", type=float, help="ewaldErrorTolerance of PME (default: the System's)"
    )
    add_plot_argument(parser)
    add_fmm_arguments(parser, context=False)


def run(args, terminal) -> Outcome:
    """Read the files and compare the methods."""
    drawing = figure(args.plot)
    if args.pme_tolerance is not None and not 0 < args.pme_tolerance < 1:
        raise ValueError(f"--pme-tolerance must lie between 0 and 1, got {args.pme_tolerance}")
    with terminal.progress("reading") as advance:
        molecules = inputs.load(args)
        force, *_ = find_fmm(molecules.system) or [nonbonded_force(molecules.system)]
        periodic = force.usesPeriodicBoundaryConditions()
        if args.pme_tolerance is not None:
            if not periodic:
                raise ValueError("--pme-tolerance has no meaning in free space: leave it out")
            pme = nonbonded_force(molecules.system)
            pme.setEwaldErrorTolerance(args.pme_tolerance)
            pme.setPMEParameters(0, 0, 0, 0)  # they would take precedence over the tolerance
        reference = args.reference
        boundary = notes.boundary_of(args, force)
        if reference == "auto" and boundary.is_partial:
            reference = "ewald"
        elif reference == "auto" and periodic:
            affordable = reference_cutoff(default_box(molecules.system)) is not None
            large = len(molecules.positions) > EWALD_LIMIT
            reference = "pme" if large and affordable else "ewald"
        elif reference == "auto":
            reference = "direct"
        noted = notes.look(args, molecules, terminal)
        advance(description=f"FMM and the reference ({reference})")
        report = validate(
            molecules.system, molecules.positions, reference=reference, **fmm_options(args)
        )
    terminal.pairs([("boundary", noted["boundary"])])
    terminal.say(report.summary())
    if drawing:
        draw(drawing, report)
        drawing.savefig(args.plot)
    found = asdict(report)
    for method in "fmm", "pme":
        if found[method]:
            del found[method]["force_errors"]  # one number per particle
    return Outcome({**found, "passed": report.passed, **noted}, report.passed)


def draw(drawing, report) -> None:
    """Plot the errors of both methods, and histograms of the force errors of all particles."""
    drawing.set_figwidth(10)
    axes, histogram = drawing.subplots(1, 2)
    report.plot(histogram)
    places, width = np.arange(2), 0.35
    for shift, entry in ((-width / 2, report.fmm), (width / 2, report.pme)):
        if entry is None:
            continue
        errors = [entry.relative_rms_force_error, entry.relative_energy_error]
        axes.bar(places + shift, errors, width, label=entry.method)
    axes.axhline(
        report.tolerance, color="k", linewidth=1, linestyle=":", label="tolerance of FMM's forces"
    )
    axes.set_yscale("log")
    axes.set_xticks(places, ["forces, RMS", "energy"])
    axes.set_ylabel(f"relative error against {report.reference}")
    axes.legend()
