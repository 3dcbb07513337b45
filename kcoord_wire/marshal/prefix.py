"""Which position may be committed while records of a partition are processed in any order.

Laws:

* `Prefix.position` is the next offset to consume: every record below it was processed. It never goes back.
* Offsets may have gaps, as compaction and control records leave them: only what was delivered has to be processed.
* What is held is one offset for each record that was delivered and not yet processed.

Source: Marshal PROTOCOL.md, "At Least Once (ALO)", step 4, where a heartbeat commits the last processed offset; the Go
library commits over the contiguous processed prefix only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixError(ValueError):
    """Records were delivered or processed that this tenure cannot have; nothing has changed."""


class Prefix:
    """The records of one tenure that are with the application.

    :param start: offset at which the tenure has begun to fetch
    """

    __slots__ = ("_end", "_start", "_unprocessed")

    def __init__(self, start: int) -> None:
        self._start = self._end = start
        self._unprocessed: OrderedDict[int, None] = OrderedDict()  # its first key costs O(1), also behind removed ones

    @property
    def position(self) -> int:
        """The next offset to consume."""
        return next(iter(self._unprocessed), self._end)

    @property
    def in_flight(self) -> int:
        """How many records were delivered and not yet processed."""
        return len(self._unprocessed)

    def delivered(self, offsets: Sequence[int], end: int) -> None:
        """Note that the application got records, before it can process one of them.

        :param offsets: of the records, in order; none where a batch held only control records
        :param end: the offset from which the next fetch reads, above all of them
        :raises PrefixError: an offset is not above those before it, or below the start
        """
        last = self._end - 1
        for offset in offsets:
            if offset <= last:
                raise PrefixError(f"a record at offset {offset} was delivered where {last + 1} or above comes next")
            last = offset
        if end <= last:
            raise PrefixError(f"the next fetch reads from offset {end}, not from {last + 1} or above")
        self._unprocessed.update(dict.fromkeys(offsets))
        self._end = end

    def processed(self, offset: int) -> None:
        """Note that the application has processed a record.

        :raises PrefixError: it was processed before, or was not delivered in this tenure
        """
        if offset not in self._unprocessed:
            raise PrefixError(f"the record at offset {offset} {self._why_not(offset)}")
        del self._unprocessed[offset]

    def _why_not(self, offset: int) -> str:
        if offset < self._start:
            return f"was not delivered: the tenure has started at offset {self._start}"
        if offset >= self._end:
            return f"was not delivered: the next one is at offset {self._end} or above"
        return "was processed before, or there is none"
