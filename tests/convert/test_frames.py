"""Every source of frames gives the positions and boxes that were put in."""

import gzip
import struct

import numpy as np
import pytest
from openmm import app, unit

from fmm_openmm.convert.cells import cell_from_lengths
from fmm_openmm.convert.frames import (
    Frame,
    _nameless_atoms,
    _times_of_dcd,
    _turn,
    _turned_from_lengths,
    count_frames,
    read_frames,
)
from tests.convert.small_water import small_water

BOX = np.array([[2.2, 0.0, 0.0], [0.6, 2.1, 0.0], [-0.5, 0.4, 2.3]])
COUNT = 20
"""More than MDTraj reads at a time."""


@pytest.fixture(scope="module")
def frames():
    """Positions, shape (frames, n, 3), and boxes, shape (frames, 3, 3), of a skewed cell that
    grows."""
    positions = small_water()[2][:60]
    scale = (1 + 0.01 * np.arange(COUNT))[:, None, None]
    return (positions * scale).round(3), BOX * scale


@pytest.fixture(scope="module")
def folder(frames, tmp_path_factory):
    """Files with these frames; PDB has one box for all."""
    mdtraj = pytest.importorskip("mdtraj")
    path = tmp_path_factory.mktemp("frames")
    topology = app.Topology()
    chain = topology.addChain()
    for _ in range(20):
        residue = topology.addResidue("HOH", chain)
        for name, symbol in ("O", "O"), ("H1", "H"), ("H2", "H"):
            topology.addAtom(name, app.Element.getBySymbol(symbol), residue)
    found = mdtraj.Trajectory(
        frames[0], mdtraj.Topology.from_openmm(topology), time=2.0 * np.arange(COUNT)
    )
    found.unitcell_vectors = frames[1]
    for ending in "dcd", "xtc", "trr", "nc":
        found.save(str(path / f"run.{ending}"))
    topology.setPeriodicBoxVectors(BOX * unit.nanometer)
    with open(path / "run.pdb", "w") as file:
        app.PDBFile.writeHeader(topology, file)
        for number, positions in enumerate(frames[0]):
            app.PDBFile.writeModel(topology, positions * unit.nanometer, file, number + 1)
        app.PDBFile.writeFooter(topology, file)
    return path


def check(found, frames, chosen=slice(None), box=None):
    found = list(found)
    for frame, positions, cell in zip(found, frames[0][chosen], frames[1][chosen], strict=True):
        assert np.abs(frame.positions - positions).max() < 1e-5
        error = np.abs(frame.box_vectors - (cell if box is None else box)).max()
        assert error < (2e-5 if box is None else 2e-4)  # angles of a PDB file have two digits
    return found


@pytest.mark.parametrize("ending", ["dcd", "xtc", "trr", "nc"])
def test_files(ending, frames, folder):
    path = folder / f"run.{ending}"
    found = check(read_frames(path), frames)
    check(read_frames(str(path), 60, stride=3), frames, slice(None, None, 3))
    assert count_frames(str(path)) is None
    assert count_frames([path, path]) is None
    both = list(read_frames([path, str(path)], 60, stride=COUNT - 1))
    check(both[2:], frames, [0, COUNT - 1])
    check(both[:2], frames, [0, COUNT - 1])
    times = COUNT * [None] if ending == "dcd" else 2.0 * np.arange(COUNT)  # MDTraj writes none
    assert [frame.time for frame in found] == pytest.approx(times)
    message = rf"cannot read .*run.{ending}, for 59 atoms: its frames have 60$"
    with pytest.raises(ValueError, match=message):
        list(read_frames(path, 59))


@pytest.mark.parametrize("stride", [1, 3, COUNT + 1])
@pytest.mark.parametrize("has_cells", [True, False])
def test_dcd_files_have_the_bits_of_mdtraj(has_cells, stride, frames, tmp_path, monkeypatch):
    mdtraj = pytest.importorskip("mdtraj")
    monkeypatch.setattr("fmm_openmm.convert.frames.CACHE_BYTES", 7 * 60 * 12)
    path, random = str(tmp_path / "run.dcd"), np.random.default_rng(4)
    with mdtraj.formats.DCDTrajectoryFile(path, "w") as file:
        cells = random.uniform(20, 70, (COUNT, 3)), random.uniform(70, 110, (COUNT, 3))
        file.write((10 * frames[0]).astype(np.float32), *(cells if has_cells else ()))
    atoms = _nameless_atoms(mdtraj, 60)
    expected = read_frames(mdtraj.iterload(path, chunk=COUNT, stride=stride, top=atoms))
    for one, other in zip(read_frames(path, 60, stride), expected, strict=True):
        assert np.array_equal(one.positions, other.positions)
        assert one.positions.dtype == np.float32
        if has_cells:
            assert np.array_equal(one.box_vectors, other.box_vectors)
        else:
            assert one.box_vectors is other.box_vectors is None


def test_models_of_a_structure(frames, folder):
    check(read_frames(folder / "run.pdb"), frames, box=BOX)
    file = app.PDBFile(str(folder / "run.pdb"))
    check(read_frames(file), frames, box=BOX)
    assert count_frames(file) == COUNT


@pytest.mark.parametrize("ending", ["pdb", "pdb.gz"])
def test_models_of_different_cells(ending, frames, folder, tmp_path):
    """GROMACS writes a CRYST1 record before each model, and OpenMM has the last one."""
    mdanalysis = pytest.importorskip("MDAnalysis")
    head, *models = (folder / "run.pdb").read_text().split("MODEL")
    assert head.count("CRYST1") == 1
    path, (a, b, c) = tmp_path / f"run.{ending}", frames[1].transpose(1, 0, 2)
    text = ""
    for cell, model in zip(zip(a, b, c, strict=True), models, strict=True):
        sizes = mdanalysis.lib.mdamath.triclinic_box(*(10 * np.array(cell)))
        numbers = "".join(
            f"{x:{width}}" for x, width in zip(sizes, ["9.3f"] * 3 + ["7.2f"] * 3, strict=True)
        )
        text += f"CRYST1{numbers} P 1           1\nMODEL{model}"
    with (gzip.open if ending.endswith("gz") else open)(path, "wt") as file:
        file.write(text)
    for stride in 1, 3:
        found = list(read_frames(path, stride=stride))
        for frame, cell in zip(found, frames[1][::stride], strict=True):
            assert np.abs(frame.box_vectors - cell).max() < 5e-4
    path.with_suffix(".pdb").write_text(text.replace("ENDMDL\n", "", 1))
    with pytest.raises(ValueError, match=r"of its 20 models, .*, 19 end with ENDMDL"):
        list(read_frames(path.with_suffix(".pdb")))


@pytest.mark.parametrize("ending", ["ncrst", "rst7"])
def test_restart_files_are_one_frame(ending, frames, folder, tmp_path):
    """MDTraj's ``iterload`` does not read them."""
    mdtraj = pytest.importorskip("mdtraj")
    one = mdtraj.load_frame(str(folder / "run.xtc"), 3, top=str(folder / "run.pdb"))
    one.save(str(tmp_path / f"one.{ending}"))
    check(read_frames(tmp_path / f"one.{ending}"), frames, [3])


@pytest.mark.parametrize("columns", ["xs ys zs", "xsu ysu zsu", "xu yu zu xs ys zs"])
def test_fractional_coordinates_of_lammps(columns, tmp_path):
    """MDTraj takes them to be lengths."""
    pytest.importorskip("mdtraj")
    box, row = "0 20\n" * 3, " 0.5" * len(columns.split())
    head = f"ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS pp pp pp\n{box}"
    path = tmp_path / "run.lammpstrj"
    path.write_text(f"{head}ITEM: ATOMS id type {columns}\n1 1{row}\n")
    with pytest.raises(ValueError, match=r"its coordinates xs.* are fractions of the box"):
        list(read_frames(path, 1))
    path.write_text(f"{head}ITEM: ATOMS id type x y z {columns}\n1 1 8.0 4.0 2.0{row}\n")
    (frame,) = read_frames(path, 1)
    assert frame.positions.tolist() == [pytest.approx([0.8, 0.4, 0.2])]


def test_mdtraj(frames, folder):
    mdtraj = pytest.importorskip("mdtraj")
    given = {"top": str(folder / "run.pdb")}
    trajectory = mdtraj.load(str(folder / "run.xtc"), **given)
    check(read_frames(trajectory), frames)
    assert count_frames(trajectory) == COUNT
    check(read_frames(mdtraj.iterload(str(folder / "run.xtc"), chunk=7, **given)), frames)
    trajectory.unitcell_vectors = None
    assert all(frame.box_vectors is None for frame in read_frames(trajectory))


def test_mdanalysis(frames, folder):
    """All sources, of which readers use the same array again and again."""
    mdanalysis = pytest.importorskip("MDAnalysis")
    universe = mdanalysis.Universe(str(folder / "run.pdb"), str(folder / "run.xtc"))
    for source in universe, universe.atoms, universe.trajectory, universe.trajectory[:]:
        check(read_frames(source), frames)
        assert count_frames(source) == COUNT
    some = universe.select_atoms("name O")
    check(read_frames(some), (frames[0][:, ::3], frames[1]))
    check(read_frames(universe.trajectory[2::5]), frames, slice(2, None, 5))
    universe.dimensions = [20, 20, 0, 90, 90, 90]
    with pytest.raises(ValueError, match=r"`dimensions` must span a positive volume, got \[20"):
        list(read_frames([universe.trajectory.ts]))


def test_iterables(frames):
    pairs = list(zip(*frames, strict=True))
    check(read_frames(pairs), frames)
    check(read_frames(Frame(*pair) for pair in pairs), frames)
    bare = list(read_frames(frames[0]))
    assert all(frame.box_vectors is None for frame in bare) and len(bare) == COUNT
    assert (count_frames(pairs), count_frames(iter(pairs))) == (COUNT, None)


@pytest.mark.parametrize(
    ("lengths", "angles"),
    [
        ((3.0, 2.5, 2.8), (90.0, 90.0, 90.0)),
        ((3.0, 2.5, 2.8), (70.0, 95.0, 110.0)),
        ((0.1, 0.1, 0.1), (90.0, 90.0, 90.0)),
        ((0.0, 3.0, 3.0), (90.0, 90.0, 90.0)),
        ((np.inf, 3.0, 3.0), (90.0, 90.0, 90.0)),
        ((3.0, -2.5, 2.8), (90.0, 90.0, 90.0)),
        ((3.0, 3.0, 3.0), (60.0, 60.0, 119.9999999)),
    ],
)
def test_cells_of_lengths_need_not_be_turned(lengths, angles):
    """They are as after all checks, whose errors they have."""

    def outcome(make):
        try:
            return [None if array is None else array.tolist() for array in make()]
        except ValueError as error:
            return str(error)

    def turned():
        return _turn(cell_from_lengths(lengths, np.radians(angles).tolist()), "box")

    assert outcome(lambda: _turned_from_lengths("box", *lengths, *angles)) == outcome(turned)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_frames(tmp_path / "run.dcd"))


@pytest.mark.parametrize("order", "<>")
def test_times_of_a_dcd_file(order, frames, tmp_path):
    """A file that OpenMM has written, and headers in either byte order, with the time step of eight
    bytes that X-PLOR writes, and cut short."""
    pytest.importorskip("mdtraj")
    path, topology = tmp_path / "run.dcd", app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for _ in range(60):
        topology.addAtom("X", None, residue)
    with open(path, "wb") as opened:
        file = app.DCDFile(opened, topology, 0.004 * unit.picosecond, 50, 25)
        for positions in frames[0][:4]:
            file.writeModel(positions * unit.nanometer)
    found = [frame.time for frame in read_frames(path, 60, stride=2)]
    assert found == pytest.approx([0.2, 0.4])
    header = bytearray(path.read_bytes()[:88])
    struct.pack_into(f"{order}i", header, 0, 84)
    struct.pack_into(f"{order}2i", header, 12, 50, 25)
    for version, form in (24, "f"), (0, "d"):
        header[44:52] = bytes(8)
        struct.pack_into(f"{order}{form}", header, 44, 0.004 / 0.04888821)
        struct.pack_into(f"{order}i", header, 84, version)
        path.write_bytes(header)
        assert _times_of_dcd(path) == pytest.approx((0.2, 0.1))
    for length in 0, 40:
        path.write_bytes(header[:length])
        assert np.isnan(_times_of_dcd(path)).all()
