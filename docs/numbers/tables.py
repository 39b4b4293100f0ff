"""Write the tables of README and documentation from the measured numbers in this folder.

    python docs/numbers/tables.py

A table stands in its page between ``<!-- table: NAME -->`` and ``<!-- /table -->``, followed by
hardware, date and versions. ``measure.py`` makes the numbers.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parents[1]
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)

Row = dict[str, str]
"""Cells by column; columns that are empty in all rows are left out."""


def part(name: str) -> dict:
    """What ``measure.py`` stored of a part."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def rows_of(*names: str) -> list[dict]:
    """The rows of all runs of some parts, each with the other entries of its run."""
    runs = [run for name in names for run in part(name)["runs"]]
    return [{**run, **row} for run in runs for row in run["rows"] if "failure" not in row]


def digits(value: float | None, count: int = 3) -> str:
    """A number with this many significant digits; nothing for None."""
    if value is None:
        return ""
    shown = f"{float(f'{value:.{count}g}'):#.{count}g}"
    return (f"{value:.0f}" if "e" in shown else shown).rstrip(".")


def fixed(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def microseconds(value: float | None) -> str:
    return fixed(None if value is None else 1e6 * value, ".0f")


def boxes(row: dict) -> str:
    """Order, near radius and boxes of a row that has them."""
    if row.get("order") is None:
        return ""
    grid = [axis[k] for k, axis in enumerate(row["grid"])]
    return f"{row['order']}, {row['near_radius']:g}, {grid}"


def bare(parameters: str) -> str:
    """Numbers of order, near radius and boxes, without these words."""
    return parameters.replace("order ", "").replace("radius ", "")


FILE_OF_DHFR = "5dfr_solv-cube_equil.pdb.gz"


def label(row: dict) -> str:
    """Name of a system that was simulated."""
    name = row["system"].removesuffix(":1x1x1")
    if name == "water" and "--every-atom" in row["command"]:
        name = "water, every atom a site"
    if name == FILE_OF_DHFR:
        name = "DHFR, CHARMM36" if row["cutoff"] > 1 else "DHFR"
    return f"{name}, NPT" if row.get("ensemble") == "npt" else name


def steps(*names: str, systems: bool = True) -> list[Row]:
    """Whole MD steps."""
    return [
        {
            "system": label(row) if systems else "",
            "atoms": f"{row['atoms']:,}",
            "tolerance": "" if row["method"] == "charges zero" else f"{row['tolerance']:g}",
            "method": row["method"],
            "cutoff, nm": f"{row['cutoff']:g}",
            "step, ms": digits(1e3 * row["step_seconds"]),
            "ns/day": f"{row['ns_per_day']:.0f}",
            "over PME's": fixed(row.get("over_pme"), ".2f"),
            "over best PME's": fixed(row.get("over_best_pme"), ".2f"),
            "force error": fixed(row.get("force_error"), ".1e"),
            "order, radius, boxes": boxes(row),
        }
        for row in rows_of(*names)
        if row["method"] != "charges zero" or row["tolerance"] == 5e-4  # the same for all
    ]


def without(rows: list[Row], *columns: str) -> list[Row]:
    """The rows without some columns."""
    return [{name: cell for name, cell in row.items() if name not in columns} for row in rows]


def protein() -> list[Row]:
    rows = steps("protein", systems=False)
    return without(rows, "atoms", "tolerance", "cutoff, nm", "order, radius, boxes")


DEVICES = "devices", "devices_smallest", "devices_membrane"


def devices() -> list[Row]:
    """Steps on one GPU and on two, of water and then of membranes."""
    one, table = {}, []
    for row in sorted(rows_of(*DEVICES), key=lambda row: (row["system"] != "water", row["atoms"])):
        method, _, several = row["method"].partition(" on ")
        if not several:
            one[row["system"], row["atoms"], row["tolerance"], method] = row["step_seconds"]
            continue
        key = row["system"], row["atoms"], row["tolerance"], method
        table.append(
            {
                "system": label(row),
                "atoms": f"{row['atoms']:,}",
                "tolerance": f"{row['tolerance']:g}",
                "method": method,
                "one, ms": digits(1e3 * one[key]),
                "two, ms": digits(1e3 * row["step_seconds"]),
                "two over one": fixed(row["over_one"], ".2f"),
                "memory of each, MB": f"{row['memory'] / 1e6:.0f}",
            }
        )
    return table


def ten_million() -> list[Row]:
    """Steps of water with the memory that they need."""
    return [
        {
            "atoms": f"{row['atoms']:,}",
            "method": row["method"],
            "step, ms": digits(1e3 * row["step_seconds"]),
            "ns/day": f"{row['ns_per_day']:.1f}",
            "over PME's": fixed(row.get("over_pme"), ".2f"),
            "memory, MB": f"{row['memory'] / 1e6:.0f}",
        }
        for row in rows_of("ten_million")
    ]


def all_steps() -> list[Row]:
    return without(steps(*ALL_STEPS), "force error", "order, radius, boxes")


SYSTEMS = {
    ("popc-charmm36", 32512): ("POPC bilayer", "CHARMM36, 1.2 nm"),
    ("popc-charmm36, NPT", 32512): ("POPC bilayer, NPT", "CHARMM36, 1.2 nm"),
    ("DHFR, CHARMM36", 23558): ("DHFR in water", "CHARMM36, 1.2 nm"),
    ("popc", 32512): ("POPC bilayer", "Amber Lipid17, 0.9 nm"),
    ("popc, NPT", 32512): ("POPC bilayer, NPT", "Amber Lipid17, 0.9 nm"),
    ("popc", 130048): ("four POPC bilayers", "Amber Lipid17, 0.9 nm"),
}
"""How texts call the systems of :data:`MEMBRANES`, with force field and cutoff."""

MEMBRANES = (
    "membranes",
    "membranes_npt",
    "membranes_tiled",
    "protein_charmm36",
)
TOLERANCES = {5e-4: "5e-4", 1e-5: "1e-5"}


def found(rows: list[dict], **values) -> dict | None:
    """The first row with these values; None if there is none."""
    return next((row for row in rows if all(row[name] == values[name] for name in values)), None)


def membranes_and_proteins(systems=SYSTEMS, parts=MEMBRANES) -> list[Row]:
    """PME and FMM at two tolerances, one row for each system."""
    rows, table = rows_of(*parts), []
    for (name, atoms), (system, forcefield) in systems.items():
        cells = {"system": system, "force field, cutoff": forcefield, "atoms": f"{atoms:,}"}
        measured = [row for row in rows if label(row) == name and row["atoms"] == atoms]
        for tolerance, shown in TOLERANCES.items():
            pme = found(measured, tolerance=tolerance, method="PME")
            fmm = found(measured, tolerance=tolerance, method="FMM")
            cells[f"PME, {shown}"] = digits(1e3 * pme["step_seconds"])
            cells[f"FMM, {shown}"] = digits(1e3 * fmm["step_seconds"])
            cells[f"FMM/PME, {shown}"] = f"{fmm['over_pme']:.2f}"
        table.append(cells)
    return table


def water() -> list[Row]:
    """PME and FMM at two tolerances, one row for each number of atoms."""
    rows = rows_of("water")
    columns = {
        f"{method}, {shown}" if method != "PME, best cutoff" else "PME, 1e-5, best cutoff": {
            "tolerance": tolerance,
            "method": method,
        }
        for tolerance, shown in TOLERANCES.items()
        for method in ("PME", "PME, best cutoff", "FMM")
        if (tolerance, method) != (5e-4, "PME, best cutoff")
    }
    table = []
    for atoms in dict.fromkeys(row["atoms"] for row in rows):
        cells = {"atoms": f"{atoms:,}"}
        for name, values in columns.items():
            row = found(rows, atoms=atoms, **values)
            cells[name] = digits(1e3 * row["step_seconds"]) if row else ""
        table.append(cells)
    atoms = max(row["atoms"] for row in rows if row.get("force_error"))
    errors = {
        name: fixed((found(rows, atoms=atoms, **values) or {}).get("force_error"), ".1e")
        for name, values in columns.items()
    }
    return [*table, {"atoms": f"RMS force error, {atoms:,}", **errors}]


def gains() -> list[Row]:
    """FMM over PME, by system and tolerance."""
    ratio = "FMM/PME, "
    names = {f"{ratio}{shown}": f"at {shown}" for shown in TOLERANCES.values()}
    opc = {("popc-opc", 37632): ("POPC bilayer", "Amber Lipid17 and OPC, 0.9 nm")}
    table = [
        {name: row[name] for name in ("system", "force field, cutoff", "atoms")}
        | {"hardware": "", **{names[name]: row[name] for name in names}}
        for row in [*membranes_and_proteins(), *membranes_and_proteins(opc, ("membranes_opc",))]
    ]
    rows = rows_of("water")
    for atoms in dict.fromkeys(row["atoms"] for row in rows):
        cells = {"system": "TIP3P water", "force field, cutoff": "Amber, 0.9 nm"}
        cells["atoms"] = f"{atoms:,}"
        for tolerance, shown in TOLERANCES.items():
            row = found(rows, atoms=atoms, tolerance=tolerance, method="FMM")
            cells[f"at {shown}"] = f"{row['over_pme']:.2f}"
        table.append(cells)
    return table


def energy() -> list[Row]:
    return [
        {
            "atoms": f"{row['atoms']:,}",
            "method": row["method"],
            "drift, kT/ns/dof": f"{row['drift']:+.4f}",
            "residual, kJ/mol": f"{row['residual']:.3f}",
        }
        for row in rows_of("energy")
    ]


def evaluations() -> list[Row]:
    """Evaluations on a GPU with their stages, us."""
    return [
        {
            "atoms": f"{row['atoms']}",
            "tolerance": f"{row['tolerance']:g} {row['precision']}",
            "smoothing": f"{row['smoothing']:g}",
            "order, radius, boxes": boxes(row),
            "error": f"{row['force_error']:.1e}",
            "evaluation": microseconds(row["seconds"]),
            **{stage: microseconds(value) for stage, value in row["stages"].items()},
            "new shape": microseconds(row["new_shape_seconds"]),
            "10^9 pairs/s": digits(1e-9 * row["pairs_per_second"]),
            "p2p / limit": fixed(row["p2p_share"], ".2f"),
            "far / limit": fixed(row["far_share"], ".2f"),
        }
        for row in rows_of("solver")
    ]


def among_groups() -> list[Row]:
    """Energies among groups of atoms on a GPU."""
    return [
        {
            "atoms": f"{row['atoms']:,}",
            "groups": str(row["groups"]),
            "tolerance": f"{row['tolerance']:g} {row['precision']}",
            "evaluation, us": microseconds(row["seconds"]),
            "energies among groups, ms": fixed(1e3 * row["groups_seconds"], ".1f"),
        }
        for row in rows_of("groups")
        if row["smoothing_asked"] == "auto"
    ]


def grids() -> list[Row]:
    return [
        {
            "near radius, boxes": boxes(row).partition(", ")[2],
            "error": f"{row['force_error']:.1e}",
            "evaluation": microseconds(row["seconds"]),
            "p2p": microseconds(row["stages"]["p2p"]),
            "p2p / limit": fixed(row["p2p_share"], ".2f"),
        }
        for row in rows_of("grids")
    ]


def scaling() -> list[Row]:
    return [
        {
            "atoms": f"{row['atoms']:,}",
            "evaluation": microseconds(row["seconds"]),
            "ns an atom": f"{1e9 * row['seconds'] / row['atoms']:.2f}",
            "error": f"{row['force_error']:.1e}",
        }
        for row in rows_of("scaling")
    ]


def milliseconds(value: float | None) -> str:
    return digits(None if value is None else 1e3 * value, 2)


def droplets(name: str, shown: Callable[[float | None], str]) -> list[Row]:
    """Methods in free space, with times in the unit of ``shown``."""
    rows, table = rows_of(name), []
    for atoms in dict.fromkeys(row["atoms"] for row in rows):
        fmm, direct, tree = (
            found(rows, atoms=atoms, method=method) or {}
            for method in ("fmm", "direct", "treecode")
        )
        table.append(
            {
                "atoms": f"{atoms:,}",
                "order, radius, boxes": bare(fmm["parameters"]),
                "error": fixed(fmm.get("force_error"), ".1e"),
                "FMM": shown(fmm["seconds"]),
                "direct sum": shown(direct.get("seconds")),
                "treecode": shown(tree.get("seconds")),
            }
        )
    return table


def slab(name: str) -> list[Row]:
    """Evaluations of water as a slab and as a periodic cube."""
    return [
        {
            "system": row["system"],
            "atoms": f"{row['atoms']:,}",
            "order, radius, boxes, or PME's options": bare(row["parameters"]),
            "force error": f"{row['force_error']:.1e}",
            "evaluation, us": microseconds(row["seconds"]),
            "over the cube's": f"{row['ratio']:.2f}" if row["system"] == "slab" else "",
        }
        for row in rows_of(name)
    ]


def nearly_empty() -> list[Row]:
    return [
        {
            "system": row["system"],
            "atoms": f"{row['atoms']:,}",
            "order, radius, boxes": bare(row["parameters"]),
            "error": f"{row['force_error']:.1e}",
            "evaluation": microseconds(row["seconds"]),
            "a call": microseconds(row["call_seconds"]),
        }
        for row in rows_of("nearly_empty")
    ]


def errors() -> list[Row]:
    """Measured error over tolerance of the test systems."""
    return [
        {"system": row["system"], "atoms": str(row["atoms"])}
        | {name: f"{ratio:.2g}" for name, ratio in row["error_over_tolerance"].items()}
        for row in rows_of("accuracy")
    ]


def cpu() -> list[Row]:
    return [
        {
            "tolerance": f"{row['tolerance']:g}",
            "order, radius, boxes": boxes(row),
            "precision": row["precision"],
            "measured error": f"{row['force_error']:.1e}",
            "evaluation, ms": f"{1e3 * row['seconds']:.1f}",
            "new shape, ms": f"{1e3 * row['new_shape_seconds']:.0f}",
        }
        for row in rows_of("cpu")
    ]


def cpu_steps() -> list[Row]:
    times = {row["method"]: f"{1e3 * row['step_seconds']:.1f}" for row in rows_of("cpu_steps")}
    return [{name: times[name] for name in ("PME", "FMM", "charges zero")}]


def cells() -> list[Row]:
    rows = rows_of("cpu_cells")
    return [
        {
            "cell": row["cell"],
            "measured error": f"{row['force_error']:.1e}",
            "evaluation, ms": f"{1e3 * row['seconds']:.1f}",
            "over the cube": f"{row['seconds'] / rows[0]['seconds']:.2f}",
        }
        for row in rows
    ]


LINKS = 2
"""Excluded partners of an atom of water."""


def copied(row: dict) -> float:
    """Particles in boxes of other ranks that a rank gets, as it owns layers of boxes."""
    layers, near = row["grid"][2][2], 2 * int(row["near_radius"])
    return row["atoms"] * min(near / layers, 1 - 1 / row["ranks"])


def sent(row: dict) -> float:
    """Bytes that a rank sends to others for an evaluation, with particles at random on the ranks:
    positions and charges, links, results, the copies, and the terms of its boxes, four times."""
    share, away = 1 / row["ranks"], 1 - 1 / row["ranks"]
    (length, *_), *_ = row["grid"]
    numbers = 4 * (row["order"] + 1) ** 2 * np.prod([axis[k] for k, axis in enumerate(row["grid"])])
    particles = row["atoms"] * share * (32 + 12 * LINKS + 32) + 32 * copied(row)
    return float(away * (particles + share * numbers * (2 + 2 * (1 + 2 / length))))


def fitted(name: str, counts: Callable[[dict], tuple[float, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the counts, for which the relative errors of their sum are least, and its
    values, for the rows of the part ``distributed``."""
    rows = rows_of("distributed")
    matrix, measured = np.array([counts(row) for row in rows]), np.array([r[name] for r in rows])
    coefficients = np.linalg.lstsq(matrix / measured[:, None], np.ones(len(rows)))[0]
    return coefficients, matrix @ coefficients


def computing() -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a rank per particle of its own and per copy."""
    return fitted("compute_seconds", lambda row: (row["atoms"] / row["ranks"], copied(row)))


def memory() -> tuple[np.ndarray, np.ndarray]:
    """Bytes of a rank per particle of its share and per particle of all."""
    return fitted("memory", lambda row: (row["atoms"] / row["ranks"], row["atoms"]))


def through_torch() -> list[Row]:
    return [
        {
            "atoms": f"{row['atoms']:,}",
            "code": row["package"],
            "energy and gradients, ms": digits(1e3 * row["seconds"]),
            "memory, MiB": f"{row['memory'] / 2**20:.0f}",
            "force error": f"{row['force_error']:.1e}",
        }
        for row in rows_of("torch")
    ]


def distributed() -> list[Row]:
    return [
        {
            "atoms": f"{row['atoms']:,}",
            "ranks": str(row["ranks"]),
            "computing, ms": f"{1e3 * row['compute_seconds']:.0f}",
            "model": f"{1e3 * seconds:.0f}",
            "sent, MB": f"{1e-6 * row['sent']:.2f}",
            "by the model": f"{1e-6 * sent(row):.2f}",
            "memory, MB": f"{1e-6 * row['memory']:.0f}",
            "of the model": f"{1e-6 * size:.0f}",
        }
        for row, seconds, size in zip(
            rows_of("distributed"), computing()[1], memory()[1], strict=True
        )
    ]


def distributed_gpus() -> list[Row]:
    """An evaluation on one GPU and shared by several."""
    return [
        {
            "atoms of water, tolerance": f"{row['atoms']:,}, {row['tolerance']:g}",
            "GPUs": str(row["ranks"]),
            "evaluation, ms": f"{1e3 * row['seconds']:.1f}",
            "`CoulombSolver` on one, ms": f"{1e3 * row['one_rank_seconds']:.1f}",
            "memory a GPU, GB": f"{1e-9 * row['memory']:.1f}",
            "`CoulombSolver`'s, GB": f"{1e-9 * row['one_rank_memory']:.1f}",
            "force error": f"{row['force_error']:.1e}",
        }
        for row in rows_of("distributed_gpus", "distributed_largest")
    ]


def coefficients() -> list[Row]:
    (own, copy), (share, everything) = computing()[0], memory()[0]
    return [
        {"quantity": "time per particle of a rank, us", "value": digits(1e6 * own)},
        {"quantity": "time per copy, us", "value": digits(1e6 * copy)},
        {"quantity": "memory per particle of a rank, bytes", "value": digits(share)},
        {"quantity": "memory per particle of all, bytes", "value": digits(everything)},
    ]


PARTICLES = 1e9
"""Number of particles in the plan for many GPUs."""

RATES = {
    8: 2048**3 * 8 / 8 / 78e-3,
    2048: 2048**3 * 8 / 2048 / 4e-3,
}
"""Bytes a second at which each of so many GPUs transforms an array in three dimensions: 2048^3
complex numbers in single precision take 78 ms and 4 ms (cuFFTMp on NVIDIA's Selene)."""


def seconds_by_levels(atoms: str) -> dict[int, float]:
    """Seconds of an evaluation for each number of levels, on an H200, as stated in the page."""
    page = CHECKOUT / "docs" / "development" / "measurements.md"
    row = rf"^\| {atoms} \| [^|]* \| (\d) \| [^|]* \| (\d+) \|"
    found = re.findall(row, page.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(levels): 1e-6 * float(microseconds) for levels, microseconds in found}


_by_levels = seconds_by_levels("1,031,040")
LEVELS = (_by_levels[2] - _by_levels[0]) / 1_031_040
"""Seconds per particle that two levels add to an evaluation."""


def plan() -> list[Row]:
    """An evaluation of :data:`PARTICLES` on many GPUs, on paper."""
    water = found(rows_of("solver"), atoms=922752, tolerance=5e-4, smoothing=0.0)
    whole = found(rows_of("ten_million"), method="FMM")
    assert water and whole
    per_box = water["atoms"] / np.prod([axis[k] for k, axis in enumerate(water["grid"])])
    terms, table = (water["order"] + 1) ** 2, []
    for gpus, rate in (
        (8, RATES[8]),
        (1024, RATES[2048]),
        (1024, 2 * RATES[2048]),
        (4096, RATES[2048]),
    ):
        own = PARTICLES / gpus
        copies = own * ((1 + 2 * int(water["near_radius"]) * (per_box / own) ** (1 / 3)) ** 3 - 1)
        compute = (own * water["seconds"] + copies * water["stages"]["sort"]) / water["atoms"]
        halo, transforms = 16 * copies / rate, 2 * 4 * terms * own / per_box / rate
        table.append(
            {
                "GPUs": f"{gpus:,}",
                "GB/s": f"{1e-9 * rate:.1f}",
                "computing, ms": digits(1e3 * compute, 2),
                "copies, ms": digits(1e3 * halo, 2),
                "transforms, ms": digits(1e3 * transforms, 2),
                "evaluation, ms": digits(1e3 * (compute + halo + transforms), 2),
                "with two levels, ms": digits(
                    1e3 * (compute + halo + own * LEVELS + transforms / 64), 2
                ),
                "memory, GB": digits(1e-9 * own * whole["memory"] / whole["atoms"], 2),
            }
        )
    return table


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        page: from the checkout.
        parts: of ``measure.py``, which it shows.
    """

    page: str
    parts: tuple[str, ...]
    rows: Callable[[], list[Row]]


PLUGIN, GPU = "docs/reference/plugin.md", "docs/reference/gpu.md"
ACCURACY, METHOD = "docs/explanation/accuracy.md", "docs/explanation/method.md"
RANKS = "docs/explanation/many-ranks.md"
ALL_STEPS = (*MEMBRANES, "sites")
TABLES = {
    "readme_membranes": Table("README.md", MEMBRANES, membranes_and_proteins),
    "readme_water": Table("README.md", ("water",), water),
    "gains": Table("docs/howto/gain.md", (*MEMBRANES, "membranes_opc", "water"), gains),
    "membranes": Table(PLUGIN, ALL_STEPS, all_steps),
    "protein": Table(PLUGIN, ("protein",), protein),
    "water": Table(PLUGIN, ("water",), lambda: steps("water", systems=False)),
    "ten_million": Table(PLUGIN, ("ten_million",), ten_million),
    "devices": Table("docs/howto/several-gpus.md", DEVICES, devices),
    "energy": Table(PLUGIN, ("energy",), energy),
    "solver": Table(GPU, ("solver",), evaluations),
    "grids": Table(GPU, ("grids",), grids),
    "scaling": Table(GPU, ("scaling",), scaling),
    "open": Table(GPU, ("open",), lambda: droplets("open", microseconds)),
    "nearly_empty": Table(GPU, ("nearly_empty",), nearly_empty),
    "accuracy": Table(ACCURACY, ("accuracy",), errors),
    "cpu": Table(ACCURACY, ("cpu",), cpu),
    "cpu_steps": Table(ACCURACY, ("cpu_steps",), cpu_steps),
    "cpu_open": Table(METHOD, ("cpu_open",), lambda: droplets("cpu_open", milliseconds)),
    "cpu_cells": Table(ACCURACY, ("cpu_cells",), cells),
    "torch": Table("docs/howto/pytorch.md", ("torch",), through_torch),
    "groups": Table("docs/howto/one-evaluation.md", ("groups",), among_groups),
    "slab": Table("docs/howto/slabs.md", ("slab",), lambda: slab("slab")),
    "distributed": Table(RANKS, ("distributed",), distributed),
    "distributed_gpus": Table(
        "docs/howto/mpi.md", ("distributed_gpus", "distributed_largest"), distributed_gpus
    ),
    "coefficients": Table(RANKS, ("distributed",), coefficients),
    "plan": Table(RANKS, ("solver", "ten_million"), plan),
}


def origins(parts: tuple[str, ...]) -> str:
    """Hardware, versions and dates of the parts, in one sentence, with the ``note`` of a part if it
    has one."""
    days: dict[tuple[str, ...], list[str]] = {}
    for name in parts:
        stored = part(name)
        versions = stored["versions"]
        note = stored.get("note", "")
        if "PyTorch" in versions:
            note = f", PyTorch {versions['PyTorch']}{note}"
        key = stored["hardware"], versions["OpenMM"], versions["fmm_openmm"], note
        days.setdefault(key, []).append(stored["date"])
    measured = [
        f"{' and '.join(sorted(set(dates)))} on {hardware}, OpenMM {openmm}, fmm_openmm {version}"
        f"{note}"
        for (hardware, openmm, version, note), dates in days.items()
    ]
    return f"*Measured {'; '.join(measured)}.*"


def markdown(table: Table) -> str:
    """The table and its origin."""
    rows = table.rows()
    columns = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) for row in rows)
    ]
    lines = [columns, ["---"] * len(columns)]
    lines += [[row.get(name, "") for name in columns] for row in rows]
    shown = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{shown}\n\n{origins(table.parts)}\n"


def written(text: str) -> str:
    """The text of a page with all of its tables written anew."""
    return TABLE.sub(lambda m: f"{m[1]}{markdown(TABLES[m[2]])}{m[3]}", text)


def main() -> None:
    for name in dict.fromkeys(table.page for table in TABLES.values()):
        page = CHECKOUT / name
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
