"""Arrays of a NonbondedForce's parameters: those that its own methods return and take,
to the last bit."""

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.convert.nonbonded import (
    excepted_pairs,
    first_charged,
    particle_parameters,
    set_particle_parameters,
)

PARTICLES = 50


@pytest.fixture(params=["functions", "methods"])
def route(request, monkeypatch):
    """The functions of OpenMM's extension module, and the methods, for an OpenMM that lacks
    these functions."""
    if request.param == "methods":
        monkeypatch.delattr(openmm, "_openmm")


@pytest.fixture
def force():
    """With numbers of all magnitudes, as a System gives it back, whose handles SWIG makes."""
    random = np.random.default_rng(8)
    force, system = openmm.NonbondedForce(), openmm.System()
    for charge, sigma, epsilon in random.normal(size=(PARTICLES, 3)) * 10.0 ** random.integers(
        -300, 300, (PARTICLES, 3)
    ):
        force.addParticle(charge, sigma, epsilon)
    force.setParticleParameters(3, -0.0, 5e-324, np.nan)
    force.setParticleParameters(4, np.inf, 1 / 3, -np.inf)
    for first in range(0, PARTICLES - 5, 2):
        force.addException(first + int(random.integers(1, 5)), first, *random.normal(size=3))
    force.addGlobalParameter("lambda", 0.5)
    force.addParticleParameterOffset("lambda", 1, 0.1, 0.2, 0.3)
    system.addForce(force)
    system_force = system.getForce(0)
    system_force.owner = system
    return system_force


def by_methods(force):
    return np.array(
        [
            [value._value for value in force.getParticleParameters(i)]
            for i in range(force.getNumParticles())
        ]
    )


def test_particles(force, route):
    found = particle_parameters(force)
    assert (found.dtype, found.shape) == (np.float64, (PARTICLES, 3))
    assert found.tobytes() == by_methods(force).tobytes()


def test_exceptions(force, route):
    found = excepted_pairs(force)
    assert found.dtype == np.int64
    assert found.tolist() == [
        force.getExceptionParameters(k)[:2] for k in range(force.getNumExceptions())
    ]


def test_the_largest_index_is_exact(route):
    force = openmm.NonbondedForce()
    force.addException(2**31 - 1, 2**31 - 2, 0.0, 1.0, 0.0)
    assert excepted_pairs(force).tolist() == [[2**31 - 1, 2**31 - 2]]


def test_a_force_without_particles(route):
    force = openmm.NonbondedForce()
    assert particle_parameters(force).shape == (0, 3)
    assert excepted_pairs(force).shape == (0, 2)
    set_particle_parameters(force, np.empty((0, 3)))


@pytest.mark.parametrize("charge", [0.5, -5e-324, np.nan])
def test_the_first_charge(force, route, charge):
    assert first_charged(force) == 0
    set_particle_parameters(force, particle_parameters(force) * [0, 1, 1])
    force.setParticleParameters(4, -0.0, 1, 1)
    assert first_charged(force) is None
    for particle in (PARTICLES - 1, 7):
        force.setParticleParameters(particle, charge, 1, 1)
        assert first_charged(force) == particle
    assert first_charged(openmm.NonbondedForce()) is None


def test_writing(force, route):
    parameters = particle_parameters(force)
    twin, parameters = openmm.XmlSerializer.clone(force), parameters[::-1] / 3
    set_particle_parameters(force, parameters)
    assert by_methods(force).tobytes() == parameters.tobytes()
    for index, row in enumerate(parameters.tolist()):
        twin.setParticleParameters(index, *row)
    assert openmm.XmlSerializer.serialize(force) == openmm.XmlSerializer.serialize(twin)


@pytest.mark.parametrize(
    "shape", [(PARTICLES - 1, 3), (PARTICLES + 1, 3), (PARTICLES, 2), (PARTICLES,)]
)
def test_other_shapes_are_not_written(force, shape, route):
    before = by_methods(force)
    with pytest.raises(
        ValueError, match=rf"shape \(n, 3\) with n = {PARTICLES} \(from `force`\), got"
    ):
        set_particle_parameters(force, np.zeros(shape))
    assert by_methods(force).tobytes() == before.tobytes()


def test_converting_a_system_by_either(water, monkeypatch):
    """Conversion and restoration, each by both implementations."""
    forces = []
    for functions in (True, False):
        system = openmm.XmlSerializer.clone(water.system)
        with monkeypatch.context() as patch:
            if not functions:
                patch.delattr(openmm, "_openmm")
            force = fmm.use_fmm(system)
            texts = [
                openmm.XmlSerializer.serialize(system.getForce(k))
                for k in range(system.getNumForces() - 1)
            ]
            forces.append((texts, force._definition.pack()))
            fmm.restore_pme(system)
        assert openmm.XmlSerializer.serialize(system) == openmm.XmlSerializer.serialize(
            water.system
        )
    assert forces[0] == forces[1]
