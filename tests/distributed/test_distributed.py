"""The solver on several ranks of MPI against the solver of one process."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm import UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.pipeline.ranks import (
    KEEP,
    MARK,
    SEND,
    LatticeShare,
    RankSizes,
    build_rank,
)
from fmm_openmm.backends.cuda.program import Share
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import BoxLattice
from fmm_openmm.distributed.patterns import Patterns
from fmm_openmm.distributed.sharing import even_ranges
from fmm_openmm.distributed.stages import Links
from fmm_openmm.oracle import partial_ewald_sum
from fmm_openmm.specification import Specification
from tests.compiler import COMPILER
from tests.emulator import DEVICE, Emulator
from tests.support.charges import layers
from tests.support.ranks import MPIRUN, run
from tests.systems import build, charge_arrays

pytest.importorskip("mpi4py.MPI", reason="needs MPI: pip install 'fmm_openmm[mpi]'")

pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="needs MPI: pip install mpich")


def water(boundary, name="water", **options):
    case = charge_arrays(build(name))
    vectors = None if boundary == "open" else case.box_vectors
    return case.charges, case.positions, vectors, case.exclusions, {"boundary": boundary, **options}


def ions(boundary, cell, net=0.0, **options):
    """600 ions at random in a cell; their exclusions reach far beyond near boxes."""
    rng = np.random.default_rng(7)
    charges = np.where(np.arange(600) % 2, 1.0, -1.0)
    charges[0] += net
    x = rng.random((600, 3)) @ cell
    pairs = np.sort(rng.permutation(600)[:80].reshape(-1, 2), axis=1)
    vectors = None if boundary == "open" else cell
    return charges, x, vectors, pairs, {"boundary": boundary, **options}


def partners():
    """Ions with more excluded partners far from the boxes of a rank than it has room for at first.
    The first ion that a rank is given is neither one of them nor near its boxes."""
    options = {"grid": (2, 2, 40), "smoothing": 0.0, **COARSE}
    charges, x, vectors, _, options = ions("periodic", np.diag([1.0, 1.0, 20.0]), **options)
    x = vectors.diagonal() - x
    pairs = np.argsort(x[:, 2]).reshape(2, 300).T
    return charges, x, vectors, pairs[np.arange(300) % 31 != 30], options


CUBE = 2.7 * np.eye(3)
SKEWED = np.array([[2.8, 0.0, 0.0], [0.9, 2.6, 0.0], [-0.8, 1.1, 2.4]])
LONG = np.diag([1.5, 1.5, 7.5])
FLAT = np.diag([1.5, 5.7, 0.6])
SHEETS = [-1.0, 4.0]
CYLINDERS = [[0.5, 0.5, 0.0, 0.1], [1.0, 1.5, 0.0, 6.0]]

CASES = {
    "water": lambda: water("periodic"),
    "water_single": lambda: water("periodic", tolerance=5e-4, precision="auto"),
    "charged": lambda: ions("periodic", CUBE, net=3.0),
    "skewed": lambda: ions("periodic", SKEWED, exclusions_periodic=True),
    "long": lambda: ions("periodic", LONG),
    "open": lambda: ions("open", SKEWED, net=-2.0),
    **{name: lambda name=name: ions(name, SKEWED) for name in ("ab", "bc", "ac", "a", "b", "c")},
    "slabs": lambda: ions("periodic", SKEWED, net=1.0, slab_correction=True),
    "dielectric": lambda: water("periodic", surface_dielectric=2.0),
    "sheets": lambda: ions("slab", SKEWED, net=2.0, neutralization=SHEETS),
    "cylinders": lambda: ions("c", SKEWED, net=2.0, neutralization=CYLINDERS),
}


COARSE = {"tolerance": 0.05, "order": 3}

GPU_CASES = {
    "split": lambda: ions("periodic", CUBE, net=3.0, grid=(5, 5, 5), smoothing=0.1, **COARSE),
    "skewed": lambda: ions("periodic", SKEWED, exclusions_periodic=True, **COARSE),
    "long": lambda: ions("periodic", LONG, grid=(3, 4, 19), **COARSE),
    "partners": partners,
    "flat": lambda: ions("periodic", FLAT, grid=(5, 19, 2), **COARSE),
    "open": lambda: ions("open", SKEWED, net=-2.0, **COARSE),
    "slab": lambda: ions("slab", SKEWED, net=2.0, neutralization=SHEETS, **COARSE),
    "water": lambda: water("periodic", tolerance=5e-4, precision="single"),
}
"""Cases of low order, for which emulated kernels are compiled in seconds. "long" and "flat" have 19
boxes along an axis, which sums transform, and "flat" two planes of boxes, fewer than ranks."""


def write(folder, case, name, backend="cpu"):
    """Write a system and what one process finds."""
    charges, x, vectors, pairs, given = case()
    options = {"tolerance": 1e-6, "precision": "double", "exclusions_periodic": False, **given}
    solver = fmm.CoulombSolver(charges, vectors, pairs, backend=backend, **options)
    solver.compute(x)
    result = solver.compute(x + 0.01, virial=True)
    np.savez(
        folder / f"{name}.npz",
        charges=charges,
        positions=x,
        box_vectors=[] if vectors is None else vectors,
        exclusions=pairs,
        energy=result.energy,
        virial=result.virial,
        forces=result.forces,
        potentials=result.potentials,
        **options,
    )


def differences(ranks, folder, *arguments):
    """What ``tests.distributed.evaluate`` finds for each system of a folder."""
    ended = run(ranks, "-m", "tests.distributed.evaluate", folder, *arguments)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads((folder / "differences.json").read_text())


def assert_agreement(found, cases):
    assert found.keys() == cases.keys()
    for name, values in found.items():
        single = cases[name]()[-1].get("precision", "double") != "double"
        assert max(values) < (2e-5 if single else 1e-11), (name, values)


@pytest.mark.slow
def test_ranks_find_what_one_process_finds(tmp_path):
    for name, case in CASES.items():
        write(tmp_path, case, name)
    for ranks in (2, 3):
        assert_agreement(differences(ranks, tmp_path, "cpu"), CASES)


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_emulated_gpus_find_what_one_process_finds(tmp_path, folder):
    for name, case in GPU_CASES.items():
        write(tmp_path, case, name)
    for ranks in (2, 3):
        assert_agreement(differences(ranks, tmp_path, "emulated", folder), GPU_CASES)


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_gpus_find_what_one_finds(ranks, tmp_path):
    require_gpus(ranks)
    for name, case in GPU_CASES.items():
        write(tmp_path, case, name, "cuda")
    assert_agreement(differences(ranks, tmp_path, "cuda"), GPU_CASES)


@pytest.mark.gpu
def test_ranks_do_not_share_a_gpu():
    require_gpus(1)
    ended = run(2, "-m", "tests.distributed.faults", "same GPU")
    assert ended.returncode == 0, ended.stderr[-3000:]
    message = "rank 1: `backend='cuda'` needs a GPU for each rank, but rank 0 uses the same"
    assert ended.stdout.count(message) == 2, ended.stdout


@pytest.mark.gpu
def test_coordinates_on_a_gpu_are_finite():
    require_gpus(1)
    assert_refusal_of_coordinates("cuda")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_coordinates_on_an_emulated_gpu_are_finite(folder):
    assert_refusal_of_coordinates("emulated", folder)


def assert_refusal_of_coordinates(*backend):
    ended = run(1, "-m", "tests.distributed.faults", "not finite", *backend)
    assert ended.returncode == 0, ended.stderr[-3000:]
    for message in ("`positions` must be finite and within", "for particle 7"):
        assert ended.stdout.count(message) == 2, ended.stdout


def require_gpus(number):
    """Skip a test on a machine with fewer GPUs."""
    try:
        backend_class("cuda")
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    import cupy

    found = cupy.cuda.runtime.getDeviceCount()
    if found < number:
        pytest.skip(f"needs {number} GPUs, there is {found}")


@pytest.mark.slow
def test_what_one_rank_refuses_all_ranks_refuse():
    ended = run(2, "-m", "tests.distributed.faults", "refused")
    assert ended.returncode == 0, ended.stderr[-3000:]
    for message in (
        "rank 1: `positions` must have shape (n, 3) with n = 50",
        "rank 0: `ids` must name each particle once, on one rank: 49 is named 2 times",
        "rank 1: `ids` must be those given at creation, got 100",
        "rank 1: `backend` must be 'cpu' or 'cuda', got 'reference'",
        "rank 1: `exclusions` must have no masked entries, got 4",
        "rank 1: a GPU takes at most 10 particles",
        "rank 1: `neutralization=[[0.0, 0.0, 0.0, 0.0]]`: particle 49 lies on a line of charge",
        "rank 0: `neutralization=[[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]`: 0 and 1 cross",
    ):
        assert ended.stdout.count(message) == 2, ended.stdout


def test_a_rank_that_raises_ends_all():
    ended = run(3, "-m", "tests.distributed.faults", "raised")
    assert ended.returncode != 0
    message = "rank 1 of 3 failed with MemoryError: no memory left. All ranks end."
    assert ended.stderr.count("All ranks end.") == ended.stderr.count(message) == 1


@pytest.mark.slow
def test_a_rank_that_dies_ends_all():
    ended = run(3, "-m", "tests.distributed.faults", "died")
    assert ended.returncode != 0
    assert "signal 9" in ended.stdout + ended.stderr


@pytest.mark.slow
def test_expected_errors_are_relative_to_the_forces():
    """In a crystal these are a seventh of those of a liquid."""
    from mpi4py import MPI

    from fmm_openmm.distributed import DistributedSolver

    places = np.indices((6, 6, 6)).reshape(3, -1).T
    x = 0.28 * places + np.random.default_rng(0).normal(0.0, 0.003, places.shape)
    arguments = (-1.0) ** places.sum(1), 6 * 0.28 * np.eye(3)
    ranks = DistributedSolver(MPI.COMM_SELF, *arguments, backend="cpu")
    one = fmm.CoulombSolver(*arguments, backend="cpu")
    of_liquid = one.parameters.expected_error
    ranks.compute(x)
    one.compute(x)
    expected = one.parameters.expected_error
    assert expected > 3 * of_liquid
    assert ranks.parameters.expected_error == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_layers_of_opposite_charge_with_smoothing(backend):
    """Single precision suffices until they are far apart and their potentials large."""
    if backend == "cuda":
        require_gpus(1)
    from mpi4py import MPI

    from fmm_openmm.distributed import DistributedSolver

    x, apart, q, box = layers()
    exact = partial_ewald_sum(apart, q, Boundary.from_name("slab").cell(box)).forces
    options = {"tolerance": 1e-4, "boundary": "slab", "smoothing": 0.00625, "backend": backend}
    solver = DistributedSolver(MPI.COMM_SELF, q, box, **options)
    solver.compute(x)
    assert solver.parameters.precision == "single"
    error = np.linalg.norm(solver.compute(apart).forces - exact) / np.linalg.norm(exact)
    assert error < 1e-4
    assert solver.parameters.precision == "double"
    single = DistributedSolver(MPI.COMM_SELF, q, box, precision="single", **options)
    with pytest.warns(UserWarning, match="out of reach in single precision"):
        single.compute(apart)


def test_positions_of_two_images_of_a_slab_are_warned_of():
    from mpi4py import MPI

    from fmm_openmm.distributed import DistributedSolver

    coarse = {"slab_correction": True, **COARSE}
    solver = DistributedSolver(MPI.COMM_SELF, [1.0, -1.0, 0.0], 3 * np.eye(3), **coarse)
    with pytest.warns(UserWarning, match="needs coordinates of one image of the slab"):
        solver.compute([[0.0, 0.0, 0.0], [0.0, 0.0, 3.1], [0.0, 0.0, 1.0]])


def test_links_of_every_rank():
    """Both directions of each pair, with ranks that have no particle."""
    pairs = np.array([[0, 4], [3, 1], [4, 3]])
    first, empty, last = Links.by_rank(pairs, np.array([0, 3, 3, 5]))
    assert len(empty.particle) == 0
    assert {*zip(first.particle, first.partner, first.rank, strict=True)} == {(0, 1, 2), (1, 0, 2)}
    expected = {(1, 0, 0), (0, 1, 0), (1, 0, 2), (0, 1, 2)}
    assert {*zip(last.particle, last.partner, last.rank, strict=True)} == expected


def test_patterns_are_lists_of_partners():
    """Two molecules of water have three patterns; other lists have one each."""
    rng = np.random.default_rng(3)
    water = np.array([[0, 1], [0, 2], [1, 2], [3, 4], [3, 5], [4, 5]])
    assert len(patterns_of(water, 6).start) - 1 == 3
    some, far = rng.permutation(40).reshape(-1, 2), np.array([[0, 999], [3, 500]])
    for pairs, particles in ((water, 7), (some, 41), (far, 1000), (water[:0], 2)):
        patterns = patterns_of(pairs, particles)
        both = np.concatenate([pairs, pairs[:, ::-1]])
        for i, pattern in enumerate(patterns.pattern):
            own = patterns.partner[patterns.start[pattern] : patterns.start[pattern + 1]]
            assert (i + own).tolist() == sorted(both[both[:, 0] == i, 1])


def patterns_of(pairs, particles):
    (links,) = Links.by_rank(pairs, np.array([0, particles]))
    return Patterns.from_links(links.particle, links.partner - links.particle, particles)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_copies_are_in_the_order_of_their_particles(folder):
    """Among 32 ranks, whose counts fill several blocks of sum_lists: for each rank first the
    particles with a part in its boxes."""
    rank, ranks, first, given = 3, 32, 10, 5000
    lattice, none = BoxLattice(np.diag((4, 5, 6)), np.eye(3), 2.0), np.empty((0, 2), int)
    sizes = RankSizes(
        rank, ranks, first + given, first, given, patterns=1, partners=0,
        sent=(ranks - 1) * given, copies=given, returned=(ranks - 1) * given,
    )  # fmt: skip
    wanted = Specification(lattice, 2, 0.05, np.empty(0), none, False, np.dtype(np.float32))
    planes = LatticeShare(slice(0, 1), even_ranges(4, ranks), is_direct=False)
    program = build_rank(wanted, DEVICE, sizes, Share(0, 20, 20), planes)
    kernels = {name: each for name, each in program.kernels.items() if each.file == "ranks"}
    emulator = Emulator(replace(program, kernels=kernels), folder)
    rng, buffers = np.random.default_rng(4), emulator.buffers
    owner = rng.integers(0, ranks, 120)
    near = (1 << rng.integers(0, ranks, (120, 3))).sum(1) | 1 << owner
    rooms = [(0, given, *[max(0, s - 1) * given, given] * 2) for s in range(ranks)]
    contents = {
        "positions": rng.random((given, 3)) * (4, 5, 6), "charges": 1.0, "rooms": rooms,
        "parameters": parameter_block(lattice, 1.0), "pattern": 0, "pattern_start": 0,
        "box_ranks": np.column_stack([1 << owner, near]), "arrived": 0,
    }  # fmt: skip
    for name, values in contents.items():
        buffers[name][...] = values
    emulator.run([MARK, KEEP, SEND])
    numbers = np.arange(first, first + given)
    for distance, other in enumerate((rank + np.arange(ranks)) % ranks):
        bits = (buffers[name] >> other & 1 == 1 for name in ("owners", "wanted"))
        own, copied = (each[-given:] for each in bits)
        if distance == 0:
            assert buffers["pattern"].tolist() == own.tolist()
            lists = zip(buffers["arrived"][:, :-1], buffers["count"], strict=False)
            listed = np.concatenate([parts[:length] // 8 for parts, length in lists])
            assert set(listed) == set(np.flatnonzero(copied))
            continue
        expected = [[i, 1] for i in numbers[own]] + [[i, 0] for i in numbers[copied & ~own]]
        assert buffers["sent_number"][distance].tolist() == [len(expected), own.sum()]
        places = slice((distance - 1) * given, distance * given)
        *_, tags = buffers["sent"][places].reshape(-1).view(np.int32).reshape(5, given, 2)
        assert tags[: len(expected)].tolist() == expected
        assert buffers["returned_to"][places][: own.sum()].tolist() == [*np.flatnonzero(own)]
