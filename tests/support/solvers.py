"""Solvers, and random charges with excluded pairs, for the tests of the solver."""

from fmm_openmm import CoulombSolver
from tests.support.charges import SKEWED, random_charges
from tests.support.ewald import exact

BACKENDS = ("cpu", "reference")
MIXED = [(0, 1), (0, 2), (1, 2), (7, 3), (5, 39)]
"""Exclusions: a molecule of three and pairs at any distance."""


def solver_for(name, **options):
    d, _ = exact(name)
    return CoulombSolver(d.charges, d.box_vectors, d.exclusions, positions=d.positions, **options)


def scattered(n=60, cell=SKEWED, net=0.0):
    """Random charges, the first three of which are close together like a molecule."""
    x, q = random_charges(n, cell, net=net)
    x[1], x[2] = x[0] + [0.1, 0.0, 0.0], x[0] + [0.0, 0.08, 0.05]
    return x, q


def solve(x, q, cell, exclusions=None, **options):
    return CoulombSolver(q, cell, exclusions, **options).compute(x)
