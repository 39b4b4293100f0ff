"""The direct sum and the treecode against the oracle's direct sum."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver, UnsupportedError
from fmm_openmm.backends import open_sum
from fmm_openmm.oracle import direct_sum
from tests.support.free_space import droplet
from tests.support.sums import SYSTEMS, errors, on_host


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-13), (np.float32, 1e-6)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_direct_sum(backend, name, dtype, accuracy):
    positions, charges, pairs = SYSTEMS[name]
    found = open_sum(backend, "direct")(charges, pairs, dtype).evaluate(positions)
    assert max(errors(found, SYSTEMS[name])) <= accuracy


@pytest.mark.parametrize(("name", "settings"), [("direct", ()), ("treecode", (5, 0.6))])
def test_charges_change_and_results_repeat(backend, name, settings):
    positions, charges, pairs = SYSTEMS["clusters"]
    method = open_sum(backend, name)(charges, pairs, np.float32, *settings)
    first, again = method.evaluate(positions), method.evaluate(positions)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(on_host(a), on_host(b))
    method.set_charges(2 * charges)
    for a, b in zip(first, method.evaluate(positions), strict=True):
        np.testing.assert_allclose(on_host(b), 2 * on_host(a), rtol=1e-12)


# in the solver


@pytest.mark.parametrize("tolerance", [1e-2, 5e-4, 1e-5, 1e-8])
@pytest.mark.parametrize("method", ["direct", "treecode"])
@pytest.mark.parametrize("system", [droplet(400), droplet(700, 50.0), SYSTEMS["clusters"]])
def test_meets_the_tolerance(backend, system, method, tolerance):
    positions, charges, pairs = system
    exact = direct_sum(*system)
    solver = CoulombSolver(charges, None, pairs, tolerance, "open", backend=backend, method=method)
    result = solver.compute(positions)
    assert np.linalg.norm(result.forces - exact.forces) <= tolerance * np.linalg.norm(exact.forces)
    assert result.energy == pytest.approx(
        exact.energy, abs=tolerance * np.abs(charges * exact.potentials).sum() / 2
    )
    assert solver.parameters.method == method
    assert solver.parameters.expected_error <= tolerance


@pytest.mark.parametrize("method", ["direct", "treecode"])
def test_bad_positions_and_new_charges(backend, method):
    positions, charges, pairs = droplet(400)
    solver = CoulombSolver(charges, None, pairs, boundary="open", backend=backend, method=method)
    energy = solver.compute(positions).energy
    together = positions.copy()
    together[7] = together[40]
    with pytest.raises(
        ValueError, match="`positions`: particles 7 and 40 coincide and are not excluded"
    ):
        solver.compute(together)
    solver.set_charges(-2 * charges)
    assert solver.compute(positions).energy == pytest.approx(4 * energy, rel=1e-6)
    # of another kind: the parameters are chosen anew
    ions = np.where(np.arange(len(charges)) % 3, 0.0, 1.0)
    solver.set_charges(ions)
    assert solver.compute(positions).energy == pytest.approx(
        direct_sum(positions, ions, pairs).energy, rel=5e-4
    )


@pytest.mark.gpu
def test_results_stay_on_the_device():
    cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")
    positions, charges, pairs = droplet(400)
    try:
        solver = CoulombSolver(
            charges, None, pairs, boundary="open", backend="cuda", method="treecode"
        )
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    host, device = solver.compute(positions), solver.compute(cupy.asarray(positions))
    assert float(device.energy[0]) == pytest.approx(host.energy, rel=1e-12)
    for name in ("forces", "potentials", "fields"):
        np.testing.assert_allclose(
            getattr(device, name).get(), getattr(host, name), rtol=1e-12, atol=1e-9
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "`method` must be one of"),
        ({"method": "direct", "boundary": "periodic"}, "`method='direct'` needs `boundary='open'`"),
        (
            {"method": "treecode", "backend": "reference"},
            "not available with `backend='reference'`",
        ),
        (
            {"method": "treecode", "near_radius": 2.0},
            "`near_radius` is a parameter of `method='fmm'`",
        ),
        (
            {"method": "direct", "order": 4},
            "`order` must be at most 20 with the treecode, and None with the direct sum",
        ),
        ({"method": "treecode", "order": 21}, "`order` must be at most 20"),
    ],
)
def test_refusals(options, message):
    options = {"boundary": "open", "backend": "cpu"} | options
    box_vectors = None if options["boundary"] == "open" else np.eye(3)
    with pytest.raises((ValueError, UnsupportedError), match=message):
        CoulombSolver([1.0, -1.0], box_vectors, **options)


def test_an_explicit_order_is_obeyed():
    _, charges, pairs = droplet(400)
    solver = CoulombSolver(
        charges, None, pairs, boundary="open", backend="cpu", method="treecode", order=7
    )
    assert solver.parameters.order == 7
