"""Topics that are deleted while groups are read from the log: what these have committed to them must go, too.

Law: a deletion is applied once to the groups of each partition of ``__consumer_offsets`` that was being read when the
topic was deleted; an offset that is committed after that, to a topic made anew, stays.
"""

from __future__ import annotations


class DeletedTopics:
    """Names of deleted topics, by the partitions of ``__consumer_offsets`` that are still to be read."""

    __slots__ = ("_missing",)

    def __init__(self) -> None:
        self._missing: dict[frozenset[int], frozenset[str]] = {}

    def note(self, names: frozenset[str], loading: frozenset[int]) -> None:
        """Note that topics were deleted while these partitions are read."""
        if loading:
            self._missing[loading] = self._missing.get(loading, frozenset()) | names

    def take(self, read: frozenset[int]) -> list[tuple[frozenset[str], frozenset[int]]]:
        """Note that partitions have been read; return names with those of them in which they are to be forgotten."""
        noted, self._missing = self._missing, {}
        for loading, names in noted.items():
            self.note(names, loading - read)
        return [(names, loading & read) for loading, names in noted.items() if loading & read]
