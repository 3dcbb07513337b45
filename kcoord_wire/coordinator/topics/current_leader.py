"""The leader of a partition, named beside NOT_LEADER_OR_FOLLOWER (6), so that a client need not ask for metadata.

Source: KIP-951; Produce from version 10 on, Fetch from version 16 on.
"""

from __future__ import annotations

from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import FETCH_NAMES_LEADER_FROM, PRODUCE_NAMES_LEADER_FROM, TOPIC_UUIDS_FROM
from kcoord_wire.coordinator.core.brokers import NO_LEADER
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.protocol.error_codes import ErrorCode


def name_leaders(catalog: Catalog, response: m.FetchResponse | m.ProduceResponse, version: int) -> None:
    """Add the leaders of partitions that were refused because another broker leads them, and these brokers' addresses.

    :param version: of the response
    """
    fetched = isinstance(response, m.FetchResponse)
    if version < (FETCH_NAMES_LEADER_FROM if fetched else PRODUCE_NAMES_LEADER_FROM):
        return
    named = m.FetchResponseLeaderIdAndEpoch if fetched else m.ProduceResponseLeaderIdAndEpoch
    addressed: Any = m.FetchResponseNodeEndpoint if fetched else m.ProduceResponseNodeEndpoint
    leaders = set()
    for part in response.responses:
        name = part.topic if isinstance(part, m.FetchResponseFetchableTopicResponse) else part.name
        topic = catalog.find(name, part.topic_id, version >= TOPIC_UUIDS_FROM)
        for index, answer in _partitions(part):
            if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER or isinstance(topic, ErrorCode):
                continue
            leader = topic.leaders.of[index]
            if leader != NO_LEADER:
                node_id = catalog.brokers.endpoints[leader].node_id
                answer.current_leader = named(leader_id=node_id, leader_epoch=topic.logs[index].leader_epoch)
                leaders.add(leader)
    response.node_endpoints = [addressed(**catalog.brokers.endpoints[leader]._asdict()) for leader in sorted(leaders)]


def _partitions(part: Any) -> list[tuple[int, Any]]:
    if isinstance(part, m.FetchResponseFetchableTopicResponse):
        return [(answer.partition_index, answer) for answer in part.partitions]
    return [(answer.index, answer) for answer in part.partition_responses]
