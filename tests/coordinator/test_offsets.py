"""Offsets of groups: committed, fetched, deleted and expired."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.group_states import STATES, group_in, versions
from tests.support.scripted import Script


@pytest.mark.parametrize("version", [version for version in versions("OffsetCommitRequest") if version >= 1])
@pytest.mark.parametrize("state", STATES)
def test_a_member_commits(state: str, version: int) -> None:
    script, member_id, generation = group_in(state)
    code = {
        "missing": E.GROUP_ID_NOT_FOUND if version >= 9 else E.ILLEGAL_GENERATION,
        "Empty": E.UNKNOWN_MEMBER_ID,
        "PreparingRebalance": E.NONE,  # the old generation may still commit
        "CompletingRebalance": E.REBALANCE_IN_PROGRESS,
        "Stable": E.NONE,
    }[state]
    assert script.commit(41, member_id=member_id, generation=generation, version=version) == code
    assert script.committed() == (-1 if code else 41)


@pytest.mark.parametrize("version", versions("OffsetCommitRequest"))
@pytest.mark.parametrize("state", STATES)
def test_a_client_without_a_member_id_commits(state: str, version: int) -> None:
    script, _, _ = group_in(state)
    code = E.NONE if state in ("missing", "Empty") else E.UNKNOWN_MEMBER_ID
    if version == 0:
        code = E.UNSUPPORTED_VERSION  # such offsets were in ZooKeeper
    assert script.commit(41, version=version) == code
    assert script.committed() == (-1 if code else 41)


@pytest.mark.parametrize("version", versions("OffsetFetchRequest"))
@pytest.mark.parametrize("state", STATES)
def test_offsets_are_fetched_in_every_state(state: str, version: int) -> None:
    script, _, _ = group_in(state)
    if version >= 8:
        asked = m.OffsetFetchRequestTopics(name="orders", partition_indexes=[3])
        asked.topic_id = script.topics.id_of("orders") or asked.topic_id
        groups = [m.OffsetFetchRequestGroup(group_id="g", topics=[asked])]
        group = script.ask(m.OffsetFetchRequest(groups=groups), version).groups[0]
        assert group.error_code == 0
        partition = group.topics[0].partitions[0]
    else:
        topics = [m.OffsetFetchRequestTopic(name="orders", partition_indexes=[3])]
        answer = script.ask(m.OffsetFetchRequest(group_id="g", topics=topics), version)
        assert answer.error_code == 0
        partition = answer.topics[0].partitions[0]
    assert (partition.partition_index, partition.committed_offset, partition.committed_leader_epoch) == (3, -1, -1)
    assert (partition.metadata, partition.error_code) == ("", E.UNSUPPORTED_VERSION if version == 0 else 0)


def test_an_empty_group_id_may_hold_offsets() -> None:
    script = Script(group_id="")
    assert script.commit(7) == 0
    assert script.committed() == 7
    assert script.state() == "Empty"


def test_the_old_generation_commits_until_the_join_is_complete() -> None:
    script = Script()
    leader, follower = script.stable("a", "b")
    script.join(leader)
    assert script.commit(10, member_id=follower, generation=1) == 0
    script.join(follower)
    assert script.commit(11, member_id=follower, generation=1) == E.ILLEGAL_GENERATION
    assert script.commit(11, member_id=follower, generation=2) == E.REBALANCE_IN_PROGRESS
    assert script.committed() == 10


def test_metadata_has_a_bound_and_fails_alone() -> None:
    script = Script(config=GroupConfig(offset_metadata_max_bytes=4))
    assert script.commit(1, metadata="\u00e9\u00e9\U0001f600") == 0
    assert script.commit(1, metadata="\u00e9\u00e9\u00e9\U0001f600", partition=1) == E.OFFSET_METADATA_TOO_LARGE
    assert script.commit(1, metadata=None, partition=2) == 0
    assert [script.committed(partition=index) for index in range(3)] == [1, -1, 1]


@pytest.mark.parametrize("version", versions("OffsetCommitRequest"))
def test_unknown_topics_are_refused_alone(version: int) -> None:
    script = Script()
    code = E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION
    code = code if version else E.UNSUPPORTED_VERSION
    assert script.commit(1, topic="nowhere", version=version) == code
    if version:
        for partition in (-1, 12):
            code = script.commit(1, partition=partition, version=version)
            assert code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert script.state() == "Dead"


def test_partitions_that_do_not_exist_come_first_in_the_answer() -> None:
    def topic(name: str, *partitions: int) -> m.OffsetCommitRequestTopic:
        items = [m.OffsetCommitRequestPartition(partition_index=index) for index in partitions]
        return m.OffsetCommitRequestTopic(name=name, partitions=items)

    topics = [topic("orders", 0, 99), topic("nowhere", 0), topic("payments", 1), topic("orders", 1)]

    def outcome(topics: list[m.OffsetCommitRequestTopic]) -> list[tuple[str, list[tuple[int, int]]]]:
        answer = Script().ask(m.OffsetCommitRequest(group_id="g", topics=topics), 8)
        return [(t.name, [(p.partition_index, p.error_code) for p in t.partitions]) for t in answer.topics]

    refused = [("orders", [(99, 3), (0, 0), (1, 0)]), ("nowhere", [(0, 3)]), ("payments", [(1, 0)])]
    assert outcome(topics) == refused
    assert outcome(topics[2:] + topics[2:]) == [(name, [(1, 0)]) for name in ("payments", "orders") * 2]


def test_a_commit_that_stores_nothing_leaves_no_group() -> None:
    script = Script(config=GroupConfig(offset_metadata_max_bytes=0))
    assert script.commit(1, metadata="x") == E.OFFSET_METADATA_TOO_LARGE
    assert script.ask(m.ListGroupsRequest()).groups == []


def test_all_offsets_of_a_group() -> None:
    script = Script()
    script.commit(3, partition=1)
    script.commit(4, topic="payments")
    answer = script.ask(m.OffsetFetchRequest(group_id="g", topics=None), 7)
    found = {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}
    assert found == {("orders", 1): 3, ("payments", 0): 4}
    asked = [m.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "other")]
    groups = script.ask(m.OffsetFetchRequest(groups=asked), 9).groups
    assert [(group.group_id, len(group.topics), group.error_code) for group in groups] == [("g", 2, 0), ("other", 0, 0)]


def test_unknown_topic_ids_fail_alone() -> None:
    script = Script()
    asked = [m.OffsetFetchRequestGroup(group_id="g", topics=[m.OffsetFetchRequestTopics(partition_indexes=[0])])]
    answer = script.ask(m.OffsetFetchRequest(groups=asked), 10)
    assert answer.groups[0].topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_ID


def test_offsets_are_deleted_unless_subscribed_to() -> None:
    script = Script()
    (member_id,) = script.stable("a")
    for topic in ("orders", "payments"):
        assert script.commit(5, member_id=member_id, generation=1, topic=topic) == 0
    partitions = [m.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1)]
    names = ("orders", "payments", "nowhere")
    request = m.OffsetDeleteRequest(
        group_id="g", topics=[m.OffsetDeleteRequestTopic(name=name, partitions=partitions) for name in names]
    )
    answer = script.ask(request)
    assert [{p.error_code for p in topic.partitions} for topic in answer.topics] == [
        {E.UNKNOWN_TOPIC_OR_PARTITION},
        {E.GROUP_SUBSCRIBED_TO_TOPIC},
        {0},
    ]
    assert (script.committed("orders"), script.committed("payments")) == (5, -1)
    assert [(key.topic, key.partition, value) for key, value in script.log[-1]] == [("payments", 0, None)]


def test_offsets_of_other_kinds_of_groups_are_deleted_when_empty() -> None:
    script = Script()
    (member_id,) = script.stable("a", protocol_type="connect")
    request = m.OffsetDeleteRequest(group_id="g", topics=[])
    assert script.ask(request).error_code == E.NON_EMPTY_GROUP
    script.leave(member_id)
    assert script.ask(request).error_code == 0
    assert script.ask(m.OffsetDeleteRequest(group_id="other")).error_code == E.GROUP_ID_NOT_FOUND


DAY = 24 * 3_600_000


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    script = Script()
    (member_id,) = script.stable("a")
    script.commit(5, member_id=member_id, generation=1)
    script.leave(member_id)
    script.wait(6 * DAY)
    assert script.committed() == 5
    script.wait(DAY + 600_000)
    assert script.state() == "Dead"
    assert {type(key).__name__ for key, value in script.log[-1] if value is None} == {
        "OffsetCommitKey",
        "GroupMetadataKey",
    }


def test_unsubscribed_offsets_expire_in_a_stable_group() -> None:
    script = Script()
    (member_id,) = script.stable("a", session_ms=1_800_000)
    script.commit(5, member_id=member_id, generation=1)
    script.commit(6, member_id=member_id, generation=1, topic="payments")
    for _ in range(8 * 50 + 1):
        script.wait(DAY // 50)
        script.heartbeat(member_id)
    assert (script.committed("orders"), script.committed("payments")) == (5, -1)
    assert script.state() == "Stable"


def test_offsets_without_a_group_expire_after_their_commit() -> None:
    script = Script()
    script.commit(5)
    script.wait(4 * DAY)
    script.commit(6, partition=1)
    script.wait(4 * DAY)
    assert (script.committed(partition=0), script.committed(partition=1)) == (-1, 6)
    script.wait(4 * DAY)
    assert script.state() == "Dead"


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_commit_can_say_how_long_it_is_kept(version: int) -> None:
    script = Script()
    script.commit(5, version=version, retention_time_ms=3_600_000)
    ((_, value),) = script.log[-1]
    assert value.expire_timestamp == script.now + 3_600_000
    script.wait(3_600_000 + 600_000)
    assert script.committed() == -1


def test_a_commit_that_is_kept_for_ever_fits_into_the_log() -> None:
    script = Script()
    script.commit(5, version=4, retention_time_ms=(1 << 63) - 1)
    ((_, value),) = script.log[-1]
    assert value.expire_timestamp == (1 << 63) - 1


def test_an_expired_group_is_not_missed_before_the_log_knows_it() -> None:
    script = Script()
    script.commit(5)
    script.wait(8 * DAY)
    token = script.send(m.DescribeGroupsRequest(groups=["g"]))
    assert script.after[token] == len(script.log) == 2


def test_an_offset_deleted_twice_is_gone_with_either_answer() -> None:
    script = Script()
    script.commit(5)
    partitions = [m.OffsetDeleteRequestPartition(partition_index=0)]
    request = m.OffsetDeleteRequest(
        group_id="g", topics=[m.OffsetDeleteRequestTopic(name="orders", partitions=partitions)]
    )
    tokens = [script.send(request), script.send(request)]
    assert [script.after[token] for token in tokens] == [2, 2]
