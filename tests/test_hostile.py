"""Random systems that are hard for float32 or for a grid of boxes, and random sequences of
operations: the tolerance is kept, or a warning or an error tells what is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile import verdict
from tests.hostile_sequences import SEQUENCES
from tests.hostile_systems import KINDS, TOLERANCES

seeds, tolerances = st.integers(0, 2**32 - 1), st.sampled_from(TOLERANCES)


def check(kind, seed, tolerance):
    found = verdict(kind, seed, tolerance)
    assert found.outcome != "missed", f"{found.ratio:.3g} times the tolerance"


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.sampled_from(list(KINDS)), seeds, tolerances)
def test_any(kind, seed, tolerance):
    """Among the fast tests, though it takes seconds: no other one has systems of so many kinds."""
    check(kind, seed, tolerance)


def test_two_molecules():
    """Whose small forces are differences of those of their images, in single precision."""
    check("molecules", 6821, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, *SEQUENCES])
def test_each_kind(kind):
    @settings(max_examples=17, deadline=None, derandomize=True)
    @given(seeds, tolerances)
    def examples(seed, tolerance):
        check(kind, seed, tolerance)

    examples()
