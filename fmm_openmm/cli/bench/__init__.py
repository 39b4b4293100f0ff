"""Measure speed, accuracy and energy conservation on this machine.

solver: an evaluation and its stages, against what the device can do. md: whole MD steps in OpenMM
with PME and with FMM, of water, of membranes or of a system from files. scaling: growth of an
evaluation's time with the number of atoms. open: direct sum, treecode and FMM in empty space; with
--cell, the FMM in a periodic cube that is nearly empty. nve: drift and residual of the total
energy, PME and FMM. tune: the fastest parameters on this GPU, for later runs to use. operators: M2L
of one level by each operator against order and depth, on a GPU. layouts: P2P with indexed and with
replicated sources against density, on a GPU.

All but tune, operators, layouts, md --preset and md --system on water; all but nve and tune with
the error beside the time. Tables are Markdown. A size is the edge of a box in nm, or this and the
copies of the box that make the system: 6 or 6:3x3x5.
"""

import argparse

import numpy as np

from fmm_openmm.checks import check_number
from fmm_openmm.cli.bench import layouts, md, nve, operators, scaling, solver, tune
from fmm_openmm.cli.bench import open as empty_space
from fmm_openmm.cli.info import versions
from fmm_openmm.cli.parser import add_command, add_common_arguments
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure

MODULES = solver, md, scaling, empty_space, nve, tune, operators, layouts
BENCHMARKS = {module.__name__.rpartition(".")[2]: module for module in MODULES}
"""By name. The docstring of each is its help, with its ``EXAMPLE``; ``add_arguments(parser)`` adds
what it takes;
``run(args, terminal, drawing)`` measures, prints, draws where there is a figure, and returns
what to write as JSON."""


EXAMPLE = "fmm-openmm bench md --sizes 6 --tolerance 5e-4"


def add_arguments(parser) -> None:
    """One subcommand a benchmark."""
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, module in BENCHMARKS.items():
        each = add_command(benchmarks, name, module)
        add_common_arguments(each, default=argparse.SUPPRESS)
        add_plot_argument(each)


def run(args, terminal) -> Outcome:
    """Measure, print, draw."""
    from fmm_openmm.bench.timing import hardware

    drawing = figure(args.plot)
    for tolerance in np.atleast_1d(getattr(args, "tolerance", None) or ()):
        check_number(float(tolerance), "tolerance", 1e-10, 0.1)
    machine = hardware()
    terminal.say(f"{machine}\n")
    result = BENCHMARKS[args.benchmark].run(args, terminal, drawing)
    if drawing:
        drawing.savefig(args.plot)
    return Outcome(
        {"benchmark": args.benchmark, "hardware": machine, "versions": versions(), **result}
    )
