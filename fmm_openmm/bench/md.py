"""Time of whole MD steps in OpenMM with PME and with FMM, and what Coulomb adds to a step.

Each time is the wall time of one continuous run of Langevin dynamics at 300 K from a sample's
state. Neighbour lists are built, particles reordered and the box scaled by a barostat as often as
in a simulation, and the work of the host is included.

The marginal cost of Coulomb is the time of a step minus the time of a step with all charges zero,
at the same precision and the user's cutoff. Where Lennard-Jones pairs are computed among their
sites only, the marginal cost of the FMM is reduced by the time that this saves. Without charges
water heats up to 490 K within 0.1 ps, and faster atoms need new neighbour lists more often: 32
instead of 26 times in 100 steps of 2 fs. With :data:`NEUTRAL_FRICTION` the temperature stays near
300 K and the number at 26, although the structure is no longer that of water.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import openmm
from openmm import unit

from fmm_openmm.backends import choose_backend
from fmm_openmm.bench.slab import between_vacuum
from fmm_openmm.bench.solver import relative_error
from fmm_openmm.bench.systems import (
    TEMPERATURE,
    Sample,
    Size,
    equilibrated,
    exact_forces,
    nonbonded,
    on_gpu,
    scaled,
    tiled,
    water,
    with_every_atom_a_site,
    with_smoothing,
)
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.convert.openmm_system import default_box, nonbonded_force
from fmm_openmm.integration import restore_pme, use_fmm
from fmm_openmm.planning.request import SINGLE_FLOOR

TIGHT = 1e-4
"""Below this tolerance PME is also measured at the best of several cutoffs."""

CUTOFFS = (0.9, 1.05, 1.2)
"""Cutoffs that PME is measured at in addition to the user's, nm. The choice takes into account that
a longer cutoff also adds Lennard-Jones pairs. If the cutoff belongs to the force field
(:func:`has_own_cutoff`), PME is measured only at the user's."""

WIDEST = 0.45
"""Largest of these cutoffs relative to the width of the box."""

ACCEPTED = 3.0
"""Largest ratio of PME's force error to its tolerance at which a cutoff may be the best; 1.4 is
usual."""

BUDGET = 3.0
"""Duration of the timed steps of a run, s, unless the numbers below require more steps."""

STEPS, STEPS_OF_LARGE, LARGE = 2000, 500, 300_000
"""Smallest number of timed steps on a GPU: below LARGE atoms, from LARGE atoms on."""

STEPS_OF_SLOW = 10
"""Smallest number of timed steps on other platforms."""

WARM_UP = 100
"""Smallest number of steps on a GPU before the timed ones; else a tenth of these."""

TRIAL = 5
"""Steps timed to find how many fit into the budget."""

FRICTION, NEUTRAL_FRICTION = 1.0, 50.0
"""Friction of the Langevin thermostat with charges, and with all charges zero, 1/ps."""

MINIMIZATION, RELAXATION = 200, 4.0
"""Largest number of minimisation steps, and length of a run with PME, ps, before the timing of a
System."""

SEED = 1

NONBONDED_GROUP, FMM_GROUP = 30, 31
"""Force groups of the NonbondedForce and the FMMForce, so that their forces can be read apart."""

CHOSEN = ("bridge", "lennard_jones", "order", "near_radius", "smoothing", "grid")
"""Parameters of a Context with FMM that a row reports."""


def precision_of(
    platform: openmm.Platform, tolerance: float, asked: str | None = None
) -> str | None:
    """Precision to use: as requested, else "mixed" or, for tolerances beyond single precision,
    "double"; None on a platform with a single precision.

    Raises:
        ValueError: the tolerance is beyond single precision on the CPU platform, or a precision is
            requested on a platform that offers no choice.
    """
    if on_gpu(platform):
        return asked or ("double" if tolerance < SINGLE_FLOOR else "mixed")
    if asked:
        raise ValueError(
            f"the {platform.getName()} platform has one precision only: "
            f"leave out --precision {asked}"
        )
    if tolerance < SINGLE_FLOOR and platform.getName() == "CPU":
        raise ValueError(
            f"a tolerance below {SINGLE_FLOOR:g} needs double precision, "
            "which the CPU platform lacks"
        )
    return None


@dataclass(frozen=True, eq=False)
class Case:
    """A system whose steps are measured.

    Attributes:
        name: name of the system, for tables.
        sample: the system with PME at the user's cutoff.
        timestep: ps.
        exact: converged Coulomb forces of the sample or, if it consists of copies, of one copy,
            shape (n, 3), kJ/mol/nm; None to measure no force errors.
        boundary: boundary of the FMM.
    """

    name: str
    sample: Sample
    timestep: float
    exact: np.ndarray | None
    boundary: str = "periodic"

    @classmethod
    def from_size(
        cls, size: Size, timestep: float = 0.002, every_atom: bool = False, errors: bool = True
    ) -> "Case":
        """Equilibrated rigid TIP3P water; with ``every_atom`` hydrogens are Lennard-Jones sites
        too."""
        base = water(size.edge)
        sample = with_every_atom_a_site(base.sample) if every_atom else base.sample
        return cls("water", tiled(sample, size.copies), timestep, base.exact if errors else None)

    def as_slab(self) -> "Case":
        """The same water as a layer between vacuum, relaxed, with ``boundary="slab"`` and without
        exact forces."""
        cut = between_vacuum(self.sample)
        sample = equilibrated(cut.system, cut.positions, RELAXATION, SEED)
        return replace(self, name="slab", sample=sample, exact=None, boundary="slab")

    @classmethod
    def from_system(
        cls,
        name: str,
        system: openmm.System,
        positions: np.ndarray,
        timestep: float = 0.002,
        errors: bool = True,
    ) -> "Case":
        """A System relaxed from the given positions, shape (n, 3), nm.

        Raises:
            ValueError: the System does not use PME.
        """
        if nonbonded_force(system).getNonbondedMethod() != openmm.NonbondedForce.PME:
            raise ValueError("the System must use PME, in a periodic box")
        sample = equilibrated(system, positions, RELAXATION, SEED, MINIMIZATION)
        exact = exact_forces(ChargeSystem.from_openmm(system, sample.positions)) if errors else None
        return cls(name, sample, timestep, exact)

    def tiled(self, copies: tuple[int, int, int]) -> "Case":
        """The case repeated along its box vectors (:func:`fmm_openmm.bench.systems.tiled`)."""
        return self if copies == (1, 1, 1) else replace(self, sample=tiled(self.sample, copies))


class Comparison:
    """All measurements of one case on one platform.

    Each changes the System of the case, and restores it.

    Args:
        case: the case.
        platform: the platform.
        devices: indices of the GPUs on which PME and FMM are also measured together. The first one
            is used where one device is measured.
    """

    def __init__(self, case: Case, platform: openmm.Platform, devices: list[str] | None = None):
        self._case, self._platform, self._devices = case, platform, devices or []
        self._system, self._force = case.sample.system, nonbonded(case.sample.system)
        self._cutoff = self._force.getCutoffDistance()
        self._own_cutoff = has_own_cutoff(self._system)
        self._width = default_box(self._system).diagonal().min()
        self._force.setForceGroup(NONBONDED_GROUP)
        self._force.setReciprocalSpaceForceGroup(-1)
        self._neutral = cache(self._measure_neutral)

    def rows(
        self, tolerance: float, precision: str | None, smoothings=(), marginal: bool = True
    ) -> Iterator[dict]:
        """Rows of PME at the user's cutoff and, below :data:`TIGHT`, at the best cutoff if it
        differs; of FMM, also with each of ``smoothings``; of PME and FMM on all ``devices``, with
        the ratio to one of them in ``over_one``; with ``marginal`` also of FMM with Lennard-Jones
        pairs left to OpenMM where it computes them itself, and of zero charges.

        A row whose Context fails has ``failure`` in place of times. OpenMM 8.6.1 computes wrong PME
        forces on grids of more than 2^31 bytes.
        """
        neutral = self._neutral(precision) if marginal else None
        pme = self._pme(tolerance, precision, self._cutoff)
        best = (
            self._best_pme(tolerance, precision, pme)
            if tolerance < TIGHT and not self._own_cutoff
            else None
        )

        def row(method: str, found: dict) -> dict:
            first = {
                "system": self._case.name,
                "atoms": len(self._case.sample.positions),
                "own_cutoff": self._own_cutoff,
            }
            asked = {"tolerance": tolerance, "precision": precision, "method": method}
            return first | asked | found | compared(found, neutral, pme, best)

        yield row("PME", pme)
        if best:
            yield row("PME, best cutoff", best)
        fmm = self._fmm(precision, tolerance=tolerance)
        yield row("FMM", fmm)
        if marginal and fmm.get("lennard_jones") == "sites":
            yield row(
                "FMM, LJ by OpenMM",
                self._fmm(precision, tolerance=tolerance, lennard_jones="openmm"),
            )
        for smoothing in smoothings:
            if smoothing is not None:
                yield row(
                    with_smoothing("FMM", smoothing),
                    self._fmm(precision, tolerance=tolerance, smoothing=smoothing),
                )
        if len(self._devices) > 1:
            together, names = f" on {len(self._devices)} devices", ",".join(self._devices)
            several = self._pme(tolerance, precision, self._cutoff, DeviceIndex=names)
            yield row("PME" + together, several | over_one(several, pme))
            devices = [int(each) if each.isdecimal() else each for each in self._devices]
            several = self._fmm(precision, tolerance=tolerance, devices=devices)
            yield row("FMM" + together, several | over_one(several, fmm))
        if neutral:
            yield row("charges zero", neutral)

    def _pme(self, tolerance: float, precision: str | None, cutoff, **properties) -> dict:
        force, usual = self._force, self._force.getEwaldErrorTolerance()
        force.setEwaldErrorTolerance(tolerance)
        force.setCutoffDistance(cutoff)

        def describe(context: openmm.Context) -> dict:
            if self._case.exact is None:
                return {}
            with scaled(force, epsilon=0.0, exceptions=0.0):
                force.updateParametersInContext(context)
                return self._force_error(context, NONBONDED_GROUP)

        found = self._measured(precision, describe, **properties)
        force.setCutoffDistance(self._cutoff)
        force.setEwaldErrorTolerance(usual)
        return found

    def _best_pme(self, tolerance: float, precision: str | None, usual: dict) -> dict | None:
        """PME at the fastest cutoff whose error is acceptable, or else at the most accurate; None
        if that is the user's."""
        others = [
            c for c in CUTOFFS if c <= WIDEST * self._width and not np.isclose(c, usual["cutoff"])
        ]
        found = [usual, *(self._pme(tolerance, precision, cutoff) for cutoff in others)]
        found = [each for each in found if "failure" not in each]
        decent = [each for each in found if each.get("force_error", 0.0) <= ACCEPTED * tolerance]
        decent = decent or sorted(found, key=lambda each: each["force_error"])[:1]
        best = min(decent, key=lambda each: each["step_seconds"], default=usual)
        tried = {each["cutoff"]: [each["step_seconds"], each.get("force_error")] for each in found}
        return None if best is usual else best | {"cutoffs_seconds_and_errors": tried}

    def _fmm(self, precision: str | None, **options) -> dict:
        force = use_fmm(self._system, boundary=self._case.boundary, **options)
        force.setForceGroup(FMM_GROUP)

        def describe(context: openmm.Context) -> dict:
            used = force.getFMMParametersInContext(context)
            error = self._force_error(context, FMM_GROUP)
            return error | {name: used[name] for name in CHOSEN}

        try:
            return self._measured(precision, describe)
        finally:
            restore_pme(self._system)

    def _measure_neutral(self, precision: str | None) -> dict:
        self._force.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
        with scaled(self._force, charge=0.0):
            found = self._measured(precision, lambda context: {}, NEUTRAL_FRICTION)
        self._force.setNonbondedMethod(openmm.NonbondedForce.PME)
        return found

    def _measured(
        self,
        precision: str | None,
        describe: Callable[[openmm.Context], dict],
        friction: float = FRICTION,
        **properties: str,
    ) -> dict:
        """Times of the System in its present state and what ``describe`` returns for its Context;
        or ``failure``."""
        first = {"cutoff": self._force.getCutoffDistance()._value}
        integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, friction, self._case.timestep)
        integrator.setRandomNumberSeed(SEED)
        if precision:
            properties["Precision"] = precision
        if self._devices:
            properties.setdefault("DeviceIndex", self._devices[0])
        free = _free_bytes(self._platform, self._devices)
        try:
            context = openmm.Context(self._system, integrator, self._platform, properties)
            evaporates = self._case.boundary == "slab"
            seconds, steps = timed_steps(context, self._case.sample, evaporates)
            left = _free_bytes(self._platform, self._devices)
            return first | {
                "step_seconds": seconds,
                "ns_per_day": 86.4 * self._case.timestep / seconds,
                "steps": steps,
                "memory": max(map(int.__sub__, free, left), default=None),
                **describe(context),
            }
        except openmm.OpenMMException as error:
            return first | {"failure": str(error)}

    def _force_error(self, context: openmm.Context, group: int) -> dict[str, float]:
        """Relative RMS error of the forces of a group, at the sample's positions in its box;
        nothing without exact forces."""
        if self._case.exact is None:
            return {}
        context.setPeriodicBoxVectors(*self._system.getDefaultPeriodicBoxVectors())
        context.setPositions(self._case.sample.positions)
        forces = context.getState(forces=True, groups={group}).getForces(asNumpy=True)
        forces = forces.value_in_unit(unit.kilojoule_per_mole / unit.nanometer)
        return {"force_error": relative_error(forces, self._case.exact)}


def has_own_cutoff(system: openmm.System) -> bool:
    """Whether the cutoff is a parameter of the force field: its Lennard-Jones interaction has a
    switching function or a separate force, as in CHARMM36."""
    own = any(isinstance(force, openmm.CustomNonbondedForce) for force in system.getForces())
    return own or nonbonded(system).getUseSwitchingFunction()


def compared(found: dict, neutral: dict | None, pme: dict, best: dict | None) -> dict:
    """Ratios of a row's whole step to PME's at the user's and at the best cutoff, its marginal cost
    in seconds and the ratio of that to PME's; None where a value is unknown."""
    step, without, usual, fastest = (
        (each or {}).get("step_seconds") for each in (found, neutral, pme, best)
    )
    if step is None:
        return {}
    marginal, of_pme = (
        None if seconds is None or without is None else seconds - without
        for seconds in (step, usual)
    )
    return {
        "over_pme": step / usual if usual else None,
        "over_best_pme": step / fastest if fastest else None,
        "marginal_seconds": marginal,
        "marginal_over_pme": marginal / of_pme if of_pme else None,
    }


def over_one(found: dict, one: dict) -> dict:
    """Ratio of the time on several devices to that on one; nothing if a run failed."""
    if "failure" in found or "failure" in one:
        return {}
    return {"over_one": found["step_seconds"] / one["step_seconds"]}


def timed_steps(
    context: openmm.Context, sample: Sample, evaporates: bool = False
) -> tuple[float, int]:
    """Mean wall time of a step, s, in a run from the sample's state, and the number of steps
    averaged over. What evaporates has as many steps before, in which the first molecules reach the
    walls: until then they need new boxes."""
    gpu = on_gpu(context.getPlatform())
    fewest = (STEPS if len(sample.positions) < LARGE else STEPS_OF_LARGE) if gpu else STEPS_OF_SLOW
    context.setPositions(sample.positions)
    context.setVelocities(sample.velocities)
    _seconds(context, 1)
    steps = max(fewest, int(BUDGET * TRIAL / _seconds(context, TRIAL)))
    _seconds(context, steps if evaporates else max(steps // 10, WARM_UP if gpu else 1))
    return _seconds(context, steps) / steps, steps


def _seconds(context: openmm.Context, steps: int) -> float:
    """Wall time of a number of steps, s, without that of the call that waits for the device, which
    is timed separately."""
    begin = time.perf_counter()
    context.getIntegrator().step(steps)
    context.getState(velocities=True)
    end = time.perf_counter()
    context.getState(velocities=True)
    return end - begin - (time.perf_counter() - end)


def _free_bytes(platform: openmm.Platform, devices: list[str]) -> list[int]:
    """Free memory of every device, bytes; nothing where it is unknown."""
    if platform.getName() != "CUDA" or choose_backend() != "cuda":
        return []
    from fmm_openmm.bench import device

    return [device.free_bytes(int(each)) for each in devices or ["0"]]
