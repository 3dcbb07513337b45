"""Permissions: what each api needs, how a request is taken apart and its answer put together again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from kcoord_wire import messages as m
from kcoord_wire.codec.registry import registry
from kcoord_wire.coordinator.core.apis import APIS, Api, Kind, Operation, item_class, refusal
from kcoord_wire.coordinator.security import authorization
from kcoord_wire.coordinator.security.permissions import ANONYMOUS, Permissions, Rule
from kcoord_wire.kernel.settings import SettingsError
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ALICE = "User:alice"
IDS = {name: uuid.UUID(int=number) for number, name in enumerate(("orders", "secret", "orders-2"), 1)}


def name_of(topic_id: uuid.UUID) -> str | None:
    return {number: name for name, number in IDS.items()}.get(topic_id)


def rule(operations: str, groups: str = "", topics: str = "", principals: str = ALICE) -> Rule:
    wanted = frozenset(Operation[operation.upper()] for operation in operations.split())
    return Rule(tuple(principals.split()), wanted, tuple(groups.split()), tuple(topics.split()))


ORDERS = Permissions([rule("read", "billing*", "orders*"), rule("delete", "billing"), rule("write", topics="orders")])
"""Alice may read groups billing* and topics orders*, delete group billing and write to orders."""


def split(request: Any, version: int, permissions: Permissions = ORDERS, principal: str = ALICE) -> tuple[Any, Any]:
    allowed, finish = authorization.split(permissions, request, version, principal, name_of)
    if allowed is None:
        assert finish is not None
        response = finish(None)
        codec = registry.response(registry[type(request).__name__].api_key or 0)
        assert codec.decode(codec.encode(response, version), version) is not None
    return allowed, finish


def errors(topics: Sequence[Any], partitions: str = "partitions", name: str = "name") -> dict[str, list[int]]:
    return {getattr(topic, name): [part.error_code for part in getattr(topic, partitions)] for topic in topics}


# ---- rules


@pytest.mark.parametrize(
    ("operation", "kind", "name", "allowed"),
    [
        (Operation.READ, "group", "billing", True),
        (Operation.READ, "group", "billing-2", True),
        (Operation.READ, "group", "billin", False),
        (Operation.READ, "group", "", False),
        (Operation.DESCRIBE, "group", "billing-2", True),
        (Operation.DELETE, "group", "billing", True),
        (Operation.DELETE, "group", "billing-2", False),
        (Operation.READ, "topic", "orders-2", True),
        (Operation.WRITE, "topic", "orders", True),
        (Operation.WRITE, "topic", "orders-2", False),
        (Operation.DESCRIBE, "topic", "orders", True),
        (Operation.DESCRIBE, "topic", "billing", False),
    ],
)
def test_judgement(operation: Operation, kind: str, name: str, allowed: bool) -> None:
    of = Kind.GROUP if kind == "group" else Kind.TOPIC
    assert ORDERS.allows(ALICE, operation, of, name) is allowed
    assert not ORDERS.allows("User:alic", operation, of, name)
    assert not ORDERS.allows("User:alice2", operation, of, name)
    assert not ORDERS.allows(ANONYMOUS, operation, of, name)


def test_deny_goes_before_allow() -> None:
    permissions = Permissions(
        [rule("read write delete", "*", "*", "User:*")], [rule("read", "x*", principals=ALICE), rule("describe", "y")]
    )
    assert not permissions.allows(ALICE, Operation.READ, Kind.GROUP, "x1")
    assert permissions.allows(ALICE, Operation.DESCRIBE, Kind.GROUP, "x1")  # denying read does not deny describe
    assert permissions.allows("User:bob", Operation.READ, Kind.GROUP, "x1")
    assert not permissions.allows(ALICE, Operation.DESCRIBE, Kind.GROUP, "y")
    assert permissions.allows(ALICE, Operation.READ, Kind.GROUP, "y")
    assert permissions.allows(ALICE, Operation.WRITE, Kind.TOPIC, "x1")


def test_no_rules_allow_nothing() -> None:
    assert not Permissions([]).allows(ALICE, Operation.DESCRIBE, Kind.GROUP, "g")


def test_some_topic() -> None:
    assert ORDERS.allows_some_topic(ALICE, Operation.WRITE)
    assert not ORDERS.allows_some_topic("User:bob", Operation.WRITE)
    assert not ORDERS.allows_some_topic(ALICE, Operation.DELETE)
    everything = [rule("write", topics="t*")]
    assert Permissions(everything, [rule("write", topics="t")]).allows_some_topic(ALICE, Operation.WRITE)
    assert not Permissions(everything, [rule("write", topics="t*")]).allows_some_topic(ALICE, Operation.WRITE)
    assert not Permissions(everything, [rule("write", topics="*")]).allows_some_topic(ALICE, Operation.WRITE)


# ---- apis that ask about one group


@pytest.mark.parametrize(
    ("request_class", "versions"),
    [
        (m.JoinGroupRequest, range(10)),
        (m.SyncGroupRequest, range(6)),
        (m.HeartbeatRequest, range(5)),
        (m.LeaveGroupRequest, range(6)),
        (m.ConsumerGroupHeartbeatRequest, range(2)),
    ],
)
def test_members(request_class: Any, versions: range) -> None:
    for version in versions:
        request = request_class(group_id="billing")
        assert split(request, version) == (request, None)
        allowed, finish = split(request_class(group_id="other"), version)
        assert allowed is None
        assert finish(None).error_code == NO_GROUP


AUTHORISED_AS = {  # in KafkaApis.scala
    "read groups": "JOIN_GROUP HEARTBEAT LEAVE_GROUP SYNC_GROUP STREAMS_GROUP_HEARTBEAT "
    "STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE",
    "read groups, describe topics": "CONSUMER_GROUP_HEARTBEAT SHARE_GROUP_HEARTBEAT",
    "read groups, read each of topics": "OFFSET_COMMIT SHARE_FETCH SHARE_ACKNOWLEDGE ALTER_SHARE_GROUP_OFFSETS",
    "delete groups, read each of topics": "OFFSET_DELETE DELETE_SHARE_GROUP_OFFSETS",
    "describe groups, describe each of topics": "OFFSET_FETCH",
    "describe each of groups": (
        "DESCRIBE_GROUPS LIST_GROUPS CONSUMER_GROUP_DESCRIBE SHARE_GROUP_DESCRIBE DESCRIBE_SHARE_GROUP_OFFSETS "
        "STREAMS_GROUP_DESCRIBE"
    ),
    "delete each of groups": "DELETE_GROUPS",
    "read each of topics": "FETCH DESCRIBE_PRODUCERS",
    "describe each of topics": "LIST_OFFSETS METADATA OFFSET_FOR_LEADER_EPOCH DESCRIBE_TOPIC_PARTITIONS",
    "create each of topics": "CREATE_TOPICS",
    "delete each of topics": "DELETE_TOPICS DELETE_RECORDS",
    "alter each of topics": "CREATE_PARTITIONS",
    "write transactional_ids": "END_TXN",
    "write transactional_ids, write each of topics": "PRODUCE",
    "read groups, write transactional_ids": "ADD_OFFSETS_TO_TXN",
    "write transactional_ids, read groups, read each of topics": "TXN_OFFSET_COMMIT",
    "describe each of transactional_ids": "DESCRIBE_TRANSACTIONS LIST_TRANSACTIONS",
    "describe_configs each of resources": "DESCRIBE_CONFIGS",
    "alter_configs each of resources": "ALTER_CONFIGS INCREMENTAL_ALTER_CONFIGS",
    "describe cluster": "DESCRIBE_ACLS DESCRIBE_LOG_DIRS LIST_PARTITION_REASSIGNMENTS DESCRIBE_USER_SCRAM_CREDENTIALS",
    "alter cluster": (
        "WRITE_TXN_MARKERS CREATE_ACLS DELETE_ACLS ELECT_LEADERS ALTER_PARTITION_REASSIGNMENTS "
        "ALTER_USER_SCRAM_CREDENTIALS INITIALIZE_SHARE_GROUP_STATE READ_SHARE_GROUP_STATE WRITE_SHARE_GROUP_STATE "
        "DELETE_SHARE_GROUP_STATE READ_SHARE_GROUP_STATE_SUMMARY"
    ),
    "describe_configs cluster": "LIST_CONFIG_RESOURCES DESCRIBE_CLIENT_QUOTAS",
    "alter_configs cluster": "ALTER_CLIENT_QUOTAS",
}
DECIDED_OTHERWISE = (
    "FIND_COORDINATOR SASL_HANDSHAKE SASL_AUTHENTICATE API_VERSIONS INIT_PRODUCER_ID ADD_PARTITIONS_TO_TXN "
    "DESCRIBE_CLUSTER"
)


def test_what_each_api_is_authorised_as() -> None:
    """The tests below take what they ask from the rows, so a row without a need would be tested by none of them."""
    needed: dict[str, str] = {}
    for api in APIS.values():
        words = [f"{operation.name.lower()} {kind}" for kind, operation in api.needs]
        if api.each is not None:
            words.append(f"{api.each[1].name.lower()} each of {api.each[0]}")
        needed[api.key.name] = ", ".join(words)
    expected = {name: words for words, names in AUTHORISED_AS.items() for name in names.split()}
    assert needed == expected | dict.fromkeys(DECIDED_OTHERWISE.split(), "")


def test_other_apis_are_let_through() -> None:
    for request in (m.ApiVersionsRequest(), m.SaslHandshakeRequest(), m.SaslAuthenticateRequest()):
        assert split(request, 0, Permissions([])) == (request, None)


def test_find_coordinator_for_one_group() -> None:
    for version in range(4):
        assert split(m.FindCoordinatorRequest(key="billing"), version)[1] is None
        allowed, finish = split(m.FindCoordinatorRequest(key="other"), version)
        assert allowed is None
        response = finish(None)
        assert (response.error_code, response.node_id, response.port) == (NO_GROUP, -1, -1)
    share = m.FindCoordinatorRequest(key="other", key_type=2)
    assert split(share, 3) == (share, None)


@pytest.mark.parametrize("version", [4, 6])
def test_find_coordinator_for_several_groups(version: int) -> None:
    request = m.FindCoordinatorRequest(coordinator_keys=["x", "billing", "y", "billing-2"])
    allowed, finish = split(request, version)
    assert allowed.coordinator_keys == ["billing", "billing-2"]
    found = [m.FindCoordinatorResponseCoordinator(key=key, node_id=1) for key in allowed.coordinator_keys]
    whole = finish(m.FindCoordinatorResponse(coordinators=found))
    assert [(part.key, part.error_code, part.node_id) for part in whole.coordinators] == [
        ("x", NO_GROUP, -1),
        ("billing", 0, 1),
        ("y", NO_GROUP, -1),
        ("billing-2", 0, 1),
    ]
    assert request.coordinator_keys == ["x", "billing", "y", "billing-2"]
    allowed, finish = split(m.FindCoordinatorRequest(coordinator_keys=["x", "y"]), version)
    assert allowed is None
    assert [part.error_code for part in finish(None).coordinators] == [NO_GROUP, NO_GROUP]


def test_delete_groups() -> None:
    allowed, finish = split(m.DeleteGroupsRequest(groups_names=["billing-2", "billing", "x"]), 2)
    assert allowed.groups_names == ["billing"]
    answer = m.DeleteGroupsResponse(results=[m.DeleteGroupsResponseDeletableGroupResult(group_id="billing")])
    results = finish(answer).results
    assert [(part.group_id, part.error_code) for part in results] == [
        ("billing-2", NO_GROUP),
        ("billing", 0),
        ("x", NO_GROUP),
    ]


@pytest.mark.parametrize("ask_for_operations", [False, True])
def test_describe_groups(ask_for_operations: bool) -> None:
    request = m.DescribeGroupsRequest(
        groups=["x", "billing", "billing-2", "billing-3"], include_authorized_operations=ask_for_operations
    )
    allowed, finish = split(request, 5)
    assert allowed.groups == ["billing", "billing-2", "billing-3"]
    groups = [m.DescribeGroupsResponseDescribedGroup(group_id=name, group_state="Empty") for name in allowed.groups]
    groups[2].error_code = 14
    whole = finish(m.DescribeGroupsResponse(groups=groups)).groups
    assert [(group.group_id, group.error_code) for group in whole] == [
        ("x", NO_GROUP),
        ("billing", 0),
        ("billing-2", 0),
        ("billing-3", 14),
    ]
    unset = -(2**31)
    read, delete, describe = 1 << 3, 1 << 6, 1 << 8
    expected = [unset, read | delete | describe, read | describe, unset] if ask_for_operations else [unset] * 4
    assert [group.authorized_operations for group in whole] == expected


@pytest.mark.parametrize(("names", "code"), [(["orders"], 0), (["orders", "secret"], NO_TOPIC), ([], 0), (None, 0)])
def test_consumers_subscribe_to_topics_they_may_describe(names: list[str] | None, code: int) -> None:
    request = m.ConsumerGroupHeartbeatRequest(group_id="billing", subscribed_topic_names=names)
    allowed, finish = split(request, 1)
    assert allowed is (None if code else request)
    assert (finish(None).error_code if finish else 0) == code


@pytest.mark.parametrize("ask_for_operations", [False, True])
def test_consumer_groups_are_described_with_their_topics(ask_for_operations: bool) -> None:
    request = m.ConsumerGroupDescribeRequest(
        group_ids=["x", "billing", "billing-2"], include_authorized_operations=ask_for_operations
    )
    allowed, finish = split(request, 1)
    assert allowed.group_ids == ["billing", "billing-2"]

    def group(name: str, topic: str) -> m.ConsumerGroupDescribeResponseDescribedGroup:
        held = m.ConsumerGroupDescribeResponseAssignment(
            topic_partitions=[m.ConsumerGroupDescribeResponseTopicPartitions(topic_name=topic, partitions=[0])]
        )
        members = [m.ConsumerGroupDescribeResponseMember(member_id="a", target_assignment=held)]
        return m.ConsumerGroupDescribeResponseDescribedGroup(group_id=name, members=members)

    answer = m.ConsumerGroupDescribeResponse(groups=[group("billing", "orders"), group("billing-2", "secret")])
    groups = finish(answer).groups
    assert [(part.group_id, part.error_code) for part in groups] == [("x", NO_GROUP), ("billing", 0), ("billing-2", 29)]
    assert [len(part.members) for part in groups] == [0, 1, 0]
    assert (groups[1].authorized_operations > 0) == ask_for_operations


def test_share_groups_are_described_with_their_topics() -> None:
    allowed, finish = split(m.ShareGroupDescribeRequest(group_ids=["x", "billing", "billing-2"]), 1)
    assert allowed.group_ids == ["billing", "billing-2"]

    def group(name: str, topic: str) -> m.ShareGroupDescribeResponseDescribedGroup:
        held = m.ShareGroupDescribeResponseAssignment(
            topic_partitions=[m.ShareGroupDescribeResponseTopicPartitions(topic_name=topic, partitions=[0])]
        )
        members = [m.ShareGroupDescribeResponseMember(member_id="a", assignment=held)]
        return m.ShareGroupDescribeResponseDescribedGroup(group_id=name, members=members)

    answer = m.ShareGroupDescribeResponse(groups=[group("billing", "orders"), group("billing-2", "secret")])
    groups = finish(answer).groups
    assert [(part.group_id, part.error_code) for part in groups] == [("x", NO_GROUP), ("billing", 0), ("billing-2", 29)]
    assert [len(part.members) for part in groups] == [0, 1, 0]


@pytest.mark.parametrize(("topic", "error"), [("orders", 0), ("secret", NO_TOPIC)])
def test_streams_groups_need_all_topics_of_the_topology(topic: str, error: int) -> None:
    asked = m.StreamsGroupHeartbeatRequestSubtopology(repartition_sink_topics=["orders", topic])
    topology = m.StreamsGroupHeartbeatRequestTopology(subtopologies=[asked])
    _, finish = split(m.StreamsGroupHeartbeatRequest(group_id="billing", topology=topology), 1)
    assert (0 if finish is None else finish(None).error_code) == error
    _, refuse = split(m.StreamsGroupHeartbeatRequest(group_id="x", topology=topology), 1)
    assert refuse(None).error_code == NO_GROUP

    shown = m.StreamsGroupDescribeResponseSubtopology(
        state_changelog_topics=[m.StreamsGroupDescribeResponseTopicInfo(name=topic)]
    )
    group = m.StreamsGroupDescribeResponseDescribedGroup(
        group_id="billing", topology=m.StreamsGroupDescribeResponseTopology(subtopologies=[shown])
    )
    _, finish = split(m.StreamsGroupDescribeRequest(group_ids=["billing"]), 1)
    (described,) = finish(m.StreamsGroupDescribeResponse(groups=[group])).groups
    assert (described.error_code, described.topology is None) == (error, bool(error))


def test_list_groups_leaves_out() -> None:
    allowed, finish = split(m.ListGroupsRequest(states_filter=["Stable"]), 4)
    assert allowed.states_filter == ["Stable"]
    groups = [m.ListGroupsResponseListedGroup(group_id=name) for name in ("x", "billing", "y", "billing-2")]
    assert [group.group_id for group in finish(m.ListGroupsResponse(groups=groups)).groups] == ["billing", "billing-2"]


# ---- apis that ask about topics


EVERYTHING = Permissions(
    [Rule((ALICE,), frozenset(Operation), ("billing",), ("orders",), transactional_ids=("pay-1",), cluster=True)]
)
TOPIC_LISTS = [
    (api, path)
    for api in APIS.values()
    for path in api.parts.split()
    if api.each is not None and api.each[0] is Kind.TOPIC and api.key not in (ApiKey.METADATA, ApiKey.OFFSET_FETCH)
]
IDS_FROM = {
    ApiKey.PRODUCE: 13,
    ApiKey.FETCH: 13,
    ApiKey.OFFSET_COMMIT: 10,
    ApiKey.TXN_OFFSET_COMMIT: 6,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}


def operations(of: str) -> dict[ApiKey, Operation]:
    """What Kafka demands of something: api to operation."""
    return {
        ApiKey[name]: Operation[words.partition(" ")[0].upper()]
        for needs, names in AUTHORISED_AS.items()
        for words in needs.split(", ")
        if words.partition(" ")[2] == of
        for name in names.split()
    }


NEEDED = operations("each of topics")
LISTED = {api.key for api, _ in TOPIC_LISTS}
NEEDED_OF_GROUP = {key: operation for key, operation in operations("groups").items() if key in LISTED}
IMPLY_DESCRIBE = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE}
REFUSED = {
    ApiKey.PRODUCE: {"base_offset": -1},
    ApiKey.FETCH: {"records": b""},
    ApiKey.SHARE_FETCH: {"records": b""},
    ApiKey.DELETE_RECORDS: {"low_watermark": -1},
}
NUMBERS = ("partition", "partition_index", "index")


def ask(api: Api, path: str, version: int, *names: str, **fields: Any) -> Any:
    """A request for these topics, with partition 4 of each where it names partitions."""
    topics, _, partitions = (each.partition("=")[0] for each in path.partition("."))
    item = item_class(api.request, topics)
    asked = []
    for name in names:
        by_id = version >= IDS_FROM.get(api.key, 99)
        known = {"topic", "topic_name"} & get_type_hints(item).keys()
        field = "topic_id" if by_id else next(iter(known), "name")
        topic = item(**{field: IDS[name] if by_id else name}) if item is not str else name
        if partitions:
            part = item_class(item, partitions)
            numbers = {number: 4 for number in NUMBERS if number in get_type_hints(part)}
            setattr(topic, partitions, [4 if part is int else part(**numbers)])
        asked.append(topic)
    given = {"group_id": "billing", "transactional_id": "pay-1", **fields}
    known = {name: value for name, value in given.items() if name in get_type_hints(api.request)}
    return api.request(**{topics: asked}, **known)


def named(part: Any) -> str | None:
    """The topic that a part of a request or an answer names."""
    if isinstance(part, str):
        return part
    names = (getattr(part, field, "") for field in ("topic", "topic_name", "name"))
    return next(filter(None, names), None) or name_of(part.topic_id)


def leaves(part: Any) -> list[Any]:
    """The parts of an answer that have the errors of a topic."""
    return [part] if hasattr(part, "error_code") else getattr(part, "partitions", None) or part.partition_responses


@pytest.mark.parametrize(("api", "path"), TOPIC_LISTS, ids=lambda each: getattr(each, "key", each))
def test_a_list_of_topics_is_split(api: Api, path: str) -> None:
    batch = next(each for each in api.batches if path.startswith(each.name))
    for version in api.versions:
        request = ask(api, path, version, "secret", "orders", "secret")
        allowed, finish = split(request, version, EVERYTHING)
        assert [named(each) for each in batch.items(allowed)] == ["orders"]
        assert replace(allowed, **{batch.name: batch.items(request)}) == request
        (done,) = (batch.refuse(each, version, 0) for each in batch.items(allowed))
        whole = getattr(finish(api.response(**{batch.answers: [done]})), batch.answers)
        assert [named(each) for each in whole] == ["secret", "orders", "secret"]
        assert [leaf.error_code for each in whole for leaf in leaves(each)] == [NO_TOPIC, 0, NO_TOPIC]
        for leaf in leaves(whole[0]):
            assert {name: getattr(leaf, name) for name in REFUSED.get(api.key, {})} == REFUSED.get(api.key, {})
            number = [getattr(leaf, name) for name in NUMBERS if hasattr(leaf, name)]
            assert number in ([4], [])
        if hasattr(api.response(), "error_code"):
            failed = api.response(error_code=70)
            assert finish(failed) == failed
        allowed, finish = split(ask(api, path, version, "secret"), version, EVERYTHING)
        assert allowed is None
        refused = [leaf.error_code for each in getattr(finish(None), batch.answers) for leaf in leaves(each)]
        assert refused == [NO_TOPIC]
        mine = ask(api, path, version, "orders")
        assert split(mine, version, EVERYTHING)[0] is mine


@pytest.mark.parametrize(("api", "path"), TOPIC_LISTS, ids=lambda each: getattr(each, "key", each))
def test_a_topic_in_a_list_needs_the_operation_of_its_api(api: Api, path: str) -> None:
    version = api.versions[-1] if path != "topic_names" else 5
    request = ask(api, path, version, "orders")
    beside = Rule((ALICE,), frozenset(Operation), ("billing",), transactional_ids=("pay-1",), cluster=True)
    enough = IMPLY_DESCRIBE if NEEDED[api.key] is Operation.DESCRIBE else {NEEDED[api.key]}
    for operation in Operation:
        permissions = Permissions([beside, Rule((ALICE,), frozenset((operation,)), topics=("orders",))])
        allowed, _ = split(request, version, permissions)
        assert (allowed is not None) == (operation in enough), operation


@pytest.mark.parametrize("api", [APIS[key] for key in NEEDED_OF_GROUP], ids=lambda api: api.key)
def test_the_group_of_a_list_needs_the_operation_of_its_api(api: Api) -> None:
    version = api.versions[-1]
    request = ask(api, api.parts, version, "orders")
    beside = Rule((ALICE,), frozenset(Operation), topics=("orders",), transactional_ids=("pay-1",))
    for operation in Operation:
        permissions = Permissions([beside, Rule((ALICE,), frozenset((operation,)), groups=("billing",))])
        allowed, _ = split(request, version, permissions)
        assert (allowed is not None) == (operation is NEEDED_OF_GROUP[api.key]), operation


@pytest.mark.parametrize(
    ("api", "path"),
    [each for each in TOPIC_LISTS if each[0].group],
    ids=lambda each: getattr(each, "key", each),
)
def test_a_group_goes_before_its_topics(api: Api, path: str) -> None:
    for version in api.versions:
        request = ask(api, path, version, "orders", "secret", group_id="other")
        allowed, finish = split(request, version, EVERYTHING)
        assert allowed is None
        answer = finish(None)
        topics = getattr(answer, "topics", None) or getattr(answer, "responses", [])
        parts = [leaf.error_code for topic in topics for leaf in leaves(topic)]
        assert {getattr(answer, "error_code", 0), *parts} - {0} == {NO_GROUP}


def test_an_unknown_topic_id_is_the_machines_to_refuse() -> None:
    topic = m.OffsetCommitRequestTopic(topic_id=uuid.UUID(int=99))
    request = m.OffsetCommitRequest(group_id="billing", topics=[topic])
    assert split(request, 10) == (request, None)


@pytest.mark.parametrize("version", range(8))
def test_offset_fetch_of_one_group(version: int) -> None:
    def ask(*names: str, group: str = "billing") -> m.OffsetFetchRequest:
        topics = [m.OffsetFetchRequestTopic(name=name, partition_indexes=[0, 5]) for name in names]
        return m.OffsetFetchRequest(group_id=group, topics=topics)

    allowed, finish = split(ask("orders", "secret", "orders-2"), version)
    assert [topic.name for topic in allowed.topics] == ["orders", "orders-2"]
    found = [
        m.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[m.OffsetFetchResponsePartition(partition_index=n) for n in topic.partition_indexes],
        )
        for topic in allowed.topics
    ]
    whole = finish(m.OffsetFetchResponse(topics=found))
    assert errors(whole.topics) == {"orders": [0, 0], "secret": [NO_TOPIC, NO_TOPIC], "orders-2": [0, 0]}
    assert [topic.name for topic in whole.topics] == ["orders", "secret", "orders-2"]
    assert [(p.partition_index, p.committed_offset) for p in whole.topics[1].partitions] == [(0, -1), (5, -1)]
    assert split(ask("orders"), version)[1] is None

    # What is wrong with the group goes before what is wrong with its topics.
    allowed, finish = split(ask("secret"), version)
    assert allowed.topics == []
    assert finish(m.OffsetFetchResponse(error_code=16)) == m.OffsetFetchResponse(error_code=16)
    assert errors(finish(m.OffsetFetchResponse()).topics) == {"secret": [NO_TOPIC, NO_TOPIC]}

    allowed, finish = split(ask("orders", group="x"), version)
    assert allowed is None
    response = finish(None)
    assert response.error_code == (NO_GROUP if version >= 2 else 0)
    assert errors(response.topics) == ({} if version >= 2 else {"orders": [NO_GROUP, NO_GROUP]})


def test_offset_fetch_of_all_topics_leaves_out() -> None:
    request = m.OffsetFetchRequest(group_id="billing", topics=None)
    allowed, finish = split(request, 5)
    assert allowed is request
    topics = [m.OffsetFetchResponseTopic(name=name) for name in ("secret", "orders")]
    assert [topic.name for topic in finish(m.OffsetFetchResponse(topics=topics)).topics] == ["orders"]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offset_fetch_of_several_groups(version: int) -> None:
    def asked(*names: str) -> list[m.OffsetFetchRequestTopics]:
        return [
            m.OffsetFetchRequestTopics(
                name=name if version < 10 else "",
                topic_id=IDS[name] if version == 10 else uuid.UUID(int=0),
                partition_indexes=[0],
            )
            for name in names
        ]

    def answered(topics: Sequence[m.OffsetFetchRequestTopics]) -> list[m.OffsetFetchResponseTopics]:
        found = [m.OffsetFetchResponsePartitions(partition_index=0, committed_offset=7)]
        return [m.OffsetFetchResponseTopics(name=t.name, topic_id=t.topic_id, partitions=found) for t in topics]

    groups = [
        m.OffsetFetchRequestGroup(group_id="x", topics=asked("orders")),
        m.OffsetFetchRequestGroup(group_id="billing", topics=asked("secret", "orders")),
        m.OffsetFetchRequestGroup(group_id="billing-2", topics=None),
        m.OffsetFetchRequestGroup(group_id="billing-3", topics=asked("orders")),
        m.OffsetFetchRequestGroup(group_id="billing-4", topics=asked("secret")),
    ]
    allowed, finish = split(m.OffsetFetchRequest(groups=groups), version)
    assert [group.group_id for group in allowed.groups] == ["billing", "billing-2", "billing-3", "billing-4"]
    assert [None if group.topics is None else len(group.topics) for group in allowed.groups] == [1, None, 1, 0]
    answers = [
        m.OffsetFetchResponseGroup(group_id="billing", topics=answered(asked("orders"))),
        m.OffsetFetchResponseGroup(group_id="billing-2", topics=answered(asked("orders", "secret", "orders-2"))),
        m.OffsetFetchResponseGroup(group_id="billing-3", topics=answered(asked("orders"))),
        m.OffsetFetchResponseGroup(group_id="billing-4", error_code=14),
    ]
    whole = finish(m.OffsetFetchResponse(groups=answers)).groups
    names = [
        [(topic.name or name_of(topic.topic_id), topic.partitions[0].error_code) for topic in group.topics]
        for group in whole
    ]
    assert [group.error_code for group in whole] == [NO_GROUP, 0, 0, 0, 14]
    assert names == [
        [],
        [("secret", NO_TOPIC), ("orders", 0)],
        [("orders", 0), ("orders-2", 0)],
        [("orders", 0)],
        [],
    ]
    assert split(m.OffsetFetchRequest(groups=groups[3:4]), version)[1] is None
    allowed, finish = split(m.OffsetFetchRequest(groups=groups[:1]), version)
    assert allowed is None
    assert [(group.group_id, group.error_code) for group in finish(None).groups] == [("x", NO_GROUP)]


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_named_topics(version: int) -> None:
    topics = [m.MetadataRequestTopic(name=name) for name in ("secret", "orders")]
    allowed, finish = split(m.MetadataRequest(topics=topics), version)
    assert [topic.name for topic in allowed.topics] == ["orders"]
    answer = m.MetadataResponse(
        brokers=[m.MetadataResponseBroker()], topics=[m.MetadataResponseTopic(name="orders", topic_id=IDS["orders"])]
    )
    whole = finish(answer)
    assert [(topic.name, topic.error_code) for topic in whole.topics] == [("secret", NO_TOPIC), ("orders", 0)]
    assert whole.brokers == answer.brokers
    allowed, finish = split(m.MetadataRequest(topics=topics[:1]), version)
    assert allowed.topics == []  # which is "all" in version 0, so the answer's topics count for nothing
    assert [(topic.name, topic.error_code) for topic in finish(answer).topics] == [("secret", NO_TOPIC)]
    assert finish(answer).error_code == 0
    assert split(m.MetadataRequest(topics=topics[1:]), version)[1] is None


@pytest.mark.parametrize("version", [0, 1, 12])
def test_metadata_of_all_topics_leaves_out(version: int) -> None:
    allowed, finish = split(m.MetadataRequest(topics=None if version else []), version)
    answer = m.MetadataResponse(topics=[m.MetadataResponseTopic(name=name) for name in IDS])
    assert [topic.name for topic in finish(answer).topics] == ["orders", "orders-2"]
    assert allowed.topics == (None if version else [])


def test_metadata_of_no_topics_is_let_through() -> None:
    request = m.MetadataRequest(topics=[])
    assert split(request, 1, Permissions([])) == (request, None)


def test_metadata_by_id_does_not_reveal_the_name() -> None:
    topics = [m.MetadataRequestTopic(name=None, topic_id=IDS[name]) for name in ("secret", "orders")]
    allowed, finish = split(m.MetadataRequest(topics=topics), 12)
    assert [topic.topic_id for topic in allowed.topics] == [IDS["orders"]]
    refused = finish(m.MetadataResponse()).topics[0]
    assert (refused.name, refused.topic_id, refused.error_code) == (None, IDS["secret"], NO_TOPIC)


def test_metadata_with_authorized_operations() -> None:
    topics = [m.MetadataRequestTopic(name=name) for name in ("orders", "orders-2", "secret")]
    _, finish = split(m.MetadataRequest(topics=topics, include_topic_authorized_operations=True), 8)
    answer = m.MetadataResponse(topics=[m.MetadataResponseTopic(name=name) for name in ("orders", "orders-2")])
    read, write, describe = 1 << 3, 1 << 4, 1 << 8
    operations = [topic.topic_authorized_operations for topic in finish(answer).topics]
    assert operations == [read | write | describe, read | describe, -(2**31)]


def test_init_producer_id() -> None:
    request = m.InitProducerIdRequest(transactional_id=None)
    assert split(request, 4) == (request, None)
    allowed, finish = split(request, 4, principal="User:bob")
    assert (allowed, finish(None).error_code) == (None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


TRANSACTIONS = Permissions(
    [
        Rule((ALICE,), frozenset({Operation.WRITE}), transactional_ids=("pay-*",)),
        rule("write", topics="orders"),
        rule("read", "billing", "orders"),
    ]
)


@pytest.mark.parametrize(
    ("request_class", "fields"),
    [
        (m.InitProducerIdRequest, {"transactional_id": "other"}),
        (m.AddOffsetsToTxnRequest, {"transactional_id": "other", "group_id": "billing"}),
        (m.EndTxnRequest, {"transactional_id": "other"}),
    ],
)
def test_a_transactional_id_needs_write(request_class: type, fields: dict[str, str]) -> None:
    request = request_class(**fields)
    allowed, finish = split(request, 2, TRANSACTIONS)
    assert (allowed, finish(None).error_code) == (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    request.transactional_id = "pay-1"
    assert split(request, 2, TRANSACTIONS) == (request, None)


def test_what_goes_into_a_transaction_needs_its_own_permission() -> None:
    topic = m.AddPartitionsToTxnRequestAddPartitionsToTxnTopic
    topics = [topic(name="orders", partitions=[0]), topic(name="secret", partitions=[1])]
    request = m.AddPartitionsToTxnRequest(v3_and_below_transactional_id="pay-1", v3_and_below_topics=topics)
    allowed, finish = split(request, 3, TRANSACTIONS)
    codes = [
        part.partition_error_code
        for each in finish(None).results_by_topic_v3_and_below
        for part in each.results_by_partition
    ]
    assert (allowed, codes) == (None, [ErrorCode.OPERATION_NOT_ATTEMPTED, NO_TOPIC])
    batch = m.AddPartitionsToTxnRequest()
    assert split(batch, 4, TRANSACTIONS)[1](None).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    offsets = m.AddOffsetsToTxnRequest(transactional_id="pay-1", group_id="other")
    assert split(offsets, 3, TRANSACTIONS)[1](None).error_code == NO_GROUP
    part = m.TxnOffsetCommitRequestPartition(partition_index=0)
    named = [m.TxnOffsetCommitRequestTopic(name=name, partitions=[part]) for name in ("orders", "secret")]
    commit = m.TxnOffsetCommitRequest(transactional_id="pay-1", group_id="billing", topics=named)
    allowed, finish = split(commit, 3, TRANSACTIONS)
    assert [each.name for each in allowed.topics] == ["orders"]
    answered = m.TxnOffsetCommitResponse(topics=[m.TxnOffsetCommitResponseTopic(name="orders")])
    assert [each.name for each in finish(answered).topics] == ["orders", "secret"]


def test_transactions_are_seen_by_those_who_may_describe_them() -> None:
    allowed, finish = split(m.DescribeTransactionsRequest(transactional_ids=["pay-1", "other"]), 0, TRANSACTIONS)
    assert allowed.transactional_ids == ["pay-1"]
    state = m.DescribeTransactionsResponseTransactionState
    answer = finish(m.DescribeTransactionsResponse(transaction_states=[state(transactional_id="pay-1")]))
    assert [each.error_code for each in answer.transaction_states] == [0, 53]
    _, finish = split(m.ListTransactionsRequest(), 0, TRANSACTIONS)
    listed = m.ListTransactionsResponseTransactionState
    answer = m.ListTransactionsResponse(transaction_states=[listed(transactional_id=name) for name in ("pay-1", "x")])
    assert [each.transactional_id for each in finish(answer).transaction_states] == ["pay-1"]
    allowed, finish = split(m.FindCoordinatorRequest(key="x", key_type=1), 3, TRANSACTIONS)
    assert (allowed, finish(None).error_code) == (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_a_producer_with_transactions_needs_its_id_to_write() -> None:
    data = m.ProduceRequestTopicProduceData(
        name="orders", partition_data=[m.ProduceRequestPartitionProduceData(index=0, records=b"")]
    )
    request = m.ProduceRequest(transactional_id="pay-1", acks=-1, topic_data=[data])
    assert split(request, 9, TRANSACTIONS) == (request, None)
    request.transactional_id = "other"
    allowed, finish = split(request, 9, TRANSACTIONS)
    assert (allowed, errors(finish(None).responses, "partition_responses")) == (
        None,
        {"orders": [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]},
    )


def test_answers_that_do_not_fit_the_request_are_kept() -> None:
    _, finish = split(m.DeleteGroupsRequest(groups_names=["x", "billing"]), 2)
    result = m.DeleteGroupsResponseDeletableGroupResult
    more = m.DeleteGroupsResponse(results=[result(group_id="billing"), result(group_id="billing")])
    assert [part.group_id for part in finish(more).results] == ["x", "billing", "billing"]
    assert [part.group_id for part in finish(m.DeleteGroupsResponse()).results] == ["x"]


# ---- the file

FILE = """
[[allow]]
principals = ["User:billing-*", "User:ANONYMOUS"]
groups = ["billing"]
topics = ["orders*"]
operations = ["read"]

[[allow]]
principals = ["*"]
topics = ["*"]
operations = ["all"]

[[deny]]
principals = ["*"]
topics = ["orders-secret"]
operations = ["all"]
"""


def read(folder: Path, text: str) -> Permissions:
    path = folder / "permissions.toml"
    path.write_text(text)
    return Permissions.from_file(path)


def test_a_file_of_permissions(tmp_path: Path) -> None:
    permissions = read(tmp_path, FILE)
    assert permissions.allows("User:billing-1", Operation.READ, Kind.GROUP, "billing")
    assert permissions.allows(ANONYMOUS, Operation.DESCRIBE, Kind.GROUP, "billing")
    assert not permissions.allows("User:eve", Operation.DESCRIBE, Kind.GROUP, "billing")
    assert permissions.allows("User:eve", Operation.WRITE, Kind.TOPIC, "orders")
    for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE):
        assert not permissions.allows("User:billing-1", operation, Kind.TOPIC, "orders-secret")


def test_an_empty_file_allows_nothing(tmp_path: Path) -> None:
    assert not read(tmp_path, "").allows(ALICE, Operation.DESCRIBE, Kind.TOPIC, "t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[allow]", "line 1"),
        ("[[permit]]", "permit: unknown"),
        ("[allow]", "allow: rules are written [[allow]]"),
        ("allow = [3]", "allow[1]: must be a table"),
        ("[[allow]]\nprincipals=['*']\ntopics=['*']\nops=['all']", "allow[1].ops: unknown"),
        ("[[allow]]\ntopics=['*']\noperations=['all']", "allow[1].principals: missing"),
        ("[[allow]]\nprincipals=['*']\ntopics=['*']", "allow[1].operations: missing"),
        ("[[allow]]\nprincipals=['*']\ntopics=[]\noperations=['read']", "allow[1]: names neither groups nor topics"),
        ("[[allow]]\nprincipals='*'\ntopics=['*']\noperations=['all']", "allow[1].principals: must be a list"),
        ("[[allow]]\nprincipals=['']\ntopics=['*']\noperations=['all']", "allow[1].principals: must be a list"),
        ("[[allow]]\nprincipals=['alice']\ntopics=['*']\noperations=['all']", "'alice' does not begin with User:"),
        ("[[deny]]\nprincipals=['*']\ntopics=['a*b']\noperations=['all']", "deny[1].topics: * may stand at the end"),
        ("[[deny]]\nprincipals=['*']\ntopics=['a']\noperations=['ALL']", "'ALL' is none of read, write, create, "),
        ("[[deny]]\nprincipals=['*']\ngroups=['a']\noperations=['write']", "'write' is none of read, delete, "),
        ("[[deny]]\nprincipals=['*']\ntopics=['a']\noperations=['forget']", "'forget' is none of read, write"),
    ],
)
def test_bad_files_of_permissions(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "permissions.toml") in caught.value.where
    assert message in str(caught.value)


def test_what_is_remembered_has_an_end() -> None:
    for number in range(20_000):
        assert not ORDERS.allows(ALICE, Operation.READ, Kind.GROUP, f"g{number}")
    assert ORDERS._decide_cached.cache_info().currsize <= 8192


# ---- topics and configs by AdminClients

ADMIN = Permissions(
    [
        rule("create delete alter describe_configs", topics="orders*"),
        rule("alter_configs", "billing", "orders"),
        Rule((ALICE,), frozenset((Operation.DESCRIBE_CONFIGS,)), cluster=True),
    ]
)


def test_configs_of_a_created_topic_may_be_hidden() -> None:
    permissions = Permissions([rule("create", topics="orders")])
    request = m.CreateTopicsRequest(topics=[m.CreateTopicsRequestCreatableTopic(name="orders")])
    assert split(request, 4, permissions) == (request, None)
    _, finish = split(request, 7, permissions)
    configs = [m.CreateTopicsResponseCreatableTopicConfigs(name="retention.ms")]
    made = m.CreateTopicsResponseCreatableTopicResult(name="orders", num_partitions=3, configs=configs)
    (answer,) = finish(m.CreateTopicsResponse(topics=[made])).topics
    assert (answer.topic_config_error_code, answer.num_partitions, answer.configs) == (NO_TOPIC, -1, None)


@pytest.mark.parametrize("version", [5, 6])
def test_delete_topics(version: int) -> None:
    state = m.DeleteTopicsRequestDeleteTopicState
    if version == 6:
        request = m.DeleteTopicsRequest(
            topics=[
                state(name="secret"),
                state(name=None, topic_id=IDS["orders"]),
                state(name=None, topic_id=IDS["secret"]),
            ]
        )
    else:
        request = m.DeleteTopicsRequest(topic_names=["secret", "orders"])
    allowed, finish = split(request, version, ADMIN)
    assert len(allowed.topics) + len(allowed.topic_names) == 1
    done = m.DeleteTopicsResponseDeletableTopicResult(name="orders")
    answers = finish(m.DeleteTopicsResponse(responses=[done])).responses
    expected = [("secret", NO_TOPIC), ("orders", 0), (None, NO_TOPIC)]
    assert [(each.name, each.error_code) for each in answers] == expected[: len(answers)]


RESOURCES = [(2, "orders"), (2, "secret"), (32, "billing"), (32, "other"), (4, "0")]
"""Two topics, two groups and the broker."""


@pytest.mark.parametrize(
    ("request_class", "part", "expected"),
    [
        (m.DescribeConfigsRequest, m.DescribeConfigsRequestDescribeConfigsResource, [0, NO_TOPIC, 0, NO_GROUP, 0]),
        (m.AlterConfigsRequest, m.AlterConfigsRequestAlterConfigsResource, [0, NO_TOPIC, 0, NO_GROUP, 31]),
        (
            m.IncrementalAlterConfigsRequest,
            m.IncrementalAlterConfigsRequestAlterConfigsResource,
            [0, NO_TOPIC, 0, NO_GROUP, 31],
        ),
    ],
)
def test_configs(request_class: Any, part: Any, expected: list[int]) -> None:
    request = request_class(resources=[part(resource_type=kind, resource_name=name) for kind, name in RESOURCES])
    allowed, finish = split(request, 1, ADMIN)
    assert len(allowed.resources) == expected.count(0)
    response_class = getattr(m, request_class.__name__.replace("Request", "Response"))
    field = "results" if request_class is m.DescribeConfigsRequest else "responses"
    answered = getattr(refusal(allowed, 1, ErrorCode.NONE), field)
    answers = getattr(finish(response_class(**{field: answered})), field)
    assert [(each.resource_type, each.resource_name, each.error_code) for each in answers] == [
        (*resource, error) for resource, error in zip(RESOURCES, expected, strict=True)
    ]
    assert split(request, 1, Permissions([]))[0] is None


def test_list_config_resources() -> None:
    request = m.ListConfigResourcesRequest()
    assert split(request, 1, ADMIN) == (request, None)
    allowed, finish = split(request, 1, ORDERS)
    assert (allowed, finish(None).error_code) == (None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def test_rules_for_the_cluster(tmp_path: Path) -> None:
    rules = '[[allow]]\nprincipals = ["User:alice"]\noperations = ["alter_configs"]\n'
    permissions = read(tmp_path, rules + "cluster = true")
    assert permissions.allows(ALICE, Operation.ALTER_CONFIGS, Kind.CLUSTER)
    assert permissions.allows(ALICE, Operation.DESCRIBE_CONFIGS, Kind.CLUSTER)
    assert not permissions.allows(ALICE, Operation.CREATE, Kind.CLUSTER)
    assert not permissions.allows("User:bob", Operation.ALTER_CONFIGS, Kind.CLUSTER)
    assert not permissions.allows(ALICE, Operation.ALTER_CONFIGS, Kind.TOPIC, "")
    with pytest.raises(SettingsError, match="cluster: must be true or false"):
        read(tmp_path, rules + 'cluster = "yes"')


def test_describe_topic_partitions() -> None:
    topic = m.DescribeTopicPartitionsRequestTopicRequest
    answered = m.DescribeTopicPartitionsResponseTopic
    allowed, finish = split(m.DescribeTopicPartitionsRequest(topics=[topic(name="secret"), topic(name="orders")]), 0)
    assert [each.name for each in allowed.topics] == ["orders"]
    answers = finish(m.DescribeTopicPartitionsResponse(topics=[answered(name="orders")])).topics
    assert [(each.name, each.error_code) for each in answers] == [("secret", NO_TOPIC), ("orders", 0)]
    assert answers[1].topic_authorized_operations == 1 << 3 | 1 << 4 | 1 << 8
    every = m.DescribeTopicPartitionsRequest()
    allowed, finish = split(every, 0)
    assert allowed == every
    answers = finish(
        m.DescribeTopicPartitionsResponse(topics=[answered(name="secret"), answered(name="orders")])
    ).topics
    assert [each.name for each in answers] == ["orders"]


def test_what_is_of_the_cluster() -> None:
    cluster = Permissions([Rule((ALICE,), frozenset((Operation.DESCRIBE,)), cluster=True)])
    for request in (m.ListPartitionReassignmentsRequest(), m.DescribeAclsRequest()):
        assert split(request, 0, cluster) == (request, None)
        allowed, finish = split(request, 0)
        assert (allowed, finish(None).error_code) == (None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    allowed, finish = split(m.CreateAclsRequest(creations=[m.CreateAclsRequestAclCreation()]), 0, cluster)
    assert (allowed, finish(None).results[0].error_code) == (None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert split(m.DescribeClusterRequest(), 0)[1] is None
    request = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    _, finish = split(request, 0, cluster)
    assert finish(m.DescribeClusterResponse(cluster_authorized_operations=99)).cluster_authorized_operations == 1 << 8
