"""Values of the options ``m2l`` and ``method``, and the places of their implementations, given as
text so that a module is imported only when it is used.

The implementations in ``fmm_openmm.literature`` exist for comparison; to request them is
deprecated.
"""

from importlib import import_module

from fmm_openmm.errors import UnsupportedError, warn

M2L = {
    "p4": {
        "reference": "expansions.translations:P4",
        "cpu": "backends.cpu.m2l:P4",
        "cuda": "literature.operators.p4:P4",
    },
    "p4_dynamic": {"cuda": "literature.operators.p4:P4Dynamic"},
    "p4_symmetric": {"cuda": "literature.operators.mirrored:P4Symmetric"},
    "p4_parity": {"cuda": "literature.operators.mirrored:P4Parity"},
    "rotation": {
        "reference": "expansions.translations:ByRotation",
        "cpu": "backends.cpu.m2l:ROTATION",
        "cuda": "backends.cuda.pipeline.m2l:ByRotation",
    },
}
"""Operators between the boxes of levels, by backend."""

SUMS = {
    "direct": {
        "parameters": "sums:direct_parameters",
        "cpu": "backends.cpu.direct:DirectSum",
        "cuda": "backends.cuda.direct:DirectSum",
    },
    "treecode": {
        "parameters": "literature.treecode:parameters",
        "cpu": "literature.treecode.cpu:Treecode",
        "cuda": "literature.treecode.cuda:Treecode",
    },
}
"""Methods without boxes, for free space: the function that chooses their parameters, and the
implementations by backend."""

METHODS = ("fmm", *SUMS)


def names(table: dict, backend: str) -> list[str]:
    """Names of the entries that a backend implements."""
    return [name for name, places in table.items() if backend in places]


def warn_if_literature(option: str, table: dict, name: str, backend: str, instead: str) -> None:
    """Warn with a ``DeprecationWarning`` if the option names an implementation of the
    literature."""
    if table[name][backend].startswith("literature."):
        warn(
            f"`{option}={name!r}` with `backend={backend!r}` is deprecated, as it is a study of "
            f"the literature that `fmm-openmm bench` compares with: use {instead!r}",
            DeprecationWarning,
        )


def implementation(table: dict, name: str, backend: str):
    """The implementation of an entry on a backend."""
    module, _, attribute = table[name][backend].partition(":")
    return getattr(import_module(f"{__package__}.{module}"), attribute)


def check_method(method: str, boundary: str, is_open: bool, backend: str) -> None:
    """Refuse arguments that a method without boxes does not support."""
    if not is_open:
        raise UnsupportedError(f"`method={method!r}` needs `boundary='open'`, got {boundary!r}")
    if backend == "reference":
        raise UnsupportedError(
            f"`method={method!r}` is not available with `backend='reference'`: use 'cpu' or 'cuda'"
        )


def check_m2l(m2l: str, backend: str) -> None:
    """Refuse an operator that the backend does not implement; warn about one of the literature."""
    if backend not in M2L[m2l]:
        raise UnsupportedError(
            f"`m2l={m2l!r}` needs `backend='cuda'`, got {backend!r}: use 'p4' or 'rotation'"
        )
    warn_if_literature("m2l", M2L, m2l, backend, "rotation")
