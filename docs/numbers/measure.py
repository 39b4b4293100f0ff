"""Measure the numbers of README and documentation again.

    python docs/numbers/measure.py [PART ...] [--folder FOLDER] [--dhfr FILE]

Without a PART: lists the parts, and where each can be measured. A part runs the commands that its
pages name, for at most 10 minutes, and writes PART.json with their results, hardware, versions and
date. Afterwards ``python docs/numbers/tables.py`` writes the tables of the pages, and
``python docs/figures/make.py`` draws the figures. Needs no package but those of fmm_openmm and,
for the part torch, those that it compares.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parents[1]
DHFR = "5dfr_solv-cube_equil.pdb.gz"
"""A file of OpenMM's own benchmark, in its repository."""

LIMIT = 600
"""Longest time of a part, s."""


@dataclass(frozen=True)
class Part:
    """Commands whose results belong together.

    Attributes:
        commands: arguments of ``python -m``.
        gpu: whether they need OpenMM's CUDA platform.
        ranks: number of ranks of MPI that run them; 0 without MPI.
        devices: number of GPUs, if they need one.
    """

    commands: tuple[str, ...]
    gpu: bool = True
    ranks: int = 0
    devices: int = 1


BENCH = "fmm_openmm bench"
PARTS = {
    "membranes": Part((f"{BENCH} md --preset popc popc-charmm36 --tolerance 5e-4 1e-5",)),
    "membranes_npt": Part(
        (
            f"{BENCH} md --preset popc popc-charmm36 --ensemble npt --tolerance 5e-4 1e-5 "
            "--no-errors",
        )
    ),
    "membranes_tiled": Part(
        (f"{BENCH} md --preset popc --tile 2x2 --tolerance 5e-4 1e-5 --no-errors",)
    ),
    "membranes_opc": Part((f"{BENCH} md --preset popc-opc --tolerance 5e-4 1e-5 --no-errors",)),
    "protein_charmm36": Part(
        (
            f"{BENCH} md --system {DHFR} --forcefield charmm36.xml charmm36/water.xml "
            "--cutoff 1.2 --switch 1.0 --timestep 0.002 --tolerance 5e-4 1e-5",
        )
    ),
    "protein": Part((f"{BENCH} md --system {DHFR} --tolerance 5e-4 --marginal",)),
    "sites": Part(
        (
            f"{BENCH} md --sizes 6 4.5:2x2x2 --every-atom --tolerance 5e-4 1e-5 --no-marginal "
            "--no-errors",
        )
    ),
    "water": Part((f"{BENCH} md --sizes 6 4.5:2x2x2 7.02:3x3x3 --tolerance 5e-4 1e-5",)),
    "ten_million": Part(
        (
            f"{BENCH} md --sizes 6:8x8x8 --tolerance 5e-4 --precision single --no-marginal "
            "--no-errors",
        )
    ),
    "devices": Part(
        (
            f"{BENCH} md --sizes 6 4.5:2x2x2 7.02:3x3x3 --tolerance 5e-4 --devices 0,1 "
            "--no-marginal --no-errors",
        ),
        devices=2,
    ),
    "devices_smallest": Part(
        (
            f"{BENCH} md --sizes 6.85:2x2x2 --tolerance 5e-4 1e-5 --devices 0,1 --no-marginal "
            "--no-errors",
            f"{BENCH} md --preset popc-charmm36 --tile 2x4 --tolerance 5e-4 --devices 0,1 "
            "--no-errors",
        ),
        devices=2,
    ),
    "devices_membrane": Part(
        (
            f"{BENCH} md --preset popc-charmm36 --tile 4x8 --tolerance 5e-4 --devices 0,1 "
            "--no-errors",
        ),
        devices=2,
    ),
    "energy": Part((f"{BENCH} nve --sizes 6 --tolerance 5e-4",)),
    "solver": Part((f"{BENCH} solver --sizes 6 4.5:2x2x2 7.02:3x3x3",)),
    "grids": Part(
        tuple(
            f"{BENCH} solver --sizes 7.02:3x3x3 --tolerance 5e-4 --smoothing 0 --order 8 "
            f"--near-radius {radius} --grid {grid}"
            for radius, grid in (
                (1.87, "40 40 40"),
                (1.87, "39 39 39"),
                (1.8, "36 40 40"),
                (1.8, "36 36 40"),
                (1.87, "36 36 36"),
            )
        )
    ),
    "scaling": Part((f"{BENCH} scaling",)),
    "open": Part((f"{BENCH} open",)),
    "nearly_empty": Part((f"{BENCH} open --cell 48",)),
    "groups": Part((f"{BENCH} solver --sizes 6.7 --groups 300",)),
    "slab": Part((f"{BENCH} slab --edge 6", f"{BENCH} slab --edge 9")),
    "cpu": Part(
        (
            f"{BENCH} solver --backend cpu --sizes 6 --tolerance 5e-4 1e-4 1e-5 1e-6 1e-8 "
            "--smoothing auto",
        ),
        gpu=False,
    ),
    "cpu_steps": Part((f"{BENCH} md --platform CPU --sizes 6 --tolerance 5e-4",), gpu=False),
    "cpu_cells": Part(
        (
            f"{BENCH} solver --backend cpu --sizes 6 --tolerance 5e-4 --order 9 "
            "--near-radius 1.87 --smoothing 0.035 --cells cube dodecahedron octahedron skewed",
        ),
        gpu=False,
    ),
    "cpu_open": Part((f"{BENCH} open --backend cpu",), gpu=False),
    "torch": Part((f"{BENCH} torch --max-atoms 1e5",)),
    "accuracy": Part(("tests.accuracy_table",), gpu=False),
    "distributed": Part(
        (f"{BENCH} distributed --scattered --sizes 3:3x3x3 3:4x4x4 --ranks 1 2 4",),
        gpu=False,
        ranks=4,
    ),
    "distributed_largest": Part(
        (f"{BENCH} distributed --backend cuda --sizes 3:33x34x34 --ranks 2",),
        ranks=2,
        devices=2,
    ),
    "distributed_gpus": Part(
        (f"{BENCH} distributed --backend cuda --sizes 3:15x15x17 --ranks 1 2",),
        ranks=2,
        devices=2,
    ),
}


def usable_devices() -> int:
    """Number of GPUs, if OpenMM can make a Context on its CUDA platform."""
    import openmm

    system = openmm.System()
    system.addParticle(1.0)
    try:
        cuda = openmm.Platform.getPlatformByName("CUDA")
        openmm.Context(system, openmm.VerletIntegrator(0.001), cuda)
        return len(cuda.getDevices())
    except openmm.OpenMMException:
        return 0


def run(command: str, ranks: int, dhfr: str, seconds: float) -> dict:
    """Run a command for at most these seconds; returns the JSON that it writes."""
    words = [dhfr if word == DHFR else word for word in command.split()]
    start = [str(Path(sys.executable).with_name("mpirun")), "-n", str(ranks)] if ranks else []
    paths = [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "result.json")
        subprocess.run(
            [*start, sys.executable, "-m", *words, f"--json={output}"],
            check=True,
            timeout=seconds,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        return json.loads(output.read_text(encoding="utf-8"))


def measure(part: Part, dhfr: str) -> dict:
    """Hardware, versions and date of a part, and the result of each of its commands."""
    end, results = time.monotonic() + LIMIT, []
    for command in part.commands:
        left = end - time.monotonic()
        results.append({"command": command, **run(command, part.ranks, dhfr, left)})
    origin = {name: results[0][name] for name in ("hardware", "versions")}
    runs = [{k: v for k, v in result.items() if k not in origin} for result in results]
    return {**origin, "date": datetime.date.today().isoformat(), "runs": runs}


def lacking(part: Part, devices: int, dhfr: str) -> str:
    """What a part needs and this machine does not have; empty if nothing."""
    needs = ["a CUDA device that OpenMM can use"] if part.gpu and not devices else []
    if part.gpu and 0 < devices < part.devices:
        needs.append(f"{part.devices} GPUs")
    if part.ranks and not Path(sys.executable).with_name("mpirun").is_file():
        needs.append("MPI: pip install 'fmm_openmm[mpi]'")
    if any(DHFR in command for command in part.commands) and not Path(dhfr).is_file():
        needs.append("--dhfr FILE")
    return " and ".join(needs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the results go")
    parser.add_argument("--dhfr", default=DHFR, metavar="FILE", help=f"OpenMM's {DHFR}")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    devices, failed = usable_devices(), False
    for name in args.parts or PARTS:
        needs = lacking(PARTS[name], devices, args.dhfr)
        if needs or not args.parts:
            print(f"{name}: {f'needs {needs}' if needs else 'can be measured here'}")
            failed |= bool(args.parts)
            continue
        begin = time.monotonic()
        try:
            result = json.dumps(measure(PARTS[name], args.dhfr), indent=1, ensure_ascii=False)
        except subprocess.SubprocessError as error:
            print(f"{name}: {error}", flush=True)
            failed = True
            continue
        (args.folder / f"{name}.json").write_text(f"{result}\n", encoding="utf-8")
        print(f"{name}: measured in {time.monotonic() - begin:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
