"""The exceptions the package raises beyond ``ValueError`` and ``TypeError``."""


class UnsupportedError(Exception):
    """A valid request, or a valid ``openmm.System``, that fmm_openmm does not support.

    The message names the force or option and says what to do instead. Raised before anything has changed.
    """
