"""What a reader of the coordination log has skipped: counted by kind, and reported once.

Laws:

* The first entry of each kind on each coordination partition is reported, further ones are counted: foreign writers
  cannot fill a host's log.
* There are as many kinds as `state.Unreadable` has, and ``misplaced``.
"""

from __future__ import annotations

import logging
from typing import Final

from kcoord_wire.kernel.machines import Noted
from kcoord_wire.marshal.state import Entry, Unreadable

MISPLACED: Final = "misplaced"
"""The kind of a message that lies on another coordination partition than that of its topic."""


class Complaints:
    """The skipped entries of one reader.

    :ivar counts: how many, by kind and coordination partition
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], int] = {}

    def skipped(self, entry: Entry) -> Noted | None:
        """Count an entry that had no effect; return what to log, None for a kind that was reported before."""
        message = entry.message
        if isinstance(message, Unreadable):
            kind, reason = message.kind, str(message)
        else:
            kind, reason = MISPLACED, f"{message.topic!r} belongs to another coordination partition"
        key = kind, entry.partition
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.counts[key] > 1:
            return None
        where = {"partition": entry.partition, "offset": entry.offset}
        return Noted(logging.WARNING, "entry skipped", {**where, "kind": kind, "reason": reason})
