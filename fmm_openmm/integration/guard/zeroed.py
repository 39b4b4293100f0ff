"""Detection of forces with zeros in place of charges, as they result when a tool creates a force
from a converted NonbondedForce.

A charge is recognised not by the name of a parameter but by the energy, which OpenMM evaluates for
two particles. The energy of a pair must be a quadratic form of the charges, that of a bond linear
in the charge product; it must decrease with the distance and nowhere exceed Coulomb's law by much.
The energy of one particle must be linear in charge and coordinates, as in a uniform field."""

import copy
import functools
from itertools import combinations, product
from operator import itemgetter

import numpy as np
import openmm

from fmm_openmm.convert.nonbonded import calls
from fmm_openmm.units import COULOMB_CONSTANT

KINDS = (
    openmm.CustomNonbondedForce,
    openmm.CustomGBForce,
    openmm.CustomBondForce,
    openmm.CustomExternalForce,
)
"""Types of forces that are examined, in addition to GBSAOBCForce."""

DISTANCES = (0.1, 0.2, 0.3, 0.4)
"""Distances at which the energy of a pair is evaluated, nm; so far below usual cutoffs that a
reaction field is small."""

FAR = 50.0
"""Distance at which the energy of a bond between charges vanishes, but not that of a restraint,
nm."""

DIRECTION = openmm.Vec3(3, 6, 2) / 7
"""Direction from one particle to the other, along no axis and no diagonal."""

STEEPEST = 1.5
"""Largest ratio of the interaction of charges to Coulomb's law."""

SCREENED = 100.0
"""Largest factor by which the interaction of charges decreases over :data:`DISTANCES`: 4 without
screening. Dispersion decreases by 4096."""


def zeroed(forces: list[openmm.Force], charges: np.ndarray) -> list[tuple[openmm.Force, int, int]]:
    """The forces with zero charges for more than half of the particles or bonds that should have
    charges.

    A force is accepted if a parameter holds two or more of the charges, up to a common factor, and
    0 elsewhere, since its author knew the charges.

    Args:
        forces: the forces of a System.
        charges: charges of all particles, shape (n,), e.

    Returns:
        for each such force the force, the number of zeros, and the number of charges expected.
    """
    found = []
    for force in forces:
        try:
            numbers = _zeros(force, charges)
        except IndexError:  # a particle that does not exist: OpenMM refuses the force
            continue
        if numbers:
            found.append((force, *numbers))
    return found


def signature(force: openmm.Force) -> str:
    """Text that identifies a force independently of its parameters and their defaults."""
    text = " ".join(_expressions(force)) if not isinstance(force, openmm.GBSAOBCForce) else ""
    return f"{type(force).__name__} {text}"


def _zeros(force: openmm.Force, charges: np.ndarray) -> tuple[int, int] | None:
    """Numbers of zeros and of charges if the force has too many zeros; else None."""
    if not charges.any() or not isinstance(force, (openmm.GBSAOBCForce, *KINDS)):
        return None
    worst: tuple[int, int] | None = None
    places = _charge_columns(force, charges)
    external = isinstance(force, openmm.CustomExternalForce)
    if external and len(places) > 1:  # the components of a vector
        return None
    for columns in places:
        values, expected = _table(force, columns, charges)
        if _are_proportional(values, expected):
            return None
        zeros = int(np.count_nonzero(values[expected != 0] == 0))
        total = int(np.count_nonzero(expected))
        # a field acts on all charges, a pull on a few particles
        if 2 * zeros > total and not (external and 2 * total < np.count_nonzero(charges)):
            worst = max(worst or (0, 0), (zeros, total))
    return worst


def _are_proportional(values: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two or more values are nonzero and proportional to the expected ones."""
    values, expected = values[values != 0], expected[values != 0]
    if len(values) < 2 or not expected.all():
        return False
    ratios = values / expected
    return bool(np.ptp(ratios) <= 1e-6 * abs(ratios[0]))


def _table(force: openmm.Force, columns: tuple[int, ...], charges: np.ndarray):
    """Values of a charge parameter, or products of two, and the expected values, shape (m,)
    each."""
    if isinstance(force, openmm.CustomBondForce):
        rows = list(calls(force, "getBondParameters", force.getNumBonds()))
        pairs = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2)
        values = np.array([[row[2][column] for column in columns] for row in rows])
        return values.reshape(-1, len(columns)).prod(1), charges[pairs].prod(1)
    number = force.getNumParticles()
    rows = calls(force, "getParticleParameters", number)
    if isinstance(force, openmm.CustomExternalForce):
        rows = list(rows)
        return (
            np.array([row[1][columns[0]] for row in rows]),
            charges[[row[0] for row in rows]],
        )
    values = np.fromiter(map(itemgetter(columns[0]), rows), np.float64, number)
    if isinstance(force, openmm.CustomNonbondedForce) and force.getNumInteractionGroups():
        groups = map(force.getInteractionGroupParameters, range(force.getNumInteractionGroups()))
        members = sorted({particle for group in groups for half in group for particle in half})
        return values[members], charges[members]
    return values, charges[:number]


# Recognition of charges


def _expressions(force: openmm.Force) -> list[str]:
    if isinstance(force, openmm.CustomGBForce):
        values = map(force.getComputedValueParameters, range(force.getNumComputedValues()))
        terms = map(force.getEnergyTermParameters, range(force.getNumEnergyTerms()))
        return [*(value[1] for value in values), *(term[0] for term in terms)]
    return [force.getEnergyFunction()]


def _charge_columns(force: openmm.Force, charges: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Columns of the parameters that hold a charge; for a bond the column of the charge product, or
    those of the two charges."""
    if isinstance(force, openmm.GBSAOBCForce):
        return ((0,),)
    if isinstance(force, openmm.CustomBondForce):
        sample = force.getBondParameters(0)[2] if force.getNumBonds() else ()
    elif not force.getNumParticles():
        sample = ()
    elif isinstance(force, openmm.CustomExternalForce):
        sample = force.getParticleParameters(0)[1]
    else:
        charged = int(np.argmax(charges[: force.getNumParticles()] != 0))
        sample = force.getParticleParameters(charged)
    return _columns_in(openmm.XmlSerializer.serialize(_skeleton(force)), tuple(sample))


def _skeleton(force: openmm.Force) -> openmm.Force:
    """A force with the same energy function, without particles or bonds."""
    kind = next(kind for kind in KINDS if isinstance(force, kind))
    born = kind is openmm.CustomGBForce
    made = kind() if born else kind(force.getEnergyFunction())
    per = "PerBondParameter" if kind is openmm.CustomBondForce else "PerParticleParameter"
    for index in range(getattr(force, f"getNum{per}s")()):
        getattr(made, f"add{per}")(getattr(force, f"get{per}Name")(index))
    for index in range(force.getNumGlobalParameters()):
        default = force.getGlobalParameterDefaultValue(index)
        made.addGlobalParameter(force.getGlobalParameterName(index), default)
    if kind in (openmm.CustomNonbondedForce, openmm.CustomGBForce):
        for index in range(force.getNumTabulatedFunctions()):
            table = copy.deepcopy(force.getTabulatedFunction(index))
            made.addTabulatedFunction(force.getTabulatedFunctionName(index), table)
        for index in range(force.getNumComputedValues()):
            made.addComputedValue(*force.getComputedValueParameters(index))
    for index in range(force.getNumEnergyTerms() if born else 0):
        made.addEnergyTerm(*force.getEnergyTermParameters(index))
    return made


@functools.lru_cache
def _columns_in(skeleton: str, sample: tuple[float, ...]) -> tuple[tuple[int, ...], ...]:
    """:func:`_charge_columns` of the force in an XML text, which has these parameters somewhere."""
    force = openmm.XmlSerializer.deserialize(skeleton)
    places: list[tuple[int, ...]] = [(column,) for column in range(len(sample))]
    if isinstance(force, openmm.CustomBondForce):
        places += combinations(range(len(sample)), 2)
    if not sample:
        return ()
    try:
        probe = _Probe(force, sample)
    except openmm.OpenMMException:  # the user's Context will tell
        return ()
    return tuple(columns for columns in places if probe.is_charge(columns))


class _Probe:
    """Evaluates the energy of two particles.

    Args:
        force: force without particles or bonds, which the probe takes over.
        sample: parameters of one of its particles or bonds.
    """

    def __init__(self, force: openmm.Force, sample: tuple[float, ...]):
        self._force = force
        if isinstance(force, openmm.CustomBondForce):
            force.addBond(0, 1, sample)
            self._has_form = self._is_bond
        elif isinstance(force, openmm.CustomExternalForce):
            force.addParticle(1, sample)
            self._has_form = self._is_field
        else:
            force.addParticle(sample)
            force.addParticle(sample)
            self._has_form = self._is_pair
        system = openmm.System()
        system.addParticle(1.0)
        system.addParticle(1.0)
        system.addForce(force)
        reference = openmm.Platform.getPlatformByName("Reference")
        self._context = openmm.Context(system, openmm.VerletIntegrator(0.001), reference)
        # a parameter of the sample, or a global parameter, may switch the interaction off
        defaults = dict(self._context.getParameters())
        halves = dict.fromkeys(defaults, 0.5)
        self._settings = list(product((sample, (1.0,) * len(sample)), (defaults, halves)))

    def is_charge(self, places: tuple[int, ...]) -> bool:
        """Whether the parameters in these columns are charges."""
        for others, globals_ in self._settings:
            for name, value in globals_.items():
                self._context.setParameter(name, value)
            try:
                with np.errstate(all="ignore"):  # NaN has no form
                    if self._has_form(places, others):
                        return True
            except openmm.OpenMMException:  # for example beyond the range of a table
                continue
        return False

    def _is_pair(self, places, others) -> bool:
        """Whether the energy is a quadratic form of both charges, as Born energies are too."""
        pairs = (0, 0), (1, 1), (1, -1), (1, 0), (0, 1), (2, 2)
        e = np.array([self._energies(places, others, *pair) for pair in pairs])
        plus, minus, one, two, double = e[1:] - e[0]
        form = (plus - minus) / 2
        noise = _noise(form, e)
        return (
            _falls_off_like_coulomb(form, noise)
            and (abs(double - 4 * plus) <= noise).all()
            and (abs(plus + minus - 2 * (one + two)) <= noise).all()
        )

    def _is_bond(self, places, others) -> bool:
        """Whether the energy is linear in the charge product, or in each of two charges."""
        distances = (*DISTANCES, FAR)
        pairs = (0, 0), (1, 1), (-1, 1), (2, 1), (1, -1), (1, 2)
        e = np.array([self._energies(places, others, *pair, distances) for pair in pairs])
        form, *rest = e[1:] - e[0]
        second = (-1, 2) if len(places) == 2 else (1, 1)
        noise = _noise(form, e)
        return (
            _falls_off_like_coulomb(form[:-1], noise[:-1])
            and abs(form[-1]) < abs(form[-2]) / 2
            and all(
                (abs(found - factor * form) <= noise).all()
                for found, factor in zip(rest, (-1, 2, *second), strict=True)
            )
        )

    def _is_field(self, places, others) -> bool:
        """Whether the energy is linear in charge and coordinates."""
        at = (0.0, 0.1, -0.1, 0.4)
        e = np.array([self._energies(places, others, one, 0, at) for one in (0, 1, -1, 2)])
        form, opposite, double = e[1:] - e[0]
        noise = _noise(form, e)
        steps = form - form[0]
        return (
            abs(steps[1]) > noise[1]
            and (abs(opposite + form) <= noise).all()
            and (abs(double - 2 * form) <= noise).all()
            and (abs(steps - steps[1] * np.array(at) / at[1]) <= noise).all()
        )

    def _energies(self, places, others, one: float, two: float, distances=DISTANCES) -> np.ndarray:
        """Energies at the distances, kJ/mol, for charges ``one`` and ``two`` of the particles;
        ``one`` is the charge product if the parameter is one."""
        force, context = self._force, self._context
        first, second = list(others), list(others)
        first[places[0]], second[places[-1]] = one, two
        if isinstance(force, openmm.CustomBondForce):
            first[places[-1]] = two if len(places) == 2 else one
            force.setBondParameters(0, 0, 1, first)
        elif isinstance(force, openmm.CustomExternalForce):
            force.setParticleParameters(0, 1, first)
        else:
            force.setParticleParameters(0, first)
            force.setParticleParameters(1, second)
        force.updateParametersInContext(context)
        energies = []
        for distance in distances:
            context.setPositions([openmm.Vec3(0, 0, 0), distance * DIRECTION])
            energies.append(context.getState(energy=True).getPotentialEnergy()._value)
        return np.array(energies)


def _falls_off_like_coulomb(form: np.ndarray, noise: np.ndarray) -> bool:
    """Whether energies of unit charges at :data:`DISTANCES` decrease like Coulomb's law, which may
    be softened at close range."""
    sizes = abs(form)
    return (
        bool((sizes > noise).all() and (sizes[1:] < sizes[:-1]).all())
        and len(set(np.sign(form))) == 1
        and sizes[0] <= SCREENED * sizes[-1]
        and bool((sizes <= STEEPEST * COULOMB_CONSTANT / np.array(DISTANCES)).all())
    )


def _noise(form: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Bound of the rounding error of a difference of energies, shape (k, m); shape (m,)."""
    return 1e-6 * abs(form) + 1e-13 * abs(energies).max(0)
