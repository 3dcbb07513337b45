"""Permissions: who may do what with which group and topic, applied around the machines as Kafka's broker does.

Laws:

* What no rule allows is refused; a rule that denies wins over any that allows. Allowing read, write or delete allows
  describe; denying them does not deny it.
* The machines see only what is allowed. The rest is answered here, with GROUP_AUTHORIZATION_FAILED (30),
  TOPIC_AUTHORIZATION_FAILED (29) or CLUSTER_AUTHORIZATION_FAILED (31), in the order of the request. Where a request
  asks for everything ("all topics", ListGroups), what is not allowed is left out instead.
* A topic that is not allowed is refused whether or not it exists.

====================================================  ========  ==================
api                                                   group     topic
====================================================  ========  ==================
JoinGroup, SyncGroup, Heartbeat, LeaveGroup           read
ConsumerGroupHeartbeat                                read      describe
ConsumerGroupDescribe                                 describe  describe
OffsetCommit                                          read      read
OffsetFetch                                           describe  describe
FindCoordinator, DescribeGroups, ListGroups           describe
DeleteGroups                                          delete
OffsetDelete                                          delete    read
Produce                                                         write
Fetch                                                           read
Metadata, ListOffsets, OffsetForLeaderEpoch                     describe
InitProducerId                                                  write (any topic)
CreateTopics                                                    create
DeleteTopics, DeleteRecords                                     delete
DescribeProducers                                               read
CreatePartitions                                                alter
DescribeTopicPartitions                                         describe
====================================================  ========  ==================

A transactional id needs write in InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn and
Produce, and describe in FindCoordinator, DescribeTransactions and ListTransactions; else the error is
TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53). AddPartitionsToTxn also needs write of the topics, AddOffsetsToTxn read of
the group, TxnOffsetCommit read of both. WriteTxnMarkers needs alter of the cluster.

DescribeConfigs needs describe_configs, AlterConfigs and IncrementalAlterConfigs alter_configs: of the topic, of the
group, or, for configs of the broker, of the cluster. Of the cluster ListConfigResources needs describe_configs,
ListPartitionReassignments, DescribeLogDirs and DescribeAcls describe, CreateAcls and DeleteAcls alter. DescribeCluster
needs nothing.

Sources: Kafka's KafkaApis.scala, AclAuthorizer and StandardAuthorizer; KIP-11, 430.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import versions
from kcoord_wire.coordinator.core.config import SettingsError, read_rules
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.error_codes import ErrorCode

__all__ = ["ANONYMOUS", "Finish", "Operation", "Permissions", "Rule", "merge"]

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection without SASL."""

_NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
_NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_REMEMBERED: Final = 8192  # decisions; names come from clients, so their number must be bounded
_GROUP_KEY, _TRANSACTION_KEY = 0, 1  # key types of FindCoordinator
_TOPIC_RESOURCE: Final = 2  # types of what has configs
_GROUP_RESOURCE: Final = 32

Finish = Callable[[Any | None], Any]
"""Makes the whole answer from the machine's, which is None where the machine was not asked."""
_Split = tuple[Any | None, Finish | None]


class Operation(enum.IntEnum):
    """An operation, with Kafka's number (AclOperation), which is also its bit in "authorized operations"."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


_RULE_KEYS: Final = ("principals", "groups", "topics", "transactional_ids", "operations")
_CLUSTER_KEY: Final = "cluster"
_OPERATIONS = {operation.name.lower(): operation for operation in Operation}
_OF_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
_OF_GROUPS = (Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_OF_CONFIGS)
_OF_TOPICS = tuple(Operation)
_OF_TRANSACTIONS = (Operation.WRITE, Operation.DESCRIBE)
_OF_CLUSTER = (Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, *_OF_CONFIGS)
_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE)
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(_OF_CONFIGS),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Principals, operations, and the groups and topics they concern. A name may end in ``*``, which matches any text.

    :ivar principals: ``User:NAME``
    :ivar operations: what is allowed or denied
    :ivar groups: group ids
    :ivar topics: topic names
    :ivar cluster: whether they concern the cluster, which the configs of a broker belong to
    :ivar transactional_ids: ids of producers with transactions
    """

    principals: tuple[str, ...]
    operations: frozenset[Operation]
    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    cluster: bool = False
    transactional_ids: tuple[str, ...] = ()


class Permissions:
    """Rules that allow and deny. What no rule allows is refused, and a rule that denies wins. As a file::

    [[allow]]
    principals = ["User:billing"]       # or User:billing-*, or *; User:ANONYMOUS where there is no SASL
    groups = ["billing", "billing-*"]
    topics = ["orders", "payments"]
    operations = ["read"]               # or any other `Operation`, or all

    [[allow]]
    principals = ["User:admin"]
    cluster = true
    operations = ["all"]

    [[deny]]
    principals = ["*"]
    topics = ["payments-secret*"]
    operations = ["all"]
    """

    def __init__(self, allow: Iterable[Rule], deny: Iterable[Rule] = ()) -> None:
        self._allow = tuple(allow)
        self._deny = tuple(deny)
        self._decide_cached = lru_cache(_REMEMBERED)(self._decide)

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Read a TOML file.

        :raises SettingsError: it is not TOML, or not of the form above
        :raises OSError: it cannot be read
        """
        rules = read_rules(path, dict.fromkeys(("allow", "deny"), (*_RULE_KEYS, _CLUSTER_KEY)))
        return cls(**{kind: [_read_rule(table, where) for where, table in found] for kind, found in rules.items()})

    # ---- decisions

    def allows_group(self, principal: str, operation: Operation, group_id: str) -> bool:
        """Return whether the principal may do this with the group."""
        return self._decide_cached(principal, operation, "groups", group_id)

    def allows_topic(self, principal: str, operation: Operation, name: str) -> bool:
        """Return whether the principal may do this with the topic."""
        return self._decide_cached(principal, operation, "topics", name)

    def allows_transactional_id(self, principal: str, operation: Operation, transactional_id: str) -> bool:
        """Return whether the principal may do this with the transactional id."""
        return self._decide_cached(principal, operation, "transactional_ids", transactional_id)

    def allows_cluster(self, principal: str, operation: Operation) -> bool:
        """Return whether the principal may do this with the cluster."""
        return self._decide_cached(principal, operation, "cluster", "")

    def allows_some_topic(self, principal: str, operation: Operation) -> bool:
        """Return whether the principal may do this with any topic that could exist."""
        # No topic name contains NUL: it makes a name that only a pattern can match.
        names = (name.replace("*", "\0") for rule in self._allow for name in rule.topics)
        return any(self._decide_cached(principal, operation, "topics", name) for name in names)

    def _decide(self, principal: str, operation: Operation, kind: str, name: str) -> bool:
        if _covers(self._deny, principal, frozenset((operation,)), kind, name):
            return False
        return _covers(self._allow, principal, _IMPLIED_BY.get(operation, frozenset((operation,))), kind, name)

    # ---- requests

    def split(
        self, request: Any, version: int, principal: str, name_of: Callable[[uuid.UUID], str | None]
    ) -> tuple[Any | None, Finish | None]:
        """Remove from a request what the principal may not ask.

        :param principal: ``User:NAME``, or `ANONYMOUS`
        :param name_of: the name of the topic with an id; ids that it does not know are left for the machine to refuse
        :return: the rest of the request, None if nothing is left; and a function that makes the whole answer from the
            machine's answer (None if nothing was asked), or None if that needs no change. For Produce with acks 0,
            which is never answered, a function means that something was refused: Kafka closes the connection then.
        """
        apply = _SPLITS.get(type(request))
        return (request, None) if apply is None else apply(_Asker(self, principal, name_of), request, version)


def _read_rule(table: dict[str, Any], where: str) -> Rule:
    texts = {key: _read_texts(table.get(key, []), f"{where}.{key}") for key in _RULE_KEYS}
    for key in ("principals", "operations"):
        if not texts[key]:
            raise SettingsError(f"{where}.{key}", "missing, or empty")
    for principal in texts["principals"]:
        if principal != "*" and not principal.startswith("User:"):
            raise SettingsError(f"{where}.principals", f"{principal!r} does not begin with User:")
    cluster = table.get(_CLUSTER_KEY, False)
    if not isinstance(cluster, bool):
        raise SettingsError(f"{where}.{_CLUSTER_KEY}", "must be true or false")
    kinds = (
        (texts["groups"], _OF_GROUPS),
        (texts["topics"], _OF_TOPICS),
        (texts["transactional_ids"], _OF_TRANSACTIONS),
        (cluster, _OF_CLUSTER),
    )
    if not any(named for named, _ in kinds):
        raise SettingsError(where, "names neither groups nor topics nor transactional ids nor the cluster")
    possible = {operation for named, operations in kinds if named for operation in operations}
    operations = frozenset[Operation]().union(
        *(_read_operation(text, possible, f"{where}.operations") for text in texts["operations"])
    )
    return Rule(texts["principals"], operations, texts["groups"], texts["topics"], cluster, texts["transactional_ids"])


def _read_texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise SettingsError(where, "must be a list of texts that are not empty")
    if any("*" in text[:-1] for text in value):
        raise SettingsError(where, "* may stand at the end only")
    return tuple(value)


def _read_operation(text: str, possible: set[Operation], where: str) -> set[Operation]:
    """Return the operations that a word stands for, all of which a rule must be able to allow."""
    if text == "all":
        return possible
    operation = _OPERATIONS.get(text)
    if operation not in possible:
        names = ", ".join(each.name.lower() for each in sorted(possible))
        raise SettingsError(where, f"{text!r} is none of {names} and all")
    return {operation}


def _covers(rules: Sequence[Rule], principal: str, operations: frozenset[Operation], kind: str, name: str) -> bool:
    return any(
        not operations.isdisjoint(rule.operations)
        and _matches(rule.principals, principal)
        and (rule.cluster if kind == "cluster" else _matches(getattr(rule, kind), name))
        for rule in rules
    )


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)


class _Asker(NamedTuple):
    """A principal with the rules that apply to it."""

    permissions: Permissions
    principal: str
    name_of: Callable[[uuid.UUID], str | None]

    def may_group(self, operation: Operation, group_id: str) -> bool:
        return self.permissions.allows_group(self.principal, operation, group_id)

    def may_topic(self, operation: Operation, topic: Any) -> bool:
        """:param topic: a part of a request or response that names a topic, by name or id"""
        name: str | None = getattr(topic, "topic", None) or getattr(topic, "name", None)
        if not name and getattr(topic, "topic_id", None):
            name = self.name_of(topic.topic_id)
            if name is None:
                return True
        return self.permissions.allows_topic(self.principal, operation, name or "")

    def may_transactional_id(self, operation: Operation, transactional_id: str) -> bool:
        return self.permissions.allows_transactional_id(self.principal, operation, transactional_id)

    def may_resource(self, operation: Operation, resource: Any) -> bool:
        """:param resource: a part of a request that names what has configs"""
        if resource.resource_type == _TOPIC_RESOURCE:
            return self.permissions.allows_topic(self.principal, operation, resource.resource_name)
        if resource.resource_type == _GROUP_RESOURCE:
            return self.may_group(operation, resource.resource_name)
        return self.permissions.allows_cluster(self.principal, operation)

    def bits_of_group(self, group_id: str) -> int:
        return sum(1 << operation for operation in _OF_GROUPS if self.may_group(operation, group_id))

    def bits_of_topic(self, topic: Any) -> int:
        return sum(1 << operation for operation in _OF_TOPICS if self.may_topic(operation, topic))


# ---- splitting and merging


def _refuse(response: Any) -> _Split:
    return None, lambda _: response


def merge(verdicts: Sequence[bool], refused: Sequence[Any], answered: Sequence[Any]) -> list[Any]:
    """Return the answers to the parts of a request in their order; surplus answers come last."""
    refusals, answers = iter(refused), iter(answered)
    merged = [next(answers if verdict else refusals, None) for verdict in verdicts]
    return [part for part in merged if part is not None] + list(answers)


class _Parts(NamedTuple):
    """An api whose request is a list of parts and whose response has one part for each.

    :ivar asked: the name of the request's list
    :ivar response: the class of the response
    :ivar answered: the name of the response's list
    :ivar refuse: makes the response's parts for a request of refused parts only
    """

    asked: str
    response: type
    answered: str
    refuse: Callable[[Any, int], list[Any]]

    def split(self, request: Any, version: int, verdicts: Sequence[bool], *, ask_always: bool = False) -> _Split:
        if all(verdicts):
            return request, None
        parts = list(zip(getattr(request, self.asked), verdicts, strict=True))
        refused_request = replace(request, **{self.asked: [part for part, allowed in parts if not allowed]})
        refused = self.refuse(refused_request, version)
        if not any(verdicts):
            if not ask_always:
                return _refuse(self.response(**{self.answered: refused}))
            return replace(request, **{self.asked: []}), lambda response: replace(response, **{self.answered: refused})

        def finish(response: Any) -> Any:
            if getattr(response, "error_code", 0):
                return response
            merged = merge(verdicts, refused, getattr(response, self.answered))
            return replace(response, **{self.answered: merged})

        return replace(request, **{self.asked: [part for part, allowed in parts if allowed]}), finish


def _by_refusal(asked: str, response: type, answered: str, error: ErrorCode) -> _Parts:
    return _Parts(
        asked, response, answered, lambda request, version: getattr(refusal(request, version, error), answered)
    )


_FOUND = _by_refusal("coordinator_keys", m.FindCoordinatorResponse, "coordinators", _NO_GROUP)
_FOUND_OF_TRANSACTIONS = _by_refusal("coordinator_keys", m.FindCoordinatorResponse, "coordinators", _NO_TRANSACTION)
_TRANSACTIONS_DESCRIBED = _by_refusal(
    "transactional_ids", m.DescribeTransactionsResponse, "transaction_states", _NO_TRANSACTION
)
_TXN_COMMITTED = _by_refusal("topics", m.TxnOffsetCommitResponse, "topics", _NO_TOPIC)
_DESCRIBED = _by_refusal("groups", m.DescribeGroupsResponse, "groups", _NO_GROUP)
_CONSUMERS_DESCRIBED = _by_refusal("group_ids", m.ConsumerGroupDescribeResponse, "groups", _NO_GROUP)
_DELETED = _by_refusal("groups_names", m.DeleteGroupsResponse, "results", _NO_GROUP)
_COMMITTED = _by_refusal("topics", m.OffsetCommitResponse, "topics", _NO_TOPIC)
_PRODUCED = _by_refusal("topic_data", m.ProduceResponse, "responses", _NO_TOPIC)
_LISTED = _by_refusal("topics", m.ListOffsetsResponse, "topics", _NO_TOPIC)
_EPOCHS = _by_refusal("topics", m.OffsetForLeaderEpochResponse, "topics", _NO_TOPIC)


def _refuse_fetch(request: m.FetchRequest, version: int) -> list[Any]:
    return [
        m.FetchResponseFetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                m.FetchResponsePartitionData(
                    partition_index=asked.partition, error_code=_NO_TOPIC, high_watermark=-1, records=b""
                )
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]


def _refuse_metadata(request: m.MetadataRequest, version: int) -> list[Any]:
    # As in Kafka, a client that names a topic by id does not learn its name, nor the other way round.
    no_name = None if version >= versions.NULLABLE_TOPIC_NAME_FROM else ""
    return [
        m.MetadataResponseTopic(error_code=_NO_TOPIC, name=topic.name)
        if topic.name
        else m.MetadataResponseTopic(error_code=_NO_TOPIC, name=no_name, topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]


def _refuse_offset_delete(request: m.OffsetDeleteRequest, version: int) -> list[Any]:
    return [
        m.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                m.OffsetDeleteResponsePartition(partition_index=asked.partition_index, error_code=_NO_TOPIC)
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]


def _refuse_resources(answered: str) -> Callable[[Any, int], list[Any]]:
    errors = {_TOPIC_RESOURCE: _NO_TOPIC, _GROUP_RESOURCE: _NO_GROUP}

    def refuse(request: Any, version: int) -> list[Any]:
        parts = []
        for resource in request.resources:
            one = replace(request, resources=[resource])
            parts += getattr(refusal(one, version, errors.get(resource.resource_type, _NO_CLUSTER)), answered)
        return parts

    return refuse


_TOPICS_CREATED = _by_refusal("topics", m.CreateTopicsResponse, "topics", _NO_TOPIC)
_PARTITIONS_CREATED = _by_refusal("topics", m.CreatePartitionsResponse, "results", _NO_TOPIC)
_TOPICS_DELETED = _by_refusal("topics", m.DeleteTopicsResponse, "responses", _NO_TOPIC)
_NAMES_DELETED = _by_refusal("topic_names", m.DeleteTopicsResponse, "responses", _NO_TOPIC)
_PARTITIONS_DESCRIBED = _by_refusal("topics", m.DescribeTopicPartitionsResponse, "topics", _NO_TOPIC)
_RECORDS_DELETED = _by_refusal("topics", m.DeleteRecordsResponse, "topics", _NO_TOPIC)
_PRODUCERS_DESCRIBED = _by_refusal("topics", m.DescribeProducersResponse, "topics", _NO_TOPIC)
_CONFIGS_DESCRIBED = _Parts("resources", m.DescribeConfigsResponse, "results", _refuse_resources("results"))
_CONFIGS_ALTERED = _Parts("resources", m.AlterConfigsResponse, "responses", _refuse_resources("responses"))
_CONFIGS_CHANGED = _CONFIGS_ALTERED._replace(response=m.IncrementalAlterConfigsResponse)
_FETCHED = _Parts("topics", m.FetchResponse, "responses", _refuse_fetch)
_METADATA = _Parts("topics", m.MetadataResponse, "topics", _refuse_metadata)
_OFFSETS_DELETED = _Parts("topics", m.OffsetDeleteResponse, "topics", _refuse_offset_delete)


# ---- the apis


def _split_member(asker: _Asker, request: Any, version: int) -> _Split:
    if asker.may_group(Operation.READ, request.group_id):
        return request, None
    return _refuse(refusal(request, version, _NO_GROUP))


def _split_consumer_heartbeat(asker: _Asker, request: m.ConsumerGroupHeartbeatRequest, version: int) -> _Split:
    may_describe = partial(asker.permissions.allows_topic, asker.principal, Operation.DESCRIBE)
    if asker.may_group(Operation.READ, request.group_id) and not all(
        map(may_describe, request.subscribed_topic_names or ())
    ):
        return _refuse(refusal(request, version, _NO_TOPIC))
    return _split_member(asker, request, version)


def _split_find_coordinator(asker: _Asker, request: m.FindCoordinatorRequest, version: int) -> _Split:
    if request.key_type not in (_GROUP_KEY, _TRANSACTION_KEY):
        return request, None
    is_group = request.key_type == _GROUP_KEY
    may = asker.may_group if is_group else asker.may_transactional_id
    if version >= versions.BATCH_FIND_FROM:
        verdicts = [may(Operation.DESCRIBE, key) for key in request.coordinator_keys]
        return (_FOUND if is_group else _FOUND_OF_TRANSACTIONS).split(request, version, verdicts)
    if may(Operation.DESCRIBE, request.key):
        return request, None
    return _refuse(refusal(request, version, _NO_GROUP if is_group else _NO_TRANSACTION))


def _split_describe_groups(asker: _Asker, request: m.DescribeGroupsRequest, version: int) -> _Split:
    verdicts = [asker.may_group(Operation.DESCRIBE, group_id) for group_id in request.groups]
    allowed, finish = _DESCRIBED.split(request, version, verdicts)
    if allowed is None or version < versions.GROUP_OPERATIONS_FROM or not request.include_authorized_operations:
        return allowed, finish

    def finish_with_bits(response: Any) -> Any:
        whole = response if finish is None else finish(response)
        groups = [
            group if group.error_code else replace(group, authorized_operations=asker.bits_of_group(group.group_id))
            for group in whole.groups
        ]
        return replace(whole, groups=groups)

    return allowed, finish_with_bits


def _split_describe_consumers(asker: _Asker, request: m.ConsumerGroupDescribeRequest, version: int) -> _Split:
    """A group is described to those who may describe its topics, too."""
    verdicts = [asker.may_group(Operation.DESCRIBE, group_id) for group_id in request.group_ids]
    allowed, finish = _CONSUMERS_DESCRIBED.split(request, version, verdicts)
    if allowed is None:
        return allowed, finish

    def finish_group(group: m.ConsumerGroupDescribeResponseDescribedGroup) -> Any:
        if group.error_code:
            return group
        parts = [part for member in group.members for part in (member.assignment, member.target_assignment)]
        names = {entry.topic_name for part in parts for entry in part.topic_partitions}
        if not all(asker.permissions.allows_topic(asker.principal, Operation.DESCRIBE, name) for name in names):
            return m.ConsumerGroupDescribeResponseDescribedGroup(group_id=group.group_id, error_code=_NO_TOPIC)
        if request.include_authorized_operations:
            group.authorized_operations = asker.bits_of_group(group.group_id)
        return group

    def finish_all(response: Any) -> Any:
        whole = response if finish is None else finish(response)
        return replace(whole, groups=[finish_group(group) for group in whole.groups])

    return allowed, finish_all


def _split_list_groups(asker: _Asker, request: m.ListGroupsRequest, version: int) -> _Split:
    def finish(response: Any) -> Any:
        groups = [group for group in response.groups if asker.may_group(Operation.DESCRIBE, group.group_id)]
        return replace(response, groups=groups)

    return request, finish


def _split_delete_groups(asker: _Asker, request: m.DeleteGroupsRequest, version: int) -> _Split:
    return _DELETED.split(request, version, [asker.may_group(Operation.DELETE, name) for name in request.groups_names])


def _split_offset_commit(asker: _Asker, request: m.OffsetCommitRequest, version: int) -> _Split:
    if not asker.may_group(Operation.READ, request.group_id):
        return _refuse(refusal(request, version, _NO_GROUP))
    return _COMMITTED.split(request, version, [asker.may_topic(Operation.READ, topic) for topic in request.topics])


def _split_offset_delete(asker: _Asker, request: m.OffsetDeleteRequest, version: int) -> _Split:
    if not asker.may_group(Operation.DELETE, request.group_id):
        return _refuse(refusal(request, version, _NO_GROUP))
    return _OFFSETS_DELETED.split(
        request, version, [asker.may_topic(Operation.READ, topic) for topic in request.topics]
    )


def _split_offset_fetch(asker: _Asker, request: m.OffsetFetchRequest, version: int) -> _Split:
    if version < versions.BATCH_FETCH_FROM:
        if not asker.may_group(Operation.DESCRIBE, request.group_id):
            return _refuse(refusal(request, version, _NO_GROUP))
        return _split_fetched(asker, request, m.OffsetFetchResponseTopic, m.OffsetFetchResponsePartition)
    verdicts = [asker.may_group(Operation.DESCRIBE, group.group_id) for group in request.groups]
    refused = [
        m.OffsetFetchResponseGroup(group_id=group.group_id, error_code=_NO_GROUP)
        for group, allowed in zip(request.groups, verdicts, strict=True)
        if not allowed
    ]
    if refused and not any(verdicts):
        return _refuse(m.OffsetFetchResponse(groups=refused))
    splits = [
        _split_fetched(asker, group, m.OffsetFetchResponseTopics, m.OffsetFetchResponsePartitions)
        for group, allowed in zip(request.groups, verdicts, strict=True)
        if allowed
    ]
    if not refused and all(finish is None for _, finish in splits):
        return request, None

    asked: list[Any] = [group for group, _ in splits]

    def finish(response: Any) -> Any:
        finishes = [finish for _, finish in splits]
        answered = [
            group if finish is None else finish(group) for group, finish in zip(response.groups, finishes, strict=True)
        ]
        return replace(response, groups=merge(verdicts, refused, answered))

    return replace(request, groups=asked), finish


def _split_fetched(asker: _Asker, group: Any, topic_class: type, partition_class: type) -> _Split:
    """Split one group's part of OffsetFetch; versions 0 to 7 are one such part. The machine is asked for the group even
    if no topic is left, because errors of the group take precedence over errors of its topics."""
    if group.topics is None:

        def leave_out(answer: Any) -> Any:
            topics = [topic for topic in answer.topics if asker.may_topic(Operation.DESCRIBE, topic)]
            return replace(answer, topics=topics)

        return group, leave_out
    verdicts = [asker.may_topic(Operation.DESCRIBE, topic) for topic in group.topics]
    if all(verdicts):
        return group, None
    refused = []
    for topic, allowed in zip(group.topics, verdicts, strict=True):
        if not allowed:
            partitions = [
                partition_class(partition_index=index, committed_offset=-1, error_code=_NO_TOPIC)
                for index in topic.partition_indexes
            ]
            part = topic_class(name=topic.name, partitions=partitions)
            if hasattr(part, "topic_id"):
                part.topic_id = topic.topic_id
            refused.append(part)

    def finish(answer: Any) -> Any:
        return answer if answer.error_code else replace(answer, topics=merge(verdicts, refused, answer.topics))

    topics = [topic for topic, allowed in zip(group.topics, verdicts, strict=True) if allowed]
    return replace(group, topics=topics), finish


def _split_metadata(asker: _Asker, request: m.MetadataRequest, version: int) -> _Split:
    allowed: Any = request
    finish: Finish | None
    if request.topics is None or (version == 0 and not request.topics):

        def leave_out(response: Any) -> Any:
            topics = [topic for topic in response.topics if asker.may_topic(Operation.DESCRIBE, topic)]
            return replace(response, topics=topics)

        finish = leave_out
    else:
        verdicts = [asker.may_topic(Operation.DESCRIBE, topic) for topic in request.topics]
        # The answer lists the brokers too, so the machine is asked even if no topic is left.
        allowed, finish = _METADATA.split(request, version, verdicts, ask_always=True)
    if version < versions.TOPIC_OPERATIONS_FROM or not request.include_topic_authorized_operations:
        return allowed, finish

    def finish_with_bits(response: Any) -> Any:
        whole = response if finish is None else finish(response)
        topics = [
            topic if topic.error_code else replace(topic, topic_authorized_operations=asker.bits_of_topic(topic))
            for topic in whole.topics
        ]
        return replace(whole, topics=topics)

    return allowed, finish_with_bits


def _split_init_producer_id(asker: _Asker, request: m.InitProducerIdRequest, version: int) -> _Split:
    if request.transactional_id is not None:
        return _split_end(asker, request, version)
    if asker.permissions.allows_some_topic(asker.principal, Operation.WRITE):
        return request, None
    return _refuse(refusal(request, version, _NO_CLUSTER))


def _split_create_topics(asker: _Asker, request: m.CreateTopicsRequest, version: int) -> _Split:
    verdicts = [asker.may_topic(Operation.CREATE, topic) for topic in request.topics]
    allowed, finish = _TOPICS_CREATED.split(request, version, verdicts)
    if allowed is None or version < versions.CREATED_CONFIGS_FROM:
        return allowed, finish

    def finish_without_configs(response: Any) -> Any:
        whole = response if finish is None else finish(response)
        hidden = {"topic_config_error_code": _NO_TOPIC, "num_partitions": -1, "replication_factor": -1, "configs": None}
        topics = [
            topic
            if topic.error_code or asker.may_topic(Operation.DESCRIBE_CONFIGS, topic)
            else replace(topic, **hidden)
            for topic in whole.topics
        ]
        return replace(whole, topics=topics)

    return allowed, finish_without_configs


def _split_delete_topics(asker: _Asker, request: m.DeleteTopicsRequest, version: int) -> _Split:
    if request.topic_names:
        may = partial(asker.permissions.allows_topic, asker.principal, Operation.DELETE)
        return _NAMES_DELETED.split(request, version, [may(name) for name in request.topic_names])
    return _TOPICS_DELETED.split(request, version, [asker.may_topic(Operation.DELETE, each) for each in request.topics])


def _split_describe_partitions(asker: _Asker, request: m.DescribeTopicPartitionsRequest, version: int) -> _Split:
    verdicts = [asker.may_topic(Operation.DESCRIBE, topic) for topic in request.topics]
    allowed, finish = _PARTITIONS_DESCRIBED.split(request, version, verdicts)
    if allowed is None:
        return allowed, finish

    def finish_with_bits(response: Any) -> Any:
        whole = response if finish is None else finish(response)
        topics = [
            topic if topic.error_code else replace(topic, topic_authorized_operations=asker.bits_of_topic(topic))
            for topic in whole.topics
            if topic.error_code or asker.may_topic(Operation.DESCRIBE, topic)  # of all topics, where none is named
        ]
        return replace(whole, topics=topics)

    return allowed, finish_with_bits


def _split_describe_cluster(asker: _Asker, request: m.DescribeClusterRequest, version: int) -> _Split:
    if not request.include_cluster_authorized_operations:
        return request, None
    bits = sum(1 << each for each in _OF_CLUSTER if asker.permissions.allows_cluster(asker.principal, each))
    return request, lambda response: replace(response, cluster_authorized_operations=bits)


def _by_cluster(operation: Operation) -> Callable[[_Asker, Any, int], _Split]:
    def split(asker: _Asker, request: Any, version: int) -> _Split:
        if asker.permissions.allows_cluster(asker.principal, operation):
            return request, None
        return _refuse(refusal(request, version, _NO_CLUSTER))

    return split


def _by_resource(parts: _Parts, operation: Operation) -> Callable[[_Asker, Any, int], _Split]:
    def split(asker: _Asker, request: Any, version: int) -> _Split:
        return parts.split(request, version, [asker.may_resource(operation, each) for each in request.resources])

    return split


def _by_topic(parts: _Parts, operation: Operation) -> Callable[[_Asker, Any, int], _Split]:
    def split(asker: _Asker, request: Any, version: int) -> _Split:
        topics = getattr(request, parts.asked)
        return parts.split(request, version, [asker.may_topic(operation, topic) for topic in topics])

    return split


def _split_produce(asker: _Asker, request: m.ProduceRequest, version: int) -> _Split:
    if request.transactional_id is not None:
        refused = _split_end(asker, request, version)
        if refused[1] is not None:
            return refused
    return _by_topic(_PRODUCED, Operation.WRITE)(asker, request, version)


def _split_end(asker: _Asker, request: Any, version: int) -> _Split:
    """Split a request of a producer with transactions, which needs no more than its id."""
    if asker.may_transactional_id(Operation.WRITE, request.transactional_id):
        return request, None
    return _refuse(refusal(request, version, _NO_TRANSACTION))


def _split_add_partitions(asker: _Asker, request: m.AddPartitionsToTxnRequest, version: int) -> _Split:
    if version >= versions.BATCH_ADD_FROM:
        return _by_cluster(Operation.ALTER)(asker, request, version)
    if not asker.may_transactional_id(Operation.WRITE, request.v3_and_below_transactional_id):
        return _refuse(refusal(request, version, _NO_TRANSACTION))
    verdicts = [asker.may_topic(Operation.WRITE, topic) for topic in request.v3_and_below_topics]
    if all(verdicts):
        return request, None
    answer = refusal(request, version, _NO_TOPIC)  # all or none are added
    for topic, allowed in zip(answer.results_by_topic_v3_and_below, verdicts, strict=True):
        for partition in topic.results_by_partition if allowed else ():
            partition.partition_error_code = ErrorCode.OPERATION_NOT_ATTEMPTED
    return _refuse(answer)


def _split_add_offsets(asker: _Asker, request: m.AddOffsetsToTxnRequest, version: int) -> _Split:
    if not asker.may_group(Operation.READ, request.group_id):
        return _refuse(refusal(request, version, _NO_GROUP))
    return _split_end(asker, request, version)


def _split_txn_offset_commit(asker: _Asker, request: m.TxnOffsetCommitRequest, version: int) -> _Split:
    allowed, finish = _split_end(asker, request, version)
    if allowed is None:
        return allowed, finish
    if not asker.may_group(Operation.READ, request.group_id):
        return _refuse(refusal(request, version, _NO_GROUP))
    verdicts = [asker.may_topic(Operation.READ, topic) for topic in request.topics]
    return _TXN_COMMITTED.split(request, version, verdicts)


def _split_describe_transactions(asker: _Asker, request: m.DescribeTransactionsRequest, version: int) -> _Split:
    verdicts = [asker.may_transactional_id(Operation.DESCRIBE, name) for name in request.transactional_ids]
    return _TRANSACTIONS_DESCRIBED.split(request, version, verdicts)


def _split_list_transactions(asker: _Asker, request: m.ListTransactionsRequest, version: int) -> _Split:
    def finish(response: Any) -> Any:
        allowed = [
            state
            for state in response.transaction_states
            if asker.may_transactional_id(Operation.DESCRIBE, state.transactional_id)
        ]
        return replace(response, transaction_states=allowed)

    return request, finish


_SPLITS: dict[type, Callable[[_Asker, Any, int], _Split]] = {
    m.ProduceRequest: _split_produce,
    m.FetchRequest: _by_topic(_FETCHED, Operation.READ),
    m.ListOffsetsRequest: _by_topic(_LISTED, Operation.DESCRIBE),
    m.MetadataRequest: _split_metadata,
    m.OffsetCommitRequest: _split_offset_commit,
    m.OffsetFetchRequest: _split_offset_fetch,
    m.FindCoordinatorRequest: _split_find_coordinator,
    m.JoinGroupRequest: _split_member,
    m.HeartbeatRequest: _split_member,
    m.LeaveGroupRequest: _split_member,
    m.SyncGroupRequest: _split_member,
    m.ConsumerGroupHeartbeatRequest: _split_consumer_heartbeat,
    m.DescribeGroupsRequest: _split_describe_groups,
    m.ConsumerGroupDescribeRequest: _split_describe_consumers,
    m.ListGroupsRequest: _split_list_groups,
    m.InitProducerIdRequest: _split_init_producer_id,
    m.AddPartitionsToTxnRequest: _split_add_partitions,
    m.AddOffsetsToTxnRequest: _split_add_offsets,
    m.EndTxnRequest: _split_end,
    m.WriteTxnMarkersRequest: _by_cluster(Operation.ALTER),
    m.TxnOffsetCommitRequest: _split_txn_offset_commit,
    m.DescribeTransactionsRequest: _split_describe_transactions,
    m.ListTransactionsRequest: _split_list_transactions,
    m.OffsetForLeaderEpochRequest: _by_topic(_EPOCHS, Operation.DESCRIBE),
    m.CreateTopicsRequest: _split_create_topics,
    m.DeleteTopicsRequest: _split_delete_topics,
    m.CreatePartitionsRequest: _by_topic(_PARTITIONS_CREATED, Operation.ALTER),
    m.DescribeConfigsRequest: _by_resource(_CONFIGS_DESCRIBED, Operation.DESCRIBE_CONFIGS),
    m.AlterConfigsRequest: _by_resource(_CONFIGS_ALTERED, Operation.ALTER_CONFIGS),
    m.IncrementalAlterConfigsRequest: _by_resource(_CONFIGS_CHANGED, Operation.ALTER_CONFIGS),
    m.ListConfigResourcesRequest: _by_cluster(Operation.DESCRIBE_CONFIGS),
    m.DescribeTopicPartitionsRequest: _split_describe_partitions,
    m.DescribeClusterRequest: _split_describe_cluster,
    m.DeleteRecordsRequest: _by_topic(_RECORDS_DELETED, Operation.DELETE),
    m.DescribeProducersRequest: _by_topic(_PRODUCERS_DESCRIBED, Operation.READ),
    m.DescribeLogDirsRequest: _by_cluster(Operation.DESCRIBE),
    m.ListPartitionReassignmentsRequest: _by_cluster(Operation.DESCRIBE),
    m.DescribeAclsRequest: _by_cluster(Operation.DESCRIBE),
    m.CreateAclsRequest: _by_cluster(Operation.ALTER),
    m.DeleteAclsRequest: _by_cluster(Operation.ALTER),
    m.DeleteGroupsRequest: _split_delete_groups,
    m.OffsetDeleteRequest: _split_offset_delete,
}
