"""Options as rows of a table, and functions that take them as keywords.

A row is a field of a dataclass, made by :func:`option`: its name, type, default, text and check.
:func:`check_options` checks values by it, :func:`suggests_keywords` gives a function its signature
and docstring, and the command line its arguments. Type checkers read no table, so a ``TypedDict``
next to the dataclass repeats names and types; a test compares the two.
"""

import argparse
import difflib
import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar, overload

from fmm_openmm.checks import check_choice, check_flag, check_integer, check_number

SIMILAR = 0.65
"""Least ``difflib`` ratio of a keyword that may have been meant: "tolerence" has 0.89, "bridge"
for "grid" 0.6."""

LINE = 100
"""Columns of a docstring."""

Documented = TypeVar("Documented", bound=Callable)


def option(
    default,
    text: str,
    details: str = "",
    *,
    kind: type = str,
    limits: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[Any], object] | None = None,
    only_in_context: bool = False,
    **argument,
) -> Any:
    """A field of a dataclass of options.

    Args:
        default: default value. If it is None, None is a valid value.
        text: description in docstrings and in the help of the command line.
        details: continuation of the description in docstrings.
        kind: float, int, str or bool.
        limits: smallest and largest valid number.
        choices: valid strings.
        check: raises an error for an invalid value, in addition to limits and choices.
        only_in_context: whether the option has no meaning for a solver outside OpenMM.
        argument: arguments of ``argparse``, which replace those made from the row.
    """

    def check_value(value, name: str) -> None:
        if choices:
            check_choice(value, choices, name)
        if limits:
            (check_integer if kind is int else check_number)(value, name, *limits)  # type: ignore[arg-type]
        if kind is bool:
            check_flag(value, name)
        if check:
            check(value)

    keywords: dict[str, Any] = {"help": text if default is None else f"{text} (default: {default})"}
    if kind is bool:  # None unless it is given
        keywords |= {"action": argparse.BooleanOptionalAction, "default": None}
    else:
        keywords |= {"type": kind}
    keywords |= {"choices": choices} if choices else {}
    names = " or ".join(", ".join(f'"{each}"' for each in choices).rsplit(", ", 1))
    metadata = {
        "text": f"{names}: {text}{details}." if names else f"{text}{details}.",
        "check": check_value,
        "only_in_context": only_in_context,
        "argument": keywords | argument,
    }
    return field(default=default, metadata=metadata)


def check_options(options) -> None:
    """Check the fields of a dataclass of options.

    Raises:
        ValueError, TypeError: a value is invalid; the message names option and value.
    """
    for row in fields(options):
        value = getattr(options, row.name)
        if value is not None or row.default is not None:
            row.metadata["check"](value, row.name)


@overload
def suggests_keywords(function: Documented) -> Documented: ...
@overload
def suggests_keywords(
    *, like: Callable, without: tuple[str, ...] = ()
) -> Callable[[Documented], Documented]: ...
def suggests_keywords(
    function: Callable | None = None, *, like: Callable | None = None, without: tuple[str, ...] = ()
) -> Callable:
    """Decorate ``function`` so that an unknown keyword raises a ``TypeError`` with the closest one
    it has.

    Python itself does so from 3.13 on, and not for what a function hands on as ``**options``.

    Args:
        function: what is decorated. Its signature and docstring stay, but for ``**options``.
        like: a function or class whose keywords ``**options`` of ``function`` stands for; they
            become part of the signature, as keywords only, and, of a dataclass of options, part of
            the docstring, see :func:`lists_options`.
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

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return lists_options(like, without)(checked) if is_dataclass(like) else checked


def lists_options(like: type, without: tuple[str, ...] = ()) -> Callable[[Documented], Documented]:
    """Decorate a function or class: in its docstring the entry ``options`` is replaced by the
    options of the dataclass ``like`` that have no entry of their own.

    Args:
        like: a dataclass of options.
        without: options that are left out.
    """

    def decorated(documented: Documented) -> Documented:
        text = documented.__doc__ or ""
        entry = re.search(r"^( *)options:.*\n(?:\1 +.*\n)*", text, re.MULTILINE)
        if entry:
            own = (*without, *re.findall(rf"^{entry[1]}(\w+):", text, re.MULTILINE))
            rows = "\n".join(
                textwrap.fill(
                    f"{row.name}: {row.metadata['text']}",
                    LINE,
                    initial_indent=entry[1],
                    subsequent_indent=entry[1] + "    ",
                    break_on_hyphens=False,
                )
                for row in fields(like)
                if row.name not in own
            )
            documented.__doc__ = f"{text[: entry.start()]}{rows}\n{text[entry.end() :]}"
        return documented

    return decorated


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
