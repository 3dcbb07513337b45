"""Which response answers which request.

A response names neither its api nor its version: both are those of the request with its correlation id on the same
connection. The rule, which all that reads traffic follows, whether it takes part in a connection (`Connection`) or has
seen some of its bytes (captures, the recorder):

* A broker answers the requests of a connection in the order they came (Kafka protocol guide, "Network"). So a response
  answers the oldest pending request with its correlation id, and the requests before that one stay unanswered.
  On a connection of one's own that is an error, as no request can have been missed (`PendingRequests.first`).
* The number and size of pending requests are bounded; the oldest are given up first.

`kcoord_wire.forensics.exchanges.pairing` has a fast path of this rule, by array operations, for the connections where
the n-th response answers the n-th request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

MAX_PENDING_REQUESTS: Final = 65536

T = TypeVar("T")


class PendingRequests(Generic[T]):
    """The requests of one connection that have no response yet, each with whatever the caller keeps of it.

    :param max_requests: pending at a time
    :param max_bytes: that these may have together, by the sizes given to `add`; None does not count them
    """

    __slots__ = ("_by_id", "_bytes", "_max_bytes", "_max_requests", "_prefixes", "_queue")

    def __init__(self, max_requests: int = MAX_PENDING_REQUESTS, max_bytes: int | None = None) -> None:
        self._queue: deque[tuple[int, T, int]] = deque()  # correlation id, request, size: oldest first
        # The same by correlation id: made where a response is not that to the oldest, and kept until none is pending.
        self._by_id: dict[int, list[T]] | None = None
        self._prefixes: dict[int, int] = {}  # the upper 24 bits of the correlation ids, and how many have them
        self._bytes = 0
        self._max_requests = max_requests
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._queue)

    def oldest(self, correlation_id: int) -> T | None:
        """The request that a response with this correlation id answers; None if none is pending."""
        found = self._index().get(correlation_id)
        return found[0] if found else None

    def __iter__(self) -> Iterator[T]:
        """The requests, oldest first."""
        return (request for _, request, _ in self._queue)

    @property
    def first(self) -> int | None:
        """The correlation id of the oldest request, to which the next response belongs; None if none is pending."""
        return self._queue[0][0] if self._queue else None

    def prefixes(self, most: int) -> frozenset[int] | None:
        """The upper 24 bits of the pending correlation ids; few, because clients count their requests.

        :param most: None where there are more: a peer that makes them up has each of its segments cost no more
        """
        self._index()
        return frozenset(self._prefixes) if len(self._prefixes) <= most else None

    def add(self, correlation_id: int, request: T, size: int = 0) -> list[T]:
        """Add a request, and return those that are given up because too much is pending."""
        self._queue.append((correlation_id, request, size))
        if self._by_id is not None:
            self._enter(self._by_id, correlation_id, request)
        self._bytes += size
        given_up: list[T] = []
        while len(self._queue) > self._max_requests or (self._max_bytes is not None and self._bytes > self._max_bytes):
            given_up.append(self._pop()[1])
        return given_up

    def answer(self, correlation_id: int) -> tuple[T, list[T]] | None:
        """Remove and return the request that a response answers, and those before it, which stay unanswered."""
        if not self._queue:
            return None
        if self._queue[0][0] == correlation_id and self._by_id is None:  # the common case
            _, request, size = self._queue.popleft()
            self._bytes -= size
            return request, []
        if correlation_id not in self._index():
            return None
        unanswered = []
        while (oldest := self._pop())[0] != correlation_id:
            unanswered.append(oldest[1])
        return oldest[1], unanswered

    def clear(self) -> list[T]:
        """Remove and return all requests, oldest first."""
        return [self._pop()[1] for _ in range(len(self._queue))]

    def _pop(self) -> tuple[int, T, int]:
        oldest = self._queue.popleft()
        self._bytes -= oldest[2]
        if not self._queue:
            self._by_id = None
            self._prefixes.clear()
        elif self._by_id is not None:
            self._leave(self._by_id, oldest[0])
        return oldest

    def _index(self) -> dict[int, list[T]]:
        if self._by_id is None:
            self._by_id = {}
            for correlation_id, request, _ in self._queue:
                self._enter(self._by_id, correlation_id, request)
        return self._by_id

    def _enter(self, by_id: dict[int, list[T]], correlation_id: int, request: T) -> None:
        same = by_id.get(correlation_id)
        if same is None:
            by_id[correlation_id] = [request]
            self._prefixes[correlation_id >> 8] = self._prefixes.get(correlation_id >> 8, 0) + 1
        else:
            same.append(request)

    def _leave(self, by_id: dict[int, list[T]], correlation_id: int) -> None:
        same = by_id[correlation_id]
        if len(same) > 1:
            del same[0]
            return
        del by_id[correlation_id]
        prefix = correlation_id >> 8
        self._prefixes[prefix] -= 1
        if not self._prefixes[prefix]:
            del self._prefixes[prefix]
