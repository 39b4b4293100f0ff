"""The potential across a layer of water between vacuum, without images along the normal and with
them, behind vacuum.

After an equilibration with PME the simulation has the FMM with ``boundary="slab"``. In a
periodic cell, as PME has it, the dipole moments of all images add a field to every frame, which
vanishes with the dipole moment only, on average over long times. Shaded areas are standard errors.
"""

import numpy as np
import openmm
from common import COLOURS, mean_and_error, new_figure, parse_arguments, save
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.units import COULOMB_CONSTANT, VOLT

TOLERANCE = 1e-4
STEP = 0.002  # ps
HEIGHT = 6.0  # nm, of the box of Lennard-Jones, and of the periodic cell
MARGIN = 1.2  # nm of vacuum in the profile
SPACING, WIDTH = 0.2, 0.15  # nm, of the grid and of Gaussian charges
NAMES = {"slab": "FMM", "periodic": "PME"}


def make_layer(edge):
    """A System of a cube of water in the middle of a box with vacuum, with PME, and its
    positions."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(forcefield, boxSize=openmm.Vec3(edge, edge, edge) * unit.nanometer)
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometer
    )
    system.setDefaultPeriodicBoxVectors(*np.diag([edge, edge, HEIGHT]))
    nonbonded = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    nonbonded.setUseDispersionCorrection(False)
    positions = np.array(modeller.positions.value_in_unit(unit.nanometer))
    positions[:, 2] += HEIGHT / 2 - positions[:, 2].mean()
    return system, positions


def langevin():
    integrator = openmm.LangevinMiddleIntegrator(300, 2, STEP)
    integrator.setRandomNumberSeed(3)
    return integrator


def simulate(system, positions, frames, interval, equilibration):
    """Positions and box vectors of the frames of a simulation at 300 K, by the FMM of a slab after
    an equilibration by PME."""
    context = openmm.Context(system, langevin())
    context.setPositions(positions)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=50)
    context.setVelocitiesToTemperature(300, 3)
    context.getIntegrator().step(equilibration)
    start = context.getState(positions=True, velocities=True)

    fmm.use_fmm(system, boundary="slab", tolerance=TOLERANCE)
    context = openmm.Context(system, langevin())
    context.setState(start)
    for _ in range(frames):
        context.getIntegrator().step(interval)
        state = context.getState(positions=True, enforcePeriodicBox=True)
        yield state.getPositions(asNumpy=True)._value, state.getPeriodicBoxVectors(True)._value


def profiles_of(frames, solver, region):
    """Heights, nm, and the profile of each frame, V, shape (frames, k)."""
    found = [
        fmm.potential_map([frame], solver, SPACING, charge_width=WIDTH, progress=False, **region)
        for frame in frames
    ]
    return found[0].profile("z")[0], np.array([each.profile("z")[1] for each in found]) / VOLT


def draw(heights, profiles):
    """Averages of the profiles with their standard errors."""
    figure = new_figure()
    axes = figure.subplots()
    for name, values in profiles.items():
        mean, error = np.transpose([mean_and_error(series) for series in values.T])
        colour = COLOURS[NAMES[name]]
        axes.plot(heights, mean, color=colour, label=name)
        axes.fill_between(heights, mean - error, mean + error, color=colour, alpha=0.3, lw=0)
    axes.set(xlabel="z (nm)", ylabel="potential (V)", title="A layer of water in vacuum")
    axes.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "a few frames of a thin layer")
    edge, frames, interval, equilibration = 1.9, 40, 50, 5000
    if arguments.short:
        frames, interval, equilibration = 4, 5, 20
    system, positions = make_layer(edge)
    frames = list(simulate(system, positions, frames, interval, equilibration))

    layer = fmm.ChargeSystem.from_openmm(system)
    region = {
        "origin": [0, 0, (HEIGHT - edge) / 2 - MARGIN],
        "vectors": np.diag([edge, edge, edge + 2 * MARGIN]),
    }
    profiles = {}
    for name in NAMES:
        solver = layer.solver(boundary=name, tolerance=TOLERANCE)
        heights, profiles[name] = profiles_of(frames, solver, region)
    outside = np.abs(heights - HEIGHT / 2) > edge / 2 + MARGIN - 0.4
    middle = np.abs(heights - HEIGHT / 2) < 0.4
    print(f"{len(layer)} atoms of water, {len(frames)} frames, {interval * STEP:g} ps apart")
    for name, values in profiles.items():
        values -= values[:, outside].mean(1)[:, None]
        drop, error = mean_and_error(values[:, middle].mean(1))
        print(f"{name + ', water over vacuum':32}{drop:8.3f} ± {error:.3f} V")

    # of all images of the dipole moment: I.-C. Yeh and M. L. Berkowitz, J. Chem. Phys. 111, 3155
    # (1999), doi:10.1063/1.479595
    dipoles = np.array([layer.charges @ x[:, 2] for x, _ in frames])
    expected = 4 * np.pi * COULOMB_CONSTANT / VOLT * dipoles / (edge**2 * HEIGHT)
    fields = -np.polyfit(heights, (profiles["periodic"] - profiles["slab"]).T, 1)[0]
    mean, error = mean_and_error(fields)
    missing = np.abs(fields - expected).max()
    print(f"{'field of the images, mean':32}{mean:8.3f} ± {error:.3f} V/nm")
    print(f"{'field of the images, RMS':32}{np.sqrt(np.mean(fields**2)):8.3f} V/nm")
    print(f"{'less that of the dipole moment':32}{missing:8.0e} V/nm at most")
    save(draw(heights, profiles), arguments)
    if not missing < 1e-3 * np.abs(expected).max():
        raise SystemExit("missed: the field of the images is that of the dipole moment")


if __name__ == "__main__":
    main()
