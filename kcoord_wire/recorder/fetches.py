"""What is recorded of Fetch where records are not: the numbers, as a request and a response of their own.

Laws:

* No record is in what this module returns: each response is made anew from the numbers that `capture.fetches` finds.
* Every request that it makes is complete by itself (session epoch -1): it names the partitions of its response, and
  where the client reads them, whatever session they were in.
* A response that says nothing new, by the rule of `FetchSession.due`, is not recorded, so that a busy client costs some
  hundred bytes per second and partition, and ten kilobytes per second in all.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final
from uuid import UUID

from kcoord_wire.capture.fetches import FetchAsked, FetchedPartition, FetchSession, FetchWalk, read_fetch_request
from kcoord_wire.codec.registry import encode_request, encode_response, peek_request
from kcoord_wire.errors import WireError
from kcoord_wire.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)

MAX_PENDING: Final = 64
"""Requests of a connection without a response; clients have one."""


class FetchNumbers:
    """The fetches of one connection."""

    __slots__ = ("_pending", "_session")

    def __init__(self) -> None:
        self._session = FetchSession()
        self._pending: dict[int, tuple[FetchAsked, int, str | None]] = {}  # with version and client id

    def ask(self, body: bytes) -> None:
        """Take the body of a request."""
        asked = read_fetch_request(body)
        if asked is None:
            return
        try:
            header = peek_request(body, strict=False)
        except WireError:
            return
        self._pending[header.correlation_id] = asked, header.request_api_version, header.client_id
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def answer(self, correlation_id: int, walk: FetchWalk, time_ns: int) -> tuple[bytes, bytes] | None:
        """Take a response that was walked; return the request and the response to record, None for nothing."""
        found = self._pending.pop(correlation_id, None)
        if found is None:
            return None
        asked, version, client_id = found
        self._session.ask(asked)
        due = self._session.due(walk.partitions, time_ns)
        if not due:
            return None
        request = encode_request(self._request(due), version, correlation_id=correlation_id, client_id=client_id)
        return request, encode_response(_response(due), version, correlation_id=correlation_id)

    def _request(self, due: list[FetchedPartition]) -> FetchRequest:
        topics: dict[str | bytes, list[FetchRequestFetchPartition]] = defaultdict(list)
        for (topic, partition), *_ in due:
            offset = self._session.offsets.get((topic, partition))
            if offset is not None:
                topics[topic].append(
                    FetchRequestFetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=0)
                )
        made = [FetchRequestFetchTopic(**_named(topic), partitions=parts) for topic, parts in topics.items()]
        return FetchRequest(max_wait_ms=0, min_bytes=0, topics=made)


def _response(due: list[FetchedPartition]) -> FetchResponse:
    topics: dict[str | bytes, list[FetchResponsePartitionData]] = defaultdict(list)
    for each in due:
        topic, partition = each.place
        topics[topic].append(
            FetchResponsePartitionData(
                partition_index=partition,
                error_code=each.error_code,
                high_watermark=each.end_offset,
                log_start_offset=-1 if each.start_offset is None else each.start_offset,
                aborted_transactions=None,
                records=None,
            )
        )
    made = [FetchResponseFetchableTopicResponse(**_named(topic), partitions=parts) for topic, parts in topics.items()]
    return FetchResponse(responses=made)


def _named(topic: str | bytes) -> dict[str, Any]:
    return {"topic": topic} if isinstance(topic, str) else {"topic_id": UUID(bytes=topic)}
