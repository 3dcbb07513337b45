"""Requests of one api with their responses: which of their fields are wanted, both sides decoded by column.

Laws:

* A request that does not decode is a loss and left out, for its group is not known. A response that does not decode is
  a loss and null.
* What is not wanted is checked and skipped, see `codec.columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from kcoord_wire.api_keys import API_NAMES
from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.forensics.exchanges.arrow import absent, as_type, filled, take
from kcoord_wire.forensics.model import Exchange, arrow_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["APIS", "METADATA", "Decoded", "Knowledge", "assembled", "decode_pairs", "note_errors"]

METADATA: Final = 3
_OFFSET_COMMIT, _OFFSET_FETCH, _FIND_COORDINATOR, _JOIN, _HEARTBEAT, _LEAVE, _SYNC = 8, 9, 10, 11, 12, 13, 14
_CONSUMER_HEARTBEAT: Final = 68

_COLUMNS: Final[Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]] = {  # of the request, of the response
    METADATA: ((), ("topics.error_code", "topics.name", "topics.topic_id", "topics.partitions.partition_index")),
    _OFFSET_COMMIT: (
        (
            *("group_id", "generation_id_or_member_epoch", "member_id", "group_instance_id", "topics.name"),
            *("topics.topic_id", "topics.partitions.partition_index", "topics.partitions.committed_offset"),
        ),
        (
            *("topics.name", "topics.topic_id"),
            *("topics.partitions.partition_index", "topics.partitions.error_code"),
        ),
    ),
    _OFFSET_FETCH: (
        ("group_id", "groups.group_id", "groups.member_id", "groups.member_epoch"),
        (
            *("error_code", "topics.name", "topics.partitions.partition_index", "topics.partitions.committed_offset"),
            *("topics.partitions.error_code", "groups.group_id", "groups.error_code", "groups.topics.name"),
            *("groups.topics.topic_id", "groups.topics.partitions.partition_index"),
            *("groups.topics.partitions.committed_offset", "groups.topics.partitions.error_code"),
        ),
    ),
    _FIND_COORDINATOR: (
        ("key", "key_type", "coordinator_keys"),
        (
            *("error_code", "host", "port", "coordinators.key", "coordinators.error_code"),
            *("coordinators.host", "coordinators.port"),
        ),
    ),
    _JOIN: (
        (
            *("group_id", "session_timeout_ms", "rebalance_timeout_ms", "member_id", "group_instance_id"),
            *("protocol_type", "protocols", "reason"),
        ),
        (*("error_code", "generation_id", "protocol_name", "leader", "skip_assignment", "member_id", "members"),),
    ),
    _HEARTBEAT: (("group_id", "generation_id", "member_id", "group_instance_id"), ("error_code",)),
    _LEAVE: (("group_id", "member_id", "members"), ("error_code", "members")),
    _SYNC: (
        ("group_id", "generation_id", "member_id", "group_instance_id", "protocol_type", "assignments"),
        ("error_code", "assignment"),
    ),
    _CONSUMER_HEARTBEAT: (
        (
            *("group_id", "member_id", "member_epoch", "instance_id", "rebalance_timeout_ms", "server_assignor"),
            *("subscribed_topic_names", "subscribed_topic_regex", "topic_partitions"),
        ),
        ("error_code", "member_id", "member_epoch", "assignment"),
    ),
}
# JoinGroup comes before SyncGroup, Metadata before all: what they tell is needed for the others.
APIS: Final = tuple(sorted(_COLUMNS))
"""The api keys whose frames are decoded, in the order in which that has to be done."""


class Knowledge(Protocol):
    """What a matcher remembers and takes note of while rows are made."""

    def lose(self, row: int, what: str) -> None:
        """The frame of that row, or a blob in it, does not decode."""

    def topic_name(self, row: int, topic_id: bytes) -> str:
        """What the topic was called on the connection of that row, before that row; else ``id:`` and its hex."""

    def joins_as(self, row: int, group_id: str, protocol_type: str) -> None:
        """A JoinGroup of that row named the protocol type of a group."""

    def protocol_type(self, row: int, group_id: str) -> str | None:
        """What was named on the connection of that row, before that row."""


@dataclass(slots=True)
class Decoded:
    """Requests of one api with their responses.

    :ivar frames: rows of `Frame` that `requests` and `responses` number; -1 where there is no response
    :ivar hosts: of the client of each request
    :ivar asked: the struct column of the requests; `answered` of the responses, null where `told` is false
    """

    api: str
    frames: pa.RecordBatch
    requests: NDArray[np.int64]
    responses: NDArray[np.int64]
    versions: NDArray[np.int16]
    hosts: Any
    client_ids: Any
    asked: Any
    answered: Any
    told: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.requests)


@cache
def _decoders(key: int) -> tuple[ColumnDecoder, ColumnDecoder]:
    asked, answered = f"{API_NAMES[key]}Request", f"{API_NAMES[key]}Response"
    request, response = _COLUMNS[key]
    return (
        ColumnDecoder([asked], columns=[f"{asked}.{name}" for name in request or ("topics.name",)], strict=False),
        ColumnDecoder([answered], form="response", columns=[f"{answered}.{name}" for name in response], strict=False),
    )


def decode_pairs(
    key: int,
    frames: pa.RecordBatch,
    requests: NDArray[np.int64],
    responses: NDArray[np.int64],
    versions: NDArray[np.int16],
    hosts: Any,
    knowledge: Knowledge,
) -> Decoded:
    """Decode both sides. Cut frames, whose error is known, are not decoded; Metadata requests neither."""
    api = API_NAMES[key]
    request, response = _decoders(key)
    bodies = frames.column("frame")
    cut = ~absent(frames.column("error"))
    client_ids = asked = pa.nulls(len(requests))
    if key != METADATA:
        found = request.decode(take(bodies, np.where(cut[requests], -1, requests)))
        note_errors(found.column("error"), requests, api, "request", knowledge)
        asked, client_ids = found.column(f"{api}Request"), found.column("client_id")
        if asked.null_count:
            good = ~absent(asked)
            requests, responses, versions = requests[good], responses[good], versions[good]
            kept = pa.array(good)
            asked, client_ids, hosts = asked.filter(kept), client_ids.filter(kept), hosts.filter(kept)
    whole = np.where(responses < 0, -1, np.where(cut[responses], -1, responses))
    found = response.decode(take(bodies, whole), keys=key, versions=pa.array(versions))
    note_errors(found.column("error"), responses, api, "response", knowledge)
    answered = found.column(f"{api}Response")
    return Decoded(api, frames, requests, responses, versions, hosts, client_ids, asked, answered, ~absent(answered))


def note_errors(errors: Any, rows: NDArray[np.int64], api: str, side: str, knowledge: Knowledge) -> None:
    """Tell of the rows that have an error.

    :param rows: the frames that they are, or are in
    """
    if errors.null_count == len(errors):
        return
    for index in np.flatnonzero(~absent(errors)).tolist():
        knowledge.lose(int(rows[index]), f"{api} {side} does not decode: {errors[index]}")


def assembled(pairs: Decoded, columns: dict[str, Any], of: NDArray[np.int64] | None = None) -> pa.RecordBatch:
    """Rows of `columns` and what all exchanges have. `of`: the pair of each row, where it is not one for one."""
    requests, responses = pairs.requests, pairs.responses
    hosts, client_ids, versions = pairs.hosts, pairs.client_ids, pairs.versions
    if of is not None:
        requests, responses, versions = requests[of], responses[of], versions[of]
        hosts, client_ids = take(hosts, of), take(client_ids, of)
    frames = pairs.frames
    columns = columns | {
        "api": pa.repeat(pa.scalar(pairs.api), len(requests)),
        "api_version": pa.array(versions),
        "source": take(frames.column("source"), requests),
        "seq": take(frames.column("seq"), requests),
        "answer_seq": take(frames.column("seq"), responses),
        "connection": take(frames.column("connection"), requests),
        "client_id": client_ids,
        "client_host": hosts,
        "asked_ns": take(frames.column("time_ns"), requests),
        "answered_ns": take(frames.column("time_ns"), responses),
    }
    schema = arrow_schema(Exchange)
    made = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(len(requests), field.type)
        made.append(as_type(column if field.nullable else filled(column), field.type))
    return pa.RecordBatch.from_arrays(made, schema=schema)
