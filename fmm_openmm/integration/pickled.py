"""Replacement of the pickle in a C++ ``PythonForce`` that a System owns.

``PythonForce::setPickledFunction`` is public in C++ but not wrapped for Python. Without it the XML
and copies of a System would lack charges that were changed after ``system.addForce(force)``.
"""

import ctypes
import functools

import openmm

_SYMBOL = "_ZN6OpenMM11PythonForce18setPickledFunctionEPci"


@functools.cache
def _setter():
    try:
        function = ctypes.PyDLL(openmm._openmm.__file__)[_SYMBOL]
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    function.restype = None
    return function


def replace_pickle(force: openmm.PythonForce, data: bytes) -> bool:
    """Set the data by which the force is serialised and copied; returns False if this build of
    OpenMM does not export the function."""
    setter = _setter()
    if setter is not None:
        setter(int(force.this), data, len(data))
    return setter is not None
