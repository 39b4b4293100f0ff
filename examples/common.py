"""What the examples share: their options, their pictures, and averages with error bars."""

import argparse
from pathlib import Path

import numpy as np
from cycler import cycler
from matplotlib import rcParams
from matplotlib.figure import Figure

# colours of Okabe and Ito, which readers with any colour vision tell apart
BLUE, ORANGE, GREEN, PINK, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"
COLOURS = {"FMM": BLUE, "PME": ORANGE}

rcParams.update(
    {
        "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, PINK, BLACK]),
        "axes.grid": True,
        "grid.alpha": 0.3,
        "svg.fonttype": "none",
        "svg.hashsalt": "fmm_openmm",
    }
)


def parse_arguments(script: str, description: str, short: str) -> argparse.Namespace:
    """The options of an example: ``short``, and ``picture``, the path of its picture.

    Args:
        script: the ``__file__`` of the example.
        description: its docstring, whose first paragraph ``--help`` prints.
        short: what ``--short`` leaves out.
    """
    script = Path(script)
    parser = argparse.ArgumentParser(description=description.partition("\n\n")[0])
    parser.add_argument("--short", action="store_true", help=short)
    parser.add_argument(
        "--output",
        type=Path,
        default=script.with_name("output"),
        metavar="DIR",
        help="folder of the picture",
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    arguments.picture = arguments.output / f"{script.stem}.svg"
    return arguments


def new_figure(width: float = 6.4, height: float = 4.2) -> Figure:
    """An empty figure; size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, arguments: argparse.Namespace) -> None:
    """Write the picture and print where it is."""
    figure.savefig(arguments.picture, dpi=150, metadata={"Date": None}, facecolor="white")
    print(f"Picture: {arguments.picture}")


def statistical_inefficiency(series: np.ndarray) -> float:
    """How many consecutive samples of a stationary series count as one independent sample.

    It is ``1 + 2 sum_t rho(t)`` with the autocorrelation ``rho``, summed up to the first lag of
    five times the correlation time found so far (A. Sokal, in *Functional Integration*, Plenum
    1997, section 3, doi:10.1007/978-1-4899-0319-8_6).
    """
    deviation = np.asarray(series) - np.mean(series)
    count = len(deviation)
    spectrum = np.abs(np.fft.rfft(deviation, 2 * count)) ** 2
    correlation = np.fft.irfft(spectrum)[:count]
    if correlation[0] == 0:
        return 1.0
    inefficiency = 2 * np.cumsum(correlation / correlation[0]) - 1
    enough = np.arange(count) >= 2.5 * inefficiency
    return max(1.0, inefficiency[np.argmax(enough)] if enough.any() else count)


def mean_and_error(series: np.ndarray) -> tuple[float, float]:
    """Mean of a correlated series, and its standard error."""
    effective = len(series) / statistical_inefficiency(series)
    return float(np.mean(series)), float(np.std(series) / np.sqrt(max(effective - 1, 1)))
