"""``FMMForce``: Coulomb interaction by the fast multipole method, as an ``openmm.Force``."""

import operator
import pickle
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import openmm
from openmm import unit

from fmm_openmm.boundary import Boundary
from fmm_openmm.convert.nonbonded import excepted_pairs, particle_parameters
from fmm_openmm.convert.openmm_system import global_defaults
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.bridge import HostBridge
from fmm_openmm.integration.definition import Definition
from fmm_openmm.integration.identity import bridge_of
from fmm_openmm.integration.native import callbacks, pair_choice
from fmm_openmm.integration.options import ForceKeywords, Options
from fmm_openmm.integration.pickled import replace_pickle
from fmm_openmm.integration.snapshots import REVISION, revision_of
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.planning.request import TOLERANCE

if TYPE_CHECKING:
    from typing_extensions import Unpack


if TYPE_CHECKING:

    class _PythonForce:
        """What type checkers know of ``openmm.PythonForce``, of which OpenMM tells them nothing."""

        def getForceGroup(self) -> int: ...
        def setForceGroup(self, group: int) -> None: ...
        def getName(self) -> str: ...
        def setName(self, name: str) -> None: ...
        def usesPeriodicBoundaryConditions(self) -> bool: ...
        def setUsesPeriodicBoundaryConditions(self, periodic: bool) -> None: ...
else:
    _PythonForce = openmm.PythonForce


@lists_options(Options)
class FMMForce(_PythonForce):
    r"""Coulomb interaction of all particles and their periodic images, by the fast multipole
    method.

    .. math:: U = \frac{k_e}{2} \sum_{i,j} \sum_{n}{}' \frac{q_i q_j}{|x_i - x_j - n|}
                  - k_e \sum_{(i,j)\ excluded} \frac{q_i q_j}{|x_i - x_j|}

    with tin-foil boundary and, for a net charge, a uniform neutralising background, as OpenMM's PME
    has them. Of an excluded pair the bare interaction at the distance of the coordinates as they
    are is removed, or at the minimum image after
    ``setExclusionsUsePeriodicBoundaryConditions(True)``. After
    ``setUsesPeriodicBoundaryConditions(False)`` the particles are in empty space: n = 0 alone, for
    any net charge, as with OpenMM's NoCutoff.

    Fill it like any force of OpenMM and add it to a System; charges are
    ``charge = base + sum(scale * parameter)`` over the parameter offsets. Where it differs from a
    ``NonbondedForce``:

    - Global parameters must be added before ``system.addForce(force)``, and their defaults stay as
      they are then; everything else may follow. Set other values with ``context.setParameter()``.
      A force that :func:`use_fmm` made leaves its parameters to the NonbondedForce, and with them
      the defaults, which may be set there at any time.
    - Charges that are set after that take effect at the next evaluation in every Context that has
      not been updated by ``updateParametersInContext()``, not only in new Contexts.
    - Particle count and exclusions are fixed once a Context has evaluated the force. After a later
      change ``updateParametersInContext()`` raises an error; copy the System for a Context with the
      new ones.
    - ``system.getForce(i)`` returns an ``openmm.PythonForce``; :meth:`from_force` and
      :func:`find_fmm` return the ``FMMForce`` to it.
    - ``updateParametersInContext()`` records the charges in use in the Context's parameter
      ``fmm_revision``. It becomes part of States and checkpoints, and of
      ``reinitialize(preserveState=True)``: these bring back the charges of that update, so call it
      again afterwards for those set since. The charges themselves are kept for the Contexts that
      were updated, and the last eight in use; a State that needs others of this process is an
      error. A State from before any update, or of a Context without an FMMForce, leaves the charges
      as they are; in a Context without an FMMForce every State leaves them.
    - A PythonForce does not know its Context's precision, so ``precision="auto"`` depends on the
      tolerance. On the native bridge it is double in Contexts of double precision.
    - Inside a ``CustomCVForce`` or ``ATMForce`` OpenMM evaluates a clone: global parameters reach
      it, ``updateParametersInContext()`` does not.
    - ``State.getEnergyParameterDerivatives()`` lacks it: call
      :meth:`getEnergyParameterDerivativesInContext`.

    Args:
        tolerance: relative RMS force error to meet.
        options: the keywords of
            :class:`ForceKeywords <fmm_openmm.integration.options.ForceKeywords>`.

    Raises:
        ValueError, TypeError: a bad option, naming it.
        UnsupportedError: an option that is not available on this computer.
    """

    @suggests_keywords(like=Options)
    def __init__(self, tolerance: float = TOLERANCE, **options: "Unpack[ForceKeywords]"):
        options = Options(tolerance, **options)
        options.check_available()
        self._start(HostBridge(Definition(options)))

    def _start(self, bridge: HostBridge, name: str = "FMMForce", group: int = 0) -> None:
        self._bridge, self._is_view = bridge, False
        self._declares_parameters = True  # to its Contexts; False: another force does
        self._name, self._group = name, group
        bridge.handles.add(self)

    def __repr__(self) -> str:
        given = [
            f"{name} {value!r}"
            for name, value in asdict(self._definition.options).items()
            if value not in (None, "auto")
        ]
        return (
            f"FMMForce({self.getNumParticles()} particles, {self.getNumExclusions()} exclusions, "
            f"{self._definition.boundary.name}, {', '.join(given)})"
        )

    # the C++ object

    @property
    def this(self):
        """SWIG's handle of the C++ object, which is built when something first asks for it.

        A PythonForce is immutable, so a change while Python still owns it drops the object, see
        :meth:`_edited`. OpenMM asks for ``thisown`` before a System or another force takes it over.
        """
        handle = self.__dict__.get("this")
        if handle is None:
            callbacks.prepare(self._definition.options)
            defaults = dict(self._definition.global_parameters) if self._declares_parameters else {}
            built = openmm.PythonForce(self._bridge, {REVISION: 0.0, **defaults})
            built.setUsesPeriodicBoundaryConditions(not self._definition.boundary.is_open)
            built.setName(self._name)
            built.setForceGroup(self._group)
            handle = self.__dict__["this"] = built.this
        return handle

    @property
    def thisown(self):
        """Whether Python owns the C++ object."""
        return self.this.own()

    @thisown.setter
    def thisown(self, flag):
        self.this.own(flag)

    @property
    def _definition(self) -> Definition:
        return self._bridge.definition

    @property
    def _is_taken(self) -> bool:
        """Whether a System or another force owns the C++ object, or it came from somebody else
        who may hand it on."""
        handle = self.__dict__.get("this")
        return handle is not None and (self._is_view or not handle.own())

    def _removed(self, system: openmm.System, index: int) -> None:
        """Remove it from the System that owns it.

        All handles then belong to Python again, as if never added.
        """
        name, group = self.getName(), self.getForceGroup()
        handles, bridge = list(self._bridge.handles), HostBridge(self._definition)
        system.removeForce(index)
        self._definition.original = None
        for handle in handles:
            handle.__dict__.pop("this", None)
            handle._start(bridge, name, group)

    def _edited(self) -> None:
        """Carry a change of the definition over to the C++ object."""
        if "this" not in self.__dict__:
            return
        callbacks.changed()
        if self._is_taken:
            if not replace_pickle(self, pickle.dumps(self._bridge)):
                warnings.warn(
                    "this build of OpenMM does not let an FMMForce change once a System owns it: "
                    "the change acts in Contexts, but XML and copies of the System will lack it",
                    stacklevel=3,
                )
        else:
            self._name, self._group = self.getName(), self.getForceGroup()
            del self.__dict__["this"]

    def _restructured(self) -> None:
        self._edited()
        if not self._bridge.is_current:
            warnings.warn(
                "an FMMForce was given other particles or exclusions after a Context had used it: "
                "Contexts of this System keep the old ones; make a Context of "
                "copy.deepcopy(system) for the new ones",
                stacklevel=3,
            )

    # particles

    def addParticle(self, charge) -> int:
        """Add a particle; one is needed for each of the System, in its order.

        Args:
            charge: e.

        Returns:
            The index of the particle.
        """
        index = self._definition.add_particle(charge)
        self._restructured()
        return index

    def getNumParticles(self) -> int:
        """The number of particles."""
        return len(self._definition.charges)

    def getParticleParameters(self, index: int):
        """The charge of a particle, without parameter offsets, as a Quantity."""
        charge = self._definition.charges[_index(index, self.getNumParticles(), "particles")][0]
        return unit.Quantity(float(charge), unit.elementary_charge)

    def setParticleParameters(self, index: int, charge) -> None:
        """Set the charge of a particle, e. Contexts that have been updated before need another
        :meth:`updateParametersInContext`."""
        self._definition.set_charge(_index(index, self.getNumParticles(), "particles"), charge)
        self._edited()

    def setCharges(self, charges) -> None:
        """Set the charges of all particles, shape (n,), e: as :meth:`setParticleParameters` for
        each. Once a System owns the force, every single change writes anew what copies and XML are
        made of; this does so once.

        Raises:
            ValueError: another number of particles, or a charge that is not finite, naming the
                particle.
        """
        self._definition.set_charges(charges)
        self._edited()

    # exclusions

    def addExclusion(self, particle1: int, particle2: int) -> int:
        """Exclude a pair: its bare 1/r interaction is left out.

        Returns:
            The index of the exclusion.

        Raises:
            ValueError: the pair is excluded already, or is no pair.
        """
        index = self._definition.add_exclusion(
            _integer(particle1, "particle1"), _integer(particle2, "particle2")
        )
        self._restructured()
        return index

    def getNumExclusions(self) -> int:
        """The number of excluded pairs."""
        return len(self._definition.exclusions)

    def getExclusionParticles(self, index: int) -> list[int]:
        """The two particles of an exclusion."""
        return self._definition.exclusions[
            _index(index, self.getNumExclusions(), "exclusions")
        ].tolist()

    def setExclusionsUsePeriodicBoundaryConditions(self, periodic: bool) -> None:
        """Whether an excluded pair means its minimum image instead of its coordinates as they
        are (the default)."""
        self._definition.set_exclusions_periodic(periodic)
        self._restructured()

    def getExclusionsUsePeriodicBoundaryConditions(self) -> bool:
        """Whether an excluded pair means its minimum image."""
        return self._definition.exclusions_periodic

    # parameter offsets

    def addGlobalParameter(self, name: str, defaultValue) -> int:
        """Add a global parameter that charges may depend on.

        Returns:
            The index of the parameter.

        Raises:
            ValueError: the name is taken, a System owns the force already, or it came from
                :meth:`from_force`.
        """
        if self._is_taken:
            raise ValueError(
                f"global parameter {name!r} must be added to the FMMForce before the force is "
                "added to a System, read from XML or copied"
            )
        if name == REVISION:
            raise ValueError(
                f"`name` of a global parameter must not be {REVISION!r}, which FMMForce uses itself"
            )
        index = self._definition.add_global_parameter(name, defaultValue)
        self._edited()
        return index

    def getNumGlobalParameters(self) -> int:
        """The number of global parameters added by ``addGlobalParameter()``."""
        return len(self._definition.global_parameters)

    def getGlobalParameterName(self, index: int) -> str:
        """The name of a global parameter."""
        return self._global_parameter(index)[0]

    def getGlobalParameterDefaultValue(self, index: int) -> float:
        """The value of a global parameter in a new Context; of a force that :func:`use_fmm` made,
        at the conversion."""
        return self._global_parameter(index)[1]

    def _global_parameter(self, index: int) -> tuple[str, float]:
        return self._definition.global_parameters[
            _index(index, self.getNumGlobalParameters(), "global parameters")
        ]

    def addParticleParameterOffset(self, parameter: str, particleIndex: int, chargeScale) -> int:
        """Add ``chargeScale * parameter`` to the charge of a particle.

        Args:
            parameter: name of a global parameter of this force.
            particleIndex: the particle.
            chargeScale: e per unit of the parameter.

        Returns:
            The index of the offset.
        """
        index = self._definition.add_offset(
            parameter, _integer(particleIndex, "particleIndex"), chargeScale
        )
        self._edited()
        return index

    def getNumParticleParameterOffsets(self) -> int:
        """The number of parameter offsets."""
        return len(self._definition.offset_scales)

    def getParticleParameterOffset(self, index: int) -> list:
        """Parameter name, particle and charge scale of an offset."""
        index = _index(index, self.getNumParticleParameterOffsets(), "parameter offsets")
        parameter, particle = self._definition.offset_targets[index].tolist()
        return [
            self.getGlobalParameterName(parameter),
            particle,
            float(self._definition.offset_scales[index][0]),
        ]

    def setParticleParameterOffset(
        self, index: int, parameter: str, particleIndex: int, chargeScale
    ) -> None:
        """Replace an offset: ``chargeScale`` e per unit of the parameter, as in
        :meth:`addParticleParameterOffset`."""
        index = _index(index, self.getNumParticleParameterOffsets(), "parameter offsets")
        self._definition.set_offset(
            index, parameter, _integer(particleIndex, "particleIndex"), chargeScale
        )
        self._edited()

    # boundary

    def setUsesPeriodicBoundaryConditions(self, periodic: bool) -> None:
        """Whether there are periodic images (the default), or the particles are in empty space.

        Raises:
            ValueError: for False, if the force was given a ``grid``; for another than before, once
                a Context has used it.
        """
        if self._bridge.in_contexts and bool(periodic) != self.usesPeriodicBoundaryConditions():
            raise ValueError(
                "setUsesPeriodicBoundaryConditions: the boundary of an FMMForce must not change "
                "once a Context has used it; set it in a copy.deepcopy(system)"
            )
        self._definition.set_boundary(Boundary((bool(periodic),) * 3))
        if self._is_taken:
            super().setUsesPeriodicBoundaryConditions(bool(periodic))
        self._restructured()

    # what a PythonForce could do and an FMMForce cannot

    def setParticles(self, particles) -> None:
        """Not available.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "an FMMForce acts on all particles: give charge 0 to those it should leave out"
        )

    # Contexts

    def updateParametersInContext(self, context: openmm.Context) -> None:
        """Send the present charges and parameter offsets to a Context.

        ``reinitialize(preserveState=True)``, ``setState``, ``loadState`` and ``loadCheckpoint``
        bring back the charges of the last update, not those set on the force since: call this again
        afterwards.

        Raises:
            ValueError: the Context's System does not own this force, or did not when the Context
                was made; or particles or exclusions were changed.
        """
        self._require_in(context, "updateParametersInContext")
        if not self._bridge.is_current:
            raise ValueError(
                "updateParametersInContext: the numbers of particles and the exclusions of an "
                "FMMForce must not change once a Context uses it; the Context keeps its parameters"
            )
        particles = context.getSystem().getNumParticles()
        if self.getNumParticles() != particles:
            raise ValueError(
                "updateParametersInContext: the FMMForce must have one particle for each of the "
                f"System's {particles}, got {self.getNumParticles()}; "
                "the Context keeps its parameters"
            )
        values = dict(context.getParameters())
        bridges = [
            self._bridge if is_self else bridge_of(force)
            for force, is_self in self._python_forces_in(context)
        ]
        bridges = [bridge for bridge in bridges if bridge is not None]
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
        """What is in use at the Context's box vectors.

        Returns:
            The fields of :class:`fmm_openmm.FMMParameters`, then ``backend``, ``bridge`` and
            ``bridge_reason``, ``lennard_jones`` ("sites" or "openmm") and ``lennard_jones_reason``.

        Raises:
            OpenMMException: the Context has no positions yet, on which the choice may depend.
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
        """The electrostatic potential at every particle: of all others but the excluded ones, of
        every periodic image and of the background. The derivative of the force's energy with
        respect to the particle's charge.

        Returns:
            shape (n,), kJ/mol/e.
        """
        return self._evaluate(context, "getPotentialsInContext")[1]

    def getEnergyParameterDerivativesInContext(self, context: openmm.Context) -> dict[str, float]:
        """The derivative of this force's energy with respect to each of its global parameters.

        ``{name: sum_i scale_i * potential_i}``, kJ/mol per unit of the parameter. What exception
        parameter offsets of a NonbondedForce contribute is not part of it.
        """
        parameters, potentials = self._evaluate(context, "getEnergyParameterDerivativesInContext")
        return parameters.derivatives(potentials)

    def _evaluate(self, context: openmm.Context, method: str):
        self._require_in(context, method)
        session, _ = callbacks.status(self._bridge, context)
        potentials = session and session.potentials(context)
        if potentials is not None:
            return self._bridge.parameters_in(dict(context.getParameters())), potentials
        state = _state(context)
        values = dict(state.getParameters())
        positions = state.getPositions(asNumpy=True)._value
        result = self._bridge.evaluate(
            positions, state.getPeriodicBoxVectors(asNumpy=True)._value, values
        )
        return self._bridge.parameters_in(values), result.potentials

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

    # other ways to make one

    @classmethod
    def from_force(cls, force: openmm.Force) -> "FMMForce":
        """The FMMForce to a force that came from ``system.getForce()``, from XML or from a copy.

        Both are handles of one C++ object and share its charges.

        Raises:
            ValueError, TypeError: the force is not an FMMForce, or no force at all.
        """
        if isinstance(force, FMMForce):
            return force
        if not isinstance(force, openmm.Force):
            raise TypeError(f"`force` must be an openmm.Force, got {type(force).__name__}")
        bridge = bridge_of(force) if isinstance(force, openmm.PythonForce) else None
        if bridge is None:
            raise ValueError(
                "`force` must be an FMMForce, "
                f"got {force.getName()!r} of type {type(force).__name__}"
            )
        return cls._view(force, bridge)

    @classmethod
    def _view(cls, force: openmm.PythonForce, bridge: HostBridge) -> "FMMForce":
        made = cls.__new__(cls)
        made._start(bridge)
        made._is_view, made.__dict__["this"] = True, force.this
        return made

    @classmethod
    @suggests_keywords(like=Options)
    def from_nonbonded(
        cls,
        nonbonded_force: openmm.NonbondedForce,
        *,
        tolerance: float = TOLERANCE,
        **options: "Unpack[ForceKeywords]",
    ) -> "FMMForce":
        """A force with the charges, charge offsets and boundary of a NonbondedForce; every
        exception becomes an exclusion.

        The NonbondedForce is left as it is. It must evaluate its exceptions itself, and
        nothing else of Coulomb: :func:`use_fmm` arranges that.

        Args:
            nonbonded_force: the source.
            tolerance: relative RMS force error to meet.
            options: the other keywords of :class:`FMMForce`.

        Raises:
            TypeError: not a NonbondedForce.
            ValueError, UnsupportedError: as :class:`FMMForce`.
        """
        if not isinstance(nonbonded_force, openmm.NonbondedForce):
            raise TypeError(
                "`nonbonded_force` must be an openmm.NonbondedForce, got "
                f"{type(nonbonded_force).__name__}"
            )
        made = cls(tolerance, **options)
        made._fill(nonbonded_force, particle_parameters(nonbonded_force)[:, 0])
        return made

    def _fill(self, nonbonded_force: openmm.NonbondedForce, charges: np.ndarray) -> None:
        """Take over from a NonbondedForce with these charges, shape (n,), e,
        while this force is empty."""
        definition = self._definition
        definition.set_boundary(Boundary((nonbonded_force.usesPeriodicBoundaryConditions(),) * 3))
        definition.fill(charges, excepted_pairs(nonbonded_force))
        definition.set_exclusions_periodic(
            nonbonded_force.getExceptionsUsePeriodicBoundaryConditions()
        )
        defaults, known = global_defaults(nonbonded_force), set()
        for index in range(nonbonded_force.getNumParticleParameterOffsets()):
            name, particle, scale, _, _ = nonbonded_force.getParticleParameterOffset(index)
            if scale != 0:
                if name not in known:
                    definition.add_global_parameter(name, defaults[name])
                    known.add(name)
                definition.add_offset(name, particle, scale)
        self._group = nonbonded_force.getForceGroup()

    def __copy__(self) -> "FMMForce":
        return _restore(type(self), self._definition.pack(), self.getName(), self.getForceGroup())

    def __deepcopy__(self, memo) -> "FMMForce":
        return self.__copy__()

    def __reduce__(self):
        return _restore, (type(self), self._definition.pack(), self.getName(), self.getForceGroup())


def _restore(cls, packed: str | dict, name: str, group: int) -> FMMForce:
    force = cls.__new__(cls)
    force._start(HostBridge(Definition.unpack(packed)), name, group)
    return force


def find_fmm(system: openmm.System) -> list[FMMForce]:
    """Every FMMForce of a System, in its order: also after the System was copied or read from XML.

    Raises:
        TypeError: not a System.
    """
    if not isinstance(system, openmm.System):
        raise TypeError(f"`system` must be an openmm.System, got {type(system).__name__}")
    bridges = [
        (force, bridge_of(force))
        for force in system.getForces()
        if isinstance(force, openmm.PythonForce)
    ]
    return [FMMForce._view(force, bridge) for force, bridge in bridges if bridge is not None]


def _state(context: openmm.Context) -> openmm.State:
    """Positions, box vectors and global parameters, or OpenMM's error where no
    positions have been set."""
    context.getState(energy=True, groups=0)
    return context.getState(positions=True, parameters=True)


def _integer(value, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, got {value!r:.80}") from None


def _index(index: int, count: int, what: str) -> int:
    if not 0 <= _integer(index, "index") < count:
        raise ValueError(
            f"`index` must be 0 or above and below {count}, the number of {what}, got {index}"
        )
    return index
