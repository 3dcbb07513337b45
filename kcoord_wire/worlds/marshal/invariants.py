"""The laws of members, checked against the log and against the records that applications get.

Laws; a broken one raises `ViolationError`. With `Rules.DOCUMENT`, on a topic with LogAppendTime:

* ``one holder``: of two members at most one would give records of a partition to its application at a time. Two
  processes with one client id may do so until they have noticed each other, within one heartbeat interval after they
  have read the other's messages.
* ``holder``: the log has another holder only by a claim more than two heartbeat intervals of its time after the last
  entry that renewed the former one, by a heartbeat of the same client, or after a release of the holder's instance.
* ``tokens``: the fencing token of a tenure is larger than that of every earlier tenure of the partition.
* ``offsets``: the position in the log never goes back, but by other writers than members, such as the admin.
* ``nothing lost``, at least once: the log's position never passes a record that was not processed, and a tenure begins
  with the first one that was not, or before it.
* ``repeats``, at least once: a record is given again only if it was processed within one heartbeat interval before the
  former tenure had its last record processed.
* ``at most once``: no record is given twice.

By both rule sets a member begins no partition that it holds, and ends what it has begun, a second time at most if it
loses the partition before it could release it (``tenures``).

With `Rules.LIBRARY`, and on a topic with CreateTime, two holders are counted; the laws that follow from one holder are
not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.marshal.events import Delivery, Tenure
from kcoord_wire.marshal.state import Claim, Entry, Outcome, Place
from kcoord_wire.worlds.marshal.anomalies import Anomalies, Anomaly
from kcoord_wire.worlds.marshal.observers import Verdict
from kcoord_wire.worlds.marshal.topics import VirtualTopics

if TYPE_CHECKING:
    from kcoord_wire.worlds.marshal.members import MemberProcess

_SLACK: Final = 1.05  # clocks that run differently
_MOVES: Final = (Outcome.RENEWED, Outcome.TAKEN_OVER, Outcome.RELEASED)


class Holding:
    """A member's tenure, from `StartFetching` to the loss.

    :ivar position: of the next record to give to the application
    :ivar is_running: whether it gives records to its application
    :ivar started_ms: when it began
    :ivar last_ms: when the last of its records was processed
    :ivar next: the first offset that it has not processed, of those from its start on
    :ivar processed: offsets behind it
    :ivar asked: end of the batch that was fetched last (at most once)
    :ivar drains_until: until when records that were given may still be processed; 0 for not at all
    """

    __slots__ = (
        "asked",
        "drains_until",
        "is_running",
        "last_ms",
        "next",
        "position",
        "process",
        "processed",
        "started_ms",
        "tenure",
    )

    def __init__(self, process: MemberProcess, tenure: Tenure, position: int, now: int) -> None:
        self.process = process
        self.tenure = tenure
        self.position = self.next = self.asked = position
        self.drains_until = 0
        self.is_running = True
        self.started_ms = self.last_ms = now
        self.processed: set[int] = set()

    def __str__(self) -> str:
        topic, partition, token = self.tenure
        return f"{self.process.name} with {topic}-{partition} by {token}"


class _Account:
    """The records of a partition, and the tenures of it.

    :ivar given: offsets from `low` on that an application was given
    :ivar done: of those, the processed ones
    :ivar low: each record before it was processed
    :ivar covered: offset to the tenure whose contiguous prefix has passed it, and when
    """

    __slots__ = ("covered", "done", "given", "low", "running", "token")

    def __init__(self) -> None:
        self.given: set[int] = set()
        self.done: set[int] = set()
        self.low = 0
        self.covered: dict[int, tuple[Holding, int]] = {}
        self.running: list[Holding] = []
        self.token = -1


class Invariants:
    """The state that the laws speak of.

    :param is_lenient: two holders are counted, and the laws that follow from one holder are not looked at
    :ivar tenures: how many have begun
    """

    def __init__(
        self,
        clock: VirtualClock,
        topics: VirtualTopics,
        delivery: Delivery,
        interval_ms: int,
        anomalies: Anomalies,
        *,
        is_lenient: bool,
    ) -> None:
        self.tenures = 0
        self._clock = clock
        self._topics = topics
        self._is_lenient = is_lenient
        self._delivery = delivery
        self._interval_ms = interval_ms
        self._longest_ms = int(interval_ms * _SLACK)
        self._anomalies = anomalies
        self._accounts: defaultdict[Place, _Account] = defaultdict(_Account)
        self._members: set[str] = set()
        self._written: dict[tuple[str, Place], int] = {}
        self._pairs: set[frozenset[Holding]] = set()

    def _account(self, holding: Holding) -> _Account:
        return self._accounts[self._place(holding)]

    def _place(self, holding: Holding) -> Place:
        return Place(holding.process.settings.group_id, *holding.tenure[:2])

    # ---- the log

    def is_member(self, instance_id: str) -> None:
        """An instance keeps to the laws; others, such as an admin's, may move a position anywhere."""
        self._members.add(instance_id)

    def appended(self, entry: Entry, before: Claim | None, verdict: Verdict) -> None:
        """An entry has landed."""
        claim = verdict.claim
        if self._is_lenient or claim is None:
            return
        if before is not None and before.last_heartbeat:
            self._check_holder(entry, before, verdict.outcome, claim.heartbeat_ms - before.heartbeat_ms)
        if verdict.outcome not in _MOVES:
            return
        account = self._accounts[claim.place]
        if claim.instance_id not in self._members:
            self._written[claim.instance_id, claim.place] = claim.current_offset
            self._reset(account, claim.current_offset)
            return
        if before is not None and claim.current_offset < before.current_offset:
            raise ViolationError("offsets", f"{entry} moves {claim.place} back from {before.current_offset}")
        if self._delivery is Delivery.AT_LEAST_ONCE and claim.current_offset > self._low(account):
            raise ViolationError("nothing lost", f"{entry}: of {claim.place} only those before {account.low} are done")

    def written_by(self, instance_id: str, group_id: str, topic: str, partition: int) -> int | None:
        """Return the last position that an instance, not a member's, has written; None for none."""
        return self._written.get((instance_id, Place(group_id, topic, partition)))

    def _check_holder(self, entry: Entry, before: Claim, outcome: Outcome, age_ms: int) -> None:
        message = entry.message
        is_wrong = {
            Outcome.CLAIMED: age_ms <= 2 * self._interval_ms,
            Outcome.TAKEN_OVER: message.client_id != before.client_id,
            Outcome.RELEASED: message.instance_id != before.instance_id,
        }
        if is_wrong.get(outcome):
            raise ViolationError("holder", f"{entry}: {outcome}, {age_ms} ms after {before}")

    def _reset(self, account: _Account, offset: int) -> None:
        account.low = offset
        for offsets in (account.given, account.done):
            offsets.clear()
        account.covered.clear()

    def _low(self, account: _Account) -> int:
        low, done = account.low, account.done
        while low in done or not self._topics.is_record(low):
            done.discard(low)
            low += 1
        account.low = low
        return low

    # ---- tenures

    def started(self, holding: Holding) -> None:
        """A member begins to fetch."""
        self.tenures += 1
        account = self._account(holding)
        if any(other.process is holding.process for other in account.running):
            raise ViolationError("tenures", f"{holding} begins and holds it already")
        account.running.append(holding)
        self._check_one(holding)
        if self._is_lenient:
            return
        token = holding.tenure.token
        if token <= account.token:
            raise ViolationError("tokens", f"{holding} begins after a tenure with {account.token}")
        account.token = token
        if self._delivery is Delivery.AT_LEAST_ONCE and holding.position > self._low(account):
            raise ViolationError("nothing lost", f"{holding} begins at {holding.position}, behind {account.low}")

    def ended(self, holding: Holding) -> None:
        """A member has stopped fetching, or was killed."""
        running = self._account(holding).running
        if holding not in running:
            raise ViolationError("tenures", f"{holding} ends twice")
        running.remove(holding)

    def _check_one(self, holding: Holding) -> None:
        now = self._clock.time_ms
        for other in self._account(holding).running:
            if other is holding or other.process.is_paused or not other.is_running:
                continue
            newest = max(holding.started_ms, other.started_ms)
            is_reused = other.process.settings.client_id == holding.process.settings.client_id
            read_after_ms = max(each.process.reader.lag_ms[1] for each in (holding, other))
            if is_reused and now - newest <= self._longest_ms + read_after_ms:
                continue
            self._found_two(holding, other)

    def _found_two(self, holding: Holding, other: Holding) -> None:
        what = f"{holding} beside {other}"
        if not self._is_lenient:
            raise ViolationError("one holder", what)
        pair = frozenset((holding, other))
        if pair not in self._pairs:
            self._pairs.add(pair)
            self._anomalies.add(Anomaly.TWO_HOLDERS, what)

    # ---- records

    def given(self, holding: Holding, offset: int) -> None:
        """An application gets a record."""
        self._check_one(holding)
        if self._is_lenient:
            return
        account = self._account(holding)
        is_again = offset in account.given
        if is_again and self._delivery is Delivery.AT_MOST_ONCE:
            raise ViolationError("at most once", f"{holding} gives record {offset} again")
        if is_again and (covered := account.covered.get(offset)) is not None:
            former, at = covered
            if at < former.last_ms - self._longest_ms:
                text = f"{holding} gives record {offset} again, which {former} had processed"
                raise ViolationError("repeats", f"{text} {former.last_ms - at} ms before its last one")
        account.given.add(offset)

    def processed(self, holding: Holding, offset: int) -> None:
        """The member has taken in that a record was processed."""
        account, now = self._account(holding), self._clock.time_ms
        holding.last_ms = now
        holding.processed.add(offset)
        if offset >= account.low:
            account.done.add(offset)
        while holding.next in holding.processed or not self._topics.is_record(holding.next):
            holding.processed.discard(holding.next)
            account.covered[holding.next] = (holding, now)
            holding.next += 1
