"""What applications ask of a broker besides groups: ACLs, SCRAM users, quotas, what is compacted, leaders, replicas."""

from __future__ import annotations

from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode as E
from kcoord_wire.records import Compression, Record, encode_batch, read_records
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Connection, Stage
from tests.interop.exchanges.topics import create, exists, new
from tests.support.waiting import eventually

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, CLUSTER = 2, 4
DENY, ALLOW = 2, 3
READ, DESCRIBE = 3, 8


# ---- ACLs


def acl(name: str, **others: int | str) -> Any:
    known = {"resource_type": TOPIC, "resource_name": name, "resource_pattern_type": LITERAL, "principal": "User:bob"}
    return kw.CreateAclsRequestAclCreation(
        **{**known, "host": "*", "operation": READ, "permission_type": ALLOW, **others}
    )


def matching(**others: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), ANY)
    return {**numbers, **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter")), **others}


def describe(client: Connection, version: int, count: int | None = None, **others: Any) -> None:
    """DescribeAcls; with `count` once there are so many: the broker learns of them later."""

    def ask() -> Any:
        return client.call(kw.DescribeAclsRequest(**matching(**others)), version)

    def found(answer: Any) -> int:
        return sum(len(resource.acls) for resource in answer.resources)

    if count is None:
        ask()
    else:
        client.stage.eventually(ask, lambda answer: found(answer) == count)


def create_acls(client: Connection, *acls: Any, version: int = 3, error: E | None = None) -> None:
    client.call(kw.CreateAclsRequest(creations=list(acls)), version, error)


def delete_acls(client: Connection, *filters: dict[str, Any], version: int = 3, error: E | None = None) -> None:
    made = [kw.DeleteAclsRequestDeleteAclsFilter(**each) for each in filters]
    client.call(kw.DeleteAclsRequest(filters=made), version, error)


WRONG_ACLS: Final = [
    (acl("x", resource_type=CLUSTER), E.INVALID_REQUEST),
    (acl(""), E.INVALID_REQUEST),
    (acl("x", resource_type=99), E.INVALID_REQUEST),
    (acl("x", resource_type=ANY), E.UNKNOWN_SERVER_ERROR),
    (acl("x", resource_pattern_type=99), E.INVALID_REQUEST),
    (acl("x", resource_pattern_type=ANY), E.UNKNOWN_SERVER_ERROR),
    (acl("x", resource_pattern_type=MATCH), E.UNKNOWN_SERVER_ERROR),
    (acl("x", operation=99), E.INVALID_REQUEST),
    (acl("x", operation=ANY), E.UNKNOWN_SERVER_ERROR),
    (acl("x", permission_type=99), E.INVALID_REQUEST),
    (acl("x", permission_type=ANY), E.UNKNOWN_SERVER_ERROR),
    (acl("x", principal="bob"), E.INVALID_REQUEST),
    (acl("x", host=""), E.INVALID_REQUEST),
]


@script(settings="applications", versions=(1, 2, 3))
def acls_are_created_described_and_deleted(stage: Stage, version: int) -> None:
    """Of all kinds, twice, by filters of all kinds."""
    a, name = stage.connect("a"), stage.group
    mine = {"principal_filter": f"User:{name}"}
    own = {"principal": f"User:{name}"}
    create_acls(a, version=version)
    create_acls(a, acl(name, **own), acl(name, operation=DESCRIBE, **own), acl(name, **own), version=version)
    create_acls(a, acl("pay", resource_pattern_type=PREFIXED, **own), version=version)
    create_acls(a, acl("*", permission_type=DENY, **own), version=version)
    create_acls(a, acl("kafka-cluster", resource_type=CLUSTER, operation=DESCRIBE, **own), version=version)
    describe(a, version, 5, **mine)
    for others in (
        {"resource_type_filter": TOPIC},
        {"resource_type_filter": 99},
        {"resource_name_filter": "payments"},
        {"resource_name_filter": "payments", "pattern_type_filter": MATCH},
        {"resource_name_filter": "pay", "pattern_type_filter": PREFIXED},
        {"resource_name_filter": ""},
        {"operation": DESCRIBE},
        {"permission_type": DENY},
        {"host_filter": "10.0.0.1"},
    ):
        describe(a, version, **mine, **others)
    delete_acls(a, matching(**mine, resource_name_filter="nope"), version=version)
    delete_acls(
        a, *[matching(**mine, resource_name_filter="pay")] * 2, matching(resource_type_filter=99), version=version,
        error=E.INVALID_REQUEST,
    )  # fmt: skip
    describe(a, version, 4, **mine)
    delete_acls(a, matching(**mine), version=version)
    describe(a, version, 0, **mine)


@script(settings="applications")
def acls_are_refused(stage: Stage) -> None:
    """Each with its code and text; what has an unknown element is not answered."""
    a = stage.connect("a")
    for made, error in WRONG_ACLS:
        create_acls(a, made, error=error)
    create_acls(a, acl("", principal="User:x"), acl("x", host=""), error=E.INVALID_REQUEST)
    for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
        stage.connect(field).is_closed_after(kw.CreateAclsRequest(creations=[acl("x", **{field: 0})]), 3)
    stage.connect("filter").is_closed_after(kw.DescribeAclsRequest(**matching(operation=0)), 3)


# ---- SCRAM users


def alter_users(client: Connection, *parts: Any, error: E | None = None) -> None:
    kind = kw.AlterUserScramCredentialsRequestScramCredentialUpsertion
    request = kw.AlterUserScramCredentialsRequest(
        deletions=[part for part in parts if not isinstance(part, kind)],
        upsertions=[part for part in parts if isinstance(part, kind)],
    )
    client.call(request, 0, error)


def user(name: str, mechanism: int = 1, **others: Any) -> Any:
    known = {"iterations": 4_096, "salt": b"s" * 16, "salted_password": b"p" * 32}
    return kw.AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name=name, mechanism=mechanism, **{**known, **others}
    )


def no_user(name: str, mechanism: int = 1) -> Any:
    return kw.AlterUserScramCredentialsRequestScramCredentialDeletion(name=name, mechanism=mechanism)


def describe_users(client: Connection, *names: str, error: E | None = None) -> Any:
    users = [kw.DescribeUserScramCredentialsRequestUserName(name=name) for name in names]
    return client.call(kw.DescribeUserScramCredentialsRequest(users=users), 0, error)


@script(settings="applications")
def users_are_set_described_and_deleted(stage: Stage) -> None:
    a, name = stage.connect("a"), stage.group
    alter_users(a)
    alter_users(a, user(name))
    alter_users(a, user(name, 2, iterations=16_384, salted_password=b"p" * 64))
    alter_users(a, user(f"{name}-b"), user(f"{name}-c"))
    for wrong, error in (
        ([user(name, 0)], E.UNSUPPORTED_SASL_MECHANISM),
        ([user(name, 9)], E.UNSUPPORTED_SASL_MECHANISM),
        ([user(name, iterations=4_095)], E.UNACCEPTABLE_CREDENTIAL),
        ([user(name, iterations=16_385)], E.UNACCEPTABLE_CREDENTIAL),
        ([user("")], E.UNACCEPTABLE_CREDENTIAL),
        ([user(name), user(name, 2)], E.DUPLICATE_RESOURCE),
        ([no_user(name), user(name)], E.DUPLICATE_RESOURCE),
        ([no_user("nobody")], E.RESOURCE_NOT_FOUND),
        ([no_user("")], E.UNACCEPTABLE_CREDENTIAL),
        ([no_user(name, 7)], E.UNSUPPORTED_SASL_MECHANISM),
        ([no_user("nobody"), user(f"{name}-d")], E.RESOURCE_NOT_FOUND),
        ([user(name), user(f"{name}-e", iterations=1)], E.UNACCEPTABLE_CREDENTIAL),
    ):
        alter_users(a, *wrong, error=error)
    with stage.off_the_record():
        eventually(lambda: describe_users(a, f"{name}-d").results[0].error_code, until=lambda code: code == 0)
    describe_users(a, name, f"{name}-b")
    describe_users(a, "nobody", name, error=E.RESOURCE_NOT_FOUND)
    describe_users(a, name, name, error=E.DUPLICATE_RESOURCE)
    alter_users(a, no_user(name, 2))
    stage.eventually(lambda: describe_users(a, name), lambda answer: len(answer.results[0].credential_infos) == 1)


# ---- quotas

PRODUCE, FETCH, REQUESTS, MUTATIONS = (
    *("producer_byte_rate", "consumer_byte_rate"),
    *("request_percentage", "controller_mutation_rate"),
)
CONNECTIONS: Final = "connection_creation_rate"


def quota(entity: dict[str, str | None], **ops: float | None) -> Any:
    parts = [kw.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    made = [
        kw.AlterClientQuotasRequestOpData(key=key, value=value or 0.0, remove=value is None)
        for key, value in ops.items()
    ]
    return kw.AlterClientQuotasRequestEntryData(entity=parts, ops=made)


def alter_quotas(
    client: Connection, version: int, *entries: Any, error: E | None = None, validate: bool = False
) -> None:
    client.call(kw.AlterClientQuotasRequest(entries=list(entries), validate_only=validate), version, error)


def describe_quotas(
    client: Connection, version: int, *parts: tuple[str, int, str | None], strict: bool = False, error: E | None = None
) -> Any:
    component = kw.DescribeClientQuotasRequestComponentData
    components = [component(entity_type=kind, match_type=how, match=match) for kind, how, match in parts]
    return client.call(kw.DescribeClientQuotasRequest(components=components, strict=strict), version, error)


@script(settings="applications", versions=(0, 1))
def quotas_are_set_described_and_removed(stage: Stage, version: int) -> None:
    a, name = stage.connect("a"), stage.group
    mine, both = {"user": name}, {"user": name, "client-id": f"{name}-c"}
    alter_quotas(a, version, quota(mine, **{PRODUCE: 1e6, REQUESTS: 50.5}))
    alter_quotas(a, version, quota(both, **{FETCH: 2e6}), quota({"client-id": name}, **{MUTATIONS: 1.5}))
    alter_quotas(a, version, quota({"ip": "10.0.0.1"}, **{CONNECTIONS: 5.0}))
    alter_quotas(a, version, quota({"user": f"{name}-v"}, **{PRODUCE: 1e6}), validate=True)
    for wrong in (
        quota({}, **{PRODUCE: 1.0}),
        quota({"group": "a"}, **{PRODUCE: 1.0}),
        quota({"user": ""}, **{PRODUCE: 1.0}),
        quota({"user": "a", "ip": "10.0.0.1"}, **{PRODUCE: 1.0}),
        quota({"ip": "no ip!"}, **{CONNECTIONS: 1.0}),
        quota({"ip": "10.0.0.1"}, **{PRODUCE: 1.0}),
        quota(mine, **{CONNECTIONS: 1.0}),
        quota(mine, nonsense=1.0),
        quota(mine, **{PRODUCE: -1.0}),
        quota(mine, **{PRODUCE: 1.5}),
        quota(mine, **{PRODUCE: 1e30}),
        quota(mine, **{PRODUCE: float("inf")}),
        quota({"ip": None}, **{CONNECTIONS: 1e10}),
    ):
        alter_quotas(a, version, wrong, error=E.INVALID_REQUEST)
    exact, default, specified = range(3)
    with stage.off_the_record():
        eventually(
            lambda: describe_quotas(a, version, ("ip", exact, "10.0.0.1")).entries, until=lambda entries: bool(entries)
        )
    describe_quotas(a, version, ("user", exact, name))
    describe_quotas(a, version, ("user", exact, name), strict=True)
    describe_quotas(a, version, ("user", exact, name), ("client-id", specified, None), strict=True)
    describe_quotas(a, version, ("client-id", exact, name))
    describe_quotas(a, version, ("ip", exact, "10.0.0.1"))
    describe_quotas(a, version, ("user", exact, f"{name}-v"))
    describe_quotas(a, version, strict=True)
    describe_quotas(a, version, ("group", specified, None), error=E.UNSUPPORTED_VERSION)
    for refused in (
        [("", specified, None)],
        [("user", 9, None)],
        [("user", exact, None)],
        [("user", default, "x")],
        [("user", specified, None)] * 2,
        [("user", specified, None), ("ip", specified, None)],
    ):
        describe_quotas(a, version, *refused, error=E.INVALID_REQUEST)
    alter_quotas(a, version, quota(mine, **{PRODUCE: None, FETCH: None}))
    alter_quotas(a, version, quota({"ip": "10.0.0.1"}, **{CONNECTIONS: None}))
    stage.eventually(
        lambda: describe_quotas(a, version, ("user", exact, name), strict=True),
        lambda answer: len(answer.entries[0].values) == 1,
    )


# ---- compaction


def produce(client: Connection, topic: str, data: bytes) -> None:
    """Off the record: the answer has times."""
    part = kw.ProduceRequestPartitionProduceData(index=0, records=data)
    topics = [kw.ProduceRequestTopicProduceData(name=topic, partition_data=[part])]
    client.wire.call(kw.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 9)


def fetch(client: Connection, topic: str, offset: int, most: int = 1) -> Any:
    """One batch, unless it may be more: Kafka answers from one segment."""
    one = kw.FetchRequestFetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=most)
    named = [kw.FetchRequestFetchTopic(topic=topic, partitions=[one])]
    return client.call(kw.FetchRequest(max_wait_ms=0, min_bytes=1, topics=named), 11)


BATCHES: Final = [
    ([("a", "1"), ("b", "1"), ("c", "1")], {"compression": Compression.GZIP}),
    ([("a", "2"), ("d", None)], {}),
    ([("a", "3"), ("e", "1")], {"producer_id": 77, "producer_epoch": 0, "base_sequence": 0}),
    ([("e", "2"), ("b", None)], {"producer_id": 77, "producer_epoch": 0, "base_sequence": 2}),
    ([("f", "1"), ("f", "2")], {"producer_id": 78, "producer_epoch": 3, "base_sequence": 0}),
    ([("f", "3"), ("e", "3")], {}),
    ([("z", "1")], {}),
    ([("z", "2")], {}),
]
"""Keys with values, each batch in a segment of its own."""


@script(settings="applications")
def compacted_topics_are_read(stage: Stage) -> None:
    """Batch by batch, at offsets in gaps, and by time."""
    a, topic, first = stage.connect("a"), f"{stage.group}-t", 1_700_000_000_000
    with stage.off_the_record():
        create(
            a,
            new(topic, configs={"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.001"}),
        )
    exists(a, topic)
    for number, (records, options) in enumerate(BATCHES):
        made = [
            Record(key.encode(), None if value is None else value.encode(), first + number * 1_000)
            for key, value in records
        ]
        produce(a, topic, encode_batch(made, **options))

    def batches() -> list[Any]:
        found = fetch(a, topic, 0, most=1 << 20).responses[0].partitions[0].records
        return [batch for batch in read_records(found or b"") if batch.last_offset < 14]

    with stage.off_the_record():  # of a to f one record is left, and both of z; one batch has none
        eventually(
            lambda: [len(batch.records) for batch in batches()], until=lambda counts: counts == [1, 1, 1, 1, 0, 2, 1]
        )
    for offset in range(15):
        fetch(a, topic, offset)
    for at in (-1, -2, -3, first, first + 1, first + 4_000, first + 7_000, first + 7_001):
        part = kw.ListOffsetsRequestListOffsetsPartition(timestamp=at)
        named = [kw.ListOffsetsRequestListOffsetsTopic(name=topic, partitions=[part])]
        a.call(kw.ListOffsetsRequest(replica_id=-1, topics=named), 7)


# ---- elections


@script(settings="applications", versions=(0, 1, 2))
def leaders_are_elected(stage: Stage, version: int) -> None:
    """Where all lead that should: nothing is needed, whatever is asked for."""
    a = stage.connect("a")

    def elect(parts: dict[str, list[int]], election: int = 0, error: E | None = None) -> None:
        part = kw.ElectLeadersRequestTopicPartitions
        wanted = [part(topic=name, partitions=numbers) for name, numbers in parts.items()]
        request = kw.ElectLeadersRequest(topic_partitions=wanted, timeout_ms=10_000, election_type=election)
        a.call(request, version, error)

    elect({})
    elect({"orders": [0, 1]}, error=E.ELECTION_NOT_NEEDED)
    elect({"orders": [9]}, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    elect({"nope": [0]}, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    if version:
        elect({"orders": [0], "payments": [2]}, 1, error=E.ELECTION_NOT_NEEDED)


# ---- reassignments


@script(settings="applications", versions=(0, 1))
def partitions_are_reassigned(stage: Stage, version: int) -> None:
    """To the node where they are; what cannot be; and that none is in progress afterwards."""
    a = stage.connect("a")
    with stage.off_the_record():
        (node,) = [each.broker_id for each in a.call(kw.DescribeClusterRequest(), 0).brokers]
    topic, part = (
        kw.AlterPartitionReassignmentsRequestReassignableTopic,
        kw.AlterPartitionReassignmentsRequestReassignablePartition,
    )

    def reassign(
        parts: dict[str, list[tuple[int, list[int] | None]]], error: E | None = None, may_resize: bool = True
    ) -> None:
        wanted = [
            topic(name=name, partitions=[part(partition_index=at, replicas=on) for at, on in own])
            for name, own in parts.items()
        ]
        request = kw.AlterPartitionReassignmentsRequest(topics=wanted, allow_replication_factor_change=may_resize)
        a.call(request, version, error)

    reassign({})
    reassign({"orders": [(0, [node]), (2, [node]), (0, [node])], "payments": [(1, [node])]})
    reassign({"orders": [(0, None), (1, [node])]}, E.NO_REASSIGNMENT_IN_PROGRESS)
    for brokers in ([], [99], [node, 99], [99, 99]):
        reassign({"orders": [(0, brokers)], "payments": [(0, [node])]}, E.INVALID_REPLICA_ASSIGNMENT)
    reassign({"orders": [(9, [node]), (-1, None)], "nope": [(0, [node]), (0, None)]}, E.UNKNOWN_TOPIC_OR_PARTITION)
    if version:
        reassign({"orders": [(0, [node])]}, may_resize=False)
        reassign({"orders": [(0, [])]}, E.INVALID_REPLICA_ASSIGNMENT, may_resize=False)
    listed = kw.ListPartitionReassignmentsRequestListPartitionReassignmentsTopics
    for named in (None, [listed(name="orders", partition_indexes=[0, 9]), listed(name="nope", partition_indexes=[0])]):
        a.call(kw.ListPartitionReassignmentsRequest(topics=named), 0)
