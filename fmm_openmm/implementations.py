"""What `m2l` and `method` may name, and where each is implemented: as text, so that nothing is
imported that nobody asks for.

What lies in ``fmm_openmm.literature`` is there to be compared with; to ask for it is deprecated.
"""

from importlib import import_module

M2L = {
    "p4": {
        "reference": "expansions.translations:P4",
        "cpu": "backends.cpu.m2l:P4",
        "cuda": "backends.cuda.pipeline.m2l:P4",
    },
    "p4_dynamic": {"cuda": "backends.cuda.pipeline.m2l:P4Dynamic"},
    "p4_symmetric": {"cuda": "backends.cuda.pipeline.m2l:P4Symmetric"},
    "p4_parity": {"cuda": "backends.cuda.pipeline.m2l:P4Parity"},
    "rotation": {
        "reference": "expansions.translations:ByRotation",
        "cpu": "backends.cpu.m2l:ROTATION",
        "cuda": "backends.cuda.pipeline.m2l:ByRotation",
    },
}
"""Operators between the boxes of levels, by backend."""

SUMS = {
    "direct": {"cpu": "backends.cpu.direct:DirectSum", "cuda": "backends.cuda.direct:DirectSum"},
    "treecode": {
        "cpu": "backends.cpu.treecode:Treecode",
        "cuda": "backends.cuda.treecode:Treecode",
    },
}
"""Methods without boxes, for empty space, by backend."""

METHODS = ("fmm", *SUMS)


def names(table: dict, backend: str) -> list[str]:
    """Those that the backend has."""
    return [name for name, places in table.items() if backend in places]


def implementation(table: dict, name: str, backend: str):
    """What implements that name on the backend."""
    module, _, attribute = table[name][backend].partition(":")
    return getattr(import_module(f"{__package__}.{module}"), attribute)
