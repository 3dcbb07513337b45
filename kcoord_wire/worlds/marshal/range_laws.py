"""The laws of members that claim ranges, checked against the log and against the records that applications get.

Laws; a broken one raises `ViolationError`. With `Rules.DOCUMENT`, on a topic with LogAppendTime:

* ``one range``: of two members at most one would give a record to its application at a time.
* ``claims``: a claim wins only if it meets no range of which less than two heartbeat intervals of the log's time have
  passed since it was claimed or renewed, and nothing that is done.
* ``range tokens``: the fencing token of a tenure is larger than that of every earlier tenure of one of its offsets.
* ``done once``: no tenure begins with a record that the log has as done, of a member that has read the whole log. One
  whose log is trimmed may take a late heartbeat for a range that goes on, and not see what is done behind it.
* ``done is processed``: the log has a record as done only if an application has processed it.
* ``same ranges``: each entry does the same to the ranges of every reader (`marshal_laws.Observer`); one whose log is
  trimmed lets no claim win that a reader of everything refuses, but for offsets that are done.
* ``settles``: within 25 intervals after the last fault each record that was there then has been processed.

Each topic that was created under a name has records and ranges of its own, by its id.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.marshal.ranges import Range, RangeOutcome, RangePlace, range_place
from kcoord_wire.marshal.world_state import Claim, Entry, Place
from kcoord_wire.worlds.marshal.virtual_log import VirtualTopics

if TYPE_CHECKING:
    from kcoord_wire.worlds.marshal.marshal_laws import Fetching, Truth, Verdict


class _Account:
    """The records of a partition of one topic.

    :ivar processed: offsets that an application has processed
    :ivar done: that the log has as done
    :ivar live: ranges that were claimed and have not ended, by first offset
    :ivar running: tenures
    :ivar tokens: the largest token of each offset
    """

    def __init__(self) -> None:
        self.processed: set[int] = set()
        self.done: set[int] = set()
        self.live: dict[int, Range] = {}
        self.running: list[Fetching] = []
        self.tokens: dict[int, int] = {}


class RangeInvariants:
    """The state of the laws; the methods that `processes` calls are those of `marshal_laws.Invariants`.

    :ivar tenures: how many have begun
    """

    def __init__(self, clock: VirtualClock, topics: VirtualTopics, truth: Truth, interval_ms: int) -> None:
        self.tenures = 0
        self._clock = clock
        self._topics = topics
        self._truth = truth
        self._stale_ms = 2 * interval_ms
        self._accounts: defaultdict[RangePlace, _Account] = defaultdict(_Account)

    def is_member(self, instance_id: str) -> None:
        """Every writer of ranges keeps to the laws."""

    def written_by(self, instance_id: str, group_id: str, topic: str, partition: int) -> int | None:
        """An admin moves no range."""
        return None

    def has_processed(self, place: RangePlace, end: int) -> bool:
        """Return whether each record below an offset was processed."""
        processed = self._accounts[place].processed
        return all(offset in processed for offset in range(end) if self._topics.is_record(offset))

    # ---- the log

    def appended(self, entry: Entry, before: Claim | None, verdict: Verdict) -> None:
        """An entry has landed."""
        outcome = self._truth.range_outcome(entry)
        if outcome in (RangeOutcome.SKIPPED, RangeOutcome.REFUSED):
            return
        if outcome is RangeOutcome.INFERRED:
            raise ViolationError("same ranges", f"{entry} is {outcome} by a reader of everything")
        message, place = entry.message, range_place(entry.message)
        account, now = self._accounts[place], self._truth.world.log_time_ms(entry.partition)
        if outcome is RangeOutcome.CLAIMED:
            self._check_claim(entry, account, now)
            first, end = message.first_offset, message.end_offset
            ids = message.instance_id, message.client_id
            account.live[first] = Range(first, end, first, *ids, now, entry.offset, message.time)
        else:
            held = account.live[message.first_offset]
            held.current, held.heartbeat_ms = message.current_offset, now
            if outcome in (RangeOutcome.DONE, RangeOutcome.RELEASED):
                self._end(account, held, entry)

    def _check_claim(self, entry: Entry, account: _Account, now: int) -> None:
        message = entry.message
        for held in list(account.live.values()):
            if held.end <= message.first_offset or message.end_offset <= held.first:
                continue
            if now - held.heartbeat_ms <= self._stale_ms:
                raise ViolationError("claims", f"{entry} wins against {held}, {now - held.heartbeat_ms} ms old")
            self._end(account, held, entry)
        for offset in range(message.first_offset, message.end_offset):
            if offset in account.done:
                raise ViolationError("claims", f"{entry} wins, and {offset} is done")

    def _end(self, account: _Account, held: Range, entry: Entry) -> None:
        """What was processed of a range is done."""
        del account.live[held.first]
        for offset in range(held.first, held.current):
            account.done.add(offset)
            if self._topics.is_record(offset) and offset not in account.processed:
                raise ViolationError("done is processed", f"{entry}: {offset} is done, and was not processed")

    # ---- tenures

    def _account(self, fetching: Fetching) -> _Account:
        place = Place(fetching.process.settings.group_id, *fetching.tenure[:2])
        return self._accounts[RangePlace(place, fetching.topic_id)]

    def started(self, fetching: Fetching) -> None:
        """A member begins to fetch."""
        self.tenures += 1
        account = self._account(fetching)
        for offset in range(fetching.position, fetching.end or 0):
            if account.tokens.get(offset, -1) >= fetching.tenure.token:
                raise ViolationError("range tokens", f"{fetching} begins after one with {account.tokens[offset]}")
            account.tokens[offset] = fetching.tenure.token
            if offset in account.done and fetching.process.reads_all:
                raise ViolationError("done once", f"{fetching} begins, and {offset} is done")
        account.running.append(fetching)
        self._check_one(account, fetching, fetching.position)

    def ended(self, fetching: Fetching) -> None:
        """A member has stopped fetching, or was killed."""
        self._account(fetching).running.remove(fetching)

    def given(self, fetching: Fetching, offset: int) -> None:
        """An application gets a record."""
        self._check_one(self._account(fetching), fetching, offset)

    def processed(self, fetching: Fetching, offset: int) -> None:
        """The member has taken in that a record was processed."""
        self._account(fetching).processed.add(offset)

    def _check_one(self, account: _Account, fetching: Fetching, offset: int) -> None:
        for other in account.running:
            if other is fetching or other.process.is_paused:
                continue
            if other.position <= offset < (other.end or 0):
                raise ViolationError("one range", f"{fetching} gives {offset} beside {other}")
