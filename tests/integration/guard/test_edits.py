"""check_system: edits after use_fmm that make energies wrong are refused."""

import copy
import functools

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.integration.guard.edits import first_in_one_only
from tests.integration.boxes import energy_of
from tests.integration.guard.edited_systems import (
    BONDS,
    COULOMB_BOND,
    EVERY,
    LIGAND,
    PAIRS,
    REMEDY,
    SHIFTED,
    SOFT,
    WAYS,
    a_few_values,
    bonds_of,
    both,
    charge,
    charge_offset,
    direct_space,
    electric_field,
    exception,
    exception_of_another_pair,
    generalized_born,
    images_of_both,
    images_of_exceptions,
    implicit_solvent,
    method,
    new_context,
    no_nonbonded_among_others,
    one_value,
    pairs_of,
    particle_everywhere,
    particle_of_nonbonded,
    particle_of_system,
    second_fmm,
    second_nonbonded,
    soft_charges,
)

EDITS = [
    (charge, r"^NonbondedForce 'NonbondedForce' has charges again, .* 0\.5 e for particle 3\. "),
    (
        charge_offset,
        r"^NonbondedForce 'NonbondedForce' has .*: parameter offset 0, "
        r"0\.5 e times 'alchemical' for particle 7\. ",
    ),
    (
        exception,
        r"^NonbondedForce 'NonbondedForce' has an exception for particles 4 and 170, "
        r"which the FMMForce does not exclude\. ",
    ),
    (
        exception_of_another_pair,
        r"has an exception for particles 0 and 100, which the FMMForce does not exclude\. ",
    ),
    (
        images_of_exceptions,
        r"^NonbondedForce 'NonbondedForce' evaluates its exceptions at the minimum image, but ",
    ),
    (direct_space, r"^NonbondedForce 'NonbondedForce' leaves out its direct space, which an FMM "),
    (
        particle_of_nonbonded,
        r"^NonbondedForce 'NonbondedForce' must have one particle for each of the "
        r"System's 176, got 177\. ",
    ),
    (
        particle_of_system,
        r"^FMMForce 'FMMForce' must have one particle for each of the System's 177, got 176\. ",
    ),
    (
        particle_everywhere,
        r"^FMMForce 'FMMForce' must have one particle for each of the System's 177, got 176\. ",
    ),
    (
        no_nonbonded_among_others,
        r"^the System holds 0 NonbondedForces, and FMMForce 'FMMForce' was made of one\. ",
    ),
    (
        second_nonbonded,
        r"^the System holds 2 NonbondedForces \('NonbondedForce', 'NonbondedForce'\), "
        r"and FMMForce 'FMMForce'",
    ),
    (
        soft_charges,
        r"^CustomNonbondedForce 'CustomNonbondedForce' has the charge of every particle at 0, "
        r"as in .*: it was",
    ),
    (implicit_solvent, r"^GBSAOBCForce 'GBSAOBCForce' has the charge of every particle at 0"),
    (generalized_born, r"^CustomGBForce 'CustomGBForce' has the charge of every particle at 0"),
    (
        electric_field,
        r"^CustomExternalForce 'CustomExternalForce' has the charge of every particle",
    ),
    (second_fmm, r"^the System holds 2 FMMForces made by fmm\.use_fmm\(system\) of one NonbondedF"),
    (method, r"^NonbondedForce 'NonbondedForce' uses PME, but .* had set CutoffPeriodic\. "),
    (
        functools.partial(method, name="NoCutoff"),
        r"^NonbondedForce 'NonbondedForce' uses NoCutoff, but .* had set CutoffPeriodic\. ",
    ),
    *((pairs_of(name), EVERY) for name in ("qq", "q_i", "chg", "partial_charge")),
    (pairs_of("qq", SOFT), EVERY),
    (pairs_of("qq", SHIFTED), EVERY),
    (pairs_of("qq", "138.9*{0}1*{0}2*erfc(3.2*r)/r+0*epsilon1"), EVERY),
    (pairs_of("qq", "1.77*{0}1*{0}2*exp(-r/0.8)/r+0*epsilon1"), EVERY),
    (pairs_of("qq", "138.9*{0}1*{0}2*(1/r-1/1.2)*step(1.2-r)+0*epsilon1"), EVERY),
    (pairs_of("qq", "on*138.9*{0}1*{0}2/r+0*epsilon1; on=step(epsilon1-0.5)"), EVERY),
    (pairs_of("qq", groups=LIGAND), EVERY),
    (pairs_of("qq", change=one_value), PAIRS.format("175 of 176 charged particles")),
    (pairs_of("qq", change=a_few_values), PAIRS.format("173 of 176 charged particles")),
    (bonds_of(["chg"], COULOMB_BOND), BONDS.format(20)),
    (bonds_of(["chg"], COULOMB_BOND, [(4, [0.1])]), BONDS.format(19)),
    (bonds_of(["a", "b"], "-138.935458*a*b*erf(3*r)/r"), BONDS.format(20)),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("edit", "text"), EDITS, ids=lambda one: getattr(one, "__name__", ""))
def test_an_edited_system_makes_no_context(chains, edit, text, way):
    fmm.use_fmm(chains.system)
    fmm.check_system(chains.system)
    edit(chains.system)
    system = WAYS[way](chains.system)
    for refuses in (fmm.check_system, new_context):
        with pytest.raises(fmm.UnsupportedError, match=text) as caught:
            refuses(system)
        assert edit in (second_fmm, direct_space) or caught.match(REMEDY)


@pytest.mark.parametrize("way", WAYS)
def test_an_edit_of_a_copy_is_found(chains, way):
    fmm.use_fmm(chains.system)
    system = WAYS[way](chains.system)
    exception(system)
    with pytest.raises(fmm.UnsupportedError, match="exception for particles 4 and 170"):
        new_context(system)


def test_an_exception_that_became_another(chains):
    """The FMM excludes both pairs now, and the NonbondedForce one of them."""
    force = fmm.use_fmm(chains.system)
    first, second = force.getExclusionParticles(0)
    exception_of_another_pair(chains.system)
    force.addExclusion(0, 100)
    with pytest.raises(
        fmm.UnsupportedError,
        match=f"has no exception for particles {first} and {second}, which the FMMForce excl",
    ):
        fmm.check_system(chains.system)


@pytest.mark.filterwarnings("ignore:an FMMForce was given other particles")
@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (both, "has an exception for particles 4 and 170"),
        (images_of_both, "evaluates its exceptions at the minimum image"),
    ],
)
def test_exclusions_of_a_force_in_use(chains, edit, text):
    """They do not change, also where the user has changed both forces; those of a copy do."""
    fmm.use_fmm(chains.system)
    context = chains.context()
    energy_of(context)
    edit(chains.system)
    text = f"^NonbondedForce 'NonbondedForce' {text}, which the FMMForce excludes only since"
    for refuses in (
        lambda: fmm.check_system(chains.system),
        lambda: new_context(chains.system),
        lambda: context.reinitialize(preserveState=True),
    ):
        with pytest.raises(fmm.UnsupportedError, match=text):
            refuses()
    fmm.check_system(copy.deepcopy(chains.system))


def test_pairs_in_either_order_are_the_same():
    pairs = np.array([[3, 1], [2**31 - 1, 0], [5, 6]], np.int32)
    assert first_in_one_only(pairs, pairs) is None
    assert first_in_one_only(pairs, pairs[::-1, ::-1].astype(np.int64)) is None
    assert first_in_one_only(pairs, pairs[[0, 2]]) == (0, 2**31 - 1)
    assert first_in_one_only(pairs[[0, 2]], pairs) is None
    assert first_in_one_only(pairs, np.empty((0, 2), np.int32)) == (1, 3)
    assert first_in_one_only(np.empty((0, 2), np.int32), pairs) is None


def test_the_remedy_works(chains):
    fmm.use_fmm(chains.system)
    fmm.restore_pme(chains.system)
    for edit in (charge, exception, particle_everywhere, soft_charges, charge_offset):
        edit(chains.system)
    fmm.use_fmm(chains.system)
    new_context(chains.system)
