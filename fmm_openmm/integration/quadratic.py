"""The energy of an FMMForce as a quadratic form of its global parameters.

Charges are linear in the parameters, ``q = b + sum_s lambda_s d_s``, and the energy is a quadratic
form of the charges. With the potentials of the S + 1 sets of charges ``Q = (b, d_1, ...)`` the
energy of any values of the parameters is

    E = v^T G v / 2,    dE/dlambda_s = (G v)_s,    v = (1, lambda_1, ...),    G = Q Phi^T,

exactly, the neutralising background of a net charge included.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import openmm

from fmm_openmm.integration.definition import Parameters
from fmm_openmm.integration.snapshots import REVISION
from fmm_openmm.units import strip_units


def read_states(
    context: openmm.Context, states: Sequence[Mapping[str, float]]
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """The values of all global parameters in each state, and those of the Context.

    Raises:
        ValueError: a parameter is unknown, or a value not finite.
        TypeError: ``states`` is not a sequence of mappings to numbers.
    """
    if isinstance(states, str) or not isinstance(states, Sequence):
        raise TypeError(
            f"`states` must be a sequence of {{parameter: value}}, got {type(states).__name__}"
        )
    present = dict(context.getParameters())
    full = [present | _read_state(index, state, present) for index, state in enumerate(states)]
    return full, present


def _read_state(index: int, state: Mapping[str, float], present: dict) -> dict[str, float]:
    if not isinstance(state, Mapping):
        raise TypeError(f"`states[{index}]` must be {{parameter: value}}, got {state!r:.80}")
    values = {}
    for name, value in state.items():
        where = f"`states[{index}][{name!r}]`"
        if name not in present:
            raise ValueError(
                f"`states[{index}]` names {name!r}, which is no global parameter of the Context; "
                f"its parameters: {', '.join(map(repr, present))}"
            )
        try:
            values[name] = float(strip_units(value))
        except (TypeError, ValueError):
            raise TypeError(f"{where} must be a number, got {value!r:.80}") from None
        if not np.isfinite(values[name]):
            raise ValueError(f"{where} must be finite, got {values[name]}")
    if values.get(REVISION, present.get(REVISION)) != present.get(REVISION):
        raise ValueError(
            f"`states[{index}]` must not change {REVISION!r}, which identifies the charges of the "
            "Context: call updateParametersInContext() for others"
        )
    return values


def quadratic_energies(
    parameters: Parameters,
    states: Sequence[Mapping[str, float]],
    matrix_of: Callable[[np.ndarray], np.ndarray],
    derivatives: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Energies of states, and their derivatives.

    Args:
        parameters: charges of the force in the Context.
        states: values of all global parameters in each of K states.
        matrix_of: returns ``q_s phi_t``, shape (S + 1, S + 1), kJ/mol, for sets of charges, shape
            (S + 1, n), e.
        derivatives: whether the derivatives are needed. Else parameters with the same value in all
            states need no set of charges.

    Returns:
        energies: shape (K,), kJ/mol.
        derivatives: with respect to each of the P parameters of the force, shape (K, P), kJ/mol per
            unit of the parameter; 0 where they were not needed.
    """
    values = np.array([parameters.values(state) for state in states], np.float64)
    values = values.reshape(len(states), len(parameters.names))
    slopes, found = parameters.slopes(), np.zeros_like(values)
    if not len(states):
        return np.zeros(0), found
    used = slopes.any(1)
    if not derivatives:
        used &= (values != values[0]).any(0)
    base = parameters.base + values[0, ~used] @ slopes[~used]
    matrix = matrix_of(np.vstack([base, slopes[used]]))
    vectors = np.column_stack([np.ones(len(states)), values[:, used]])
    gradients = vectors @ (matrix + matrix.T) / 2
    found[:, used] = gradients[:, 1:]
    return (vectors * gradients).sum(1) / 2, found
