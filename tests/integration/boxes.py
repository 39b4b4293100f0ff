"""``Box``: a System with positions, and what the tests of ``fmm_openmm.integration`` ask of it."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import openmm


@dataclass
class Box:
    """A System with positions (n, 3), nm. A test may change what it gets."""

    system: openmm.System
    positions: np.ndarray

    @property
    def nonbonded(self) -> openmm.NonbondedForce:
        return next(
            force for force in self.system.getForces() if isinstance(force, openmm.NonbondedForce)
        )

    @property
    def cell(self) -> np.ndarray:
        """Default box vectors in rows, nm."""
        return np.array([vector._value for vector in self.system.getDefaultPeriodicBoxVectors()])

    def context(self, platform="Reference", integrator=None) -> openmm.Context:
        integrator = integrator or openmm.VerletIntegrator(0.001)
        properties = {"Precision": "double"} if platform in ("CUDA", "OpenCL", "HIP") else {}
        context = openmm.Context(
            self.system, integrator, openmm.Platform.getPlatformByName(platform), properties
        )
        context.setPositions(self.positions)
        return context

    def energy_and_forces(self, platform="Reference", **groups):
        state = self.context(platform).getState(energy=True, forces=True, **groups)
        return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def energy_of(context, **groups) -> float:
    """kJ/mol."""
    return context.getState(energy=True, **groups).getPotentialEnergy()._value


def relative_difference(forces, reference) -> float:
    return float(np.linalg.norm(forces - reference) / np.linalg.norm(reference))


@cache
def usable_platforms():
    """Names of the platforms that make a Context on this machine."""
    names = []
    for index in range(openmm.Platform.getNumPlatforms()):
        platform = openmm.Platform.getPlatform(index)
        system = openmm.System()
        system.addParticle(1.0)
        try:
            openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
        except openmm.OpenMMException:
            continue
        names.append(platform.getName())
    return names


def opened(box: Box, method=openmm.NonbondedForce.NoCutoff) -> Box:
    """The same particles without periodicity."""
    box.nonbonded.setNonbondedMethod(method)
    return box


def charges_and_pairs(force):
    charges = [force.getParticleParameters(i)[0]._value for i in range(force.getNumParticles())]
    return np.array(charges), np.array(
        [force.getExceptionParameters(i)[:2] for i in range(force.getNumExceptions())]
    )


def xml(system) -> str:
    return openmm.XmlSerializer.serialize(system)


def from_xml(text):
    return openmm.XmlSerializer.deserialize(text)


def with_offsets(box: Box) -> Box:
    box.nonbonded.addGlobalParameter("alchemical", 0.3)
    box.nonbonded.addGlobalParameter("size", 1.0)
    box.nonbonded.addParticleParameterOffset("alchemical", 2, -0.1, 0.01, 0.02)
    box.nonbonded.addParticleParameterOffset("size", 3, 0.0, 0.01, 0.0)
    box.nonbonded.addParticleParameterOffset("alchemical", 7, 1 / 3, 0.0, 0.0)
    box.nonbonded.addExceptionParameterOffset("alchemical", 1, 0.05, 0.0, 0.0)
    return box
