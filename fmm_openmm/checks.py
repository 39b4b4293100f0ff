"""Checks of user input at the public boundary.

Each error names the argument, what was required and what came.
"""

import numbers

import numpy as np

from fmm_openmm.arrays import to_host
from fmm_openmm.units import strip_units

MAX_COORDINATE = 1e9
"""Largest coordinate accepted, nm: beyond it float64 no longer resolves 1e-7 nm, so an image
would be meaningless."""


MAX_CHARGE = 1e30
"""Largest charge accepted, e: fourth powers of charges must be finite."""

MIN_CHARGE = 1e-20
"""Smallest charge accepted, e, as the largest of all unless all are 0: charges and their moments
must not vanish in float32."""


def check_numbers(values, dimension: str, name: str) -> np.ndarray:
    """``values`` as a new float64 array in OpenMM units.

    Raises:
        ValueError: the values are not real numbers, have masked entries, or are a ``Quantity`` that
            is not compatible with ``dimension``.
    """
    values = strip_units(values, dimension, name)
    check_unmasked(values, name)
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            array = np.asarray(array.tolist())  # text in it becomes an array of text
            if None in array.ravel():  # NumPy takes it for NaN
                raise TypeError("None is no number")
        if array.dtype.kind not in "biufO":
            raise TypeError(f"entries of type {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"`{name}` must be an array of real numbers, got {values!r:.80}"
        ) from error


def check_charges(charges, name: str = "charges") -> np.ndarray:
    """Charges as a float64 array of shape (n,), e.

    Raises:
        ValueError: not one-dimensional, empty, a charge that is not finite or larger than
            ``MAX_CHARGE``, all smaller than ``MIN_CHARGE`` but not 0, or a ``Quantity`` of another
            dimension.
    """
    array = check_numbers(charges, "elementary_charge", name)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must have shape (n,), got {array.shape}")
    if len(array) == 0:
        raise ValueError(
            f"`{name}` must hold at least one particle, got an empty array: there are no particles"
        )
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise ValueError(f"`{name}` must be finite, got {array[bad[0]]} for particle {bad[0]}")
    check_size(array, name)
    return array


def check_size(array: np.ndarray, name: str, where: str = "") -> None:
    """Refuse charges, shape (n,), of which the largest is out of range.

    Args:
        where: what follows the particle in the message.

    Raises:
        ValueError: it is larger than ``MAX_CHARGE``, or smaller than ``MIN_CHARGE`` but not 0.
    """
    sizes = np.abs(array)
    largest = int(sizes.argmax())
    if sizes[largest] > MAX_CHARGE:
        wanted = f"must be at most {MAX_CHARGE:g} e"
    elif 0.0 < sizes[largest] < MIN_CHARGE:
        wanted = f"must all be 0, or the largest at least {MIN_CHARGE:g} e"
    else:
        return
    raise ValueError(f"`{name}` {wanted}, got {array[largest]:g} for particle {largest}{where}")


def check_positions(positions, particles: int, name: str = "positions") -> np.ndarray:
    """Positions as a float64 array of shape (n, 3), nm.

    Raises:
        ValueError: wrong shape, a coordinate that is not finite or exceeds ``MAX_COORDINATE``,
            or a ``Quantity`` of another dimension.
    """
    array = np.ascontiguousarray(check_numbers(positions, "nanometer", name))
    if array.shape != (particles, 3):
        raise ValueError(
            f"`{name}` must have shape (n, 3) with n = {particles} (from `charges`), "
            f"got {array.shape}"
        )
    largest = np.abs(array).max()
    if not largest <= MAX_COORDINATE:  # also catches NaN
        bad = np.flatnonzero(~(np.abs(array) <= MAX_COORDINATE).all(1))[0]
        raise ValueError(
            f"`{name}` must be finite and within {MAX_COORDINATE:g} nm of the origin, got "
            f"{array[bad].tolist()} for particle {bad}"
        )
    return array


def check_charge_sets(charges, particles: int) -> np.ndarray:
    """Sets of charges as a float64 array of shape (K, n), e.

    Raises:
        ValueError: wrong shape, no set, a charge that is not finite, charges out of range as for
            :func:`check_charges`, or a ``Quantity`` of another dimension.
    """
    array = np.ascontiguousarray(check_numbers(charges, "elementary_charge", "charges"))
    check_sets_shape(array.shape, particles)
    if not np.isfinite(array).all():
        number, particle = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"`charges` must be finite, got {array[number, particle]} for particle {particle} "
            f"of set {number}"
        )
    for number, own in enumerate(array):
        check_size(own, "charges", f" of set {number}")
    return array


def check_sets_shape(shape: tuple[int, ...], particles: int) -> None:
    """Refuse sets of charges, on the host or a device, whose shape is not (K, n).

    Raises:
        ValueError: the shape is another, or K is 0.
    """
    if len(shape) != 2 or shape[1] != particles or shape[0] == 0:
        raise ValueError(
            f"`charges` must have shape (K, n) with K >= 1 sets of n = {particles} charges, "
            f"got {shape}"
        )


def check_points(points) -> np.ndarray:
    """Points as a float64 array of shape (m, 3), nm.

    Raises:
        ValueError: as for :func:`check_positions`.
    """
    array = check_numbers(points, "nanometer", "points")
    check_points_shape(array.shape)
    return check_positions(array, len(array), "points")


def check_points_shape(shape: tuple[int, ...]) -> None:
    """Refuse points, on the host or a device, whose shape is not (m, 3).

    Raises:
        ValueError: the shape is another, or m is 0.
    """
    if len(shape) != 2 or shape[1] != 3 or shape[0] == 0:
        raise ValueError(f"`points` must have shape (m, 3) with m >= 1, got {shape}")


def check_groups(groups, particles: int) -> np.ndarray:
    """Group of each particle as an int64 array of shape (n,), groups numbered from 0.

    Raises:
        ValueError: wrong shape, masked entries, negative, or a number below the largest that no
            particle has.
        TypeError: the groups are not integers.
    """
    check_unmasked(groups, "groups")
    array = np.asarray(groups)
    if array.shape != (particles,):
        raise ValueError(
            f"`groups` must have shape (n,) with n = {particles} (from `charges`), "
            f"got {array.shape}"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"`groups` must be integers, got {array.dtype}")
    if array.min() < 0:
        raise ValueError(f"`groups` must not be negative, got {array.min()}")
    numbers = np.unique(array)
    missing = np.flatnonzero(numbers != np.arange(len(numbers)))
    if len(missing):
        raise ValueError(
            f"`groups` must number groups from 0 without gaps, got {array.min()} to {array.max()} "
            f"without particles in {missing[0]}"
        )
    return array.astype(np.int64)


def check_extent(positions, particles: int) -> None:
    """As :func:`check_positions`, for an array of the right shape on the host or a device, of which
    only the largest coordinate is read back if all are valid."""
    if not float(abs(positions).max()) <= MAX_COORDINATE:  # also catches NaN
        check_positions(to_host(positions), particles)


def check_integer_pairs(pairs, name: str) -> np.ndarray:
    """Pairs of integers as an int64 array of shape (m, 2); None gives no pairs.

    Raises:
        ValueError: wrong shape or type, or masked entries.
    """
    check_unmasked(pairs, name)
    try:
        array = np.asarray(() if pairs is None else pairs)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be integer pairs of shape (m, 2), got {pairs!r:.80}"
        ) from error
    if array.shape in ((0,), (0, 2)):
        return np.zeros((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must be integer pairs of shape (m, 2), "
            f"got shape {array.shape} of {array.dtype}"
        )
    return array.astype(np.int64)


def check_indices(indices, name: str) -> np.ndarray:
    """Indices as an int64 array of shape (k,), which may be empty.

    Raises:
        ValueError: wrong shape, masked entries, or not integers; booleans are not.
    """
    check_unmasked(indices, name)
    try:
        array = np.asarray(indices)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.shape != (0,) and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise ValueError(f"`{name}` must be a sequence of integers, got {indices!r:.80}")
    return array.astype(np.int64)


def check_pairs(pairs, particles: int, name: str) -> np.ndarray:
    """Pairs of particles as an int64 array of shape (m, 2) with i < j; None gives no pairs.

    Raises:
        ValueError: as :func:`check_integer_pairs`, an index out of range, or a particle paired with
            itself.
    """
    array = np.sort(check_integer_pairs(pairs, name), axis=1)
    bad = np.flatnonzero((array[:, 0] < 0) | (array[:, 1] >= particles))
    if len(bad):
        raise ValueError(
            f"`{name}` must hold indices from 0 to {particles - 1}, "
            f"got {array[bad[0]].tolist()} in row {bad[0]}"
        )
    bad = np.flatnonzero(array[:, 0] == array[:, 1])
    if len(bad):
        raise ValueError(f"`{name}` pairs particle {array[bad[0], 0]} with itself in row {bad[0]}")
    return array


def check_exclusions(exclusions, particles: int, name: str = "exclusions") -> np.ndarray:
    """Excluded pairs as an int64 array of shape (m, 2) with i < j, sorted; None gives no pairs.

    Raises:
        ValueError: as :func:`check_pairs`, or a pair listed twice.
    """
    array = check_pairs(exclusions, particles, name)
    array = array[np.lexsort((array[:, 1], array[:, 0]))]
    twice = np.flatnonzero((array[1:] == array[:-1]).all(1))
    if len(twice):
        raise ValueError(f"`{name}` lists the pair {array[twice[0]].tolist()} twice")
    return array


def check_choice(value, choices: tuple[str | None, ...], name: str) -> str:
    """``value`` if it is one of ``choices``, else a ``ValueError``."""
    known = (value is None or isinstance(value, str)) and value in choices
    if not known:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_number(value, name: str, low: float, high: float, dimension: str | None = None) -> float:
    """``value`` as a float within [low, high], else a ``TypeError`` or ``ValueError``. With a
    ``dimension`` it may be a ``Quantity``, as in :func:`check_numbers`."""
    if dimension is not None:
        value = strip_units(value, dimension, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a number, got {value!r}")
    if not low <= value <= high:  # type: ignore[operator]  # of Real
        raise ValueError(f"`{name}` must lie between {low:g} and {high:g}, got {value!r}")
    return float(value)


def check_integer(value, name: str, low: int, high: int) -> int:
    """``value`` as an int within [low, high], else a ``TypeError`` or ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"`{name}` must be an integer, got {value!r}")
    return int(check_number(int(value), name, low, high))


def check_flag(value, name: str) -> bool:
    """``value`` as a bool if it is one, else a ``TypeError``: texts such as "no" are true."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {value!r}")
    return bool(value)


def check_unmasked(values, name: str) -> None:
    """Refuse an array that has masked entries."""
    if np.ma.is_masked(values):
        raise ValueError(f"`{name}` must have no masked entries, got {np.ma.count_masked(values)}")
