"""Choice between the plugin, which computes Lennard-Jones pairs among their sites, and OpenMM,
which computes them among all particles, for Contexts with an FMMForce.

OpenMM lists pairs of all particles. Without Coulomb only particles with a Lennard-Jones interaction
need them, the sites: in three-site water the oxygens. The plugin calls :func:`claim` for every
NonbondedForce and CustomNonbondedForce of such a Context on the CUDA platform, and :func:`program`
for the program of a force that it computes.
"""

import ctypes
from dataclasses import dataclass

import numpy as np

from fmm_openmm.backends.cuda.abi import Pairs, Place, Sites
from fmm_openmm.backends.cuda.pairs import lennard_jones
from fmm_openmm.backends.cuda.serial import serialise
from fmm_openmm.integration.identity import Bridge, bridge_in

SITES_WITHOUT_CUTOFF = 0.7
"""Largest fraction of sites at which all pairs of sites, each computed twice, are fewer than all
pairs of particles, each computed once."""


@dataclass(frozen=True)
class Decision:
    """Implementation of the pairs of a force, and the reason.

    Attributes:
        context: address of the Context.
        among_sites: whether the plugin computes the pairs.
        reason: for messages.
        force: identity of the first FMMForce of the Context; empty if there is none.
    """

    context: int
    among_sites: bool
    reason: str
    force: str


_decisions: dict[int, Decision] = {}
"""Decisions by the address of the plugin's claim."""

close = _decisions.pop


def bridge_of(pairs: Pairs) -> Bridge | None:
    """The bridge of the first FMMForce of the Context; None if there is none."""
    texts = (
        ctypes.string_at(pairs.pickled[k], pairs.sizes[k])
        for k in range(pairs.count)
        if pairs.sizes[k]
    )
    return next((bridge for bridge in map(bridge_in, texts) if bridge is not None), None)


def decide(choice: str, pairs: Pairs) -> tuple[bool, str]:
    """Whether the plugin is to compute the pairs of a force, and the reason.

    Args:
        choice: "auto", "sites" or "openmm".
        pairs: description of the force.
    """
    force, obstacle = pairs.force.decode(), pairs.obstacle.decode()
    if choice == "openmm":
        return False, "it was asked for"
    if obstacle:
        return False, f"{force}: {obstacle}"
    if choice == "auto" and pairs.sites:
        if pairs.companion:
            return (
                False,
                f"{pairs.companion.decode()} has OpenMM list the pairs of all particles anyway",
            )
        if not pairs.limited and pairs.sites > SITES_WITHOUT_CUTOFF * pairs.particles:
            return False, f"{force}: without a cutoff, too many of its particles are sites"
    return True, f"{pairs.sites:,} of {pairs.particles:,} particles are sites"


def claim(kernel: int, pairs: Pairs, bridge: Bridge | None) -> bool:
    """Whether the plugin is to compute the pairs of a force in a Context with the given bridge. The
    decision is recorded until :func:`close`.

    Raises:
        ValueError: "sites" is requested, but impossible.
    """
    options = bridge.definition.options if bridge else None
    if options is None:
        among_sites, reason = False, "there is no FMMForce"
    elif options.bridge == "host" or not options.on_gpu:
        among_sites, reason = False, "the FMMForce uses the host bridge"
    else:
        among_sites, reason = decide(options.lennard_jones, pairs)
    _decisions[kernel] = Decision(pairs.context, among_sites, reason, bridge.uid if bridge else "")
    if options and options.lennard_jones == "sites" and not among_sites:
        raise ValueError(f"`lennard_jones='sites'` is not possible: {reason}")
    return among_sites


def status(context) -> tuple[str, str]:
    """ "sites" if the plugin computes all pairs of a Context with an FMMForce, else "openmm"; and
    the reason."""
    name = context.getPlatform().getName()
    if name != "CUDA":
        return "openmm", f"the Context is on the {name} platform"
    found = [
        decision for decision in list(_decisions.values()) if decision.context == int(context.this)
    ]
    if not found:
        return "openmm", "the Context has no Lennard-Jones interaction that the plugin knows"
    # a Context whose creation failed may have had this address: OpenMM never deletes its kernels
    found = [decision for decision in found if decision.force == found[-1].force]
    left = [decision for decision in found if not decision.among_sites]
    reasons = dict.fromkeys(decision.reason for decision in left or found)
    return "openmm" if left else "sites", "; ".join(reasons)


def program(sites: Sites, place: Place) -> bytes:
    """The serialised program for the pairs of sites."""
    box = np.array(sites.box).reshape(3, 3)
    described = lennard_jones.Sites(
        sites.number,
        sites.types,
        sites.partners,
        sites.cutoff or None,
        sites.switching or None,
        box if box.any() else None,
        sites.radius,
        bool(sites.deterministic),
        sites.entries,
        sites.masked,
        place.energies,
        (sites.functions or b"").decode(),
        bool(sites.shared),
    )
    return serialise(lennard_jones.build(described, place.device, place.interface))
