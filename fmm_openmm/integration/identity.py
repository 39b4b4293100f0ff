"""Which callable a PythonForce holds: what its pickle tells, and the callables that are alive.

All that such a pickle holds is the text of a loader, the identity, and the definition as text
(:meth:`fmm_openmm.integration.definition.Definition.pack`). So it does not depend on the classes of
this package, and :func:`content_in` reads it without running anything of it.
"""

import inspect
import io
import pickle
import pickletools
import re
import weakref
import xml.etree.ElementTree as ET
from typing import Protocol

import numpy as np
import openmm

from fmm_openmm.integration.definition import Definition, Structure, content_of

IDENTITY = "fmm_openmm callable "
"""How every identity starts; 32 hexadecimal digits follow."""

_IDENTITY_IN_XML = re.compile(f"({IDENTITY.encode().hex()})(?:3[0-9]|6[1-6]){{32}}")
"""An identity where XML has the bytes of a pickle in hexadecimal digits."""

LOADER = """
try:
    from fmm_openmm.integration.bridge import revive
    made = revive(uid, packed)
except Exception as error:
    text = f"the System holds an FMMForce, but fmm_openmm cannot be loaded here: {error}"
    def made(state):
        raise ImportError(text)
"""
"""What unpickles a bridge. It must not fail: OpenMM 8.6 takes a callable that cannot be
unpickled for a valid one, and the process would die of reading a System's XML where fmm_openmm
is not installed."""


SOURCE = "exec(loader) or made"
"""What evaluates the loader, to the callable that it made."""


class Bridge(Protocol):
    """A callable of this package, as its readers know it."""

    uid: str
    definition: Definition

    def fix_structure(self) -> Structure:
        """What Contexts use from now on."""

    def inputs(self, values) -> tuple[np.ndarray, Structure]:
        """Charges, shape (n,), e, and structure of the Context that has these global
        parameters."""


live: weakref.WeakValueDictionary[str, Bridge] = weakref.WeakValueDictionary()
"""The callables of this process by their identity."""


def bridge_of(force: openmm.PythonForce) -> Bridge | None:
    """The live callable of a force, wherever it came from; None if it is not ours."""
    try:
        # OpenMM's own method, whose text has identities
        text = inspect.unwrap(openmm.XmlSerializer._serializeForce)(force)
        node = ET.fromstring(text)
    except openmm.OpenMMException:  # the callable of somebody else, which cannot be pickled
        return None
    return bridge_in(bytes.fromhex(node.get("function")))


def without_identities(text: str) -> str:
    """XML without the identities of callables, so that equal forces have equal texts."""
    return _IDENTITY_IN_XML.sub(r"\g<1>" + "30" * 32, text)


def bridge_in(pickled: bytes) -> Bridge | None:
    """The live callable that a PythonForce holds this pickle of; None if it is not ours."""
    names = _names_in(pickled)
    return names and live.get(names["uid"])


def content_in(attributes) -> dict | None:
    """What defines the FMMForce of an XML element with these attributes, as :func:`content_of`
    returns it; None if it is another force.

    Nothing of the file is run, as ``XmlSerializer.deserialize`` would.
    """
    if attributes.get("type") != "PythonForce":
        return None
    names = _names_in(bytes.fromhex(attributes.get("function", "")))
    return names and content_of(names["packed"])


def _names_in(pickled: bytes) -> dict | None:
    """``uid`` and ``packed`` in the pickle of a bridge; None unless it is one, letter by letter."""
    reader = _Reader(io.BytesIO(pickled))
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            # places in the unpickler's memory, which would reserve all below it
            if opcode.name in ("PUT", "LONG_BINPUT") and argument > len(pickled):
                return None
        return reader.names if reader.load() is reader else None
    except Exception:
        return None


class _Reader(pickle.Unpickler):
    """Takes the pickle of a bridge apart, and refuses to load anything else.

    ``load`` returns the reader itself where the last that was called is what calls the loader.
    """

    names: dict | None = None

    def find_class(self, module, name):
        if (module, name) == ("builtins", "eval"):
            return self._evaluate
        raise pickle.UnpicklingError(f"{module}.{name} is not a bridge")

    def _evaluate(self, source, names):
        if source != SOURCE or names["loader"] != LOADER or names.keys() != _NAMES:
            raise pickle.UnpicklingError("not a bridge")
        self.names = {name: names[name] for name in ("uid", "packed")}
        return self


_NAMES = {"loader", "uid", "packed"}
