"""The world state of offset ranges, entry by entry.

Members that claim ranges of one partition: what they process, together and when one of them fails.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from kcoord_wire.kernel.machines import Shutdown
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.marshal.ranges import (
    UNKNOWN_END,
    RangeClaimer,
    RangeHeld,
    RangeLost,
    RangeOutcome,
    RangeProcessed,
    Ranges,
    RangeState,
)
from kcoord_wire.marshal.world_state import Entry, Outcome, Place, Rules, WorldState
from kcoord_wire.messages import marshal as m
from kcoord_wire.messages.marshal import ClaimingRange, RangeHeartbeat, ReleasingRange
from tests.support.marshal_script import LOST, Fate, ScriptedProcess, ScriptedWorld
from tests.support.marshal_world import GROUP, TOPIC, beat, say

INTERVAL_MS = 60_000
PLACE = Place(GROUP, TOPIC, 0)


def take(who: str, first: int, end: int) -> m.ClaimingRange:
    return say(m.ClaimingRange, who, first_offset=first, end_offset=end)


def at(who: str, first: int, current: int) -> m.RangeHeartbeat:
    return say(m.RangeHeartbeat, who, first_offset=first, current_offset=current)


def leave(who: str, first: int, current: int) -> m.ReleasingRange:
    return say(m.ReleasingRange, who, first_offset=first, current_offset=current)


class Log:
    """A log of one coordination partition, and the ranges that it amounts to."""

    def __init__(self, first_offset: int = 0) -> None:
        self.world = WorldState(Rules.DOCUMENT, partitions=1)
        self.state = RangeState(self.world)
        self.now = 1_000_000
        self.offset = first_offset

    def tell(self, message: Any, after: float = 0) -> RangeOutcome:
        self.now += round(after * INTERVAL_MS)
        entry = Entry(0, self.offset, self.now, True, message)
        self.offset += 1
        self.world.apply(entry, 0)
        return self.state.apply(entry)

    def live(self) -> dict[int, tuple[str, int, int]]:
        held = self.state.of(PLACE, 0).held
        return {first: (each.instance_id, each.current, each.end) for first, each in held.items()}

    def done(self) -> list[tuple[int, int]]:
        return self.state.of(PLACE, 0).done


def test_the_first_claim_of_an_offset_wins() -> None:
    log = Log()
    assert log.tell(take("a1", 0, 10)) is RangeOutcome.CLAIMED
    for first, end in ((0, 10), (9, 12), (5, 6), (0, 1)):
        assert log.tell(take("b1", first, end)) is RangeOutcome.REFUSED
    assert log.tell(take("b1", 10, 20)) is RangeOutcome.CLAIMED
    assert log.live() == {0: ("a1", 0, 10), 10: ("b1", 10, 20)}
    assert [log.state.of(PLACE, 0).held[first].token for first in (0, 10)] == [0, 5]


def test_an_empty_range_is_refused() -> None:
    log = Log()
    assert log.tell(take("a1", 5, 5)) is RangeOutcome.REFUSED
    assert log.tell(take("a1", 5, 4)) is RangeOutcome.REFUSED
    assert log.state.places[PLACE].held == {} if PLACE in log.state.places else True


def test_offsets_that_do_not_exist_yet_can_be_claimed() -> None:
    log = Log()
    assert log.tell(take("a1", 2**40, 2**40 + 5)) is RangeOutcome.CLAIMED


def test_only_the_holder_moves_a_range_and_never_back() -> None:
    log = Log()
    log.tell(take("a1", 0, 10))
    assert log.tell(at("a1", 0, 4)) is RangeOutcome.RENEWED
    for message in (
        at("b1", 0, 5),
        at("a1", 0, 3),
        at("a1", 0, 11),
        at("a1", 1, 5),
        leave("b1", 0, 5),
        leave("a1", 0, 3),
    ):
        assert log.tell(message) is RangeOutcome.REFUSED
    assert log.live() == {0: ("a1", 4, 10)}


def test_a_range_at_its_end_is_done_for_ever() -> None:
    log = Log()
    log.tell(take("a1", 0, 10))
    assert log.tell(at("a1", 0, 10)) is RangeOutcome.DONE
    assert (log.live(), log.done()) == ({}, [(0, 10)])
    assert log.tell(take("b1", 0, 10), 100) is RangeOutcome.REFUSED
    assert log.tell(at("a1", 0, 10)) is RangeOutcome.REFUSED


@pytest.mark.parametrize(("intervals", "is_live"), [(2, True), (2.001, False)])
def test_the_rest_of_a_stale_range_is_free(intervals: float, is_live: bool) -> None:
    log = Log()
    log.tell(take("a1", 0, 10))
    log.tell(at("a1", 0, 4))
    assert log.tell(take("b1", 4, 10), intervals) is (RangeOutcome.REFUSED if is_live else RangeOutcome.CLAIMED)
    if not is_live:
        assert log.tell(at("a1", 0, 6)) is RangeOutcome.REFUSED  # too late
        assert (log.live(), log.done()) == ({4: ("b1", 4, 10)}, [(0, 4)])


def test_the_rest_of_a_released_range_is_free() -> None:
    log = Log()
    log.tell(take("a1", 0, 10))
    assert log.tell(leave("a1", 0, 4)) is RangeOutcome.RELEASED
    assert log.tell(take("b1", 3, 10)) is RangeOutcome.REFUSED
    assert log.tell(take("b1", 4, 10)) is RangeOutcome.CLAIMED


def test_neighbouring_done_ranges_become_one() -> None:
    ranges = Ranges()
    for first, end in ((0, 5), (10, 15), (20, 25), (5, 10), (14, 20), (40, 50), (3, 3)):
        ranges.finish(first, end)
    assert ranges.done == [(0, 25), (40, 50)]


def test_the_next_free_offsets_end_where_others_begin() -> None:
    log = Log()
    log.tell(take("a1", 10, 20))
    log.tell(take("a1", 25, 30))
    ranges = log.state.of(PLACE, 0)
    assert [ranges.next_free(start, 8) for start in (0, 4, 10, 22, 26)] == [
        (0, 8),
        (4, 10),
        (20, 25),
        (22, 25),
        (30, 38),
    ]


def test_messages_of_other_places_and_kinds_have_no_effect() -> None:
    log = Log()
    assert log.tell(beat("a1")) is RangeOutcome.SKIPPED
    assert log.tell("no message") is RangeOutcome.SKIPPED
    log.tell(take("a1", 0, 10))
    other = say(m.ClaimingRange, "b1", partition=1, first_offset=0, end_offset=10)
    assert log.tell(other) is RangeOutcome.CLAIMED
    assert log.world.apply(Entry(0, 99, log.now, True, other), 0) is Outcome.SKIPPED
    wrong = WorldState(Rules.DOCUMENT, partitions=2)
    entry = Entry(1 - coordination_partition(TOPIC, 2), 0, log.now, True, other)
    wrong.apply(entry, 0)
    assert RangeState(wrong).apply(entry) is RangeOutcome.SKIPPED


def test_a_trimmed_log_hides_the_end_of_a_range() -> None:
    log = Log(first_offset=100)
    assert log.tell(take("b1", 50, 60)) is RangeOutcome.REFUSED  # it cannot be known yet
    assert log.tell(at("a1", 0, 4)) is RangeOutcome.INFERRED
    assert log.live() == {0: ("a1", 4, UNKNOWN_END)}
    log.tell(at("a1", 0, 5), 2)
    assert log.tell(take("b1", 50, 60), 1.5) is RangeOutcome.REFUSED
    assert log.state.of(PLACE, 0).next_free(5, 10) is None
    assert log.tell(take("b1", 5, 60), 2.5) is RangeOutcome.CLAIMED
    assert log.done() == [(0, 5)]


def random_messages(random: Random, length: int) -> list[tuple[int, Any]]:
    """Of members that hold to nothing, in a few offsets."""
    made, now = [], 1_000_000
    for _ in range(length):
        now += random.choice([0, 1, 30_000, INTERVAL_MS, 2 * INTERVAL_MS + 1])
        who, first = random.choice(["a1", "a2", "b1"]), random.randrange(0, 12, 3)
        kind = random.choice([take, take, at, at, leave])
        made.append((now, kind(who, first, first + random.randrange(5))))
    return made


def test_no_offset_is_in_two_ranges() -> None:
    random = Random(5)
    for _ in range(100):
        log = Log()
        for now, message in random_messages(random, 25):
            log.tell(message, (now - log.now) / INTERVAL_MS)
            taken = log.state.of(PLACE, 0).taken()
            assert all(end <= first for (_, end), (first, _) in pairwise(taken))


def test_a_reader_of_a_trimmed_log_claims_nothing_that_is_live() -> None:
    random, found = Random(6), 0
    for _ in range(100):
        messages = random_messages(random, 25)
        for cut in range(1, 25, 3):
            whole, trimmed = Log(), Log(cut)
            for index, (now, message) in enumerate(messages):
                whole.tell(message, (now - whole.now) / INTERVAL_MS)
                if index < cut:
                    trimmed.now = whole.now
                    continue
                live = whole.live()
                outcome = trimmed.tell(message, (now - trimmed.now) / INTERVAL_MS)
                if outcome is RangeOutcome.CLAIMED:
                    found += 1
                    others = {first: each for first, each in live.items() if first != message.first_offset}
                    assert all(
                        end <= message.first_offset or message.end_offset <= first
                        for first, (_, _, end) in others.items()
                    )
    assert found > 50


INTERVAL = 6_000


class Member(ScriptedProcess):
    """A process with a claimer, whose application processes ten offsets every 100 ms."""

    def __init__(self, script: Script, name: str, start: int, size: int, ahead: int) -> None:
        ids = {"group_id": "g", "client_id": name, "instance_id": f"i-{name}"}
        settings = events.MemberSettings(**ids, topics=("t",), partitions=1, heartbeat_interval_ms=INTERVAL)
        self.claimer = RangeClaimer(settings, TopicPartition("t", 0), start, size, ahead)
        self.held: dict[int, RangeHeld] = {}
        self.script = script
        super().__init__(script, name, self.claimer, Member._application, origin_ms=script.now)
        self._clock.after(100, self._work)

    @property
    def lost(self) -> list[RangeLost]:
        return self.done(RangeLost)

    def _application(self, effect: RangeHeld | RangeLost) -> None:
        if isinstance(effect, RangeHeld):
            self.held[effect.first] = effect
        else:
            self.held.pop(effect.first, None)

    def _work(self) -> None:
        if not self.is_alive:
            return
        for first, held in sorted(self.held.items())[:1]:
            if self.claimer.is_held(first, self.script.now):
                position = self.claimer.position(first)
                stop = min(position + 10, held.end, self.script.end)
                for offset in range(position, stop):
                    self.script.processed.setdefault(offset, []).append(self.name)
                self.deliver(RangeProcessed(first, stop))
                if stop == held.end:
                    del self.held[first]
        self._clock.after(100, self._work)


class Script(ScriptedWorld):
    """One log, and members on it.

    :ivar end: of the partition
    :ivar processed: who has processed each offset
    """

    def __init__(self, end: int = 10**9) -> None:
        super().__init__(1, timeout_ms=10)
        self.end = end
        self.processed: dict[int, list[str]] = {}

    def start(self, name: str, start: int = 0, size: int = 50, ahead: int = 2) -> Member:
        return Member(self, name, start, size, ahead)


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
    shares = {member.name: 0 for member in members}
    for (who,) in script.processed.values():
        shares[who] += 1
    assert all(share > 300 for share in shares.values())
    assert all(member.lost == [] for member in members)


def test_the_next_range_is_claimed_before_it_is_needed() -> None:
    script = Script()
    script.start("a", ahead=3)
    script.run(200)
    claims = [entry.message for entry in script.entries(ClaimingRange)]
    assert [(claim.first_offset, claim.end_offset) for claim in claims] == [(0, 50), (50, 100), (100, 150)]


def test_the_rest_of_a_dead_members_range_is_processed() -> None:
    script = Script(end=2_000)
    a = script.start("a")
    script.run(INTERVAL)
    script.start("b")
    script.run(1_000)
    a.kill()
    script.run(10 * INTERVAL)
    assert sorted(script.processed) == list(range(2_000))
    again = [offset for offset, who in script.processed.items() if len(who) > 1]
    assert len(again) <= 50  # what a had processed since its last heartbeat


def test_without_heartbeats_a_range_is_lost_after_one_interval() -> None:
    script = Script(end=60)
    a = script.start("a", ahead=1)
    script.run(INTERVAL)
    sent = max(entry.time_ms for entry in script.entries())
    script.log.fate = lambda _, message: LOST if isinstance(message, RangeHeartbeat) else Fate()
    script.run(INTERVAL + 100)
    assert [each.first for each in a.lost] == [50]
    assert not a.claimer.is_held(50, sent + INTERVAL + 1)


def test_a_member_that_ends_releases_the_rest() -> None:
    script = Script(end=20)
    a = script.start("a")
    script.run(1_000)
    a.deliver(Shutdown())
    script.run(100)
    assert not a.is_working
    script.end = 10**9
    script.start("b")
    script.run(3_000)
    assert all(len(who) == 1 for who in script.processed.values())
    assert sorted(script.processed)[:25] == list(range(25))


def test_a_claim_under_way_at_the_end_is_released() -> None:
    script = Script()
    a = script.start("a")
    assert script.run_until(lambda: a.done(events.Append) != [], 100)
    a.deliver(Shutdown())
    script.run(200)
    assert not a.is_working
    assert a.held == {}
    assert [type(entry.message) for entry in script.entries()] == [ClaimingRange, ReleasingRange]


def test_wrong_settings_are_refused() -> None:
    for start, size, ahead in ((-1, 1, 1), (0, 0, 1), (0, 1, 0)):
        with pytest.raises(ValueError, match="a range"):
            Script().start("a", start, size, ahead)
