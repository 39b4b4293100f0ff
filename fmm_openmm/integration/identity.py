"""Identification of the callable of a PythonForce from its pickle, and the live callables.

The pickle consists of the text of a loader, the identity, and the definition as text
(:meth:`fmm_openmm.integration.definition.Definition.pack`). It therefore does not depend on the
classes of this package, and :func:`content_in` reads it without executing it.
"""

import inspect
import io
import pickle
import pickletools
import re
import weakref
import xml.etree.ElementTree as ET
from typing import Any, Protocol

import numpy as np
import openmm

from fmm_openmm.integration.definition import Definition, Structure, content_of

IDENTITY = "fmm_openmm callable "
"""Prefix of every identity; 32 hexadecimal digits follow."""

_IDENTITY_IN_XML = re.compile(f"({IDENTITY.encode().hex()})(?:3[0-9]|6[1-6]){{32}}")
"""An identity in XML, where the bytes of a pickle are hexadecimal digits."""

LOADER = """
try:
    from fmm_openmm.integration.bridge import revive
    made = revive(uid, packed)
except Exception as error:
    text = f"the System holds an FMMForce, but fmm_openmm cannot be loaded here: {error}"
    def made(state):
        raise ImportError(text)
"""
"""Code that unpickles a bridge. It must not fail, because OpenMM 8.6 treats a callable that cannot
be unpickled as valid: reading the XML of a System without fmm_openmm installed would end the
process."""


SOURCE = "exec(loader) or made"
"""Expression that runs the loader and returns its callable."""


class Bridge(Protocol):
    """Interface of the package's callables."""

    uid: str
    snapshots: Any
    is_unpickled: bool

    @property
    def definition(self) -> Definition:
        """Definition of the force."""

    def release(self) -> None:
        """Release everything that can be restored from the packed definition."""

    def parameters_in(self, values) -> Any:
        """Parameters that a Context with the given global parameters uses."""

    def fix_structure(self) -> Structure:
        """Freeze and return the structure that Contexts use."""

    def inputs(self, values) -> tuple[np.ndarray, Structure]:
        """Charges, shape (n,), e, and structure for a Context with the given global parameters."""


live: weakref.WeakValueDictionary[str, Bridge] = weakref.WeakValueDictionary()
"""Callables of this process by identity."""


def bridge_of(force: openmm.PythonForce) -> Bridge | None:
    """The live callable of a force; None if the force is not an FMMForce."""
    try:
        # OpenMM's original method, whose text contains identities
        text = inspect.unwrap(openmm.XmlSerializer._serializeForce)(force)
        node = ET.fromstring(text)
    except openmm.OpenMMException:  # a foreign callable that cannot be pickled
        return None
    return bridge_in(bytes.fromhex(node.get("function", "")))


def without_identities(text: str) -> str:
    """XML with identities of callables zeroed, so that equal forces have equal texts."""
    return _IDENTITY_IN_XML.sub(r"\g<1>" + "30" * 32, text)


def bridge_in(pickled: bytes) -> Bridge | None:
    """The live callable with this pickle; None if it is not one of the package."""
    names = _names_in(pickled)
    return live.get(names["uid"]) if names else None


def content_in(attributes) -> dict | None:
    """:func:`content_of` the FMMForce of an XML element with these attributes; None for another
    force. Unlike ``XmlSerializer.deserialize`` it executes nothing from the file.
    """
    if attributes.get("type") != "PythonForce":
        return None
    names = _names_in(bytes.fromhex(attributes.get("function", "")))
    return names and content_of(names["packed"])


def _names_in(pickled: bytes) -> dict | None:
    """``uid`` and ``packed`` in the pickle of a bridge; None unless it is exactly that."""
    reader = _Reader(io.BytesIO(pickled))
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            # a large index into the unpickler's memo would allocate all entries below it
            if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(pickled):
                return None
        return reader.names if reader.load() is reader else None
    except Exception:
        return None


class _Reader(pickle.Unpickler):
    """Parses the pickle of a bridge and refuses to load anything else.

    ``load`` returns the reader itself if the last call in the pickle is that of the loader.
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
