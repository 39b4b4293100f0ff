"""Trajectories in which boxes and parameters change, each with a solver; and an executor that
computes their frames in another order."""

from concurrent.futures import Executor, Future
from functools import cache, partial

import numpy as np

import fmm_openmm as fmm
from tests.convert.small_water import BOX, small_water
from tests.support.free_space import droplet


class Backwards(Executor):
    """Runs all tasks when the first result is asked for, the last one first."""

    def __init__(self):
        self.tasks = []

    def submit(self, function, /, *arguments):
        executor = self

        class Late(Future):
            def result(self, timeout=None):
                while executor.tasks:
                    future, work = executor.tasks.pop()
                    future.set_result(work())
                return super().result(timeout)

        self.tasks.append((Late(), lambda: function(*arguments)))
        return self.tasks[-1][0]


@cache
def water():
    _, system, positions = small_water()
    return fmm.ChargeSystem.from_openmm(system, positions)


def liquid(count, **options):
    """Water whose box fluctuates, is strained beyond what boxes are kept for, and goes back."""
    charges, random = water(), np.random.default_rng(1)
    frames = []
    for number in range(count):
        scale = 1 + 0.004 * random.normal(size=3) + np.array([0.0, 0.0, 0.08]) * (number % 5 == 2)
        frames.append((charges.positions * scale, BOX * scale))
    return frames, charges.solver(tolerance=1e-5, **options)


def growing_droplet(box, **options):
    """Water that evaporates, and in the last frame is as in the second one."""
    x, q, pairs = droplet(500)
    molecules = x.reshape(-1, 3, 3) - x.mean(0)
    frames = [
        ((molecules + 0.05 * step * molecules[:, :1]).reshape(-1, 3) + 7.0, box)
        for step in (0, 1, 4, 8, 7, 12, 1)
    ]
    boundary = "open" if box is None else "periodic"
    given = q, box, pairs, 1e-5, boundary
    return frames, fmm.CoulombSolver(*given, positions=frames[0][0], **options)


def close_ions(**options):
    """Frames of which one needs double precision."""
    random = np.random.default_rng(2)
    x = np.indices((6, 6, 6)).reshape(3, -1).T * 0.4 + random.uniform(-0.05, 0.05, (216, 3))
    q = np.where(np.arange(216) % 2, 1.0, -1.0)
    frames = [x + random.normal(0, 0.01, x.shape) for _ in range(5)]
    frames[2][1] = frames[2][0] + [0.0, 0.0, 1e-3]
    return frames, fmm.CoulombSolver(q, 2.4 * np.eye(3), tolerance=1e-4, **options)


TRAJECTORIES = {
    "liquid": partial(liquid, 8),
    "droplet in a cell": partial(growing_droplet, 15 * np.eye(3)),
    "droplet in free space": partial(growing_droplet, None),
    "close ions": close_ions,
}
