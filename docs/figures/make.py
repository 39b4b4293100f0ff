"""The figures of README and documentation: ``python docs/figures/make.py`` writes all of them.

Numbers are read from the tables of the pages, so that a figure shows what its page says; commands
and hardware behind them are named there. Colours are those of Okabe and Ito, which readers with any
colour vision tell apart, and every curve has a marker of its own."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullFormatter

import fmm_openmm as fmm
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent

BLUE, ORANGE, GREEN, BLACK, PALE = "#0072B2", "#D55E00", "#009E73", "#000000", "#56B4E9"

STYLE = {
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "fmm_openmm",  # the same file from the same numbers
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def table(page: str, *columns: str) -> list[dict[str, str]]:
    """The rows of the first table of a page that has all of these columns."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    for place, head in enumerate(rows):
        if set(columns) <= set(head):
            end = next(k for k in range(place, len(rows) + 1) if k == len(rows) or not rows[k])
            return [dict(zip(head, row, strict=True)) for row in rows[place + 2 : end]]
    raise ValueError(f"{page} has no table with the columns {', '.join(columns)}")


def hardware(part: str) -> str:
    """Hardware and version of OpenMM of some measured numbers."""
    stored = json.loads((DOCS / "numbers" / f"{part}.json").read_text(encoding="utf-8"))
    return f"{stored['hardware']}, OpenMM {stored['versions']['OpenMM']}"


def number(text: str) -> float:
    return float(text.replace(",", ""))


def power(tolerance: str) -> str:
    """As 5e-4, from 0.0005 or 5e-04."""
    return f"{float(tolerance):.0e}".replace("e-0", "e-")


def steps() -> Figure:
    """Whole MD steps of water with FMM and PME: time against size, and time against error."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    growth, accuracy = figure.subplots(1, 2)
    rows = table("reference/plugin.md", "method", "tolerance", "step, ms", "force error")
    curves = [
        ("PME", "0.0005", ORANGE, "o", "-"),
        ("PME, best cutoff", "1e-05", ORANGE, "s", "--"),
        ("FMM", "0.0005", BLUE, "o", "-"),
        ("FMM", "1e-05", BLUE, "s", "--"),
    ]
    for method, tolerance, colour, marker, line in curves:
        chosen = [r for r in rows if (r["method"], r["tolerance"]) == (method, tolerance)]
        growth.plot(
            [number(row["atoms"]) for row in chosen],
            [number(row["step, ms"]) for row in chosen],
            color=colour,
            marker=marker,
            linestyle=line,
            label=f"{method}, {power(tolerance)}",
        )
    growth.set(xscale="log", yscale="log", xlabel="atoms of TIP3P water", ylabel="MD step, ms")
    growth.legend(fontsize=8.5)
    for method, colour, marker in (("PME", ORANGE, "o"), ("FMM", BLUE, "s")):
        chosen = [
            row
            for row in rows
            if row["atoms"] == "70,752" and row["force error"] and row["method"].startswith(method)
            if not row["method"].endswith("by OpenMM")
        ]
        chosen.sort(key=lambda row: (number(row["force error"]), number(row["step, ms"])))
        accuracy.plot(
            [number(row["force error"]) for row in chosen],
            [number(row["step, ms"]) for row in chosen],
            color=colour,
            marker=marker,
            linestyle="none",
            markersize=8,
            label=method,
        )
        for row in chosen:
            name = power(row["tolerance"]) + (
                f", {row['cutoff, nm']} nm" if "best" in row["method"] else ""
            )
            accuracy.annotate(
                name,
                (number(row["force error"]), number(row["step, ms"])),
                (0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
            )
    accuracy.set(
        xscale="log",
        xlim=(6e-7, 3e-3),
        ylim=(0, 0.85),
        xlabel="relative RMS error of Coulomb forces",
        ylabel="MD step, ms",
        title="70,752 atoms, by tolerance",
    )
    accuracy.legend(loc="upper right")
    growth.set_title(hardware("water"))
    return figure


def boxes() -> Figure:
    """A plane of boxes: which are near, and which are far."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    side, home = 7, (3, 3)
    random = np.random.default_rng(3)
    places = random.uniform(0, side, (60, 2))
    for axes, radius in zip(figure.subplots(1, 2), (1.87, 2.64), strict=True):
        for box in np.ndindex(side, side):
            apart = np.abs(np.subtract(box, home))
            near = np.hypot(*apart) <= radius or apart.max() <= 1
            colour = ORANGE if box == home else PALE if near else "white"
            axes.add_patch(
                Rectangle(box, 1, 1, facecolor=colour, alpha=0.75, edgecolor="0.6", linewidth=0.8)
            )
            if not near:
                axes.plot(*np.add(box, 0.5), "+", color=BLUE, markersize=6)
        axes.plot(*places.T, ".", color=BLACK, markersize=4)
        axes.add_patch(Rectangle((0, 0), side, side, fill=False, linewidth=1.6))
        axes.set_aspect("equal")
        axes.set_axis_off()
        axes.set_title(f"near radius {radius:g} box widths")
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=ORANGE, alpha=0.75),
        Rectangle((0, 0), 1, 1, facecolor=PALE, alpha=0.75),
        axes.plot([], [], "+", color=BLUE)[0],
    ]
    names = ["the box", "near: pairs of particles", "far, and all images: expansions"]
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


def convolution() -> Figure:
    """The far potential in a plane of boxes as a convolution, in the lowest degree: the net charges
    of boxes, and the potential of a unit charge and its images, without the near boxes."""
    side, middle = 9, (4, 4, 4)
    moments = np.zeros((side,) * 3)
    moments[2, 5, 4], moments[6, 3, 4] = 1, -1
    boxes = np.stack(np.unravel_index(np.arange(side**3), moments.shape), 1)
    unit = np.zeros(side**3)
    unit[np.ravel_multi_index(middle, moments.shape)] = 1
    operator = ewald_sum(boxes + 0.5, unit, side * np.eye(3)).potentials / COULOMB_CONSTANT
    apart = np.linalg.norm(boxes - middle, axis=1)
    near = (apart > 0) & (apart <= 1.87)
    operator[near] -= 1 / apart[near]
    operator = operator.reshape(moments.shape)
    operator -= operator[middle]  # a constant changes nothing in a neutral system
    waves = np.fft.rfftn(moments) * np.fft.rfftn(np.roll(operator, -4, (0, 1, 2)))
    panels = [
        ("charges of boxes", moments, r"$\ast$"),
        ("lattice operator", operator, "="),
        ("potential of all far charges", np.fft.irfftn(waves, moments.shape, (0, 1, 2)), ""),
    ]
    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    for axes, (title, values, sign) in zip(figure.subplots(1, 3), panels, strict=True):
        plane = np.round(values[:, :, 4].T, 3)
        largest = np.abs(plane).max()
        axes.pcolormesh(plane, cmap="PuOr", vmin=-largest, vmax=largest, edgecolors="0.85")
        axes.text(1.06, 0.5, sign, transform=axes.transAxes, fontsize=20, va="center")
        axes.set(aspect="equal", title=title)
        axes.set_axis_off()
    return figure


def crossing(smoothing: float, offsets: np.ndarray) -> np.ndarray:
    """Error of the energy, kJ/mol, of 120 ions at a low order, while one of them crosses the face
    of a box of 1 nm; offsets from the face in nm."""
    random = np.random.default_rng(7)
    charges, cell = np.tile([1.0, -1.0], 60), 4 * np.eye(3)
    sites = 0.8 * np.stack(np.unravel_index(np.arange(120), (5, 5, 5)), 1) + 0.4
    positions = sites + random.uniform(-0.15, 0.15, sites.shape)
    moving, face = 62, 1.875  # the boxes begin at an eighth of their width
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the large error, which is to be seen here
        solver = fmm.CoulombSolver(
            charges,
            cell,
            order=4,
            grid=(4, 4, 4),
            near_radius=1.8,
            smoothing=smoothing,
            precision="double",
            backend="reference",
        )
    errors = []
    for offset in offsets:
        positions[moving, 0] = face + offset
        exact = ewald_sum(positions, charges, cell).energy
        errors.append(solver.compute(positions).energy - exact)
    return np.round(errors, 3)  # the same figure whatever the processor


def smoothing() -> Figure:
    """Weights of a particle at a face between boxes, and the energy while it crosses."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    weights, energy = figure.subplots(1, 2)
    offsets, width = np.linspace(-0.2, 0.2, 81), 0.1
    t = np.clip((offsets + width) / (2 * width), 0, 1)
    right = t**2 * (3 - 2 * t)
    weights.plot(offsets, 1 - right, "-", color=ORANGE, label="of the left box")
    weights.plot(offsets, right, "--", color=BLUE, label="of the right box")
    weights.set(title="smoothing 0.1", ylabel="weight of the particle")
    offsets = np.linspace(-0.195, 0.195, 40)
    jumps = crossing(0.0, offsets)
    energy.plot(offsets, jumps, "o", color=ORANGE, markersize=3, label="no smoothing")
    energy.plot(offsets, crossing(width, offsets), "-", color=BLUE, label="smoothing 0.1")
    energy.set(title="order 4, low to show the jump", ylabel="error of the energy, kJ/mol")
    for axes in (weights, energy):
        axes.axvline(0, color="0.6", linewidth=0.8)
        axes.set_xlabel("distance from the face, box widths")
        axes.legend()
    return figure


def tolerance() -> Figure:
    """Measured errors of the test systems against the tolerance asked for."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    rows = table("explanation/accuracy.md", "system", "atoms", "0.0005")
    asked = [name for name in rows[0] if re.fullmatch(r"[\d.e-]+", name)]
    values = np.array([float(name) for name in asked])
    for row in rows:
        ratios = np.array([number(row[name]) for name in asked])
        dilute = row["system"] == "droplet"
        axes.plot(
            values,
            ratios * values,
            "s" if dilute else "o",
            color=ORANGE if dilute else BLUE,
            markersize=4,
            alpha=0.7,
            label={"droplet": "droplet in a large cell", "water": "15 other systems"}.get(
                row["system"]
            ),
        )
    axes.plot(values, values, "-", color=BLACK, label="tolerance")
    axes.set(
        xscale="log", yscale="log", xlabel="tolerance", ylabel="measured relative RMS force error"
    )
    axes.legend()
    return figure


def cost() -> Figure:
    """Time of an evaluation against the number of particles."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    periodic, free = figure.subplots(1, 2)
    rows = table("reference/gpu.md", "atoms", "evaluation", "ns an atom")
    atoms = np.array([number(row["atoms"]) for row in rows])
    times = np.array([number(row["evaluation"]) for row in rows]) / 1000
    periodic.plot(atoms, times, "o-", color=BLUE, label="FMM")
    periodic.plot(atoms, times[-1] * atoms / atoms[-1], ":", color=BLACK, label="linear growth")
    periodic.set_title("water in a periodic cube")
    rows = table("reference/gpu.md", "atoms", "FMM", "direct sum")
    atoms = [number(row["atoms"]) for row in rows]
    for name, colour, marker in (("FMM", BLUE, "o"), ("direct sum", ORANGE, "s")):
        times = [number(row[name]) / 1000 for row in rows]
        free.plot(atoms, times, marker=marker, color=colour, label=name)
    free.set_title("a droplet in free space")
    for axes in (periodic, free):
        axes.set(xscale="log", yscale="log", xlabel="atoms", ylabel="evaluation, ms")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.legend()
    return figure


FIGURES = {
    "steps": steps,
    "boxes": boxes,
    "convolution": convolution,
    "smoothing": smoothing,
    "tolerance": tolerance,
    "cost": cost,
}


def main(folder: Path = FOLDER) -> None:
    """Write every figure into the folder."""
    rcParams.update(STYLE)
    for name, draw in FIGURES.items():
        draw().savefig(folder / f"{name}.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
