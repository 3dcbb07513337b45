"""Requests that are lists of parts: which parts go on to a machine, and how the whole answer is put together again.

Laws:

* The parts of an answer have the order of the request's, whether the machine or a refusal has answered them.
* A request of which no part is left is answered without the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import versions
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.protocol.error_codes import ErrorCode

NO_TRANSACTION: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

TOPIC_RESOURCE: Final = 2  # types of what has configs
GROUP_RESOURCE: Final = 32

Finish = Callable[[Any | None], Any]
"""Makes the whole answer from the machine's, which is None where the machine was not asked."""

Split = tuple[Any | None, Finish | None]
"""What is left of a request, None for nothing; and what makes the whole answer, None where the machine's is that."""


def refuse_all(response: Any) -> Split:
    """Answer a request without the machine."""
    return None, lambda _: response


def merge(verdicts: Sequence[bool], refused: Sequence[Any], answered: Sequence[Any]) -> list[Any]:
    """Return the answers to the parts of a request in their order; surplus answers come last."""
    refusals, answers = iter(refused), iter(answered)
    merged = [next(answers if verdict else refusals, None) for verdict in verdicts]
    return [part for part in merged if part is not None] + list(answers)


class Parts(NamedTuple):
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

    def split(self, request: Any, version: int, verdicts: Sequence[bool], *, ask_always: bool = False) -> Split:
        if all(verdicts):
            return request, None
        parts = list(zip(getattr(request, self.asked), verdicts, strict=True))
        refused_request = replace(request, **{self.asked: [part for part, allowed in parts if not allowed]})
        refused = self.refuse(refused_request, version)
        if not any(verdicts):
            if not ask_always:
                return refuse_all(self.response(**{self.answered: refused}))
            return replace(request, **{self.asked: []}), lambda response: replace(response, **{self.answered: refused})

        def finish(response: Any) -> Any:
            if getattr(response, "error_code", 0):
                return response
            merged = merge(verdicts, refused, getattr(response, self.answered))
            return replace(response, **{self.answered: merged})

        return replace(request, **{self.asked: [part for part, allowed in parts if allowed]}), finish


def _by_refusal(asked: str, response: type, answered: str, error: ErrorCode) -> Parts:
    return Parts(
        asked, response, answered, lambda request, version: getattr(refusal(request, version, error), answered)
    )


FOUND = _by_refusal("coordinator_keys", m.FindCoordinatorResponse, "coordinators", NO_GROUP)
FOUND_OF_TRANSACTIONS = _by_refusal("coordinator_keys", m.FindCoordinatorResponse, "coordinators", NO_TRANSACTION)
TRANSACTIONS_DESCRIBED = _by_refusal(
    "transactional_ids", m.DescribeTransactionsResponse, "transaction_states", NO_TRANSACTION
)
TXN_COMMITTED = _by_refusal("topics", m.TxnOffsetCommitResponse, "topics", NO_TOPIC)
DESCRIBED = _by_refusal("groups", m.DescribeGroupsResponse, "groups", NO_GROUP)
CONSUMERS_DESCRIBED = _by_refusal("group_ids", m.ConsumerGroupDescribeResponse, "groups", NO_GROUP)
DELETED = _by_refusal("groups_names", m.DeleteGroupsResponse, "results", NO_GROUP)
COMMITTED = _by_refusal("topics", m.OffsetCommitResponse, "topics", NO_TOPIC)
PRODUCED = _by_refusal("topic_data", m.ProduceResponse, "responses", NO_TOPIC)
LISTED = _by_refusal("topics", m.ListOffsetsResponse, "topics", NO_TOPIC)
EPOCHS = _by_refusal("topics", m.OffsetForLeaderEpochResponse, "topics", NO_TOPIC)


def _refuse_fetch(request: m.FetchRequest, version: int) -> list[Any]:
    return [
        m.FetchResponseFetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                m.FetchResponsePartitionData(
                    partition_index=asked.partition, error_code=NO_TOPIC, high_watermark=-1, records=b""
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
        m.MetadataResponseTopic(error_code=NO_TOPIC, name=topic.name)
        if topic.name
        else m.MetadataResponseTopic(error_code=NO_TOPIC, name=no_name, topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]


def _refuse_offset_delete(request: m.OffsetDeleteRequest, version: int) -> list[Any]:
    return [
        m.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                m.OffsetDeleteResponsePartition(partition_index=asked.partition_index, error_code=NO_TOPIC)
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]


def _refuse_resources(answered: str) -> Callable[[Any, int], list[Any]]:
    errors = {TOPIC_RESOURCE: NO_TOPIC, GROUP_RESOURCE: NO_GROUP}

    def refuse(request: Any, version: int) -> list[Any]:
        parts = []
        for resource in request.resources:
            one = replace(request, resources=[resource])
            parts += getattr(refusal(one, version, errors.get(resource.resource_type, NO_CLUSTER)), answered)
        return parts

    return refuse


TOPICS_CREATED = _by_refusal("topics", m.CreateTopicsResponse, "topics", NO_TOPIC)
PARTITIONS_CREATED = _by_refusal("topics", m.CreatePartitionsResponse, "results", NO_TOPIC)
TOPICS_DELETED = _by_refusal("topics", m.DeleteTopicsResponse, "responses", NO_TOPIC)
NAMES_DELETED = _by_refusal("topic_names", m.DeleteTopicsResponse, "responses", NO_TOPIC)
PARTITIONS_DESCRIBED = _by_refusal("topics", m.DescribeTopicPartitionsResponse, "topics", NO_TOPIC)
RECORDS_DELETED = _by_refusal("topics", m.DeleteRecordsResponse, "topics", NO_TOPIC)
PRODUCERS_DESCRIBED = _by_refusal("topics", m.DescribeProducersResponse, "topics", NO_TOPIC)
CONFIGS_DESCRIBED = Parts("resources", m.DescribeConfigsResponse, "results", _refuse_resources("results"))
CONFIGS_ALTERED = Parts("resources", m.AlterConfigsResponse, "responses", _refuse_resources("responses"))
CONFIGS_CHANGED = CONFIGS_ALTERED._replace(response=m.IncrementalAlterConfigsResponse)
FETCHED = Parts("topics", m.FetchResponse, "responses", _refuse_fetch)
METADATA = Parts("topics", m.MetadataResponse, "topics", _refuse_metadata)
OFFSETS_DELETED = Parts("topics", m.OffsetDeleteResponse, "topics", _refuse_offset_delete)
