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
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.marshal.member import MarshalMember
from kcoord_wire.marshal.member_events import LossReason, RangeClaims, Tenure
from kcoord_wire.marshal.ranges import (
    UNKNOWN_END,
    RangeOutcome,
    RangePlace,
    Ranges,
    RangeState,
)
from kcoord_wire.marshal.world_state import Entry, Outcome, Place, Rules, WorldState
from kcoord_wire.messages import marshal as m
from kcoord_wire.messages.marshal import ClaimingRange, RangeHeartbeat, ReleasingRange
from tests.support.marshal_script import LOST, Fate, ScriptedProcess, ScriptedWorld
from tests.support.marshal_world import GROUP, TOPIC, beat, say

INTERVAL_MS = 60_000
ID = "Kq-_"
PLACE = RangePlace(Place(GROUP, TOPIC, 0), ID)


def take(who: str, first: int, end: int) -> m.ClaimingRange:
    return say(m.ClaimingRange, who, topic_id=ID, first_offset=first, end_offset=end)


def at(who: str, first: int, current: int) -> m.RangeHeartbeat:
    return say(m.RangeHeartbeat, who, topic_id=ID, first_offset=first, current_offset=current)


def leave(who: str, first: int, current: int) -> m.ReleasingRange:
    return say(m.ReleasingRange, who, topic_id=ID, first_offset=first, current_offset=current)


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


def test_a_topic_that_is_created_again_has_other_ranges() -> None:
    log = Log()
    log.tell(take("a1", 0, 10))
    log.tell(at("a1", 0, 10))
    again = say(m.ClaimingRange, "b1", topic_id="Zz", first_offset=0, end_offset=10)
    assert log.tell(again) is RangeOutcome.CLAIMED
    assert (log.live(), log.done()) == ({}, [(0, 10)])
    assert list(log.state.of(RangePlace(PLACE.place, "Zz"), 0).held) == [0]


def test_a_late_message_of_a_former_tenure_does_not_count() -> None:
    log = Log()
    log.tell(say(m.ClaimingRange, "a1", 7, topic_id=ID, first_offset=0, end_offset=10))
    late = say(m.ReleasingRange, "a1", 6, topic_id=ID, first_offset=0, current_offset=0)
    assert log.tell(late) is RangeOutcome.REFUSED
    assert log.live() == {0: ("a1", 0, 10)}


def test_up_to_where_all_is_done() -> None:
    ranges = Ranges(done=[(0, 10), (15, 20)])
    assert [ranges.prefix(start) for start in (0, 9, 10, 12, 15, 20)] == [10, 10, 10, 12, 20, 20]


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
    other = say(m.ClaimingRange, "b1", partition=1, topic_id=ID, first_offset=0, end_offset=10)
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
FIRST = RangeClaims(size=50)


class Member(ScriptedProcess):
    """A process that claims ranges; its application processes ten offsets of the lowest one every 100 ms."""

    def __init__(self, script: Script, name: str, committed: int, ranges: RangeClaims) -> None:
        ids = {"group_id": "g", "client_id": name, "instance_id": f"i-{name}"}
        settings = events.MemberSettings(
            **ids, topics=("t",), partitions=1, heartbeat_interval_ms=INTERVAL, ranges=ranges
        )
        self.member = MarshalMember(settings)
        self.held: dict[Tenure, tuple[int, int]] = {}
        self.script = script
        self.committed = committed
        super().__init__(script, name, self.member, Member._application, origin_ms=script.now)
        self.deliver(events.TopicPartitions({"t": 1}, {"t": script.topic_id}))
        self._clock.after(100, self._work)

    def losses(self, *reasons: LossReason) -> list[events.StopFetching]:
        return [each for each in self.done(events.StopFetching) if each.why in reasons]

    def _application(self, effect: Any) -> None:
        if isinstance(effect, events.FindStart):
            found = events.StartFound(
                effect.request, self.script.low, self.script.end, self.committed, self.script.topic_id
            )
            self.later(5, found)
        elif isinstance(effect, events.StartFetching):
            assert effect.end is not None
            self.held[effect.tenure] = effect.offset, effect.end
        elif isinstance(effect, events.StopFetching):
            self.held.pop(effect.tenure, None)

    def _work(self) -> None:
        if not self.is_alive:
            return
        for tenure, (position, end) in sorted(self.held.items(), key=lambda each: each[1])[:1]:
            stop = min(position + 10, end, self.script.end)
            if self.member.is_held(tenure, self.local.monotonic(self.script.now)) and position < stop:
                for offset in range(position, stop):
                    self.script.processed.setdefault(offset, []).append(self.name)
                self.held[tenure] = stop, end
                self.deliver(events.Delivered(tenure, range(position, stop), stop))
                self.deliver(events.Processed(tenure, range(position, stop)))
        self._clock.after(100, self._work)


class Script(ScriptedWorld):
    """One log, and members on it.

    :ivar low: the first offset that the partition has
    :ivar end: behind its last one
    :ivar processed: who has processed each offset
    """

    def __init__(self, end: int = 10**9, topic_id: str = ID) -> None:
        super().__init__(1, timeout_ms=10)
        self.low, self.end = 0, end
        self.topic_id = topic_id
        self.processed: dict[int, list[str]] = {}

    def start(self, name: str, committed: int = 0, ranges: RangeClaims = FIRST) -> Member:
        return Member(self, name, committed, ranges)


def test_one_member_goes_on_from_range_to_range() -> None:
    script = Script()
    a = script.start("a", committed=7)
    script.run(15_000)
    assert min(script.processed) == 7
    assert sorted(script.processed) == list(range(7, 7 + len(script.processed)))
    assert len(script.processed) > 1_000
    assert all(who == ["a"] for who in script.processed.values())
    assert {each.why for each in a.done(events.StopFetching)} == {LossReason.DONE}
    tokens = [each.tenure.token for each in a.done(events.StartFetching)]
    assert tokens == sorted(set(tokens))
    commits = [each.offset for each in a.done(events.CommitOffset)]
    assert commits == sorted(commits)
    assert len(script.processed) - 150 < commits[-1] - 7 <= len(script.processed)


def test_members_that_race_share_the_offsets_once() -> None:
    script = Script()
    members = [script.start(name) for name in "abc"]
    script.run(15_000)
    assert all(len(who) == 1 for who in script.processed.values())
    shares = {member.name: 0 for member in members}
    for (who,) in script.processed.values():
        shares[who] += 1
    assert all(share > 300 for share in shares.values())
    assert all({each.why for each in member.done(events.StopFetching)} == {LossReason.DONE} for member in members)


def test_the_next_range_is_claimed_before_it_is_needed() -> None:
    script = Script()
    script.start("a", ranges=RangeClaims(50, 3))
    script.run(300)
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
    a = script.start("a", ranges=RangeClaims(50, 1))
    script.run(INTERVAL)
    sent = max(entry.time_ms for entry in script.entries(RangeHeartbeat))
    [tenure] = a.held
    script.log.fate = lambda _, message: LOST if isinstance(message, RangeHeartbeat) else Fate()
    assert script.run_until(lambda: a.losses(LossReason.EXPIRED) != [], INTERVAL + 100)
    assert [each.tenure for each in a.losses(LossReason.EXPIRED)] == [tenure]
    assert sent + INTERVAL - 100 <= script.now <= sent + INTERVAL
    assert not a.member.is_held(tenure, a.local.monotonic(script.now))


def test_a_member_that_ends_releases_the_rest() -> None:
    script = Script(end=20)
    a = script.start("a")
    script.run(1_000)
    a.deliver(Shutdown())
    script.run(100)
    assert not a.is_working
    assert a.done(events.CommitOffset)[-1].offset == 20
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
    script.run(1_000)
    assert not a.is_working
    assert a.held == {}
    assert [type(entry.message) for entry in script.entries()] == [ClaimingRange, ReleasingRange]


def test_offsets_that_are_gone_count_as_processed() -> None:
    script = Script(end=60)
    a = script.start("a", ranges=RangeClaims(50, 1))
    script.run(1_000)
    [tenure] = a.held  # from 50 on
    script.low, script.end = 75, 90
    a.deliver(events.FetchFailed(tenure, "out of range"))
    script.run(2 * INTERVAL)
    released = [entry.message for entry in script.entries(ReleasingRange)]
    assert [(each.first_offset, each.current_offset) for each in released] == [(50, 75)]
    assert [entry.message.first_offset for entry in script.entries(ClaimingRange)] == [0, 50, 75]


def test_a_topic_created_again_is_claimed_from_its_beginning() -> None:
    script = Script(end=500)
    a = script.start("a")
    script.run(INTERVAL)
    script.end, script.topic_id, a.committed = 30, "again", 0
    script.processed.clear()
    a.effects.clear()
    a.deliver(events.TopicPartitions({"t": 1}, {"t": "again"}))
    script.run(2 * INTERVAL)
    assert a.losses(LossReason.TOPIC_REPLACED) != []
    assert max((each.offset for each in a.done(events.CommitOffset)), default=0) <= 30, "none of the former topic"
    assert sorted(script.processed) == list(range(30))


def test_without_a_topic_id_nothing_is_claimed() -> None:
    script = Script(topic_id="")
    a = script.start("a")
    script.run(3 * INTERVAL)
    assert script.entries() == []
    assert "no ids" in a.noted("no ranges")[0].facts["reason"]


def test_a_paused_group_claims_no_ranges() -> None:
    script = Script()
    a = script.start("a")
    script.run(1_000)
    pause = m.ReleaseGroup(time=script.now // 1_000, instance_id="x", client_id="x", group_id="g")
    pause.msg_expire_time = script.now // 1_000 + 30
    script.land(0, pause)
    script.run(1_000)
    processed = len(script.processed)
    script.run(20_000)
    assert a.losses(LossReason.PAUSED) != []
    assert (a.held, len(script.processed)) == ({}, processed)
    script.run(15_000)
    assert len(script.processed) > processed + 100
    assert all(len(who) == 1 for who in script.processed.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranges": RangeClaims(size=0)},
        {"ranges": RangeClaims(ahead=0)},
        {"rules": Rules.LIBRARY},
        {"delivery": events.Delivery.AT_MOST_ONCE},
        {"presence": True},
        {"max_claims": 1},
        {"greedy": True},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"ranges": RangeClaims()} | wrong
    with pytest.raises(ValueError, match="range"):
        MarshalMember(events.MemberSettings("g", "c", "i", ("t",), 1, **settings))
