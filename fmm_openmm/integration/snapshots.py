"""Which Context uses which charges, told through the one thing of a Context that the callable
sees: its parameters."""

import hashlib
import weakref

from fmm_openmm.integration.definition import Parameters

REVISION = "fmm_revision"
"""Global parameter every FMMForce declares.
0: the charges of the definition; otherwise the revision of a snapshot.

The name is the same for all forces and runs, so that a State or checkpoint written by one run loads
in the next.
"""

KEPT = 8
"""Snapshots kept although no known Context was sent them, those used last: a recent checkpoint
finds its charges again."""

REMEMBERED = 100_000
"""Revisions whose snapshots are gone, but not the knowledge that there were any."""


def revision_of(parameters: list[Parameters]) -> int:
    """A number that names these parameters in every process: a 48-bit digest of
    their content, never 0."""
    digest = hashlib.blake2b(digest_size=6)
    for item in parameters:
        for part in item.digest_parts():
            digest.update(repr(part).encode() if isinstance(part, tuple) else part)
    return int.from_bytes(digest.digest(), "little") or 1


class Snapshots:
    """The parameters that were sent to Contexts, by revision.

    A snapshot is kept as long as a Context it was sent to is alive. Contexts whose lifetime Python
    does not see (the inner Context of a CustomCVForce) count as alive.
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
        """What was sent under this revision; None if nothing was, in this process.

        Raises:
            ValueError: it is no longer kept.
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
        """Whether :meth:`get` raises the error."""
        return int(revision) in self._dropped

    def drop(self, revision: int) -> None:
        """Make :meth:`get` raise the error."""
        self._dropped[revision] = None
        while len(self._dropped) > REMEMBERED:
            self._dropped.pop(next(iter(self._dropped)))

    def add(self, revision: int, parameters: Parameters, context) -> None:
        """Record that ``context`` is about to get this revision."""
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
