"""XML of Systems and States with an FMMForce, independent of the process that writes it.

The pickle of a force contains the identity of its callable
(:mod:`fmm_openmm.integration.identity`), so that serialisations of equal Systems would differ. A
State identifies the charges of its Context (:mod:`fmm_openmm.integration.snapshots`) by a parameter
that a Context with PME lacks. The methods of OpenMM that write XML or load a State are therefore
wrapped when ``fmm_openmm.integration`` is imported, which every FMMForce causes.
"""

import re

import openmm

from fmm_openmm.integration.guard.wrapping import wrap
from fmm_openmm.integration.identity import without_identities
from fmm_openmm.integration.snapshots import REVISION

_MARK = "_fmm_openmm_xml"
"""Attribute of a wrapper that :func:`install` has put in place."""


def install() -> None:
    """Wrap OpenMM's methods. Further calls have no effect."""
    wrap(openmm.XmlSerializer, "serializeSystem", _written(without_identities), _MARK)
    wrap(openmm.XmlSerializer, "_serializeForce", _written(without_identities), _MARK)
    wrap(openmm.XmlSerializer, "_serializeState", _written(_without_zero), _MARK)
    wrap(openmm.Context, "setState", _loading, _MARK)


def _written(change):
    """Wrapper that applies a change to the text that a method returns."""
    return lambda plain: lambda item: change(plain(item))


def _without_zero(text: str) -> str:
    """Text of a State without the parameter if it is 0, so that a Context with PME can load it."""
    return text.replace(f' {REVISION}="0"', "", 1)


def _loading(plain):
    """Wrapper of ``Context.setState``."""

    def set_state(self, state):
        present = dict(self.getParameters()).get(REVISION)
        try:
            plain(self, state)
        except openmm.OpenMMException as error:
            if present is not None or REVISION not in str(error):
                raise
            text = openmm.XmlSerializer.serialize(state)
            text = re.sub(rf' {REVISION}="[^"]*"', "", text, count=1)
            plain(self, openmm.XmlSerializer.deserialize(text))
        if present and not self.getParameter(REVISION):
            # the State identifies no charges, as States from XML or PME do not
            self.setParameter(REVISION, present)

    return set_state
