"""Pausing a group: ReleaseGroup on every coordination partition.

Setting Consumer Group Position: each step, each failure, and what is left in the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kcoord_wire.marshal.admin import AdminSettings, Finished, GroupPauser, PositionSetter, Result, Step
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.world_state import Entry, Rules
from kcoord_wire.messages.marshal import (
    ClaimingPartition,
    ClaimingRange,
    Heartbeat,
    RangeHeartbeat,
    ReleaseGroup,
    ReleasingPartition,
    ReleasingRange,
)
from tests.support.marshal_admin import LANDS, LATE, LOST, UNANSWERED, WALL_MS, AdminBench, Peer
from tests.support.marshal_script import Fate

BOTH = pytest.mark.parametrize("rules", list(Rules))


def paused(rules: Rules, until_ms: int, **kwargs: object) -> AdminBench:
    settings = AdminSettings("g", "a0", 3, rules, heartbeat_interval_ms=2_000)
    made = AdminBench(GroupPauser(settings, until_ms, range(3)), rules, partitions=3, **kwargs)  # type: ignore[arg-type]  # of its fields
    made.add(Peer("c1", {0: 7}))
    return made.run()


@BOTH
def test_a_pause_is_on_every_coordination_partition(rules: Rules) -> None:
    made = paused(rules, WALL_MS + 60_000)
    assert made.finished == Finished("", (), WALL_MS + 60_000)
    messages = {entry.partition: entry.message for entry in made.entries if isinstance(entry.message, ReleaseGroup)}
    assert sorted(messages) == [0, 1, 2]
    assert {(each.version, each.msg_expire_time - each.time) for each in messages.values()} == {(0, 60)}
    made.wait(1_000)
    assert made.holder(0) == ""
    assert made.position(0) == 7


@BOTH
def test_a_resumption_is_a_pause_that_ends_at_once(rules: Rules) -> None:
    made = paused(rules, 0)
    assert made.finished == Finished("", (), 0)
    messages = [entry.message for entry in made.entries if isinstance(entry.message, ReleaseGroup)]
    assert [each.msg_expire_time - each.time for each in messages] == [0, 0, 0]
    assert made.holder(0) == "c1"


def test_a_pause_has_bounds() -> None:
    for until_ms in (WALL_MS - 1, WALL_MS + 8 * 86_400_000):
        made = paused(Rules.DOCUMENT, until_ms)
        assert made.finished == Finished("a pause ends in the future, within 7 days", ())
        assert not any(isinstance(entry.message, ReleaseGroup) for entry in made.entries)


def test_a_partition_that_takes_nothing_is_named() -> None:
    first = iter([LOST])
    made = paused(Rules.DOCUMENT, WALL_MS + 60_000, fate=lambda message, number: next(first, LANDS))
    assert made.finished == Finished("", (), WALL_MS + 60_000)  # the second attempt has landed
    made = paused(Rules.DOCUMENT, WALL_MS + 60_000, fate=lambda message, number: LOST)
    assert made.finished == Finished("coordination partition 0: no answer", ())


def test_the_client_id_is_no_member_s() -> None:
    assert AdminSettings("g", "a0", 3).client_id == "kcoord-admin-a0"


NEW = {TopicPartition("t", partition): offset for partition, offset in enumerate((3, 4_000, 17))}
OLD = {0: 100, 1: 200, 2: 300}
SET, KEPT = [3, 4_000, 17], [100, 200, 300]


def bench(
    rules: Rules, peers: list[Peer] | None = None, wanted: dict[TopicPartition, int] = NEW, **kwargs: Any
) -> AdminBench:
    """An admin that sets positions of partitions 0 to 2 of topic t, which a member holds."""
    settings = AdminSettings("g", "a0", 1, rules, heartbeat_interval_ms=2_000)
    made = AdminBench(PositionSetter(settings, wanted), rules, **kwargs)
    for peer in [Peer("c1", dict(OLD))] if peers is None else peers:
        made.add(peer)
    return made


def own(made: AdminBench, kind: type) -> list[tuple[int, Any]]:
    """Where in the log the admin's messages of a kind are, and what they say."""
    messages = [(index, entry.message) for index, entry in enumerate(made.entries)]
    return [(at, message) for at, message in messages if isinstance(message, kind) and message.instance_id == "a0"]


def outcome(made: AdminBench) -> Finished:
    assert made.finished is not None
    return made.finished


def results(made: AdminBench) -> list[Result]:
    return [each.result for each in outcome(made).positions]


def positions(made: AdminBench) -> list[int]:
    return [made.position(partition) for partition in OLD]


@pytest.mark.parametrize(
    ("kind", "topic_id", "is_refused"),
    [
        (RangeHeartbeat, "new", True),  # the range is done
        (None, "new", True),  # it is held
        (ReleasingRange, "new", False),  # nothing of it was processed
        (RangeHeartbeat, "former", False),
    ],
)
@BOTH
def test_no_position_is_set_where_ranges_are_claimed(
    rules: Rules, kind: type | None, topic_id: str, is_refused: bool
) -> None:
    settings = AdminSettings("g", "a0", 1, rules, heartbeat_interval_ms=2_000)
    made = AdminBench(PositionSetter(settings, NEW, {"t": "new"}), rules)
    peer, at = Peer("c1", {}), {"topic_id": topic_id, "first_offset": 5}
    made.append(0, made.message(peer, ClaimingRange, 1, **at, end_offset=9))
    if kind is not None:
        made.append(0, made.message(peer, kind, 1, **at, current_offset=9 if kind is RangeHeartbeat else 5))
    made.run()
    if is_refused:
        assert outcome(made).failure.startswith("members claim ranges of offsets of t-1, which have no position")
        assert results(made) == [Result.KEPT] * 3
        assert [each for each in made.entries if each.message.instance_id == "a0"] == []
        assert made.commits == []
    else:
        assert results(made) == [Result.SET] * 3


@BOTH
def test_the_steps_are_in_the_order_of_the_former_admin(rules: Rules) -> None:
    made = bench(rules).run()
    assert outcome(made) == Finished("", outcome(made).positions)
    assert [(each.old, each.new, each.result) for each in outcome(made).positions] == [
        (100, 3, Result.SET),
        (200, 4_000, Result.SET),
        (300, 17, Result.SET),
    ]
    assert positions(made) == SET
    [(pause, paused), (resume, resumed)] = own(made, ReleaseGroup)
    claims, releases = own(made, ClaimingPartition), own(made, ReleasingPartition)
    theirs = [at for at, entry in enumerate(made.entries) if entry.message.instance_id == "i-c1"]
    assert pause < max(theirs) < claims[0][0] <= claims[-1][0] < releases[0][0] <= releases[-1][0] < resume
    assert (paused.version, paused.topic, paused.partition) == (0, "", 0)
    assert paused.msg_expire_time - paused.time == 14
    assert resumed.msg_expire_time == resumed.time
    steps = list(dict.fromkeys(each.step for each in made.progress))
    assert steps == [Step.READ, Step.PAUSE, Step.WAIT, Step.CLAIM, Step.COMMIT, Step.RELEASE, Step.RESUME]


@BOTH
def test_heartbeats_have_the_old_positions_until_all_are_claimed(rules: Rules) -> None:
    dead = Peer("c2", {2: 300}, ends_at=1)  # its claim becomes stale, the others are held meanwhile
    made = bench(rules, [Peer("c1", {0: 100, 1: 200}), dead]).run()
    heartbeats = own(made, Heartbeat)
    assert {(message.partition, message.current_offset) for _, message in heartbeats} == {(0, 100), (1, 200), (2, 300)}
    assert max(at for at, _ in heartbeats) < min(at for at, _ in own(made, ReleasingPartition))
    assert positions(made) == SET


@BOTH
def test_the_group_goes_on_from_the_new_positions(rules: Rules) -> None:
    made = bench(rules).run()
    made.wait(1_000)
    made.add(Peer("c1", {0: 3, 1: 4_000, 2: 17}))
    assert [made.holder(partition) for partition in OLD] == ["c1"] * 3
    assert positions(made) == SET


@BOTH
def test_positions_of_a_group_that_nobody_consumes(rules: Rules) -> None:
    made = bench(rules, []).run()
    assert positions(made) == SET
    assert outcome(made).failure == ""


@BOTH
def test_a_dead_member_is_waited_for_until_it_is_stale(rules: Rules) -> None:
    made = bench(rules, [Peer("c1", dict(OLD), ends_at=1)]).run()
    assert outcome(made).failure == ""
    assert 4_000 <= made.now < 8_000
    assert next(each.waiting_for for each in made.progress if each.step is Step.WAIT) == "c1"


@BOTH
def test_members_that_ignore_the_pause_are_named(rules: Rules) -> None:
    made = bench(rules, [Peer("c1", {0: 100, 1: 200}), Peer("go-1", {2: 300}, obeys=False)]).run()
    assert "go-1 goes on although the group is paused: it ignores ReleaseGroup" in outcome(made).failure
    assert made.now < 5_000  # an interval after the pause, not the whole wait of 6 s
    assert results(made) == [Result.KEPT] * 3
    assert own(made, ReleasingPartition) == []  # nothing was claimed
    [_, (_, resumed)] = own(made, ReleaseGroup)
    assert resumed.msg_expire_time == resumed.time
    assert positions(made)[:2] == [100, 200]
    assert made.holder(2) == "go-1"


@BOTH
def test_the_wait_has_a_limit(rules: Rules) -> None:
    """A member that answers the pause by silence, and whose claim somebody keeps alive within the grace."""
    settings = AdminSettings("g", "a0", 1, rules, heartbeat_interval_ms=2_000, wait_ms=1_000, pause_ms=60_000)
    made = AdminBench(PositionSetter(settings, NEW), rules)
    made.add(Peer("c1", dict(OLD), obeys=False))
    made.run()
    assert outcome(made).failure == "after 1 s partitions are still claimed by c1"


@BOTH
def test_another_admin_at_work_is_left_alone(rules: Rules) -> None:
    made = bench(rules, [Peer("kcoord-admin-b1", {0: 100})]).run()
    assert outcome(made).failure == "another admin, kcoord-admin-b1, holds t-0"
    assert own(made, ReleaseGroup) == []


@BOTH
def test_a_pause_of_somebody_else_stays(rules: Rules) -> None:
    made = bench(rules, [])
    until = made.message(Peer("kcoord-admin-b1", {}), Heartbeat, 0).time + 300
    made.append(0, ReleaseGroup(time=until - 300, instance_id="b1", client_id="b", group_id="g", msg_expire_time=until))
    made.run()
    assert outcome(made).failure == ""
    assert {message.msg_expire_time - until for _, message in own(made, ReleaseGroup)} <= {-1, 0}
    assert positions(made) == SET


@BOTH
def test_a_member_that_takes_a_claim_from_the_admin(rules: Rules) -> None:
    """The library takes any heartbeat; by the document it has no effect, and the admin goes on."""
    made = bench(rules)

    def fate(message: Any, number: int) -> Fate:
        if isinstance(message, Heartbeat):  # the first one of the admin
            made.later(15, lambda: made.message(Peer("c9", {}), Heartbeat, 0, current_offset=111))
        return LANDS

    made.fate = fate
    made.run()
    if rules is Rules.DOCUMENT:
        assert outcome(made).failure == ""
        assert positions(made) == SET
    else:
        assert outcome(made).failure == "c9 has taken t-0 from the admin"
        assert positions(made) == [111, 200, 300]


@BOTH
def test_the_commit_in_kafka_comes_first_and_may_fail(rules: Rules) -> None:
    made = bench(rules).run()
    assert made.commits == [NEW]
    made = bench(rules, commit_fails="not authorized").run()
    assert outcome(made).failure == "the positions cannot be committed in Kafka: not authorized"
    assert positions(made) == KEPT
    assert [made.holder(partition) for partition in OLD] == [""] * 3
    assert results(made) == [Result.KEPT] * 3


@BOTH
def test_unknown_positions_are_not_said_to_be_kept(rules: Rules) -> None:
    """Where the log has 0 the committed offset counts, and the failed commit may have changed it."""
    made = bench(rules, [Peer("c1", {0: 0, 1: 200, 2: 0})], commit_fails="timed out").run()
    assert results(made) == [Result.UNKNOWN, Result.KEPT, Result.UNKNOWN]


@BOTH
def test_offset_zero_is_released_and_committed(rules: Rules) -> None:
    made = bench(rules, wanted={TopicPartition("t", 0): 0}).run()
    assert made.position(0) == 0
    assert made.commits == [{TopicPartition("t", 0): 0}]
    assert outcome(made).failure == ""


@BOTH
@pytest.mark.parametrize("step", [Step.PAUSE, Step.WAIT, Step.CLAIM, Step.COMMIT, Step.RELEASE, Step.RESUME])
def test_an_interrupt_gives_everything_back_or_comes_too_late(rules: Rules, step: Step) -> None:
    made = bench(rules)
    made.shuts_down_at = step
    made.run()
    is_late = step in (Step.RELEASE, Step.RESUME)
    assert outcome(made).failure == ("" if is_late else "it was interrupted")
    assert positions(made) == (SET if is_late else KEPT)
    assert {made.holder(partition) for partition in OLD} <= {"", "c1"}
    assert own(made, ReleaseGroup)[-1][1].msg_expire_time == own(made, ReleaseGroup)[-1][1].time


@BOTH
def test_the_group_goes_on_wherever_the_admin_dies(rules: Rules) -> None:
    """Its claims become stale, and its pause ends; whatever it has written, positions are old or new ones."""
    appends = len([entry for entry in bench(rules).run().entries if entry.message.instance_id == "a0"])
    assert appends >= 1 + 3 + 3 + 3 + 1
    for number in range(1, appends + 1):
        made = bench(rules, dies_at=number).run()
        assert made.is_dead
        for partition, old in OLD.items():
            assert made.position(partition) in (old, NEW[TopicPartition("t", partition)])
        made.wait(20_000)  # longer than the pause and two intervals
        later = Peer("c7", {partition: made.position(partition) for partition in OLD})
        if number > 1:  # else the group was never paused, and its member is there
            made.add(later)
            assert [made.holder(partition) for partition in OLD] == ["c7"] * 3


FATES: dict[str, Callable[[Any], bool]] = {
    "pause": lambda message: isinstance(message, ReleaseGroup) and message.msg_expire_time > message.time,
    "claim": lambda message: isinstance(message, ClaimingPartition),
    "heartbeat": lambda message: isinstance(message, Heartbeat),
    "release": lambda message: isinstance(message, ReleasingPartition),
    "resume": lambda message: isinstance(message, ReleaseGroup) and message.msg_expire_time <= message.time,
}


@BOTH
@pytest.mark.parametrize("what", FATES)
def test_appends_that_fail_for_good(rules: Rules, what: str) -> None:
    made = bench(rules, fate=lambda message, number: LOST if FATES[what](message) else LANDS).run()
    assert (
        outcome(made).failure
        == {
            "pause": "the group cannot be paused: coordination partition 0: no answer",
            "claim": "after 6 s the partitions could not be claimed",
            "heartbeat": "",  # all claims win at once, so that none is needed
            "release": "the log has not accepted all releases",
            "resume": "",
        }[what]
    )
    is_set = what in ("heartbeat", "resume")
    assert positions(made) == (SET if is_set else KEPT)
    assert results(made) == [Result.SET if is_set else Result.KEPT] * 3
    assert (outcome(made).paused_until > 0) == (what == "resume")


@BOTH
def test_a_release_whose_answer_was_lost_is_looked_up_in_the_log(rules: Rules) -> None:
    made = bench(rules, fate=lambda message, number: UNANSWERED if FATES["release"](message) else LANDS).run()
    assert outcome(made).failure == ""
    assert positions(made) == SET
    assert len(own(made, ReleasingPartition)) == 3  # none was sent again


@BOTH
def test_a_release_that_may_still_land_is_unknown(rules: Rules) -> None:
    made = bench(rules, fate=lambda message, number: LATE if FATES["release"](message) else LANDS).run()
    assert outcome(made).failure == "the log has not accepted all releases"
    assert results(made) == [Result.UNKNOWN] * 3
    made.wait(5_000)
    assert positions(made)[1] == 4_000  # by the document a position goes back only while the group is paused


@pytest.mark.parametrize("seed", range(120))
def test_positions_are_old_or_new_whatever_fails(seed: int) -> None:
    """After every entry of the log, and in what is reported, partition by partition."""
    draw = random.Random(seed)
    rules = draw.choice(list(Rules))
    fates = [LANDS] * draw.choice((2, 6, 20)) + [LOST, UNANSWERED, LATE]
    peers = [Peer("c1", {0: 100, 1: 200}), Peer("c2", {2: 300}, ends_at=draw.choice((1, 1 << 60)))]
    made = bench(rules, peers, fate=lambda message, number: draw.choice(fates))
    if draw.random() < 0.2:
        made.dies_at = draw.randrange(1, 12)
    if draw.random() < 0.2:
        made.shuts_down_at = draw.choice(list(Step))
    seen: list[tuple[int, int]] = []
    appended = made.script.log.on_append

    def watched(entry: Entry) -> None:
        appended(entry)
        seen.extend((each, made.position(each)) for each in OLD)

    made.script.log.on_append = watched
    made.run()
    made.wait(30_000)  # what is late lands
    assert {pair for pair in seen if pair[1] not in (OLD[pair[0]], NEW[TopicPartition("t", pair[0])])} == set()
    if made.finished is not None:
        for each in made.finished.positions:
            wanted = {Result.SET: [each.new], Result.KEPT: [each.old], Result.UNKNOWN: [each.old, each.new]}
            assert made.position(each.place.partition) in wanted[each.result], made.finished
    assert [made.holder(partition) for partition in OLD if made.holder(partition).startswith("kcoord")] == []


@pytest.mark.parametrize(
    ("wanted", "settings", "error"),
    [
        ({}, {}, "no position"),
        ({TopicPartition("t", 1): -1}, {}, "t-1: an offset is at least 0, not -1"),
        (NEW, {"pause_ms": 5_000, "wait_ms": 4_000}, "must outlast"),
        (NEW, {"pause_ms": 8 * 86_400_000}, "7 days"),
    ],
)
def test_what_is_refused_at_once(wanted: dict[TopicPartition, int], settings: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        PositionSetter(AdminSettings("g", "a0", 1, heartbeat_interval_ms=2_000, **settings), wanted)


def test_each_coordination_partition_is_paused_once() -> None:
    wanted = {TopicPartition(topic, 0): 5 for topic in ("test1", "test2", "test3", "unknown")}  # on 2, 1, 2, 1 of 4
    settings = AdminSettings("g", "a0", 4, heartbeat_interval_ms=2_000)
    made = AdminBench(PositionSetter(settings, wanted), Rules.DOCUMENT, partitions=4).run()
    pauses = [entry.partition for entry in made.entries if FATES["pause"](entry.message)]
    assert sorted(pauses) == [1, 2]
    assert outcome(made).failure == ""
    for topic in ("test1", "test2", "test3", "unknown"):
        claim = made.claim(0, topic)
        assert claim is not None
        assert claim.current_offset == 5
