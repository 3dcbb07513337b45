"""Where clients read and where partitions end, as rows of `Sighting`: from Fetch and ListOffsets.

Laws:

* No record is read: the numbers of Fetch are found by `capture.fetches`, whose thinning holds here, too: a row per
  second, connection and partition, and at once where the error is another or the client reads again what it had read.
* Of ListOffsets, the ends (timestamp -1) that every reader sees, and the beginnings (-2) become rows, at most one per
  second, connection, partition and question. With the isolation level read_committed the answer is the last stable
  offset, which is not the end, and is left out.
* Fetches of followers are left out. A response that lacks its end shows the partitions before the cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kcoord_wire.capture.fetches import FetchWalk, read_fetch_request
from kcoord_wire.codec.registry import decode_request, decode_response
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.exchanges.memory import MAX_NAMES, BatchMemory
from kcoord_wire.forensics.model import Sighting, SightingKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LATEST, _EARLIEST = -1, -2
_SECOND_NS: Final = 1_000_000_000


def fetch_sightings(
    rows: pa.RecordBatch,
    requests: NDArray[Any],
    responses: NDArray[Any],
    versions: NDArray[Any],
    memory: BatchMemory,
) -> Iterator[Sighting]:
    """Yield the rows of Fetch requests and their responses, in the order of the requests.

    :param rows: rows of `Frame`
    :param requests: rows of the requests
    :param responses: rows of the responses; -1 where there is none
    :param versions: of the requests
    """
    bodies, times = rows.column("frame"), rows.column("time_ns")
    for request, response, version in zip(requests.tolist(), responses.tolist(), versions.tolist(), strict=True):
        asked = read_fetch_request(_view(bodies[request]))
        if asked is None:
            continue
        session = memory.of(request).fetching
        session.ask(asked)
        if response < 0:
            continue
        walk = FetchWalk(version)
        walk.feed(_view(bodies[response]))
        time_ns = times[response].as_py()
        for found in session.due(walk.partitions, time_ns):
            topic, partition = found.place
            yield Sighting(
                time_ns,
                memory.place(response)[0],
                memory.name(response),
                memory.client_id(response),
                SightingKind.FETCHED,
                topic=topic if isinstance(topic, str) else memory.topic_name(response, topic),
                topic_id=None if isinstance(topic, str) else topic.hex(),
                partition=partition,
                end_offset=found.end_offset,
                start_offset=found.start_offset,
                fetch_offset=session.offsets.get(found.place),
                api="Fetch",
                error_code=found.error_code,
            )


def _view(body: pa.Scalar) -> memoryview:
    return memoryview(body.as_buffer()).cast("B")  # Arrow's own format has signed bytes


def list_sightings(
    rows: pa.RecordBatch, requests: NDArray[Any], responses: NDArray[Any], memory: BatchMemory
) -> Iterator[Sighting]:
    """Yield the rows of ListOffsets requests and their responses. Parameters as in `fetch_sightings`."""
    bodies, times = rows.column("frame"), rows.column("time_ns")
    for request, response in zip(requests.tolist(), responses.tolist(), strict=True):
        if response < 0:
            continue
        try:
            header, asked = decode_request(bodies[request].as_py(), strict=False)
            key, version = header.request_api_key, header.request_api_version
            _, answered = decode_response(bodies[response].as_py(), key, version, strict=False)
        except DecodeError as error:
            memory.lose(request, f"ListOffsets does not decode: {error}")
            continue
        time_ns = times[response].as_py()
        listed = memory.of(request).listed
        for topic, partition, timestamp, found in _answers(asked, answered):
            place = (topic, partition, timestamp)
            last = listed.get(place)
            if (last is None and len(listed) >= MAX_NAMES) or (last is not None and time_ns - last < _SECOND_NS):
                continue
            listed[place] = time_ns
            offsets = getattr(found, "old_style_offsets", None)
            offset = offsets[0] if offsets else found.offset
            known = found.error_code == 0 and offset >= 0
            yield Sighting(
                time_ns,
                memory.place(response)[0],
                memory.name(response),
                memory.client_id(response),
                SightingKind.FETCHED,
                topic=topic,
                partition=partition,
                end_offset=offset if known and timestamp == _LATEST else -1,
                start_offset=offset if known and timestamp == _EARLIEST else None,
                api="ListOffsets",
                error_code=found.error_code,
            )


def _answers(asked: Any, answered: Any) -> Iterator[tuple[str, int, int, Any]]:
    """Yield topic, partition, timestamp and answer of each end and beginning that was asked for."""
    found = {(topic.name, each.partition_index): each for topic in answered.topics for each in topic.partitions}
    for topic in asked.topics:
        for each in topic.partitions:
            answer = found.get((topic.name, each.partition_index))
            is_end = each.timestamp == _LATEST and not asked.isolation_level
            if answer is not None and (is_end or each.timestamp == _EARLIEST):
                yield topic.name, each.partition_index, each.timestamp, answer
