"""Trajectories read frame by frame with MDTraj."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from openmm import app

from fmm_openmm.convert.cells import reduced, standard_orientation
from fmm_openmm.convert.packages import require

CHUNK = 16
"""Number of frames in memory at a time."""


@dataclass
class Frame:
    """A frame of a trajectory.

    Attributes:
        time: time in the file, ps.
        positions: shape (n, 3), nm.
        box_vectors: shape (3, 3), nm; None if the file has no cell.
    """

    time: float
    positions: np.ndarray
    box_vectors: np.ndarray | None


def frames(path: Path, topology: app.Topology, stride: int = 1) -> Iterator[Frame]:
    """Read every ``stride``-th frame of a DCD, XTC or NetCDF file.

    Raises:
        ImportError: MDTraj is not installed.
        ValueError: the file is damaged, or does not belong to the topology.
    """
    mdtraj = require("mdtraj", "mdtraj")
    atoms = mdtraj.Topology.from_openmm(topology)
    chunks = mdtraj.iterload(str(path), chunk=CHUNK, stride=stride, top=atoms)
    while True:
        try:
            chunk = next(chunks, None)
        except Exception as error:  # the type depends on the format and on the fault
            raise ValueError(
                f"cannot read {path}, for {atoms.n_atoms} atoms: {error or type(error).__name__}"
            ) from error
        if chunk is None:
            return
        for k in range(chunk.n_frames):
            positions, box = chunk.xyz[k].astype(np.float64), None
            if chunk.unitcell_vectors is not None and chunk.unitcell_vectors[k].any():
                box, rotation = standard_orientation(chunk.unitcell_vectors[k], f"box of {path}")
                positions, box = positions @ rotation, reduced(box)
            yield Frame(float(chunk.time[k]), positions, box)
