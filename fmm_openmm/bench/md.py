"""Time of an MD step in OpenMM with all charges zero, with PME, with FMM at PME's tolerance and at PME's measured force error.

Langevin steps of 2 fs, again and again from one equilibrated state and never far from it: without charges water heats up, and
faster atoms want new neighbour lists more often. The marginal cost of Coulomb is the time of a step less that with all charges
zero, at the same Lennard-Jones cutoff and precision.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import openmm
from openmm import unit

from fmm_openmm.backends import choose_backend
from fmm_openmm.bench.solver import Evaluation, relative_error
from fmm_openmm.bench.systems import (
    CUTOFF,
    Sample,
    Size,
    nonbonded,
    scale_particles,
    tiled,
    tiled_charges,
    water,
    with_smoothing,
)
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration import FMMForce, use_fmm
from fmm_openmm.parameters import SINGLE_FLOOR

TIGHT = 1e-4
"""Below this tolerance PME takes the best of several cutoffs, and FMM the fastest bridge only."""

CUTOFFS = (0.9, 1.05, 1.2)
"""Those, nm. A longer one costs Lennard-Jones pairs as well, which the choice takes into account."""

WIDEST = 0.45
"""Largest cutoff over the width of the box."""

ACCEPTED = 3.0
"""PME's force error over its tolerance up to which a cutoff may be the best: 1.4 is usual."""

LOOSER = tuple(1.12**k for k in range(12, 0, -1))
"""Multiples of the tolerance at which FMM may be as inaccurate as PME: the largest that is not more so is taken."""

STEPS = (10, 50)
"""Fewest and most steps timed at once; with a tenth of them before as warm-up, at most 0.11 ps from the start."""

REPEATS = (5, 15)
BUDGET = 1.0
"""Fewest and most repeats, and seconds for all of them as far as the fewest allow."""


@dataclass(frozen=True)
class Timed:
    """A step's time in seconds, Coulomb forces (n, 3) in kJ/mol/nm, bytes of device memory the Context took."""

    seconds: float
    forces: np.ndarray
    memory: int | None


def bridges() -> list[str]:
    """Ways of FMMForce into OpenMM that are there, the fastest first."""
    found = []
    for name in ("native", "host"):
        try:
            FMMForce(bridge=name)
        except UnsupportedError:
            continue
        found.append(name)
    return found


def precision_of(platform: openmm.Platform, tolerance: float) -> str | None:
    """ "mixed" or, for tolerances beyond single precision, "double"; None where the platform has no choice.

    Raises:
        ValueError: beyond single precision on the CPU platform.
    """
    if "Precision" in platform.getPropertyNames():
        return "double" if tolerance < SINGLE_FLOOR else "mixed"
    if tolerance < SINGLE_FLOOR and platform.getName() == "CPU":
        raise ValueError(f"a tolerance below {SINGLE_FLOOR:g} needs double precision, which the CPU platform lacks")
    return None


def matching_tolerance(charges: ChargeSystem, exact: np.ndarray, tolerance: float, error: float, **options) -> float | None:
    """The tolerance, larger than that given, at which FMM is nearly as inaccurate as PME; None if there is none.

    PME's error usually exceeds its tolerance, FMM's is about half of it: at equal tolerances they do different work.

    Args:
        exact: forces of the charges, or of the first of several copies, shape (n, 3), kJ/mol/nm.
        error: PME's relative RMS force error.
        options: of the solver.
    """

    def serves(looser: float) -> bool:
        return relative_error(Evaluation(charges, tolerance=looser * tolerance, **options).forces, exact) <= error

    found = bisect_left(LOOSER, True, key=serves)
    return LOOSER[found] * tolerance if found < len(LOOSER) else None


class Comparison:
    """All measurements at one size on one platform."""

    def __init__(self, size: Size, platform: openmm.Platform):
        base = water(size.edge)
        self._unit, self._copies, self._exact = base.sample, size.copies, base.exact
        self._sample, self._platform = tiled(base.sample, size.copies), platform
        self._charges = tiled_charges(base.charges, size.copies)
        self._width = size.edge * min(size.copies)
        self._without_charges = cache(self._time_without_charges)

    def rows(self, tolerance: float, smoothings=(None,)) -> Iterator[dict]:
        """Rows for all charges zero, PME, and FMM with each of ``smoothings`` at the same tolerance and at PME's measured force
        error: step and marginal cost in seconds, force error, memory. On the fastest bridge; from :data:`TIGHT` on also on the
        others, whose copies cost the same at any tolerance.

        A row whose Context fails has ``failure`` instead. OpenMM 8.6.1 gets the forces of PME wrong on grids of more than 2^31
        bytes.
        """
        precision = precision_of(self._platform, tolerance)
        neutral = self._without_charges(precision)
        common = {"atoms": len(self._sample.positions), "tolerance": tolerance, "precision": precision}
        yield common | {"method": "charges zero", "step_seconds": neutral.seconds, "memory": neutral.memory}

        def row(method: str, pme: dict | None, measure, *arguments) -> dict:
            try:
                timed, settings = measure(*arguments, precision)
            except openmm.OpenMMException as error:
                return common | {"method": method, "failure": str(error)}
            marginal = timed.seconds - neutral.seconds
            return {
                **common,
                **settings,
                "method": method,
                "step_seconds": timed.seconds,
                "marginal_seconds": marginal,
                "over_pme": marginal / pme["marginal_seconds"] if pme and "marginal_seconds" in pme else None,
                "force_error": relative_error(timed.forces, self._exact),
                "memory": timed.memory,
            }

        pme = row("PME", None, self._pme, tolerance)
        yield pme
        first, *others = bridges()
        for smoothing in smoothings:
            name = with_smoothing(f"FMM, {first} bridge", smoothing)
            options = {"bridge": first, "smoothing": smoothing}
            yield row(name, pme, self._fmm, options | {"tolerance": tolerance})
            if not pme.get("force_error", np.inf) < 1:  # it failed, or its forces are wrong
                continue
            looser = matching_tolerance(self._charges, self._exact, tolerance, pme["force_error"], smoothing=smoothing)
            if looser:
                yield row(f"{name}, PME's error", pme, self._fmm, options | {"tolerance": looser})
        for bridge in others if tolerance >= TIGHT else ():
            yield row(f"FMM, {bridge} bridge", pme, self._fmm, {"bridge": bridge, "tolerance": tolerance})

    def _time_without_charges(self, precision: str | None) -> Timed:
        force = nonbonded(self._sample.system)
        force.setCutoffDistance(CUTOFF)
        force.setNonbondedMethod(force.CutoffPeriodic)
        scale_particles(force, self._unit, charge=0.0, epsilon=1.0)
        timed = self._time(self._sample.system, precision)
        force.setNonbondedMethod(force.PME)
        scale_particles(force, self._unit, charge=1.0, epsilon=1.0)
        return timed

    def _pme(self, tolerance: float, precision: str | None) -> tuple[Timed, dict]:
        """The fastest cutoff among those with a decent error, or the most accurate if there is none."""
        force = nonbonded(self._sample.system)
        force.setEwaldErrorTolerance(tolerance)
        found = {}
        for cutoff in CUTOFFS if tolerance < TIGHT else (CUTOFF,):
            if cutoff <= WIDEST * self._width:
                force.setCutoffDistance(cutoff)
                found[cutoff] = self._time(self._sample.system, precision, charge=1.0)
        errors = {cutoff: relative_error(timed.forces, self._exact) for cutoff, timed in found.items()}
        decent = [cutoff for cutoff in found if errors[cutoff] <= ACCEPTED * tolerance] or [min(errors, key=errors.get)]
        best = min(decent, key=lambda cutoff: found[cutoff].seconds)
        tried = {cutoff: [timed.seconds, errors[cutoff]] for cutoff, timed in found.items()}
        return found[best], {"cutoff": best, "cutoffs_seconds_and_errors": tried}

    def _fmm(self, options: dict, precision: str | None) -> tuple[Timed, dict]:
        system = tiled(self._unit, self._copies).system
        use_fmm(system, **options)
        return self._time(system, precision), {"cutoff": CUTOFF, "fmm_options": options}

    def _time(self, system: openmm.System, precision: str | None, charge: float = 0.0) -> Timed:
        """Time a System; its NonbondedForce holds this multiple of the charges."""
        free = _free_bytes(self._platform)
        integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.002)
        properties = {"Precision": precision} if precision else {}
        context = openmm.Context(system, integrator, self._platform, properties)
        seconds = _step_seconds(context, self._sample)
        memory = None if free is None else free - _free_bytes(self._platform)

        force = nonbonded(system)
        scale_particles(force, self._unit, charge, epsilon=0.0)
        force.updateParametersInContext(context)
        scale_particles(force, self._unit, charge, epsilon=1.0)
        context.setPositions(self._sample.positions)
        forces = context.getState(forces=True).getForces(asNumpy=True)
        return Timed(seconds, forces.value_in_unit(unit.kilojoule_per_mole / unit.nanometer), memory)


def _step_seconds(context: openmm.Context, sample: Sample) -> float:
    """Median time of a step from the sample's state. The call that waits for the device is timed alone and taken off."""

    def run(steps: int) -> float:
        begin = time.perf_counter()
        context.getIntegrator().step(steps)
        context.getState(energy=True)
        end = time.perf_counter()
        context.getState(energy=True)
        return (end - begin - (time.perf_counter() - end)) / steps

    def start() -> None:
        context.setPositions(sample.positions)
        context.setVelocities(sample.velocities)

    start()
    run(1)
    steps = int(np.clip(BUDGET / REPEATS[0] / run(STEPS[0]), *STEPS))
    times = []
    while len(times) < REPEATS[0] or (len(times) < REPEATS[1] and sum(times) * steps < BUDGET):
        start()
        run(steps // 10)
        times.append(run(steps))
    return float(np.median(times))


def _free_bytes(platform: openmm.Platform) -> int | None:
    if platform.getName() != "CUDA" or choose_backend() != "cuda":
        return None
    from fmm_openmm.bench import device

    return device.free_bytes()
