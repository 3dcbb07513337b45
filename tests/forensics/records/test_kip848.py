"""Groups of the newer consumer protocol from records written by hand: every record type, cause and end."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from kcoord_wire import messages as m
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.model import GroupHistory, LogRow, table_of
from kcoord_wire.forensics.records.reader import log_history
from kcoord_wire.records import encode_offsets_record

NOW = 1_700_000_000_000_000_000
MS = 1_000_000
IDS = {name: uuid.uuid5(uuid.NAMESPACE_OID, name) for name in "tuv"}
STABLE, REVOKING, WAITING = 0, 1, 2

Written = tuple[bytes, bytes | None]
Held = dict[str, Sequence[int]]


class Log:
    """Records of a group; those of one `at` are of one moment."""

    def __init__(self) -> None:
        self.rows: list[LogRow] = []
        self.now = NOW

    def at(self, ms: int) -> Log:
        self.now = NOW + ms * MS
        return self

    def write(self, key: Any, value: Any, version: int | None = None) -> Log:
        raw_key, raw_value = encode_offsets_record(key, value, value_version=version)
        offset = len(self.rows)
        self.rows.append(LogRow("x.log", 0, offset, offset, self.now, raw_key, raw_value))
        return self

    def topics(self, **counts: int) -> Log:
        topics = [
            m.ConsumerGroupPartitionMetadataValueTopicMetadata(
                topic_id=IDS[name], topic_name=name, num_partitions=count, partition_metadata=[]
            )
            for name, count in counts.items()
        ]
        return self.write(
            m.ConsumerGroupPartitionMetadataKey(group_id="g"), m.ConsumerGroupPartitionMetadataValue(topics=topics)
        )

    def member(self, member_id: str, *topics: str, **fields: Any) -> Log:
        value = m.ConsumerGroupMemberMetadataValue(
            client_id=member_id.upper(),
            client_host="/10.0.0.9",
            subscribed_topic_names=list(topics) or ["t"],
            rebalance_timeout_ms=60_000,
            **fields,
        )
        return self.write(m.ConsumerGroupMemberMetadataKey(group_id="g", member_id=member_id), value)

    def epoch(self, epoch: int, metadata_hash: int = 0) -> Log:
        value = m.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
        return self.write(m.ConsumerGroupMetadataKey(group_id="g"), value)

    def target(self, epoch: int, **members: Held) -> Log:
        for member_id, held in members.items():
            topics = [
                m.ConsumerGroupTargetAssignmentMemberValueTopicPartition(
                    topic_id=IDS[name], partitions=list(partitions)
                )
                for name, partitions in held.items()
            ]
            key = m.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id=member_id)
            self.write(key, m.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics))
        value = m.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
        return self.write(m.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), value)

    def has(self, member_id: str, epoch: int, held: Held, *, state: int = STABLE, revoking: Held | None = None) -> Log:
        assigned, pending = (
            [
                m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(
                    topic_id=IDS[name], partitions=list(partitions)
                )
                for name, partitions in topics.items()
            ]
            for topics in (held, revoking or {})
        )
        value = m.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=epoch, state=state, assigned_partitions=assigned, partitions_pending_revocation=pending
        )
        return self.write(m.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=member_id), value)

    def gone(self, member_id: str) -> Log:
        for kind in ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata"):
            self.write(getattr(m, f"ConsumerGroup{kind}Key")(group_id="g", member_id=member_id), None)
        return self

    def history(self) -> GroupHistory:
        return log_history(self.table())

    def table(self) -> pa.Table:
        return table_of(LogRow, self.rows)


def alone() -> Log:
    """A member with three partitions, in epoch 1."""
    log = Log().member("a").topics(t=3).epoch(1)
    return log.target(1, a={"t": [0, 1, 2]}).has("a", 1, {"t": [0, 1, 2]})


def two() -> Log:
    """A second has joined and been given partition 2, in epoch 2, by way of a revocation."""
    log = alone().at(1_000).member("b").epoch(2).target(2, a={"t": [0, 1]}, b={"t": [2]})
    log.has("b", 2, {}, state=WAITING)
    log.at(1_200).has("a", 1, {"t": [0, 1]}, state=REVOKING, revoking={"t": [2]})
    log.at(1_500).has("a", 2, {"t": [0, 1]})
    return log.at(1_900).has("b", 2, {"t": [2]})


def last_cause(log: Log) -> tuple[Cause | str, str | None, float]:
    last = log.history().rebalances[-1]
    return last.cause, last.client_id, last.confidence


def test_a_rebalance_from_epoch_to_the_last_member() -> None:
    history = two().history()
    first, second = history.rebalances
    assert (first.outcome, first.duration_ms, first.generation_id) == ("stable", 0.0, 1)
    assert (second.cause, second.client_id, second.client_host) == (Cause.NEW_MEMBER, "B", "10.0.0.9")
    assert (second.joining_ms, second.syncing_ms, second.duration_ms) == (0.0, 900.0, 900.0)
    assert (second.last_client_id, second.late_ms) == ("A", 500.0)
    assert (second.moved, second.moved_needlessly, second.paused_ms) == (1, 0, 400.0)
    assert (second.cooperative, second.members_before, second.members_after) == (True, 1, 2)
    assert [(item.partition, item.client_id, item.to_ns is None) for item in history.ownership] == [
        (0, "A", True),
        (1, "A", True),
        (2, "A", False),
        (2, "B", True),
    ]
    (pause,) = history.pauses
    assert (pause.from_ns, pause.to_ns, pause.rebalance) == (NOW + 1_500 * MS, NOW + 1_900 * MS, 2)
    assert (pause.former_member_id, pause.next_member_id) == ("a", "b")
    assert [(state.state, state.generation_id) for state in history.states] == [
        ("Stable", 1),
        ("Reconciling", 2),
        ("Stable", 2),
    ]
    assert [(g.generation_id, g.members, g.partitions, g.stable_ns) for g in history.generations] == [
        (1, 1, 3, NOW),
        (2, 2, 3, NOW + 1_900 * MS),
    ]
    assert history.group.protocol_type == "consumer"


def test_a_target_that_comes_later() -> None:
    log = two().at(3_000).gone("b").epoch(3)
    assert log.history().rebalances[-1].outcome == "open"
    assert log.history().states[-1].state == "Assigning"
    log.at(3_300).target(3, a={"t": [0, 1, 2]})
    assert log.history().states[-1].state == "Reconciling"
    log.at(3_700).has("a", 3, {"t": [0, 1, 2]})
    last = log.history().rebalances[-1]
    assert (last.outcome, last.joining_ms, last.syncing_ms) == ("stable", 300.0, 400.0)
    assert [(removed.client_id, removed.why) for removed in last.removed] == [("B", "left or timed out")]
    assert (last.moved, last.paused_ms) == (1, 700.0)


def test_an_epoch_before_the_one_before_is_done() -> None:
    log = two().at(3_000).member("c").epoch(3).target(3, a={"t": [0]}, b={"t": [2]}, c={"t": [1]})
    log.at(3_500).member("d").epoch(4).target(4, a={"t": [0]}, b={"t": [2]}, c={"t": [1]}, d={})
    third, fourth = log.history().rebalances[2:]
    assert (third.outcome, third.duration_ms) == ("interrupted", 500.0)
    assert (fourth.outcome, fourth.ended_ns) == ("open", None)
    assert log.history().generations[2].stable_ns is None


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (lambda log: log.member("b", "t"), (Cause.NEW_MEMBER, "B", 1.0)),
        (lambda log: log.member("b").member("c"), (Cause.NEW_MEMBER, None, 1.0)),
        (lambda log: log.member("a", "t", "u"), (Cause.SUBSCRIPTION_CHANGED, "A", 1.0)),
        (lambda log: log.member("a", subscribed_topic_regex="t.*"), (Cause.SUBSCRIPTION_CHANGED, "A", 1.0)),
        (lambda log: log.member("a", server_assignor="range"), (Cause.ASSIGNORS_CHANGED, "A", 1.0)),
        (lambda log: log.topics(t=5), (Cause.TOPICS_CHANGED, None, 1.0)),
        (lambda log: log.topics(), (Cause.TOPICS_CHANGED, None, 1.0)),
        (lambda log: log.gone("a").member("b"), (Cause.NEW_MEMBER, "B", 0.8)),
        (lambda log: log.topics(t=5).member("b"), (Cause.NEW_MEMBER, "B", 0.8)),
        (lambda log: log.member("b").gone("b"), (Cause.UNKNOWN, None, 0.0)),
        (lambda log: log, (Cause.UNKNOWN, None, 0.0)),
    ],
)
def test_causes(happens: Any, expected: tuple[Cause, str | None, float]) -> None:
    assert last_cause(happens(alone().at(1_000)).epoch(2)) == expected


def test_a_member_that_leaves_last() -> None:
    history = two().at(3_000).gone("a").gone("b").epoch(3).history()
    last = history.rebalances[-1]
    assert (last.outcome, last.cause, last.client_id, last.members_before) == ("empty", Cause.MEMBER_LEFT, None, 2)
    assert history.states[-1].state == "Empty"
    assert {pause.rebalance for pause in history.pauses} == {2}, "none from when it was stopped"


def test_a_new_hash_means_changed_topics() -> None:
    log = Log().member("a").epoch(1, 77).target(1, a={"t": [0]}).has("a", 1, {"t": [0]})
    assert log.history().ownership[0].topic == "t", "the one topic it subscribes to"
    assert last_cause(log.at(1_000).epoch(2, 78)) == (Cause.TOPICS_CHANGED, None, 1.0)
    early = Log().member("a").epoch(1).target(1, a={}).has("a", 1, {}).at(400).epoch(2, 77)
    assert last_cause(early) == (Cause.TOPICS_CHANGED, None, 1.0), "the broker has come to know the topic"
    both = Log().member("a", "t", "u").epoch(1, 77).target(1, a={"t": [0], "u": [0]}).has("a", 1, {"t": [0], "u": [0]})
    assert {item.topic for item in both.history().ownership} == {f"id:{IDS[name].hex}" for name in "tu"}
    assert "2 topic ids without a name: no record has it." in both.history().group.blind


def test_commits_name_topics() -> None:
    held = {name: [0] for name in "tuv"}
    log = Log().member("a", "t", "u", "v").epoch(1, 77).target(1, a=held).has("a", 1, held)
    key = m.OffsetCommitKey(group="g", topic="u", partition=0)
    log.write(key, m.OffsetCommitValue(offset=1, topic_id=IDS["u"]), 4)
    assert {item.topic for item in log.history().ownership} == {"u", *(f"id:{IDS[name].hex}" for name in "tv")}


def test_patterns() -> None:
    key = m.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="t|u")
    value = m.ConsumerGroupRegularExpressionValue
    log = Log().member("a", subscribed_topic_regex="t|u").write(key, value(topics=["t"])).epoch(1)
    assert log.history().members[0].topics == ["t"]
    assert last_cause(log.at(9).write(key, value(topics=["t", "u"])).epoch(2)) == (Cause.TOPICS_CHANGED, None, 1.0)
    assert log.history().members[0].topics == ["t", "u"]


def test_static_members_go_for_a_while() -> None:
    log = Log().member("a", instance_id="i").topics(t=1).epoch(1).target(1, a={"t": [0]}).has("a", 1, {"t": [0]})
    log.at(5_000).has("a", -2, {"t": [0]})
    log.at(8_000).gone("a").member("b", instance_id="i").target(1, b={"t": [0]}).has("b", 1, {"t": [0]})
    history = log.history()
    assert len(history.rebalances) == 1
    assert [(life.member_id, life.why_left) for life in history.members] == [("a", "replaced"), ("b", None)]
    (pause,) = history.pauses
    assert (pause.from_ns, pause.to_ns, pause.rebalance) == (NOW + 5_000 * MS, NOW + 8_000 * MS, None)
    assert last_cause(log.at(9_000).gone("b").member("c", "u", instance_id="i").epoch(2)) == (
        Cause.STATIC_REPLACED,
        "C",
        1.0,
    )


def test_a_compacted_log() -> None:
    log = Log().member("a").topics(t=1).epoch(41).target(41, a={"t": [0]}).has("a", 41, {"t": [0]})
    history = log.history()
    assert (history.rebalances[0].cause, history.rebalances[0].confidence) == (Cause.UNKNOWN, 0.0)
    assert "compacted" in history.rebalances[0].detail
    assert history.ownership[0].client_id == "A"


def test_a_deleted_group() -> None:
    log = two().at(4_000).gone("a").gone("b").epoch(3)
    log.at(5_000).write(m.ConsumerGroupMetadataKey(group_id="g"), None)
    history = log.history()
    assert history.states[-1].to_ns == NOW + 5_000 * MS
    assert all(pause.to_ns is not None for pause in history.pauses)
    assert last_cause(log.at(6_000).member("z").epoch(1)) == (Cause.NEW_MEMBER, "Z", 1.0)


# ---- members that take long to give up partitions


def revoking(log: Log) -> Log:
    """A second has joined, and the first has partition 2 to give up from 1,200 ms on."""
    log.at(1_000).member("b").epoch(2).target(2, a={"t": [0, 1]}, b={"t": [2]})
    log.has("b", 2, {}, state=WAITING)
    return log.at(1_200).has("a", 1, {"t": [0, 1]}, state=REVOKING, revoking={"t": [2]})


def test_the_log_shows_whom_a_reconciliation_waited_for() -> None:
    log = revoking(alone())
    log.at(19_200).has("a", 2, {"t": [0, 1]}).at(19_300).has("b", 2, {"t": [2]})
    [wait] = log.history().rebalances[-1].waited_for
    assert (wait.client_id, wait.end, wait.from_ns, wait.ms) == ("A", "revoking", NOW + 1_200 * MS, 18_000.0)
    [found] = findings_of("slow_revocation", log.history())
    assert found.text == "the reconciliation to epoch 2 waited 18.0 s for A (10.0.0.9) to give up partitions"
    assert two().history().rebalances[-1].waited_for == []


@pytest.mark.parametrize(
    ("gone_ms", "cause"),
    [(61_300, Cause.REBALANCE_TIMEOUT), (30_000, Cause.MEMBER_LEFT), (75_000, Cause.REBALANCE_TIMEOUT)],
)
def test_a_member_gone_at_its_rebalance_timeout_was_fenced(gone_ms: int, cause: Cause) -> None:
    log = revoking(alone()).at(gone_ms).gone("a").epoch(3).target(3, b={"t": [0, 1, 2]})
    last = log.at(gone_ms + 500).has("b", 3, {"t": [0, 1, 2]}).history().rebalances[-1]
    assert last.cause == cause
    if last.cause == Cause.REBALANCE_TIMEOUT:
        assert [(gone.client_id, gone.why) for gone in last.removed] == [("A", "rebalance timeout")]
        assert "had not given up partitions within its rebalance timeout of 60 s" in last.detail
