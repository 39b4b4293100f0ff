"""A layer of water between vacuum, and a sheet and a chain of ions, without images where there are
none.

The Madelung constants of the chain and of the sheet are known in closed form. For the layer the
picture shows the potential on both sides: it is flat, and the step across the layer is that of its
dipole moment. With images along all directions, 3 nm of vacuum between them, the same dipole moment
makes a field in the vacuum, which the correction of Yeh and Berkowitz removes.
"""

import numpy as np
import openmm
from common import new_figure, parse_arguments, save
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.oracle import partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT

TOLERANCE = 1e-5
VACUUM = 3.0  # nm, between the images that a periodic cell has


def sheet_and_chain():
    """Name, boundary, positions, box vectors and Madelung constant for a nearest distance of 1."""
    yield "chain", "wire", [[0, 0, 0], [0, 0, 1]], np.diag([1.0, 1.0, 2.0]), 2 * np.log(2)
    edge = np.sqrt(2)
    centre = [edge / 2, edge / 2, 0]
    # 4 (sqrt(2) - 1) zeta(1/2) beta(1/2): D. Borwein, J. M. Borwein and K. F. Taylor, J. Math.
    # Phys. 26, 2999 (1985), doi:10.1063/1.526675
    yield "sheet", "slab", [[0, 0, 0], centre], np.diag([edge, edge, 1.0]), 1.6155426267128247


def check_constants(missed):
    """Print the Madelung constants."""
    print(f"{'ions':8}{'Madelung constant':>20}{'exact':>18}{'error':>10}")
    for name, boundary, positions, box_vectors, exact in sheet_and_chain():
        solver = fmm.CoulombSolver([1.0, -1.0], box_vectors, tolerance=1e-10, boundary=boundary)
        found = -solver.compute(positions).energy / COULOMB_CONSTANT
        error = abs(found / exact - 1)
        print(f"{name:8}{found:20.13f}{exact:18.13f}{error:10.1e}")
        if not error < 1e-10:
            missed.append(f"Madelung constant of the {name}")


def water(edge):
    """A cube of water of the given edge, nm, whose molecules are whole."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(forcefield, boxSize=openmm.Vec3(edge, edge, edge) * unit.nanometer)
    system = forcefield.createSystem(modeller.topology, nonbondedMethod=app.PME)
    return fmm.ChargeSystem.from_openmm(system, modeller.positions)


def vacuum_potentials(solver, layer, edge, heights):
    """The result of a solver, and averages of the potential over planes in the vacuum,
    kJ/mol/e."""
    plane = np.stack(np.meshgrid(*2 * [np.arange(12) * edge / 12], [0.0]), -1).reshape(-1, 3)
    points = (plane + heights[:, None, None] * [0.0, 0.0, 1.0]).reshape(-1, 3)
    result = solver.compute(layer.positions, points=points)
    return result, result.point_potentials.reshape(len(heights), -1).mean(1)


def draw(heights, profiles, inside):
    """The potential in the vacuum, and its average over planes in the layer."""
    figure = new_figure()
    axes = figure.subplots()
    axes.plot(*inside, color="0.6", label="slab, average over planes")
    for (name, values), marker in zip(profiles.items(), "os^", strict=True):
        axes.plot(heights, values, marker, markersize=4, label=name)
    axes.set(xlabel="z (nm)", ylabel="potential (kJ/mol/e)", title="A layer of water in vacuum")
    axes.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "a smaller layer")
    missed = []
    check_constants(missed)

    edge = 1.9 if arguments.short else 2.8
    layer = water(edge)
    charges, z = layer.charges, layer.positions[:, 2]
    low, high = z.min(), z.max()
    heights = np.concatenate([low - np.linspace(1.4, 0.4, 11), high + np.linspace(0.4, 1.4, 11)])
    profiles = {}

    slab = layer.solver(boundary="slab", tolerance=TOLERANCE)
    found, profiles["slab"] = vacuum_potentials(slab, layer, edge, heights)
    cell = np.diag([edge, edge, np.inf])
    exact = partial_ewald_sum(layer.positions, charges, cell, layer.exclusions)
    error = np.linalg.norm(found.forces - exact.forces) / np.linalg.norm(exact.forces)

    box_vectors = np.diag([edge, edge, high - low + VACUUM])
    periodic = fmm.CoulombSolver(charges, box_vectors, layer.exclusions, TOLERANCE)
    _, uncorrected = vacuum_potentials(periodic, layer, edge, heights)
    # the field of the dipole moment of all images: I.-C. Yeh and M. L. Berkowitz, J. Chem. Phys.
    # 111, 3155 (1999), doi:10.1063/1.479595
    dipole, volume = charges @ z, edge**2 * box_vectors[2, 2]
    middle = (low + high) / 2
    correction = COULOMB_CONSTANT * 4 * np.pi * dipole / volume * (heights - middle)
    profiles["periodic, 3 nm of vacuum"] = uncorrected
    profiles["the same, corrected"] = uncorrected + correction

    step = COULOMB_CONSTANT * 4 * np.pi * dipole / edge**2
    flat = profiles["slab"]
    across = flat[11:].mean() - flat[:11].mean()
    print(f"\n{len(charges)} atoms of water, a layer of {high - low:.2f} nm")
    print(f"relative force error        {error:9.1e}  (tolerance {TOLERANCE:g})")
    print(f"step of the potential       {across:9.4f} kJ/mol/e")
    print(f"of its dipole moment        {step:9.4f} kJ/mol/e")
    for name, values in profiles.items():
        slope = np.polyfit(heights[11:], values[11:], 1)[0]
        print(f"field above, {name:26}{-slope:10.4f} kJ/mol/nm/e")
        if name != "periodic, 3 nm of vacuum" and not abs(slope) < 1e-2 * abs(step):
            missed.append(f"field in the vacuum, {name}")
    if not error < TOLERANCE:
        missed.append("force error")
    if not abs(across - step) < 1e-3 * abs(step):
        missed.append("step of the potential")

    everywhere = np.linspace(low - 1.4, high + 1.4, 400)
    distances = np.abs(everywhere[:, None] - z)
    average = -2 * np.pi / edge**2 * COULOMB_CONSTANT * (distances @ charges)
    offset = flat.mean() - profiles["periodic, 3 nm of vacuum"].mean()
    for name in list(profiles)[1:]:
        profiles[name] = profiles[name] + offset  # a periodic potential averages to 0
    save(draw(heights, profiles, (everywhere, average)), arguments)
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
