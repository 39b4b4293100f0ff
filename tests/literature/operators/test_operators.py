"""M2L operators of a level on the GPU against dense matrices in float64;
their tables need no GPU."""

import json
import re

import numpy as np
import pytest

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.cli import main
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular
from fmm_openmm.expansions.translations import m2l_matrix, order_of
from fmm_openmm.literature.operators.level import OPERATORS, Level, cube, program
from fmm_openmm.literature.operators.mirrored import mirrored_lists
from tests.compiler import COMPILER
from tests.emulator import DEVICE, Emulator

bench = pytest.importorskip(
    "fmm_openmm.literature.operators.measure", reason="needs CuPy", exc_type=ImportError
)
from fmm_openmm.backends.cuda.execute.cupy.loader import why_unusable  # noqa: E402

without_gpu = why_unusable()


def needs_gpu(test):
    """Marks a test that needs a GPU."""
    return pytest.mark.gpu(
        pytest.mark.skipif(without_gpu is not None, reason=f"no GPU to run on: {without_gpu}")(test)
    )


COUNT = {1: 189, 2: 875}
ACCURACY = {np.float32: 1e-5, np.float64: 1e-12}


def far_sources(target, separation):
    """The interaction list by its definition: children of the parent's near boxes, not near;
    offsets source - target."""
    low = 2 * (np.array(target) // 2 - separation) - target
    axes = [np.arange(start, start + 4 * separation + 2) for start in low]
    offsets = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    return {tuple(offset) for offset in offsets[np.abs(offsets).max(1) > separation].tolist()}


def children():
    return [(c & 1, c >> 1 & 1, c >> 2) for c in range(8)]


def offset_of(entry, target):
    """Source - target of the row of a table."""
    child = children()[entry[3] % 8]
    return tuple(2 * int(p) + s - t for p, s, t in zip(entry[:3], child, target, strict=True))


@pytest.mark.parametrize("separation", [1, 2])
def test_interaction_lists(separation):
    interactions = Interactions(cube(separation))
    vectors, table = interactions.translations, interactions.list
    assert table.shape == (8, COUNT[separation], 4)
    for target, rows in zip(children(), table, strict=True):
        offsets = [offset_of(row, target) for row in rows]
        assert set(offsets) == far_sources(target, separation)
        np.testing.assert_array_equal(vectors[rows[:, 3] // 8], -np.array(offsets))


@pytest.mark.parametrize("separation", [1, 2])
def test_mirrored_lists(separation):
    """There are as many groups of each size as for cubes, and all groups of a child position have
    the same mirror."""
    vectors, group, _ = mirrored_lists(Interactions(cube(separation)))
    assert len(vectors) == group.shape[1] == {1: 56, 2: 189}[separation]
    assert (group[:, :, 1] // 8 % 8 == 7 - np.arange(8)[:, None]).all()
    sizes = np.bincount([int(axes).bit_count() for axes in group[0, :, 1] % 8])
    assert sizes.tolist() == {1: [7, 21, 21, 7], 2: [7, 42, 84, 56]}[separation]


def random_moments(order, boxes, seed=0):
    """Moments of five charges a box, shape (terms, boxes)."""
    rng = np.random.default_rng(seed)
    return (
        regular(rng.uniform(-0.5, 0.5, (5, boxes, 3)), order) * rng.normal(size=(5, boxes))
    ).sum(1)


def dense(moments, side, separation):
    """Sum over the interaction lists with matrices, float64."""
    grid = moments.reshape(-1, side, side, side)  # z, y, x
    order = order_of(moments)
    local = np.zeros_like(grid)
    targets: dict = {}
    for target in children():
        for offset in far_sources(target, separation):
            targets.setdefault(offset, []).append(target)
    for offset, all_targets in targets.items():
        source = np.roll(grid, [-d for d in offset[::-1]], (1, 2, 3))
        matrix = m2l_matrix(-np.array(offset, float), order)
        for x, y, z in all_targets:
            of_child = (slice(None), slice(z, None, 2), slice(y, None, 2), slice(x, None, 2))
            local[of_child] += np.tensordot(matrix, source[of_child], 1)
    return local.reshape(moments.shape)


def largest_error(found, expected, order):
    """Largest error of the degrees, each relative to its norm over all boxes, terms weighted with
    the norms of their harmonics."""
    weight = 1.0 / np.sqrt(irregular_norm(order))[:, None]
    squares = [(weight * values) ** 2 for values in (found - expected, expected)]
    wrong, right = (np.bincount(degrees(order), square.sum(1)) for square in squares)
    return np.sqrt(wrong / right).max()


def emulated(name, level, moments, folder):
    machine = Emulator(program(name, level, DEVICE), folder)
    machine.buffers["moments"][...] = moments
    machine.run([SETUP])
    machine.run()
    return machine.buffers["local"].astype(float)


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("order", "side", "separation", "dtype"), [(1, 4, 1, np.float32), (5, 2, 2, np.float64)]
)
@pytest.mark.parametrize("name", OPERATORS)
def test_programs_agree_with_dense_matrices(
    name, order, side, separation, dtype, monkeypatch, folder
):
    """Through the emulator; of ``p4_parity`` with one tile of terms a block, and with two."""
    monkeypatch.setattr("fmm_openmm.literature.operators.mirrored.TARGET_WARPS", 256)
    moments = random_moments(order, side**3)
    expected = dense(moments, side, separation)
    found = emulated(name, Level(order, side, separation, dtype), moments, folder)
    assert largest_error(found, expected, order) <= ACCURACY[dtype]


@pytest.mark.parametrize("separation", [1, 2])
def test_lists_by_plane(separation):
    """Each source of a child position in one share of one plane, in which its translation lies."""
    interactions = Interactions(cube(separation))
    across, plane_of = interactions.planes
    vectors, planes = interactions.translations, len(across)
    assert planes == {1: 16, 2: 40}[separation]
    assert (across[plane_of, 1] * vectors[:, 2] == across[plane_of, 2] * vectors[:, 1]).all()
    found = [set() for _ in range(8)]
    for first, end, shares in ((0, 5, 3), (5, planes, 2)):
        start, entries = interactions.by_plane(first, end, shares)
        assert start[-1] == len(entries)
        lengths = np.diff(start).reshape(8, end - first, shares)
        assert (np.ptp(lengths, axis=2) <= 1).all()
        lists = np.split(entries, start[1:-1])
        for (child, plane, _), rows in zip(np.ndindex(lengths.shape), lists, strict=True):
            turn = rows[:, 3] >> 3
            assert (plane_of[turn] == first + plane).all()
            offsets = [offset_of(row, children()[child]) for row in rows]
            np.testing.assert_array_equal(vectors[turn], -np.array(offsets).reshape(-1, 3))
            assert found[child].isdisjoint(offsets)
            found[child] |= set(offsets)
    assert found == [far_sources(target, separation) for target in children()]


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("shape", "shares", "planes_bytes"),
    [
        ((2, 2, 1, 1, 99, 0), 1, 2**30),
        ((12, 32, 1, 1, 4, 99), 3, 1),
        ((4, 1, 2, 1, 99, 2), 1, 2**20),
        ((8, 3, 2, 2, 3, 0), 2, 2**21),
    ],
)
def test_shapes_of_rotation_agree_with_dense_matrices(
    shape, shares, planes_bytes, monkeypatch, folder
):
    """Several warps a block, the last of which has no targets; numbers in registers and in
    shared memory; M' in parts; all planes at once, one after the other, and four at a time."""
    order, side = 3, 10
    pipeline = "fmm_openmm.backends.cuda.pipeline.m2l"
    monkeypatch.setattr(f"{pipeline}.ROTATION_SHAPES", {8: ((order, *shape),)})
    monkeypatch.setattr(f"{pipeline}.fewest_rounds", lambda *_: shares)
    monkeypatch.setattr(f"{pipeline}.PLANES_BYTES", planes_bytes)
    moments = random_moments(order, side**3)
    found = emulated("rotation", Level(order, side, 1, np.float64), moments, folder)
    assert largest_error(found, dense(moments, side, 1), order) <= ACCURACY[np.float64]


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="needs a C++ compiler")
def test_planes_without_sources(monkeypatch, folder):
    """One plane after the other, of which some have no source for some child positions."""
    table = np.ascontiguousarray(Interactions(cube(1)).list[:, ::40])
    offsets = {
        target: {offset_of(row, target) for row in rows}
        for target, rows in zip(children(), table, strict=True)
    }
    monkeypatch.setattr(Interactions, "list", table)
    monkeypatch.setattr(f"{__name__}.far_sources", lambda target, separation: offsets[target])
    monkeypatch.setattr("fmm_openmm.backends.cuda.pipeline.m2l.PLANES_BYTES", 1)
    counts = np.array(
        [np.diff(Interactions(cube(1)).by_plane(plane, plane + 1, 1)[0]) for plane in range(16)]
    )
    assert (counts[0] == 0).any() and ((counts == 0).any(1) & (counts > 0).any(1)).any()
    moments = random_moments(2, 64)
    found = emulated("rotation", Level(2, 4, 1, np.float64), moments, folder)
    assert largest_error(found, dense(moments, 4, 1), 2) <= ACCURACY[np.float64]


@needs_gpu
@pytest.mark.parametrize("order", [1, 2, 5, 8, 12, 16, 20])
@pytest.mark.parametrize(("side", "separation"), [(2, 1), (4, 1), (10, 1), (2, 2), (4, 2)])
def test_operators_agree_with_dense_matrices(side, separation, order):
    """On every box, of lists that wrap around the cell several times too;
    and repeat bit for bit."""
    if order == 20 and side > 4:
        side = 8
    moments = random_moments(order, side**3)
    expected = dense(moments, side, separation)
    for dtype, accuracy in ACCURACY.items():
        for name in OPERATORS:
            run = bench.make_run(name, Level(order, side, separation, dtype))
            run.buffers["moments"].set(moments.astype(dtype))
            found = []
            for rubbish in (np.nan, 7):
                run.buffers["local"].fill(rubbish)
                run.queue()
                found.append(run.buffers["local"].get())
            assert (found[0] == found[1]).all(), name
            assert largest_error(found[0].astype(float), expected, order) <= accuracy, (name, dtype)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 4), "`order` must lie between 1 and 20, got 0"),
        ((21, 4), "`order` must lie between 1 and 20, got 21"),
        ((4, 5), "`side` must be even and positive, got 5"),
        ((4, 4, 3), "`separation` must be 1 or 2, got 3"),
    ],
)
def test_levels_that_do_not_exist(arguments, text):
    with pytest.raises(ValueError, match=text):
        Level(*arguments)


def test_unknown_operators_are_refused():
    with pytest.raises(
        ValueError,
        match="`name` must be one of p4, p4_dynamic, p4_symmetric, p4_parity, rotation, "
        "got 'magic'",
    ):
        program("magic", Level(4, 4), DEVICE)


def test_work_of_the_operators():
    """A rotation at order 1: flips 1, then 2 for real parts and 1 for imaginary; a turn of 4;
    columns of 4 and twice 1."""
    assert bench.multiply_adds("p4", 3) == 256
    assert bench.multiply_adds("rotation", 1) == 4 * (1 + 2 + 1 + 4) + 4 + 2
    ratios = [
        bench.multiply_adds("p4", order) / bench.multiply_adds("rotation", order)
        for order in range(1, 21)
    ]
    assert np.all(np.diff(ratios) > 0)


def test_crossovers_and_claims():
    times = {"p4_symmetric": [1.0, 2.0, 9.0], "rotation": [2.0, 1.0, 3.0], "fft": [0.1, 0.1, 0.1]}
    rows = [
        {
            "operator": name,
            "order": order,
            "depth": 5,
            "precision": "single",
            "seconds": seconds,
            "compute_share": 0.5,
        }
        for name, each in times.items()
        for order, seconds in zip((2, 3, 4), each, strict=True)
    ]
    rows.append(
        {"operator": "rotation", "order": 5, "depth": 5, "precision": "single", "failure": "memory"}
    )
    expected = {
        "precision": "single",
        "depth": 5,
        "faster": "rotation",
        "than": "p4_symmetric",
        "from_order": 3,
    }
    assert bench.crossovers(rows) == [expected]
    measured = [
        (claim["order"], claim["measured"])
        for claim in bench.claims(rows)
        if "rotation" in claim["claim"]
    ]
    assert measured == [(2, 0.5), (3, 2.0), (4, 3.0)]
    assert [claim["order"] for claim in bench.claims(rows) if "symmetries" in claim["claim"]] == [
        3,
        4,
    ]


@pytest.mark.slow
def test_bench_prints_and_draws(monkeypatch, tmp_path, capsys):
    """The command, with times made up."""
    monkeypatch.setattr("fmm_openmm.backends.backend_class", lambda name: None)
    monkeypatch.setattr(bench, "compile_all", lambda levels, names: None)

    def made_up(name, order, depth, precision, separation):
        row = {
            "operator": name,
            "order": order,
            "depth": depth,
            "precision": precision,
            "separation": separation,
        }
        if depth == 7:
            return row | {"failure": "memory"}
        seconds = order**3 * 1e-6 if name == "rotation" else order**4 * 0.5e-6
        return row | {
            "seconds": seconds,
            "error": None if name == "fft" else 1e-7,
            "compute_share": 0.5,
            "memory_share": 0.1,
        }

    monkeypatch.setattr(bench, "measure", made_up)
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    arguments = [
        "--orders",
        "1",
        "3",
        "4",
        "--depths",
        "3",
        "7",
        "--operators",
        "p4_symmetric",
        "rotation",
        "fft",
    ]
    assert main(["bench", "operators", *arguments, f"--json={out}", "--plot", str(plot)]) == 0, (
        capsys.readouterr().err
    )
    text = re.sub(" +", " ", capsys.readouterr().out)  # columns are aligned
    assert "| single | 3 | 3 | rotation | 27.0 | 1.0e-07 | 0.500 | 0.100 |" in text
    assert "| double | 7 | 4 | fft | memory | - | - | - |" in text
    assert "single, depth 3: rotation is faster than p4_symmetric from order 3 on" in text
    result = json.loads(out.read_text())
    assert len(result["rows"]) == 3 * 2 * 2 * 3
    measured = {(claim["order"], round(claim["measured"], 3)) for claim in result["claims"]}
    assert measured == {(1, 0.5), (3, 1.5), (3, 0.5), (4, 2.0), (4, 0.5)}
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--orders", "21"], "--orders must be among 1, 2"),
        (["--depths", "2"], "--depths must be among 3, 4, 5, 6, 7, got 2"),
        (
            ["--operators", "magic"],
            "among p4, p4_dynamic, p4_symmetric, p4_parity, rotation, fft, got magic",
        ),
    ],
)
def test_bench_refuses(monkeypatch, capsys, arguments, text):
    monkeypatch.setattr("fmm_openmm.backends.backend_class", lambda name: None)
    assert main(["bench", "operators", *arguments]) != 0
    assert text in capsys.readouterr().err
