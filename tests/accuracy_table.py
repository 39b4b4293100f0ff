"""Print the accuracy table of ``docs/explanation/accuracy.md``: ``python -m tests.accuracy_table``;
with ``--json=FILE`` also write the errors.

Measured relative RMS force error over tolerance, for every test system and tolerance, against the
project's Ewald sum.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from fmm_openmm import CoulombSolver
from fmm_openmm.bench.timing import hardware
from fmm_openmm.cli.info import versions
from fmm_openmm.oracle import ewald_sum
from tests.systems import SYSTEMS, build, charge_arrays

TOLERANCES = (1e-2, 1e-3, 5e-4, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    output, rows = parser.parse_args().json, []
    print(
        f"| system | atoms | {' | '.join(f'{t:g}' for t in TOLERANCES)} |\n"
        f"|---|---|{'---|' * len(TOLERANCES)}"
    )
    for name in SYSTEMS:
        a = charge_arrays(build(name))
        exact = ewald_sum(a.positions, a.charges, a.box_vectors, a.exclusions).forces
        ratios = {}
        for tolerance in TOLERANCES:
            solver = CoulombSolver(
                a.charges, a.box_vectors, a.exclusions, tolerance=tolerance, positions=a.positions
            )
            forces = solver.compute(a.positions).forces
            error = float(np.linalg.norm(forces - exact) / np.linalg.norm(exact))
            ratios[f"{tolerance:g}"] = error / tolerance
        shown = " | ".join(f"{ratio:.2g}" for ratio in ratios.values())
        print(f"| {name} | {len(a.charges)} | {shown} |", flush=True)
        rows.append({"system": name, "atoms": len(a.charges), "error_over_tolerance": ratios})
    if output:
        result = {"hardware": hardware(), "versions": versions(), "rows": rows}
        output.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
