"""A held partition: heartbeats, the fence, and the ways out, by members in virtual time.

The position over records that are processed in any order, next to a plain list of what is not processed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.holding import AckTracker, PrefixError
from kcoord_wire.marshal.member_events import Delivered, FetchFailed, LossReason, Processed, StopFetching
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat, IdentifyingTopic, ReleasingPartition
from tests.support.marshal_script import LOST, Fate, MarshalScript, ScriptedMember

INTERVAL = 10_000


def holder(**settings: Any) -> tuple[MarshalScript, ScriptedMember]:
    """A member that consumes the one partition of its topic."""
    world = MarshalScript({"orders": 1}, **settings)
    member = world.start("a")
    assert world.run_until(lambda: member.fetching != {}, 3_000)
    return world, member


def stopped(member: ScriptedMember) -> list[LossReason]:
    return [effect.why for effect in member.done(StopFetching)]


def test_heartbeats_come_after_a_quarter_to_three_quarters() -> None:
    world, _ = holder(heartbeat_interval_ms=60_000)
    world.run(3_600_000)
    times = [entry.time_ms for entry in world.entries(Heartbeat)]
    gaps = {later - earlier for earlier, later in pairwise(times)}
    assert 15_000 <= min(gaps) < 20_000
    assert 40_000 < max(gaps) <= 44_000


def test_a_heartbeat_has_the_processed_prefix() -> None:
    world, a = holder()
    a.work(10, processed=7)
    world.run(INTERVAL)
    assert world.entries(Heartbeat)[-1].message.current_offset == 7
    assert a.done(events.CommitOffset)[-1].offset == 7
    (tenure,) = a.fetching
    a.deliver(Processed(tenure, [8, 9]))
    world.run(INTERVAL)
    assert world.entries(Heartbeat)[-1].message.current_offset == 7
    a.deliver(Processed(tenure, [7]))
    world.run(INTERVAL)
    assert world.entries(Heartbeat)[-1].message.current_offset == 10


def test_an_unknown_position_is_not_committed() -> None:
    """The first heartbeat was sent before the start was found, and is answered after that."""
    world, a = holder(find_start=lambda asked: events.StartFound(asked.request, 40, 50))
    world.run(INTERVAL)
    assert world.entries(Heartbeat)[0].message.current_offset == 0
    assert {effect.offset for effect in a.done(events.CommitOffset)} == {40}


def test_the_fence_counts_from_when_the_heartbeat_was_sent() -> None:
    """Its answer comes 2 seconds later, and prolongs nothing by that."""
    world, a = holder()
    fates = [Fate((1_900,), 2_000)]
    sent_at: list[int] = []

    def fate(*_: Any) -> Fate:
        sent_at.append(world.now)
        return fates.pop() if fates else LOST

    world.fate = fate
    assert world.run_until(lambda: stopped(a) == [LossReason.EXPIRED], 3 * INTERVAL)
    assert world.now == sent_at[0] + INTERVAL


def test_without_a_landed_heartbeat_the_tenure_expires() -> None:
    world, a = holder()
    world.fate = lambda *_: LOST
    last = world.entries(Heartbeat)[-1].time_ms
    assert world.run_until(lambda: stopped(a) == [LossReason.EXPIRED], 3 * INTERVAL)
    assert last + INTERVAL - 10 <= world.now <= last + INTERVAL
    assert world.held_by("orders", 0) is None


def test_a_drain_does_not_wait_for_what_is_abandoned() -> None:
    world, a = holder(drain_ms=5_000)
    a.work(10, processed=7)
    (tenure,) = a.fetching
    a.deliver(events.Abandoned(tenure))
    world.shut_down(a)
    world.run(1_000)
    assert world.entries(ReleasingPartition)[-1].message.current_offset == 7


def test_a_failed_heartbeat_is_soon_sent_again() -> None:
    world, a = holder()
    fates = [LOST] * 3
    world.fate = lambda *_: fates.pop() if fates else Fate()
    world.run(2 * INTERVAL)
    assert stopped(a) == []
    assert fates == []
    assert len(a.noted("heartbeat failed")) == 1, "the first one of an outage"


def test_no_heartbeat_is_sent_after_the_fence() -> None:
    world, a = holder()
    world.fate = lambda *_: LOST
    world.run_until(lambda: stopped(a) != [], 3 * INTERVAL)
    a.effects.clear()
    world.run(INTERVAL // 2)
    sent = [effect.message for effect in a.done(events.Append)]
    assert sent
    assert {type(message) for message in sent} == {ReleasingPartition}


def test_a_pause_beyond_staleness_stops_fetching_first() -> None:
    world, a = holder()
    b = world.start("b")
    world.run(1_000)
    a.pause(3 * INTERVAL)
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 3 * INTERVAL)
    a.effects.clear()
    world.run(2 * INTERVAL)
    assert isinstance(a.effects[0][1], StopFetching)
    assert stopped(a) == [LossReason.EXPIRED]
    assert world.held_by("orders", 0) is b


def test_a_member_that_is_cut_off_stops_before_others_begin() -> None:
    """It hears of nothing, so only its own clock can stop it."""
    world, a = holder()
    b = world.start("b")
    world.run(INTERVAL)
    a.cut_off(6 * INTERVAL)
    last = world.entries(Heartbeat)[-1].time_ms
    assert world.run_until(lambda: stopped(a) == [LossReason.EXPIRED], 2 * INTERVAL)
    assert world.now <= last + INTERVAL
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 3 * INTERVAL)
    assert world.now > last + 2 * INTERVAL


def test_a_heartbeat_that_lands_late_takes_nothing_back() -> None:
    """Sent by the old holder, it lands after the new one has claimed: refused by every reader."""
    world, a = holder()
    b = world.start("b")
    world.fate = lambda member, _: Fate((25_000,), None) if member is a else Fate()
    assert world.run_until(lambda: world.held_by("orders", 0) is b, 3 * INTERVAL)
    world.run(5 * INTERVAL)
    assert stopped(b) == []
    assert world.held_by("orders", 0) is b
    late = [entry for entry in world.entries(Heartbeat) if entry.message.client_id == "a"]
    assert late[-1].time_ms > world.entries(ClaimingPartition)[-1].time_ms


def test_messages_that_land_twice_change_nothing() -> None:
    world = MarshalScript({"orders": 2}, greedy=True)
    world.fate = lambda *_: Fate((5, 7, 900), 10)
    a, b = world.start("a", max_claims=1), world.start("b", max_claims=1)
    world.run(5 * INTERVAL)
    assert world.shares() == {"a": 1, "b": 1}
    assert stopped(a) == stopped(b) == []


def test_the_late_copy_of_a_release_does_not_free_a_new_tenure() -> None:
    world, a = holder(cooldown_ms=0)
    world.fate = lambda _, message: Fate((5, 4_000), 10) if isinstance(message, ReleasingPartition) else Fate()
    a.deliver(events.Release("orders", 0))
    assert world.run_until(lambda: len(a.done(events.StartFetching)) == 2, 3_000)
    b = world.start("b")
    world.run(3 * INTERVAL)
    assert len(world.entries(ReleasingPartition)) == 2
    assert stopped(a) == [LossReason.RELEASED]
    assert b.done(events.StartFetching) == []


def test_a_release_waits_for_what_the_application_has() -> None:
    world, a = holder(drain_ms=2_000)
    (tenure,) = a.fetching
    a.deliver(Delivered(tenure, [0, 1, 2], 3))
    a.deliver(events.Release("orders", 0))
    assert stopped(a) == [LossReason.RELEASED]
    world.run(1_000)
    assert world.entries(ReleasingPartition) == []
    a.deliver(Processed(tenure, [0, 1, 2]))
    world.run(100)
    assert world.entries(ReleasingPartition)[0].message.current_offset == 3
    assert world.held_by("orders", 0) is None


def test_a_release_does_not_wait_beyond_its_deadline() -> None:
    world, a = holder(drain_ms=2_000)
    (tenure,) = a.fetching
    a.deliver(Delivered(tenure, [0, 1, 2], 3))
    a.deliver(Processed(tenure, [0, 2]))
    a.deliver(events.Release("orders", 0))
    assert a.done(StopFetching)[0].deadline == a.local.monotonic(world.now) + 2_000
    world.run(2_100)
    assert world.entries(ReleasingPartition)[0].message.current_offset == 1
    a.deliver(Processed(tenure, [1]))
    assert a.member.tenures() == []


def test_a_release_is_repeated_until_it_has_landed() -> None:
    world, a = holder()
    fates = [LOST] * 3
    world.fate = lambda *_: fates.pop() if fates else Fate()
    a.deliver(events.Release("orders", 0))
    world.run(4_000)
    assert len(world.entries(ReleasingPartition)) == 1
    assert a.member.tenures() == []


def test_no_heartbeat_follows_a_release_that_is_under_way() -> None:
    """It would claim anew what the release gives back."""
    world, a = holder()
    world.fate = lambda _, message: LOST if isinstance(message, ReleasingPartition) else Fate()
    a.deliver(events.Release("orders", 0))
    world.run(100)
    sent = len(world.entries(Heartbeat))
    world.run(INTERVAL)
    assert len(world.entries(Heartbeat)) == sent


def test_a_tenure_ends_when_the_log_has_another_holder() -> None:
    world, a = holder()
    (entry,) = world.entries(ClaimingPartition)
    thief = Heartbeat(time=world.now // 1_000, client_id="a", instance_id="x", group_id="group", topic="orders")
    world.land(entry.partition, thief)
    world.run(100)
    assert stopped(a) == [LossReason.TAKEN]


def test_an_offset_out_of_range_is_repaired_and_cools_down() -> None:
    """The next holder, this member or another, starts within the partition; this one does not claim in a loop."""
    world, a = holder(find_start=lambda asked: events.StartFound(asked.request, 10, 30))
    a.work(50)
    (tenure,) = a.fetching
    a.deliver(FetchFailed(tenure, "out of range"))
    world.run(1_000)
    assert stopped(a) == [LossReason.FETCH_FAILED]
    assert world.entries(ReleasingPartition)[0].message.current_offset == 10
    for failures in (1, 2, 3):
        start = world.now
        assert world.run_until(lambda: a.fetching != {}, 5 * INTERVAL)
        assert world.now - start > failures * INTERVAL - 1_100
        a.deliver(FetchFailed(next(iter(a.fetching)), "out of range"))


class Partition:
    """What the partition has, as the members' brokers answer."""

    def __init__(self, end: int, topic_id: str = "", low: int = 0) -> None:
        self.low, self.end, self.topic_id = low, end, topic_id

    def __call__(self, asked: events.FindStart) -> events.StartFound:
        return events.StartFound(asked.request, self.low, self.end, None, self.topic_id)

    def learn(self, member: ScriptedMember, topic_id: str) -> None:
        """The topic was created again, and the member has heard of it."""
        self.topic_id = topic_id
        member.deliver(events.TopicPartitions({"orders": 1}, {"orders": topic_id}))


def position_in_log(world: MarshalScript, member: ScriptedMember) -> int:
    (claim,) = member.member.context.state.claims.values()
    return claim.current_offset


@pytest.mark.parametrize("delivery", events.Delivery)
@pytest.mark.parametrize(("reset", "start"), [(events.Reset.EARLIEST, 3), (events.Reset.LATEST, 70)])
def test_a_topic_that_is_created_again_is_read_anew_while_held(
    delivery: events.Delivery, reset: events.Reset, start: int
) -> None:
    """By then it has more records than the former one had, so no end shows that the position is none of its own."""
    there = Partition(60, "first")
    world, a = holder(find_start=there, delivery=delivery, reset=reset)
    (tenure,) = a.fetching
    _process(world, a, 50)
    assert position_in_log(world, a) == 50
    there.low, there.end = 3, 70
    there.learn(a, "second")
    there.learn(a, "second")
    world.run(1_000)
    assert stopped(a) == [LossReason.TOPIC_REPLACED]
    assert world.run_until(lambda: a.fetching != {}, 3 * INTERVAL)
    assert list(a.fetching.values()) == [start]
    assert position_in_log(world, a) == start  # before the first record is fetched
    assert tenure not in a.fetching
    assert [effect.offset for effect in a.done(events.CommitOffset)][-1] == start
    _process(world, a, 60)
    assert position_in_log(world, a) == start + 60


def _process(world: MarshalScript, member: ScriptedMember, records: int) -> None:
    """Let the application process the next records, and a heartbeat say so."""
    (tenure,) = member.fetching
    if member.member.settings.delivery is events.Delivery.AT_LEAST_ONCE:
        member.work(records)
        world.run(INTERVAL)
        return
    first = member.fetching[tenure]
    member.deliver(events.Fetched(tenure, first, first + records))
    assert world.run_until(
        lambda: member.done(events.Deliver)[-1:] == [events.Deliver(tenure, first + records)], INTERVAL
    )


def test_the_id_in_the_log_outlives_the_holder() -> None:
    """The topic is created again while no member runs. The id is said often enough for a log that is trimmed."""
    there = Partition(60, "first")
    world, a = holder(find_start=there)
    a.work(50)
    world.run(30 * INTERVAL)
    said = [entry.time_ms for entry in world.entries(IdentifyingTopic)]
    assert max(later - earlier for earlier, later in pairwise(said)) < 6 * INTERVAL
    a.kill()
    there.topic_id = "second"
    b = world.start("b")
    assert world.run_until(lambda: b.fetching != {}, 4 * INTERVAL)
    assert list(b.fetching.values()) == [0]


@pytest.mark.parametrize("rules", ["document", "library"])
@pytest.mark.parametrize("delivery", events.Delivery)
def test_an_end_before_the_position_begins_the_partition_anew(rules: str, delivery: events.Delivery) -> None:
    """A broker without ids: no log says which topic the position is of."""
    there = Partition(60)
    world, a = holder(find_start=there, rules=rules)
    a.work(50)
    world.run(INTERVAL)
    world.shut_down(a)
    world.run(1_000)
    there.end = 20
    b = world.start("b", delivery=delivery)
    assert world.run_until(lambda: b.fetching != {}, 3 * INTERVAL)
    assert list(b.fetching.values()) == [0]
    assert [note.facts["reason"] for note in b.noted("start moved")] == ["the log's offset 50 is above the end, 20"]
    assert bool(world.entries(IdentifyingTopic)) == (rules == "document")


def test_a_late_heartbeat_of_before_the_reset_does_not_count() -> None:
    there = Partition(60, "first")
    world, a = holder(find_start=there)
    a.work(50)
    world.run(INTERVAL)
    world.shut_down(a)
    world.run(1_000)
    there.topic_id = "second"
    fates = [Fate((3_000,), 3_100)]
    world.fate = lambda _, message: fates.pop() if isinstance(message, Heartbeat) and fates else Fate()
    b = world.start("b")
    assert world.run_until(lambda: b.fetching != {}, INTERVAL)
    world.run(5_000)
    of_b = [entry.message for entry in world.entries(Heartbeat) if entry.message.client_id == "b"]
    assert 50 in [message.current_offset for message in of_b[1:]], "the one of before landed behind one of after"
    assert position_in_log(world, b) == 0


def test_a_truncated_partition_repeats_nothing_at_most_once() -> None:
    """An unclean election has taken records that were delivered; the topic is the same."""
    there = Partition(60, "first")
    world, a = holder(find_start=there, delivery=events.Delivery.AT_MOST_ONCE)
    _process(world, a, 50)
    a.kill()
    there.end = 30
    b = world.start("b", delivery=events.Delivery.AT_MOST_ONCE)
    assert world.run_until(lambda: b.fetching != {}, 4 * INTERVAL)
    assert list(b.fetching.values()) == [30]
    assert position_in_log(world, b) == 50


@pytest.mark.parametrize("rules", ["document", "library"])
def test_an_expired_claim_is_released_when_the_log_is_back(rules: str) -> None:
    world, a = holder(rules=rules, heartbeat_interval_ms=60_000)
    a.work(40)
    world.fate = lambda *_: LOST
    assert world.run_until(lambda: stopped(a) == [LossReason.EXPIRED], 70_000)
    world.fate = lambda *_: Fate()
    world.run(5_000)
    assert world.entries(ReleasingPartition)[0].message.current_offset == 40


def test_position_waits_for_the_oldest_record() -> None:
    prefix = AckTracker(5)
    prefix.delivered([5, 6, 7], 8)
    prefix.processed(7)
    prefix.processed(6)
    assert (prefix.position, prefix.in_flight) == (5, 1)
    prefix.processed(5)
    assert (prefix.position, prefix.in_flight) == (8, 0)


def test_position_passes_gaps_of_compaction_and_control_records() -> None:
    prefix = AckTracker(0)
    prefix.delivered([4, 9], 12)
    assert prefix.position == 4  # nothing is below the first record
    prefix.processed(4)
    assert prefix.position == 9
    prefix.processed(9)
    assert prefix.position == 12
    prefix.delivered([], 20)
    assert prefix.position == 20


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (4, "was not delivered: the tenure has started at offset 5"),
        (5, "was processed before"),
        (7, "or there is none"),
        (9, "was not delivered: the next one is at offset 9 or above"),
    ],
)
def test_processed_record_that_is_not_in_flight_is_refused(offset: int, words: str) -> None:
    prefix = AckTracker(5)
    prefix.delivered([5, 6, 8], 9)
    prefix.processed(5)
    with pytest.raises(PrefixError, match=words):
        prefix.processed(offset)
    assert (prefix.position, prefix.in_flight) == (6, 2)


@pytest.mark.parametrize(("offsets", "end"), [([4], 9), ([6, 6], 9), ([7, 6], 9), ([6, 7], 7), ([], 4)])
def test_delivery_out_of_order_is_refused_as_a_whole(offsets: list[int], end: int) -> None:
    prefix = AckTracker(5)
    with pytest.raises(PrefixError):
        prefix.delivered(offsets, end)
    assert (prefix.position, prefix.in_flight) == (5, 0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_position_is_the_first_offset_that_is_not_processed(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 5))
    prefix, end, unprocessed, before = AckTracker(start), start, list[int](), start
    for _ in range(data.draw(st.integers(1, 30))):
        if unprocessed and data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(unprocessed))
            unprocessed.remove(offset)
            prefix.processed(offset)
        else:
            gaps = data.draw(st.lists(st.integers(0, 3), max_size=4))
            offsets: list[int] = []
            for gap in gaps:
                offsets.append(end + gap)
                end = offsets[-1] + 1
            end += data.draw(st.integers(0, 2))
            prefix.delivered(offsets, end)
            unprocessed += offsets
        assert prefix.position == min(unprocessed, default=end) >= before
        assert prefix.in_flight == len(unprocessed)
        before = prefix.position
