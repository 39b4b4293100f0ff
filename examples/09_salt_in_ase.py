"""NaCl in ASE: a strained crystal relaxes to its lattice constant under Coulomb forces of the FMM.

Two calculators add up to the energy of the crystal: the FMM for the Coulomb interaction, and the
Born-Mayer repulsion of neighbouring ions. BFGS relaxes ions and cell together from a strained cell,
which takes forces and stress. The edge of the relaxed cube is known, from the balance of the
Madelung energy and the repulsion. The picture shows the lengths of the cell vectors at each step.

``FMMCalculator`` takes charges from ``atoms.set_initial_charges`` or as an argument.
"""

import numpy as np
from ase.build import bulk
from ase.calculators.mixing import SumCalculator
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS
from born_mayer import BornMayer
from common import new_figure, parse_arguments, save

from fmm_openmm.ase import FMMCalculator

STRAIN = 0.03
FORCE = 1e-3
"""Largest force and stress component, eV/A, at which the crystal counts as relaxed."""


def strained_salt(short: bool):
    """NaCl, sheared and stretched: the two ions of the primitive cell, or the eight of the cubic
    cell, which then are displaced as well."""
    salt = bulk("NaCl", "rocksalt", a=5.64, cubic=not short)
    gradient = np.eye(3) + STRAIN * np.random.default_rng(1).normal(size=(3, 3))
    salt.set_cell(salt.cell.array @ gradient, scale_atoms=True)
    if not short:
        salt.rattle(0.05, seed=1)
    salt.set_initial_charges([1.0, -1.0] * (len(salt) // 2))
    return salt


def draw(lengths, expected):
    """Lengths of the cell vectors by step, and the one that is expected."""
    figure = new_figure()
    axes = figure.subplots()
    for name, values, marker in zip("abc", np.transpose(lengths), "osD", strict=True):
        axes.plot(values, marker=marker, markersize=4, label=name)
    axes.axhline(expected, color="black", linestyle="--", linewidth=1, label="expected")
    axes.set(title="A crystal of NaCl relaxes", xlabel="step of BFGS", ylabel="length of vector, Å")
    axes.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "two ions instead of eight")
    salt, repulsion = strained_salt(arguments.short), BornMayer()
    salt.calc = SumCalculator([FMMCalculator(tolerance=1e-6), repulsion])
    edge = repulsion.lattice_constant()
    length = edge / 2**0.5 if arguments.short else edge

    filtered, lengths, rows = FrechetCellFilter(salt), [], []
    relaxation = BFGS(filtered, logfile=None)
    relaxation.attach(lambda: lengths.append(salt.cell.lengths()))
    relaxation.attach(
        lambda: rows.append((salt.get_potential_energy(), abs(filtered.get_forces()).max()))
    )
    relaxed = relaxation.run(fmax=FORCE, steps=200)

    pairs = len(salt) // 2
    print(f"{'step':>5}{'eV a pair':>12}{'largest force':>16}{'a':>10}{'b':>10}{'c':>10}")
    for step in sorted({0, 1, 2, 5, 10, 20, len(rows) - 1}):
        if step < len(rows):
            (energy, force), (a, b, c) = rows[step], lengths[step]
            print(f"{step:5}{energy / pairs:12.5f}{force:16.5f}{a:10.4f}{b:10.4f}{c:10.4f}")
    found = (4 * salt.get_volume() / pairs) ** (1 / 3)
    print(f"\nEdge of the cube: {found:.4f} Å; Madelung energy against repulsion: {edge:.4f} Å.")
    save(draw(lengths, length), arguments)
    if not relaxed or abs(found / edge - 1) > 1e-3:
        raise SystemExit("the crystal has not relaxed to its lattice constant")


if __name__ == "__main__":
    main()
