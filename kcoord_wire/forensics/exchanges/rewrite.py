"""JoinGroup of the consumer rewrite as exchanges: the member names topics, and the coordinator's response partitions.

Law: a response that does not decode is a loss, and its row counts as answered, with nothing known of the answer. The
other requests of the rewrite have the bytes of Kafka's, and are read as those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kcoord_wire.capture.rewrite import REWRITE
from kcoord_wire.codec.registry import decode_request, decode_response
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.exchanges.arrow import only_batch
from kcoord_wire.forensics.exchanges.memory import BatchMemory, client_host
from kcoord_wire.forensics.model import Exchange, TopicPartitions, table_of
from kcoord_wire.messages.rewrite.rewrite_join_group import RewriteJoinGroupResponse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def rewrite_joins(
    frames: pa.RecordBatch, requests: NDArray[np.int64], responses: NDArray[np.int64], memory: BatchMemory
) -> pa.RecordBatch:
    """Return a row of `Exchange` for each JoinGroup.

    :param frames: rows of `Frame`
    :param requests: rows of the requests in `frames`, each of which is the rewrite's
    :param responses: rows of the responses in `frames`; -1 where there is none
    :param memory: takes the losses
    """
    rows = [_row(frames, asked, answered, memory) for asked, answered in zip(requests, responses, strict=True)]
    return only_batch(table_of(Exchange, rows))


def _row(frames: pa.RecordBatch, asked: int, answered: int, memory: BatchMemory) -> Exchange:
    frame = frames.slice(int(asked), 1).to_pylist()[0]
    header, request = decode_request(frame["frame"], family=REWRITE)
    row = Exchange(
        group_id=request.group_id,
        api="JoinGroup",
        api_version=0,
        source=frame["source"],
        seq=frame["seq"],
        answer_seq=None,
        connection=frame["connection"],
        client_id=header.client_id,
        client_host=client_host(frame["connection"]),
        asked_ns=frame["time_ns"],
        answered_ns=None,
        member_id=request.consumer_id,
        session_timeout_ms=request.session_timeout_ms,
        protocol_type="consumer",
        assignor=request.strategy or None,
        topics=list(request.topics),
        position=frame["position"],
    )
    if answered >= 0:
        _answer(row, frames.slice(int(answered), 1).to_pylist()[0], int(answered), memory)
    return row


def _answer(row: Exchange, frame: dict[str, Any], place: int, memory: BatchMemory) -> None:
    row.answer_seq, row.answer_position, row.answered_ns = frame["seq"], frame["position"], frame["time_ns"]
    if frame["error"] is not None:
        return
    try:
        _, response = decode_response(frame["frame"], RewriteJoinGroupResponse, 0, strict=False)
    except DecodeError as error:
        memory.lose(place, f"JoinGroup response does not decode: {error}")
        return
    row.error_code, row.new_generation_id = response.error_code, response.generation_id
    row.given_member_id = response.consumer_id or None
    if not response.error_code:
        given = ((each.topic, list(each.partitions)) for each in response.assigned_partitions)
        row.assignment = [TopicPartitions(topic, partitions) for topic, partitions in given]
