"""Topics and their configs as AdminClients make, describe and delete them, and what is asked of the cluster."""

from __future__ import annotations

import time
from typing import Any, Final
from uuid import UUID

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode as E
from kcoord_wire.records import Compression, Record, encode_batch
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Connection, Stage
from tests.support.waiting import eventually

TOPIC, GROUP = 2, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def new(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> Any:
    """A topic of CreateTopics; `configs` as a dict, `on` the brokers of each partition."""
    config, placed = kw.CreateTopicsRequestCreatableTopicConfig, kw.CreateTopicsRequestCreatableReplicaAssignment
    return kw.CreateTopicsRequestCreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[config(name=key, value=value) for key, value in more.pop("configs", {}).items()],
        assignments=[placed(partition_index=index, broker_ids=ids) for index, ids in more.pop("on", {}).items()],
    )


def create(client: Connection, *topics: Any, version: int = 7, error: E | None = None, validate: bool = False) -> None:
    """CreateTopics; v0 cannot only validate."""
    request = kw.CreateTopicsRequest(topics=list(topics), timeout_ms=20_000, validate_only=validate)
    client.call(request, version, error)


def exists(client: Connection, *names: str) -> None:
    """Wait until the broker knows topics that the controller has made, off the record."""
    topics = [kw.MetadataRequestTopic(name=name) for name in names]
    request = kw.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    eventually(
        lambda: client.wire.call(request, 8).topics,
        until=lambda topics: not any(topic.error_code or not topic.partitions for topic in topics),
    )


def delete(client: Connection, *names: str, version: int = 5, error: E | None = None) -> None:
    client.call(kw.DeleteTopicsRequest(topic_names=list(names), timeout_ms=20_000), version, error)


@script(settings="topics", versions=(2, 4, 5, 7))
def topics_are_created(stage: Stage, version: int) -> None:
    """With configs of their own, the broker's numbers, by assignment, several at once, and only to validate."""
    a = stage.connect("a")
    name = stage.group
    create(a, version=version)
    create(a, new(f"{name}-valid", 2), version=version, validate=True)
    create(a, new(f"{name}-a", 2, configs={"retention.ms": "1000", "cleanup.policy": "compact"}), version=version)
    create(a, new(f"{name}-b"), new(f"{name}-c", 3), version=version)
    create(a, new(f"{name}-d", 2, -1), version=version)
    create(a, new(f"{name}-d"), version=version, error=E.TOPIC_ALREADY_EXISTS)
    create(a, new(f"{name}-e"), new(f"{name}-e"), version=version, error=E.INVALID_REQUEST)


REFUSED: Final = [
    (new(""), E.INVALID_TOPIC_EXCEPTION),
    (new("."), E.INVALID_TOPIC_EXCEPTION),
    (new(".."), E.INVALID_TOPIC_EXCEPTION),
    (new("a b"), E.INVALID_TOPIC_EXCEPTION),
    (new("ü"), E.INVALID_TOPIC_EXCEPTION),
    (new("x" * 250), E.INVALID_TOPIC_EXCEPTION),
    (new("__cluster_metadata"), E.INVALID_REQUEST),
    (new("x", 0), E.INVALID_PARTITIONS),
    (new("x", -2), E.INVALID_PARTITIONS),
    (new("x", 1, 0), E.INVALID_REPLICATION_FACTOR),
    (new("x", 1, -2), E.INVALID_REPLICATION_FACTOR),
    (new("x", 1, 3), E.INVALID_REPLICATION_FACTOR),
    (new("x", configs={"nonsense": "1"}), E.INVALID_CONFIG),
    (new("x", configs={"retention.ms": "soon"}), E.INVALID_CONFIG),
    (new("x", configs={"retention.ms": "-2"}), E.INVALID_CONFIG),
    (new("x", configs={"retention.ms": None}), E.INVALID_CONFIG),
    (new("x", configs={"cleanup.policy": "forget"}), E.INVALID_CONFIG),
    (new("x", configs={"compression.type": "GZIP"}), E.INVALID_CONFIG),
    (new("x", configs={"preallocate": "yes"}), E.INVALID_CONFIG),
    (new("x", configs={"min.cleanable.dirty.ratio": "2"}), E.INVALID_CONFIG),
    (new("x", configs={"max.message.bytes": "2147483648"}), E.INVALID_CONFIG),
    (new("x", configs={"segment.bytes": "1"}), E.INVALID_CONFIG),
    (new("x", -1, -1, on={0: []}), E.INVALID_REPLICA_ASSIGNMENT),
    (new("x", -1, -1, on={0: [99]}), E.INVALID_REPLICA_ASSIGNMENT),
    (new("x", -1, -1, on={0: [99, 99]}), E.INVALID_REPLICA_ASSIGNMENT),
    (new("x", 1, -1, on={0: [99]}), E.INVALID_REQUEST),
    (new("x", -1, 1, on={0: [99]}), E.INVALID_REQUEST),
]


@script(settings="topics")
def topics_are_refused(stage: Stage) -> None:
    """Each with its code and text."""
    a = stage.connect("a")
    for topic, error in REFUSED:
        create(a, topic, error=error)
    create(a, new("one.two_three"))
    create(a, new("one_two.three"), error=E.INVALID_TOPIC_EXCEPTION)


@script(settings="topics")
def topics_are_assigned(stage: Stage) -> None:
    """Partitions of which the client says where they are, and others that are added to them."""
    a = stage.connect("a")
    with stage.off_the_record():
        (node,) = [each.broker_id for each in a.call(kw.DescribeClusterRequest(), 0).brokers]
    name = stage.group
    create(a, new(name, -1, -1, on={0: [node], 1: [node]}))
    exists(a, name)
    part, placed = kw.CreatePartitionsRequestCreatePartitionsTopic, kw.CreatePartitionsRequestCreatePartitionsAssignment

    def grow(count: int, *on: list[int], error: E | None = None) -> None:
        wanted = part(name=name, count=count, assignments=[placed(broker_ids=ids) for ids in on])
        a.call(kw.CreatePartitionsRequest(topics=[wanted], timeout_ms=20_000), 3, error)

    grow(3, [node])
    asked = kw.DescribeTopicPartitionsRequestTopicRequest(name=name)
    request = kw.DescribeTopicPartitionsRequest(topics=[asked], response_partition_limit=9)
    stage.eventually(lambda: a.call(request, 0), lambda answer: len(answer.topics[0].partitions) == 3)
    grow(4, [], error=E.INVALID_REPLICA_ASSIGNMENT)
    grow(4, [node, 99], error=E.INVALID_REPLICA_ASSIGNMENT)
    grow(5, [node], [99], error=E.INVALID_REPLICA_ASSIGNMENT)
    grow(5, [node], error=E.INVALID_REPLICA_ASSIGNMENT)


@script(settings="topics", versions=(1, 4, 5, 6))
def topics_are_deleted(stage: Stage, version: int) -> None:
    """By name and by id; unknown, twice, and with the same name again."""
    a = stage.connect("a")
    names = [f"{stage.group}-{letter}" for letter in "abc"]
    create(a, *map(new, names))
    exists(a, *names)
    if version < 6:
        delete(a, names[0], version=version)
        delete(a, names[0], "nope", version=version, error=E.UNKNOWN_TOPIC_OR_PARTITION)
        delete(a, names[1], names[1], version=version, error=E.INVALID_REQUEST)
        delete(a, version=version)
        return
    with stage.off_the_record():
        topics = a.call(kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name=name) for name in names]), 12).topics
    state, ids = kw.DeleteTopicsRequestDeleteTopicState, {topic.name: topic.topic_id for topic in topics}
    unknown = UUID(int=99)
    for states, error in (
        ([state(name=None, topic_id=ids[names[0]])], None),
        ([state(name=None, topic_id=unknown)], E.UNKNOWN_TOPIC_ID),
        ([state(name=None)], E.INVALID_REQUEST),
        ([state(name=names[1], topic_id=ids[names[1]])], E.INVALID_REQUEST),
        ([state(name="nope")], E.UNKNOWN_TOPIC_OR_PARTITION),
        ([state(name=names[1])], None),
    ):
        a.call(kw.DeleteTopicsRequest(topics=states, timeout_ms=20_000), version, error)


@script(settings="topics", versions=(1, 4, 12))
def topics_are_created_on_demand(stage: Stage, version: int) -> None:
    """By Metadata of a name, where client and broker want it; the first answer says that there is none. A topic that
    was deleted comes back in this way, and in no other."""
    a = stage.connect("a")
    name, topic = stage.group, kw.MetadataRequestTopic

    def look(*names: str, allow: bool = False, at: int = version, error: E | None = None) -> None:
        topics = [topic(name=each) for each in names]
        request = kw.MetadataRequest(topics=topics, allow_auto_topic_creation=allow or at < CHOOSES_CREATION_FROM)
        a.call(request, at, error)

    if version >= CHOOSES_CREATION_FROM:
        look(name, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    look(name, allow=True, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    exists(a, name)
    look(name)
    if version < IDS_FROM:
        return
    with stage.off_the_record():
        known = a.call(kw.MetadataRequest(topics=[topic(name=name)]), version).topics[0].topic_id
    delete(a, name)
    part = kw.ListOffsetsRequestListOffsetsPartition(partition_index=0, timestamp=-1)
    offsets = kw.ListOffsetsRequest(
        replica_id=-1, topics=[kw.ListOffsetsRequestListOffsetsTopic(name=name, partitions=[part])]
    )
    stage.eventually(
        lambda: a.wire.call(offsets, 8).topics[0].partitions[0].error_code,
        lambda error: error == E.UNKNOWN_TOPIC_OR_PARTITION,
    )
    a.call(kw.MetadataRequest(topics=[topic(name=None, topic_id=known)]), version, E.UNKNOWN_TOPIC_ID)
    produce(a, name, 9, Record(b"k", b"v"), error=E.UNKNOWN_TOPIC_OR_PARTITION)
    a.call(offsets, 8, E.UNKNOWN_TOPIC_OR_PARTITION)
    look(name, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    look(name, allow=True, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    exists(a, name)
    look(name)
    collides = name.replace("_", ".")
    look(collides, allow=True, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    look(collides, error=E.UNKNOWN_TOPIC_OR_PARTITION)


CHOOSES_CREATION_FROM: Final = 4
"""The Metadata from which on a client says whether a topic is to be created (KIP-204)."""

IDS_FROM: Final = 12
"""The Metadata from which on topics may be asked for by id (KIP-516)."""


@script(settings="topics", versions=(0, 2, 3))
def topics_grow(stage: Stage, version: int) -> None:
    """More partitions, and what is no growth."""
    a = stage.connect("a")
    create(a, new(stage.group, 2))
    exists(a, stage.group)
    part, placed = kw.CreatePartitionsRequestCreatePartitionsTopic, kw.CreatePartitionsRequestCreatePartitionsAssignment

    def grow(count: int, error: E | None = None, name: str = stage.group, **more: Any) -> None:
        wanted = part(name=name, count=count, assignments=more.pop("assignments", None))
        a.call(kw.CreatePartitionsRequest(topics=[wanted], timeout_ms=20_000, **more), version, error)

    grow(4, validate_only=True)
    grow(3)
    grow(3, E.INVALID_PARTITIONS)
    grow(1, E.INVALID_PARTITIONS)
    grow(0, E.INVALID_PARTITIONS)
    grow(5, E.UNKNOWN_TOPIC_OR_PARTITION, name="nope")
    grow(5, E.INVALID_REPLICA_ASSIGNMENT, assignments=[])
    grow(4, E.INVALID_REPLICA_ASSIGNMENT, assignments=[placed(broker_ids=[99])])


@script(settings="topics")
def topics_are_described_in_pages(stage: Stage) -> None:
    """DescribeTopicPartitions, by name, with a limit and a cursor."""
    a = stage.connect("a")
    names = [f"{stage.group}-{letter}" for letter in "ab"]
    create(a, *(new(name, 3) for name in names))
    exists(a, *names)
    topic, at = kw.DescribeTopicPartitionsRequestTopicRequest, kw.DescribeTopicPartitionsRequestCursor

    def describe(
        *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None, error: E | None = None
    ) -> None:
        request = kw.DescribeTopicPartitionsRequest(
            topics=[topic(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else at(topic_name=cursor[0], partition_index=cursor[1]),
        )
        a.call(request, 0, error)

    describe(*names)
    describe(*reversed(names), limit=4)
    describe(*names, limit=3)
    describe(*names, limit=4, cursor=(names[1], 0))
    describe(*names, cursor=(names[0], 2))
    describe("nope", error=E.UNKNOWN_TOPIC_OR_PARTITION)
    describe("a b", error=E.INVALID_TOPIC_EXCEPTION)
    describe(names[0], cursor=(names[1], 0), error=E.INVALID_REQUEST)
    describe(names[0], cursor=(names[0], -1), error=E.INVALID_REQUEST)


# ---- configs

DOCUMENTED_FROM: Final = 3
"""The DescribeConfigs from which on an answer has what configs are for (KIP-569)."""


def describe_configs(client: Connection, kind: int, name: str, *keys: str, version: int = 4, **more: Any) -> None:
    error = more.pop("error", None)
    part = kw.DescribeConfigsRequestDescribeConfigsResource
    resource = part(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    client.call(kw.DescribeConfigsRequest(resources=[resource], **more), version, error)


def change(
    client: Connection, kind: int, name: str, *changes: tuple[str, int, str | None], error: E | None = None
) -> None:
    config = kw.IncrementalAlterConfigsRequestAlterableConfig
    part = kw.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[config(name=key, config_operation=operation, value=value) for key, operation, value in changes],
    )
    client.call(kw.IncrementalAlterConfigsRequest(resources=[part]), 1, error)


def kept(stage: Stage, client: Connection, name: str, key: str, value: str | None) -> None:
    """Wait until the broker knows a config that the controller has changed, or none, and record it."""
    part = kw.DescribeConfigsRequestDescribeConfigsResource
    resource = part(resource_type=TOPIC, resource_name=name, configuration_keys=[key])
    request = kw.DescribeConfigsRequest(resources=[resource], include_synonyms=True)

    def own(answer: Any) -> str | None:
        (config,) = answer.results[0].configs
        return config.value if config.config_source == 1 else None

    stage.eventually(lambda: client.call(request, 4), lambda answer: own(answer) == value)


@script(settings="topics", versions=(1, 2, 3, 4))
def configs_of_a_topic(stage: Stage, version: int) -> None:
    """All of them, some, and with synonyms."""
    a = stage.connect("a")
    create(a, new(stage.group, configs={"retention.ms": "1000", "max.message.bytes": "9999"}))
    exists(a, stage.group)
    kept(stage, a, stage.group, "retention.ms", "1000")
    describe_configs(a, TOPIC, stage.group, version=version, include_synonyms=True)
    if version >= DOCUMENTED_FROM:
        describe_configs(a, TOPIC, stage.group, version=version, include_documentation=True)
    describe_configs(a, TOPIC, stage.group, "max.message.bytes", "nonsense", version=version)
    describe_configs(a, TOPIC, "nope", version=version, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    describe_configs(a, 4, "4711", version=version, error=E.INVALID_REQUEST)
    describe_configs(a, GROUP, "", version=version, error=E.INVALID_REQUEST)


@script(settings="topics")
def configs_are_altered(stage: Stage) -> None:
    """Set, removed, lists grown and shrunk, replaced as a whole; and what is refused."""
    a = stage.connect("a")
    name = stage.group
    create(a, new(name))
    exists(a, name)
    change(a, TOPIC, name, ("retention.ms", SET, "7"))
    kept(stage, a, name, "retention.ms", "7")
    change(a, TOPIC, name, ("cleanup.policy", APPEND, "compact"))
    kept(stage, a, name, "cleanup.policy", "delete,compact")
    change(a, TOPIC, name, ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None))
    kept(stage, a, name, "cleanup.policy", "compact")
    for changes, error in (
        ([("nonsense", SET, "1")], E.INVALID_CONFIG),
        ([("retention.ms", SET, "x")], E.INVALID_CONFIG),
        ([("retention.ms", SET, None)], E.INVALID_REQUEST),
        ([("retention.ms", APPEND, "1")], E.INVALID_CONFIG),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], E.INVALID_REQUEST),
    ):
        change(a, TOPIC, name, *changes, error=error)
    change(a, TOPIC, "nope", ("retention.ms", SET, "1"), error=E.UNKNOWN_TOPIC_OR_PARTITION)
    config, part = kw.AlterConfigsRequestAlterableConfig, kw.AlterConfigsRequestAlterConfigsResource
    resource = part(resource_type=TOPIC, resource_name=name, configs=[config(name="flush.ms", value="5")])
    a.call(kw.AlterConfigsRequest(resources=[resource]), 2)
    kept(stage, a, name, "cleanup.policy", None)


# ---- records


def produce(
    client: Connection, topic: str, version: int, *records: Record, error: E | None = None, **more: Any
) -> None:
    """Produce one batch to the first partition."""
    part = kw.ProduceRequestPartitionProduceData(index=0, records=encode_batch(records, **more))
    data = kw.ProduceRequestTopicProduceData(name=topic, partition_data=[part])
    client.call_when_free(kw.ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data]), version, error)


@script(settings="topics", versions=(3, 5, 7, 8, 9, 12))
def records_without_a_key(stage: Stage, version: int) -> None:
    """A topic that is compacted refuses them, however they are compressed; an empty key is one."""
    a = stage.connect("a")
    names = [f"{stage.group}-{letter}" for letter in "abc"]
    for name, policy in zip(names, ("compact", "compact,delete", "delete"), strict=True):
        create(a, new(name, configs={"cleanup.policy": policy}))
    exists(a, *names)
    now = int(time.time() * 1_000)
    key, empty, none = (Record(key, b"v", timestamp=now) for key in (b"k", b"", None))
    produce(a, names[0], version, none, error=E.INVALID_RECORD)
    for codec in Compression if version >= 7 else list(Compression)[:-1]:
        produce(a, names[0], version, key, none, empty, none, none, none, error=E.INVALID_RECORD, compression=codec)
    produce(a, names[1], version, none, error=E.INVALID_RECORD)
    produce(a, names[2], version, none)
    produce(a, names[0], version, key, empty)


@script(settings="topics")
def records_without_acknowledgement(stage: Stage) -> None:
    """Nothing is answered; where one is refused, the broker hangs up."""
    a, b = stage.connect("a"), stage.connect("b")
    create(a, new(stage.group, configs={"cleanup.policy": "compact"}))
    exists(a, stage.group)
    produce(a, stage.group, 9, Record(b"k", b"v"))

    def unacknowledged(key: bytes | None) -> Any:
        part = kw.ProduceRequestPartitionProduceData(index=0, records=encode_batch([Record(key, b"v")]))
        data = kw.ProduceRequestTopicProduceData(name=stage.group, partition_data=[part])
        return kw.ProduceRequest(acks=0, timeout_ms=20_000, topic_data=[data])

    b.send(unacknowledged(b"k"), 9)
    b.call(kw.DescribeClusterRequest(), 0)
    b.is_closed_after(unacknowledged(None), 9)
    end = kw.ListOffsetsRequestListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [kw.ListOffsetsRequestListOffsetsTopic(name=stage.group, partitions=[end])]
    a.call(kw.ListOffsetsRequest(replica_id=-1, topics=topics), 8)


@script(settings="topics", versions=(7, 8))
def records_of_another_time(stage: Stage, version: int) -> None:
    """An hour ahead is too far by default, an age has no bound; a topic may say otherwise, or set the time itself."""
    a = stage.connect("a")
    names = [f"{stage.group}-{letter}" for letter in "abcd"]
    for name, configs in zip(
        names,
        (
            {},
            {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": str((1 << 63) - 1)},
            {"message.timestamp.type": "LogAppendTime"},
            {"cleanup.policy": "compact"},
        ),
        strict=True,
    ):
        create(a, new(name, configs=configs))
    exists(a, *names)
    now = int(time.time() * 1_000)
    ahead, at_zero, behind, timeless = (
        Record(b"k", b"v", timestamp=at) for at in (now + 7_200_000, 0, now - 7_200_000, -1)
    )
    keyless = Record(None, b"v", timestamp=now)
    produce(a, names[0], version, ahead, error=E.INVALID_TIMESTAMP)
    produce(a, names[0], version, at_zero)
    produce(a, names[0], version, timeless)
    produce(a, names[1], version, behind, error=E.INVALID_TIMESTAMP)
    produce(a, names[1], version, behind, timeless, ahead, behind, error=E.INVALID_TIMESTAMP)
    produce(a, names[2], version, Record(b"k", b"v", timestamp=now))
    produce(a, names[3], version, keyless, ahead, error=E.INVALID_TIMESTAMP)


# ---- the cluster


@script(settings="topics")
def the_cluster_is_described(stage: Stage) -> None:
    """DescribeCluster, and what a broker without an authorizer has no ACLs for."""
    a = stage.connect("a")
    for version in (0, 1, 2):
        a.call(kw.DescribeClusterRequest(include_cluster_authorized_operations=bool(version)), version)
    a.call(kw.DescribeClusterRequest(endpoint_type=2), 1, E.MISMATCHED_ENDPOINT_TYPE)
    a.call(kw.DescribeClusterRequest(endpoint_type=9), 1, E.UNSUPPORTED_ENDPOINT_TYPE)
    a.call(kw.DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1), 3, E.SECURITY_DISABLED)
    a.call(kw.ListPartitionReassignmentsRequest(), 0)


@script(settings="topics")
def offsets_of_a_deleted_topic_are_forgotten(stage: Stage) -> None:
    """What groups have committed goes with the topic."""
    a = stage.connect("a")
    create(a, new(stage.group))
    exists(a, stage.group)
    partition = kw.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topic = kw.OffsetCommitRequestTopic(name=stage.group, partitions=[partition])
    a.call(kw.OffsetCommitRequest(group_id=stage.group, topics=[topic]), 8)
    delete(a, stage.group)
    asked = kw.OffsetFetchRequestTopic(name=stage.group, partition_indexes=[0])
    request = kw.OffsetFetchRequest(group_id=stage.group, topics=[asked])
    stage.eventually(lambda: a.call(request, 7), lambda answer: answer.topics[0].partitions[0].committed_offset == -1)
