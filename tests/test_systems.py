"""The test systems are what their names say, realistic, and the same whenever they are built."""

import numpy as np
import pytest
from openmm import app, unit
from scipy.spatial import cKDTree

from fmm_openmm.oracle import ewald_sum
from tests.systems import PEPTIDE, SYSTEMS, build, charge_arrays, nonbonded

CELL_VOLUME = {
    "peptide_cube": 1.0,
    "peptide_dodecahedron": 1 / np.sqrt(2),
    "peptide_octahedron": 4 / np.sqrt(27),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_system(name):
    built = build(name)
    data = charge_arrays(built)
    box, n = data.box_vectors, len(data.charges)
    assert 500 <= n <= 3000
    assert n == built.system.getNumParticles() == len(data.positions)
    assert len(data.exclusions) == nonbonded(built.system).getNumExceptions()
    assert (np.triu(box, 1) == 0).all() and (box.diagonal() > 0).all()
    assert data.charges.sum() == pytest.approx(2.0 if name == "peptide_charged" else 0.0, abs=1e-4)
    if built.topology is not None:
        assert built.topology.getNumAtoms() == n

    masses = np.array([built.system.getParticleMass(i)._value for i in range(n)])
    atoms = (
        data.positions[masses > 2] - np.floor(data.positions[masses > 2] @ np.linalg.inv(box)) @ box
    )
    images = np.stack(np.meshgrid(*3 * [[0, -1, 1]], indexing="ij"), -1).reshape(-1, 1, 3) @ box
    distances, _ = cKDTree((atoms + images).reshape(-1, 3)).query(atoms, k=2)
    assert 0.11 < distances[:, 1].min() < distances[:, 1].max() < 0.45

    forces = ewald_sum(data.positions, data.charges, box, data.exclusions).forces
    assert 300 < np.sqrt((forces**2).sum(1).mean()) < 1500
    np.testing.assert_allclose(forces.sum(0), 0, atol=1e-7)


def test_shapes():
    assert (
        len(charge_arrays(build("water")).charges)
        < 1200
        < 2500
        < len(charge_arrays(build("water_large")).charges)
    )
    for name, volume in CELL_VOLUME.items():
        box = build(name).box_vectors
        assert np.linalg.det(box) == pytest.approx(volume * box[0, 0] ** 3, rel=1e-5)
    for name, aspect in {"water_3_1_1": 3.0, "water_1_1_5": 5.0}.items():
        edges = build(name).box_vectors.diagonal()
        assert edges.max() / edges.min() == pytest.approx(aspect)
    droplet, slab = build("droplet"), build("slab")
    assert np.linalg.norm(droplet.positions - 4.0, axis=1).max() < 1.8
    assert abs(slab.positions[:, 2] - 4.5).max() < 1.8


def test_virtual_sites():
    for name, sites in {"tip4pew": 1, "tip5p": 2}.items():
        system = build(name).system
        count = sum(system.isVirtualSite(i) for i in range(system.getNumParticles()))
        assert count == sites * system.getNumParticles() // (3 + sites)


def test_a_copy_may_be_changed():
    first = build("nacl")
    nonbonded(first.system).setParticleParameters(0, 0.0, 1.0, 0.0)
    first.positions[:] = 0.0
    second = build("nacl")
    assert charge_arrays(second).charges[0] == 1.0
    assert second.positions.any()


@pytest.mark.slow
def test_building_again_gives_the_same():
    built = build("droplet")
    system, positions, box, topology = SYSTEMS["droplet"]()
    assert topology.getNumAtoms() == system.getNumParticles()
    np.testing.assert_array_equal(positions, built.positions)
    np.testing.assert_array_equal(box, built.box_vectors)


def test_peptide_is_made_of_l_amino_acids():
    pdb = app.PDBFile(str(PEPTIDE))
    x = np.array(pdb.positions.value_in_unit(unit.nanometer))
    assert [r.name for r in pdb.topology.residues()] == [
        "ACE",
        "ALA",
        "LYS",
        "ALA",
        "GLU",
        "LYS",
        "LYS",
        "NME",
    ]
    for residue in list(pdb.topology.residues())[1:-1]:
        n, ca, c, cb = (
            x[next(a.index for a in residue.atoms() if a.name == name)]
            for name in ("N", "CA", "C", "CB")
        )
        assert (n - ca) @ np.cross(c - ca, cb - ca) > 0.002
