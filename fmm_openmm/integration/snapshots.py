"""Which Context uses which charges, told through the one thing of a Context that the callable sees: its parameters."""

import hashlib
import weakref
from collections import deque

from fmm_openmm.integration.definition import Parameters

REVISION = "fmm_revision"
"""Global parameter every FMMForce declares. 0: the charges of the definition; otherwise the revision of a snapshot.

The name is the same for all forces and runs, so that a State or checkpoint written by one run loads in the next.
"""

KEPT = 8
"""Snapshots kept although no known Context uses them, so that a recent checkpoint finds its charges again."""


def revision_of(parameters: list[Parameters]) -> int:
    """A number that names these parameters in every process: a 48-bit digest of their content, never 0."""
    digest = hashlib.blake2b(digest_size=6)
    for item in parameters:
        for part in item.digest_parts():
            digest.update(repr(part).encode() if isinstance(part, tuple) else part)
    return int.from_bytes(digest.digest(), "little") or 1


class Snapshots:
    """The parameters that were sent to Contexts, by revision.

    A snapshot is kept as long as a Context it was sent to is alive. Contexts whose lifetime Python does not see (the
    inner Context of a CustomCVForce) count as alive.
    """

    def __init__(self):
        self._by_revision: dict[int, Parameters] = {}
        self._owned = weakref.WeakKeyDictionary()
        self._borrowed: dict[int, int] = {}
        self._recent: deque[int] = deque(maxlen=KEPT)

    def __len__(self):
        return len(self._by_revision)

    def get(self, revision: float) -> Parameters | None:
        return self._by_revision.get(int(revision))

    def add(self, revision: int, parameters: Parameters, context) -> None:
        """Record that ``context`` is about to get this revision."""
        self._by_revision[revision] = parameters
        if revision in self._recent:
            self._recent.remove(revision)
        self._recent.append(revision)
        if context.thisown:
            self._owned[context] = revision
        else:
            self._borrowed[int(context.this)] = revision
        used = {*self._recent, *self._owned.values(), *self._borrowed.values()}
        self._by_revision = {key: value for key, value in self._by_revision.items() if key in used}
