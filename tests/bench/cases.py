"""Sizes and cases that several tests of benchmarks use."""

import argparse

import numpy as np
import openmm
from openmm import unit

from fmm_openmm.cli.bench import md as md_command

EDGE = 2.2
COPIES = (1, 2, 1)
CPU = openmm.Platform.getPlatformByName("CPU")
PEPTIDE_BOX = ("--box", "4", "4", "4")
SIZES = ("--sizes", str(EDGE), f"{EDGE}:{'x'.join(map(str, COPIES))}")


def potential_energy(system, positions):
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )
    context.setPositions(positions)
    return context.getState(energy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)


def cases_of(*argv):
    """The cases that ``bench md`` measures, without exact forces."""
    cases = md_command.chosen_cases(arguments(*argv, "--no-errors"), on_gpu=False)[2]
    return [make() for make in cases.values()]


def arguments(*argv):
    """The parsed command line of ``bench md``."""
    parser = argparse.ArgumentParser()
    parser.set_defaults(command="bench")
    md_command.add_arguments(parser)
    return parser.parse_args(argv)


def kinetic_energy(case):
    masses = [
        case.sample.system.getParticleMass(i)._value for i in range(len(case.sample.positions))
    ]
    return 0.5 * np.array(masses) @ (case.sample.velocities**2).sum(1)
