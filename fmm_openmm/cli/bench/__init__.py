"""Measure speed, accuracy and energy conservation on this machine.

solver: an evaluation and its stages, compared with the limits of the device. md: whole MD steps in
OpenMM with PME and with FMM, of water, of membranes or of a system from files. scaling: time of an
evaluation against the number of atoms. open: direct sum, treecode and FMM in free space; with
--cell, the FMM in a nearly empty periodic cube. slab: a layer of water as a slab, as a
periodic cube, and by PME with vacuum. nve: drift and residual of the total energy, PME and
FMM. tune: the fastest parameters on this GPU, for later runs to use. torch: energy
and gradients through PyTorch, compared with torch-pme and nvalchemi-toolkit-ops. distributed: an
evaluation shared by the ranks of MPI, for each of which mpirun starts the command. operators: M2L
of one level by each operator against order and depth, on a GPU. layouts: P2P with indexed and with
replicated sources against density, on a GPU.

All but tune, torch, operators, layouts, md --preset and md --system use water; all but nve and tune
print the error with the time. Tables are Markdown. A size is the edge of a box in nm, optionally
with the number of copies of the box along each axis: 6 or 6:3x3x5.
"""

import argparse

import numpy as np

from fmm_openmm.checks import check_number
from fmm_openmm.cli.bench import (
    distributed,
    layouts,
    md,
    nve,
    operators,
    scaling,
    slab,
    solver,
    torch,
    tune,
)
from fmm_openmm.cli.bench import open as free_space
from fmm_openmm.cli.info import versions
from fmm_openmm.cli.parser import add_command, add_common_arguments
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.planning.request import TOLERANCES

MODULES = solver, md, scaling, free_space, slab, nve, tune, torch, distributed, operators, layouts
BENCHMARKS = {module.__name__.rpartition(".")[2]: module for module in MODULES}
"""Modules of the benchmarks by name. The docstring and ``EXAMPLE`` of a module are its help;
``add_arguments(parser)`` adds its arguments; ``run(args, terminal, drawing)`` measures, prints,
draws if there is a figure, and returns the data for JSON. ``prepare(args, terminal)``, if there is
one, comes before anything is printed."""


EXAMPLE = "fmm-openmm bench md --sizes 6 --tolerance 5e-4"


def add_arguments(parser) -> None:
    """Add one subcommand per benchmark."""
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, module in BENCHMARKS.items():
        command = add_command(benchmarks, name, module)
        add_common_arguments(command, default=argparse.SUPPRESS)
        add_plot_argument(command)


def run(args, terminal) -> Outcome:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.timing import hardware

    module = BENCHMARKS[args.benchmark]
    getattr(module, "prepare", lambda *_: None)(args, terminal)
    drawing = figure(args.plot)
    for tolerance in np.atleast_1d(getattr(args, "tolerance", None) or ()):
        check_number(float(tolerance), "tolerance", *TOLERANCES)
    machine = hardware()
    terminal.say(f"{machine}\n")
    result = module.run(args, terminal, drawing)
    if drawing:
        drawing.savefig(args.plot)
    return Outcome(
        {"benchmark": args.benchmark, "hardware": machine, "versions": versions(), **result}
    )
