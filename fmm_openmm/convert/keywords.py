"""Misspelt keywords of public functions: an error that names the function and the
keyword that was meant."""

import difflib
import functools
import inspect
from collections.abc import Callable

SIMILAR = 0.65
"""Least ``difflib`` ratio of a keyword that may have been meant: "tolerence" has 0.89, "bridge"
for "grid" 0.6."""


def suggests_keywords(
    function: Callable | None = None, *, like: Callable | None = None, without: tuple[str, ...] = ()
) -> Callable:
    """Decorate ``function`` so that an unknown keyword raises a ``TypeError`` with the closest one
    it has.

    Python itself does so from 3.13 on, and not for what a function hands on as ``**options``.

    Args:
        function: what is decorated. Its signature and docstring stay.
        like: a function or class whose keywords ``**options`` of ``function`` stands for; they
            become part of the signature, as keywords only.
        without: parameters of ``like`` that ``function`` sets itself.

    Raises:
        TypeError: by the decorated function, before it is called.

    Example:
        >>> @suggests_keywords
        ... def solve(*, tolerance=1e-4):
        ...     return tolerance
        >>> solve(tolerence=1e-6)
        Traceback (most recent call last):
        TypeError: solve() got an unexpected keyword argument 'tolerence': did you mean `tolerance`?
    """
    if function is None:
        return functools.partial(suggests_keywords, like=like, without=without)
    signature = inspect.signature(function)
    if like is not None:
        signature = _with_keywords_of(signature, like, without)
    known = [
        name
        for name, one in signature.parameters.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    known = [name for name in known if name not in ("self", "cls")]
    called = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args, **keywords):
        for name in keywords:
            if name not in known:
                raise TypeError(
                    f"{called}() got an unexpected keyword argument {name!r}: {_hint(name, known)}"
                )
        return function(*args, **keywords)

    checked.__signature__ = signature
    return checked


def _with_keywords_of(
    signature: inspect.Signature, like: Callable, without: tuple[str, ...]
) -> inspect.Signature:
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    added = [
        one
        for one in inspect.signature(like).parameters.values()
        if one.name not in (*without, *signature.parameters)
    ]
    added = [
        one.replace(kind=one.KEYWORD_ONLY)
        for one in added
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    return signature.replace(parameters=[*own, *added])


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, 1, SIMILAR)
    return f"did you mean `{close[0]}`?" if close else f"its keywords are {', '.join(known)}"
