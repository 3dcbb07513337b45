"""What real clients did to real brokers, as it was recorded: cases that only they have shown.

The recordings are described in tests/data/recordings/README.md.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.model import (
    Exchange,
    GroupHistory,
    Rebalance,
    Sighting,
    SightingKind,
    arrow_schema,
    table_of,
)
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.forensics.wire.history import wire_history

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"


def tables(name: str) -> tuple[pa.Table, pa.Table]:
    """The exchanges of a recording, and what it tells of topics."""
    matcher = Matcher()
    told = [matcher.feed(batch) for batch in read_frames(RECORDINGS / f"{name}.kcrec")]
    told.append(matcher.finish())
    assert matcher.losses == []
    exchanges = pa.Table.from_batches([batch for batch, _ in told], arrow_schema(Exchange))
    return exchanges, pa.Table.from_batches([batch for _, batch in told], arrow_schema(Sighting))


def history(name: str) -> GroupHistory:
    return wire_history(*tables(name))


def told(rebalances: list[Rebalance]) -> list[tuple[str, str | None, str | None, str]]:
    return [(r.cause, r.client_id, r.removed[0].why if r.removed else None, r.outcome) for r in rebalances]


def test_a_heartbeat_that_crosses_a_join() -> None:
    """Nothing has begun by the time at which it was sent, but by the time at which it was answered."""
    rebalances = history("late-confluent").rebalances
    assert told(rebalances)[2] == (Cause.COOPERATIVE_FOLLOW_UP, "first", None, "stable")
    assert Cause.UNKNOWN not in {r.cause for r in rebalances}


def test_a_static_restart_does_not_prolong_a_rebalance() -> None:
    second = history("static-java").rebalances[1]
    assert (second.cause, second.client_id, second.outcome) == (Cause.NEW_MEMBER, "restarted", "stable")
    assert second.duration_ms == pytest.approx(250, abs=250)


def test_a_lost_broker_is_a_failover() -> None:
    """Its members come back under the ids that they had: they have not been restarted."""
    assert told(history("lost-join-confluent").rebalances) == [
        (Cause.NEW_MEMBER, "first", None, "stable"),
        (Cause.NEW_MEMBER, "second", None, "interrupted"),
        (Cause.COORDINATOR_FAILOVER, "second", None, "stable"),
        (Cause.MEMBER_LEFT, "second", "left", "stable"),
        (Cause.MEMBER_LEFT, "first", "left", "empty"),
    ]


def test_a_session_lasts_while_heartbeats_are_answered() -> None:
    """As here, where the broker comes back and begins all sessions anew: were another member back before that ends."""
    exchanges, topics = tables("lost-member")
    expired = wire_history(exchanges, topics).rebalances[2]
    assert (expired.cause, expired.client_id) == (Cause.SESSION_EXPIRED, "second")
    beats = exchanges.filter(
        pc.and_(pc.equal(exchanges["api"], "Heartbeat"), pc.equal(exchanges["client_id"], "first"))
    )
    beat = beats.filter(pc.equal(beats["error_code"], 0)).to_pylist()[-1]
    times = [expired.joined_ns - back * 100_000_000 for back in range(20, 1, -1)]
    added = [{**beat, "asked_ns": at, "answered_ns": at + 1000, "seq": 1_000_000 + at % 1_000_000} for at in times]
    later = wire_history(pa.concat_tables([exchanges, pa.Table.from_pylist(added, exchanges.schema)]), topics)
    assert told(later.rebalances)[2] == (Cause.SESSION_EXPIRED, "second", "session timeout", "stable")
    assert later.rebalances[2].started_ns == times[-1]


def test_a_member_that_does_not_poll_leaves_while_others_join() -> None:
    rebalances = history("poll-kafka-python").rebalances
    assert told(rebalances)[3] == (Cause.LEADER_REJOINED, "first", "poll timeout", "stable")
    lives = [life for life in history("poll-kafka-python").members if life.client_id == "second"]
    assert [life.why_left for life in lives] == ["poll timeout", "left"]


def test_unsubscribing_is_leaving() -> None:
    """Sooner than its max.poll.interval.ms it cannot have exceeded it, although its connection stays."""
    assert told(history("unsubscribed").rebalances)[2] == (Cause.MEMBER_LEFT, "second", "left", "stable")


@pytest.mark.parametrize("name", ["modern-java", "modern-confluent"])
def test_a_member_of_the_consumer_protocol_is_killed(name: str) -> None:
    """However long the interval of its heartbeats is, which is the broker's."""
    rebalances = history(name).rebalances
    assert told(rebalances)[3:] == [
        (Cause.NEW_MEMBER, "third", None, "stable"),
        (Cause.SESSION_EXPIRED, "third", "session timeout", "stable"),
        (Cause.MEMBER_LEFT, "first", "left", "empty"),
    ]
    assert [(r.members_before, r.members_after) for r in rebalances] == [(0, 1), (1, 2), (2, 1), (1, 2), (2, 1), (1, 0)]


def test_topics_of_other_groups_raise_no_epoch() -> None:
    exchanges, topics = tables("modern-confluent")
    unexplained = exchanges.filter(pc.not_equal(pc.fill_null(exchanges["generation_id"], 0), -1))  # second's leave
    third = history("modern-confluent").rebalances[2]

    def with_sizes(topic: str) -> Rebalance:
        seen = [
            Sighting(at, "frames", "127.0.0.1:1-127.0.0.1:2#9", "first", SightingKind.TOPIC, topic, None, size)
            for at, size in ((third.started_ns - 3_000_000_000, 4), (third.started_ns, 6))
        ]
        return wire_history(unexplained, pa.concat_tables([topics, table_of(Sighting, seen)])).rebalances[2]

    assert with_sizes("orders-of-others").cause != Cause.TOPICS_CHANGED
    assert with_sizes("orders-modern-confluent").cause == Cause.TOPICS_CHANGED


def test_a_bug_of_the_real_library_is_named() -> None:
    """librdkafka 2.6.0 has stated its version, and does not come out of its assignor."""
    (found,) = analyze([RECORDINGS / "librdkafka-4783.kcrec"]).histories
    (stuck,) = found.findings
    assert (stuck.detector, stuck.known_bugs) == ("stuck_completing", ["librdkafka#4783"])
    assert "confluent-kafka-python 2.6.0-rdkafka-2.6.0 has a known bug" in stuck.text


def test_members_of_a_share_group_wait_for_none_to_revoke() -> None:
    """Epoch 3 and 7 follow when the state of new partitions is initialized; all members had partitions of others."""
    [found] = analyze([RECORDINGS / "share-java.kcrec"]).histories
    assert found.group.protocol_type == "share"
    assert told(found.rebalances) == [
        (Cause.NEW_MEMBER, "one", None, "stable"),
        (Cause.TOPICS_CHANGED, None, None, "stable"),
        (Cause.NEW_MEMBER, "two", None, "stable"),
        (Cause.NEW_MEMBER, "three", None, "stable"),
        (Cause.SESSION_EXPIRED, "two", "session timeout", "stable"),
        (Cause.TOPICS_CHANGED, None, None, "stable"),
        (Cause.TOPICS_CHANGED, None, None, "stable"),
        (Cause.MEMBER_LEFT, "one", "left", "stable"),
        (Cause.MEMBER_LEFT, "three", "left", "empty"),
    ]
    details = {row.generation_id: row.detail for row in found.rebalances}
    assert details[3] == "4 partitions of orders assigned for the first time: share state initialized"
    assert details[7] == "topic orders has 6 partitions and had 4 before"
    assert details[8] == "2 partitions of orders assigned for the first time: share state initialized"
    assert not any(row.waited_for for row in found.rebalances)
    assert [row.moved_needlessly for row in found.rebalances] == [0] * 9
    at_once = max(
        sum(row.partition == 1 and row.from_ns <= at.from_ns < (row.to_ns or at.from_ns) for row in found.ownership)
        for at in found.ownership
    )
    assert at_once == 2


def test_records_that_come_back_are_found() -> None:
    """One is released each time; others are held for longer than their lock lasts."""
    [found] = analyze([RECORDINGS / "share-java.kcrec"]).histories
    [again] = [row for row in found.findings if row.detector == "redelivered_records"]
    assert (again.severity, again.value, again.subject) == ("critical", 5, None)
    deliveries = [row.text for row in again.evidence if "orders-1, 3," in row.text]
    assert deliveries == [f"delivery {n} of orders-1, 3, to one" for n in (3, 4, 5)]
    assert not {row.detector for row in found.findings} & {"slow_revocation", "uneven_assignment", "two_owners"}


def test_tasks_of_a_streams_group_have_owners_and_pauses() -> None:
    """The first tasks come behind the initial delay of 3 s; one instance is killed and holds four tasks until then."""
    [found] = analyze([RECORDINGS / "streams-java.kcrec"]).histories
    assert found.group.protocol_type == "streams"
    assert told(found.rebalances) == [
        (Cause.NEW_MEMBER, "one-StreamThread-1-consumer", None, "stable"),
        (Cause.NEW_MEMBER, None, None, "stable"),
        (Cause.NEW_MEMBER, "two-StreamThread-1-consumer", None, "stable"),
        (Cause.SESSION_EXPIRED, "two-StreamThread-1-consumer", "session timeout", "stable"),
        (Cause.NEW_MEMBER, "three-StreamThread-1-consumer", None, "stable"),
        (Cause.MEMBER_LEFT, "one-StreamThread-1-consumer", "left", "stable"),
        (Cause.MEMBER_LEFT, "three-StreamThread-1-consumer", "left", "empty"),
    ]
    assert "the initial delay is over, and internal topics are there, 3.2 s after" in found.rebalances[1].detail
    assert {(row.topic, row.partition) for row in found.ownership} == {(each, n) for each in "01" for n in range(4)}
    expired = found.rebalances[3]
    assert expired.paused_ms == pytest.approx(4 * 6_000, rel=0.05), "four tasks, for the session timeout of 6 s"
    [dead] = [row for row in found.findings if row.detector == "dead_member"]
    assert "died" in dead.text
    assert dead.subject == "two-StreamThread-1-consumer"


@pytest.mark.parametrize("name", ["share-java", "streams-java"])
def test_the_brokers_log_has_the_same_epochs(name: str) -> None:
    """The log has more causes (a topic's hash), and does not show why a member is gone."""
    [wire] = analyze([RECORDINGS / f"{name}.kcrec"]).histories
    [log] = analyze([RECORDINGS / f"{name}.offsets"]).histories
    assert log.group.protocol_type == wire.group.protocol_type == name.partition("-")[0]
    # A streams group answers the first join with epoch 1, before it has one.
    seen = [row for row in wire.rebalances if row.generation_id is not None][1:]
    begun = {row.generation_id: row for row in log.rebalances}
    assert {2, *(row.generation_id for row in seen), seen[-1].generation_id + 1} == set(begun)
    later = seen[1:]
    assert all(abs(begun[row.generation_id].started_ns - row.started_ns) < 2_000_000_000 for row in later)
    gone = {Cause.SESSION_EXPIRED: Cause.MEMBER_LEFT}
    assert [begun[row.generation_id].cause for row in later] == [gone.get(row.cause, row.cause) for row in later]
    assert [begun[row.generation_id].client_id for row in seen] == [row.client_id for row in seen]
    spans = [{(row.topic, row.partition, row.client_id) for row in each.ownership} for each in (wire, log)]
    assert spans[0] == spans[1]
    assert len(spans[0]) > 8
