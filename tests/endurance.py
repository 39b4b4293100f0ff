"""Long runs inside OpenMM's CUDA platform: nothing piles up on device or host, energies stay those
of a fresh Context, and Lennard-Jones forces among sites those of OpenMM.

    python -m tests.endurance [CASE ...]

needs an NVIDIA GPU and CuPy. ``tests/integration/native/test_native_faults.py`` runs the same cases
with fewer repetitions.
"""

import copy
import ctypes
import gc
import itertools
import os
import sys
import time
from dataclasses import dataclass

import numpy as np
import openmm

import fmm_openmm as fmm
from fmm_openmm.bench.systems import Sample, nonbonded, water_box

DEVICE_LIMIT = 2048
"""Most growth, kilobytes. Other processes on the device count as well."""

PAIRS = 1
"""Force group of the Lennard-Jones pairs."""


@dataclass(frozen=True)
class Outcome:
    """Growth of memory in kilobytes over all repetitions, and what :meth:`Steps.difference`
    tells after them."""

    device: int
    host: int
    difference: float | None

    def failures(self, case: type["Steps"]) -> list[str]:
        """Descriptions of all failures."""
        found = {
            "device memory": self.device > DEVICE_LIMIT,
            "host memory": self.host > case.host_limit,
            "difference": self.difference is not None
            and not self.difference < case.most_difference,
        }
        return [name for name, wrong in found.items() if wrong]


class Steps:
    """Steps of Langevin dynamics in one Context."""

    repetitions = 100_000
    host_limit = 2048  # kilobytes
    precision = "mixed"
    most_difference = 0.01

    def __init__(self, sample: Sample):
        self.system, self.fmm = self.converted(sample, "auto")
        self.context = context_of(self.system, self.precision)
        self.context.setPositions(sample.positions)
        self.context.setVelocitiesToTemperature(300.0, 1)

    def converted(self, sample: Sample, lennard_jones: str) -> tuple[openmm.System, fmm.FMMForce]:
        """The sample's System with FMM in it; its NonbondedForce is in the group :data:`PAIRS`."""
        system = copy.deepcopy(sample.system)
        for force in self.forces():
            system.addForce(force)
        added = fmm.use_fmm(system, tolerance=1e-5, bridge="native", lennard_jones=lennard_jones)
        nonbonded(system).setForceGroup(PAIRS)
        return system, added

    def forces(self) -> list[openmm.Force]:
        """Forces in addition to those of the sample."""
        return []

    def repeat(self, count: int) -> None:
        """Repeat the action this many times."""
        self.context.getIntegrator().step(count)

    def difference(self) -> float | None:
        """Difference of the energy from a fresh Context's, kJ/mol for a square root of the number
        of particles; None where no Context lives through all repetitions."""
        state = self.context.getState(positions=True, energy=True)
        fresh = copy.deepcopy(self.system)
        fresh.setDefaultPeriodicBoxVectors(*state.getPeriodicBoxVectors())
        context = context_of(fresh, self.precision)
        context.setPositions(state.getPositions())
        expected = context.getState(energy=True).getPotentialEnergy()
        return abs((state.getPotentialEnergy() - expected)._value) / fresh.getNumParticles() ** 0.5


class Barostat(Steps):
    """Isotropic moves of a barostat: another parameter block each."""

    repetitions = 1000

    def forces(self):
        return [openmm.MonteCarloBarostat(1.0, 300.0, 1)]


class Shapes(Steps):
    """Anisotropic moves: another lattice operator each."""

    repetitions = 1000

    def __init__(self, sample: Sample):
        """Some shapes take parameters of their own, whose kernels stay compiled: those that
        moves reach are visited first."""
        super().__init__(sample)
        box = self.context.getState().getPeriodicBoxVectors()
        for stretch in itertools.product((0.97, 1.0, 1.03), repeat=3):
            self.context.setPeriodicBoxVectors(
                *(factor * edge for factor, edge in zip(stretch, box, strict=True))
            )
            self.context.getState(energy=True)
        self.context.setPeriodicBoxVectors(*box)

    def forces(self):
        return [
            openmm.MonteCarloAnisotropicBarostat(openmm.Vec3(1, 1, 1), 300.0, True, True, True, 1)
        ]


class Lists(Steps):
    """Lennard-Jones forces by lists of sites, every so many steps compared with OpenMM's by its own
    list. In double precision they differ by 1e-7, as OpenMM holds the parameters in float32; a
    missing pair of water at the cutoff is 4e-6."""

    precision = "double"
    most_difference = 5e-7
    every = 1000

    def __init__(self, sample: Sample):
        super().__init__(sample)
        system, _ = self.converted(sample, "openmm")
        self._openmm, self._largest = context_of(system, self.precision), 0.0

    def repeat(self, count: int) -> None:
        for first in range(0, count, self.every):
            self.context.getIntegrator().step(min(self.every, count - first))
            state = self.context.getState(positions=True, forces=True, groups={PAIRS})
            self._openmm.setPeriodicBoxVectors(*state.getPeriodicBoxVectors())
            self._openmm.setPositions(state.getPositions())
            expected = (
                self._openmm.getState(forces=True, groups={PAIRS}).getForces(asNumpy=True)._value
            )
            error = np.linalg.norm(
                state.getForces(asNumpy=True)._value - expected
            ) / np.linalg.norm(expected)
            self._largest = max(self._largest, float(error))

    def difference(self) -> float:
        """The largest relative RMS difference of forces."""
        return self._largest


class BoxLists(Lists):
    """The same with isotropic moves of a barostat."""

    repetitions = 1000
    every = 10

    def forces(self):
        return [openmm.MonteCarloBarostat(1.0, 300.0, 1)]


class Updates(Steps):
    """Other charges, and a step."""

    repetitions = 1000

    def repeat(self, count: int) -> None:
        charge = self.fmm.getParticleParameters(0)
        for k in range(count):
            self.fmm.setParticleParameters(0, charge * (1 + 1e-3 * (k % 7)))
            self.fmm.updateParametersInContext(self.context)
            self.context.getIntegrator().step(1)
        self.fmm.setParticleParameters(0, charge)
        self.fmm.updateParametersInContext(self.context)


class Contexts(Steps):
    """Contexts, each made, evaluated and given back. OpenMM and CUDA's driver keep some 50 kB of
    host memory of each with PME, and 25 more with FMM, whose kernels,
    graphs and threads are all given back."""

    repetitions = 200
    host_limit = 20480

    def __init__(self, sample: Sample):
        super().__init__(sample)
        self.context, self._positions = None, sample.positions

    def repeat(self, count: int) -> None:
        for _ in range(count):
            context = context_of(self.system)
            context.setPositions(self._positions)
            context.getState(energy=True)
            del context
            gc.collect()

    def difference(self) -> None:
        return None


CASES = {
    each.__name__.lower(): each
    for each in (Steps, Barostat, Shapes, Lists, BoxLists, Updates, Contexts)
}


def context_of(system: openmm.System, precision: str = "mixed") -> openmm.Context:
    """A Context on the CUDA platform."""
    integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.002)
    integrator.setRandomNumberSeed(1)
    return openmm.Context(
        system, integrator, openmm.Platform.getPlatformByName("CUDA"), {"Precision": precision}
    )


def resident_kilobytes() -> int:
    """Host memory of this process, without what its allocator keeps for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim:
        trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def taken_kilobytes() -> int:
    """Device memory of all processes."""
    from cupy.cuda import runtime

    free, total = runtime.memGetInfo()
    return (total - free) // 1024


def run(case: type[Steps], sample: Sample, repetitions: int) -> Outcome:
    """The case, with a tenth of the repetitions before the growth is measured."""
    made = case(sample)
    made.repeat(max(2, repetitions // 10))
    before = taken_kilobytes(), resident_kilobytes()
    made.repeat(repetitions)
    return Outcome(
        taken_kilobytes() - before[0], resident_kilobytes() - before[1], made.difference()
    )


def sample() -> Sample:
    """Water, 2,661 atoms."""
    return water_box(3.0, picoseconds=1.0)


def main(names) -> None:
    water, failed = sample(), False
    for name in names or CASES:
        case, start = CASES[name], time.perf_counter()
        outcome = run(case, water, case.repetitions)
        print(
            f"{name}: {case.repetitions:,} in {time.perf_counter() - start:.0f} s, {outcome}",
            flush=True,
        )
        failed |= bool(outcome.failures(case))
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
