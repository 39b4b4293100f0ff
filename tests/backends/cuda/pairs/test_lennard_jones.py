"""The kernels of the Lennard-Jones interaction on the host, through ``tests/emulator``, against
NumPy. Needs no GPU."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fmm_openmm.backends.cuda.pairs import lennard_jones
from fmm_openmm.backends.cuda.pairs.lennard_jones import Sites
from fmm_openmm.backends.cuda.program import SETUP, Device, Interface, Phase
from fmm_openmm.backends.cuda.source import kernel_folder
from tests.compiler import COMPILER
from tests.emulator import Emulator
from tests.lennard_jones import Functions, LennardJones, force_switch

if COMPILER is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

CUTOFF, BUFFER = 0.9, 0.1
CELLS = {
    "cube": 2.3 * np.eye(3),
    "small cube": 1.8001 * np.eye(3),
    "long": np.diag([5.0, 1.9, 2.0]),
    "dodecahedron": 2.4 * np.array([[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0.5**0.5]]),
    "skewed": np.array([[2.4, 0, 0], [1.2, 2.1, 0], [-1.2, 1.05, 1.95]]),
    "skewed, the other way": np.array([[2.1, 0, 0], [-1.0, 2.2, 0], [1.0, -1.1, 1.9]]),
    "sparse": 12.0 * np.eye(3),
}


class Emulated:
    """The plugin's work with a program, by the emulator: sites are OpenMM's particles 3 s + 1."""

    def __init__(self, problem: LennardJones, precision: str, folder, buffer=BUFFER, **changes):
        self.problem, n = problem, len(problem.types)
        self.slots, padded = 3 * np.arange(n)[::-1] + 1, 3 * n + 32
        both = np.concatenate([problem.excluded, problem.excluded[:, ::-1]])
        both = both[np.lexsort((both[:, 1], both[:, 0]))]
        sites = Sites(
            n, len(problem.a), len(both), problem.cutoff, problem.switching, problem.vectors,
            (problem.cutoff or 0.0) + buffer, False, 0, 0, 64, problem.functions.source,
        )  # fmt: skip
        self.sites = replace(sites, **changes)
        program = lennard_jones.build(
            self.sites, Device(1, 48 * 1024), Interface(precision, padded), blocks=1
        )
        self.emulator = Emulator(program, folder)
        self.listing = [name for name, phase in program.phases.items() if phase == Phase.LIST]
        self.buffers = buffers = self.emulator.buffers
        buffers["slot"][:], buffers["type"][:] = self.slots, problem.types
        buffers["start"][:] = np.searchsorted(both[:, 0], np.arange(n + 1))
        buffers["partner"][: len(both)] = both[:, 1]
        factors = (1, 1) if problem.functions.source else (12, 6)
        buffers["pairs"][...] = np.stack([factors[0] * problem.a, factors[1] * problem.b], -1)
        buffers["posq"][...] = 0.5
        self.place(problem.vectors, buffer)
        self.emulator.run([SETUP])

    def place(self, vectors, buffer=BUFFER):
        cell = self.buffers["cell"]
        cell[:9] = 0 if vectors is None else vectors.ravel()
        cell[9:] = self.sites.radius, (0.49 * buffer) ** 2
        self.buffers["state"][0] = 0

    def evaluate(self, positions, wanted="both"):
        buffers = self.buffers
        buffers["posq"][self.slots, :3] = positions
        buffers["force_buffer"][...] = 0
        buffers["energy_buffer"][...] = 0
        self.emulator.run(self.listing)
        self.emulator.run([wanted])
        others = np.delete(buffers["force_buffer"], self.slots, axis=1)
        assert not others.any()
        return buffers["energy_buffer"].sum(dtype=float), buffers["force_buffer"][
            :, self.slots
        ].T / 2.0**32

    @property
    def builds(self):
        return self.buffers["state"][2]

    def listed(self):
        """Pairs of sites in the list with their images, shape (pairs, 3), and how often."""
        buffers, sorted_sites = self.buffers, self.buffers["state"][1]
        clusters = sorted_sites // 4
        entries, masked, _, build = buffers["length"][:clusters].T
        assert (entries % (2 * self.sites.lanes) == 0).all()
        assert (build == self.builds).all()
        cluster, k = np.nonzero(np.arange(buffers["entry"].shape[1]) < entries[:, None])
        of_masked, m = np.nonzero(np.arange(buffers["masked"].shape[1]) < masked[:, None])
        entry, mask = buffers["masked"][of_masked, m].T
        cluster = np.concatenate([cluster, of_masked])
        entry = np.concatenate([buffers["entry"][cluster[: len(k)], k], entry])
        mask = np.concatenate([np.zeros(len(k), mask.dtype), mask])
        j, member = entry & (2**25 - 1), 4 * cluster[:, None] + np.arange(4)
        found = (
            (j < self.sites.capacity)[:, None]
            & (mask[:, None] >> np.arange(4, dtype=mask.dtype) & 1 == 0)
            & (buffers["home"][member, 3] >= 0)
        )
        row, _ = np.nonzero(found)
        number = buffers["number"]
        pairs = np.stack([number[member[found]], number[j[row]], entry[row] >> 25], axis=1)
        return np.unique(pairs, axis=0, return_counts=True)


def liquid(vectors, n, seed=1, least=0.22):
    """Positions that keep a distance, in any image."""
    rng = np.random.default_rng(seed)
    found = np.empty((0, 3))  # in units of the vectors
    while len(found) < n:
        x = rng.uniform(size=3)
        d = (found - x - np.round(found - x)) @ vectors
        if ((d * d).sum(1) > least**2).all():
            found = np.vstack([found, x])
    return (found + rng.integers(-2, 3, (n, 3))) @ vectors


def system(cell, n=230, types=3, excluded=True, seed=1, **limits):
    rng = np.random.default_rng(seed)
    positions = liquid(cell, n, seed)
    pairs = (
        np.array([(i, j) for i in range(n) for j in (i + 1, i + 2, i + 7) if j < n and i % 3])
        if excluded
        else []
    )
    limits = {"cutoff": CUTOFF, "vectors": cell} | limits
    sigma, epsilon = 0.2 + 0.12 * np.arange(types) / types, 0.3 + 0.9 * np.arange(types) / types
    return positions, LennardJones.from_sigmas(
        rng.integers(0, types, n), sigma, epsilon, pairs, **limits
    )


def check(found, expected, accuracy):
    """Forces to a relative RMS error, beyond what fixed-point numbers round."""
    (energy, forces), (exact, exact_forces) = found, expected
    assert (
        np.linalg.norm(forces - exact_forces)
        <= accuracy * np.linalg.norm(exact_forces) + 2.0**-31 * forces.size**0.5
    )
    assert energy == pytest.approx(exact, abs=accuracy * (abs(exact) + 50))


ACCURACY = {"single": 3e-5, "mixed": 3e-5, "double": 1e-9}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "precision", "limits"),
    [
        ("cube", "mixed", {}),
        ("cube", "double", {"switching": 0.7}),
        ("small cube", "double", {}),
        ("small cube", "single", {"switching": 0.6}),
        ("long", "mixed", {}),
        ("dodecahedron", "double", {}),
        ("skewed", "mixed", {"switching": 0.8}),
        ("skewed", "double", {}),
        ("skewed, the other way", "double", {}),
        ("sparse", "double", {}),
    ],
)
def test_periodic(cell, precision, limits, folder):
    positions, problem = system(CELLS[cell], **limits)
    check(
        Emulated(problem, precision, folder).evaluate(positions),
        problem.evaluate(positions),
        ACCURACY[precision],
    )


@pytest.fixture(params=[False, True], ids=["with the pairs", "before the pairs"])
def searched(request, monkeypatch):
    """Whether a kernel of its own finds the neighbours, as of many sites."""
    monkeypatch.setattr(lennard_jones, "MANY", 0 if request.param else np.inf)
    return request.param


@pytest.fixture
def pairs_once(monkeypatch):
    """Lists hold every pair once, as where they are long."""
    monkeypatch.setattr(lennard_jones, "LONG", -1)


@pytest.mark.parametrize(
    ("cell", "limits"),
    [
        ("cube", {"switching": 0.7}),
        ("small cube", {}),
        ("long", {}),
        ("dodecahedron", {}),
        ("skewed", {"switching": 0.8}),
        ("skewed, the other way", {}),
        ("cube", {"vectors": None}),
    ],
)
def test_every_pair_once(cell, limits, folder, pairs_once, searched):
    positions, problem = system(CELLS[cell], **limits)
    if limits.get("vectors", True) is None:
        positions = np.mod(positions, 2.3)
    emulated = Emulated(problem, "mixed", folder, entries=200)
    exact = problem.evaluate(positions)
    for _ in range(2):  # what was collected is not added again
        check(emulated.evaluate(positions), exact, ACCURACY["mixed"])
    i, j, _ = problem.pairs(positions, emulated.sites.radius - 1e-3)
    listed, times = emulated.listed()
    assert (times == 1).all()
    have = Counter(map(tuple, np.sort(listed[:, :2]).tolist()))
    # from both sides
    wanted = Counter(zip(np.minimum(i, j).tolist(), np.maximum(i, j).tolist(), strict=True))
    assert not {pair for pair, times in wanted.items() if 2 * have[pair] < times}


@pytest.mark.parametrize(
    ("precision", "types", "deterministic"),
    [("mixed", 1, False), ("double", 40, False), ("mixed", 3, True)],
)
def test_free_space(precision, types, deterministic, folder):
    """Some sites are far from all others, and very far; they may share a cell of the grid with
    sites that they do not meet."""
    positions, problem = system(1.9 * np.eye(3), 200, types, vectors=None)
    positions = np.mod(positions, 1.9) - 0.7
    positions[::17] *= 40.0
    positions[5] = [3e4, -2e5, 1e3]
    check(
        Emulated(problem, precision, folder, deterministic=deterministic).evaluate(positions),
        problem.evaluate(positions),
        ACCURACY[precision],
    )


@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_without_a_cutoff(precision, folder):
    positions, problem = system(3.0 * np.eye(3), 150, cutoff=None, vectors=None)
    positions = np.mod(positions, 3.0)
    check(
        Emulated(problem, precision, folder).evaluate(positions),
        problem.evaluate(positions),
        ACCURACY[precision],
    )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize(
    "limits",
    [{}, {"switching": 0.8}, {"cutoff": None, "vectors": None}],
    ids=["", "switched", "no cutoff"],
)
def test_other_functions_of_the_distance(precision, limits, folder):
    """CHARMM's force switch, alone and together with a switching function."""
    cell = CELLS["skewed"]
    positions, problem = system(cell, functions=force_switch(0.6, 0.9), **limits)
    check(
        Emulated(problem, precision, folder).evaluate(positions),
        problem.evaluate(positions),
        ACCURACY[precision],
    )


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["forces", "both"])
@pytest.mark.parametrize("limits", [{}, {"switching": 0.8}], ids=["", "switched"])
def test_functions_that_are_infinite_far_away(wanted, limits, folder):
    source = (
        "const real f = inverse*inverse, f_slope = -2*f*inverse, g4 = square*square, "
        "g = g4*g4, g_slope = 8*g*inverse;"
    )
    functions = Functions(
        lambda r: r**-2.0, lambda r: -2 * r**-3.0, lambda r: r**8, lambda r: 8 * r**7, source
    )
    positions, problem = system(CELLS["cube"], functions=functions, **limits)
    problem = replace(problem, a=problem.b, b=1e-3 * problem.b)
    energy, forces = Emulated(problem, "mixed", folder).evaluate(positions, wanted)
    expected = problem.evaluate(positions)
    check((energy if wanted == "both" else expected[0], forces), expected, ACCURACY["mixed"])


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "limits",
    [{}, {"vectors": None}, {"vectors": None, "cutoff": None}],
    ids=["periodic", "free", "no cutoff"],
)
def test_few_sites(number, limits, folder):
    positions, problem = system(2.0 * np.eye(3), number, 1, False, **limits)
    positions = np.mod(positions, 2.0)
    check(
        Emulated(problem, "double", folder).evaluate(positions), problem.evaluate(positions), 1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [16, 32])
def test_what_is_wanted(lanes, folder, searched, monkeypatch):
    monkeypatch.setattr(lennard_jones, "FEW", 0 if lanes == 16 else 1000)
    positions, problem = system(CELLS["dodecahedron"], switching=0.7)
    emulated = Emulated(problem, "mixed", folder)
    assert emulated.sites.lanes == lanes
    energy, forces = emulated.evaluate(positions)
    check((energy, forces), problem.evaluate(positions), ACCURACY["mixed"])
    alone, nothing = emulated.evaluate(positions, "energy")
    assert alone == pytest.approx(energy, rel=1e-6)
    assert not nothing.any()
    nothing, same = emulated.evaluate(positions, "forces")
    assert nothing == 0
    assert np.linalg.norm(same - forces) < 1e-6 * np.linalg.norm(forces)
    assert emulated.builds == 1


def missing_and_repeated(emulated, positions, vectors):
    """Pairs within the radius that the list lacks, and any that it has twice."""
    found, times = emulated.listed()
    i, j, _ = replace(emulated.problem, vectors=vectors).pairs(
        positions, emulated.sites.radius - 1e-6
    )
    missing = Counter(zip(i.tolist(), j.tolist(), strict=True))
    for (a, b, _), count in zip(found.tolist(), times.tolist(), strict=True):
        missing[a, b] -= count
    return [*+missing], found[times > 1].tolist()


@pytest.mark.parametrize(
    ("precision", "limits", "long"),
    [
        ("mixed", {"switching": 0.7}, -1),
        ("double", {}, np.inf),
        ("mixed", {"vectors": None}, -1),
        ("double", {"vectors": None, "cutoff": None}, np.inf),
    ],
    ids=["once", "twice", "free space", "no cutoff"],
)
def test_shares_of_devices_add_up(precision, limits, long, folder, searched, monkeypatch):
    monkeypatch.setattr(lennard_jones, "LONG", long)
    positions, problem = system(CELLS["skewed"], **limits)
    devices = [Emulated(problem, precision, folder, shared=True) for _ in range(2)]
    exact = problem.evaluate(positions)
    for cut in (20_000, 45_000):
        results = []
        for device, share in zip(devices, ((0, cut), (cut, lennard_jones.WHOLE)), strict=True):
            device.buffers["share"][:] = share
            device.buffers["state"][0] = 0
            results.append(device.evaluate(positions))
            assert results[-1][1].any()
        check([sum(parts) for parts in zip(*results, strict=True)], exact, ACCURACY[precision])


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_the_list_has_every_pair_within_its_radius_once(cell, folder, searched):
    positions, problem = system(CELLS[cell])
    emulated = Emulated(problem, "double", folder)
    emulated.evaluate(positions)
    missing, repeated = missing_and_repeated(emulated, positions, CELLS[cell])
    assert not missing
    assert not repeated


@pytest.mark.slow
def test_a_list_holds_until_a_site_has_moved_by_half_of_the_buffer(folder, searched):
    rng = np.random.default_rng(4)
    positions, problem = system(CELLS["skewed"], 200)
    emulated = Emulated(problem, "double", folder)
    emulated.evaluate(positions)
    step = rng.normal(size=positions.shape)
    step *= 0.49 * BUFFER / np.linalg.norm(step, axis=1).max()
    for builds, share in ((1, 0.5), (1, 0.99), (2, 1.01), (2, 1.5)):
        now = positions + share * step
        check(emulated.evaluate(now), problem.evaluate(now), 1e-9)
        assert emulated.builds == builds
    now[3] += CELLS["skewed"][0] - CELLS["skewed"][2]  # moved into another image
    check(emulated.evaluate(now), problem.evaluate(now), 1e-9)
    assert emulated.builds == 3
    assert emulated.buffers["state"][6]  # sites are up to two cells away
    wrapped = now - np.floor(now @ np.linalg.inv(CELLS["skewed"])) @ CELLS["skewed"]
    check(emulated.evaluate(wrapped), problem.evaluate(wrapped), 1e-9)
    assert emulated.builds == 4
    assert not emulated.buffers["state"][6]
    for lost in ([7], slice(None)):
        now[lost] = np.nan
        energy, forces = emulated.evaluate(now)
        assert np.isnan(energy)
        assert np.isfinite(np.delete(forces, lost, axis=0)).all()
    assert emulated.builds == 6
    check(emulated.evaluate(positions), problem.evaluate(positions), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("far", [1e13, np.inf])
def test_a_site_too_far_to_be_brought_into_the_cell_is_in_no_pair(far, folder):
    positions, problem = system(CELLS["cube"])
    alone = np.stack([np.full(len(positions) - 1, 3), np.delete(np.arange(len(positions)), 3)], 1)
    expected = replace(problem, excluded=np.concatenate([problem.excluded, alone])).evaluate(
        positions
    )
    emulated, now = Emulated(problem, "double", folder), positions.copy()
    now[3, 0] = far
    energy, forces = emulated.evaluate(now)
    check((energy if np.isfinite(far) else expected[0], forces), expected, 1e-9)


@pytest.mark.parametrize(
    ("precision", "half"), [("mixed", False), ("mixed", True), ("double", False)]
)
def test_a_clash_is_an_overflow(precision, half, folder, monkeypatch):
    """Forces too large for the format remain what OpenMM's minimiser takes for an overflow, also
    where two of them add up on a site."""
    monkeypatch.setattr(lennard_jones, "LONG", -1 if half else np.inf)
    positions, problem = system(CELLS["cube"], excluded=False)
    emulated = Emulated(problem, precision, folder)
    assert emulated.sites.half(precision) == half
    for k in (1, 2):
        positions[4 + k] = positions[4] + [1e-3 * k, 0.0, 0.0]
    forces = emulated.evaluate(positions, "forces")[1]
    assert (np.abs(forces[[4, 6], 0]) > 2.0**30).all()


@pytest.mark.parametrize(
    ("number", "limits", "phase"),
    [
        (100_000, {}, Phase.SEARCH),
        (100_001, {}, Phase.LIST),
        (100_001, {"cutoff": None, "box_vectors": None}, None),
    ],
)
def test_a_kernel_finds_the_neighbours_of_many_sites(number, limits, phase):
    """Its blocks do not wait for each other, and the kernel of the pairs searches else."""
    sites = replace(
        Sites(number, 1, 0, CUTOFF, None, 14.5 * np.eye(3), 1.0, False, 0, 0, 64), **limits
    )
    program = lennard_jones.build(sites, Device(132, 48 * 1024), Interface("mixed", 2**17))
    assert program.macros["SEARCHED"] == (phase == Phase.LIST)
    assert program.phases.get("search") == phase
    together = [step.kernel for step in program.steps if getattr(step, "cooperative", False)]
    assert together == (["list_sites"] if phase else [])
    for step in program.steps_of("search"):
        assert step.grid == (132 * lennard_jones.SEARCH_BLOCKS, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 2, 1000])
def test_every_cluster_is_searched_for_by_any_number_of_blocks(blocks, folder, monkeypatch):
    monkeypatch.setattr(lennard_jones, "MANY", 0)
    monkeypatch.setattr(lennard_jones, "SEARCH_BLOCKS", blocks)
    positions, problem = system(CELLS["skewed"])
    emulated = Emulated(problem, "double", folder)
    check(emulated.evaluate(positions), problem.evaluate(positions), 1e-9)
    assert missing_and_repeated(emulated, positions, CELLS["skewed"]) == ([], [])


def test_constants_of_the_kernels():
    text = (kernel_folder() / "pairs" / "sites.cuh").read_text(encoding="utf-8")
    for name in ("CLUSTER", "SITE_BITS"):
        assert re.search(rf"^#define {name} (\d+)", text, re.MULTILINE)[1] == str(
            getattr(lennard_jones, name)
        )
    text = (kernel_folder() / "pairs" / "search.cuh").read_text(encoding="utf-8")
    assert f"#define WHOLE {lennard_jones.WHOLE}\n" in text


def test_too_many_sites_for_an_entry():
    sites = Sites(2**25 + 1, 1, 0, None, None, None, 0.0, False, 0, 0, 64)
    with pytest.raises(ValueError, match="33,554,433 sites are more than a list"):
        lennard_jones.build(sites, Device(1, 48 * 1024), Interface("mixed", 2**26))


@pytest.mark.slow
@pytest.mark.parametrize(
    "stretch",
    [np.diag([1.02, 1.02, 1.02]), np.array([[1.1, 0, 0], [0.1, 0.97, 0], [-0.1, 0.05, 1.0]])],
)
def test_another_cell(stretch, folder):
    positions, problem = system(CELLS["cube"])
    emulated = Emulated(problem, "double", folder)
    emulated.evaluate(positions)
    for matrix in (stretch, np.eye(3)):
        vectors, now = CELLS["cube"] @ matrix, positions @ matrix
        emulated.place(vectors)
        check(emulated.evaluate(now), replace(problem, vectors=vectors).evaluate(now), 1e-9)
        assert missing_and_repeated(emulated, now, vectors) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"vectors": None}], ids=["periodic", "free"])
@pytest.mark.parametrize("room", ["entries", "masked"])
@pytest.mark.parametrize(
    ("precision", "long"), [("double", 400), ("mixed", -1)], ids=["twice", "once"]
)
def test_lists_that_are_too_long(room, limits, precision, long, folder, searched, monkeypatch):
    """No pair is missing where a list exceeds its memory, and the host learns how much is
    needed."""
    monkeypatch.setattr(lennard_jones, "LONG", long)
    positions, problem = system(CELLS["cube"], **limits)
    if limits:
        positions = np.mod(positions, 2.3)
    name, length = {"entries": ("list_length", 64), "masked": ("masked_length", 5)}[room]
    with monkeypatch.context() as patch:
        patch.setattr(Sites, name, length)
        emulated = Emulated(problem, precision, folder)
    expected, accuracy = problem.evaluate(positions), ACCURACY[precision]
    for wanted in ("both", "forces", "energy"):
        energy, forces = emulated.evaluate(positions, wanted)
        found = (
            energy if wanted != "forces" else expected[0],
            forces if wanted != "energy" else expected[1],
        )
        check(found, expected, accuracy)
    entries, masked, too_long = emulated.buffers["state"][3:6]
    assert too_long
    needed = {"entries": entries, "masked": masked}[room]
    assert needed > length
    larger = Emulated(problem, precision, folder, entries=int(entries), masked=int(masked))
    check(larger.evaluate(positions), expected, accuracy)
    assert larger.buffers["state"][3:6].tolist() == [entries, masked, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "cells"), [(3, 7), (64, 70), (9, 1000)])
def test_few_cells(rows, cells, folder, monkeypatch):
    """Cells grow where there is room for a few only."""
    monkeypatch.setattr(Sites, "rows", rows)
    monkeypatch.setattr(Sites, "cells", cells)
    monkeypatch.setattr(Sites, "capacity", 4 * 400)
    positions, problem = system(CELLS["skewed"])
    emulated = Emulated(problem, "double", folder)
    check(emulated.evaluate(positions), problem.evaluate(positions), 1e-9)


@pytest.mark.slow
def test_excluded_sites_may_coincide(folder):
    positions, problem = system(CELLS["cube"])
    i, j = problem.excluded[3]
    positions[j] = positions[i]
    check(
        Emulated(problem, "double", folder).evaluate(positions), problem.evaluate(positions), 1e-9
    )


@pytest.mark.slow
def test_other_parameters(folder):
    """The table of types serves at once, other types of sites from the next list on."""
    positions, problem = system(CELLS["cube"])
    emulated = Emulated(problem, "double", folder)
    emulated.evaluate(positions)
    other = replace(problem, a=1.3 * problem.a, b=0.7 * problem.b, types=problem.types[::-1])
    emulated.buffers["pairs"][...] = np.stack([12 * other.a, 6 * other.b], -1)
    emulated.buffers["type"][:] = other.types
    emulated.buffers["state"][0] = 0
    check(emulated.evaluate(positions), other.evaluate(positions), 1e-9)


def test_the_order_of_sites_does_not_depend_on_who_comes_first(folder):
    """With DeterministicForces the sites of a cell are in the order of their slots, whatever their
    order was before."""
    positions, problem = system(CELLS["cube"])
    emulated = Emulated(problem, "single", folder, deterministic=True)
    first = emulated.evaluate(positions)
    order = emulated.buffers["home"][:, 3].copy()
    away = positions[np.random.default_rng(3).permutation(len(positions))]
    emulated.evaluate(away)
    again = emulated.evaluate(positions)
    assert emulated.builds == 3
    np.testing.assert_array_equal(first[1], again[1])
    clusters, before = (
        slots.reshape(-1, 4).tolist() for slots in (emulated.buffers["home"][:, 3], order)
    )
    assert sorted(clusters) == sorted(before)
