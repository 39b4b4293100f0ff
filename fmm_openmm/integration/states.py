"""``state_energies``: energies of one configuration at many values of the global parameters."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import openmm

from fmm_openmm.convert.nonbonded import calls
from fmm_openmm.integration.force import FMMForce
from fmm_openmm.integration.guard.groups import force_groups
from fmm_openmm.integration.quadratic import read_states

OPAQUE = (openmm.PythonForce, openmm.CustomCVForce, openmm.ATMForce)
"""Forces that may depend on parameters which they do not declare."""


def state_energies(context: openmm.Context, states: Sequence[Mapping[str, float]]) -> np.ndarray:
    """The potential energy of a Context's configuration in each of K states, which are values of
    its global parameters. Divided by kT, the energies are a column of the matrix ``u_kn`` of MBAR.

    They are equal to the energies of ``context.setParameter()`` and ``context.getState()`` for one
    state after another, but each part is computed as rarely as possible:

    - The energy of an FMMForce is a quadratic form of its S parameters that change. One evaluation
      with S + 1 sets of charges gives all states
      (:meth:`FMMForce.getStateEnergiesInContext <fmm_openmm.FMMForce.getStateEnergiesInContext>`).
    - Forces that depend on none of the parameters that change are evaluated once.
    - Other forces are evaluated once for each distinct combination of the parameters that they
      depend on: a ``NonbondedForce`` with offsets of Lennard-Jones parameters or exceptions, custom
      forces with such a parameter, and ``CustomCVForce``, ``ATMForce`` and forces of other
      packages, which may depend on any.

    OpenMM evaluates force groups, not forces. An FMMForce in the same group as a force that is
    evaluated several times is evaluated with it each time, which is correct but slow; call
    ``force.setForceGroup(1)``, or another unused group, before the Context is made.

    Args:
        context: Context with positions. Its parameters are restored afterwards, also after an
            error.
        states: for each state ``{name: value}``. Parameters that are not named keep the values of
            the Context.

    Returns:
        shape (K,), kJ/mol.

    Raises:
        ValueError: a parameter is unknown, a value is not finite, or forces or force groups of the
            System were changed after the Context was made.
        UnsupportedError: a state has a net charge that the boundary does not allow, as in a slab.
        TypeError: ``context`` is not a Context, or ``states`` is not a sequence of dictionaries of
            numbers.
        OpenMMException: the Context has no positions.

    Example:
        >>> import numpy as np, openmm, fmm_openmm as fmm
        >>> system, force = openmm.System(), fmm.FMMForce(tolerance=1e-6)
        >>> system.setDefaultPeriodicBoxVectors(*(2.0 * np.eye(3)))
        >>> for charge in (0.0, -1.0):
        ...     _ = system.addParticle(20.0), force.addParticle(charge)
        >>> _ = force.addGlobalParameter("lambda", 1.0)
        >>> _ = force.addParticleParameterOffset("lambda", 0, 1.0)
        >>> _ = system.addForce(force)
        >>> reference = openmm.Platform.getPlatform("Reference")
        >>> context = openmm.Context(system, openmm.VerletIntegrator(0.001), reference)
        >>> context.setPositions([[0, 0, 0], [0, 0, 0.3]])
        >>> state_energies(context, [{"lambda": value} for value in (0, 0.5, 1)]).round()
        array([ -99., -258., -467.])
    """
    groups = force_groups(context)
    full, present = read_states(context, states)
    varying = {name for name in present if any(state[name] != present[name] for state in full)}
    energies, evaluated = np.zeros(len(full)), dict[frozenset[str], set[int]]()
    for number, members in groups.items():
        fmms = [force for force in members if isinstance(force, FMMForce)]
        fmms = [force for force in fmms if _parameters_of(force, varying)]
        if len(fmms) == len(members):
            energies += sum(force.getStateEnergiesInContext(context, full) for force in fmms)
            continue
        others = [force for force in members if not isinstance(force, FMMForce)]
        names = frozenset[str]().union(*(_parameters_of(force, varying) for force in others))
        evaluated.setdefault(names, set()).add(number)
        # the group is evaluated with these parameters; the others act only on its FMMForces
        partial = [present | {name: state[name] for name in names} for state in full]
        for force in fmms:
            if not _parameters_of(force, varying) <= names:
                both = force.getStateEnergiesInContext(context, full + partial)
                energies += both[: len(full)] - both[len(full) :]
    for names, numbers in evaluated.items():
        energies += _evaluate(context, numbers, sorted(names), full)
    return energies


def _evaluate(
    context: openmm.Context, groups: set[int], names: list[str], states: list[dict[str, float]]
) -> list[float]:
    """Energies of force groups in states, in which only some parameters differ from those of the
    Context, kJ/mol."""
    present = {name: context.getParameter(name) for name in names}
    keys = [tuple(state[name] for name in names) for state in states]
    found = {}
    try:
        for key in dict.fromkeys(keys):
            for name, value in zip(names, key, strict=True):
                context.setParameter(name, value)
            state = context.getState(energy=True, groups=groups)
            found[key] = state.getPotentialEnergy()._value
    finally:
        for name, value in present.items():
            context.setParameter(name, value)
    return [found[key] for key in keys]


def _parameters_of(force: openmm.Force, names: set[str]) -> set[str]:
    """Those of the global parameters that the energy of a force may depend on."""
    if isinstance(force, openmm.NonbondedForce):
        return names & _offset_parameters(force)
    declares = hasattr(force, "getNumGlobalParameters")
    if isinstance(force, FMMForce) or (declares and not isinstance(force, OPAQUE)):
        count = force.getNumGlobalParameters()
        return names & {force.getGlobalParameterName(index) for index in range(count)}
    is_known = type(force) is not openmm.Force and type(force).__module__ == openmm.openmm.__name__
    return set() if is_known and not isinstance(force, OPAQUE) else names


def _offset_parameters(force: openmm.NonbondedForce) -> set[str]:
    """Parameters of offsets that are not zero."""
    particles = force.getNumParticleParameterOffsets()
    exceptions = force.getNumExceptionParameterOffsets()
    rows = chain(
        calls(force, "getParticleParameterOffset", particles),
        calls(force, "getExceptionParameterOffset", exceptions),
    )
    return {name for name, _, *scales in rows if any(scales)}
