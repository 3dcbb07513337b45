"""Rows of `Sighting`: where clients read and partitions end, errors outside groups, what happens to connections.

Laws:

* No record is read: the numbers of Fetch are found by `capture.fetches`, whose thinning holds here, too: a row per
  second, connection and partition, and at once where the error is another or the client reads again what it had read.
* Of ListOffsets, the ends (timestamp -1) that every reader sees, and the beginnings (-2) become rows, at most one per
  second, connection, partition and question. With the isolation level read_committed the answer is the last stable
  offset, which is not the end, and is left out.
* A Produce response has the offset of its batch's first record, so that the end is behind that, at least; as often.
* Fetches of followers are left out. A response that lacks its end shows the partitions before the cut.
* Of a response of ApiVersions, SaslHandshake and SaslAuthenticate only the error code is read, at its fixed place; a
  response with header tags is passed over. Topics come from the Metadata responses that are decoded anyway.
* UNSUPPORTED_VERSION of ApiVersions is how a client and an older broker agree (KIP-511): it is an error only of a
  connection on which nothing else was ever answered, and becomes a row when that has ended, or the source has.
* A response that states a throttle time is an error of the connection, THROTTLING_QUOTA_EXCEEDED, whatever else it
  says. Only APIs whose response begins with it are read; Produce states it behind its data.
* Bytes of TLS where a frame was expected are an error of the connection (`TLS`): one side expects encryption, the other
  none. So is a TLS handshake that fails.
* A connection has one row for each topic and error, ten of throttling a second, and `MAX_ERRORS` rows of refused
  ApiVersions at most.
* A row of `Frame` about a connection (opened, closed, broken off, refused, bytes missing) carries no frame, and nothing
  of it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kcoord_wire.capture.fetches import FetchWalk, read_fetch_request
from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.codec.registry import decode_request, decode_response, registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.exchanges.arrow import child, flatten, take_or_null
from kcoord_wire.forensics.exchanges.pairing import MAX_NAMES, BatchMemory, ConnectionMemory
from kcoord_wire.forensics.model import TLS, Sighting, SightingKind
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import TLS_FAILED

if TYPE_CHECKING:
    from numpy.typing import NDArray


LINK_EVENTS: Final = ("opened", "closed", "reset", "refused", "resent")
"""Values of `Frame.direction` that are about the connection itself; each is the `SightingKind` of the same name."""

ENDS: Final = ("closed", "reset", "refused")
"""Those after which nothing of the connection follows."""


def link_sighting(frame: dict[str, Any], client_id: str | None) -> Sighting:
    """Return the row for such a frame.

    :param frame: a row of `Frame`, by column; damage only where it has `since_ns`
    :param client_id: of the connection, where it is known
    """
    since_ns, direction = frame["since_ns"], frame["direction"]
    kind = SightingKind.HOLE if direction == "damage" else SightingKind(direction)
    place = (frame["time_ns"], frame["capture"] or frame["source"], frame["connection"])
    return Sighting(*place, client_id, kind, by=frame["by"], text=frame["error"], since_ns=since_ns)


def tls_sightings(frame: dict[str, Any], client_id: str | None) -> list[Sighting]:
    """Return the row for damage that looks like TLS, or is a handshake of it, if its connection is known.

    :param frame: a row of `Frame`, by column
    """
    if not frame["connection"]:
        return []
    place = (frame["time_ns"], frame["capture"] or frame["source"], frame["connection"])
    _, failed, alert = frame["error"].partition(TLS_FAILED)
    text = alert.removeprefix(": ") if failed else None
    return [Sighting(*place, client_id, SightingKind.ERROR, by=frame["by"], api=TLS, text=text)]


MAX_ERRORS: Final = 100
"""Refused ApiVersions that are kept of one connection."""

TOPIC_ERRORS: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION})
"""Errors of topics in Metadata that are no part of normal work."""

_PLAIN: Final = (ApiKey.API_VERSIONS << 16, ApiKey.SASL_HANDSHAKE << 16, ApiKey.SASL_AUTHENTICATE << 16)
_FLEXIBLE: Final = ApiKey.SASL_AUTHENTICATE << 16 | 2  # its response header has tags, and a byte for their number
_CORRELATION: Final = 4
_ERROR_CODE: Final = 2
_THROTTLE_TIME: Final = 4
_THROTTLE_APART_NS: Final = 100_000_000  # rows of one connection; a request quota may throttle each response


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


@cache
def _throttle_start(word: int) -> int:
    """Return where a response begins with throttle_time_ms; 0 where it does not.

    :param word: api key and version of the request, 16 bits each
    """
    try:
        codec = registry.response(word >> 16)
        is_first = codec.plan(word & 0xFFFF).steps[0].attr == "throttle_time_ms"
    except (KeyError, ValueError):
        return 0
    return _CORRELATION + codec.header_version(word & 0xFFFF) if is_first else 0


def throttle_times(words: NDArray[np.int64], heads: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for how many ms each response says that its client is throttled; 0 for those that do not say it first.

    :param words: api key and version of the requests, 16 bits each
    :param heads: the first bytes of the responses
    :param lengths: of the responses
    """
    known, of_row = np.unique(words, return_inverse=True)
    start = np.array([_throttle_start(word) for word in known.tolist()], np.int64)[of_row]
    rows = np.arange(len(words))[:, None]
    stated = heads[rows, np.maximum(start, _CORRELATION)[:, None] + np.arange(_THROTTLE_TIME)].copy().view(">i4")[:, 0]
    is_known = (start > 0) & (lengths >= start + _THROTTLE_TIME)
    is_known &= (start <= _CORRELATION) | (heads[:, _CORRELATION] == 0)  # a header with tags is passed over
    return np.where(is_known, stated, 0).astype(np.int64)


def note_throttle(memory: ConnectionMemory, place: Sighting, key: int, ms: int) -> list[Sighting]:
    """Return the row for a response that throttles its client, unless one shortly before says the same.

    :param place: time, source, connection and client of the response
    """
    last_ns = memory.throttled_ns
    if ms <= 0 or (last_ns is not None and place.time_ns - last_ns < _THROTTLE_APART_NS):
        return []
    memory.throttled_ns = place.time_ns
    return [
        Sighting(
            place.time_ns, place.source, place.connection, place.client_id, SightingKind.ERROR,
            api=API_NAMES[ApiKey(key)], error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_ms=ms,
        )
    ]  # fmt: skip


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


@cache
def _produce_decoder() -> ColumnDecoder:
    columns = ("name", "topic_id", *(f"partition_responses.{name}" for name in ("index", "error_code", "base_offset")))
    return ColumnDecoder(
        ["ProduceResponse"], form="response", columns=[f"ProduceResponse.responses.{name}" for name in columns],
        strict=False,
    )  # fmt: skip


def produce_sightings(
    rows: pa.RecordBatch, responses: NDArray[Any], versions: NDArray[Any], memory: BatchMemory
) -> Iterator[Sighting]:
    """Yield the ends that Produce responses show: behind the first record of a batch, at least.

    :param rows: rows of `Frame`
    :param responses: rows of the responses; those that do not decode are passed over, since no group is in them
    :param versions: of the requests
    """
    if not len(responses):
        return
    bodies = take_or_null(rows.column("frame"), responses)
    found = _produce_decoder().decode(bodies, keys=ApiKey.PRODUCE, versions=pa.array(versions.astype(np.int16)))
    topics = flatten(child(found.column("ProduceResponse"), "responses"))
    parts = flatten(child(topics.values, "partition_responses"))
    of_response, of_topic = topics.row[parts.row].tolist(), parts.row.tolist()
    names, ids = (child(topics.values, name).to_pylist() for name in ("name", "topic_id"))
    numbers, errors, offsets = (
        child(parts.values, name).to_pylist() for name in ("index", "error_code", "base_offset")
    )
    times = rows.column("time_ns")
    for index, topic, number, error, offset in zip(of_response, of_topic, numbers, errors, offsets, strict=True):
        response = int(responses[index])
        name = names[topic] or memory.topic_name(response, ids[topic] or b"")
        time_ns, place, listed = times[response].as_py(), (name, number, _PRODUCED), memory.of(response).listed
        last = listed.get(place)
        is_due = len(listed) < MAX_NAMES if last is None else time_ns - last >= _SECOND_NS
        if error or offset < 0 or not is_due:
            continue
        listed[place] = time_ns
        yield Sighting(
            time_ns, memory.place(response)[0], memory.name(response), memory.client_id(response),
            SightingKind.FETCHED, topic=name, topic_id=None if names[topic] else (ids[topic] or b"").hex(),
            partition=number, end_offset=offset + 1, api="Produce", error_code=0,
        )  # fmt: skip


_LATEST, _EARLIEST = -1, -2
_PRODUCED: Final = 0  # in place of a timestamp that ListOffsets asks for
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
                size=asked.sizes.get(found.place, found.size),
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
