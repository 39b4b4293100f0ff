"""Sets of charges between arrays of the caller, with kernels and arrays on the host. Needs no
GPU."""

from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.pipeline.sets import build_sets
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.box import BoxLattice
from fmm_openmm.specification import Specification
from fmm_openmm.stages import RepeatedEvaluation
from fmm_openmm.units import COULOMB_CONSTANT
from tests import emulator
from tests.compiler import COMPILER
from tests.support.cupy_on_host import Buffer, Kernel, Module

pytest.importorskip("cupy", reason="needs CuPy", exc_type=ImportError)
from fmm_openmm.backends.cuda import charge_sets
from fmm_openmm.backends.cuda.execute.cupy.executor import Run

if COMPILER is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

N, WIDTH = 40, 0.7
KERNELS = ["set_charges", "set_groups", "sum_products", "sum_groups"]


def on_host(values, *dtypes):
    return np.array(values, None if values.dtype in dtypes else dtypes[0]).view(Buffer)


@pytest.fixture
def evaluator(monkeypatch, folder):
    """An evaluator whose programs note the stages that they run."""

    class EmulatedRun(emulator.Emulator):
        writer, _address = Run.writer, Run._address

        def __init__(self, program, given):
            super().__init__(program, folder)
            self.buffers = {name: each.view(Buffer) for name, each in self.buffers.items()}
            self._program = program
            self._kernels = {name: Kernel(each) for name, each in self._functions.items()}

        def queue(self, *stages):
            queued.extend(stages)
            self.run(stages)

        def replay(self, *stages, first):
            first.queue()
            self.queue(*stages)

        def launch(self, call):
            call.queue()

    def load(stage, macros):
        return Module(emulator.compiled(stage, macros, KERNELS, folder))

    arrays = SimpleNamespace(
        empty=lambda shape, dtype=float: np.full(shape, np.nan, dtype).view(Buffer),
        zeros=lambda *given: np.zeros(*given).view(Buffer),
    )
    queued: list[str] = []
    fakes = {"cupy": arrays, "Run": EmulatedRun, "load": load, "contiguous": on_host}
    for name, fake in fakes.items():
        monkeypatch.setattr(charge_sets, name, fake)
    monkeypatch.setattr(charge_sets, "current_device", lambda: emulator.DEVICE)
    lattice, pairs = BoxLattice.from_cell(np.eye(3), np.eye(3, dtype=int) * 2, 1.87), [(0, 1)]
    random = np.random.default_rng(4)
    wanted = Specification(lattice, 3, 0.1, random.normal(size=N), np.array(pairs), False)
    block = parameter_block(lattice, WIDTH)
    return SimpleNamespace(
        specification=wanted, lattice=lattice, queued=queued,
        parameters=lambda *_: block, on_device=nullcontext,
        for_sets=cache(lambda *key: charge_sets.SetsRun(wanted, *key)),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("fields", [True, False])
def test_results_are_those_of_single_evaluations(dtype, fields, evaluator):
    """More sets than are computed at once. Positions of the caller are read once for all of them,
    in either type, and kept by the operator alone."""
    random = np.random.default_rng(2)
    x, charges = random.uniform(0.0, 1.0, (N, 3)).astype(dtype), random.normal(size=(11, N))
    x = x.view(Buffer)
    alone = RepeatedEvaluation(ReferenceStages(evaluator.specification), x.astype(float), WIDTH)
    scale = COULOMB_CONSTANT / WIDTH
    particles = charge_sets.CudaChargeSets(evaluator, x, WIDTH)
    assert particles.positions.dtype == dtype
    for each in (charges, charges[:3], charges[::-1]):
        evaluator.queued.clear()
        potentials, matrix, forces, vectors = particles.compute(each, fields)
        expected = alone.evaluate(each, True)
        assert_close(potentials, scale * expected[0])
        assert_close(matrix, scale * each @ expected[0].T)
        assert np.array_equal(matrix, matrix.T)
        if fields:
            assert_close(vectors, scale / WIDTH * expected[1])
            assert_close(forces, each[..., None] * vectors)
        else:
            assert forces is vectors is None
        again = each is not charges and len(each) == 11
        assert evaluator.queued.count("sort") == (not again)
        assert evaluator.queued.count(SETUP) == (not again)
        assert evaluator.queued.count("p2p") == -(-len(each) // 8)


@pytest.mark.parametrize("sets", [3, 11])
def test_the_matrix_alone(sets, evaluator):
    """Also of more sets than are computed at once, which takes potentials."""
    random = np.random.default_rng(6)
    x, charges = random.uniform(0.0, 1.0, (N, 3)), random.normal(size=(sets, N))
    charges[1, 5:] = 0.0
    alone = RepeatedEvaluation(ReferenceStages(evaluator.specification), x, WIDTH)
    particles = charge_sets.CudaChargeSets(evaluator, x.view(Buffer), WIDTH)
    expected = alone.matrix(charges, np.inf)
    for limit in (np.inf, 1e3, 1e-3, np.inf):
        found = particles.compute_matrix(charges, limit)
        assert np.isnan(found).all() == (limit < 1.0)
        if limit > 1.0:
            assert_close(found, COULOMB_CONSTANT / WIDTH * expected)
            assert np.array_equal(found, found.T)
    assert evaluator.queued.count("p2p") == (8 if sets > 8 else 4)
    assert_close(particles.matrix(charges, np.inf), expected)


@pytest.mark.parametrize("limit", [np.inf, 3.0])
def test_energies_of_groups(limit, evaluator):
    random = np.random.default_rng(3)
    x, q = random.uniform(0.0, 1.0, (N, 3)).view(Buffer), evaluator.specification.charges
    group = (np.arange(N) % 10).astype(np.int32)
    alone = RepeatedEvaluation(ReferenceStages(evaluator.specification), x, WIDTH)
    potentials = alone.evaluate(np.where(group == np.arange(9)[:, None], q, 0.0), False)[0]
    potentials[abs(potentials) > limit] = np.nan
    terms = COULOMB_CONSTANT / WIDTH / 2 * q * potentials
    expected = np.stack([terms[:, group == each].sum(1) for each in range(10)], 1)
    begin, members = np.arange(0, N + 1, 4), np.argsort(group, kind="stable")
    arrays = (on_host(each.astype(np.int32), np.int32) for each in (group, begin, members))
    particles = charge_sets.CudaChargeSets(evaluator, x, WIDTH)
    found = particles.energies_of_groups(on_host(q, np.float64), *arrays, 9, limit)
    assert np.isnan(expected).any() == (limit < np.inf) and np.isfinite(expected).any()
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert_close(np.nan_to_num(found), np.nan_to_num(expected))
    assert evaluator.queued.count("sort") == 1


def test_products_of_many_particles(evaluator):
    """Blocks of several slices; twice, since tickets are zero again."""
    n, sets, device = 2 * charge_sets.SLICE + 77, 3, emulator.DEVICE
    macros = build_sets(evaluator.specification, device, sets, "potentials").macros
    kernel = charge_sets.load("set_sums", macros).get_function("sum_products")
    charges, potentials = np.random.default_rng(7).normal(size=(2, sets, n))
    partial, tickets = np.full((sets, sets, 3), np.nan), np.zeros((sets, sets), np.int32)
    expected = charges @ potentials.T
    for _ in range(2):
        products = np.full((sets, sets), np.nan)
        arrays = charges, potentials, partial, tickets, products
        passed = (np.int32(n), *(each.ctypes.data for each in arrays))
        kernel((3, sets, sets), (charge_sets.SUMS_BLOCK,), passed)
        assert_close(products, (expected + expected.T) / 2)
        assert np.array_equal(products, products.T)


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= 1e-12 * np.linalg.norm(expected)
