"""Rows of `Sighting`: where clients read and partitions end, errors outside groups, what happens to connections.

Laws:

* No record is read: the numbers of Fetch are found by `capture.fetches`, whose thinning holds here, too: a row per
  second, connection and partition, and at once where the error is another or the client reads again what it had read.
* Of ListOffsets, the ends (timestamp -1) that every reader sees, and the beginnings (-2) become rows, at most one per
  second, connection, partition and question. With the isolation level read_committed the answer is the last stable
  offset, which is not the end, and is left out.
* Fetches of followers are left out. A response that lacks its end shows the partitions before the cut.
* Of a response of ApiVersions, SaslHandshake and SaslAuthenticate only the error code is read, at its fixed place; a
  response with header tags is passed over. Topics come from the Metadata responses that are decoded anyway.
* UNSUPPORTED_VERSION of ApiVersions is how a client and an older broker agree (KIP-511): it is an error only of a
  connection on which nothing else was ever answered, and becomes a row when that has ended, or the source has.
* A connection has one row for each topic and error, and `MAX_ERRORS` rows of refused ApiVersions at most.
* A row of `Frame` about a connection (opened, closed, broken off, refused, bytes missing) carries no frame, and nothing
  of it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kcoord_wire.capture.fetches import FetchWalk, read_fetch_request
from kcoord_wire.codec.registry import decode_request, decode_response
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.exchanges.pairing import MAX_NAMES, BatchMemory, ConnectionMemory
from kcoord_wire.forensics.model import Sighting, SightingKind
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from numpy.typing import NDArray


LINK_EVENTS: Final = ("opened", "closed", "reset", "refused")
"""Values of `Frame.direction` that are about the connection itself; each is the `SightingKind` of the same name."""

ENDS: Final = ("closed", "reset", "refused")
"""Those after which nothing of the connection follows."""


def link_sighting(frame: dict[str, Any], client_id: str | None) -> Sighting:
    """Return the row for such a frame.

    :param frame: a row of `Frame`, by column; damage only where it has `since_ns`
    :param client_id: of the connection, where it is known
    """
    since_ns = frame["since_ns"]
    kind = SightingKind(frame["direction"]) if since_ns is None else SightingKind.HOLE
    place = (frame["time_ns"], frame["capture"] or frame["source"], frame["connection"])
    return Sighting(*place, client_id, kind, by=frame["by"], text=frame["error"], since_ns=since_ns)


MAX_ERRORS: Final = 100
"""Refused ApiVersions that are kept of one connection."""

TOPIC_ERRORS: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION})
"""Errors of topics in Metadata that are no part of normal work."""

_PLAIN: Final = (ApiKey.API_VERSIONS << 16, ApiKey.SASL_HANDSHAKE << 16, ApiKey.SASL_AUTHENTICATE << 16)
_FLEXIBLE: Final = ApiKey.SASL_AUTHENTICATE << 16 | 2  # its response header has tags, and a byte for their number
_CORRELATION: Final = 4
_ERROR_CODE: Final = 2


def error_codes(words: NDArray[np.int64], heads: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the error code of each response; 0 where the API has none at a fixed place, or the frame is too short.

    :param words: api key and version of the requests, 16 bits each
    :param heads: the first bytes of the responses
    :param lengths: of the responses
    """
    keys = words >> 16 << 16
    start = np.where(words >= _FLEXIBLE, _CORRELATION + 1, _CORRELATION)
    start[keys != ApiKey.SASL_AUTHENTICATE << 16] = _CORRELATION
    rows = np.arange(len(words))
    codes = heads[rows, start].astype(np.int64) << 8 | heads[rows, start + 1]
    known = np.isin(keys, _PLAIN) & (lengths >= start + _ERROR_CODE)
    known &= (start == _CORRELATION) | (heads[:, _CORRELATION] == 0)
    return np.where(known, codes.astype(np.uint16).view(np.uint16).astype(np.int16), 0).astype(np.int64)


def keep_error(memory: ConnectionMemory, place: Sighting, key: int, code: int) -> list[Sighting]:
    """Return the row for an error of ApiVersions or SASL, unless it has to wait for the end of the connection.

    :param place: time, source, connection and client of the response
    """
    row = Sighting(
        place.time_ns, place.source, place.connection, place.client_id, SightingKind.ERROR,
        api=API_NAMES[ApiKey(key)], error_code=code,
    )  # fmt: skip
    if key != ApiKey.API_VERSIONS or code != ErrorCode.UNSUPPORTED_VERSION:
        return [row]
    if not memory.is_answered and len(memory.unsupported) < MAX_ERRORS:
        memory.unsupported.append(row)
    return []


def leftover_errors(memory: ConnectionMemory) -> list[Sighting]:
    """Return the refused ApiVersions of a connection that has ended, if nothing else was answered on it."""
    return [] if memory.is_answered else memory.unsupported


def note_topic_error(memory: ConnectionMemory, place: Sighting, topic: str, code: int) -> list[Sighting]:
    """Return the row for the error of a topic in Metadata where the connection sees it first."""
    if (topic, code) in memory.topic_errors or len(memory.topic_errors) >= MAX_NAMES:
        return []
    memory.topic_errors.add((topic, code))
    return [
        Sighting(
            place.time_ns, place.source, place.connection, place.client_id, SightingKind.ERROR, topic=topic,
            api="Metadata", error_code=code,
        )
    ]  # fmt: skip


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
