"""The treecode against the oracle's direct sum, and what asking for it says."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver
from fmm_openmm.backends import open_sum
from fmm_openmm.implementations import M2L, SUMS, warn_if_literature
from tests.support.sums import SYSTEMS, errors


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("order", "theta", "accuracy"),
    [(2, 0.4, 2e-3), (4, 0.5, 5e-4), (8, 0.6, 3e-5), (16, 0.6, 1e-6)],
)
@pytest.mark.parametrize("name", SYSTEMS)
def test_treecode(backend, name, order, theta, accuracy, dtype):
    positions, charges, pairs = SYSTEMS[name]
    found = open_sum(backend, "treecode")(charges, pairs, dtype, order, theta).evaluate(positions)
    assert max(errors(found, SYSTEMS[name])) <= accuracy


def test_treecode_converges_to_rounding(backend):
    system = SYSTEMS["clusters"]
    found = open_sum(backend, "treecode")(system[1], system[2], np.float64, 20, 0.3).evaluate(
        system[0]
    )
    assert max(errors(found, system)) <= 1e-13


# deprecation


def test_asking_for_it_is_deprecated():
    positions, charges, pairs = SYSTEMS["a hundred"]
    message = (
        r"^`method='treecode'` with `backend='cpu'` is deprecated, as it is a study of the "
        r"literature that `fmm-openmm bench` compares with: use 'fmm'$"
    )
    with pytest.warns(DeprecationWarning, match=message) as caught:
        solver = CoulombSolver(
            charges, None, pairs, boundary="open", backend="cpu", method="treecode"
        )
    assert [warning.filename for warning in caught] == [__file__]
    assert np.isfinite(solver.compute(positions).energy)


@pytest.mark.filterwarnings("error::DeprecationWarning")
@pytest.mark.parametrize("options", [{"method": "direct", "boundary": "open"}, {"levels": 1}])
@pytest.mark.parametrize("m2l", [None, "p4", "rotation"])
def test_what_the_product_uses_is_not(options, m2l):
    options = options | ({"m2l": m2l} if "levels" in options else {})
    box_vectors = None if "boundary" in options else np.eye(3)
    CoulombSolver([1.0, -1.0], box_vectors, backend="cpu", **options)


@pytest.mark.parametrize(
    ("option", "table", "where", "expected"),
    [
        ("m2l", M2L, "cpu", []),
        ("m2l", M2L, "cuda", ["p4", "p4_dynamic", "p4_symmetric", "p4_parity"]),
        ("method", SUMS, "cuda", ["treecode"]),
    ],
)
def test_what_is_deprecated(option, table, where, expected):
    deprecated = []
    for name, places in table.items():
        if where in places:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "fmm_openmm.implementations.warn", lambda *_, name=name: deprecated.append(name)
                )
                warn_if_literature(option, table, name, where, "another")
    assert deprecated == expected
