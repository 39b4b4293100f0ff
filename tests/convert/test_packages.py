"""From the optional packages; each test is skipped where its package is not installed."""

import copy
import itertools
import sys

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.oracle import partial_ewald_sum

FLOAT32 = 1e-6  # MDTraj and MDAnalysis hold positions in float32


# MDTraj


@pytest.fixture
def trajectory(water):
    return pytest.importorskip("mdtraj").load(water.pdb)


def test_mdtraj_with_a_force_field(trajectory, assert_water):
    assert_water(fmm.ChargeSystem.from_mdtraj(trajectory, "amber14/tip3p.xml"), FLOAT32)
    assert_water(
        fmm.ChargeSystem.from_mdtraj(trajectory, app.ForceField("amber14/tip3p.xml")), FLOAT32
    )
    assert_water(fmm.ChargeSystem.from_mdtraj(trajectory, ["amber14/tip3p.xml"]), FLOAT32)


def test_mdtraj_with_charges(trajectory, water, assert_water):
    assert_water(fmm.ChargeSystem.from_mdtraj(trajectory, water.charges), FLOAT32)
    assert_water(fmm.ChargeSystem.from_mdtraj(trajectory, list(water.charges)), FLOAT32)
    assert_water(
        fmm.ChargeSystem.from_mdtraj(trajectory, water.charges * unit.elementary_charge), FLOAT32
    )
    assert fmm.ChargeSystem.from_mdtraj(trajectory, water.charges).exclusions_periodic is True


def test_mdtraj_frame_and_box(trajectory, water):
    two = trajectory.join(trajectory)
    two.xyz[1] += 0.5
    two.unitcell_vectors = np.array([water.box, [[2, 0, 0], [1.5, 2, 0], [0, 0, 2]]])
    found = fmm.ChargeSystem.from_mdtraj(two, water.charges, frame=1)
    assert found.positions == pytest.approx(water.positions + 0.5, abs=FLOAT32)
    assert found.box_vectors == pytest.approx(
        np.array([[2, 0, 0], [-0.5, 2, 0], [0, 0, 2]]), abs=FLOAT32
    )
    by_field = fmm.ChargeSystem.from_mdtraj(two, "amber14/tip3p.xml", frame=-1)
    assert np.array_equal(by_field.box_vectors, found.box_vectors)
    two.unitcell_vectors = np.array(2 * [[[2, 0, 0], [0, 2, 0], [0, 2, 0]]])
    with pytest.raises(
        ValueError, match=r"`trajectory\.unitcell_vectors` must span a positive volume"
    ):
        fmm.ChargeSystem.from_mdtraj(two, water.charges)
    for none in (None, np.zeros((2, 3, 3)), np.array(2 * [0.1 * np.eye(3)])):
        two.unitcell_vectors = none
        assert fmm.ChargeSystem.from_mdtraj(two, water.charges).box_vectors is None
        assert fmm.ChargeSystem.from_mdtraj(two, "amber14/tip3p.xml").box_vectors is None


def test_mdtraj_refuses(trajectory, water):
    for frame in (1, -2):
        with pytest.raises(ValueError, match=f"`frame` must lie between -1 and 0, got {frame}"):
            fmm.ChargeSystem.from_mdtraj(trajectory, water.charges, frame)
    for frame in (0.0, slice(1), None):
        with pytest.raises(TypeError, match="`frame` must be an integer, got "):
            fmm.ChargeSystem.from_mdtraj(trajectory, water.charges, frame)
    with pytest.raises(
        ValueError, match=r"`charges_or_forcefield` must have shape \(n,\) with n = 768, got \(2,\)"
    ):
        fmm.ChargeSystem.from_mdtraj(trajectory, [1.0, -1.0])
    with pytest.raises(
        ValueError, match="`charges_or_forcefield` must be an array of real numbers, got None"
    ):
        fmm.ChargeSystem.from_mdtraj(trajectory, None)
    with pytest.raises(
        ValueError, match="`charges_or_forcefield` must be in units of elementary charge"
    ):
        fmm.ChargeSystem.from_mdtraj(trajectory, water.charges * unit.nanometer)
    with pytest.raises(TypeError, match=r"`trajectory` must be mdtraj\.Trajectory, got str"):
        fmm.ChargeSystem.from_mdtraj("water.pdb", water.charges)


@pytest.mark.slow
def test_mdtraj_virtual_sites(four_sites):
    """Pairs with virtual sites are excluded by a force field or by bonds; with neither they are
    refused."""
    mdtraj = pytest.importorskip("mdtraj")
    _, system, positions, pdb = four_sites
    expected = fmm.ChargeSystem.from_openmm(system, positions)
    trajectory = mdtraj.load(pdb)
    found = fmm.ChargeSystem.from_mdtraj(trajectory, "amber14/tip4pew.xml")
    assert np.array_equal(found.exclusions, expected.exclusions)
    with pytest.raises(
        ValueError, match=r"`trajectory` has no bond of HOH1-M, atom 3, .* a force field"
    ):
        fmm.ChargeSystem.from_mdtraj(trajectory, expected.charges)
    for residue in trajectory.topology.residues:
        trajectory.topology.add_bond(residue.atom(0), residue.atom(3))
    found = fmm.ChargeSystem.from_mdtraj(trajectory, expected.charges)
    assert np.array_equal(found.exclusions, expected.exclusions)


def test_mdtraj_bonds_of_residues_it_does_not_know():
    """Unknown residues need bonds or a force field: without bonds nothing would be excluded."""
    mdtraj = pytest.importorskip("mdtraj")
    topology = mdtraj.Topology()
    residue = topology.add_residue("BNZ", topology.add_chain())
    for name in ("C1", "C2", "C3"):
        topology.add_atom(name, mdtraj.element.carbon, residue)
    molecule, charges = mdtraj.Trajectory(np.eye(3), topology), [1.0, -0.5, -0.5]
    with pytest.raises(
        ValueError, match=r"`trajectory` has no bond of BNZ0-C1, atom 0, .* pass `bonds`"
    ):
        fmm.ChargeSystem.from_mdtraj(molecule, charges)
    found = fmm.ChargeSystem.from_mdtraj(molecule, charges, bonds=[(0, 1), (1, 2)])
    assert found.exclusions.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert fmm.ChargeSystem.from_mdtraj(molecule, charges, bonds=[]).exclusions.shape == (0, 2)
    with pytest.raises(ValueError, match="`bonds` go with charges"):
        fmm.ChargeSystem.from_mdtraj(molecule, "amber14/tip3p.xml", bonds=[])


def test_mdtraj_unknown_elements_alone(water):
    mdtraj = pytest.importorskip("mdtraj")
    topology = mdtraj.Topology()
    for _ in range(2):
        topology.add_atom("bead", None, topology.add_residue("BEAD", topology.add_chain()))
    beads = mdtraj.Trajectory(np.eye(2, 3), topology)
    assert fmm.ChargeSystem.from_mdtraj(beads, [1.0, -1.0]).exclusions.shape == (0, 2)


# ParmEd


@pytest.fixture
def structure(water):
    parmed = pytest.importorskip("parmed")
    return parmed.openmm.load_topology(
        water.topology, water.system, water.positions * unit.nanometer
    )


@pytest.mark.parametrize("rule", ["lorentz", "geometric"])
def test_parmed(structure, assert_water, rule):
    structure.combining_rule = rule
    assert_water(fmm.ChargeSystem.from_parmed(structure), 1e-9)


def test_parmed_reads_a_restored_copy_of_a_converted_system(structure, water):
    """ParmEd reads charges from the NonbondedForce alone, and a warning says so."""
    import parmed

    system = copy.deepcopy(water.system)
    fmm.use_fmm(system)
    with pytest.warns(parmed.exceptions.OpenMMWarning, match="Force type PythonForce"):
        converted = parmed.openmm.load_topology(water.topology, system)
    assert not any(atom.charge for atom in converted.atoms)
    restored = copy.deepcopy(system)
    fmm.restore_pme(restored)
    loaded = parmed.openmm.load_topology(water.topology, restored)
    assert [atom.charge for atom in loaded.atoms] == [atom.charge for atom in structure.atoms]


def test_parmed_reading_amber_files(structure, assert_water, tmp_path):
    import parmed

    structure.save(str(tmp_path / "water.prmtop"))
    structure.save(str(tmp_path / "water.rst7"))
    loaded = parmed.load_file(str(tmp_path / "water.prmtop"), xyz=str(tmp_path / "water.rst7"))
    found = fmm.ChargeSystem.from_parmed(loaded)
    # AMBER keeps charges times 18.2223 with eight digits
    found.charges[:] = np.round(found.charges, 6)
    assert_water(found, FLOAT32)


def test_parmed_box_forms(structure):
    structure.box = [20, 20, 20, 70.5287794, 109.4712206, 70.5287794]
    box = fmm.ChargeSystem.from_parmed(structure).box_vectors
    assert np.linalg.det(box) == pytest.approx(8 * 4 / 3 / np.sqrt(3), rel=1e-6)
    openmm.System().setDefaultPeriodicBoxVectors(*box)
    for none in (3 * [1.0], 3 * [0.0]):
        structure.box = [*none, 90, 90, 90]
        assert fmm.ChargeSystem.from_parmed(structure).box_vectors is None
    structure.box = [20, 20, 0, 90, 90, 90]
    with pytest.raises(ValueError, match=r"`structure\.box` must span a positive volume"):
        fmm.ChargeSystem.from_parmed(structure)
    structure.box = None
    assert fmm.ChargeSystem.from_parmed(structure).box_vectors is None


def test_parmed_refuses(water):
    parmed = pytest.importorskip("parmed")
    with pytest.raises(ValueError, match=r"`structure` has no parameters.*load_parameters"):
        fmm.ChargeSystem.from_parmed(parmed.load_file(water.pdb))
    with pytest.raises(TypeError, match=r"`structure` must be parmed\.Structure, got str"):
        fmm.ChargeSystem.from_parmed(water.pdb)


def test_parmed_refuses_drude_particles(structure):
    parmed = pytest.importorskip("parmed")
    oxygen = structure.atoms[0]
    oxygen.drude_type, drude = (
        "D",
        parmed.topologyobjects.DrudeAtom(name="DO", atomic_number=0, mass=0.4),
    )
    drude.atom_type = oxygen.atom_type
    structure.add_atom_to_residue(drude, oxygen.residue)
    with pytest.raises(
        ValueError,
        match=r"holds the Drude particle DO of HOH 0, atom 3, .*CharmmPsfFile .*from_openmm",
    ):
        fmm.ChargeSystem.from_parmed(structure)


GROMACS_CHAIN = """[ defaults ]
1 2 yes 0.5 0.8333
[ atomtypes ]
C C 6 12.0 0.0 A 0.34 0.36
[ moleculetype ]
chain 3
[ atoms ]
1 C 1 RES C1 1 0.1 12.0
2 C 1 RES C2 1 -0.1 12.0
3 C 1 RES C3 1 0.1 12.0
4 C 1 RES C4 1 -0.1 12.0
5 C 1 RES C5 1 0.0 12.0
[ bonds ]
1 2 1 0.15 1000
2 3 1 0.15 1000
3 4 1 0.15 1000
4 5 1 0.15 1000
[ exclusions ]
EXCLUSIONS
[ system ]
chains
[ molecules ]
chain 2
"""


@pytest.mark.filterwarnings("ignore::Warning:parmed")
def test_parmed_loses_exclusions_of_gromacs(tmp_path):
    parmed = pytest.importorskip("parmed")
    path = tmp_path / "chain.top"
    for pairs, is_lost in (("1 2 4", False), ("1 2 5", True)):
        path.write_text(GROMACS_CHAIN.replace("EXCLUSIONS", pairs))
        structure, system = parmed.load_file(str(path)), app.GromacsTopFile(str(path))
        expected = fmm.ChargeSystem.from_openmm(system.createSystem()).exclusions
        assert len(expected) == (20 if is_lost else 18)
        if is_lost:
            with pytest.raises(ValueError, match=r"lacks exclusions of chain, .* C1 and C5, which"):
                fmm.ChargeSystem.from_parmed(structure)
        else:
            found = fmm.ChargeSystem.from_parmed(structure)
            assert np.array_equal(found.exclusions, expected)


@pytest.mark.filterwarnings("ignore::Warning:parmed")
@pytest.mark.parametrize(
    ("nrexcl", "message"),
    [
        (1, r"excludes pairs of chain, such as C1 and C4, that interact by `nrexcl` 1, which"),
        (2, r"excludes pairs of chain, such as C1 and C4, that interact by `nrexcl` 2, which"),
        (4, r"lacks exclusions of chain, such as that of C1 and C5, which"),
    ],
)
def test_parmed_loses_the_bonds_of_exclusions_of_gromacs(tmp_path, nrexcl, message):
    parmed = pytest.importorskip("parmed")
    path = tmp_path / "chain.top"
    text = GROMACS_CHAIN.replace("chain 3", f"chain {nrexcl}").replace("EXCLUSIONS", "1 2 3")
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        fmm.ChargeSystem.from_parmed(parmed.load_file(str(path)))
    # within two bonds of each other, as in water, whose `nrexcl` is 2
    lines = text.splitlines()
    kept = [line for line in lines if not line.startswith(("4 C", "5 C", "3 4", "4 5"))]
    path.write_text("\n".join(kept))
    structure = parmed.load_file(str(path))
    assert fmm.ChargeSystem.from_parmed(structure).exclusions.tolist() == [
        *([0, 1], [0, 2], [1, 2]),
        *([3, 4], [3, 5], [4, 5]),
    ]


def test_parmed_extra_points(four_sites):
    parmed = pytest.importorskip("parmed")
    topology, system, positions, _ = four_sites
    structure = parmed.openmm.load_topology(topology, system, positions * unit.nanometer)
    with pytest.raises(
        ValueError,
        match=r"`structure` has no bond of the extra point M of HOH 0, atom 3, .*from_openmm",
    ):
        fmm.ChargeSystem.from_parmed(structure)
    for residue in structure.residues:
        structure.bonds.append(parmed.Bond(residue[0], residue[3]))
    expected = fmm.ChargeSystem.from_openmm(system)
    assert np.array_equal(fmm.ChargeSystem.from_parmed(structure).exclusions, expected.exclusions)


# MDAnalysis


@pytest.fixture
def universe(water):
    mdanalysis = pytest.importorskip("MDAnalysis")
    universe = mdanalysis.Universe(water.pdb)
    universe.add_TopologyAttr("charges", water.charges)
    universe.add_bonds([(atom1.index, atom2.index) for atom1, atom2 in water.topology.bonds()])
    return universe


def test_mdanalysis(universe, assert_water):
    assert_water(fmm.ChargeSystem.from_mdanalysis(universe), FLOAT32)
    assert_water(fmm.ChargeSystem.from_mdanalysis(universe.atoms), FLOAT32)


def test_mdanalysis_part(universe, water):
    part = fmm.ChargeSystem.from_mdanalysis(universe.atoms[3:9])
    assert part.charges == pytest.approx(water.charges[3:9])
    assert part.positions == pytest.approx(water.positions[3:9], abs=FLOAT32)
    assert part.exclusions.tolist() == water.exclusions[:6].tolist()


def test_mdanalysis_part_without_the_atoms_between(universe, water):
    """Hydrogens of a molecule do not interact, whether its oxygen is selected or not."""
    part = fmm.ChargeSystem.from_mdanalysis(universe.select_atoms("name H1 H2"))
    assert len(part) == 2 * len(water.charges) // 3
    assert part.exclusions.tolist() == [[i, i + 1] for i in range(0, len(part), 2)]


def test_mdanalysis_part_of_a_chain():
    """Atoms three bonds apart are excluded, those four bonds apart are not."""
    mdanalysis = pytest.importorskip("MDAnalysis")
    universe = mdanalysis.Universe.empty(8, trajectory=True)
    universe.add_TopologyAttr("charges", np.arange(8.0))
    universe.add_bonds([(i, i + 1) for i in range(7)])
    for chosen, pairs in (
        ([0, 3], [[0, 1]]),
        ([7, 4, 0], [[0, 1]]),
        ([0, 4], []),
        ([0, 2, 5, 6], [[0, 1], [1, 2], [2, 3]]),
    ):
        found = fmm.ChargeSystem.from_mdanalysis(universe.atoms[chosen])
        assert found.charges.tolist() == chosen
        assert found.exclusions.tolist() == pairs


def test_mdanalysis_box_and_bonds(universe):
    for none in (None, [1, 1, 1, 90, 90, 90]):
        universe.dimensions = none
        found = fmm.ChargeSystem.from_mdanalysis(universe, bonds=[])
        assert found.box_vectors is None
        assert len(found.exclusions) == 0
    universe.dimensions = [20, 20, 20, 60, 60, 90]
    box = fmm.ChargeSystem.from_mdanalysis(universe).box_vectors
    assert box == pytest.approx(np.array([[2, 0, 0], [0, 2, 0], [1, 1, np.sqrt(2)]]), abs=FLOAT32)
    universe.dimensions = [20, 20, 20, 0, 90, 90]
    with pytest.raises(ValueError, match=r"`universe\.dimensions` must span a positive volume"):
        fmm.ChargeSystem.from_mdanalysis(universe)


def test_mdanalysis_refuses(water):
    mdanalysis = pytest.importorskip("MDAnalysis")
    universe = mdanalysis.Universe(water.pdb)
    with pytest.raises(ValueError, match="`universe` has no charges"):
        fmm.ChargeSystem.from_mdanalysis(universe)
    universe.add_TopologyAttr("charges", water.charges)
    with pytest.raises(ValueError, match="`universe` has no bonds: pass `bonds`"):
        fmm.ChargeSystem.from_mdanalysis(universe)
    with pytest.raises(
        ValueError, match=r"`bonds` must hold indices from 0 to 767, got \[0, 100000\] in row 0"
    ):
        fmm.ChargeSystem.from_mdanalysis(universe, bonds=[(0, 100000)])
    with pytest.raises(
        ValueError, match=r"`bonds` must hold indices from 0 to 2, got \[3, 4\] in row 0"
    ):
        fmm.ChargeSystem.from_mdanalysis(universe.atoms[3:6], bonds=[(3, 4)])
    with pytest.raises(
        TypeError,
        match=r"`universe` must be MDAnalysis\.Universe or MDAnalysis\.AtomGroup, got str",
    ):
        fmm.ChargeSystem.from_mdanalysis(water.pdb)


def test_mdanalysis_some_bonds(water):
    """The bonds of some molecules, as CONECT records of a PDB file name them, are not enough."""
    mdanalysis = pytest.importorskip("MDAnalysis")
    universe = mdanalysis.Universe(water.pdb)
    universe.add_TopologyAttr("charges", water.charges)
    universe.add_bonds([(0, 1), (0, 2)])
    with pytest.raises(
        ValueError, match=r"`universe` has no bond of O of HOH 2, atom 3, .*: pass `bonds`"
    ):
        fmm.ChargeSystem.from_mdanalysis(universe)
    found = fmm.ChargeSystem.from_mdanalysis(universe, bonds=universe.bonds.indices)
    assert found.exclusions.tolist() == [[0, 1], [0, 2], [1, 2]]
    oxygens = fmm.ChargeSystem.from_mdanalysis(universe.select_atoms("name O"))
    assert len(oxygens.exclusions) == 0


def test_mdanalysis_refuses_drude_particles():
    mdanalysis = pytest.importorskip("MDAnalysis")
    universe = mdanalysis.Universe.empty(3, trajectory=True)
    universe.add_TopologyAttr("charges", [1.7, -1.8, 0.1])
    universe.add_TopologyAttr("types", ["CD33A", "DRUD", "HDA3A"])
    universe.add_TopologyAttr("names", ["C1", "DC1", "H1"])
    bonds = [(0, 1), (0, 2)]
    universe.add_bonds(bonds)
    with pytest.raises(ValueError, match=r"Drude particle DC1, atom 1, .*CharmmPsfFile"):
        fmm.ChargeSystem.from_mdanalysis(universe)
    found = fmm.ChargeSystem.from_mdanalysis(universe, bonds=bonds)
    assert found.exclusions.tolist() == [[0, 1], [0, 2], [1, 2]]


def test_mdanalysis_virtual_sites(four_sites):
    """Virtual sites are excluded by their bonds; without them they are refused, unless alone
    in their residue."""
    mdanalysis = pytest.importorskip("MDAnalysis")
    topology, system, positions, pdb = four_sites
    expected = fmm.ChargeSystem.from_openmm(system, positions)
    universe = mdanalysis.Universe(pdb)
    universe.add_TopologyAttr("charges", expected.charges)
    universe.add_TopologyAttr(
        "masses", [system.getParticleMass(i)._value for i in range(len(expected))]
    )
    bonds = [(atom1.index, atom2.index) for atom1, atom2 in topology.bonds()]
    universe.add_bonds(bonds)
    with pytest.raises(
        ValueError, match=r"no bond of M of HOH 1, atom 3, to exclude .*: pass `bonds`"
    ):
        fmm.ChargeSystem.from_mdanalysis(universe)
    assert len(fmm.ChargeSystem.from_mdanalysis(universe.select_atoms("name M")).exclusions) == 0
    whole = [*bonds, *((site - 3, site) for site in range(3, len(expected), 4))]
    found = fmm.ChargeSystem.from_mdanalysis(universe, bonds=whole)
    assert np.array_equal(found.exclusions, expected.exclusions)
    universe.add_bonds(whole[len(bonds) :])
    assert np.array_equal(
        fmm.ChargeSystem.from_mdanalysis(universe).exclusions, expected.exclusions
    )


# ASE


def crystal(constant=5.64):
    build = pytest.importorskip("ase.build")
    atoms = build.bulk("NaCl", "rocksalt", a=constant)
    atoms.set_initial_charges([1.0, -1.0])
    return atoms


def test_ase_primitive_crystal():
    """Rock salt in its primitive cell, which lies askew: the Madelung constant (1.74756459463,
    Borwein et al. 1985, doi:10.1063/1.526675) does not mind the turn."""
    system = fmm.ChargeSystem.from_ase(crystal())
    assert system.box_vectors == pytest.approx(
        0.564
        / np.sqrt(2)
        * np.array([[1, 0, 0], [0.5, np.sqrt(0.75), 0], [0.5, np.sqrt(1 / 12), np.sqrt(2 / 3)]])
    )
    solver = system.solver(tolerance=1e-8, precision="double", backend="reference")
    madelung = -solver.compute(system.positions).energy * 0.282 / fmm.units.COULOMB_CONSTANT
    assert madelung == pytest.approx(1.74756459463, rel=1e-8)


def test_ase_turns_positions_with_the_cell():
    atoms = crystal().repeat((2, 3, 2))
    atoms.rattle(0.1, seed=3)
    system = fmm.ChargeSystem.from_ase(atoms)
    images = np.array(list(itertools.product(range(-2, 3), repeat=3))) @ system.box_vectors
    delta = system.positions - system.positions[0]
    nearest = np.linalg.norm(delta[:, None] + images, axis=-1).min(1)
    assert nearest == pytest.approx(0.1 * atoms.get_distances(0, range(len(atoms)), mic=True))


def test_ase_water(water, assert_water):
    ase = pytest.importorskip("ase")
    atoms = ase.Atoms(
        [atom.element.symbol for atom in water.topology.atoms()],
        10 * water.positions,
        cell=10 * water.box,
        pbc=True,
    )
    atoms.set_initial_charges(water.charges)
    bonds = [(atom1.index, atom2.index) for atom1, atom2 in water.topology.bonds()]
    assert_water(fmm.ChargeSystem.from_ase(atoms, bonds))
    atoms.pbc = False
    assert fmm.ChargeSystem.from_ase(atoms).box_vectors is None


PARTIAL = {
    (True, True, False): "slab",
    (True, False, True): "ac",
    (False, True, True): "bc",
    (True, False, False): "a",
    (False, True, False): "b",
    (False, False, True): "wire",
}


@pytest.mark.slow
@pytest.mark.parametrize("periodic", PARTIAL)
@pytest.mark.parametrize("has_all_vectors", [True, False])
def test_ase_partly_periodic(periodic, has_all_vectors):
    """Any subset of directions of an oblique, left-handed cell that lies askew: the energy is that
    of the Ewald sum over the vectors as ASE has them."""
    ase = pytest.importorskip("ase")
    random = np.random.default_rng(6)
    cell = np.array([[2.0, 9.0, 1.0], [11.0, 1.0, -2.0], [3.0, 2.0, 10.0]])
    assert np.linalg.det(cell) < 0
    places = random.uniform(-0.5, 0.5, (20, 3))
    atoms = ase.Atoms("NaCl" * 10, scaled_positions=places, cell=cell, pbc=periodic)
    atoms.set_initial_charges([1.0, -1.0] * 10)
    free = ~np.array(periodic)
    if not has_all_vectors:
        atoms.cell[free] = 0
    system = fmm.ChargeSystem.from_ase(atoms)
    assert system.boundary == PARTIAL[periodic]
    lengths = np.linalg.norm(system.box_vectors, axis=1)
    assert lengths[~free] == pytest.approx(atoms.cell.lengths()[~free] / 10)
    if has_all_vectors:
        assert lengths[free] == pytest.approx(atoms.cell.lengths()[free] / 10)
    found = system.solver(tolerance=1e-8).compute(system.positions)
    exact = _sum_over(0.1 * atoms.positions, atoms.get_initial_charges(), 0.1 * cell, ~free)
    assert found.energy == pytest.approx(exact, rel=1e-7)


def _sum_over(positions, charges, cell, periodic):
    """The energy by the Ewald sum over the vectors of a cell along which there are images."""
    vectors = np.full((3, 3), np.inf)
    vectors[periodic] = cell[periodic]
    return partial_ewald_sum(positions, charges, vectors).energy


def test_ase_keeps_a_slab_that_lies_as_openmm_has_it():
    """Neither the sign of the third vector nor its tilt turns the atoms."""
    ase = pytest.importorskip("ase")
    for third in ([0, 0, 0], [0, 0, 30], [4, 5, -30]):
        atoms = ase.Atoms("NaCl", [[1, 2, 3], [4, 5, 6]], cell=[[8, 0, 0], [2, 9, 0], third])
        atoms.pbc = [True, True, False]
        atoms.set_initial_charges([1.0, -1.0])
        system = fmm.ChargeSystem.from_ase(atoms)
        assert np.array_equal(system.positions, 0.1 * atoms.positions)


@pytest.mark.slow
def test_ase_water_slab(water):
    """Molecules broken at the faces along which there are images have the same energy as whole
    ones."""
    ase = pytest.importorskip("ase")
    atoms = ase.Atoms(
        [atom.element.symbol for atom in water.topology.atoms()],
        10 * water.positions,
        cell=10 * water.box,
        pbc=[True, True, False],
    )
    atoms.set_initial_charges(water.charges)
    bonds = [(atom1.index, atom2.index) for atom1, atom2 in water.topology.bonds()]
    energies = []
    for broken in (False, True):
        if broken:
            atoms.wrap()
        system = fmm.ChargeSystem.from_ase(atoms, bonds)
        energies.append(system.solver(tolerance=1e-6).compute(system.positions).energy)
    assert energies[1] == pytest.approx(energies[0], rel=1e-6)


@pytest.mark.parametrize(
    ("bonds", "message"),
    [
        ([(0.2, 1.9)], r"must be integer pairs of shape \(m, 2\), got shape \(1, 2\) of float64"),
        ([(0, 1, 1)], r"must be integer pairs of shape \(m, 2\), got shape \(1, 3\)"),
        ([(0, 1), (0,)], r"must be integer pairs of shape \(m, 2\), got \[\(0, 1\), \(0,\)\]"),
        ([(0, 0)], "pairs particle 0 with itself in row 0"),
        ([(0, 2)], r"must hold indices from 0 to 1, got \[0, 2\] in row 0"),
    ],
)
def test_ase_refuses_what_is_no_bond(bonds, message):
    with pytest.raises(ValueError, match=f"^`bonds` {message}"):
        fmm.ChargeSystem.from_ase(crystal(), bonds)


def test_ase_bonds_in_any_order():
    for bonds in ([(1, 0)], [(0, 1), (1, 0)], np.array([[0, 1]], np.uint8)):
        assert fmm.ChargeSystem.from_ase(crystal(), bonds).exclusions.tolist() == [[0, 1]]
    for nothing in (None, [], np.zeros((0, 2), int)):
        assert fmm.ChargeSystem.from_ase(crystal(), nothing).exclusions.shape == (0, 2)


def test_ase_refuses():
    atoms = crystal()
    atoms.cell[2] = 0
    with pytest.raises(ValueError, match=r"`atoms\.cell` must span a positive volume"):
        fmm.ChargeSystem.from_ase(atoms)
    atoms.pbc = [True, False, True]
    with pytest.raises(ValueError, match=r"`atoms\.cell` must span a positive volume"):
        fmm.ChargeSystem.from_ase(atoms)
    with pytest.raises(ValueError, match="`atoms` has no charges"):
        fmm.ChargeSystem.from_ase(pytest.importorskip("ase").Atoms("NaCl"))
    with pytest.raises(TypeError, match=r"`atoms` must be ase\.Atoms, got list"):
        fmm.ChargeSystem.from_ase([])


# A package that is not there


@pytest.mark.parametrize(
    ("module", "extra", "convert"),
    [
        ("mdtraj", "mdtraj", lambda: fmm.ChargeSystem.from_mdtraj(None, [])),
        ("parmed", "parmed", lambda: fmm.ChargeSystem.from_parmed(None)),
        ("MDAnalysis", "mdanalysis", lambda: fmm.ChargeSystem.from_mdanalysis(None)),
        ("ase", "ase", lambda: fmm.ChargeSystem.from_ase(None)),
    ],
)
def test_a_missing_package_names_its_extra(module, extra, convert, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'fmm_openmm\[{extra}\]'"):
        convert()
