"""Lattice energies of NaCl, CsCl and zinc blende against their Madelung constants.

In a perfect crystal every ion sees the same potential, known to a dozen digits. Of the face-centred
crystals the cubic and the primitive cell, which is triclinic, must give the same constant. The
picture shows how the error of the potentials falls with the order of the multipole expansion.

This uses the stand-alone solver, which needs charges, positions and box vectors only.
"""

import warnings

import numpy as np
from common import new_figure, parse_arguments, save

import fmm_openmm as fmm
from fmm_openmm.units import COULOMB_CONSTANT

CUBE = np.eye(3)
FCC = np.array([[1, 0, 0], [1 / 2, 3**0.5 / 2, 0], [1 / 2, 3**0.5 / 6, (2 / 3) ** 0.5]]) / 2**0.5
CORNER = np.zeros((1, 3))
FACES = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]) / 2

# edge of the cube (nm); nearest distance over edge; anions, as a shift of the cations; Madelung
# constant (Y. Sakamoto, J. Chem. Phys. 28, 164 (1958), doi:10.1063/1.1744060)
CRYSTALS = {
    "NaCl": (0.564, 1 / 2, 1 / 2, 1.747564594633182),
    "CsCl": (0.4123, 3**0.5 / 2, 1 / 2, 1.762674773070988),
    "ZnS": (0.5409, 3**0.5 / 4, 1 / 4, 1.63805505338879),
}
CELLS = [
    ("NaCl", "cubic", CUBE, FACES),
    ("NaCl", "primitive", FCC, CORNER),
    ("CsCl", "cubic", CUBE, CORNER),
    ("ZnS", "cubic", CUBE, FACES),
    ("ZnS", "primitive", FCC, CORNER),
]


def build(edge, anions, shape, cations, repeats=4):
    """Charges (e), positions and box vectors (nm) of repeats^3 cells; all ions monovalent."""
    cell = edge * shape
    shifts = np.stack(np.meshgrid(*3 * [np.arange(repeats)], indexing="ij"), axis=-1).reshape(
        -1, 1, 3
    )
    positions = ((np.concatenate([cations, cations + anions]) + shifts + 0.1) @ cell).reshape(-1, 3)
    charges = np.tile(np.repeat([1.0, -1.0], len(cations)), repeats**3)
    return charges, positions, repeats * cell


def draw(errors, orders):
    """Error of the potentials against the order, a line a crystal."""
    figure = new_figure()
    axes = figure.subplots()
    for (name, values), marker in zip(errors.items(), "osDv^", strict=True):
        axes.semilogy(orders, values, marker=marker, markersize=5, label=name)
    axes.set(
        title="Potential at every ion of a perfect crystal",
        xlabel="order of the multipole expansion",
        ylabel="relative RMS error",
    )
    axes.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "stop at a lower order")

    tolerance, orders = 1e-8, range(2, 11 if arguments.short else 17)
    errors, missed = {}, []
    print(
        f"{'crystal':16}{'ions':>5}{'kJ/mol of ion':>16}{'Madelung constant':>20}"
        f"{'published':>17}{'error':>10}"
    )
    for salt, kind, shape, cations in CELLS:
        edge, nearest, anions, published = CRYSTALS[salt]
        charges, positions, box_vectors = build(edge, anions, shape, cations)

        energy = (
            fmm.CoulombSolver(charges, box_vectors, tolerance=tolerance).compute(positions).energy
        )

        name, energy = f"{salt} {kind}", energy / len(charges)
        madelung = -2 * energy * nearest * edge / COULOMB_CONSTANT
        error = abs(madelung / published - 1)
        print(
            f"{name:16}{len(charges):5}{energy:16.6f}{madelung:20.12f}"
            f"{published:17.12f}{error:10.1e}"
        )
        if not error <= tolerance:
            missed.append(name)

        exact = -charges * COULOMB_CONSTANT * published / (nearest * edge)
        errors[name] = []
        for order in orders:
            options = {"order": order, "near_radius": 2.5, "smoothing": 0.0, "tolerance": 0.1}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # low orders miss any tolerance, as is to be seen
                solver = fmm.CoulombSolver(charges, box_vectors, precision="double", **options)
                potentials = solver.compute(positions).potentials
            errors[name].append(np.linalg.norm(potentials - exact) / np.linalg.norm(exact))

    print(f"\nEnergies at tolerance {tolerance:g}.")
    save(draw(errors, orders), arguments)
    if missed:
        raise SystemExit(
            f"Madelung constant missed by more than {tolerance:g}: {', '.join(missed)}"
        )


if __name__ == "__main__":
    main()
