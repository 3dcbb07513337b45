"""Offsets of groups: committed, fetched, deleted and expired."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import Load, LogRecord, PendingRecord, Producer, Request, Resign
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.core.offsets import DeletedTopics
from kcoord_wire.coordinator.host import Runtime
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.group_states import STATES, group_in, versions
from tests.support.scripted import Script, Topics, protocols, subscribed


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


def test_the_old_generation_commits_until_the_join_is_complete(script: Script) -> None:
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
def test_unknown_topics_are_refused_alone(script: Script, version: int) -> None:
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


def test_all_offsets_of_a_group(script: Script) -> None:
    script.commit(3, partition=1)
    script.commit(4, topic="payments")
    answer = script.ask(m.OffsetFetchRequest(group_id="g", topics=None), 7)
    found = {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}
    assert found == {("orders", 1): 3, ("payments", 0): 4}
    asked = [m.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "other")]
    groups = script.ask(m.OffsetFetchRequest(groups=asked), 9).groups
    assert [(group.group_id, len(group.topics), group.error_code) for group in groups] == [("g", 2, 0), ("other", 0, 0)]


def test_unknown_topic_ids_fail_alone(script: Script) -> None:
    asked = [m.OffsetFetchRequestGroup(group_id="g", topics=[m.OffsetFetchRequestTopics(partition_indexes=[0])])]
    answer = script.ask(m.OffsetFetchRequest(groups=asked), 10)
    assert answer.groups[0].topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [9, 10])
def test_offsets_of_a_topic_that_is_gone_have_no_id(version: int, script: Script) -> None:
    """It was deleted in an earlier process, whose log says nothing of that."""
    assert script.commit(5, topic="payments") == 0
    assert script.commit(6, topic="orders") == 0
    del script.topics.known["payments"]
    request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=None)])
    (found,) = script.ask(request, version).groups
    assert len(found.topics) == (1 if version >= 10 else 2)


def test_offsets_are_deleted_unless_subscribed_to(script: Script) -> None:
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


def test_offsets_of_other_kinds_of_groups_are_deleted_when_empty(script: Script) -> None:
    (member_id,) = script.stable("a", protocol_type="connect")
    request = m.OffsetDeleteRequest(group_id="g", topics=[])
    assert script.ask(request).error_code == E.NON_EMPTY_GROUP
    script.leave(member_id)
    assert script.ask(request).error_code == 0
    assert script.ask(m.OffsetDeleteRequest(group_id="other")).error_code == E.GROUP_ID_NOT_FOUND


DAY = 24 * 3_600_000


def test_offsets_of_an_empty_group_expire_after_it_became_empty(script: Script) -> None:
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


def test_unsubscribed_offsets_expire_in_a_stable_group(script: Script) -> None:
    (member_id,) = script.stable("a", session_ms=1_800_000)
    script.commit(5, member_id=member_id, generation=1)
    script.commit(6, member_id=member_id, generation=1, topic="payments")
    for _ in range(8 * 50 + 1):
        script.wait(DAY // 50)
        script.heartbeat(member_id)
    assert (script.committed("orders"), script.committed("payments")) == (5, -1)
    assert script.state() == "Stable"


def test_offsets_without_a_group_expire_after_their_commit(script: Script) -> None:
    script.commit(5)
    script.wait(4 * DAY)
    script.commit(6, partition=1)
    script.wait(4 * DAY)
    assert (script.committed(partition=0), script.committed(partition=1)) == (-1, 6)
    script.wait(4 * DAY)
    assert script.state() == "Dead"


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_commit_can_say_how_long_it_is_kept(script: Script, version: int) -> None:
    script.commit(5, version=version, retention_time_ms=3_600_000)
    ((_, value),) = script.log[-1]
    assert value.expire_timestamp == script.now + 3_600_000
    script.wait(3_600_000 + 600_000)
    assert script.committed() == -1


def test_a_commit_that_is_kept_for_ever_fits_into_the_log(script: Script) -> None:
    script.commit(5, version=4, retention_time_ms=(1 << 63) - 1)
    ((_, value),) = script.log[-1]
    assert value.expire_timestamp == (1 << 63) - 1


def test_an_expired_group_is_not_missed_before_the_log_knows_it(script: Script) -> None:
    script.commit(5)
    script.wait(8 * DAY)
    token = script.send(m.DescribeGroupsRequest(groups=["g"]))
    assert script.after[token] == len(script.log) == 2


def test_an_offset_deleted_twice_is_gone_with_either_answer(script: Script) -> None:
    script.commit(5)
    partitions = [m.OffsetDeleteRequestPartition(partition_index=0)]
    request = m.OffsetDeleteRequest(
        group_id="g", topics=[m.OffsetDeleteRequestTopic(name="orders", partitions=partitions)]
    )
    tokens = [script.send(request), script.send(request)]
    assert [script.after[token] for token in tokens] == [2, 2]


# ---- Topics that are deleted while groups are read from the log: each deletion is applied once to each partition

A, B, AB = frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"})


def test_a_deletion_is_for_the_partitions_that_were_read() -> None:
    deleted = DeletedTopics()
    deleted.note(A, frozenset({1, 2}))
    assert deleted.read(frozenset({3})) == []
    assert deleted.read(frozenset({1, 3})) == [(A, frozenset({1}))]
    deleted.note(B, frozenset({2}))
    assert deleted.read(frozenset(range(5))) == [(AB, frozenset({2}))]
    assert deleted.read(frozenset(range(5))) == []


def test_a_deletion_while_nothing_is_read_is_not_kept() -> None:
    deleted = DeletedTopics()
    deleted.note(A, frozenset())
    assert deleted.read(frozenset(range(5))) == []


def test_many_deletions_of_one_time_are_one_entry() -> None:
    deleted = DeletedTopics()
    for number in range(100):
        deleted.note(frozenset({f"t{number}"}), frozenset({1}))
    ((names, read),) = deleted.read(frozenset({1}))
    assert (len(names), read) == (100, frozenset({1}))


# ---- Offsets within transactions: when they count, what OffsetFetch answers meanwhile, and what a restart leaves

NOW = 1_700_000_000_000
PRODUCER, OTHER = (7, 0), (8, 3)


class Host:
    """A group machine with its log, on a disk in memory."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.now = NOW
        self._token = 0
        self.restart()

    def restart(self, *, compact: bool = False) -> None:
        """Begin anew from the log."""
        if compact:
            self.runtime.store.compact()
        config = GroupConfig(initial_rebalance_delay_ms=0)
        self.brokers = Brokers([Endpoint(1, "localhost", 9092)])
        machine = GroupMachine(self.brokers, Topics(), subscribed, config)
        self.runtime = Runtime(machine, Store(self.disk), self._send)
        self.answers: dict[int, Any] = {}
        self.runtime.recover(self.now)

    def _send(self, token: int, message: Any) -> None:
        self.answers[token] = message

    def ask(self, message: Any, version: int) -> Any:
        self._token += 1
        self.runtime.submit(Request(self._token, message, version, "c", "/127.0.0.1", f"u{self._token}"), self.now)
        while (sync := self.runtime.begin_sync()) is not None:
            sync.run()
            self.runtime.end_sync(sync)
        return self.answers[self._token]

    def txn_commit(
        self, producer: tuple[int, int], offset: int, *, partition: int = 0, topic: str = "orders", **member: Any
    ) -> int:
        item = m.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        known: dict[str, Any] = {"group_id": "g", "producer_id": producer[0], "producer_epoch": producer[1]}
        topics = [m.TxnOffsetCommitRequestTopic(name=topic, partitions=[item])]
        request = m.TxnOffsetCommitRequest(topics=topics, **{**known, **member})
        return int(self.ask(request, 4).topics[0].partitions[0].error_code)

    def commit(self, offset: int) -> int:
        item = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = m.OffsetCommitRequestTopic(name="orders", partitions=[item])
        return int(self.ask(m.OffsetCommitRequest(group_id="g", topics=[topic]), 8).topics[0].partitions[0].error_code)

    def end(self, producer: tuple[int, int], *, commit: bool, error: int = 0) -> None:
        place = self.brokers.groups.partition_of("g")
        topic = m.WriteTxnMarkersRequestWritableTxnMarkerTopic(name="__consumer_offsets", partition_indexes=[place])
        marker = m.WriteTxnMarkersRequestWritableTxnMarker(
            producer_id=producer[0], producer_epoch=producer[1], transaction_result=commit, topics=[topic]
        )
        answer = self.ask(m.WriteTxnMarkersRequest(markers=[marker]), 1)
        assert answer.markers[0].topics[0].partitions[0].error_code == error

    def offset(self, *, stable: bool = False, version: int = 7, group_id: str = "g") -> int:
        """Return what is committed for orders 0, or the error as a negative number."""
        if version < 8:
            topic = m.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
            request = m.OffsetFetchRequest(group_id=group_id, topics=[topic], require_stable=stable)
            (item,) = self.ask(request, version).topics[0].partitions
        else:
            asked = m.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])
            group = m.OffsetFetchRequestGroup(group_id="g", topics=[asked])
            request = m.OffsetFetchRequest(groups=[group], require_stable=stable)
            (item,) = self.ask(request, version).groups[0].topics[0].partitions
        return -item.error_code if item.error_code else item.committed_offset


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.mark.parametrize("version", [7, 9])
def test_an_offset_counts_once_its_transaction_is_committed(host: Host, version: int) -> None:
    host.commit(3)
    assert host.txn_commit(PRODUCER, 5) == 0
    assert host.offset(version=version) == 3
    assert host.offset(stable=True, version=version) == -E.UNSTABLE_OFFSET_COMMIT
    host.end(PRODUCER, commit=True)
    assert host.offset(version=version) == host.offset(stable=True, version=version) == 5


def test_an_offset_of_an_aborted_transaction_never_counts(host: Host) -> None:
    host.commit(3)
    host.txn_commit(PRODUCER, 5)
    host.end(PRODUCER, commit=False)
    assert host.offset(stable=True) == 3
    host.end(PRODUCER, commit=True)
    assert host.offset() == 3, "it is gone"


def test_the_offset_that_was_written_later_wins(host: Host) -> None:
    host.txn_commit(PRODUCER, 5)
    host.commit(9)
    host.end(PRODUCER, commit=True)
    assert host.offset() == 9
    host.txn_commit(PRODUCER, 11)
    host.txn_commit(OTHER, 12)
    host.end(OTHER, commit=True)
    host.end(PRODUCER, commit=True)
    assert host.offset() == 12
    host.txn_commit(PRODUCER, 13)
    host.txn_commit(OTHER, 14)
    host.end(PRODUCER, commit=True)
    assert host.offset() == 13
    host.end(OTHER, commit=True)
    assert host.offset() == 14


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_pending_offsets_survive_a_restart(host: Host, commit: bool, compact: bool) -> None:
    host.commit(3)
    host.txn_commit(PRODUCER, 5)
    host.restart(compact=compact)
    assert (host.offset(), host.offset(stable=True)) == (3, -E.UNSTABLE_OFFSET_COMMIT)
    host.end(PRODUCER, commit=commit)
    host.restart(compact=compact)
    assert host.offset() == host.offset(stable=True) == (5 if commit else 3)


@pytest.mark.parametrize("compact", [False, True])
def test_a_restart_keeps_the_order_of_what_was_written(host: Host, compact: bool) -> None:
    host.txn_commit(PRODUCER, 5)
    host.commit(9)
    host.restart(compact=compact)
    host.end(PRODUCER, commit=True)
    assert host.offset() == 9
    host.restart(compact=compact)
    assert host.offset() == 9


def test_a_group_of_pending_offsets_alone_is_kept(host: Host) -> None:
    host.txn_commit(PRODUCER, 5)
    host.restart()
    assert host.offset(stable=True) == -E.UNSTABLE_OFFSET_COMMIT
    host.end(PRODUCER, commit=True)
    assert host.offset() == 5


def test_deleting_a_group_or_offset_removes_what_is_pending(host: Host) -> None:
    host.txn_commit(PRODUCER, 5)
    topic = m.OffsetDeleteRequestTopic(name="orders", partitions=[m.OffsetDeleteRequestPartition(partition_index=0)])
    host.ask(m.OffsetDeleteRequest(group_id="g", topics=[topic]), 0)
    host.restart()
    host.end(PRODUCER, commit=True)
    assert host.offset() == -1
    host.txn_commit(PRODUCER, 6)
    host.ask(m.DeleteGroupsRequest(groups_names=["g"]), 2)
    host.restart()
    host.end(PRODUCER, commit=True)
    assert host.offset() == -1


def test_deleting_a_group_keeps_what_is_pending_for_others(host: Host) -> None:
    host.txn_commit(PRODUCER, 5)
    host.txn_commit(PRODUCER, 6, group_id="h")
    host.ask(m.DeleteGroupsRequest(groups_names=["g"]), 2)
    host.commit(3)
    host.end(PRODUCER, commit=True)
    assert (host.offset(), host.offset(group_id="h")) == (3, 6)


def test_members_are_checked_where_they_are_named(host: Host) -> None:
    join = m.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols("range")
    )
    member = host.ask(join, 3).member_id
    named = {"member_id": member, "generation_id_or_member_epoch": 1}
    assert host.txn_commit(PRODUCER, 5, **named) == 0, "also while the assignment is awaited"
    assert host.txn_commit(PRODUCER, 5) == 0, "a client before KIP-447"
    named["generation_id_or_member_epoch"] = 2
    assert host.txn_commit(PRODUCER, 5, **named) == E.ILLEGAL_GENERATION
    assert host.txn_commit(PRODUCER, 5, member_id="x", generation_id_or_member_epoch=1) == E.UNKNOWN_MEMBER_ID


def test_the_empty_group_has_no_offsets_in_transactions() -> None:
    assert Host().txn_commit(PRODUCER, 5, group_id="") == E.INVALID_GROUP_ID


def test_a_partition_that_does_not_exist_fails_alone(host: Host) -> None:
    assert host.txn_commit(PRODUCER, 5, partition=99) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert host.txn_commit(PRODUCER, 5, topic="none") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert host.txn_commit(PRODUCER, 5, generation_id_or_member_epoch=4) == E.ILLEGAL_GENERATION


def test_of_an_open_transaction_only_offsets_are_pending() -> None:
    """Another program's log may have a tombstone or another record there."""
    script = Script()
    records = [
        LogRecord(m.GroupMetadataKey(group="g"), m.GroupMetadataValue()),
        LogRecord(m.OffsetCommitKey(group="g", topic="orders", partition=0), None),
    ]
    script.do(Load([], pending=[PendingRecord(Producer(1, 0), record) for record in records]))
    assert script.machine.groups == {}


def test_metadata_has_a_bound_in_transactions_too(host: Host) -> None:
    items = [
        m.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=5, committed_metadata="x" * length)
        for index, length in enumerate((4_096, 4_097))
    ]
    topic = m.TxnOffsetCommitRequestTopic(name="orders", partitions=items)
    answer = host.ask(m.TxnOffsetCommitRequest(group_id="g", producer_id=7, producer_epoch=0, topics=[topic]), 4)
    assert [each.error_code for each in answer.topics[0].partitions] == [0, E.OFFSET_METADATA_TOO_LARGE]


def test_while_a_partition_is_read_transactions_wait(host: Host) -> None:
    assert host.txn_commit(PRODUCER, 5) == 0
    place = host.brokers.groups.partition_of("g")
    host.runtime.submit(Resign(frozenset([place])), host.now)
    host.brokers.set_loading([place])
    records, pending = host.runtime.store.read(lambda group: True)
    host.end(PRODUCER, commit=True, error=E.COORDINATOR_LOAD_IN_PROGRESS)
    assert host.txn_commit(OTHER, 6) == E.COORDINATOR_LOAD_IN_PROGRESS
    host.runtime.submit(Load(records, frozenset([place]), pending), host.now)
    host.brokers.set_loading([])
    assert host.offset(stable=True) == -E.UNSTABLE_OFFSET_COMMIT
    host.end(PRODUCER, commit=True)
    assert host.offset(stable=True) == 5, "what was read before the marker would be pending for ever"


def test_unknown_topics_are_answered_before_the_group_is_asked(host: Host) -> None:
    item = m.TxnOffsetCommitRequestPartition(committed_offset=1)

    def commit(*topics: str) -> list[int]:
        named = [m.TxnOffsetCommitRequestTopic(name=topic, partitions=[item]) for topic in topics]
        request = m.TxnOffsetCommitRequest(group_id="g", generation_id_or_member_epoch=9, member_id="x", topics=named)
        return [topic.partitions[0].error_code for topic in host.ask(request, 3).topics]

    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert commit("nothing") == [unknown]
    assert commit("nothing", "orders") == [unknown, E.ILLEGAL_GENERATION]
    assert not host.runtime.machine.groups
