"""Requests in which one field is what Kafka refuses, and every other is as it should be: a case for each rule of the
schemas.

`Case.request` needs a member of a classic group, whose generation alone is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import kcoord_wire as kw
from kcoord_wire.codec.check import Finding
from kcoord_wire.records import Record, encode_batch


@dataclass(frozen=True)
class Member:
    """A member that has joined."""

    group: str
    member_id: str
    generation: int


@dataclass(frozen=True)
class Case:
    """One refusal.

    :ivar make: gives the request without a mistake
    :ivar path: what `check` names
    :ivar breaks: makes the mistake
    """

    make: Callable[[Member], Any]
    version: int
    path: str
    breaks: Callable[[Any], None]

    def request(self, member: Member) -> Any:
        """The request with its mistake, which is the only one."""
        request = self.make(member)
        assert kw.check(request, self.version) == ()
        self.breaks(request)
        return request

    def finding(self, member: Member) -> Finding:
        (finding,) = kw.check(self.request(member), self.version)
        return finding

    def __str__(self) -> str:
        return f"{type(self.make(Member('g', 'm', 1))).__name__}-{self.version}-{self.path}"


def _join(member: Member) -> Any:
    protocols = [kw.JoinGroupRequestProtocol(name="range")]
    return kw.JoinGroupRequest(
        group_id=member.group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
        protocols=protocols,
    )  # fmt: skip


def _sync(member: Member) -> Any:
    return kw.SyncGroupRequest(
        group_id=member.group, member_id=member.member_id, generation_id=member.generation, protocol_type="consumer",
        protocol_name="range",
    )  # fmt: skip


def _heartbeat(member: Member) -> Any:
    return kw.HeartbeatRequest(group_id=member.group, member_id=member.member_id, generation_id=member.generation)


def _leave(member: Member) -> Any:
    return kw.LeaveGroupRequest(group_id=member.group, member_id="m")


def _leave_several(member: Member) -> Any:
    return kw.LeaveGroupRequest(group_id=member.group, members=[kw.LeaveGroupRequestMemberIdentity(member_id="m")])


def _beat(member: Member) -> Any:
    return kw.ConsumerGroupHeartbeatRequest(
        group_id=f"{member.group}/newer", member_id="AAAAAAAAAAAAAAAAAAAAAA", rebalance_timeout_ms=10_000,
        subscribed_topic_names=["orders"], topic_partitions=[],
    )  # fmt: skip


def _share(member: Member) -> Any:
    return kw.ShareGroupHeartbeatRequest(
        group_id=f"{member.group}/share", member_id="AAAAAAAAAAAAAAAAAAAAAA", subscribed_topic_names=["orders"]
    )


def _describe(member: Member) -> Any:
    return kw.ConsumerGroupDescribeRequest(group_ids=[member.group])


def _describe_shares(member: Member) -> Any:
    return kw.ShareGroupDescribeRequest(group_ids=[member.group])


def _delete_offsets(member: Member) -> Any:
    return kw.OffsetDeleteRequest(group_id=member.group, topics=_offsets(kw.OffsetDeleteRequestTopic))


def _offsets(topic: Any) -> list[Any]:
    (part,) = (getattr(kw.messages, f"{topic.__name__.removesuffix('Topic')}Partition"),)
    return [topic(name="orders", partitions=[part(partition_index=0)])]


def _commit_in_transaction(member: Member) -> Any:
    topics = _offsets(kw.TxnOffsetCommitRequestTopic)
    return kw.TxnOffsetCommitRequest(transactional_id=member.group, group_id=member.group, topics=topics)


def _init(member: Member) -> Any:
    return kw.InitProducerIdRequest(transactional_id=member.group, transaction_timeout_ms=10_000)


def _add_offsets(member: Member) -> Any:
    return kw.AddOffsetsToTxnRequest(transactional_id=member.group, producer_id=1, group_id=member.group)


def _end(member: Member) -> Any:
    return kw.EndTxnRequest(transactional_id=member.group, producer_id=1)


def _added() -> list[Any]:
    return [kw.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="orders", partitions=[0])]


def _add(member: Member) -> Any:
    return kw.AddPartitionsToTxnRequest(v3_and_below_transactional_id=member.group, v3_and_below_topics=_added())


def _add_several(member: Member) -> Any:
    transaction = kw.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction
    return kw.AddPartitionsToTxnRequest(transactions=[transaction(transactional_id=member.group, topics=_added())])


def _describe_transactions(member: Member) -> Any:
    return kw.DescribeTransactionsRequest(transactional_ids=[member.group])


def _versions(member: Member) -> Any:
    return kw.ApiVersionsRequest(client_software_name="tests", client_software_version="1.0")


def _create(member: Member) -> Any:
    topic = kw.CreateTopicsRequestCreatableTopic(name="created", num_partitions=1, replication_factor=1)
    return kw.CreateTopicsRequest(topics=[topic], validate_only=True)


def _metadata(member: Member) -> Any:
    return kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name="orders")], allow_auto_topic_creation=False)


def _produce(member: Member) -> Any:
    part = kw.ProduceRequestPartitionProduceData(index=0, records=encode_batch([Record(value=b"parcel")]))
    topic = kw.ProduceRequestTopicProduceData(name="orders", partition_data=[part])
    return kw.ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[topic])


def _find(member: Member) -> Any:
    return kw.FindCoordinatorRequest(coordinator_keys=[member.group])


def _sets(**values: object) -> Callable[[Any], None]:
    def breaks(request: Any) -> None:
        for name, value in values.items():
            setattr(request, name, value)

    return breaks


def _in_topic(**values: object) -> Callable[[Any], None]:
    return lambda request: _sets(**values)(request.topics[0])


def _with(make: Callable[[Member], Any], **values: object) -> Callable[[Member], Any]:
    return lambda member: replace(make(member), **values)


def _cases() -> Iterator[Case]:
    for make, version in ((_join, 9), (_sync, 5), (_heartbeat, 4), (_leave, 2), (_delete_offsets, 0)):
        yield Case(make, version, "group_id", _sets(group_id=""))
    yield Case(_commit_in_transaction, 3, "group_id", _sets(group_id=""))
    yield Case(_join, 2, "session_timeout_ms", _sets(session_timeout_ms=-1))
    yield Case(_join, 9, "session_timeout_ms", _sets(session_timeout_ms=0))
    yield Case(_join, 9, "protocol_type", _sets(protocol_type=""))
    yield Case(_join, 9, "protocols", _sets(protocols=[]))
    for make, version in ((_sync, 5), (_heartbeat, 4)):
        yield Case(make, version, "generation_id", _sets(generation_id=-1))
        yield Case(make, version, "member_id", _sets(member_id=""))
    yield Case(_sync, 5, "protocol_type", _sets(protocol_type=None))
    yield Case(_sync, 5, "protocol_name", _sets(protocol_name=None))
    yield Case(_leave, 2, "member_id", _sets(member_id=""))
    yield Case(_leave_several, 5, "members[0].member_id", lambda request: _sets(member_id="")(request.members[0]))
    for make in (_describe, _describe_shares):
        yield Case(make, 1, "group_ids[0]", _sets(group_ids=[""]))
    yield from _heartbeats()
    yield from _share_heartbeats()
    for make, version in ((_init, 5), (_add_offsets, 3), (_end, 3)):
        yield Case(make, version, "transactional_id", _sets(transactional_id=""))
    yield Case(_init, 5, "transaction_timeout_ms", _sets(transaction_timeout_ms=0))
    yield Case(_init, 5, "producer_epoch", _sets(producer_id=7))
    yield Case(_init, 5, "producer_id", _sets(producer_epoch=7))
    yield Case(_add, 3, "v3_and_below_transactional_id", _sets(v3_and_below_transactional_id=""))
    yield Case(
        _add_several, 4, "transactions[0].transactional_id",
        lambda request: _sets(transactional_id="")(request.transactions[0]),
    )  # fmt: skip
    yield Case(_describe_transactions, 0, "transactional_ids[0]", _sets(transactional_ids=[""]))
    yield Case(_versions, 4, "client_software_name", _sets(client_software_name="-tests"))
    yield Case(_versions, 4, "client_software_version", _sets(client_software_version=""))
    yield from _topics()
    yield Case(_produce, 12, "acks", _sets(acks=2))
    yield Case(_find, 5, "key_type", _sets(key_type=2))
    yield Case(_find, 6, "key_type", _sets(key_type=3))


def _heartbeats() -> Iterator[Case]:
    for name in ("group_id", "member_id", "instance_id", "rack_id"):
        yield Case(_beat, 1, name, _sets(**{name: ""}))
    stays = {"member_epoch": 0}
    leaves = _with(_beat, member_epoch=-1)
    goes = _with(_beat, member_epoch=-2, instance_id="i")
    yield Case(leaves, 0, "member_id", _sets(member_id=""))
    yield Case(_beat, 1, "member_epoch", _sets(member_epoch=-3))
    yield Case(_with(_beat, **stays, member_id=""), 0, "member_epoch", _sets(member_epoch=1))
    yield Case(goes, 1, "instance_id", _sets(instance_id=None))
    yield Case(_beat, 1, "rebalance_timeout_ms", _sets(rebalance_timeout_ms=-1))
    for version in (0, 1):
        yield Case(_beat, version, "subscribed_topic_names", _sets(subscribed_topic_names=None))
    held = kw.ConsumerGroupHeartbeatRequestTopicPartitions(partitions=[0])
    for partitions in (None, [held]):
        yield Case(_beat, 1, "topic_partitions", _sets(topic_partitions=partitions))


def _share_heartbeats() -> Iterator[Case]:
    for name in ("group_id", "member_id", "rack_id"):
        yield Case(_share, 1, name, _sets(**{name: ""}))
    yield Case(_share, 1, "member_epoch", _sets(member_epoch=-2))
    for names in (None, []):
        yield Case(_share, 1, "subscribed_topic_names", _sets(subscribed_topic_names=names))


def _topics() -> Iterator[Case]:
    for name in ("", "a/b", "..", "a" * 250):
        yield Case(_create, 7, "topics[0].name", _in_topic(name=name))
    for count in (0, -2):
        yield Case(_create, 7, "topics[0].num_partitions", _in_topic(num_partitions=count))
        yield Case(_create, 7, "topics[0].replication_factor", _in_topic(replication_factor=count))
    for version in (9, 12):
        yield Case(_metadata, version, "topics[0].name", _in_topic(name="a/b"))


CASES = list(_cases())
