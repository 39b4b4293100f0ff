"""Molten salt in a narrow pore, periodic along its axis only, and in periodic cells with vacuum.

The simulation has the FMM with ``boundary="wire"``. The forces on its last frames are compared with
the Ewald sum over the images along the axis; those of periodic cells, whose images across the axis
are further and further away, come closer to it, as the dipole moments of the images decay.
"""

import numpy as np
import openmm
from common import COLOURS, new_figure, parse_arguments, save

import fmm_openmm as fmm
from fmm_openmm.oracle import partial_ewald_sum

TOLERANCE = 1e-5
PAIRS, LENGTH, RADIUS = 40, 4.0, 0.5  # of ions; nm
CUTOFF = 0.9  # nm
TEMPERATURE = 1500  # K


def make_pore(width):
    """A System of NaCl in a pore along z, in the middle of a box of the given width, nm, and its
    positions: a rod of the crystal."""
    system, nonbonded = openmm.System(), openmm.NonbondedForce()
    system.setDefaultPeriodicBoxVectors(*np.diag([width, width, LENGTH]))
    nonbonded.setNonbondedMethod(openmm.NonbondedForce.PME)
    nonbonded.setCutoffDistance(CUTOFF)
    nonbonded.setUseDispersionCorrection(False)
    # I. S. Joung and T. E. Cheatham, J. Phys. Chem. B 112, 9020 (2008), doi:10.1021/jp8001614,
    # for TIP3P
    kinds = ((22.99, 1.0, 0.2439281, 0.3658460), (35.45, -1.0, 0.4477657, 0.1489127))
    wall = openmm.CustomExternalForce(
        f"1000 * max(0, sqrt((x - {width / 2})^2 + (y - {width / 2})^2) - {RADIUS})^2"
    )
    rungs = 2 * PAIRS // 4
    spacing, positions = LENGTH / rungs, []
    for index in range(2 * PAIRS):
        rung, corner = divmod(index, 4)
        x, y = ((0, 0), (0, 1), (1, 1), (1, 0))[corner]
        mass, charge, sigma, epsilon = kinds[(rung + corner) % 2]
        system.addParticle(mass)
        nonbonded.addParticle(charge, sigma, epsilon)
        wall.addParticle(index)
        positions.append(
            [width / 2 + 0.28 * (x - 0.5), width / 2 + 0.28 * (y - 0.5), rung * spacing]
        )
    system.addForce(nonbonded)
    system.addForce(wall)
    return system, np.array(positions)


def simulate(system, positions, frames, interval):
    """Positions of the frames of a simulation, shape (n, 3), nm."""
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, 5, 0.002)
    integrator.setRandomNumberSeed(3)
    context = openmm.Context(system, integrator)
    context.setPositions(positions)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=100)
    context.setVelocitiesToTemperature(TEMPERATURE, 3)
    for _ in range(frames):
        integrator.step(interval)
        yield context.getState(positions=True).getPositions(asNumpy=True)._value


def draw(widths, periodic, wire):
    """Mean errors against the distance of the images across the axis."""
    figure = new_figure()
    axes = figure.subplots()
    axes.plot(widths, periodic, "o-", color=COLOURS["PME"], label="periodic cell with vacuum")
    axes.axhline(wire, color=COLOURS["FMM"], label="wire")
    axes.set(yscale="log", xlabel="width of the periodic cell (nm)", ylabel="relative force error")
    axes.set_title("Molten salt in a pore")
    axes.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "a few frames and widths")
    frames, interval, widths = 40, 100, (2.0, 3.0, 4.5, 6.5, 9.0)
    if arguments.short:
        frames, interval, widths = 2, 20, (2.0, 4.5)
    width = 3.0
    system, positions = make_pore(width)
    fmm.use_fmm(system, boundary="wire", tolerance=TOLERANCE)
    charges = fmm.ChargeSystem.from_openmm(system).charges
    frames = list(simulate(system, positions, frames, interval))[-10:]
    cell = np.diag([np.inf, np.inf, LENGTH])
    exact = np.array([partial_ewald_sum(x, charges, cell).forces for x in frames])

    def errors(width, boundary):
        solver = fmm.CoulombSolver(
            charges, np.diag([width, width, LENGTH]), tolerance=TOLERANCE, boundary=boundary
        )
        differences = np.array([solver.compute(x).forces for x in frames]) - exact
        found = np.linalg.norm(differences, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
        name = "wire" if boundary == "wire" else f"periodic, {width:g} nm wide"
        print(f"{name:24}{found.mean():12.1e}{found.max():12.1e}")
        return found

    radius = np.linalg.norm(np.array(frames)[:, :, :2] - width / 2, axis=-1)
    print(f"{len(charges)} ions in a pore, at most {radius.max():.2f} nm from its axis")
    print(f"{'force error':24}{'mean':>12}{'largest':>12}")
    wire = errors(width, "wire")
    periodic = [errors(each, "periodic").mean() for each in widths]
    save(draw(widths, periodic, wire.mean()), arguments)
    if not wire.max() < TOLERANCE:
        raise SystemExit("missed: the tolerance of the wire")
    if not (np.diff(periodic) < 0).all():
        raise SystemExit("missed: vacuum brings periodic cells closer to the wire")


if __name__ == "__main__":
    main()
