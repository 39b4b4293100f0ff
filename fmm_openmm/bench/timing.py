"""Timing on the host, and the name of the hardware."""

import platform
import re
import time
from pathlib import Path

import numpy as np

from fmm_openmm.backends import backend_class, choose_backend
from fmm_openmm.driver import evaluate
from fmm_openmm.openmp import get_num_threads
from fmm_openmm.stages import LEVEL_STAGES, STAGES, Stages

_STAGE_OF = {"lattice_m2l": "lattice", "exclusions": "p2p", "nothing": "l2p"}

REPEATS = 50
BUDGET = 0.5
"""Largest number of repeats, and time spent on them, s."""


def median_seconds(function) -> float:
    """Median wall time of ``function()`` after one call to warm up, seconds."""
    function()
    times: list[float] = []
    while len(times) < 3 or (len(times) < REPEATS and sum(times) < BUDGET):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


class StageClock:
    """Wrapper of stages on the host that records the time of each call."""

    def __init__(self, stages: Stages):
        self._stages = stages
        self.seconds = dict.fromkeys((*STAGES, *LEVEL_STAGES), 0.0)

    def __getattr__(self, name):
        stage = getattr(self._stages, name)
        if not callable(stage):
            return stage

        def timed(*arguments):
            begin = time.perf_counter()
            result = stage(*arguments)
            self.seconds[_STAGE_OF.get(name, name)] += time.perf_counter() - begin
            return result

        return timed


def stage_seconds(stages: Stages, positions: np.ndarray, width: float) -> dict[str, float]:
    """Median wall time of each stage on the host, s; stages that only levels need are included if
    there are levels.

    Args:
        stages: stages of a backend that computes on the host.
        positions, width: see :func:`fmm_openmm.driver.evaluate`.
    """
    runs = []

    def run():
        clock = StageClock(stages)
        evaluate(clock, positions, width)
        runs.append(clock.seconds)

    median_seconds(run)
    used = (*STAGES, *LEVEL_STAGES) if runs[0]["m2l"] else STAGES
    return {stage: float(np.median([seconds[stage] for seconds in runs[1:]])) for stage in used}


def hardware() -> str:
    """Model of the GPU, if there is one, and of the processor, with the number of threads."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    threads = get_num_threads()
    processor = (
        f"{model[1] if model else platform.processor() or platform.machine()}, "
        f"{threads} thread{'s' if threads > 1 else ''}"
    )
    if choose_backend() != "cuda":
        return processor
    return f"{backend_class('cuda').device()}; {processor}"
