"""Share groups' records (KIP-932): sessions, what is acquired and acknowledged, states, and offsets for operators.

Kafka begins the state of a share partition some time after the heartbeat of a member; the scripts begin it themselves,
by the request with which its group coordinator does so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode as E
from kcoord_wire.records import Record, encode_batch
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Answer, Stage
from tests.interop.exchanges.transactions import with_topic
from tests.support.waiting import eventually
from tests.support.wire import errors_in

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
Acks = Iterable[tuple[int, int, Sequence[int]]]


class Reader:
    """A member that fetches from the script's own topic, without being in its group; it remembers its epoch."""

    def __init__(self, stage: Stage, name: str = "a") -> None:
        self.stage = stage
        self.connection = stage.connect(name)
        self.id = f"id-{name}"
        self.epoch = 0

    def fetches(
        self, *partitions: int, acks: Acks = (), error: E | None = None, version: int = 2, **other: Any
    ) -> Answer:
        """ShareFetch; acknowledgements are about the first of the partitions."""
        batches = [_batch(kw.ShareFetchRequestAcknowledgementBatch, *each) for each in acks]
        parts = [kw.ShareFetchRequestFetchPartition(partition_index=each) for each in partitions]
        for part in parts[:1]:
            part.acknowledgement_batches = batches
        topic = kw.ShareFetchRequestFetchTopic(topic_id=self.topic_id, partitions=parts)
        known = {"max_wait_ms": 200, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
        request = kw.ShareFetchRequest(**self._fields({**known, **other}), topics=[topic] if parts else [])
        return self._asks(request, version, error)

    def acknowledges(
        self,
        *acks: tuple[int, int, Sequence[int]],
        partition: int = 0,
        error: E | None = None,
        version: int = 2,
        **other: Any,
    ) -> Answer:
        """ShareAcknowledge."""
        batches = [_batch(kw.ShareAcknowledgeRequestAcknowledgementBatch, *each) for each in acks]
        part = kw.ShareAcknowledgeRequestAcknowledgePartition(
            partition_index=partition, acknowledgement_batches=batches
        )
        topic = kw.ShareAcknowledgeRequestAcknowledgeTopic(topic_id=self.topic_id, partitions=[part])
        return self._asks(kw.ShareAcknowledgeRequest(**self._fields(other), topics=[topic]), version, error)

    @property
    def topic_id(self) -> Any:
        return self.stage.topic_ids[self.stage.group]

    def _fields(self, changes: dict[str, Any]) -> dict[str, Any]:
        known = {"group_id": self.stage.group, "member_id": self.id, "share_session_epoch": self.epoch}
        return {**known, **changes}

    def _asks(self, request: Any, version: int, error: E | None) -> Answer:
        answer = self.connection.call(request, version, error)
        if not answer.error_code:
            self.epoch = 0 if request.share_session_epoch == -1 else request.share_session_epoch + 1
        return answer


def _batch(kind: Any, first: int, last: int, types: Sequence[int]) -> Any:
    return kind(first_offset=first, last_offset=last, acknowledge_types=list(types))


def with_states(stage: Stage) -> None:
    """The script's topic, off the record, once the coordinator of states knows it; it has none of its partitions."""
    with_topic(stage)
    topic_id = stage.topic_ids[stage.group]
    parts = [kw.DeleteShareGroupStateRequestPartitionData(partition=index) for index in range(2)]
    topic = kw.DeleteShareGroupStateRequestDeleteStateData(topic_id=topic_id, partitions=parts)
    request = kw.DeleteShareGroupStateRequest(group_id=stage.group, topics=[topic])
    wire = stage.connect("broker").wire
    eventually(lambda: set(errors_in(wire.call(request, 0))), until=lambda errors: errors == {E.NONE})


def filled(stage: Stage, *batches: int, partition: int = 0) -> None:
    """The script's topic, with batches of so many records; its states begin at the first record, off the record."""
    with_states(stage)
    with stage.off_the_record():
        for count in batches:
            writes(stage, count, partition)
        for index in range(2):
            begins(stage, index)


def writes(stage: Stage, count: int, partition: int = 0) -> None:
    data = encode_batch([Record(b"k", b"%d" % number, timestamp=1) for number in range(count)])
    part = kw.ProduceRequestPartitionProduceData(index=partition, records=data)
    topic = kw.ProduceRequestTopicProduceData(name=stage.group, partition_data=[part])
    stage.connect("writer").call_when_free(kw.ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=[topic]), 9)


def begins(stage: Stage, index: int, start: int = 0, epoch: int = 0, error: E | None = None) -> Answer:
    part = kw.InitializeShareGroupStateRequestPartitionData(partition=index, state_epoch=epoch, start_offset=start)
    topic_id = stage.topic_ids[stage.group]
    topic = kw.InitializeShareGroupStateRequestInitializeStateData(topic_id=topic_id, partitions=[part])
    request = kw.InitializeShareGroupStateRequest(group_id=stage.group, topics=[topic])
    return stage.connect("broker").call_when_free(request, 0, error)


def reads(stage: Stage, index: int = 0, error: E | None = None, leader_epoch: int = 0) -> Answer:
    part = kw.ReadShareGroupStateRequestPartitionData(partition=index, leader_epoch=leader_epoch)
    topic_id = stage.topic_ids[stage.group]
    topic = kw.ReadShareGroupStateRequestReadStateData(topic_id=topic_id, partitions=[part])
    request = kw.ReadShareGroupStateRequest(group_id=stage.group, topics=[topic])
    return stage.connect("broker").call(request, 0, error)


def summary(stage: Stage, index: int = 0, version: int = 1) -> Answer:
    part = kw.ReadShareGroupStateSummaryRequestPartitionData(partition=index, leader_epoch=0)
    topic_id = stage.topic_ids[stage.group]
    topic = kw.ReadShareGroupStateSummaryRequestReadStateSummaryData(topic_id=topic_id, partitions=[part])
    request = kw.ReadShareGroupStateSummaryRequest(group_id=stage.group, topics=[topic])
    return stage.connect("broker").call(request, version)


def loaded(stage: Stage, reader: Reader, *partitions: int) -> None:
    """Open a session once the partitions are loaded, which Kafka does after the first fetch, and give all back."""
    with stage.off_the_record():
        reader.fetches(*partitions, share_session_epoch=0)
        reader.epoch = 1
        reader.fetches(share_session_epoch=-1)


@script(settings="share", versions=(1, 2))
def share_sessions(stage: Stage, version: int) -> None:
    """Epochs that are right and wrong, names that are missing, partitions and topics that do not exist."""
    filled(stage, 10)
    a, b = Reader(stage), Reader(stage, "b")
    loaded(stage, a, 0, 1)
    a.fetches(0, version=version, share_session_epoch=5, error=E.SHARE_SESSION_NOT_FOUND)
    a.fetches(version=version, share_session_epoch=-1, error=E.SHARE_SESSION_NOT_FOUND)
    a.acknowledges((0, 0, [ACCEPT]), version=version, share_session_epoch=0, error=E.INVALID_SHARE_SESSION_EPOCH)
    a.acknowledges((0, 0, [ACCEPT]), version=version, share_session_epoch=1, error=E.SHARE_SESSION_NOT_FOUND)
    for wrong in ({"group_id": None}, {"member_id": ""}, {"member_id": "m" * 37}):
        a.fetches(0, version=version, error=E.INVALID_REQUEST, **wrong)
        a.acknowledges((0, 0, [ACCEPT]), version=version, error=E.INVALID_REQUEST, **wrong)
    a.fetches(0, acks=[(0, 0, [ACCEPT])], version=version, error=E.INVALID_REQUEST)
    a.fetches(0, version=version)
    a.fetches(0, version=version, share_session_epoch=7, error=E.INVALID_SHARE_SESSION_EPOCH)
    a.acknowledges((0, 0, [ACCEPT]), version=version, share_session_epoch=7, error=E.INVALID_SHARE_SESSION_EPOCH)
    a.fetches(version=version)
    a.fetches(1, version=version)
    b.fetches(0, 1, version=version)
    b.fetches(9, version=version, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    b.fetches(version=version, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    topic_id = stage.topic_ids[stage.group]
    forgotten = kw.ShareFetchRequestForgottenTopic(topic_id=topic_id, partitions=[9])
    b.fetches(version=version, forgotten_topics_data=[forgotten])
    a.fetches(0, acks=[(0, 4, [ACCEPT])], version=version, share_session_epoch=-1)
    b.fetches(version=version)
    b.acknowledges((5, 9, [ACCEPT]), version=version, share_session_epoch=-1)
    b.fetches(version=version, share_session_epoch=3, error=E.SHARE_SESSION_NOT_FOUND)


@script(settings="share")
def share_acknowledgements(stage: Stage) -> None:
    """Each type, by batch and by record, once and again, right and wrong."""
    filled(stage, 10, 10, 10)
    a, b = Reader(stage), Reader(stage, "b")
    loaded(stage, a, 0)
    a.fetches(0)
    a.acknowledges((10, 14, [RELEASE]))
    reads(stage)
    a.fetches()
    a.acknowledges((10, 14, [ACCEPT]), (20, 20, [REJECT]), (25, 25, [GAP]))
    reads(stage)
    summary(stage)
    a.acknowledges((15, 19, [ACCEPT, REJECT, RELEASE, GAP, ACCEPT]))
    reads(stage)
    wrong = E.INVALID_RECORD_STATE
    a.acknowledges((20, 20, [ACCEPT]), error=wrong)
    a.acknowledges((10, 14, [ACCEPT]), error=wrong)
    b.fetches(0)
    b.acknowledges((0, 4, [ACCEPT]), error=wrong)
    for asked in ((50, 51), (29, 51), (29, 28)):
        a.acknowledges((*asked, [ACCEPT]), error=E.INVALID_REQUEST)
    for types in ([], [5], [-1], [RENEW], [ACCEPT, ACCEPT]):
        a.acknowledges((29, 29, types), error=E.INVALID_REQUEST)
    a.acknowledges((26, 28, [ACCEPT]), (27, 29, [ACCEPT]), error=E.INVALID_REQUEST)
    a.acknowledges((26, 28, [ACCEPT]), (28, 29, [ACCEPT]), error=wrong)
    a.acknowledges((26, 28, [ACCEPT]), partition=7, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    a.fetches(0, acks=[(20, 20, [ACCEPT])], error=wrong)
    reads(stage)
    a.acknowledges((0, 9, [ACCEPT]))
    a.acknowledges((0, 9, [ACCEPT]))  # again
    reads(stage)
    summary(stage)
    a.acknowledges((21, 22, [RELEASE]), share_session_epoch=-1)
    reads(stage)
    b.fetches()


@script(settings="share")
def share_renewals(stage: Stage) -> None:
    """Acknowledgements of type 4, which the request has to announce."""
    filled(stage, 10)
    a = Reader(stage)
    loaded(stage, a, 0)
    a.fetches(0)
    a.acknowledges((0, 4, [RENEW]), is_renew_ack=True)
    a.acknowledges((5, 9, [RENEW, ACCEPT, RENEW, RELEASE, REJECT]), is_renew_ack=True)
    a.acknowledges((5, 9, [RENEW]), is_renew_ack=True, error=E.INVALID_RECORD_STATE)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    a.fetches(0, acks=[(0, 4, [RENEW])], is_renew_ack=True, error=E.INVALID_REQUEST)
    a.fetches(0, acks=[(0, 4, [RENEW])], is_renew_ack=True, **nothing)
    reads(stage)


@script(settings="share")
def share_acquiring(stage: Stage) -> None:
    """How many records are acquired in each mode, in ranges of which size, and which batches are sent."""
    filled(stage, 10, 10, 10, 10)
    a, b = Reader(stage), Reader(stage, "b")
    loaded(stage, a, 0)
    a.fetches(0, max_records=12)
    a.fetches(max_records=12, batch_size=5)
    b.fetches(0)
    a.acknowledges((0, 39, [RELEASE]))
    b.fetches(max_records=3, share_acquire_mode=1)
    b.fetches(max_records=14, share_acquire_mode=1)
    a.fetches(max_records=1)
    a.acknowledges((20, 39, [RELEASE]))
    b.fetches(max_bytes=1)
    b.fetches()
    b.fetches()


@script(settings="share")
def share_deliveries(stage: Stage) -> None:
    """A record that is released again and again comes in smaller portions, at last alone, and then no more."""
    filled(stage, 8)
    a = Reader(stage)
    loaded(stage, a, 0)
    answer = a.fetches(0)
    for _ in range(16):
        got = [each for topic in answer.responses for part in topic.partitions for each in part.acquired_records]
        with stage.off_the_record():
            for each in got:
                a.acknowledges((each.first_offset, each.last_offset, [RELEASE]))
        answer = a.fetches()
    reads(stage)


@script(settings="share")
def share_coordinator(stage: Stage) -> None:
    """FindCoordinator of share partitions, by keys that are right and wrong."""
    a = stage.connect("a")
    a.call_when_free(kw.FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAQ:0"]), 6)
    for key in (
        "",
        "g",
        "g:AAAAAAAAAAAAAAAAAAAAAQ",
        ":AAAAAAAAAAAAAAAAAAAAAQ:0",
        "g:x:0",
        "g:AAAAAAAAAAAAAAAAAAAAAQ:x",
    ):
        a.call(kw.FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 6, E.INVALID_REQUEST)


@script(settings="share")
def share_states(stage: Stage) -> None:
    """What brokers ask about states: epochs, start offsets, changes, and what is not there."""
    with_states(stage)
    begins(stage, 0)
    begins(stage, 0)
    summary(stage, 1)
    reads(stage, 1, E.INVALID_REQUEST)
    begins(stage, 1, 7, 3)
    begins(stage, 1, 7, 2, E.FENCED_STATE_EPOCH)
    begins(stage, 1, 9, 3)
    begins(stage, 9, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    reads(stage, 1)
    reads(stage, 1, leader_epoch=5)
    reads(stage, 1, E.FENCED_LEADER_EPOCH, leader_epoch=4)
    reads(stage, -1, E.INVALID_REQUEST)
    summary(stage, 1)
    summary(stage, 1, version=0)
    topic_id = stage.topic_ids[stage.group]
    broker = stage.connect("broker")

    def changes(
        index: int, start: int, *batches: tuple[int, int, int, int], error: E | None = None, **epochs: int
    ) -> None:
        kind = kw.WriteShareGroupStateRequestStateBatch
        states = [
            kind(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
            for first, last, state, count in batches
        ]
        part = kw.WriteShareGroupStateRequestPartitionData(
            partition=index, start_offset=start, state_batches=states, **epochs
        )
        topic = kw.WriteShareGroupStateRequestWriteStateData(topic_id=topic_id, partitions=[part])
        broker.call(kw.WriteShareGroupStateRequest(group_id=stage.group, topics=[topic]), 1, error)

    changes(0, -1, (5, 9, 2, 1), (10, 12, 0, 2))
    reads(stage)
    changes(0, -1, (8, 11, 4, 3))
    reads(stage)
    changes(1, -1, leader_epoch=5, state_epoch=2, error=E.FENCED_STATE_EPOCH)
    changes(1, -1, leader_epoch=4, state_epoch=3, error=E.FENCED_LEADER_EPOCH)
    changes(1, -1, leader_epoch=-1, error=E.INVALID_REQUEST)
    part = kw.DeleteShareGroupStateRequestPartitionData(partition=1)
    topic = kw.DeleteShareGroupStateRequestDeleteStateData(topic_id=topic_id, partitions=[part])
    for _ in range(2):
        broker.call(kw.DeleteShareGroupStateRequest(group_id=stage.group, topics=[topic]), 0)
    reads(stage, 1, E.INVALID_REQUEST)


@script(settings="share")
def share_offsets(stage: Stage) -> None:
    """What an operator sees and sets of a group without members."""
    filled(stage, 10)
    admin = stage.connect("admin")

    def shows(*indexes: int, group: str | None = None, topic: str = "", version: int = 1) -> None:
        named = kw.DescribeShareGroupOffsetsRequestTopic(topic_name=topic or stage.group, partitions=list(indexes))
        asked = kw.DescribeShareGroupOffsetsRequestGroup(
            group_id=stage.group if group is None else group, topics=[named] if indexes else None
        )
        admin.call(kw.DescribeShareGroupOffsetsRequest(groups=[asked]), version)

    def alters(offsets: dict[int, int], topic: str = "", error: E | None = None, group: str | None = None) -> None:
        kind = kw.AlterShareGroupOffsetsRequestPartition
        parts = [kind(partition_index=index, start_offset=offset) for index, offset in offsets.items()]
        named = kw.AlterShareGroupOffsetsRequestTopic(topic_name=topic or stage.group, partitions=parts)
        name = f"{stage.group}/other" if group is None else group
        admin.call(kw.AlterShareGroupOffsetsRequest(group_id=name, topics=[named]), 0, error)

    def deletes(*topics: str, error: E | None = None, group: str | None = None) -> None:
        named = [kw.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
        name = f"{stage.group}/other" if group is None else group
        admin.call(kw.DeleteShareGroupOffsetsRequest(group_id=name, topics=named), 0, error)

    other = f"{stage.group}/other"
    shows(group=f"{stage.group}/none")
    shows(0, group=f"{stage.group}/none")
    shows(0, topic="nothing")
    deletes(stage.group, error=E.GROUP_ID_NOT_FOUND)
    alters({0: 5}, group="", error=E.INVALID_GROUP_ID)
    deletes(stage.group, group="", error=E.INVALID_GROUP_ID)
    alters({0: 5, 1: 9})
    shows(group=other)
    shows(0, 1, group=other)
    shows(group=other, version=0)
    alters({0: 2})
    alters({7: 5}, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    alters({0: 5}, "nothing", error=E.UNKNOWN_TOPIC_OR_PARTITION)
    shows(group=other)
    admin.call(kw.DeleteShareGroupOffsetsRequest(group_id=other, topics=[]), 0)
    deletes("nothing", error=E.UNKNOWN_TOPIC_OR_PARTITION)
    deletes(stage.group)
    shows(group=other)
    shows(0, group=other)
    deletes(stage.group, error=E.UNKNOWN_TOPIC_OR_PARTITION)
