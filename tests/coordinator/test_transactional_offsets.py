"""Offsets within transactions: when they count, what OffsetFetch answers meanwhile, and what a restart leaves."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import Load, Request, Resign
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.runtime import Runtime
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.scripted import Topics, protocols, subscribed

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
        place = self.brokers.partition_of_group("g")
        topic = m.WriteTxnMarkersRequestWritableTxnMarkerTopic(name="__consumer_offsets", partition_indexes=[place])
        marker = m.WriteTxnMarkersRequestWritableTxnMarker(
            producer_id=producer[0], producer_epoch=producer[1], transaction_result=commit, topics=[topic]
        )
        answer = self.ask(m.WriteTxnMarkersRequest(markers=[marker]), 1)
        assert answer.markers[0].topics[0].partitions[0].error_code == error

    def offset(self, *, stable: bool = False, version: int = 7) -> int:
        """Return what is committed for orders 0, or the error as a negative number."""
        if version < 8:
            topic = m.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
            request = m.OffsetFetchRequest(group_id="g", topics=[topic], require_stable=stable)
            (item,) = self.ask(request, version).topics[0].partitions
        else:
            asked = m.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])
            group = m.OffsetFetchRequestGroup(group_id="g", topics=[asked])
            request = m.OffsetFetchRequest(groups=[group], require_stable=stable)
            (item,) = self.ask(request, version).groups[0].topics[0].partitions
        return -item.error_code if item.error_code else item.committed_offset


@pytest.mark.parametrize("version", [7, 9])
def test_an_offset_counts_once_its_transaction_is_committed(version: int) -> None:
    host = Host()
    host.commit(3)
    assert host.txn_commit(PRODUCER, 5) == 0
    assert host.offset(version=version) == 3
    assert host.offset(stable=True, version=version) == -E.UNSTABLE_OFFSET_COMMIT
    host.end(PRODUCER, commit=True)
    assert host.offset(version=version) == host.offset(stable=True, version=version) == 5


def test_an_offset_of_an_aborted_transaction_never_counts() -> None:
    host = Host()
    host.commit(3)
    host.txn_commit(PRODUCER, 5)
    host.end(PRODUCER, commit=False)
    assert host.offset(stable=True) == 3
    host.end(PRODUCER, commit=True)
    assert host.offset() == 3, "it is gone"


def test_the_offset_that_was_written_later_wins() -> None:
    host = Host()
    host.txn_commit(PRODUCER, 5)
    host.commit(9)
    host.end(PRODUCER, commit=True)
    assert host.offset() == 9
    host.txn_commit(PRODUCER, 11)
    host.txn_commit(OTHER, 12)
    host.end(OTHER, commit=True)
    host.end(PRODUCER, commit=True)
    assert host.offset() == 12


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_pending_offsets_survive_a_restart(commit: bool, compact: bool) -> None:
    host = Host()
    host.commit(3)
    host.txn_commit(PRODUCER, 5)
    host.restart(compact=compact)
    assert (host.offset(), host.offset(stable=True)) == (3, -E.UNSTABLE_OFFSET_COMMIT)
    host.end(PRODUCER, commit=commit)
    host.restart(compact=compact)
    assert host.offset() == host.offset(stable=True) == (5 if commit else 3)


@pytest.mark.parametrize("compact", [False, True])
def test_a_restart_keeps_the_order_of_what_was_written(compact: bool) -> None:
    host = Host()
    host.txn_commit(PRODUCER, 5)
    host.commit(9)
    host.restart(compact=compact)
    host.end(PRODUCER, commit=True)
    assert host.offset() == 9
    host.restart(compact=compact)
    assert host.offset() == 9


def test_a_group_of_pending_offsets_alone_is_kept() -> None:
    host = Host()
    host.txn_commit(PRODUCER, 5)
    host.restart()
    assert host.offset(stable=True) == -E.UNSTABLE_OFFSET_COMMIT
    host.end(PRODUCER, commit=True)
    assert host.offset() == 5


def test_deleting_a_group_or_offset_removes_what_is_pending() -> None:
    host = Host()
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


def test_members_are_checked_where_they_are_named() -> None:
    host = Host()
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


def test_a_partition_that_does_not_exist_fails_alone() -> None:
    host = Host()
    assert host.txn_commit(PRODUCER, 5, partition=99) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert host.txn_commit(PRODUCER, 5, topic="none") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert host.txn_commit(PRODUCER, 5, generation_id_or_member_epoch=4) == E.ILLEGAL_GENERATION


def test_while_a_partition_is_read_transactions_wait() -> None:
    host = Host()
    assert host.txn_commit(PRODUCER, 5) == 0
    place = host.brokers.partition_of_group("g")
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


def test_unknown_topics_are_answered_before_the_group_is_asked() -> None:
    host = Host()
    item = m.TxnOffsetCommitRequestPartition(committed_offset=1)

    def commit(*topics: str) -> list[int]:
        named = [m.TxnOffsetCommitRequestTopic(name=topic, partitions=[item]) for topic in topics]
        request = m.TxnOffsetCommitRequest(group_id="g", generation_id_or_member_epoch=9, member_id="x", topics=named)
        return [topic.partitions[0].error_code for topic in host.ask(request, 3).topics]

    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert commit("nothing") == [unknown]
    assert commit("nothing", "orders") == [unknown, E.ILLEGAL_GENERATION]
    assert not host.runtime.machine.groups
