"""SPC/E water in LAMMPS."""

import numpy as np
from scipy.spatial.transform import Rotation

SPACING = 3.107
"""Between molecules on a grid, A."""

ANGLE = np.radians(109.47)
MOLECULE = np.array([[0.0, 0, 0], [1.0, 0, 0], [np.cos(ANGLE), np.sin(ANGLE), 0]])

START = """
units {units}
boundary {boundary}
atom_style full
region box prism 0 {edge} 0 {edge} 0 {edge} {tilt}
create_box 2 box bond/types 1 angle/types 1 extra/bond/per/atom 2 extra/angle/per/atom 1 &
    extra/special/per/atom 4
mass 1 15.9994
mass 2 1.008
"""

FIELD = """
set type 1 charge -0.8476
set type 2 charge 0.4238
bond_style harmonic
bond_coeff 1 {bond} 1.0
angle_style harmonic
angle_coeff 1 {angle} 109.47
special_bonds lj 0 0 0.5 coul {coul}
pair_style {pair}
pair_coeff * * 0 0
pair_coeff 1 1 {epsilon} 3.166
"""


def water(
    lammps,
    edge=10,
    pair="lj/cut 9.0",
    tilt="0 0 0",
    coul="0 0 0.5",
    units="real",
    boundary="p p p",
    x=None,
):
    """Molecules in random orientations on a cubic grid, which the box shears.

    Args:
        lammps: the class ``lammps.lammps``.
        edge: molecules along each vector of the box.
        x: positions in place of these, shape (n, 3), A.
    """
    lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
    lmp.commands_string(
        START.format(units=units, boundary=boundary, edge=edge * SPACING, tilt=tilt)
    )
    xy, xz, yz = map(float, tilt.split())
    cell = np.array([[edge * SPACING, 0, 0], [xy, edge * SPACING, 0], [xz, yz, edge * SPACING]])
    grid = np.stack(np.meshgrid(*3 * [np.arange(edge)], indexing="ij"), -1).reshape(-1, 3)
    turns = Rotation.random(len(grid), random_state=1).as_matrix()
    if x is None:
        x = (grid + 0.5)[:, None] / edge @ cell + MOLECULE @ turns
    n = 3 * len(grid)
    lmp.create_atoms(n, np.arange(1, n + 1).tolist(), [1, 2, 2] * len(grid), x.ravel().tolist())
    eV = 1.0 if units == "real" else 1 / 23.060549
    numbers = {"bond": 600 * eV, "angle": 75 * eV, "epsilon": 0.1553 * eV}
    lmp.commands_string(FIELD.format(pair=pair, coul=coul, **numbers))
    for oxygen in range(1, n, 3):
        last = "yes" if oxygen == n - 2 else "no"
        lmp.command(f"create_bonds single/bond 1 {oxygen} {oxygen + 1} special no")
        lmp.command(f"create_bonds single/bond 1 {oxygen} {oxygen + 2} special {last}")
        lmp.command(
            f"create_bonds single/angle 1 {oxygen + 1} {oxygen} {oxygen + 2} special {last}"
        )
    return lmp


def by_id(lmp, values):
    """Values of the atoms in the order of their IDs."""
    n = lmp.extract_setting("nlocal")
    return values[:n][np.argsort(lmp.numpy.extract_atom("id")[:n])].copy()


def evaluate(lmp):
    """Energy, the six components of the pressure of all forces, forces, and energies per atom of
    nonbonded interactions."""
    lmp.command("compute peratom all pe/atom pair kspace fix")
    lmp.command("compute pressure all pressure NULL virial")
    lmp.command("thermo_style custom step pe c_pressure[1]")
    lmp.command("run 0")
    lmp.numpy.extract_compute("peratom", 1, 1)
    return (
        lmp.get_thermo("pe"),
        lmp.numpy.extract_compute("pressure", 0, 1).copy(),
        by_id(lmp, lmp.numpy.extract_atom("f")),
        by_id(lmp, lmp.numpy.extract_compute("peratom", 1, 1)),
    )


def equilibrate(lmp):
    """Positions in the order of IDs of liquid water, shape (n, 3), A, by a short simulation with
    pppm."""
    lmp.commands_string("kspace_style pppm 1e-3\nvelocity all create 300 1\ntimestep 0.5")
    lmp.commands_string("fix move all nve/limit 0.1\nfix bath all langevin 300 300 20 1\nrun 300")
    return by_id(lmp, lmp.numpy.extract_atom("x"))
