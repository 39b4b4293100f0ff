"""Potentials and fields on the GPU at points that are not particles."""

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device
from fmm_openmm.backends.cuda.execute.cupy.faults import explained
from fmm_openmm.backends.cuda.pipeline.points import SOURCES, build_points
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.specification import Specification

MOST_POINTS = 2**20
"""Maximum number of points that are evaluated together, which bounds the memory."""


class PointsRun:
    """A program for points among the particles of an evaluator on the current device.

    Args:
        specification: what the evaluator was made for, without levels.
        points: number of points.
        particles: the buffers of the evaluator's program.
    """

    def __init__(
        self, specification: Specification, points: int, particles: dict[str, cupy.ndarray]
    ):
        self._points = min(points, MOST_POINTS)
        program = build_points(specification, current_device(), self._points)
        sources = {name: particles[source] for name, source in SOURCES.items()}
        with explained(program):
            self._run = Run(program, sources)
        self._run.queue(SETUP)
        self._parameters: np.ndarray | None = None

    def evaluate(self, points, parameters: np.ndarray):
        """Queue the evaluation of points, shape (m, 3), nm, after one of the particles.

        Args:
            parameters: the parameter block of that evaluation.

        Returns:
            potentials (m,) and fields (m, 3) in OpenMM units, on the device.
        """
        buffers = self._run.buffers
        if self._parameters is not parameters:
            buffers["parameters"].set(parameters)
            self._parameters = parameters
        potentials = cupy.empty(len(points), buffers["potentials"].dtype)
        fields = cupy.empty((len(points), 3), buffers["fields"].dtype)
        for first in range(0, len(points), self._points):
            chunk = slice(first, first + self._points)
            count = len(points[chunk])
            buffers["positions"][:count] = points[chunk]
            buffers["positions"][count:] = points[-1]
            self._run.replay()
            potentials[chunk] = buffers["potentials"][:count]
            fields[chunk] = buffers["fields"][:count]
        return potentials, fields
