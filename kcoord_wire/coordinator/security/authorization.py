"""Permissions applied to requests, around the machines, as Kafka's broker does.

What each api is authorised as stands in its row (`core.apis`, `needs` and `each`); here is what a row cannot say.

Laws:

* The machines see only what is allowed. The rest is answered here, with GROUP_AUTHORIZATION_FAILED (30),
  TOPIC_AUTHORIZATION_FAILED (29), TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) or CLUSTER_AUTHORIZATION_FAILED (31), in
  the order of the request. Where a request asks for everything ("all topics", ListGroups), what is not allowed is left
  out instead.
* A topic that is not allowed is refused whether or not it exists.

Besides the rows: FindCoordinator needs describe of the group or transactional id. OffsetFetch needs describe of group
and topics. InitProducerId needs write of the transactional id, or of any topic. AddPartitionsToTxn needs write of the
transactional id and of all topics, or, from a broker, alter of the cluster. ConsumerGroupDescribe and
ShareGroupDescribe need describe of the topics, too, StreamsGroupHeartbeat and StreamsGroupDescribe of all topics of the
topology. Configs are those of the topic, of the group, or, for a broker's,
of the cluster. DescribeCluster needs nothing.

Sources: Kafka's KafkaApis.scala; KIP-11, 430.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import apis
from kcoord_wire.coordinator.core.admin import GROUP_KEY, TRANSACTION_KEY
from kcoord_wire.coordinator.core.apis import (
    Api,
    BatchedApi,
    Finish,
    Kind,
    Operation,
    Split,
    api_of,
    id_of,
    refusal,
    refuse_request,
    topology_topics,
)
from kcoord_wire.coordinator.core.named import NameOf, topic_of
from kcoord_wire.coordinator.security.permissions import OF_CLUSTER, OF_GROUPS, OF_TOPICS, Permissions
from kcoord_wire.protocol.error_codes import ErrorCode

_RESOURCES: Final = {2: Kind.TOPIC, 32: Kind.GROUP}  # types of what has configs; others belong to the cluster
_ERRORS: Final = {
    Kind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Kind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Kind.TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Kind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def split(
    permissions: Permissions,
    request: Any,
    version: int,
    principal: str,
    name_of: NameOf,
    host: str = "",
) -> Split:
    """Remove from a request what the principal may not ask.

    :param principal: ``User:NAME``, or `ANONYMOUS`
    :param name_of: the name of the topic with an id; ids that it does not know are left for the machine to refuse
    :param host: its address, for ACLs
    :return: the rest of the request, None if nothing is left; and a function that makes the whole answer from the
        machine's answer (None if nothing was asked), or None if that needs no change. For Produce with acks 0,
        which is never answered, a function means that something was refused: Kafka closes the connection then.
    """
    api = api_of(request)
    if api is None:
        return request, None
    asker = _Asker(permissions, principal, name_of, host)
    allowed, finish = _SPLITS.get(api.request, _split)(asker, api, request, version)
    change = _CHANGES.get(api.request)
    if allowed is None or change is None:
        return allowed, finish
    return allowed, _then(finish, change(asker, request, version))


class _Asker(NamedTuple):
    """A principal with the rules that apply to it."""

    permissions: Permissions
    principal: str
    name_of: NameOf
    host: str

    def may(self, kind: Kind, operation: Operation, item: Any) -> bool:
        """:param item: a name, or a part of a request or response that has one; None for no transactional id"""
        return not self.error(kind, operation, item)

    def error(self, kind: Kind, operation: Operation, item: Any = "") -> ErrorCode:
        """Return why the principal may not do this with `item`; NONE if it may."""
        name = item
        if kind is Kind.RESOURCE:
            kind, name = _RESOURCES.get(item.resource_type, Kind.CLUSTER), item.resource_name
        elif kind is Kind.GROUP:
            name = id_of(item)
        elif kind is Kind.TOPIC and not isinstance(item, str):
            name = topic_of(item, self.name_of)
        if name is None:
            return ErrorCode.NONE
        named = "" if kind is Kind.CLUSTER else name
        is_allowed = self.permissions.allows(self.principal, operation, kind, named, self.host)
        return ErrorCode.NONE if is_allowed else _ERRORS[kind]

    def bits(self, kind: Kind, operations: tuple[Operation, ...], item: Any = "") -> int:
        """Return the "authorized operations" of `item`."""
        return sum(1 << operation for operation in operations if self.may(kind, operation, item))

    def hides_topic(self, part: Any) -> bool:
        """Return whether the principal may not know of a topic."""
        return not self.may(Kind.TOPIC, Operation.DESCRIBE, part)


def _split(asker: _Asker, api: Api, request: Any, version: int) -> Split:
    """Split a request as its api's row says."""
    for kind, operation in api.needs:
        if error := next(
            filter(None, (asker.error(kind, operation, name) for name in _named(api, kind, request))), None
        ):
            return refuse_request(refusal(request, version, error))
    if api.each is None:
        return request, None
    kind, operation = api.each
    if api.listed is not None:
        return request, api.leave_out(lambda name: asker.error(kind, operation, name))
    return api.batch_of(request).split(request, version, lambda item: asker.error(kind, operation, item))


def _named(api: Api, kind: Kind, request: Any) -> list[Any]:
    """Return what of this kind a request names as a whole."""
    if kind is Kind.CLUSTER:
        return [""]
    if kind is Kind.TOPIC:
        return [name for field in api.names.split() for name in getattr(request, field) or ()]
    return [getattr(request, api.group if kind is Kind.GROUP else api.transaction)]


def _then(finish: Finish | None, change: Finish | None) -> Finish | None:
    """Return a function that makes the whole answer, and changes it."""
    if finish is None or change is None:
        return finish or change
    return lambda response: change(finish(response))


# ---- apis of which a row cannot say how they are split


def _split_find_coordinator(asker: _Asker, api: Api, request: m.FindCoordinatorRequest, version: int) -> Split:
    if request.key_type not in (GROUP_KEY, TRANSACTION_KEY):
        return request, None
    kind = Kind.GROUP if request.key_type == GROUP_KEY else Kind.TRANSACTION
    if version >= apis.BATCH_FIND_FROM:
        return api.batches[0].split(request, version, lambda key: asker.error(kind, Operation.DESCRIBE, key))
    error = asker.error(kind, Operation.DESCRIBE, request.key)
    return refuse_request(refusal(request, version, error)) if error else (request, None)


_FETCHED_TOPICS: Final = "topics.partition_indexes=partitions"
_NO_OFFSET: Final = {"committed_offset": -1}


def _split_offset_fetch(asker: _Asker, api: Api, request: m.OffsetFetchRequest, version: int) -> Split:
    if version < apis.BATCH_FETCH_FROM:
        if error := asker.error(Kind.GROUP, Operation.DESCRIBE, request.group_id):
            return refuse_request(refusal(request, version, error))
        return _split_fetched(asker, api.batches[1], request, version)
    groups = api.batches[0]
    allowed, finish = groups.split(request, version, lambda group: asker.error(Kind.GROUP, Operation.DESCRIBE, group))
    if allowed is None:
        return allowed, finish
    topics = BatchedApi(m.OffsetFetchRequestGroup, m.OffsetFetchResponseGroup, _FETCHED_TOPICS, _NO_OFFSET)
    splits = [_split_fetched(asker, topics, group, version) for group in allowed.groups]
    if all(finish_group is None for _, finish_group in splits):
        return allowed, finish

    def finish_groups(response: Any) -> Any:
        answers = [
            answer if finish_group is None else finish_group(answer)
            for answer, (_, finish_group) in zip(response.groups, splits, strict=True)
        ]
        return replace(response, groups=answers)

    return replace(allowed, groups=[group for group, _ in splits]), _then(finish_groups, finish)


def _split_fetched(asker: _Asker, topics: BatchedApi, group: Any, version: int) -> Split:
    """Split one group's part of OffsetFetch; versions 0 to 7 are one such part. The machine is asked for the group even
    if no topic is left, because errors of the group take precedence over errors of its topics."""
    if group.topics is None:
        return group, lambda answer: _without_hidden(asker, answer)
    return topics.split(
        group, version, lambda topic: asker.error(Kind.TOPIC, Operation.DESCRIBE, topic), ask_always=True
    )


def _without_hidden(asker: _Asker, response: Any) -> Any:
    return replace(response, topics=[topic for topic in response.topics if not asker.hides_topic(topic)])


def _split_metadata(asker: _Asker, api: Api, request: m.MetadataRequest, version: int) -> Split:
    if request.topics is None or (version == 0 and not request.topics):
        return request, lambda response: _without_hidden(asker, response)
    # The answer lists the brokers too, so the machine is asked even if no topic is left.
    return api.batches[0].split(
        request,
        version,
        lambda topic: asker.error(Kind.TOPIC, Operation.DESCRIBE, topic),
        ask_always=True,
        refuse=_refuse_metadata,
    )


def _refuse_metadata(topic: m.MetadataRequestTopic, version: int, error: int) -> m.MetadataResponseTopic:
    """As in Kafka, a client that names a topic by id does not learn its name, nor the other way round."""
    if topic.name:
        return m.MetadataResponseTopic(error_code=error, name=topic.name)
    no_name = None if version >= apis.NULLABLE_TOPIC_NAME_FROM else ""
    return m.MetadataResponseTopic(error_code=error, name=no_name, topic_id=topic.topic_id)


def _split_init_producer_id(asker: _Asker, api: Api, request: m.InitProducerIdRequest, version: int) -> Split:
    if request.transactional_id is not None:
        error = asker.error(Kind.TRANSACTION, Operation.WRITE, request.transactional_id)
    elif asker.permissions.allows_some_topic(asker.principal, Operation.WRITE, asker.host):
        error = ErrorCode.NONE
    else:
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return refuse_request(refusal(request, version, error)) if error else (request, None)


def _split_add_partitions(asker: _Asker, api: Api, request: m.AddPartitionsToTxnRequest, version: int) -> Split:
    if version >= apis.BATCH_ADD_FROM:
        error = asker.error(Kind.CLUSTER, Operation.ALTER)
    else:
        error = asker.error(Kind.TRANSACTION, Operation.WRITE, request.v3_and_below_transactional_id)
    if error:
        return refuse_request(refusal(request, version, error))
    errors = [asker.error(Kind.TOPIC, Operation.WRITE, topic) for topic in request.v3_and_below_topics]
    if not any(errors):
        return request, None
    answer = refusal(request, version, ErrorCode.TOPIC_AUTHORIZATION_FAILED)  # all or none are added
    for topic, error in zip(answer.results_by_topic_v3_and_below, errors, strict=True):
        for partition in () if error else topic.results_by_partition:
            partition.partition_error_code = ErrorCode.OPERATION_NOT_ATTEMPTED
    return refuse_request(answer)


def _split_streams_heartbeat(asker: _Asker, api: Api, request: m.StreamsGroupHeartbeatRequest, version: int) -> Split:
    error = asker.error(Kind.GROUP, Operation.READ, request)
    topics = () if request.topology is None else topology_topics(request.topology)
    if not error and any(map(asker.hides_topic, topics)):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return refuse_request(refusal(request, version, error)) if error else (request, None)


_SPLITS: Final[dict[type, Callable[[_Asker, Api, Any, int], Split]]] = {
    m.MetadataRequest: _split_metadata,
    m.OffsetFetchRequest: _split_offset_fetch,
    m.FindCoordinatorRequest: _split_find_coordinator,
    m.InitProducerIdRequest: _split_init_producer_id,
    m.AddPartitionsToTxnRequest: _split_add_partitions,
    m.StreamsGroupHeartbeatRequest: _split_streams_heartbeat,
}


# ---- what the permissions change in the answers to requests that are allowed


def _with_bits(asker: _Asker, kind: Kind, response: Any) -> Any:
    """Add to each group or topic that is described what the principal may do with it."""
    name, field, operations = _BITS[kind]
    items = [
        item if item.error_code else replace(item, **{field: asker.bits(kind, operations, item)})
        for item in getattr(response, name)
    ]
    return replace(response, **{name: items})


_BITS: Final = {
    Kind.GROUP: ("groups", "authorized_operations", OF_GROUPS),
    Kind.TOPIC: ("topics", "topic_authorized_operations", OF_TOPICS),
}


def _show_group_bits(asker: _Asker, request: m.DescribeGroupsRequest, version: int) -> Finish | None:
    return partial(_with_bits, asker, Kind.GROUP) if request.include_authorized_operations else None


def _show_members(
    asker: _Asker, request: m.ConsumerGroupDescribeRequest | m.ShareGroupDescribeRequest, version: int
) -> Finish:
    """A group is described to those who may describe its topics, too."""

    def finish_group(group: Any) -> Any:
        if group.error_code:
            return group
        assignments = [member.assignment for member in group.members]
        if isinstance(group, m.ConsumerGroupDescribeResponseDescribedGroup):
            assignments += [member.target_assignment for member in group.members]
        names = {entry.topic_name for each in assignments for entry in each.topic_partitions}
        if any(map(asker.hides_topic, names)):
            return type(group)(group_id=group.group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return group

    def finish(response: Any) -> Any:
        response = replace(response, groups=[finish_group(group) for group in response.groups])
        return _with_bits(asker, Kind.GROUP, response) if request.include_authorized_operations else response

    return finish


def _show_streams(asker: _Asker, request: m.StreamsGroupDescribeRequest, version: int) -> Finish:
    """A group is described to those who may describe its topics, too."""

    def finish_group(group: m.StreamsGroupDescribeResponseDescribedGroup) -> Any:
        if group.topology is None or not any(map(asker.hides_topic, topology_topics(group.topology))):
            return group
        return type(group)(group_id=group.group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def finish(response: Any) -> Any:
        response = replace(response, groups=[finish_group(group) for group in response.groups])
        return _with_bits(asker, Kind.GROUP, response) if request.include_authorized_operations else response

    return finish


def _show_topics(asker: _Asker, request: m.MetadataRequest, version: int) -> Finish | None:
    return partial(_with_bits, asker, Kind.TOPIC) if request.include_topic_authorized_operations else None


def _show_partitions(asker: _Asker, request: m.DescribeTopicPartitionsRequest, version: int) -> Finish:
    """Leave out what may not be described of all topics, where the request names none."""

    def visible(response: Any) -> Any:
        topics = [each for each in response.topics if each.error_code or not asker.hides_topic(each)]
        return _with_bits(asker, Kind.TOPIC, replace(response, topics=topics))

    return visible


def _hide_configs(asker: _Asker, request: m.CreateTopicsRequest, version: int) -> Finish | None:
    if version < apis.CREATED_CONFIGS_FROM:
        return None

    def finish(response: Any) -> Any:
        hidden = {"num_partitions": -1, "replication_factor": -1, "configs": None}
        topics = []
        for topic in response.topics:
            error = asker.error(Kind.TOPIC, Operation.DESCRIBE_CONFIGS, topic)
            is_hidden = error and not topic.error_code
            topics.append(replace(topic, topic_config_error_code=error, **hidden) if is_hidden else topic)
        return replace(response, topics=topics)

    return finish


def _show_cluster_bits(asker: _Asker, request: m.DescribeClusterRequest, version: int) -> Finish | None:
    if not request.include_cluster_authorized_operations:
        return None
    return lambda response: replace(response, cluster_authorized_operations=asker.bits(Kind.CLUSTER, OF_CLUSTER))  # type: ignore[type-var]


_CHANGES: Final[dict[type, Callable[[_Asker, Any, int], Finish | None]]] = {
    m.MetadataRequest: _show_topics,
    m.DescribeGroupsRequest: _show_group_bits,
    m.ConsumerGroupDescribeRequest: _show_members,
    m.ShareGroupDescribeRequest: _show_members,
    m.StreamsGroupDescribeRequest: _show_streams,
    m.CreateTopicsRequest: _hide_configs,
    m.DescribeTopicPartitionsRequest: _show_partitions,
    m.DescribeClusterRequest: _show_cluster_bits,
}
