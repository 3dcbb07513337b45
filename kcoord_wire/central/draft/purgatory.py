"""A request purgatory: requests to consumers that wait for an answer, or for the end of its time (section 5, field 8).

Laws:

* A consumer answers the requests of one kind in their order, on one connection. So an answer belongs to the oldest
  request that has none, also if its time is over: a late answer is never taken for that of a later request, with which
  a consumer that has started again in between would be taken for a stopped one.
* `expired` is called once for each request whose time is over.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from functools import partial

from kcoord_wire.central.draft.groups import Member
from kcoord_wire.kernel.timers import Timer, Timers


class Answer(enum.Enum):
    """How an answer fits to what was asked."""

    IN_TIME = "in time"
    LATE = "late"
    UNASKED = "unasked"


class Purgatory:
    """The watchers of one kind of request.

    :param expired: called with the consumer whose time to answer is over
    """

    def __init__(self, timers: Timers, expired: Callable[[Member], None]) -> None:
        self._timers = timers
        self._expired = expired
        self._watchers: dict[Member, deque[Timer]] = {}

    def __len__(self) -> int:
        """Return the number of requests without an answer."""
        return sum(map(len, self._watchers.values()))

    def watch(self, member: Member, until: int) -> None:
        """A request was sent; its answer has to come before `until` (ms)."""
        timer = self._timers.start(until, partial(self._expired, member))
        self._watchers.setdefault(member, deque()).append(timer)

    def answered(self, member: Member) -> Answer:
        """An answer has come: clear the watcher of its request."""
        watchers = self._watchers.get(member)
        if not watchers:
            return Answer.UNASKED
        timer = watchers.popleft()
        in_time = timer.live
        timer.cancel()
        return Answer.IN_TIME if in_time else Answer.LATE

    def give_up(self, member: Member) -> None:
        """The requests so far are void: their answers are late, whenever they come."""
        for timer in self._watchers.get(member, ()):
            timer.cancel()

    def forget(self, member: Member) -> None:
        """The consumer is gone: clear its watchers."""
        for timer in self._watchers.pop(member, ()):
            timer.cancel()
