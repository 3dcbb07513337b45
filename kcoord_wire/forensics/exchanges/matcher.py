"""Frames in, exchanges out: every request about a group with its response; topics and connections as sightings.

    matcher = Matcher()
    for frames in read_frames("cooperative.pcap"):
        exchanges, topics = matcher.feed(frames)
    exchanges, topics = matcher.finish()

Laws:

* The rows are the same however the frames are cut into batches and however connections are mixed, as long as the frames
  of each connection are in order.
* The content of a frame raises nothing. What cannot be read is in `Matcher.losses`, with its place; a request without
  response is an exchange all the same, a response without request is a loss.
* Connections of the 0.8 draft and JoinGroup of the consumer rewrite are read by `central`, which names their groups;
  all other frames are Kafka's.
* Only frames of `APIS` are decoded, of ApiVersions the client's software (KIP-511), and of Fetch and ListOffsets the
  offsets; of the responses of ApiVersions and SASL the error code is read, of those of Produce the offsets, and of all
  the throttle time. Of the others the first eight bytes are read, to pair their responses.
* State is bounded for each connection: its pending requests (pairing.MAX_PENDING, MAX_PENDING_BYTES), and the topics
  and groups it has named (pairing.MAX_NAMES). A closed connection leaves nothing behind. All pending requests together
  are bounded as well (`MAX_HELD`); where that gives requests up, the cut into batches does make a difference.
* A topic has the name that the same connection received for its id before (KIP-516); else ``id:`` and the id in hex,
  which `name_topics` resolves when everything is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.capture.central import is_rewrite_join
from kcoord_wire.capture.conversation import has_header
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
from kcoord_wire.codec.registry import decode_request
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.exchanges.arrow import (
    absent,
    as_type,
    child,
    filled,
    flatten,
    joined,
    lists,
    only_batch,
    records,
    take_or_null,
)
from kcoord_wire.forensics.exchanges.central import CentralFrames, rewrite_joins
from kcoord_wire.forensics.exchanges.decode import APIS, Decoded, decode_pairs
from kcoord_wire.forensics.exchanges.pairing import (
    CLOSED,
    DAMAGE,
    MAX_NAMES,
    OPENED,
    REQUEST,
    RESENT,
    RESPONSE,
    BatchMemory,
    ConnectionMemory,
    Losses,
    connection_codes,
    pair,
)
from kcoord_wire.forensics.exchanges.rows import exchange_rows
from kcoord_wire.forensics.exchanges.sightings import (
    ENDS,
    TOPIC_ERRORS,
    error_codes,
    fetch_sightings,
    keep_error,
    leftover_errors,
    link_sighting,
    list_sightings,
    note_throttle,
    note_topic_error,
    produce_sightings,
    throttle_times,
    tls_sightings,
)
from kcoord_wire.forensics.model import (
    Exchange,
    Frame,
    Loss,
    Sighting,
    SightingKind,
    arrow_schema,
    client_host,
    table_of,
)
from kcoord_wire.forensics.state import pack_rows, unpack_rows
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import LIKE_TLS, TLS_FAILED

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_HELD: Final = 512 * 1024 * 1024
"""Bytes of pending requests on all connections; the oldest are given up."""

_MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
_KINDS: Final = {
    "request": REQUEST,
    "response": RESPONSE,
    "opened": OPENED,
    "resent": RESENT,
    **dict.fromkeys(ENDS, CLOSED),
}
_READ: Final = (*APIS, ApiKey.FETCH, ApiKey.LIST_OFFSETS)
_COUNTED: Final = ("requests", "responses", "opened", "closed", "damage")  # in the order of the kinds
_CORRELATION: Final = 4  # a response begins with its correlation id
_PEEKED: Final = 8  # api key, version, correlation id
_CLIENT_ID: Final = 10  # the two bytes of its length end here
_SASL_HANDSHAKE_0: Final = ApiKey.SASL_HANDSHAKE << 16  # api key and version, 16 bits each
_SOFTWARE_STATED: Final = ApiKey.API_VERSIONS << 16 | 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.-]{0,99} [a-zA-Z0-9][a-zA-Z0-9.-]{0,99}")
_NO_ID: Final = bytes(16)
_OF_LINKS: Final = ["time_ns", "source", "connection", "direction", "error", "by", "since_ns", "capture"]
_NOT_NULL: Final = -5  # all columns of `Frame` but the last five: error, lost, by, since_ns, capture


class Matcher:
    """Takes in frames, batch by batch, and returns their exchanges.

    :ivar counts: ``frames``, ``bytes``, ``requests``, ``responses``, ``opened``, ``closed``, ``damage``; ``exchanges``,
        ``unanswered``, ``stray`` (responses without request), ``sasl_tokens``; ``passed_over``: requests of other APIs
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._pending: pa.RecordBatch = joined([], arrow_schema(Frame))
        self._connections: dict[tuple[str, str], ConnectionMemory] = {}
        self._losses = Losses()
        self._central = CentralFrames(self._losses, self.counts)

    @property
    def losses(self) -> list[Loss]:
        return self._losses.rows()

    @classmethod
    def restored(cls, state: tuple[Any, ...]) -> Matcher:
        """Return a matcher that goes on from a `state`; its counts and losses are of what follows."""
        matcher = cls()
        pending, connections, central = state
        matcher._pending = unpack_rows(Frame, pending)
        matcher._connections = {key: ConnectionMemory.restored(memory) for key, memory in connections.items()}
        matcher._central.restore(central)
        return matcher

    @property
    def state(self) -> tuple[Any, ...]:
        """The pending requests and what is known of the connections, in built-in types."""
        connections = {key: memory.state for key, memory in self._connections.items()}
        return pack_rows(Frame, self._pending), connections, self._central.state

    def forget(self, keys: Collection[tuple[str, str]]) -> None:
        """Forget connections of which nothing more is expected, as if they had never been.

        :param keys: source and name of each, as `pairing.connection_codes` has them
        """
        for key in keys:
            self._connections.pop(key, None)
            self._central.forget(key)
        codes, known = connection_codes(self._pending)
        is_left = np.array([key not in keys for key in known], np.bool_)
        self._pending = self._pending.filter(pa.array(is_left[codes]))

    def feed(self, frames: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Take in the next frames, and return the rows of `Exchange` and of `Sighting` that they complete.

        A call costs some milliseconds whatever is in it: batches of thousands of frames are best.

        :param frames: rows of `Frame`; views and large types are accepted as well
        :return: rows by API; those of an API in the order of the requests
        """
        parts = _parts(_as_frames(frames))
        if len(parts) == 1:
            return self._feed(parts[0])
        made = [self._feed(part) for part in parts]
        exchanges, topics = ([rows[side] for rows in made] for side in (0, 1))
        return joined(exchanges, arrow_schema(Exchange)), joined(topics, arrow_schema(Sighting))

    def _feed(self, frames: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        frames, exchanges, sightings = self._central.set_aside(frames)
        rows, topics = self._feed_kafka(frames)
        return joined([rows, exchanges], arrow_schema(Exchange)), joined([topics, sightings], arrow_schema(Sighting))

    def _feed_kafka(self, frames: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        carried = len(self._pending)
        batch = self._batch(joined([self._pending, frames], arrow_schema(Frame)), carried)
        batch.note_clients()
        batch.note_software()
        batch.note_damage()
        found = pair(
            batch.codes, batch.kinds, batch.correlation, batch.costs, len(batch.connections), batch.sasl, batch.is_token
        )
        for row in found.stray.tolist():
            batch.memory.lose(row, "its request was not seen")
        kinds = np.bincount(batch.kinds[carried:], minlength=RESENT).tolist()[:RESENT]
        self.counts.update(dict(zip(_COUNTED, kinds, strict=True)))
        self.counts.update(frames=len(frames), bytes=int(batch.lengths[carried:].sum()))
        self.counts.update(stray=len(found.stray), sasl_tokens=len(found.tokens))
        held = np.cumsum(batch.costs[found.pending][::-1])[::-1]
        given_up, pending = found.pending[held > MAX_HELD], found.pending[held <= MAX_HELD]
        none = np.full(len(given_up), -1)
        rows = batch.exchanges(np.concatenate([found.requests, given_up]), np.concatenate([found.responses, none]))
        self._pending = batch.kept(pending)
        for key in batch.left_out:
            del self._connections[key]
        for row in batch.note_links():
            if batch.kinds[row] == CLOSED:
                ended = self._connections.pop(batch.keys[batch.codes[row]], None)
                batch.sightings += leftover_errors(ended) if ended is not None else []
                self._central.forget(batch.keys[batch.codes[row]])
        return rows, only_batch(table_of(Sighting, batch.sightings))

    def finish(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the requests that are still pending, as unanswered; nothing may be fed afterwards."""
        batch = self._batch(self._pending, len(self._pending))
        every = np.arange(len(self._pending))
        rows = batch.exchanges(every, np.full(len(every), -1))
        self._pending = joined([], arrow_schema(Frame))
        left = [row for connection in self._connections.values() for row in leftover_errors(connection)]
        return rows, only_batch(table_of(Sighting, left))

    def _batch(self, rows: pa.RecordBatch, carried: int) -> _Batch:
        codes, keys = connection_codes(rows)
        for key in keys:
            if key not in self._connections:
                self._connections[key] = ConnectionMemory(client_host(key[1]))
        return _Batch(rows, carried, codes, keys, [self._connections[key] for key in keys], self._losses, self.counts)


class _Batch:
    """The pending frames and those that have come, with what is read of all of them at once.

    :ivar rows: the frames, as rows of `Frame`
    :ivar carried: how many of the rows are pending from earlier batches
    :ivar codes: per row, the index of its connection
    :ivar keys: source and name of each connection; the files of a recording or rotated capture are one source
    :ivar connections: what is remembered of each connection
    :ivar memory: the same, by row
    :ivar sightings: rows of `Sighting` so far
    :ivar left_out: keys of connections that have no frame, and of which nothing follows
    :ivar kinds: per row REQUEST, RESPONSE, OPENED, CLOSED, DAMAGE or RESENT
    :ivar holes: per row, whether bytes are missing that may have been frames about a group, or were sent again
    :ivar lengths: per row, bytes of the frame
    :ivar words: api key and version of the requests, 16 bits each
    :ivar correlation: correlation ids of requests and responses
    :ivar interesting: requests that are decoded
    :ivar costs: bytes that a row costs while it is pending
    :ivar sasl: per connection, whether bare SASL tokens may follow
    """

    def __init__(
        self,
        rows: pa.RecordBatch,
        carried: int,
        codes: NDArray[np.int64],
        keys: list[tuple[str, str]],
        connections: list[ConnectionMemory],
        losses: Losses,
        counts: Counter[str],
    ) -> None:
        self.rows, self.carried, self.codes, self.keys, self.connections = rows, carried, codes, keys, connections
        self.sightings: list[Sighting] = []
        self.left_out: list[tuple[str, str]] = []
        self._counts = counts
        directions = rows.column("direction").dictionary_encode()
        names = [_KINDS.get(name, DAMAGE) for name in directions.dictionary.to_pylist()]
        self.kinds = np.array(names, np.int8)[_numbers(directions.indices)]
        self.holes = ~absent(rows.column("since_ns"))
        self._heads, self.lengths = _heads(rows.column("frame"), _CLIENT_ID)
        words = self._heads[:, :_PEEKED].copy().view(">i4").astype(np.int64)
        self.words = words[:, 0]
        self.correlation = np.where(self.kinds == REQUEST, words[:, 1], words[:, 0])
        self._short = (self.kinds == REQUEST) & (self.lengths < _PEEKED)
        self._short |= (self.kinds == RESPONSE) & (self.lengths < _CORRELATION)
        self.kinds[self._short] = DAMAGE
        self.interesting = np.isin(self.words >> 16, _READ) & (self.kinds == REQUEST)
        self.costs = np.where(self.interesting, self.lengths, _PEEKED)
        self.sasl = np.array([connection.sasl for connection in connections], np.bool_)
        self.sasl[codes[(self.kinds == REQUEST) & (self.words == _SASL_HANDSHAKE_0)]] = True
        self.memory = BatchMemory(rows, codes, connections, self.lengths, losses)

    def note_damage(self) -> None:
        """Report the damaged ones among the new frames."""
        errors = self.rows.column("error")
        damaged = np.flatnonzero((~absent(errors) & (self.kinds != CLOSED) & (self.kinds != RESENT)) | self._short)
        if not len(damaged):
            return
        lost = _numbers(self.rows.column("lost"))
        for row in damaged[damaged >= self.carried].tolist():
            what = errors[row].as_py()
            if what is not None and LIKE_TLS in what:
                self.left_out += [self.keys[self.codes[row]]] if TLS_FAILED in what else []
                row_of = self.rows.select(_OF_LINKS).slice(row, 1).to_pylist()[0]
                self.sightings += tls_sightings(row_of, self.memory.client_id(row))
            self.memory.lose(row, what or "too short for a header", None if what is None else int(lost[row]))

    def note_clients(self) -> None:
        """Read the client ids of connections that have none yet, each from its first new request."""
        nameless = np.array([connection.client_id is None for connection in self.connections], np.bool_)
        if not nameless.any():
            return
        sizes = self._heads[:, _PEEKED:].copy().view(">i2").astype(np.int64)[:, 0]
        named = (self.kinds == REQUEST) & nameless[self.codes] & (sizes >= 0) & (self.lengths >= _CLIENT_ID + sizes)
        named &= (self.words >= 0) & (self.words >> 16 < len(API_NAMES))
        named[: self.carried] = False
        rows = np.flatnonzero(named)
        codes, first = np.unique(self.codes[rows], return_index=True)
        bodies = self.rows.column("frame")
        for code, row in zip(codes.tolist(), rows[first].tolist(), strict=True):
            name = bodies[row].as_buffer().slice(_CLIENT_ID)[: int(sizes[row])].to_pybytes()
            self.connections[code].client_id = self.memory.place(row), name.decode(errors="replace")

    def note_software(self) -> None:
        """Read the software of connections that have stated none yet, each from its first new ApiVersions request."""
        stated = (self.kinds == REQUEST) & (self.words >= _SOFTWARE_STATED) & (self.words >> 16 == ApiKey.API_VERSIONS)
        stated[: self.carried] = False
        for row in np.flatnonzero(stated).tolist():
            connection = self.memory.of(row)
            if connection.software is None and (found := _software(self.rows.column("frame")[row].as_py())) is not None:
                connection.software = self.memory.place(row), found

    def is_token(self, row: int, answers: bool) -> bool:
        """Whether a frame is a bare SASL token, as follow a SaslHandshake of version 0 until a request comes."""
        if row < self.carried:
            return False
        connection = self.memory.of(row)
        if answers:
            return connection.sasl
        if connection.sasl and not has_header(self.rows.column("frame")[row].as_py(), DEFAULT_MAX_FRAME_SIZE):
            return True
        connection.sasl = bool(self.words[row] == _SASL_HANDSHAKE_0)
        return False

    def exchanges(self, requests: NDArray[np.int64], responses: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the rows of all APIs, and note the topics that Metadata shows, and errors outside groups."""
        self._note_errors(requests, responses)
        self._note_produced(requests, responses)
        wanted = self.interesting[requests]
        self._counts["passed_over"] += int(len(requests) - wanted.sum())
        requests, responses = requests[wanted], responses[wanted]
        order = np.argsort(requests, kind="stable")
        requests, responses = requests[order], responses[order]
        keys = self.words[requests] >> 16
        made = []
        hosts = pa.array([connection.host for connection in self.connections], pa.string())
        for key in APIS:
            of_key = np.flatnonzero(keys == key)
            if not len(of_key):
                continue
            asked, answered = requests[of_key], responses[of_key]
            if key == ApiKey.JOIN_GROUP and (of_rewrite := self._of_rewrite(asked)).any():
                made.append(rewrite_joins(self.rows, asked[of_rewrite]))
                self._counts["exchanges"] += int(of_rewrite.sum())
                asked, answered = asked[~of_rewrite], answered[~of_rewrite]
            versions = (self.words[asked] & 0xFFFF).astype(np.uint16).view(np.int16)
            pairs = decode_pairs(
                key, self.rows, asked, answered, versions, take_or_null(hosts, self.codes[asked]), self.memory
            )
            if key == ApiKey.METADATA:
                self._note_topics(pairs)
            elif len(pairs):
                made.append(exchange_rows(pairs, self.memory))
                self._counts["unanswered"] += int((pairs.responses < 0).sum())
                self._counts["exchanges"] += len(pairs)
        self._note_fetched(keys, requests, responses)
        return joined(made, arrow_schema(Exchange))

    def _note_produced(self, requests: NDArray[np.int64], responses: NDArray[np.int64]) -> None:
        of_produce = (self.words[requests] >> 16 == ApiKey.PRODUCE) & (responses >= 0)
        asked, answered = requests[of_produce], responses[of_produce]
        order = np.argsort(answered, kind="stable")
        versions = self.words[asked[order]] & 0xFFFF
        self.sightings += produce_sightings(self.rows, answered[order], versions, self.memory)

    def _note_fetched(self, keys: NDArray[np.int64], requests: NDArray[np.int64], responses: NDArray[np.int64]) -> None:
        of_fetch, of_list = keys == ApiKey.FETCH, keys == ApiKey.LIST_OFFSETS
        asked = requests[of_fetch]
        versions = self.words[asked] & 0xFFFF
        self.sightings += fetch_sightings(self.rows, asked, responses[of_fetch], versions, self.memory)
        self.sightings += list_sightings(self.rows, requests[of_list], responses[of_list], self.memory)

    def _of_rewrite(self, requests: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which JoinGroup requests are those of the consumer rewrite, which has the same api key and version."""
        found = np.zeros(len(requests), np.bool_)
        bodies = self.rows.column("frame")
        for index in np.flatnonzero((self.words[requests] & 0xFFFF) == 0).tolist():
            found[index] = is_rewrite_join(bodies[int(requests[index])].as_py())
        return found

    def kept(self, pending: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the pending requests; those that will not be decoded with what pairing needs, no more."""
        rows = self.rows.take(pa.array(pending))
        whole = self.interesting[pending] & absent(rows.column("error"))
        if whole.all():
            return rows
        index = rows.schema.get_field_index("frame")
        bodies = rows.column("frame")
        stripped = pc.if_else(pa.array(whole), bodies, pc.binary_slice(bodies, 0, _PEEKED))
        return rows.set_column(index, rows.schema.field(index), stripped)

    def note_links(self) -> Iterator[int]:
        """Note where a connection was opened, refused or ended, or bytes of it are missing; yield each such row."""
        wanted = np.flatnonzero((self.kinds == OPENED) | (self.kinds == CLOSED) | self.holes)
        for row, frame in zip(
            wanted.tolist(), self.rows.select(_OF_LINKS).take(pa.array(wanted)).to_pylist(), strict=True
        ):
            self.sightings.append(link_sighting(frame, self.memory.client_id(row)))
            yield row

    def _place(self, row: int) -> Sighting:
        """Time, source, connection and client of a response."""
        source, connection = self.memory.place(row)[0], self.keys[self.codes[row]][1]
        time_ns = self.rows.column("time_ns")[row].as_py()
        return Sighting(time_ns, source, connection, self.memory.client_id(row), SightingKind.TOPIC)

    def _note_errors(self, requests: NDArray[np.int64], responses: NDArray[np.int64]) -> None:
        """Note errors of ApiVersions and SASL, and which connections have had an answer."""
        asked, answered = requests[responses >= 0], responses[responses >= 0]
        words = self.words[asked]
        codes = error_codes(words, self._heads[answered], self.lengths[answered])
        is_refused = (words >> 16 == ApiKey.API_VERSIONS) & (codes == ErrorCode.UNSUPPORTED_VERSION)
        for code in np.unique(self.codes[answered[~is_refused]]).tolist():
            self.connections[code].is_answered = True
        for index in np.flatnonzero(codes).tolist():
            row = int(answered[index])
            memory = self.memory.of(row)
            self.sightings += keep_error(memory, self._place(row), int(words[index]) >> 16, int(codes[index]))
        throttled = throttle_times(words, self._heads[answered], self.lengths[answered])
        for index in np.flatnonzero(throttled > 0).tolist():
            row = int(answered[index])
            key, ms = int(words[index]) >> 16, int(throttled[index])
            self.sightings += note_throttle(self.memory.of(row), self._place(row), key, ms)

    def _note_cluster(self, pairs: Decoded) -> None:
        """Note the cluster id of each connection, where a Metadata response states it first."""
        ids = child(pairs.answered, "cluster_id").to_pylist()
        for row, cluster_id in zip(pairs.responses.tolist(), ids, strict=True):
            connection = self.connections[self.codes[row]]
            if cluster_id and cluster_id != connection.cluster_id:
                connection.cluster_id = cluster_id
                self.sightings.append(replace(self._place(row), kind=SightingKind.CLUSTER, text=cluster_id))

    def _note_topics(self, pairs: Decoded) -> None:
        self._note_cluster(pairs)
        topics = flatten(child(pairs.answered, "topics"))
        rows = pairs.responses[topics.row].tolist()
        sizes = pc.list_value_length(child(topics.values, "partitions")).to_pylist()
        columns = [child(topics.values, name).to_pylist() for name in ("error_code", "name", "topic_id")]
        last, place, first = -1, ("", 0), Sighting(0, "", "", None, "")
        for row, size, error, name, id_ in zip(rows, sizes, *columns, strict=True):
            if not name:
                continue
            if error in TOPIC_ERRORS:
                self.sightings += note_topic_error(self.memory.of(row), self._place(row), name, error)
            if error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                continue
            if row != last:  # one response may name a million topics: what they share is looked up once
                last, place, first = row, self.memory.place(row), self._place(row)
            connection = self.connections[self.codes[row]]
            seen = (0 if error else size, id_ if id_ != _NO_ID else None)
            if connection.topics.get(name) == seen:
                continue
            if len(connection.topics) < MAX_NAMES:
                connection.topics[name] = seen
                if seen[1] is not None:
                    connection.topic_ids.setdefault(seen[1], (place, name))
            hex_id = seen[1].hex() if seen[1] else None
            self.sightings.append(replace(first, topic=name, topic_id=hex_id, partitions=seen[0]))


def name_topics(exchanges: pa.Table, topics: pa.Table) -> pa.Table:
    """Replace topic ids (``id:``) in exchanges by names, where any connection has received the name.

    :param exchanges: rows of `Exchange`
    :param topics: rows of `Sighting`
    """

    @cache
    def by_id() -> dict[str, str]:
        named = topics.filter(pc.equal(topics.column("kind"), SightingKind.TOPIC.value))
        named = named.filter(pc.is_valid(named.column("topic_id")))
        ids, names = named.column("topic_id").to_pylist(), named.column("topic").to_pylist()
        return {f"id:{id_}": name for id_, name in zip(ids, names, strict=True)}

    for name in ("assignment", "offsets", "owned", "redelivered"):
        index = exchanges.schema.get_field_index(name)
        chunks = [_named(chunk, by_id) for chunk in exchanges.column(index).chunks]
        exchanges = exchanges.set_column(
            index, exchanges.schema.field(index), pa.chunked_array(chunks, exchanges.schema.field(index).type)
        )
    return exchanges


def _named(column: pa.Array, by_id: Callable[[], dict[str, str]]) -> pa.Array:
    flat = flatten(column)
    topics = child(flat.values, "topic")
    if not pc.any(pc.starts_with(topics, "id:")).as_py():
        return column
    kind = flat.values.type
    parts = {kind.field(index).name: child(flat.values, kind.field(index).name) for index in range(kind.num_fields)}
    parts["topic"] = pa.array([by_id().get(topic, topic) for topic in topics.to_pylist()], pa.string())
    return as_type(lists(records(parts), flat.row, flat.rows, absent(column)), column.type)


def _software(frame: bytes) -> str | None:
    """Return what an ApiVersions request states, ``librdkafka 2.6.0``; None where brokers would refuse that."""
    try:
        request = decode_request(frame, strict=False)[1]
    except DecodeError:
        return None
    stated = f"{request.client_software_name} {request.client_software_version}"
    return stated if _SOFTWARE.fullmatch(stated) else None


def _as_frames(frames: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows in the types of `Frame`, with empty values where a column may not be null."""
    schema = arrow_schema(Frame)
    if frames.schema == schema and not any(column.null_count for column in frames.columns[:_NOT_NULL]):
        return frames
    columns = []
    for item in schema:
        known = frames.schema.get_field_index(item.name) >= 0
        column = frames.column(item.name).cast(item.type) if known else pa.nulls(len(frames), item.type)
        columns.append(column if item.nullable else filled(column))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _parts(frames: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return pieces of at most `_MAX_BATCH_BYTES`, or of one row: decoded columns must not outgrow their offsets."""
    if len(frames) <= 1 or pc.sum(pc.binary_length(frames.column("frame"))).as_py() <= _MAX_BATCH_BYTES:
        return [frames]
    half = len(frames) // 2
    return _parts(frames.slice(0, half)) + _parts(frames.slice(half))


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    found: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return found


def _heads(column: pa.Array, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the first `size` bytes of each row, zeros where it has fewer, and how many it has."""
    _, places, data = column.buffers()
    offsets = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    if not data:
        return np.zeros((len(column), size), np.uint8), lengths
    bytes_ = np.frombuffer(data, np.uint8)
    steps = np.arange(size)
    heads = bytes_[np.minimum(offsets[:-1, None] + steps, len(bytes_) - 1)]
    heads[steps >= lengths[:, None]] = 0
    return heads, lengths
