"""Requests of one API with their responses: which of their fields are read, both sides decoded by column.

Laws:

* A request that does not decode is a loss and left out, because its group is not known. A response that does not decode
  is a loss and null.
* Fields that are not read are still checked, see `codec.columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.forensics.exchanges.arrow import absent, as_type, filled, take_or_null
from kcoord_wire.forensics.exchanges.pairing import BatchMemory, sources_of
from kcoord_wire.forensics.model import Exchange, arrow_schema
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS: Final[Mapping[ApiKey, tuple[tuple[str, ...], tuple[str, ...]]]] = {  # of the request, of the response
    ApiKey.METADATA: (
        (),
        ("cluster_id", "topics.error_code", "topics.name", "topics.topic_id", "topics.partitions.partition_index"),
    ),
    ApiKey.OFFSET_COMMIT: (
        (
            *("group_id", "generation_id_or_member_epoch", "member_id", "group_instance_id", "topics.name"),
            *("topics.topic_id", "topics.partitions.partition_index", "topics.partitions.committed_offset"),
        ),
        (*("topics.name", "topics.topic_id"), *("topics.partitions.partition_index", "topics.partitions.error_code")),
    ),
    ApiKey.OFFSET_FETCH: (
        ("group_id", "groups.group_id", "groups.member_id", "groups.member_epoch"),
        (
            *("error_code", "topics.name", "topics.partitions.partition_index", "topics.partitions.committed_offset"),
            *("topics.partitions.error_code", "groups.group_id", "groups.error_code", "groups.topics.name"),
            *("groups.topics.topic_id", "groups.topics.partitions.partition_index"),
            *("groups.topics.partitions.committed_offset", "groups.topics.partitions.error_code"),
        ),
    ),
    ApiKey.FIND_COORDINATOR: (
        ("key", "key_type", "coordinator_keys"),
        (
            *("error_code", "host", "port", "coordinators.key", "coordinators.error_code"),
            *("coordinators.host", "coordinators.port"),
        ),
    ),
    ApiKey.JOIN_GROUP: (
        (
            *("group_id", "session_timeout_ms", "rebalance_timeout_ms", "member_id", "group_instance_id"),
            *("protocol_type", "protocols", "reason"),
        ),
        (*("error_code", "generation_id", "protocol_name", "leader", "skip_assignment", "member_id", "members"),),
    ),
    ApiKey.HEARTBEAT: (("group_id", "generation_id", "member_id", "group_instance_id"), ("error_code",)),
    ApiKey.LEAVE_GROUP: (("group_id", "member_id", "members"), ("error_code", "members")),
    ApiKey.SYNC_GROUP: (
        ("group_id", "generation_id", "member_id", "group_instance_id", "protocol_type", "assignments"),
        ("error_code", "assignment"),
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        (
            *("group_id", "member_id", "member_epoch", "instance_id", "rebalance_timeout_ms", "server_assignor"),
            *("subscribed_topic_names", "subscribed_topic_regex", "topic_partitions"),
        ),
        ("error_code", "member_id", "member_epoch", "assignment"),
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: (
        ("group_id", "member_id", "member_epoch", "subscribed_topic_names"),
        ("error_code", "member_id", "member_epoch", "assignment"),
    ),
    ApiKey.SHARE_FETCH: (
        ("group_id", "member_id"),
        (
            *("error_code", "responses.topic_id", "responses.partitions.partition_index"),
            "responses.partitions.acquired_records",
        ),
    ),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (
        ("group_id", "member_id", "member_epoch", "instance_id", "rebalance_timeout_ms", "active_tasks"),
        ("error_code", "member_id", "member_epoch", "active_tasks"),
    ),
}
APIS: Final = tuple(sorted(_COLUMNS))
"""The APIs whose frames are decoded, in that order: Metadata shows the names of topics, and JoinGroup the protocol type
that SyncGroup needs."""


@dataclass(slots=True)
class Decoded:
    """Requests of one API with their responses; one row per pair.

    :ivar api: name of the API, ``JoinGroup``
    :ivar frames: rows of `Frame`
    :ivar requests: rows of the requests in `frames`
    :ivar responses: rows of the responses in `frames`; -1 where there is none
    :ivar versions: of the requests
    :ivar hosts: addresses of the clients
    :ivar software: of the clients, see `Exchange.software`
    :ivar client_ids: client ids in the requests
    :ivar asked: the requests, as a struct column
    :ivar answered: the responses, as a struct column; null where there is none, or it does not decode
    :ivar has_answer: where `answered` is not null
    """

    api: str
    frames: pa.RecordBatch
    requests: NDArray[np.int64]
    responses: NDArray[np.int64]
    versions: NDArray[np.int16]
    hosts: pa.Array
    software: pa.Array
    client_ids: pa.Array
    asked: pa.Array
    answered: pa.Array
    has_answer: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.requests)


@cache
def _decoders(key: ApiKey) -> tuple[ColumnDecoder, ColumnDecoder]:
    asked, answered = f"{API_NAMES[key]}Request", f"{API_NAMES[key]}Response"
    request, response = _COLUMNS[key]
    return (
        ColumnDecoder([asked], columns=[f"{asked}.{name}" for name in request or ("topics.name",)], strict=False),
        ColumnDecoder([answered], form="response", columns=[f"{answered}.{name}" for name in response], strict=False),
    )


def decode_pairs(
    key: ApiKey,
    frames: pa.RecordBatch,
    requests: NDArray[np.int64],
    responses: NDArray[np.int64],
    versions: NDArray[np.int16],
    hosts: pa.Array,
    memory: BatchMemory,
) -> Decoded:
    """Decode both sides; all but Metadata requests, and frames that are cut, whose error is known.

    :param key: the API
    :param frames: rows of `Frame`
    :param requests: rows of the requests in `frames`
    :param responses: rows of the responses in `frames`; -1 where there is none
    :param versions: of the requests
    :param hosts: addresses of the clients
    :param memory: takes the losses
    """
    api = API_NAMES[key]
    request, response = _decoders(key)
    bodies = frames.column("frame")
    cut = ~absent(frames.column("error"))
    client_ids = asked = pa.nulls(len(requests))
    if key != ApiKey.METADATA:
        found = request.decode(take_or_null(bodies, np.where(cut[requests], -1, requests)))
        note_errors(found.column("error"), requests, api, "request", memory)
        asked, client_ids = found.column(f"{api}Request"), found.column("client_id")
        if asked.null_count:
            good = ~absent(asked)
            requests, responses, versions = requests[good], responses[good], versions[good]
            kept = pa.array(good)
            asked, client_ids, hosts = asked.filter(kept), client_ids.filter(kept), hosts.filter(kept)
    whole = np.where(responses < 0, -1, np.where(cut[responses], -1, responses))
    software = memory.software(requests)
    found = response.decode(take_or_null(bodies, whole), keys=key, versions=pa.array(versions))
    note_errors(found.column("error"), responses, api, "response", memory)
    answered = found.column(f"{api}Response")
    return Decoded(
        api, frames, requests, responses, versions, hosts, software, client_ids, asked, answered, ~absent(answered)
    )


def note_errors(errors: pa.Array, rows: NDArray[np.int64], api: str, side: str, memory: BatchMemory) -> None:
    """Report the rows that have an error.

    :param errors: why a message or blob does not decode; null where it does
    :param rows: the frames that they are, or are in
    :param api: name of the API or of the blob's message
    :param side: ``request``, ``response`` or ``blob``
    :param memory: takes the losses
    """
    if errors.null_count == len(errors):
        return
    for index in np.flatnonzero(~absent(errors)).tolist():
        memory.lose(int(rows[index]), f"{api} {side} does not decode: {errors[index]}")


def assembled(pairs: Decoded, columns: dict[str, pa.Array], of: NDArray[np.int64] | None = None) -> pa.RecordBatch:
    """Return rows of `Exchange` from their own columns and those that all exchanges have.

    :param columns: by name; the others are null
    :param of: per row, the number of its pair; None where each pair has one row
    """
    requests, responses = pairs.requests, pairs.responses
    hosts, software, client_ids, versions = pairs.hosts, pairs.software, pairs.client_ids, pairs.versions
    if of is not None:
        requests, responses, versions = requests[of], responses[of], versions[of]
        hosts, software, client_ids = take_or_null(hosts, of), take_or_null(software, of), take_or_null(client_ids, of)
    frames = pairs.frames
    files = pc.if_else(frames.column("capture").is_valid(), frames.column("source"), pa.scalar(None, pa.string()))
    columns = columns | {
        "api": pa.repeat(pa.scalar(pairs.api), len(requests)),
        "api_version": pa.array(versions),
        "source": take_or_null(sources_of(frames), requests),
        "seq": take_or_null(frames.column("seq"), requests),
        "answer_seq": take_or_null(frames.column("seq"), responses),
        "position": take_or_null(frames.column("position"), requests),
        "answer_position": take_or_null(frames.column("position"), responses),
        "file": take_or_null(files, requests),
        "answer_file": take_or_null(files, responses),
        "connection": take_or_null(frames.column("connection"), requests),
        "client_id": client_ids,
        "client_host": hosts,
        "software": software,
        "asked_ns": take_or_null(frames.column("time_ns"), requests),
        "answered_ns": take_or_null(frames.column("time_ns"), responses),
    }
    schema = arrow_schema(Exchange)
    made = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(len(requests), field.type)
        made.append(as_type(column if field.nullable else filled(column), field.type))
    return pa.RecordBatch.from_arrays(made, schema=schema)
