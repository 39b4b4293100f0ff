"""Random sequences of operations on one solver, or on two Contexts of one System, each result
against the sum that is exact."""

import warnings
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import openmm
from scipy.spatial.distance import pdist

import fmm_openmm as fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.oracle import ORACLES, EwaldResult
from fmm_openmm.units import COULOMB_CONSTANT
from tests.hostile_systems import (
    KINDS,
    MISSED,
    System,
    Verdict,
    has_warning,
    lattice,
    random_cell,
    random_charges,
)

STEPS = 8
"""Operations of a sequence, at most."""

LARGEST_FORCE = 1.25 * 2**30
"""Larger forces are replaced by OpenMM's largest one on the platform CUDA, kJ/mol/nm."""


@dataclass(frozen=True, eq=False)
class Step(System):
    """What an operation of a sequence computes.

    Attributes:
        boundary: its name.
        nearest: whether exclusions mean nearest images.
    """

    boundary: str = "periodic"
    nearest: bool = False

    def exact(self, charges=None, points=None) -> EwaldResult:
        """The sum for these charges or others, at the particles and at points."""
        boundary = Boundary.from_name(self.boundary)
        q = self.charges if charges is None else charges
        x = self.positions if points is None else np.concatenate([self.positions, points])
        q, cell = np.append(q, np.zeros(len(x) - len(q))), boundary.cell(self.cell)
        return ORACLES[boundary].sum(x, q, cell, self.exclusions, self.nearest)

    def solver(self, tolerance: float, **options) -> fmm.CoulombSolver:
        box_vectors = None if self.boundary == "open" else self.cell
        given = self.charges, box_vectors, self.exclusions, tolerance, self.boundary
        return fmm.CoulombSolver(*given, exclusions_periodic=self.nearest, **options)

    def potential_scale(self, exact: EwaldResult) -> float:
        """Norm of the potentials that errors are relative to."""
        neighbours = COULOMB_CONSTANT * np.linalg.norm(self.charges) / self.spacing
        return float(np.hypot(np.linalg.norm(exact.potentials[: len(self.charges)]), neighbours))


def first_step(rng, boundaries) -> Step:
    kind = str(rng.choice(list(KINDS)))
    edge = 10 ** rng.uniform(0.3, 1.0 if kind == "molecules" else 2.0)
    made = KINDS[kind](rng, int(10 ** rng.uniform(0.4, 2.5)), random_cell(rng, edge))
    pairs = made.exclusions
    if pairs is None and rng.random() < 0.2:
        pairs = rng.permutation(len(made.charges) // 2 * 2).reshape(-1, 2)
    boundary, nearest = str(rng.choice(boundaries)), bool(rng.random() < 0.3)
    return recharge(rng, Step(made.positions, made.charges, made.cell, pairs, boundary, nearest))


def move(rng, step):
    """Each by a little, or all anywhere."""
    x = step.positions + 10 ** rng.uniform(-5, -1) * rng.normal(size=step.positions.shape)
    return replace(step, positions=x if rng.random() < 0.6 else rng.random(x.shape) @ step.cell)


def meet(rng, step):
    """Two charges come close together."""
    x = step.positions.copy()
    one, other = rng.choice(len(x), 2, replace=False)
    x[one] = x[other] + 10 ** rng.uniform(-4, -1) * rng.normal(size=3)
    return replace(step, positions=x)


def contract(rng, step):
    """To a cluster, or away from each other."""
    centre, closest = step.positions.mean(0), pdist(step.positions).min()
    factor = max(10 ** rng.uniform(-3, 0.5), min(1e-4 / closest, 1.0))
    return replace(step, positions=centre + factor * (step.positions - centre))


def leave(rng, step):
    """All to another cell, or each."""
    cells = rng.integers(-3, 4, (rng.choice([1, len(step.charges)]), 3))
    return replace(step, positions=step.positions + cells @ step.cell)


def strain(rng, step):
    """Along the axes or uniformly, with the positions."""
    factors = 1 + 10 ** rng.uniform(-4, -0.7) * rng.uniform(-1, 1, rng.choice([1, 3]))
    return replace(step, cell=step.cell * factors, positions=step.positions * factors)


def reshape(rng, step):
    """Another cell, with the positions or without them."""
    cell = random_cell(rng, np.linalg.det(step.cell) ** (1 / 3) * 10 ** rng.uniform(-0.3, 0.3))
    x = step.positions @ np.linalg.inv(step.cell) @ cell
    return replace(step, cell=cell, positions=x if rng.random() < 0.5 else step.positions)


def recharge(rng, step):
    """Others, the same in another order, larger or smaller, or fewer."""
    q, number = step.charges, len(step.charges)
    fewer = q * (np.arange(number) < max(3, number * rng.random()))
    made = random_charges(rng, number), rng.permutation(q), q * 10 ** rng.uniform(-2, 2), fewer
    q = made[rng.integers(4)]
    is_partial = Boundary.from_name(step.boundary).is_partial  # and takes no net charge
    return replace(step, charges=q - q.mean() if is_partial else q)


def freeze(rng, step):
    """A crystal of ions near zero temperature, among particles without charge."""
    edge = int((len(step.charges) + 0.5) ** (1 / 3) // 2) * 2
    if edge == 0:
        return step
    sites = lattice(edge**3)
    x, q = step.positions.copy(), np.zeros(len(step.charges))
    shaken = sites + 10 ** rng.uniform(-4, -1) * rng.normal(size=sites.shape)
    x[: len(sites)], q[: len(sites)] = shaken @ step.cell / edge, 1 - 2 * (sites.sum(1) % 2)
    return replace(step, positions=x, charges=q)


CHANGES = (move, meet, contract, leave, strain, reshape, recharge, freeze)


class OnSolver:
    """One solver, which is given the same arrays again and again, as in a simulation."""

    boundaries = ("periodic", "periodic", "periodic", "open", "slab", "wire", "bc", "a")

    def __init__(self, rng, step, tolerance, backend):
        options = {"positions": step.positions} if rng.random() < 0.3 else {}
        if step.boundary == "periodic" and rng.random() < 0.2:
            options["levels"] = 1
        self.solver = step.solver(tolerance, backend=backend, **options)
        self.x, self.q, self.cell = (
            np.array(each) for each in (step.positions, step.charges, step.cell)
        )
        self.last = None

    def answers(self, rng, step):
        """What the solver gives, what is exact, and what the error is relative to."""
        solver, n, old = self.solver, len(step.charges), self.last
        if (self.q != step.charges).any():
            self.q[:] = step.charges
            solver.set_charges(self.q)
        self.x[:], self.cell[:] = step.positions, step.cell
        x, q, cell = self.x, step.charges, None if step.boundary == "open" else self.cell
        quantity = rng.choice(["groups", "operator", "errors", "refused", "sets", *4 * ["result"]])
        if quantity == "groups":
            groups = np.arange(n) % 2
            found = solver.interaction_energies(x, groups, cell)
            sums = [step.exact(q * (groups == group)) for group in (0, 1)]
            exact = [[q * (groups == row) @ each.potentials / 2 for each in sums] for row in (0, 1)]
            yield found, exact, np.linalg.norm(q) * sum(map(step.potential_scale, sums))
            return
        exact, size = step.exact(), np.linalg.norm(q)
        shared = step.potential_scale(exact)
        if quantity == "operator":
            operator = solver.coulomb_operator(x, cell)
            yield (operator @ q) * (q != 0.0), exact.potentials * (q != 0.0), shared
            return
        if quantity == "errors":
            solver.measure_errors(x, cell)
        if quantity == "refused" and step.exclusions is None:
            with suppress(ValueError):
                solver.compute(np.tile(x[:1], (n, 1)), cell)
        # the precision is chosen for the charges of the solver, and others are close to these
        sets = q * rng.uniform(0.5, 1.0, (2, n)) if quantity == "sets" else None
        points = rng.random((5, 3)) @ step.cell if rng.random() < 0.3 else None
        virial = rng.random() < 0.2
        found = solver.compute(x, cell, charges=sets, points=points, virial=virial)
        if old is not None:  # its result stays as it was
            yield old[0], old[1], 1e-300
        self.last = found.fields, found.fields.copy()
        if virial:
            finest = step.solver(1e-10, backend="cpu").compute(x, cell, charges=sets, virial=True)
            yield found.virial, finest.virial, size * shared
        for k, charges in enumerate([q] if sets is None else sets):
            exact, part = step.exact(charges, points), slice(None) if sets is None else k
            shared, forces = step.potential_scale(exact), exact.forces[:n]
            yield found.forces[part], forces, step.force_scale(forces)
            at_charges = charges != 0.0
            yield found.potentials[part] * at_charges, exact.potentials[:n] * at_charges, shared
            yield np.atleast_1d(found.energy)[part], exact.energy, shared * size
            if points is not None:
                everywhere = np.hypot(shared, np.linalg.norm(exact.potentials))
                yield found.point_potentials[part], exact.potentials[n:], everywhere
                yield found.point_fields[part], exact.fields[n:], np.linalg.norm(exact.fields)


class OnContexts:
    """Two Contexts of one System, each with charges of its own."""

    boundaries = ("periodic", "periodic", "open", "slab", "wire")

    def __init__(self, rng, step, tolerance, backend):
        system, nonbonded = openmm.System(), openmm.NonbondedForce()
        system.setDefaultPeriodicBoxVectors(*step.cell)
        is_open = step.boundary == "open"
        nonbonded.setNonbondedMethod(nonbonded.NoCutoff if is_open else nonbonded.PME)
        nonbonded.setCutoffDistance(step.cell.diagonal().min() / 50)
        nonbonded.setUseDispersionCorrection(False)
        nonbonded.setExceptionsUsePeriodicBoundaryConditions(step.nearest and not is_open)
        nonbonded.addGlobalParameter("lambda", 0.0)
        slope = rng.normal(size=len(step.charges))
        self.slope = slope - slope.mean()
        for particle, charge in enumerate(step.charges):
            system.addParticle(1.0)
            nonbonded.addParticle(charge, 1.0, 0.0)
            nonbonded.addParticleParameterOffset("lambda", particle, self.slope[particle], 0, 0)
        for pair in [] if step.exclusions is None else step.exclusions.tolist():
            nonbonded.addException(*pair, 0.0, 1.0, 0.0)
        system.addForce(nonbonded)
        name = None if step.boundary in ("periodic", "open") else step.boundary
        self.force = fmm.use_fmm(system, tolerance, boundary=name, backend=backend)
        chosen = str(rng.choice(["Reference", "CUDA" if backend == "cuda" else "CPU"]))
        self.largest_force, properties = np.inf, {}
        if chosen == "CUDA":
            self.largest_force, properties = LARGEST_FORCE, {"Precision": "double"}
        platform = openmm.Platform.getPlatform(chosen)
        self.contexts = [
            openmm.Context(system, openmm.VerletIntegrator(0.001), platform, properties)
            for _ in range(2)
        ]
        self.base = step.charges
        # of each Context: charges of its last update, parameter, and the last checkpoint with both
        self.states = [[None, 0.0, None] for _ in range(2)]

    def answers(self, rng, step):
        """As :meth:`OnSolver.answers`."""
        k = int(rng.integers(2))
        context, state = self.contexts[k], self.states[k]
        change = rng.choice(["parameter", "charges", "update", "save", "load", "renew", *4 * [""]])
        if change == "parameter":
            state[1] = float(rng.normal())
            context.setParameter("lambda", state[1])
        elif change in ("charges", "update"):
            self.base = step.charges
            self.force.setCharges(self.base)
            if change == "update":
                state[0] = self.base
                self.force.updateParametersInContext(context)
        elif change == "save":
            state[2] = context.createCheckpoint(), *state[:2]
        elif change == "load" and state[2]:
            saved, *state[:2] = state[2]
            context.loadCheckpoint(saved)
        elif change == "renew":
            context.reinitialize(preserveState=True)
        base = self.base if state[0] is None else state[0]
        step = replace(step, charges=base + state[1] * self.slope)
        free = np.array(Boundary.from_name(step.boundary).free)
        if step.boundary != "open" and free.any():  # OpenMM needs vacuum, and wraps
            along = step.positions @ np.linalg.inv(step.cell)
            along[:, free] *= 0.4 / np.maximum(np.ptp(along[:, free], axis=0), 0.4)
            step = replace(step, positions=along @ step.cell)
            along += free * rng.integers(-1, 2, along.shape)
            context.setPositions(along @ step.cell)
        else:
            context.setPositions(step.positions)
        context.setPeriodicBoxVectors(*step.cell)
        exact, force, size = step.exact(), self.force, np.linalg.norm(step.charges)
        shared = step.potential_scale(exact)
        quantity = rng.choice(["potentials", "states", "virial", *3 * ["forces"]])
        if quantity == "potentials":
            potentials, at_charges = force.getPotentialsInContext(context), step.charges != 0.0
            yield potentials * at_charges, exact.potentials * at_charges, shared
        elif quantity == "states" and step.charges.all():  # for which the precision is chosen
            lambdas = [0.0, 1.0, -0.5]
            found = force.getStateEnergiesInContext(context, [{"lambda": each} for each in lambdas])
            sums = [step.exact(base + each * self.slope) for each in lambdas]
            most = max(map(step.potential_scale, sums)) * np.hypot(size, np.linalg.norm(self.slope))
            yield found, [each.energy for each in sums], most
        elif quantity == "virial" and step.boundary != "open":
            finest = step.solver(1e-10, backend="cpu")
            exact_virial = finest.compute(step.positions, virial=True).virial
            yield force.getVirialInContext(context), exact_virial, size * shared
        else:
            found = context.getState(energy=True, forces=True)
            forces = found.getForces(asNumpy=True)._value
            if not np.linalg.norm(exact.forces, axis=1).max() > self.largest_force:
                yield forces, exact.forces, step.force_scale(exact.forces)
            yield found.getPotentialEnergy()._value, exact.energy, size * shared


SEQUENCES = {"on_solver": OnSolver, "on_contexts": OnContexts}


def judge_sequence(kind: str, seed: int, tolerance: float, backend: str = "cpu") -> Verdict:
    """The worst verdict on a sequence of operations, always the same for a seed. A warning counts
    for all that follows, since there is one in the life of a solver; after an error the sequence
    goes on."""
    rng = np.random.default_rng([seed, list(SEQUENCES).index(kind)])
    known, target, worst = [first_step(rng, SEQUENCES[kind].boundaries)], None, 0.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(int(rng.integers(3, STEPS + 1))):
            step = known[-1] if rng.random() < 0.8 else known[rng.integers(len(known))]
            for change in rng.choice(CHANGES, rng.integers(3)):
                step = change(rng, step)
            known.append(step)
            try:
                target = target or SEQUENCES[kind](rng, step, tolerance, backend)
                for found, exact, scale in target.answers(rng, step):
                    error = np.linalg.norm(np.subtract(found, exact)) / (scale or 1.0) / tolerance
                    if not error <= MISSED and not has_warning(caught):
                        return Verdict("missed", float(error))
                    worst = max(worst, error)
            except (ValueError, fmm.UnsupportedError, openmm.OpenMMException) as error:
                # it names an argument, or OpenMM's kernels on a GPU are those of rectangular boxes
                parts = ["`", "coincide", *["The box shape has changed"] * (backend == "cuda")]
                if not any(part in str(error) for part in parts):
                    raise
                worst = np.inf
    return Verdict("kept" if worst <= MISSED else "warned", float(worst))
