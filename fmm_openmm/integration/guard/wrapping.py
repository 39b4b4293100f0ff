"""Methods of OpenMM that run in wrappers of this package."""

import functools
import inspect


def wrap(owner: type, name: str, wrapper, mark: str) -> None:
    """Put ``wrapper(method)`` in the place of a method, static or not; once.

    Args:
        mark: attribute of the new method that is the one before, by which the second time is told.
    """
    method = getattr(owner, name)
    if hasattr(method, mark):
        return
    wrapped = functools.wraps(method)(wrapper(method))
    setattr(wrapped, mark, method)
    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)
