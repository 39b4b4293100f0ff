"""Print the accuracy table of ``docs/explanation/accuracy.md``: ``python -m tests.accuracy_table``.

Measured relative RMS force error over tolerance, for every test system and tolerance, against the
project's Ewald sum.
"""

import numpy as np

from fmm_openmm import CoulombSolver
from fmm_openmm.oracle import ewald_sum
from tests.systems import SYSTEMS, build, charge_arrays

TOLERANCES = (1e-2, 1e-3, 5e-4, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)


def main() -> None:
    print(
        f"| system | atoms | {' | '.join(f'{t:g}' for t in TOLERANCES)} |\n"
        f"|---|---|{'---|' * len(TOLERANCES)}"
    )
    for name in SYSTEMS:
        a = charge_arrays(build(name))
        exact = ewald_sum(a.positions, a.charges, a.box_vectors, a.exclusions).forces
        row = []
        for tolerance in TOLERANCES:
            solver = CoulombSolver(
                a.charges, a.box_vectors, a.exclusions, tolerance=tolerance, positions=a.positions
            )
            forces = solver.compute(a.positions).forces
            row.append(f"{np.linalg.norm(forces - exact) / np.linalg.norm(exact) / tolerance:.2g}")
        print(f"| {name} | {len(a.charges)} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
