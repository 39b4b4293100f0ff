r"""Predicted times of the layouts of P2P, and the choice between them. Needs no GPU.

Particles are placed at random, so that a box holds k of them with the Poisson probability of their
density n, and its m near boxes hold K with that of m n. With passes P = E[ceil(k / 4)], steps of 32
sources in a box s = E[ceil(k / 32)] and in a stream S = E[ceil(K / 32)], a box takes

    p2p_indexed      P targets + P m row + P m s gathered + n m s pair
    replicate        m listed + m n copied
    p2p_replicated   P targets + P S streamed + n S pair

with the costs of single operations in :class:`Costs`. The device is assumed to be fully occupied:
the model neglects launches and the idle time in systems of few boxes. The costs depend only on the
GPU and the precision and are measured once for each (``fmm-openmm bench layouts``): ``pair`` from
the rate of a loop of multiply-adds, the others by a non-negative fit to the kernels' times at
densities other than those of the predictions.

A model of few coefficients that chooses between the layouts was proposed by M. Sadeghi,
arXiv:2511.21535; that model uses a locality of the data instead of these costs.
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
"""The kernels of each layout, in order."""


@dataclass(frozen=True)
class Costs:
    """Costs of a warp's operations on a fully occupied device, seconds.

    Attributes:
        pair: interaction of a target with one source per lane.
        targets: a pass: reading up to 4 targets, summing over the lanes and writing results.
        row: looking up a near box.
        gathered: reading one source per lane from a near box and shifting it.
        streamed: reading one source per lane from the stream.
        listed: looking up a near box for copying.
        copied: finding a source, reading, shifting and writing it to the stream.
    """

    pair: float
    targets: float
    row: float
    gathered: float
    streamed: float
    listed: float
    copied: float


def operations(kernel: str, density: float, near: int) -> dict[str, float]:
    """Mean number of operations of each kind per box in a kernel.

    Args:
        density: mean number of parts per box.
        near: number of near boxes, the box itself included.
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
    """Time of a kernel, seconds."""
    return boxes * sum(
        getattr(costs, name) * count for name, count in operations(kernel, density, near).items()
    )


def predict_layout(layout: str, density: float, near: int, boxes: int, costs: Costs) -> float:
    """Time of all kernels of a layout, seconds."""
    return sum(predict(kernel, density, near, boxes, costs) for kernel in KERNELS[layout])


def choose(density: float, near: int, costs: Costs) -> str:
    """Choose the layout that is predicted to be faster."""
    return min(KERNELS, key=lambda layout: predict_layout(layout, density, near, 1, costs))


def fit(pair: float, measured: Iterable[tuple[str, float, int, int, float]]) -> Costs:
    """Fit non-negative costs to measured times by least squares of relative deviations, with the
    cost of a pair given.

    Args:
        measured: kernel, density, near boxes, boxes, seconds.
    """
    names = [field.name for field in fields(Costs) if field.name != "pair"]
    matrix, remainder = [], []
    for kernel, density, near, boxes, seconds in measured:
        count = operations(kernel, density, near)
        matrix.append([boxes * count.get(name, 0.0) / seconds for name in names])
        remainder.append(1.0 - boxes * count.get("pair", 0.0) * pair / seconds)
    return Costs(
        pair,
        **dict(zip(names, map(float, nnls(np.array(matrix), np.array(remainder))[0]), strict=True)),
    )


def key(device: str, dtype) -> str:
    """The key of costs in the cache."""
    return f"{device}, fmm_openmm {__version__}, {np.dtype(dtype).name}"


def _expected(mean: float, size: int) -> float:
    """E[ceil(k / size)] for a Poisson-distributed k."""
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
"""The file of costs in the user's cache folder."""
