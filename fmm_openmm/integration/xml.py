"""XML of Systems and States with an FMMForce: nothing is in it that only this process knows.

Inside a process the pickle of a force names its callable
(:mod:`fmm_openmm.integration.identity`), by which every serialisation of equal Systems would be
another text. A State names the charges of its Context (:mod:`fmm_openmm.integration.snapshots`) by
a parameter that a Context with PME lacks. So the methods of OpenMM that write XML or load a State
are wrapped when ``fmm_openmm.integration`` is imported, which every FMMForce does.
"""

import re

import openmm

from fmm_openmm.integration.guard.wrapping import wrap
from fmm_openmm.integration.identity import without_identities
from fmm_openmm.integration.snapshots import REVISION

_MARK = "_fmm_openmm_xml"
"""Attribute of a method that :func:`install` put in place."""


def install() -> None:
    """Wrap OpenMM's methods from now on; once is enough."""
    wrap(openmm.XmlSerializer, "serializeSystem", _written(without_identities), _MARK)
    wrap(openmm.XmlSerializer, "_serializeForce", _written(without_identities), _MARK)
    wrap(openmm.XmlSerializer, "_serializeState", _written(_without_zero), _MARK)
    wrap(openmm.Context, "setState", _loading, _MARK)


def _written(change):
    """The wrapper of a method whose text is changed."""
    return lambda plain: lambda item: change(plain(item))


def _without_zero(text: str) -> str:
    """The text of a State that names no charges, which OpenMM alone can load."""
    return text.replace(f' {REVISION}="0"', "", 1)


def _loading(plain):
    """The wrapper of ``Context.setState``."""

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
            # the State names no charges, as one from XML or of PME
            self.setParameter(REVISION, present)

    return set_state
