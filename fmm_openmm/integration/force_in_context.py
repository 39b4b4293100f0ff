"""What an ``FMMForce`` does in a Context: update of its charges, and results beyond energy and
forces."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import openmm

from fmm_openmm.boundary import check_neutral
from fmm_openmm.integration.definition import Parameters
from fmm_openmm.integration.force_handle import ForceHandle
from fmm_openmm.integration.identity import bridge_of
from fmm_openmm.integration.native import callbacks, pair_choice
from fmm_openmm.integration.quadratic import quadratic_energies, read_states
from fmm_openmm.integration.snapshots import REVISION, revision_of


class ForceInContext(ForceHandle):
    """The methods of an ``FMMForce`` that take a Context of its System."""

    def updateParametersInContext(self, context: openmm.Context) -> None:
        """Copy the charges and parameter offsets of the force to a Context.

        ``reinitialize(preserveState=True)``, ``setState``, ``loadState`` and ``loadCheckpoint``
        restore the charges of the last update. If charges were set since, call this again.

        Raises:
            ValueError: the Context's System does not own this force, or did not when the Context
                was created; or the number of particles or the exclusions have changed.
        """
        self._require_in(context, "updateParametersInContext")
        if not self._bridge.is_current:
            raise ValueError(
                "updateParametersInContext: the numbers of particles and the exclusions of an "
                "FMMForce must not change once a Context uses it; the Context keeps its parameters"
            )
        own, particles = len(self._definition.charges), context.getSystem().getNumParticles()
        if own != particles:
            raise ValueError(
                "updateParametersInContext: the FMMForce must have one particle for each of the "
                f"System's {particles}, got {own}; "
                "the Context keeps its parameters"
            )
        values = dict(context.getParameters())
        found = [
            self._bridge if is_self else bridge_of(force)
            for force, is_self in self._python_forces_in(context)
        ]
        bridges = [bridge for bridge in found if bridge is not None]
        others = [bridge for bridge in bridges if bridge is not self._bridge]
        lost = [bridge for bridge in others if bridge.snapshots.has_dropped(values[REVISION])]
        kept = [bridge for bridge in bridges if bridge not in lost]
        sent = [
            self._definition.parameters if bridge is self._bridge else bridge.parameters_in(values)
            for bridge in kept
        ]
        revision = revision_of(sent)
        for bridge, parameters in zip(kept, sent, strict=True):
            bridge.snapshots.add(revision, parameters, context)
        for bridge in lost:  # until it is updated as well
            bridge.snapshots.drop(revision)
        context.setParameter(REVISION, revision)

    def getFMMParametersInContext(self, context: openmm.Context) -> dict:
        """Parameters in use at the box vectors of a Context.

        Returns:
            The fields of :class:`fmm_openmm.FMMParameters`, then ``backend``, ``bridge`` and
            ``bridge_reason``, ``lennard_jones`` ("sites" or "openmm") and ``lennard_jones_reason``.

        Raises:
            OpenMMException: the Context has no positions yet, on which the parameters may depend.
        """
        self._require_in(context, "getFMMParametersInContext")
        state = _state(context)
        box_vectors = state.getPeriodicBoxVectors(asNumpy=True)._value
        positions = state.getPositions(asNumpy=True)._value
        session, reason = callbacks.status(self._bridge, context)
        if session is not None:
            parameters, backend, bridge = (
                session.parameters_for(box_vectors, positions),
                "cuda",
                "native",
            )
        else:
            parameters, backend = self._bridge.in_use(
                positions, box_vectors, dict(state.getParameters())
            )
            bridge = "host"
        pairs, pairs_reason = pair_choice.status(context)
        return asdict(parameters) | {
            "backend": backend,
            "bridge": bridge,
            "bridge_reason": reason,
            "lennard_jones": pairs,
            "lennard_jones_reason": pairs_reason,
        }

    def getPotentialsInContext(self, context: openmm.Context) -> np.ndarray:
        """The electrostatic potential at every particle, due to all particles that are not
        excluded, all periodic images and the background. It is the derivative of the force's energy
        with respect to the charge of the particle.

        Returns:
            shape (n,), kJ/mol/e.
        """
        return self._evaluate(context, "getPotentialsInContext")[1]

    def getEnergyParameterDerivativesInContext(self, context: openmm.Context) -> dict[str, float]:
        """The derivative of this force's energy with respect to each of its global parameters.

        ``{name: sum_i scale_i * potential_i}``, kJ/mol per unit of the parameter, without the
        contribution of exception parameter offsets of a NonbondedForce.
        """
        parameters, potentials = self._evaluate(context, "getEnergyParameterDerivativesInContext")
        return parameters.derivatives(potentials)

    def getStateEnergiesInContext(
        self,
        context: openmm.Context,
        states: Sequence[Mapping[str, float]],
        derivatives: bool = False,
    ) -> Any:
        r"""The energy of this force in each of K states, which are values of global parameters, at
        the positions of a Context, from one evaluation.

        .. math:: E = \tfrac12 v^T G v, \quad v = (1, \lambda_1, \dots, \lambda_S), \quad
                  \frac{\partial E}{\partial \lambda_s} = (G v)_s

        G holds the interaction energies of S + 1 sets of charges: those at zero parameters, and the
        charge scales of each of the S parameters that differ between states (of all parameters with
        ``derivatives``). The solver of the host bridge computes them on every platform.
        :func:`fmm_openmm.state_energies` adds the other forces of the System.

        Args:
            context: with positions.
            states: for each state ``{name: value}``. Parameters that are not named keep the values
                of the Context.
            derivatives: also return the derivatives.

        Returns:
            energies, shape (K,), kJ/mol; with ``derivatives`` a tuple of these and
            ``{name: array}`` for each global parameter of this force, shape (K,), kJ/mol per unit
            of the parameter, as :meth:`getEnergyParameterDerivativesInContext` gives it.

        Raises:
            ValueError: a parameter is unknown or a value is not finite; or the Context does not
                use this force.
            UnsupportedError: the boundary does not allow the net charge of a state.
            TypeError: ``states`` is not a sequence of dictionaries of numbers.
        """
        self._require_in(context, "getStateEnergiesInContext")
        full, values = read_states(context, states)
        parameters = self._bridge.parameters_in(values)
        self._check_neutral(parameters, full)
        energies, slopes = quadratic_energies(
            parameters,
            full,
            lambda sets: self._compute(context, charges=sets, potentials=False).matrix,
            derivatives,
        )
        by_name = dict(zip(parameters.names, slopes.T, strict=True))
        return (energies, by_name) if derivatives else energies

    def getVirialInContext(self, context: openmm.Context) -> np.ndarray:
        r"""The virial of this force at the positions of a Context.

        .. math:: W_{ij} = -\frac{\partial U}{\partial e_{ij}} \quad\text{for}\quad
                  x_i \to x_i + e_{ij} x_j

        The strain e moves all particles and the box vectors. The virial is symmetric, and its trace
        is the energy. Divided by the volume, it is the force's part of the pressure tensor of
        atoms; :func:`fmm_openmm.pressure_tensor` adds all other forces. The solver of the host
        bridge computes it on every platform.

        Args:
            context: with positions.

        Returns:
            shape (3, 3), kJ/mol.

        Raises:
            ValueError: the Context does not use this force, or there are no periodic boundary
                conditions.
        """
        self._require_in(context, "getVirialInContext")
        if not self.usesPeriodicBoundaryConditions():
            raise ValueError("getVirialInContext: the FMMForce has no periodic boundary conditions")
        return self._compute(context, virial=True).virial

    def _check_neutral(self, parameters: Parameters, states: Sequence[Mapping[str, float]]) -> None:
        """Refuse states whose net charge an evaluation would refuse. The solver itself does not:
        the sets of charges that it gets may have any net charge."""
        boundary = self._bridge.fix_structure().boundary
        term = self._definition.options.term(boundary)
        if boundary.is_partial or term is not None:
            slopes = parameters.slopes()
            for state in states:
                charges = parameters.base + np.array(parameters.values(state)) @ slopes
                check_neutral(charges, boundary, term)

    def _evaluate(self, context: openmm.Context, method: str):
        self._require_in(context, method)
        session, _ = callbacks.status(self._bridge, context)
        potentials = session and session.potentials(context)
        if potentials is None:
            potentials = self._compute(context).potentials
        return self._bridge.parameters_in(dict(context.getParameters())), potentials

    def _compute(self, context: openmm.Context, **quantities) -> Any:
        """The result of the host bridge's solver for a Context, with keywords of
        :meth:`CoulombSolver.compute`, on which the type of the result depends."""
        state = _state(context)
        return self._bridge.evaluate(
            state.getPositions(asNumpy=True)._value,
            state.getPeriodicBoxVectors(asNumpy=True)._value,
            dict(state.getParameters()),
            **quantities,
        )

    def _require_in(self, context: openmm.Context, method: str) -> None:
        if not isinstance(context, openmm.Context):
            raise TypeError(f"`context` must be an openmm.Context, got {type(context).__name__}")
        if not any(is_self for _, is_self in self._python_forces_in(context)):
            raise ValueError(
                f"{method}: this FMMForce is not part of the Context's System; for a copy of the "
                "System, or a force inside another one, "
                "take the FMMForce from find_fmm(system) or FMMForce.from_force(force)"
            )
        if REVISION not in context.getParameters():
            raise ValueError(
                f"{method}: this Context was made before the FMMForce was added: call "
                "context.reinitialize(preserveState=True)"
            )

    def _python_forces_in(self, context: openmm.Context) -> list[tuple[openmm.PythonForce, bool]]:
        """The PythonForces of the Context's System, each with whether it is this one."""
        forces = [
            force
            for force in context.getSystem().getForces()
            if isinstance(force, openmm.PythonForce)
        ]
        return [(force, int(force.this) == int(self.this)) for force in forces]


def _state(context: openmm.Context) -> openmm.State:
    """State with positions, box vectors and global parameters; OpenMM's error without positions."""
    context.getState(energy=True, groups=0)
    return context.getState(positions=True, parameters=True)
