"""A small water box as OpenMM, PDB and the optional packages see it."""

from dataclasses import dataclass

import numpy as np
import openmm
import pytest
from openmm import app, unit

from tests.convert.small_water import BOX, small_water

# TIP3P, Jorgensen et al. 1983, doi:10.1063/1.445869
CHARGES = {"O": -0.834, "H1": 0.417, "H2": 0.417}


@dataclass
class Water:
    """Positions (n, 3) and box (3, 3) in nm; ``exclusions`` the three pairs of every molecule."""

    topology: app.Topology
    system: openmm.System
    positions: np.ndarray
    box: np.ndarray
    charges: np.ndarray
    exclusions: np.ndarray
    pdb: str


@pytest.fixture(scope="session")
def water(tmp_path_factory):
    topology, system, positions = small_water()
    path = tmp_path_factory.mktemp("water") / "water.pdb"
    with open(path, "w") as file:
        app.PDBFile.writeFile(topology, positions * unit.nanometer, file)
    first = np.arange(0, len(positions), 3)
    pairs = np.stack([[first, first + 1], [first, first + 2], [first + 1, first + 2]]).transpose(
        2, 0, 1
    )
    charges = np.array([CHARGES[atom.name] for atom in topology.atoms()])
    return Water(topology, system, positions, BOX, charges, pairs.reshape(-1, 2), str(path))


@pytest.fixture(scope="session")
def four_sites(tmp_path_factory):
    """TIP4P-Ew water, whose virtual sites M have no bonds: topology, System,
    positions (n, 3) in nm, PDB file."""
    topology, system, positions = small_water("amber14/tip4pew.xml", "tip4pew")
    path = tmp_path_factory.mktemp("four_sites") / "water.pdb"
    with open(path, "w") as file:
        app.PDBFile.writeFile(topology, positions * unit.nanometer, file)
    return topology, system, positions, str(path)


@pytest.fixture
def assert_water(water):
    """A check that a ChargeSystem is the water box, to the precision of its source."""

    def check(found, precision=1e-12):
        assert np.array_equal(found.charges, water.charges)
        assert np.abs(found.positions - water.positions).max() < precision
        assert np.abs(found.box_vectors - water.box).max() < precision
        assert np.array_equal(found.exclusions, water.exclusions)
        assert found.exclusions.dtype == np.int32

    return check
