"""Arrays and kernels as CuPy has them, on the host."""

import ctypes
from types import SimpleNamespace

import numpy as np

PASSED = {int: ctypes.c_longlong, float: ctypes.c_double}


class Buffer(np.ndarray):
    """An array whose address is where that of CuPy's arrays is."""

    data = property(lambda self: SimpleNamespace(ptr=self.ctypes.data))

    def set(self, values):
        self[...] = values

    def get(self):
        return np.array(self)


class Kernel:
    """A kernel of CuPy, compiled for the host."""

    def __init__(self, launcher):
        self._launcher, self.kernel = launcher, SimpleNamespace(ptr=id(self))
        launcher.restype = ctypes.c_char_p

    def __call__(self, grid, block, arguments):
        passed = [
            PASSED[type(each)](each)
            if type(each) in PASSED
            else ctypes.create_string_buffer(each.tobytes(), each.nbytes)
            for each in arguments
        ]
        self.run(*grid, *block, (ctypes.c_void_p * len(passed))(*map(ctypes.addressof, passed)))

    def run(self, *launch):
        """Run a number of blocks along each axis, of threads, with arguments at addresses."""
        fault = self._launcher(*launch)
        assert fault is None, fault.decode()


class Module:
    """A module of CuPy whose kernels are those of a library for the host."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library

    def get_function(self, name: str) -> Kernel:
        return Kernel(getattr(self._library, f"launch_{name}"))
