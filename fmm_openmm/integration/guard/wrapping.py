"""Wrapping of OpenMM's methods."""

import functools
import inspect


def wrap(owner: type, name: str, wrapper, mark: str) -> None:
    """Replace a method, static or not, by ``wrapper(method)``, unless it is wrapped already.

    Args:
        owner: class of the method.
        name: name of the method.
        wrapper: returns the replacement.
        mark: attribute of the replacement that holds the original method.
    """
    method = getattr(owner, name)
    if hasattr(method, mark):
        return
    wrapped = functools.wraps(method)(wrapper(method))
    setattr(wrapped, mark, method)
    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)
