"""DCD files of several programs, against what was written and against MDTraj."""

import numpy as np
import pytest
from openmm import Vec3, app, unit

from fmm_openmm.convert.dcd import HEADER, PARTICLES, DcdFile
from fmm_openmm.convert.frames import read_frames

N, COUNT = 7, 4
BOX = np.array([[2.2, 0.0, 0.0], [0.6, 2.1, 0.0], [-0.5, 0.4, 2.3]])
SCALE = (1 + 0.01 * np.arange(COUNT))[:, None, None]
POSITIONS = np.random.default_rng(1).uniform(-3.0, 3.0, (COUNT, N, 3))


def write(path, box=BOX):
    """OpenMM's file of frames in a cell that is scaled, or without a cell."""
    topology = app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for _ in range(N):
        topology.addAtom("X", None, residue)
    if box is not None:
        topology.setPeriodicBoxVectors(box * unit.nanometer)
    with open(path, "w+b") as opened:
        file = app.DCDFile(opened, topology, 0.002, 500, 100)
        for positions, scale in zip(POSITIONS, SCALE, strict=True):
            vectors = None if box is None else [Vec3(*row) for row in scale * box]
            file.writeModel(positions * unit.nanometer, periodicBoxVectors=vectors)
    return path


@pytest.mark.parametrize("name", ["skewed", "cuboid", "none"])
def test_openmms_files(name, tmp_path):
    """Cells keep the digits of float64, times are those of the steps."""
    box = {"skewed": BOX, "cuboid": np.diag(BOX.diagonal()), "none": None}[name]
    path = write(tmp_path / "run.dcd", box)
    for stride in 1, 3:
        found = list(read_frames(path, stride=stride))
        assert len(found) == len(POSITIONS[::stride])
        for k, frame in zip(range(0, COUNT, stride), found, strict=True):
            assert frame.positions.dtype == np.float32
            assert frame.positions == pytest.approx(POSITIONS[k], rel=2e-7)
            assert frame.time == pytest.approx(0.002 * (500 + 100 * k), rel=1e-6)
            if box is None:
                assert frame.box_vectors is None
            else:
                assert frame.box_vectors == pytest.approx(SCALE[k] * box, rel=1e-14, abs=1e-14)


def test_positions_are_those_of_mdtraj(tmp_path):
    mdtraj = pytest.importorskip("mdtraj")
    path = write(tmp_path / "run.dcd")
    with mdtraj.open(str(path)) as file:
        expected, lengths, angles = file.read()
    for frame, x, *cell in zip(read_frames(path), expected, lengths, angles, strict=True):
        assert np.array_equal(frame.positions, x * np.float32(0.1))
        rows = frame.box_vectors
        assert np.linalg.norm(rows, axis=1) == pytest.approx(0.1 * cell[0], rel=1e-6)
        cosines = [rows[1] @ rows[2], rows[0] @ rows[2], rows[0] @ rows[1]]
        products = np.prod(np.linalg.norm(rows, axis=1)) / np.linalg.norm(rows, axis=1)
        assert np.degrees(np.arccos(cosines / products)) == pytest.approx(cell[1], rel=1e-6)


def test_big_endian_and_angles_in_degrees(tmp_path):
    path = write(tmp_path / "run.dcd")
    expected = list(read_frames(path))
    data, file = path.read_bytes(), DcdFile.open(path)
    start, rest = data[: HEADER.itemsize], data[file.begin - PARTICLES.itemsize : file.begin]
    title = data[HEADER.itemsize : file.begin - PARTICLES.itemsize]
    frames = np.frombuffer(data, file.dtype, offset=file.begin).copy()
    frames["cell"][:, [1, 3, 4]] = np.degrees(np.arccos(frames["cell"][:, [1, 3, 4]]))

    def swapped(bytes_, dtype):
        return np.frombuffer(bytes_, dtype).astype(dtype.newbyteorder(">")).tobytes()

    turned = swapped(start, HEADER) + title + swapped(rest, PARTICLES)
    path.write_bytes(turned + frames.astype(frames.dtype.newbyteorder(">")).tobytes())
    for frame, other in zip(read_frames(path), expected, strict=True):
        assert np.array_equal(frame.positions, other.positions)
        assert frame.positions.dtype.isnative
        assert frame.time == other.time
        assert frame.box_vectors == pytest.approx(other.box_vectors, rel=1e-14, abs=1e-14)


def test_incomplete_and_damaged_frames(tmp_path):
    path = write(tmp_path / "run.dcd")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert len(list(read_frames(path))) == COUNT - 1
    path.write_bytes(data[:-4] + bytes(4))
    frames = read_frames(path)
    for _ in range(COUNT - 1):
        next(frames)
    with pytest.raises(ValueError, match=rf"cannot read {path}: frame {COUNT - 1} is damaged"):
        next(frames)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("size", 0),
        ("kind", b"CARD"),
        ("fixed", 3),
        ("has_fourth", 1),
        ("version", 0),
        ("title", -9),
        ("title", 80),
        ("title", 2**30),
    ],
)
def test_files_that_others_read(place, value, tmp_path):
    path = write(tmp_path / "run.dcd")
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, HEADER, 1)
    header[place] = value
    path.write_bytes(data)
    assert DcdFile.open(path) is None
    path.write_bytes(b"CORD")
    assert DcdFile.open(path) is None
