"""DCD files give the bits that MDTraj reads, and those that are not plain are left to it."""

import struct

import numpy as np
import pytest
from openmm import app, unit

from fmm_openmm.convert.dcd import DCDLayout
from fmm_openmm.convert.frames import read_frames

mdtraj = pytest.importorskip("mdtraj")
DCDTrajectoryFile = mdtraj.formats.DCDTrajectoryFile

N, COUNT = 7, 20
"""More frames than MDTraj reads at a time."""

START = 276
"""Bytes before the first frame of a file of MDTraj."""

FRAME = 56 + 3 * (4 * N + 8)
"""Bytes of a frame with a cell."""


def positions():
    """Shape (frames, n, 3), Angstrom."""
    return (30 * np.random.default_rng(1).normal(size=(COUNT, N, 3))).astype(np.float32)


@pytest.fixture(params=["cubes", "skewed", "none"])
def path(request, tmp_path):
    """A file with cells of this kind."""
    random, cells = np.random.default_rng(2), ()
    if request.param != "none":
        angles = random.uniform(70, 110, (COUNT, 3))
        angles[:] = angles if request.param == "skewed" else 90.0
        cells = random.uniform(20, 70, (COUNT, 1)) * [1.0, 1.0, 1.0], angles
    return written(tmp_path / "run.dcd", *cells)


@pytest.fixture
def plain(tmp_path):
    return written(tmp_path / "run.dcd", np.full((COUNT, 3), 30.0), np.full((COUNT, 3), 90.0))


def written(path, *cells):
    with DCDTrajectoryFile(str(path), "w") as file:
        file.write(positions(), *cells)
    return path


def read_by_mdtraj(path, **given):
    topology = mdtraj.Topology()
    residue = topology.add_residue("X", topology.add_chain())
    for _ in range(N):
        topology.add_atom("X", mdtraj.element.virtual, residue)
    return list(read_frames(mdtraj.iterload(str(path), chunk=COUNT, top=topology, **given)))


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.positions.dtype == np.float32
        assert np.array_equal(one.positions, other.positions)
        assert (one.box_vectors is None) == (other.box_vectors is None)
        assert other.box_vectors is None or np.array_equal(one.box_vectors, other.box_vectors)


@pytest.mark.parametrize("stride", [1, 3, COUNT - 1, COUNT + 5])
def test_bits_are_those_of_mdtraj(stride, path):
    assert DCDLayout.from_file(path).particles == N
    found = list(read_frames(path, N, stride))
    assert_same(found, read_by_mdtraj(path)[::stride])
    assert [frame.time for frame in found] == list(range(0, COUNT, stride))


def test_angles_in_degrees(plain):
    """As old versions of CHARMM write them, instead of cosines."""
    data = bytearray(plain.read_bytes())
    struct.pack_into("<6d", data, START + 4, 30.0, 65.0, 31.0, 75.0, 95.0, 32.0)
    plain.write_bytes(data)
    assert_same(list(read_frames(plain)), read_by_mdtraj(plain))


def test_files_of_openmm(tmp_path):
    topology, x = app.Topology(), positions() / 10
    residue = topology.addResidue("X", topology.addChain())
    for _ in range(N):
        topology.addAtom("X", None, residue)
    box = np.array([[3.0, 0.0, 0.0], [1.0, 2.8, 0.0], [-1.0, 1.4, 2.5]])
    topology.setPeriodicBoxVectors(box * unit.nanometer)
    path = tmp_path / "run.dcd"
    with open(path, "wb") as file:
        writer = app.DCDFile(file, topology, 0.002 * unit.picoseconds)
        for each in x:
            writer.writeModel(each * unit.nanometer, periodicBoxVectors=box * unit.nanometer)
    assert DCDLayout.from_file(path) is not None
    for frame, expected in zip(read_frames(path), x, strict=True):
        assert frame.positions == pytest.approx(expected, rel=3e-7)
        assert frame.box_vectors == pytest.approx(box, rel=1e-6, abs=1e-6)


def test_the_end_of_a_file(plain):
    """A frame that is cut off is the end; without a whole one, MDTraj refuses the file."""
    data = plain.read_bytes()
    assert len(data) == START + COUNT * FRAME
    for left, frames in (START + 3 * FRAME, 3), (START + 4 * FRAME - 1, 3), (START + FRAME, 1):
        plain.write_bytes(data[:left])
        assert len(list(read_frames(plain, N))) == frames
    for left in START + FRAME - 1, 93, 91, 0:
        plain.write_bytes(data[:left])
        assert DCDLayout.from_file(plain) is None
    with pytest.raises(ValueError, match=r"cannot read .*run\.dcd, for 7 atoms: "):
        list(read_frames(plain, N))


@pytest.mark.parametrize("place", [0, 52, 56, 56 + 4 * N + 4, FRAME - 4])
def test_a_damaged_frame_is_named(place, plain):
    data = bytearray(plain.read_bytes())
    struct.pack_into("<i", data, START + 2 * FRAME + place, 11)
    plain.write_bytes(data)
    frames = read_frames(plain, N)
    assert_same([next(frames), next(frames)], read_by_mdtraj(plain)[:2])
    with pytest.raises(ValueError, match=r"cannot read .*run\.dcd: frame 2 is damaged"):
        next(frames)


@pytest.mark.parametrize(("number", "value"), [(8, 2), (11, 1), (19, 0)])
def test_variants_are_left_to_mdtraj(number, value, plain):
    """Fixed particles, a fourth coordinate, and X-PLOR."""
    data = bytearray(plain.read_bytes())
    struct.pack_into("<i", data, 8 + 4 * number, value)
    plain.write_bytes(data)
    assert DCDLayout.from_file(plain) is None


def test_big_endian(tmp_path):
    path = written(tmp_path / "run.dcd")
    expected, words = read_by_mdtraj(path), np.fromfile(path, np.int32)
    text = [1, *range(25, 65)]  # "CORD" and the title
    swapped = words.byteswap()
    swapped[text] = words[text]
    swapped.tofile(path)
    assert DCDLayout.from_file(path) is None
    assert_same(list(read_frames(path, N)), expected)
