r"""Predicted times of the layouts of P2P, and the choice between them. Needs no GPU.

Particles are placed at random, so that a box holds k of them with the Poisson probability of their
density n, and its m near boxes hold K with that of m n. With passes P = E[ceil(k / 4)], steps of 32
sources in a box s = E[ceil(k / 32)] and in a stream S = E[ceil(K / 32)], a box takes

    p2p_indexed      P targets + P m row + P m s gathered + n m s pair
    replicate        m listed + m n copied
    p2p_replicated   P targets + P S streamed + n S pair

where the names are costs of one operation each, :class:`Costs`. All of the device is taken to be
busy: launches are left out, and so is what systems of few boxes leave idle. The costs depend on the
GPU and the precision only and are measured once for each (``fmm-openmm bench layouts``): ``pair``
from the rate of a loop of multiply-adds, the others by a non-negative fit to the kernels' times at
other densities than those predicted.

That a model of few coefficients can choose between the layouts is the idea of M. Sadeghi,
arXiv:2511.21535, whose model has a locality of the data in their place.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

import numpy as np
from scipy.optimize import nnls
from scipy.stats import poisson

from fmm_openmm.cache import Entries
from fmm_openmm.literature.layouts import PASS_TARGETS
from fmm_openmm.version import __version__

WARP = 32

KERNELS = {"indexed": ("p2p_indexed",), "replicated": ("replicate", "p2p_replicated")}
"""Of each layout, in order."""


@dataclass(frozen=True)
class Costs:
    """What an operation of a warp adds to the time of a busy device, seconds.

    Attributes:
        pair: a target meets a source in every lane.
        targets: a pass: up to 4 targets are read, their sums added over the lanes and written.
        row: a near box is looked up.
        gathered: a source for every lane is read from a near box and shifted.
        streamed: a source for every lane is read from the stream.
        listed: a near box is looked up for copying.
        copied: a source is found, read, shifted and written into the stream.
    """

    pair: float
    targets: float
    row: float
    gathered: float
    streamed: float
    listed: float
    copied: float


def operations(kernel: str, density: float, near: int) -> dict[str, float]:
    """How many operations of each kind a kernel takes for a box, on average.

    Args:
        density: parts a box, on average.
        near: number of near boxes, itself included.
    """
    if kernel == "replicate":
        return {"listed": near, "copied": near * density}
    passes = _expected(density, PASS_TARGETS)
    if kernel == "p2p_replicated":
        steps = _expected(near * density, WARP)
        return {"targets": passes, "streamed": passes * steps, "pair": density * steps}
    steps = near * _expected(density, WARP)
    return {
        "targets": passes,
        "row": passes * near,
        "gathered": passes * steps,
        "pair": density * steps,
    }


def predict(kernel: str, density: float, near: int, boxes: int, costs: Costs) -> float:
    """Time of a kernel on so many boxes, seconds."""
    return boxes * sum(
        getattr(costs, name) * count for name, count in operations(kernel, density, near).items()
    )


def predict_layout(layout: str, density: float, near: int, boxes: int, costs: Costs) -> float:
    """Time of all kernels of a layout, seconds."""
    return sum(predict(kernel, density, near, boxes, costs) for kernel in KERNELS[layout])


def choose(density: float, near: int, costs: Costs) -> str:
    """The layout predicted to be the faster one."""
    return min(KERNELS, key=lambda layout: predict_layout(layout, density, near, 1, costs))


def fit(pair: float, measured: Iterable[tuple[str, float, int, int, float]]) -> Costs:
    """Costs, that of a pair given, that fit best: least squares of relative deviations, none
    negative.

    Args:
        measured: kernel, density, near boxes, boxes, seconds.
    """
    names = [field.name for field in fields(Costs) if field.name != "pair"]
    matrix, rest = [], []
    for kernel, density, near, boxes, seconds in measured:
        count = operations(kernel, density, near)
        matrix.append([boxes * count.get(name, 0.0) / seconds for name in names])
        rest.append(1.0 - boxes * count.get("pair", 0.0) * pair / seconds)
    return Costs(
        pair, **dict(zip(names, map(float, nnls(np.array(matrix), np.array(rest))[0]), strict=True))
    )


def key(device: str, dtype) -> str:
    """What costs are kept under."""
    return f"{device}, fmm_openmm {__version__}, {np.dtype(dtype).name}"


def _expected(mean: float, size: int) -> float:
    """E[ceil(k / size)] of a Poisson-distributed k."""
    k = np.arange(int(mean + 12 * np.sqrt(mean) + 30))
    return float(poisson.pmf(k, mean) @ np.ceil(k / size))


def _checked(entry: dict) -> Costs:
    if not all(type(value) in (int, float) and 0 <= value < np.inf for value in entry.values()):
        raise ValueError("an entry is not of costs")
    return Costs(**entry)


KEPT = Entries(
    "layouts.json",
    "costs",
    "fmm_openmm layouts 1",
    "run `fmm-openmm bench layouts`",
    _checked,
    asdict,
)
"""The file in the user's cache folder."""
