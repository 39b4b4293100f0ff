"""``FMMForce``: Coulomb interaction by the fast multipole method, as an ``openmm.Force``."""

import operator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import openmm
from openmm import unit

from fmm_openmm.boundary import Boundary, check_neutral
from fmm_openmm.convert.nonbonded import excepted_pairs, particle_parameters
from fmm_openmm.convert.openmm_system import global_defaults
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.bridge import HostBridge
from fmm_openmm.integration.definition import Definition
from fmm_openmm.integration.force_in_context import ForceInContext
from fmm_openmm.integration.identity import bridge_of
from fmm_openmm.integration.options import ForceKeywords, Options
from fmm_openmm.integration.snapshots import REVISION
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.planning.request import TOLERANCE

if TYPE_CHECKING:
    from typing_extensions import Unpack

SWIG_NAMES = ("this", "thisown")


@lists_options(Options)
class FMMForce(ForceInContext):
    r"""Coulomb interaction of all particles and their periodic images, by the fast multipole
    method.

    .. math:: U = \frac{k_e}{2} \sum_{i,j} \sum_{n}{}' \frac{q_i q_j}{|x_i - x_j - n|}
                  - k_e \sum_{(i,j)\ excluded} \frac{q_i q_j}{|x_i - x_j|}

    The boundary is tin-foil, and a uniform background neutralises a net charge, as in OpenMM's PME.
    For an excluded pair the bare interaction is subtracted at the distance that the coordinates
    give, or at the minimum image after ``setExclusionsUsePeriodicBoundaryConditions(True)``. After
    ``setUsesPeriodicBoundaryConditions(False)`` the particles are in free space: only n = 0
    contributes, and the net charge is arbitrary, as with OpenMM's NoCutoff.

    A slab has images along two of the box vectors, a wire along one, as in
    :class:`fmm_openmm.CoulombSolver`. The other box vectors concern only the other forces of
    the System. OpenMM may have wrapped particles along them. Each particle is moved to the image
    next to the others, with the box cut at the widest gap among the particles. There must be
    vacuum, without which an evaluation raises an error.

    Particles, exclusions and parameter offsets are added as to any force of OpenMM. The charge of
    a particle is ``base + sum(scale * parameter)`` over its parameter offsets. The force differs
    from a ``NonbondedForce`` in these points:

    - Global parameters must be added before ``system.addForce(force)``, and their defaults cannot
      change afterwards; set other values with ``context.setParameter()``. Everything else may be
      added later. A force made by :func:`use_fmm` leaves its parameters to the NonbondedForce,
      where their defaults may be set at any time.
    - Charges that are set later take effect at the next evaluation in every Context that has not
      been updated by ``updateParametersInContext()``, not only in new Contexts.
    - The number of particles and the exclusions are fixed once a Context has evaluated the force.
      After a later change ``updateParametersInContext()`` raises an error; make a Context of a copy
      of the System.
    - ``system.getForce(i)`` returns an ``openmm.PythonForce``; :meth:`from_force` and
      :func:`find_fmm` return its ``FMMForce``.
    - ``updateParametersInContext()`` records the charges in use in the Context's parameter
      ``fmm_revision``, which is part of States and checkpoints and of
      ``reinitialize(preserveState=True)``. Loading these restores the charges of that update; for
      charges set since, call it again. Charges are remembered for the Contexts that were updated,
      and for the last eight updates in use. After loading a State that needs other charges of this
      process an evaluation raises an error. A State from before any update, or of a Context without
      an FMMForce, does not change the charges.
    - A PythonForce does not know the precision of its Context, so ``precision="auto"`` depends on
      the tolerance. On the native bridge it is double in Contexts of double precision.
    - Inside a ``CustomCVForce`` or ``ATMForce`` OpenMM evaluates a copy. Global parameters reach
      it, ``updateParametersInContext()`` does not.
    - ``State.getEnergyParameterDerivatives()`` does not include it; call
      :meth:`getEnergyParameterDerivativesInContext`.

    Args:
        tolerance: largest relative RMS force error.
        boundary: the box vectors along which there are images: "periodic" (all), "slab" (a and
            b), "wire" (c), any of "ab", "bc", "ac", "a", "b" and "c", or "open".
        options: keywords of
            :class:`ForceKeywords <fmm_openmm.integration.options.ForceKeywords>`.

    Raises:
        ValueError, TypeError: an option is invalid; the message names it.
        UnsupportedError: an option is not available on this computer, or ``neutralization`` with
            this boundary.
    """

    @suggests_keywords(like=Options)
    def __init__(
        self,
        tolerance: float = TOLERANCE,
        *,
        boundary: str = "periodic",
        **options: "Unpack[ForceKeywords]",
    ):
        chosen = Options(tolerance, **options)
        chosen.check_available()
        definition = Definition(chosen)
        definition.set_boundary(Boundary.from_name(boundary))
        self._start(HostBridge(definition))

    def __dir__(self) -> list[str]:
        """The public names, without what SWIG adds."""
        return [name for name in super().__dir__() if name[0] != "_" and name not in SWIG_NAMES]

    def __repr__(self) -> str:
        options = self._definition.options
        given = [f"tolerance {options.tolerance!r}"] + [
            f"{row.name} {getattr(options, row.name)!r}"
            for row in fields(options)
            if row.name != "tolerance" and getattr(options, row.name) != row.default
        ]
        return (
            f"FMMForce({self.getNumParticles()} particles, {self.getNumExclusions()} exclusions, "
            f"{self._definition.boundary.name}, {', '.join(given)})"
        )

    # particles

    def addParticle(self, charge) -> int:
        """Add a particle. The force needs one for each particle of the System, in the same order.

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
        """Set the charge of a particle, e. Contexts that were updated before need another
        :meth:`updateParametersInContext`."""
        self._definition.set_charge(_index(index, self.getNumParticles(), "particles"), charge)
        self._edited()

    def setCharges(self, charges) -> None:
        """Set the charges of all particles, shape (n,), e.

        Equivalent to :meth:`setParticleParameters` for each particle, but faster if a System owns
        the force, since each change serialises the force again.

        Raises:
            ValueError: the number of charges is wrong, or a charge is not finite; the message names
                the particle.
        """
        self._definition.set_charges(charges)
        self._edited()

    # exclusions

    def addExclusion(self, particle1: int, particle2: int) -> int:
        """Exclude the bare 1/r interaction of a pair.

        Returns:
            The index of the exclusion.

        Raises:
            ValueError: the pair is excluded already, or is not a pair of particles.
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
        """Set whether exclusions apply to the minimum image of a pair instead of the image that the
        coordinates give (the default)."""
        self._definition.set_exclusions_periodic(periodic)
        self._restructured()

    def getExclusionsUsePeriodicBoundaryConditions(self) -> bool:
        """Whether exclusions apply to the minimum image of a pair."""
        return self._definition.exclusions_periodic

    # parameter offsets

    def addGlobalParameter(self, name: str, defaultValue) -> int:
        """Add a global parameter that charges may depend on.

        Returns:
            The index of the parameter.

        Raises:
            ValueError: the name is in use, a System owns the force already, or the force came from
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
        """The value of a global parameter in a new Context; for a force made by :func:`use_fmm`,
        the value at the conversion."""
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
        """Set whether there are periodic images (the default) or the particles are in free space.
        A slab or wire is periodic, and True does not change it.

        Raises:
            ValueError: False together with the option ``grid``, or a change after a Context has
                used the force.
        """
        if bool(periodic) == (not self._definition.boundary.is_open):
            return
        if self._bridge.in_contexts:
            raise ValueError(
                "setUsesPeriodicBoundaryConditions: the boundary of an FMMForce must not change "
                "once a Context has used it; set it in a copy.deepcopy(system)"
            )
        self._definition.set_boundary(Boundary((bool(periodic),) * 3))
        if self._is_taken:
            super().setUsesPeriodicBoundaryConditions(bool(periodic))
        self._restructured()

    # methods of PythonForce that an FMMForce does not support

    def setParticles(self, particles) -> None:
        """Raise an error: an FMMForce acts on all particles.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "an FMMForce acts on all particles: give charge 0 to those it should leave out"
        )

    # other constructors

    @classmethod
    def from_force(cls, force: openmm.Force) -> "FMMForce":
        """Return the FMMForce for a force obtained from ``system.getForce()``, XML or a copy.

        The argument and the result are handles of the same C++ object and share its charges.

        Raises:
            ValueError, TypeError: the force is not an FMMForce, or not a force.
        """
        if isinstance(force, FMMForce):
            return force
        if not isinstance(force, openmm.Force):
            raise TypeError(f"`force` must be an openmm.Force, got {type(force).__name__}")
        bridge: Any = bridge_of(force) if isinstance(force, openmm.PythonForce) else None
        if bridge is None:
            raise ValueError(
                "`force` must be an FMMForce, "
                f"got {force.getName()!r} of type {type(force).__name__}"
            )
        return cls._view(force, bridge)

    @classmethod
    @suggests_keywords(like=Options)
    def from_nonbonded(
        cls,
        nonbonded_force: openmm.NonbondedForce,
        *,
        tolerance: float = TOLERANCE,
        boundary: str | None = None,
        **options: "Unpack[ForceKeywords]",
    ) -> "FMMForce":
        """A force with the charges, charge offsets and boundary of a NonbondedForce; every
        exception becomes an exclusion.

        The NonbondedForce is not changed. It must evaluate its exceptions, but no other Coulomb
        interaction: set its charges, and the charge scales of its parameter offsets, to 0
        afterwards. :func:`use_fmm` does so itself.

        Args:
            nonbonded_force: the source.
            tolerance: largest relative RMS force error.
            boundary: as in :class:`FMMForce`; None for that of the NonbondedForce. A slab or wire
                needs one that is periodic.
            options: other keywords of :class:`FMMForce`.

        Raises:
            TypeError: ``nonbonded_force`` is not a NonbondedForce.
            ValueError, UnsupportedError: as :class:`FMMForce`; or the boundary does not fit that
                of the NonbondedForce, or charges of a slab or wire are not neutral.
        """
        if not isinstance(nonbonded_force, openmm.NonbondedForce):
            raise TypeError(
                "`nonbonded_force` must be an openmm.NonbondedForce, got "
                f"{type(nonbonded_force).__name__}"
            )
        made = cls(tolerance, boundary=boundary_for(nonbonded_force, boundary).name, **options)
        made._fill(nonbonded_force, particle_parameters(nonbonded_force)[:, 0])
        return made

    def _fill(self, nonbonded_force: openmm.NonbondedForce, charges: np.ndarray) -> None:
        """Fill the empty force from a NonbondedForce with the given charges, shape (n,), e."""
        definition = self._definition
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
        charges = definition.parameters.charges(defaults)
        check_neutral(charges, definition.boundary, definition.options.term(definition.boundary))
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
    """All FMMForces of a System, in order, also if the System is a copy or was read from XML.

    Raises:
        TypeError: ``system`` is not a System.
    """
    if not isinstance(system, openmm.System):
        raise TypeError(f"`system` must be an openmm.System, got {type(system).__name__}")
    bridges: list[tuple[openmm.PythonForce, Any]] = [
        (force, bridge_of(force))
        for force in system.getForces()
        if isinstance(force, openmm.PythonForce)
    ]
    return [FMMForce._view(force, bridge) for force, bridge in bridges if bridge is not None]


def boundary_for(nonbonded_force: openmm.NonbondedForce, name: str | None) -> Boundary:
    """The boundary of a name, or that of a NonbondedForce for None.

    Raises:
        ValueError: no boundary has this name, or only one of boundary and force is periodic.
    """
    periodic = nonbonded_force.usesPeriodicBoundaryConditions()
    if name is None:
        return Boundary((periodic,) * 3)
    found = Boundary.from_name(name)
    if found.is_open == periodic:
        method = "NoCutoff" if periodic else "PME"
        raise ValueError(
            f"`boundary={name!r}` does not fit NonbondedForce {nonbonded_force.getName()!r}, which "
            f"is {'' if periodic else 'not '}periodic: set its method to {method}"
        )
    return found


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
