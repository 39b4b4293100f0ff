"""Exact energies and forces of the test systems."""

from functools import cache

from fmm_openmm.oracle import ewald_sum
from tests.systems import build, charge_arrays


@cache
def exact(name):
    """A test system and its Ewald sum."""
    d = charge_arrays(build(name))
    return d, ewald_sum(d.positions, d.charges, d.box_vectors, d.exclusions)
