"""Permissions applied to requests, around the machines, as Kafka's broker does.

Laws:

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

Sources: Kafka's KafkaApis.scala; KIP-11, 430.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import versions
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.security import request_parts as parts
from kcoord_wire.coordinator.security.permissions import OF_CLUSTER, OF_GROUPS, OF_TOPICS, Operation, Permissions
from kcoord_wire.coordinator.security.request_parts import (
    GROUP_RESOURCE,
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    NO_TRANSACTION,
    TOPIC_RESOURCE,
    Finish,
    Parts,
    Split,
    merge,
    refuse_all,
)
from kcoord_wire.protocol.error_codes import ErrorCode

_GROUP_KEY, _TRANSACTION_KEY = 0, 1  # key types of FindCoordinator


def split(
    permissions: Permissions, request: Any, version: int, principal: str, name_of: Callable[[uuid.UUID], str | None]
) -> Split:
    """Remove from a request what the principal may not ask.

    :param principal: ``User:NAME``, or `ANONYMOUS`
    :param name_of: the name of the topic with an id; ids that it does not know are left for the machine to refuse
    :return: the rest of the request, None if nothing is left; and a function that makes the whole answer from the
        machine's answer (None if nothing was asked), or None if that needs no change. For Produce with acks 0,
        which is never answered, a function means that something was refused: Kafka closes the connection then.
    """
    apply = _SPLITS.get(type(request))
    return (request, None) if apply is None else apply(_Asker(permissions, principal, name_of), request, version)


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
        if resource.resource_type == TOPIC_RESOURCE:
            return self.permissions.allows_topic(self.principal, operation, resource.resource_name)
        if resource.resource_type == GROUP_RESOURCE:
            return self.may_group(operation, resource.resource_name)
        return self.permissions.allows_cluster(self.principal, operation)

    def bits_of_group(self, group_id: str) -> int:
        return sum(1 << operation for operation in OF_GROUPS if self.may_group(operation, group_id))

    def bits_of_topic(self, topic: Any) -> int:
        return sum(1 << operation for operation in OF_TOPICS if self.may_topic(operation, topic))


# ---- the apis


def _then(finish: Finish | None, change: Finish) -> Finish:
    """Return a function that makes the whole answer, and changes it."""
    return change if finish is None else lambda response: change(finish(response))


def _with_topic_bits(asker: _Asker, response: Any) -> Any:
    topics = [
        topic if topic.error_code else replace(topic, topic_authorized_operations=asker.bits_of_topic(topic))
        for topic in response.topics
    ]
    return replace(response, topics=topics)


def _split_member(asker: _Asker, request: Any, version: int) -> Split:
    if asker.may_group(Operation.READ, request.group_id):
        return request, None
    return refuse_all(refusal(request, version, NO_GROUP))


def _split_consumer_heartbeat(asker: _Asker, request: m.ConsumerGroupHeartbeatRequest, version: int) -> Split:
    may_describe = partial(asker.permissions.allows_topic, asker.principal, Operation.DESCRIBE)
    if asker.may_group(Operation.READ, request.group_id) and not all(
        map(may_describe, request.subscribed_topic_names or ())
    ):
        return refuse_all(refusal(request, version, NO_TOPIC))
    return _split_member(asker, request, version)


def _split_find_coordinator(asker: _Asker, request: m.FindCoordinatorRequest, version: int) -> Split:
    if request.key_type not in (_GROUP_KEY, _TRANSACTION_KEY):
        return request, None
    is_group = request.key_type == _GROUP_KEY
    may = asker.may_group if is_group else asker.may_transactional_id
    if version >= versions.BATCH_FIND_FROM:
        verdicts = [may(Operation.DESCRIBE, key) for key in request.coordinator_keys]
        return (parts.FOUND if is_group else parts.FOUND_OF_TRANSACTIONS).split(request, version, verdicts)
    if may(Operation.DESCRIBE, request.key):
        return request, None
    return refuse_all(refusal(request, version, NO_GROUP if is_group else NO_TRANSACTION))


def _split_describe_groups(asker: _Asker, request: m.DescribeGroupsRequest, version: int) -> Split:
    verdicts = [asker.may_group(Operation.DESCRIBE, group_id) for group_id in request.groups]
    allowed, finish = parts.DESCRIBED.split(request, version, verdicts)
    if allowed is None or version < versions.GROUP_OPERATIONS_FROM or not request.include_authorized_operations:
        return allowed, finish

    def with_bits(response: Any) -> Any:
        groups = [
            group if group.error_code else replace(group, authorized_operations=asker.bits_of_group(group.group_id))
            for group in response.groups
        ]
        return replace(response, groups=groups)

    return allowed, _then(finish, with_bits)


def _split_describe_consumers(asker: _Asker, request: m.ConsumerGroupDescribeRequest, version: int) -> Split:
    """A group is described to those who may describe its topics, too."""
    verdicts = [asker.may_group(Operation.DESCRIBE, group_id) for group_id in request.group_ids]
    allowed, finish = parts.CONSUMERS_DESCRIBED.split(request, version, verdicts)
    if allowed is None:
        return allowed, finish

    def finish_group(group: m.ConsumerGroupDescribeResponseDescribedGroup) -> Any:
        if group.error_code:
            return group
        assignments = [each for member in group.members for each in (member.assignment, member.target_assignment)]
        names = {entry.topic_name for each in assignments for entry in each.topic_partitions}
        if not all(asker.permissions.allows_topic(asker.principal, Operation.DESCRIBE, name) for name in names):
            return m.ConsumerGroupDescribeResponseDescribedGroup(group_id=group.group_id, error_code=NO_TOPIC)
        if request.include_authorized_operations:
            group.authorized_operations = asker.bits_of_group(group.group_id)
        return group

    def finish_groups(response: Any) -> Any:
        return replace(response, groups=[finish_group(group) for group in response.groups])

    return allowed, _then(finish, finish_groups)


def _split_list_groups(asker: _Asker, request: m.ListGroupsRequest, version: int) -> Split:
    def finish(response: Any) -> Any:
        groups = [group for group in response.groups if asker.may_group(Operation.DESCRIBE, group.group_id)]
        return replace(response, groups=groups)

    return request, finish


def _split_delete_groups(asker: _Asker, request: m.DeleteGroupsRequest, version: int) -> Split:
    return parts.DELETED.split(
        request, version, [asker.may_group(Operation.DELETE, name) for name in request.groups_names]
    )


def _split_offset_commit(asker: _Asker, request: m.OffsetCommitRequest, version: int) -> Split:
    if not asker.may_group(Operation.READ, request.group_id):
        return refuse_all(refusal(request, version, NO_GROUP))
    return parts.COMMITTED.split(request, version, [asker.may_topic(Operation.READ, topic) for topic in request.topics])


def _split_offset_delete(asker: _Asker, request: m.OffsetDeleteRequest, version: int) -> Split:
    if not asker.may_group(Operation.DELETE, request.group_id):
        return refuse_all(refusal(request, version, NO_GROUP))
    return parts.OFFSETS_DELETED.split(
        request, version, [asker.may_topic(Operation.READ, topic) for topic in request.topics]
    )


def _split_offset_fetch(asker: _Asker, request: m.OffsetFetchRequest, version: int) -> Split:
    if version < versions.BATCH_FETCH_FROM:
        if not asker.may_group(Operation.DESCRIBE, request.group_id):
            return refuse_all(refusal(request, version, NO_GROUP))
        return _split_fetched(asker, request, m.OffsetFetchResponseTopic, m.OffsetFetchResponsePartition)
    verdicts = [asker.may_group(Operation.DESCRIBE, group.group_id) for group in request.groups]
    refused = [
        m.OffsetFetchResponseGroup(group_id=group.group_id, error_code=NO_GROUP)
        for group, allowed in zip(request.groups, verdicts, strict=True)
        if not allowed
    ]
    if refused and not any(verdicts):
        return refuse_all(m.OffsetFetchResponse(groups=refused))
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


def _split_fetched(asker: _Asker, group: Any, topic_class: type, partition_class: type) -> Split:
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
                partition_class(partition_index=index, committed_offset=-1, error_code=NO_TOPIC)
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


def _split_metadata(asker: _Asker, request: m.MetadataRequest, version: int) -> Split:
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
        allowed, finish = parts.METADATA.split(request, version, verdicts, ask_always=True)
    if version < versions.TOPIC_OPERATIONS_FROM or not request.include_topic_authorized_operations:
        return allowed, finish

    return allowed, _then(finish, partial(_with_topic_bits, asker))


def _split_init_producer_id(asker: _Asker, request: m.InitProducerIdRequest, version: int) -> Split:
    if request.transactional_id is not None:
        return _split_end(asker, request, version)
    if asker.permissions.allows_some_topic(asker.principal, Operation.WRITE):
        return request, None
    return refuse_all(refusal(request, version, NO_CLUSTER))


def _split_create_topics(asker: _Asker, request: m.CreateTopicsRequest, version: int) -> Split:
    verdicts = [asker.may_topic(Operation.CREATE, topic) for topic in request.topics]
    allowed, finish = parts.TOPICS_CREATED.split(request, version, verdicts)
    if allowed is None or version < versions.CREATED_CONFIGS_FROM:
        return allowed, finish

    def without_configs(response: Any) -> Any:
        hidden = {"topic_config_error_code": NO_TOPIC, "num_partitions": -1, "replication_factor": -1, "configs": None}
        topics = [
            topic
            if topic.error_code or asker.may_topic(Operation.DESCRIBE_CONFIGS, topic)
            else replace(topic, **hidden)
            for topic in response.topics
        ]
        return replace(response, topics=topics)

    return allowed, _then(finish, without_configs)


def _split_delete_topics(asker: _Asker, request: m.DeleteTopicsRequest, version: int) -> Split:
    if request.topic_names:
        may = partial(asker.permissions.allows_topic, asker.principal, Operation.DELETE)
        return parts.NAMES_DELETED.split(request, version, [may(name) for name in request.topic_names])
    return parts.TOPICS_DELETED.split(
        request, version, [asker.may_topic(Operation.DELETE, each) for each in request.topics]
    )


def _split_describe_partitions(asker: _Asker, request: m.DescribeTopicPartitionsRequest, version: int) -> Split:
    verdicts = [asker.may_topic(Operation.DESCRIBE, topic) for topic in request.topics]
    allowed, finish = parts.PARTITIONS_DESCRIBED.split(request, version, verdicts)
    if allowed is None:
        return allowed, finish

    def visible(response: Any) -> Any:
        """Leave out what may not be described of all topics, where the request names none."""
        topics = [each for each in response.topics if each.error_code or asker.may_topic(Operation.DESCRIBE, each)]
        return _with_topic_bits(asker, replace(response, topics=topics))

    return allowed, _then(finish, visible)


def _split_describe_cluster(asker: _Asker, request: m.DescribeClusterRequest, version: int) -> Split:
    if not request.include_cluster_authorized_operations:
        return request, None
    bits = sum(1 << each for each in OF_CLUSTER if asker.permissions.allows_cluster(asker.principal, each))
    return request, lambda response: replace(response, cluster_authorized_operations=bits)


def _by_cluster(operation: Operation) -> Callable[[_Asker, Any, int], Split]:
    def split(asker: _Asker, request: Any, version: int) -> Split:
        if asker.permissions.allows_cluster(asker.principal, operation):
            return request, None
        return refuse_all(refusal(request, version, NO_CLUSTER))

    return split


def _by_resource(of: Parts, operation: Operation) -> Callable[[_Asker, Any, int], Split]:
    def split(asker: _Asker, request: Any, version: int) -> Split:
        return of.split(request, version, [asker.may_resource(operation, each) for each in request.resources])

    return split


def _by_topic(of: Parts, operation: Operation) -> Callable[[_Asker, Any, int], Split]:
    def split(asker: _Asker, request: Any, version: int) -> Split:
        topics = getattr(request, of.asked)
        return of.split(request, version, [asker.may_topic(operation, topic) for topic in topics])

    return split


def _split_produce(asker: _Asker, request: m.ProduceRequest, version: int) -> Split:
    if request.transactional_id is not None:
        refused = _split_end(asker, request, version)
        if refused[1] is not None:
            return refused
    return _by_topic(parts.PRODUCED, Operation.WRITE)(asker, request, version)


def _split_end(asker: _Asker, request: Any, version: int) -> Split:
    """Split a request of a producer with transactions, which needs no more than its id."""
    if asker.may_transactional_id(Operation.WRITE, request.transactional_id):
        return request, None
    return refuse_all(refusal(request, version, NO_TRANSACTION))


def _split_add_partitions(asker: _Asker, request: m.AddPartitionsToTxnRequest, version: int) -> Split:
    if version >= versions.BATCH_ADD_FROM:
        return _by_cluster(Operation.ALTER)(asker, request, version)
    if not asker.may_transactional_id(Operation.WRITE, request.v3_and_below_transactional_id):
        return refuse_all(refusal(request, version, NO_TRANSACTION))
    verdicts = [asker.may_topic(Operation.WRITE, topic) for topic in request.v3_and_below_topics]
    if all(verdicts):
        return request, None
    answer = refusal(request, version, NO_TOPIC)  # all or none are added
    for topic, allowed in zip(answer.results_by_topic_v3_and_below, verdicts, strict=True):
        for partition in topic.results_by_partition if allowed else ():
            partition.partition_error_code = ErrorCode.OPERATION_NOT_ATTEMPTED
    return refuse_all(answer)


def _split_add_offsets(asker: _Asker, request: m.AddOffsetsToTxnRequest, version: int) -> Split:
    if not asker.may_group(Operation.READ, request.group_id):
        return refuse_all(refusal(request, version, NO_GROUP))
    return _split_end(asker, request, version)


def _split_txn_offset_commit(asker: _Asker, request: m.TxnOffsetCommitRequest, version: int) -> Split:
    allowed, finish = _split_end(asker, request, version)
    if allowed is None:
        return allowed, finish
    if not asker.may_group(Operation.READ, request.group_id):
        return refuse_all(refusal(request, version, NO_GROUP))
    verdicts = [asker.may_topic(Operation.READ, topic) for topic in request.topics]
    return parts.TXN_COMMITTED.split(request, version, verdicts)


def _split_describe_transactions(asker: _Asker, request: m.DescribeTransactionsRequest, version: int) -> Split:
    verdicts = [asker.may_transactional_id(Operation.DESCRIBE, name) for name in request.transactional_ids]
    return parts.TRANSACTIONS_DESCRIBED.split(request, version, verdicts)


def _split_list_transactions(asker: _Asker, request: m.ListTransactionsRequest, version: int) -> Split:
    def finish(response: Any) -> Any:
        allowed = [
            state
            for state in response.transaction_states
            if asker.may_transactional_id(Operation.DESCRIBE, state.transactional_id)
        ]
        return replace(response, transaction_states=allowed)

    return request, finish


_SPLITS: dict[type, Callable[[_Asker, Any, int], Split]] = {
    m.ProduceRequest: _split_produce,
    m.FetchRequest: _by_topic(parts.FETCHED, Operation.READ),
    m.ListOffsetsRequest: _by_topic(parts.LISTED, Operation.DESCRIBE),
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
    m.OffsetForLeaderEpochRequest: _by_topic(parts.EPOCHS, Operation.DESCRIBE),
    m.CreateTopicsRequest: _split_create_topics,
    m.DeleteTopicsRequest: _split_delete_topics,
    m.CreatePartitionsRequest: _by_topic(parts.PARTITIONS_CREATED, Operation.ALTER),
    m.DescribeConfigsRequest: _by_resource(parts.CONFIGS_DESCRIBED, Operation.DESCRIBE_CONFIGS),
    m.AlterConfigsRequest: _by_resource(parts.CONFIGS_ALTERED, Operation.ALTER_CONFIGS),
    m.IncrementalAlterConfigsRequest: _by_resource(parts.CONFIGS_CHANGED, Operation.ALTER_CONFIGS),
    m.ListConfigResourcesRequest: _by_cluster(Operation.DESCRIBE_CONFIGS),
    m.DescribeTopicPartitionsRequest: _split_describe_partitions,
    m.DescribeClusterRequest: _split_describe_cluster,
    m.DeleteRecordsRequest: _by_topic(parts.RECORDS_DELETED, Operation.DELETE),
    m.DescribeProducersRequest: _by_topic(parts.PRODUCERS_DESCRIBED, Operation.READ),
    m.DescribeLogDirsRequest: _by_cluster(Operation.DESCRIBE),
    m.ListPartitionReassignmentsRequest: _by_cluster(Operation.DESCRIBE),
    m.DescribeAclsRequest: _by_cluster(Operation.DESCRIBE),
    m.CreateAclsRequest: _by_cluster(Operation.ALTER),
    m.DeleteAclsRequest: _by_cluster(Operation.ALTER),
    m.DeleteGroupsRequest: _split_delete_groups,
    m.OffsetDeleteRequest: _split_offset_delete,
}
