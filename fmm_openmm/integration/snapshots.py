"""The charges of each Context, identified by a global parameter, the only property of a Context
that the callable of a PythonForce sees."""

import hashlib
import weakref

from fmm_openmm.integration.definition import Parameters

REVISION = "fmm_revision"
"""Global parameter of every FMMForce: 0 for the charges of the definition, else the revision of a
snapshot.

The name is the same for all forces and runs, so that a State or checkpoint written by one run loads
in the next.
"""

KEPT = 8
"""Number of recently used snapshots that are kept without a known Context, so that a recent
checkpoint finds its charges."""

REMEMBERED = 100_000
"""Number of revisions without a snapshot that are remembered."""


def revision_of(parameters: list[Parameters]) -> int:
    """Identifier of parameters that is the same in every process: a 48-bit digest of their content,
    never 0."""
    digest = hashlib.blake2b(digest_size=6)
    for item in parameters:
        for part in item.digest_parts():
            digest.update(repr(part).encode() if isinstance(part, tuple) else part)
    return int.from_bytes(digest.digest(), "little") or 1


class Snapshots:
    """The parameters copied to Contexts, by revision.

    A snapshot is kept as long as a Context that it was copied to exists. Contexts whose lifetime is
    unknown to Python (the inner Context of a CustomCVForce) are assumed to exist.
    """

    def __init__(self):
        self._by_revision: dict[int, Parameters] = {}
        self._owned = weakref.WeakKeyDictionary()
        self._borrowed: dict[int, int] = {}
        self._recent: dict[int, None] = {}  # in the order of their last use
        self._dropped: dict[int, None] = {}  # the oldest first

    def __len__(self):
        return len(self._by_revision)

    def get(self, revision: float) -> Parameters | None:
        """The parameters of a revision; None if this process has not seen it.

        Raises:
            ValueError: the snapshot is no longer kept.
        """
        revision = int(revision)
        found = self._by_revision.get(revision)
        if found is not None:
            self._use(revision)
        elif revision in self._dropped:
            raise ValueError(
                "the charges of this State are no longer kept: call updateParametersInContext()"
            )
        return found

    def has_dropped(self, revision: float) -> bool:
        """Whether :meth:`get` raises an error."""
        return int(revision) in self._dropped

    def drop(self, revision: int) -> None:
        """Have :meth:`get` raise an error."""
        self._dropped[revision] = None
        while len(self._dropped) > REMEMBERED:
            self._dropped.pop(next(iter(self._dropped)))

    def add(self, revision: int, parameters: Parameters, context) -> None:
        """Record that a Context is about to receive a revision."""
        self._by_revision[revision] = parameters
        self._dropped.pop(revision, None)
        self._use(revision)
        if context.thisown:
            self._owned[context] = revision
        else:
            self._borrowed[int(context.this)] = revision
        used = {*self._recent, *self._owned.values(), *self._borrowed.values()}
        for unused in self._by_revision.keys() - used:
            self.drop(unused)
        self._by_revision = {key: value for key, value in self._by_revision.items() if key in used}

    def _use(self, revision: int) -> None:
        self._recent.pop(revision, None)
        self._recent[revision] = None
        for oldest in list(self._recent)[:-KEPT]:
            self._recent.pop(oldest, None)
