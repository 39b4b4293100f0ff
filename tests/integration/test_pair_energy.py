"""Energies of a CustomNonbondedForce that the plugin takes for A f(r) - B g(r), and what it makes
of them: on the host, against OpenMM's Reference platform. Needs a C++ compiler and OpenMM's
headers, but neither CUDA nor a GPU.
"""

import ctypes
from itertools import combinations_with_replacement
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openmm
import pytest

import fmm_openmm
from fmm_openmm.backends.cuda.source import kernel_folder
from tests import compiler
from tests.lennard_jones import FORCE_SWITCH

HERE = Path(__file__).parent
PLUGIN = Path(fmm_openmm.__file__).parent / "native" / "openmm"
LIBRARIES = Path(openmm.version.openmm_library_path)
HEADERS = LIBRARIES.parent / "include"
if compiler.COMPILER is None or not (HEADERS / "lepton").is_dir():
    pytest.skip("needs a C++ compiler and OpenMM's headers", allow_module_level=True)

DISTANCES = np.array([0.21, 0.3, 0.37, 0.5, 0.999, 1.0, 1.001, 1.1, 1.19, 1.25, 1.7])

MIXED = (
    "a = 4*epsilon*sigma^12; b = 4*epsilon*sigma^6; sigma = sigma1+sigma2; "
    "epsilon = epsilon1*epsilon2;"
)
NBFIX = "a = acoef(type1, type2)^2; b = bcoef(type1, type2);"
SELECTED = """
    select(step(r-on), a*k6*(1/r^6-1/off^6)^2 - b*k3*(1/r^3-1/off^3)^2,
           a*(1/r^12-1/(on*off)^6) - b*(1/r^6-1/(on*off)^3));
    k6 = off^6/(off^6-on^6); k3 = off^3/(off^3-on^3);
"""
GROMACS = """
    a*f12 - b*f6; f12 = 1/r^12 - shift12 - k12; f6 = 1/r^6 - shift6 - k6;
    shift12 = step(r-on)*(a12/3*(r-on)^3 + b12/4*(r-on)^4);
    shift6 = step(r-on)*(a6/3*(r-on)^3 + b6/4*(r-on)^4);
    k12 = 1/off^12 - a12/3*w^3 - b12/4*w^4; k6 = 1/off^6 - a6/3*w^3 - b6/4*w^4;
    a12 = -12*(16*off-13*on)/(off^14*w^2); b12 = 12*(15*off-13*on)/(off^14*w^3);
    a6 = -6*(10*off-7*on)/(off^8*w^2); b6 = 6*(9*off-7*on)/(off^8*w^3); w = off-on;
"""
"""Force switch of GROMACS, whose slopes are those of 1/r^12 and 1/r^6 plus a12
(r - on)^2 + b12 (r - on)^3."""

LIMITS = " on = 1.0; off = 1.2;"
LORENTZ = "sigma = 0.5*(sigma1+sigma2); epsilon = sqrt(epsilon1*epsilon2)"
ACCEPTED = {
    "force switch": FORCE_SWITCH + MIXED + LIMITS,
    "force switch, NBFIX": FORCE_SWITCH + NBFIX + LIMITS,
    "force switch, global": FORCE_SWITCH + MIXED,
    "force switch by select()": SELECTED + MIXED + LIMITS,
    "force switch by select(), NBFIX, global": SELECTED + NBFIX,
    "force switch of GROMACS": GROMACS + MIXED + LIMITS,
    "shifted": "4*epsilon*((sigma/r)^12-(sigma/r)^6-(sigma/1.2)^12+(sigma/1.2)^6);" + LORENTZ,
    "switched": (
        "4*epsilon*x*(x-1)*(step(on-r) + "
        "step(r-on)*step(off-r)*(off^2-r^2)^2*(off^2+2*r^2-3*on^2)/(off^2-on^2)^3);"
        "x = (sigma/r)^6; on = 1.0; off = 1.2;" + LORENTZ
    ),
    "one exponent": "epsilon1*epsilon2*exp(-30*r) - sigma1^3*sigma2^3/r^6",
    "broken exponents": "4*epsilon*((sigma/r)^9.5-sqrt((sigma/r)^7));" + LORENTZ,
    "a bump": "4*epsilon*((sigma/r)^12-(sigma/r)^6)*(1+5*exp(-((r-0.5)/0.03)^2));" + LORENTZ,
    "12-6-4 of one product": "epsilon1*epsilon2*(1e-6/r^12-1e-3/r^6-1e-3/r^4)",
    "by pairs": "select(delta(type1-type2), acoef(type1,type2)*exp(-9*r), bcoef(type1,type2)/r^8)",
    "symmetric when multiplied out": "(sigma1+sigma2/r)*(sigma2+sigma1/r)",
    "operations": (
        "sigma1*sigma2*(min(r,0.9)+max(r,0.4)+abs(r-1)+floor(3*r)+ceil(r)+sin(r)+cos(r)"
        "+tan(0.3*r)+erf(r)+erfc(r)+log(r)+sinh(r)+cosh(r)+tanh(r)+atan(r)+r^(0.5*r)"
        "+1/(1+r)^3+asin(0.1*r)+acos(0.1*r)-delta(r))"
    ),
    "of all alike": "0.1/r^3",
}
REFUSED = {
    "`exp` takes parameters of particles together with": (
        "epsilon1*epsilon2*exp(-(sigma1+sigma2)*r)"
    ),
    "`step` takes parameters of particles together with": "step(sigma1+sigma2-r)/r^12",
    "`select` takes parameters of particles together with": (
        "select(step(r-sigma1-sigma2), 1/r^6, 1/r^12)"
    ),
    "`min` takes parameters of particles together with": "min(sigma1*sigma2, r)",
    "`recip` takes parameters of particles together with": (
        "epsilon1*epsilon2/(0.5+(r/(sigma1+sigma2))^6)"
    ),
    "`^` takes parameters of particles together with": "(sigma1*sigma2)^on/r^6",
    "`acoef` takes parameters of particles together with": "acoef(type1, type2*r)",
    "`bump` takes the distance": "sigma1*sigma2*bump(r)",
    "it takes more than two functions of the distance": (
        "4*epsilon*((sigma/r)^12-(sigma/r)^6-(sigma/r)^4);" + LORENTZ
    ),
    "it depends on the order of particles": "sigma1/r^6*exp(-r)",
    "a coefficient is not finite": "exp(-r)/(sigma1-sigma2)",
    "a number in its energy is not finite": "sigma1*sigma2*(exp(-r)+1e200*1e200)",
    "it has too many terms": (
        "(sigma1+sin(r)+sin(2*r)+sin(3*r)+sin(4*r)+sin(5*r)+sin(6*r))^3*(sigma2+cos(r))"
    ),
}

PARTICLES = (0.16, 0.8, 0), (0.02, 0.4, 1), (0.19, 0.5, 2), (0.16, 0.8, 0)
"""Sigma, epsilon and type."""


def force_of(energy, particles=PARTICLES) -> openmm.CustomNonbondedForce:
    """Particles, and tables of types; limits of switching are global parameters unless the
    energy sets them."""
    force = openmm.CustomNonbondedForce(energy)
    for name in ("sigma", "epsilon", "type"):
        force.addPerParticleParameter(name)
    for values in particles:
        force.addParticle(values)
    for name, value in (("on", 1.0), ("off", 1.2)):
        if f" {name} =" not in energy:
            force.addGlobalParameter(name, value)
    sixth = np.array([[1.2, 0.3, 1.9], [0.3, 0.05, 0.6], [1.9, 0.6, 2.7]]) * 1e-3
    for name, table in (("acoef", 0.9 * sixth), ("bcoef", 1.1 * sixth)):
        force.addTabulatedFunction(name, openmm.Discrete2DFunction(3, 3, table.ravel().tolist()))
    force.addTabulatedFunction("bump", openmm.Continuous1DFunction([0, 1, 1, 0], 0.34, 0.7))
    return force


class Found(NamedTuple):
    """What the plugin finds; types of particles are -1 where these interact with none,
    coefficients are of pairs of types."""

    obstacle: str
    types: list[int]
    a: np.ndarray
    b: np.ndarray
    functions: str


@pytest.fixture(scope="module")
def recognise(folder):
    """The plugin's findings about a force, at given or default values of its global parameters."""
    parts = "force_survey", "pair_energy", "separation", "function_source"
    sources = [HERE / "pair_energy.cpp", *(PLUGIN / f"{name}.cpp" for name in parts)]
    options = "-O2", "-w", f"-I{PLUGIN}", f"-I{HEADERS}", f"-L{LIBRARIES}", "-lOpenMM"
    library = compiler.library(folder, "recognise", *sources, *options)
    library.recognise.restype = ctypes.c_char_p

    def of(force, *values):
        if not values:
            values = [
                force.getGlobalParameterDefaultValue(k)
                for k in range(force.getNumGlobalParameters())
            ]
        xml = openmm.XmlSerializer.serialize(force).encode()
        text = library.recognise(
            xml, (ctypes.c_double * len(values))(*values), len(values)
        ).decode()
        obstacle, *lists, functions = text.splitlines()
        types, *coefficients = (np.array(line.split(), float) for line in lists)
        count = int(max(types, default=-1)) + 1
        a, b = (values.reshape(count, count) for values in coefficients)
        return Found(obstacle, types.astype(int).tolist(), a, b, functions)

    return of


def pair_function(functions, folder, real="double"):
    """Slope and energy of a pair at a distance, as `kernels/pairs/pair.cuh` computes them."""
    macros = {"REAL": real, "TYPES": 1, "SWITCHED": 0} | (
        {"PAIR_FUNCTIONS": functions} if functions else {}
    )
    text = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    text += f'#include "{HERE.parent / "pair.cpp"}"\n'
    includes = f"-I{HERE.parent / 'emulator'}", f"-I{kernel_folder()}"
    library = compiler.library(folder, "pair", "-O1", "-w", *includes, text=text)

    def of(r, a, b):
        found = (ctypes.c_double * 2)()
        scale = (1, 1) if functions else (12, 6)
        library.pair(*map(ctypes.c_double, (r * r, scale[0] * a, scale[1] * b)), found)
        return -found[0] * r, found[1]

    return of


def references(energy, particles, values=()):
    """Two particles, a distance, and slope and energy of the pair by the Reference platform."""
    for i, j in combinations_with_replacement(range(len(particles)), 2):
        system, force = openmm.System(), force_of(energy, [particles[i], particles[j]])
        for _ in range(2):
            system.addParticle(1.0)
        system.addForce(force)
        context = openmm.Context(
            system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
        )
        for k, value in enumerate(values):
            context.setParameter(force.getGlobalParameterName(k), value)
        for r in DISTANCES:
            context.setPositions([[0, 0, 0], [r, 0, 0]])
            state = context.getState(energy=True, forces=True)
            yield (
                i,
                j,
                r,
                -state.getForces(asNumpy=True)._value[1, 0],
                state.getPotentialEnergy()._value,
            )


def check(found, energy, folder, values=(), real="double", accuracy=1e-11):
    assert found.obstacle == ""
    types, pair = found.types, pair_function(found.functions, folder, real)
    for i, j, r, slope, exact in references(energy, PARTICLES, values):
        if types[i] < 0 or types[j] < 0:
            assert exact == slope == 0
            continue
        coefficients = found.a[types[i], types[j]], found.b[types[i], types[j]]
        tolerance = accuracy * (abs(exact) + r * abs(slope) + 5e-4)
        assert pair(r, *coefficients) == pytest.approx((slope, exact), rel=0, abs=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name, recognise, folder):
    found = recognise(force_of(ACCEPTED[name]))
    assert found.functions
    check(found, ACCEPTED[name], folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["force switch", "force switch, NBFIX", "force switch of GROMACS", "one exponent"]
)
def test_in_single_precision(name, recognise, folder):
    check(recognise(force_of(ACCEPTED[name])), ACCEPTED[name], folder, real="float", accuracy=3e-5)


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason, recognise):
    assert recognise(force_of(REFUSED[reason])).obstacle.startswith(
        f"its energy is not A f(r) - B g(r): {reason}"
    )


@pytest.mark.parametrize("function", ["on*log(on)+1/r", "log(on)/r", "r^sqrt(on-1)"])
def test_numbers_that_are_not_finite(function, recognise):
    """Global parameters may make them so at any time."""
    force = force_of(f"epsilon1*epsilon2*({function}); off = 1.2")
    assert recognise(force).obstacle == ""
    assert recognise(force, 0.0).obstacle == "a number in its energy is not finite"


@pytest.mark.slow
@pytest.mark.parametrize(
    "energy",
    [
        "select(on, epsilon1*epsilon2/(on*r), 0)",
        "epsilon1*epsilon2*(select(step(on-1e-9), log(on)/r, exp(-r)) + on*sqrt(r))",
        "epsilon1*epsilon2*select(on, log(on)/r, select(off, 1/r^3, 1/off))",
    ],
)
def test_a_branch_that_is_not_taken_may_be_infinite(energy, recognise, folder):
    check(recognise(force_of(energy), 0.0, 1.2), energy, folder, (0.0, 1.2))


@pytest.mark.slow
def test_a_branch_of_other_types_may_not_be_a_number(recognise, folder):
    energy = "select(delta(type1*type2-2), acoef(type1,type2)*log(r-0.4), bcoef(type1,type2)/r^8)"
    found = recognise(force_of(energy))
    pair = pair_function(found.functions, folder)
    for i, j, r, slope, exact in references(energy, PARTICLES):
        types = found.types[i], found.types[j]
        assert pair(r, found.a[types], found.b[types]) == pytest.approx(
            (slope, exact), rel=1e-9, nan_ok=True
        )
        assert np.isnan(exact) == (sorted(types) == [1, 2] and r < 0.4)


@pytest.mark.parametrize(
    "energy",
    [
        "acoef(type1, type2)/r^12 - bcoef(type1, type2)/r^6;" + LIMITS,
        "(acoef(type1, type2)/r6)^2 - bcoef(type1, type2)/r6; r6 = r^6;" + LIMITS,
        "4*epsilon*((sigma/r)^12-(sigma/r)^6);" + LIMITS + LORENTZ,
        "on*4*epsilon*((sigma/r)^12-(sigma/r)^6);" + LORENTZ,
        "select(step(off-1), on, 1)*(acoef(type1, type2)/r^12 - bcoef(type1, type2)/r^6)",
    ],
)
def test_lennard_jones_is_distinguished_from_other_energies(energy, recognise, folder):
    """Lennard-Jones needs no source, and a global parameter that scales it does not change that."""
    values = (0.3, 1.1) if force_of(energy).getNumGlobalParameters() else ()
    found = recognise(force_of(energy), *values)
    assert not found.functions
    check(found, energy, folder, values)


@pytest.mark.parametrize(
    "factor", ["(1+5/(1+((r-0.5)/0.001)^8))", "(1+on/(1+((r-0.5)/0.005)^8))", "(1+(r/50)^24)"]
)
def test_lennard_jones_times_what_is_one_at_most_distances(factor, recognise, folder):
    """Sampling the energy at distances could not distinguish it from Lennard-Jones."""
    energy = f"4*epsilon*((sigma/r)^12-(sigma/r)^6)*{factor};" + LORENTZ
    found = recognise(force_of(energy), *(5.0, 1.2)[: force_of(energy).getNumGlobalParameters()])
    assert found.functions
    check(found, energy, folder, (5.0, 1.2)[: force_of(energy).getNumGlobalParameters()])


def test_no_class_whose_layout_depends_on_how_openmm_was_built():
    """Lepton's compiled expressions have members of a just-in-time compiler, or have not."""
    assert not [
        path.name
        for path in PLUGIN.parent.glob("*/*.cpp")
        if "Compiled" in path.read_text(encoding="utf-8")
    ]


@pytest.mark.slow
def test_global_parameters_are_followed(recognise, folder):
    energy = FORCE_SWITCH + MIXED
    tables = []
    for values in ((1.0, 1.2), (0.7, 1.2), (0.9, 1.1)):
        found = recognise(force_of(energy), *values)
        check(found, energy, folder, values)
        tables.append(found.a.tolist())
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_refusals_do_not_depend_on_global_parameters(value, recognise):
    """A soft core is Lennard-Jones at the end of its path."""
    energy = "4*on*epsilon*x*(x-1); x = 1/(0.5*(1-on)+(r/sigma)^6);" + LORENTZ
    assert (
        "`recip` takes parameters of particles together"
        in recognise(force_of(energy), value, 1.2).obstacle
    )


def test_nothing_interacts(recognise):
    found = recognise(force_of(FORCE_SWITCH + MIXED + LIMITS, [(0.1, 0.0, 0), (0.2, 0.0, 1)]))
    assert not found.obstacle
    assert found.types == [-1, -1]


def groups(force):
    force.addInteractionGroup([0], [1])


def derivatives(force):
    force.addEnergyParameterDerivative("on")


def computed(force):
    force.addComputedValue("reach", "sigma")


def corrected(force):
    force.setNonbondedMethod(force.CutoffPeriodic)
    force.setUseLongRangeCorrection(True)


def many(force):
    for k in range(300):
        force.addParticle([0.1 + 1e-3 * k, 1.0, 0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (groups, "it has interaction groups"),
        (derivatives, "it has derivatives with respect to global parameters"),
        (computed, "it has computed values"),
        (corrected, "it has a long-range correction, and its energy is not A/r^12 - B/r^6"),
        (many, "its particles have more than 300 sets of parameters"),
    ],
)
def test_other_obstacles(change, reason, recognise):
    force = force_of(FORCE_SWITCH + MIXED)
    change(force)
    assert recognise(force).obstacle == reason
