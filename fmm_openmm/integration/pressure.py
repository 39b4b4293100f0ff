"""``pressure_tensor``: the pressure tensor of a Context, by the virials of its forces."""

import copy
import weakref
from dataclasses import dataclass
from itertools import chain, combinations_with_replacement

import numpy as np
import openmm

from fmm_openmm.checks import check_choice
from fmm_openmm.convert.cells import reduced
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.force import FMMForce
from fmm_openmm.integration.guard.groups import force_groups, groups_of
from fmm_openmm.units import AVOGADRO

SCALES = ("molecules", "atoms")

BAR = 1e-25 * AVOGADRO
"""One bar in kJ/mol/nm^3."""

STRAIN = 1e-3
"""Strain of the central differences, as in OpenMM: the same pairs cross a cutoff."""

MATCHING = 1e-4
"""Difference of energies that rounding alone causes, kJ/mol per particle and relative."""

_skewed: weakref.WeakKeyDictionary[openmm.Context, openmm.Context] = weakref.WeakKeyDictionary()
"""Contexts in skewed boxes for those that cannot have one."""

LINEAR_SITES = (openmm.TwoParticleAverageSite, openmm.ThreeParticleAverageSite)
"""Virtual sites that a strain of all particles leaves in place between these."""


def pressure_tensor(
    context: openmm.Context, scale: str = "molecules", kinetic: bool = True
) -> np.ndarray:
    r"""The instantaneous pressure tensor of all forces that the integrator of a Context applies.

    .. math:: P_{ij} V = \sum_m \frac{p_{m,i}\, p_{m,j}}{M_m} + W_{ij}, \quad
              W_{ij} = -\frac{\partial U}{\partial e_{ij}}

    V is the volume of the box, which for a slab or wire includes the vacuum. The sum runs over
    molecules or atoms with momenta p and masses M. The strain e moves molecules as a whole, or
    atoms, and the box vectors: :math:`x_i \to x_i + e_{ij} x_j`. Elements of P on and above the
    diagonal are minus those of OpenMM's ``MonteCarloFlexibleBarostat.computeStressTensor``, whose
    argument ``includeKinetic`` is ``kinetic`` here, but no barostat is needed. (On GPUs that method
    of OpenMM 8.6.1 displaces molecules outside of the cell and is wrong by some hundred bar; this
    function accepts molecules anywhere.) The instantaneous molecular tensor is symmetric only on
    average; ``(P + P.T) / 2`` is symmetric and has the same average. One third of the trace is the
    pressure.

    Each virial is computed in the cheapest exact way:

    - of an FMMForce by the FMM (:meth:`FMMForce.getVirialInContext
      <fmm_openmm.FMMForce.getVirialInContext>`),
    - of forces without periodic boundary conditions, such as bonds, from forces and positions,
    - of other forces, such as Lennard-Jones, by central differences of the energy in twelve
      strained boxes. Six of these are skewed. On GPUs OpenMM takes skewed boxes only if the default
      box of the System is skewed or it has a ``MonteCarloFlexibleBarostat``; else a second Context
      with these forces, which is made at the first call and kept, computes their energies.

    OpenMM evaluates force groups, not forces. An FMMForce in the same group as a force of the last
    kind is strained with it, which is less accurate and costs twelve of its evaluations; call
    ``force.setForceGroup(1)``, or another unused group, before the Context is made.

    Args:
        context: Context with positions and, if ``kinetic``, velocities. It is not changed.
        scale: "molecules", those of ``context.getMolecules()``, or "atoms". The averages of both
            are the same. Molecules must be whole, as for OpenMM's barostats. Constraints contribute
            only to the pressure of atoms, and OpenMM does not report their forces.
        kinetic: include the kinetic term, else only the virial.

    Returns:
        shape (3, 3), bar. For forces that do not change under rotation of the whole system, which
        excludes fields and restraints in place, elements below the diagonal are as defined above.

    Raises:
        UnsupportedError: ``scale="atoms"`` with constraints, or with virtual sites that are no
            averages of other particles.
        ValueError: no force has periodic boundary conditions, an argument is invalid, particles of
            a molecule are in different periodic images, or forces or force groups of the System
            were changed after the Context was made and not sent to it.
        TypeError: ``context`` is not a Context.
        OpenMMException: the Context has no positions.

    The formula for molecules is that of G. Ciccotti and J. P. Ryckaert, Comput. Phys. Rep. 4, 346
    (1986), doi:10.1016/0167-7977(86)90022-5.
    """
    groups = force_groups(context)
    check_choice(scale, SCALES, "scale")
    system = context.getSystem()
    if not system.usesPeriodicBoundaryConditions():
        raise ValueError("pressure_tensor: no force of the System has periodic boundary conditions")
    if scale == "atoms":
        _check_atoms(system)
    integrated = context.getIntegrator().getIntegrationForceGroups()
    groups = {number: forces for number, forces in groups.items() if integrated >> number & 1}
    frame = _Frame.from_context(context, scale)
    if scale == "molecules":
        _check_whole(groups, frame)
    total = _virial(context, groups, frame)
    if kinetic:
        total += frame.kinetic(context)
    return total / (np.linalg.det(frame.box) * BAR)


def _check_whole(groups: dict[int, list[openmm.Force]], frame: "_Frame") -> None:
    """Refuse molecules whose particles are in different periodic images: they have no centre."""
    for force in chain.from_iterable(groups.values()):
        if isinstance(force, FMMForce):
            pairs = force._bridge.fix_structure().exclusions
            pairs = pairs[np.equal(*frame.molecules[pairs].T)]
            delta = frame.positions[pairs[:, 1]] - frame.positions[pairs[:, 0]]
            images = np.rint(delta @ np.linalg.inv(frame.box)).any(1)
            if images.any():
                first, second = pairs[images.argmax()]
                raise ValueError(
                    f"`scale='molecules'` needs whole molecules, but particles {first} and "
                    f"{second}, which are excluded from each other, are in different periodic "
                    "images: set positions of whole molecules, or use 'atoms'"
                )


def _check_atoms(system: openmm.System) -> None:
    """Refuse what the virial of atoms lacks."""
    if system.getNumConstraints():
        raise UnsupportedError(
            f"`scale='atoms'` needs the forces of the System's {system.getNumConstraints()} "
            "constraints, which OpenMM does not report: use 'molecules'"
        )
    for index in range(system.getNumParticles()):
        if system.isVirtualSite(index):
            kind = type(system.getVirtualSite(index))
            if kind not in LINEAR_SITES:
                raise UnsupportedError(
                    f"`scale='atoms'` would deform the {kind.__name__} of particle {index}: "
                    "use 'molecules'"
                )


@dataclass(frozen=True, eq=False)
class _Frame:
    """A configuration, and how a strain moves it.

    Attributes:
        system: the System.
        positions: shape (n, 3), nm.
        centres: what a strain multiplies for each particle: the centre of its molecule, or its
            position; shape (n, 3), nm.
        box: box vectors, shape (3, 3), nm.
        molecules: index of the molecule, or atom, of each particle, shape (n,).
    """

    system: openmm.System
    positions: np.ndarray
    centres: np.ndarray
    box: np.ndarray
    molecules: np.ndarray

    @classmethod
    def from_context(cls, context: openmm.Context, scale: str) -> "_Frame":
        state = context.getState(positions=True)
        positions = state.getPositions(asNumpy=True)._value
        molecules = np.arange(len(positions))
        if scale == "molecules":
            for index, members in enumerate(context.getMolecules()):
                molecules[list(members)] = index
        counts = np.bincount(molecules)
        centres = (_sums(positions, molecules) / counts[:, None])[molecules]
        box = state.getPeriodicBoxVectors(asNumpy=True)._value
        return cls(context.getSystem(), positions, centres, box, molecules)

    def kinetic(self, context: openmm.Context) -> np.ndarray:
        """``sum p_i p_j / M``, shape (3, 3), kJ/mol."""
        count = len(self.positions)
        masses = np.array([self.system.getParticleMass(i)._value for i in range(count)])
        velocities = context.getState(velocities=True).getVelocities(asNumpy=True)._value
        momenta = _sums(masses[:, None] * velocities, self.molecules)
        total = np.bincount(self.molecules, weights=masses)
        momenta, total = momenta[total > 0], total[total > 0]
        return momenta.T @ (momenta / total[:, None])

    def strained(self, i: int, j: int, size: float) -> tuple[np.ndarray, np.ndarray]:
        """Positions and box vectors, in reduced form, after the strain ``e_ij``, i <= j."""
        positions, box = self.positions.copy(), self.box.copy()
        positions[:, i] += size * self.centres[:, j]
        box[:, i] += size * self.box[:, j]
        return positions, reduced(box)

    def internal(self, forces: np.ndarray) -> np.ndarray:
        """The part of the virial of atoms that a strain of molecules lacks, shape (3, 3)."""
        return forces.T @ (self.positions - self.centres)


def _sums(values: np.ndarray, molecules: np.ndarray) -> np.ndarray:
    """Sums of values, shape (n, 3), over each molecule, shape (m, 3)."""
    return np.column_stack([np.bincount(molecules, weights=column) for column in values.T])


def _virial(
    context: openmm.Context, groups: dict[int, list[openmm.Force]], frame: _Frame
) -> np.ndarray:
    """``-dU/de_ij`` of all forces in the groups, shape (3, 3), kJ/mol."""
    periodic = {
        number: [force for force in forces if _is_periodic(force)]
        for number, forces in groups.items()
    }
    strained = {
        number
        for number, forces in periodic.items()
        if any(not isinstance(force, FMMForce) for force in forces)
    }
    total, forces = np.zeros((3, 3)), np.zeros_like(frame.positions)
    others = {number for number in groups if groups[number] != periodic[number]} - strained
    if others:
        forces += _forces(context, frame, others)
    for number in groups.keys() - strained:
        for force in periodic[number]:
            result = force._compute(context, virial=True)
            total += result.virial - frame.internal(result.forces)
            if number in others:
                forces -= result.forces
    total += forces.T @ frame.centres
    if strained:
        total += _differences(context, frame, strained)
    return total


def _is_periodic(force: openmm.Force) -> bool:
    """Whether the energy depends on the box vectors."""
    try:
        return force.usesPeriodicBoundaryConditions()
    except openmm.OpenMMException:  # a force of another package that does not tell
        return True


def _forces(context: openmm.Context, frame: _Frame, groups: set[int]) -> np.ndarray:
    """Forces of groups, shape (n, 3), kJ/mol/nm. Those on virtual sites are zero: OpenMM adds them
    to the particles that the sites depend on, and reports them all the same."""
    forces = context.getState(forces=True, groups=groups).getForces(asNumpy=True)._value
    sites = [frame.system.isVirtualSite(index) for index in range(len(forces))]
    return np.where(np.array(sites)[:, None], 0.0, forces)


def _differences(context: openmm.Context, frame: _Frame, groups: set[int]) -> np.ndarray:
    """The virial of groups by central differences, shape (3, 3), kJ/mol.

    The virial of atoms is symmetric, so that elements below the diagonal follow from those above
    it and the forces.
    """
    internal = frame.internal(_forces(context, frame, groups))
    virial = np.zeros((3, 3))
    checkpoint = context.createCheckpoint()
    try:
        skewed = _for_skewed_boxes(context, frame, groups)
        for i, j in combinations_with_replacement(range(3), 2):
            chosen = context if i == j else skewed
            energies = [
                _energy(chosen, groups, *frame.strained(i, j, size)) for size in (-STRAIN, STRAIN)
            ]
            virial[i, j] = (energies[0] - energies[1]) / (2 * STRAIN)
            if i != j:
                virial[j, i] = virial[i, j] + internal[i, j] - internal[j, i]
    finally:
        context.loadCheckpoint(checkpoint)
    return virial


def _energy(
    context: openmm.Context, groups: set[int], positions: np.ndarray, box: np.ndarray
) -> float:
    """Energy of groups, kJ/mol, at positions, shape (n, 3), nm, in a box."""
    context.setPeriodicBoxVectors(*box)
    context.setPositions(positions)
    return context.getState(energy=True, groups=groups).getPotentialEnergy()._value


def _for_skewed_boxes(context: openmm.Context, frame: _Frame, groups: set[int]) -> openmm.Context:
    """The Context or, if its platform compiled it for rectangular boxes, the one kept for it, with
    the forces of the groups as they are now."""
    box = frame.strained(0, 1, STRAIN)[1]
    try:
        context.setPeriodicBoxVectors(*box)
        return context
    except openmm.OpenMMException:
        expected = _energy(context, groups, frame.positions, frame.box)
    if _matches(_skewed.get(context), context, frame, groups, expected):
        return _skewed[context]
    _skewed[context] = _in_skewed_box(context, box, groups)
    if not _matches(_skewed[context], context, frame, groups, expected):
        raise ValueError(
            "the forces of the System have other parameters than those of the Context: call "
            "updateParametersInContext, or context.reinitialize(preserveState=True)"
        )
    return _skewed[context]


def _in_skewed_box(context: openmm.Context, box: np.ndarray, groups: set[int]) -> openmm.Context:
    """A Context on the same device with the forces of some groups, for skewed boxes."""
    system, platform = copy.deepcopy(context.getSystem()), context.getPlatform()
    for index in reversed(range(system.getNumForces())):
        if not groups_of(system.getForce(index)) & groups:
            system.removeForce(index)
    system.setDefaultPeriodicBoxVectors(*box)
    names = platform.getPropertyNames()
    properties = {name: platform.getPropertyValue(context, name) for name in names}
    return openmm.Context(system, openmm.VerletIntegrator(0.001), platform, properties)


def _matches(
    skewed: openmm.Context | None,
    context: openmm.Context,
    frame: _Frame,
    groups: set[int],
    expected: float,
) -> bool:
    """Whether a Context has the energy that is expected of the groups in the unstrained box, with
    the global parameters of the Context that it is kept for."""
    if skewed is None or skewed.getSystem().getNumParticles() != len(frame.positions):
        return False
    parameters = context.getParameters()
    for name in skewed.getParameters():
        skewed.setParameter(name, parameters[name])
    found = _energy(skewed, groups, frame.positions, frame.box)
    return abs(found - expected) <= MATCHING * max(len(frame.positions), abs(expected))
