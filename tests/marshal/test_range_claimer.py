"""Members that claim ranges of one partition: what they process, together and when one of them fails."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from kcoord_wire.kernel.machines import Ended, Shutdown, Tick
from kcoord_wire.marshal import events
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.ranges import RangeClaimer, RangeHeld, RangeLost, RangeProcessed
from kcoord_wire.marshal.state import Entry
from kcoord_wire.messages.marshal import ClaimingRange, RangeHeartbeat, ReleasingRange

INTERVAL = 6_000
EPOCH = 1_795_000_000_000


class Member:
    def __init__(self, name: str, start: int, size: int, ahead: int) -> None:
        ids = {"group_id": "g", "client_id": name, "instance_id": f"i-{name}"}
        settings = events.MemberSettings(**ids, topics=("t",), partitions=1, heartbeat_interval_ms=INTERVAL)
        self.machine = RangeClaimer(settings, TopicPartition("t", 0), start, size, ahead)
        self.read = 0
        self.is_alive = True
        self.held: dict[int, RangeHeld] = {}
        self.lost: list[RangeLost] = []
        self.has_ended = False


class Script:
    """One log, members on it, and an application that processes ten offsets every 100 ms.

    :ivar processed: who has processed each offset
    """

    def __init__(self, end: int = 10**9) -> None:
        self.now = EPOCH
        self.end = end
        self.log: list[Entry] = []
        self.members: list[Member] = []
        self.processed: dict[int, list[str]] = {}
        self.refuses: Callable[[Member, Any], bool] = lambda member, message: False
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()

    def start(self, name: str, start: int = 0, size: int = 50, ahead: int = 2) -> Member:
        member = Member(name, start, size, ahead)
        self.members.append(member)
        self.give(member, events.WallClock(0))
        self._later(100, lambda: self._work(member))
        return member

    def give(self, member: Member, event: Any) -> None:
        if not member.is_alive:
            return
        for effect in member.machine.handle(event, self.now):
            self._carry_out(member, effect)
        if (deadline := member.machine.deadline) is not None:
            self._later(max(deadline - self.now, 1), lambda: self.give(member, Tick()))

    def run(self, ms: int) -> None:
        until = self.now + ms
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until

    def _later(self, ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + ms, next(self._serial), action))

    def _carry_out(self, member: Member, effect: Any) -> None:
        if isinstance(effect, events.Append):
            if self.refuses(member, effect.message):
                self._later(10, lambda: self.give(member, AppendFailed(effect.request, "lost", True)))
                return
            self._later(5, lambda: self._append(member, effect))
        elif isinstance(effect, events.ReadToEnd):
            self._later(3, lambda: self._read(member, effect.request))
        elif isinstance(effect, RangeHeld):
            member.held[effect.first] = effect
        elif isinstance(effect, RangeLost):
            member.lost.append(effect)
            member.held.pop(effect.first, None)
        elif isinstance(effect, Ended):
            member.has_ended = True

    def _append(self, member: Member, effect: Any) -> None:
        self.log.append(Entry(0, len(self.log), self.now, True, effect.message))
        self.give(member, Appended(effect.request, len(self.log) - 1))

    def _read(self, member: Member, request: int) -> None:
        new, member.read = self.log[member.read :], len(self.log)
        self.give(member, events.Entries(new))
        self.give(member, events.CaughtUp(request, len(self.log)))

    def _work(self, member: Member) -> None:
        if not member.is_alive:
            return
        for first, held in sorted(member.held.items())[:1]:
            if member.machine.is_held(first, self.now):
                position = member.machine.position(first)
                stop = min(position + 10, held.end, self.end)
                for offset in range(position, stop):
                    self.processed.setdefault(offset, []).append(member.machine.settings.client_id)
                self.give(member, RangeProcessed(first, stop))
                if stop == held.end:
                    del member.held[first]
        self._later(100, lambda: self._work(member))


def test_one_member_goes_on_from_range_to_range() -> None:
    script = Script()
    a = script.start("a", start=7)
    script.run(15_000)
    assert min(script.processed) == 7
    assert sorted(script.processed) == list(range(7, 7 + len(script.processed)))
    assert len(script.processed) > 1_000
    assert all(who == ["a"] for who in script.processed.values())
    assert a.lost == []


def test_members_that_race_share_the_offsets_once() -> None:
    script = Script()
    members = [script.start(name) for name in "abc"]
    script.run(15_000)
    assert all(len(who) == 1 for who in script.processed.values())
    shares = {member.machine.settings.client_id: 0 for member in members}
    for (who,) in script.processed.values():
        shares[who] += 1
    assert all(share > 300 for share in shares.values())
    assert all(member.lost == [] for member in members)


def test_the_next_range_is_claimed_before_it_is_needed() -> None:
    script = Script()
    script.start("a", ahead=3)
    script.run(200)
    claims = [entry.message for entry in script.log if isinstance(entry.message, ClaimingRange)]
    assert [(claim.first_offset, claim.end_offset) for claim in claims] == [(0, 50), (50, 100), (100, 150)]


def test_the_rest_of_a_dead_members_range_is_processed() -> None:
    script = Script(end=2_000)
    a = script.start("a")
    script.run(INTERVAL)
    script.start("b")
    script.run(1_000)
    a.is_alive = False
    script.run(10 * INTERVAL)
    assert sorted(script.processed) == list(range(2_000))
    again = [offset for offset, who in script.processed.items() if len(who) > 1]
    assert len(again) <= 50  # what a had processed since its last heartbeat


def test_without_heartbeats_a_range_is_lost_after_one_interval() -> None:
    script = Script(end=60)
    a = script.start("a", ahead=1)
    script.run(INTERVAL)
    sent = max(entry.time_ms for entry in script.log)
    script.refuses = lambda member, message: isinstance(message, RangeHeartbeat)
    script.run(INTERVAL + 100)
    assert [each.first for each in a.lost] == [50]
    assert not a.machine.is_held(50, sent + INTERVAL + 1)


def test_a_member_that_ends_releases_the_rest() -> None:
    script = Script(end=20)
    a = script.start("a")
    script.run(1_000)
    script.give(a, Shutdown())
    script.run(100)
    assert a.has_ended
    script.end = 10**9
    script.start("b")
    script.run(3_000)
    assert all(len(who) == 1 for who in script.processed.values())
    assert sorted(script.processed)[:25] == list(range(25))


def test_a_claim_under_way_at_the_end_is_released() -> None:
    script = Script()
    a = script.start("a")
    script.run(4)
    script.give(a, Shutdown())
    script.run(200)
    assert a.has_ended
    assert a.held == {}
    assert [type(entry.message) for entry in script.log] == [ClaimingRange, ReleasingRange]


def test_wrong_settings_are_refused() -> None:
    for start, size, ahead in ((-1, 1, 1), (0, 0, 1), (0, 1, 0)):
        with pytest.raises(ValueError, match="a range"):
            Member("a", start, size, ahead)
