"""Frames in, exchanges out: every request about a group with its response, and every topic that a client was told of.

    matcher = Matcher()
    for frames in read_frames("cooperative.pcap"):
        exchanges, topics = matcher.feed(frames)
    exchanges, topics = matcher.finish()

Laws:

* The rows are the same however the frames are cut into batches and however connections are mixed, as long as the frames
  of each connection are in order.
* Nothing raises for what a frame holds. What cannot be read is in `Matcher.losses`, with its place; a request without
  response is an exchange all the same, a response without request is a loss.
* Only frames of `APIS` are decoded. Of the others the first eight bytes are read, to know what their responses answer.
* State is bounded for each connection: what waits (matching.MAX_WAITING, MAX_WAITING_BYTES), and the topics and groups
  it has named (`MAX_NAMES`). A closed connection leaves nothing behind. All that waits is bounded as well (`MAX_HELD`);
  where that gives requests up, the batches do make a difference.
* A topic is called by the name that the same connection was told for its id before (KIP-516); else ``id:`` and the id
  in hex, which `name_topics` resolves when all is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.api_keys import API_NAMES
from kcoord_wire.capture.plausible import has_header
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
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
    take,
)
from kcoord_wire.forensics.exchanges.decode import APIS, METADATA, Decoded, decode_pairs
from kcoord_wire.forensics.exchanges.pairing import CLOSED, DAMAGE, OPENED, REQUEST, RESPONSE, match
from kcoord_wire.forensics.exchanges.rows import exchange_rows
from kcoord_wire.forensics.model import Exchange, Frame, Loss, TopicSighting, arrow_schema, table_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_HELD", "MAX_LOSSES", "MAX_NAMES", "RECORDING_FILE", "Matcher", "client_host", "name_topics"]

MAX_NAMES: Final = 10_000
"""Topics, and groups, that are remembered of a connection; those after them are told of each time they are seen."""

MAX_LOSSES: Final = 100_000
"""Losses that are kept apart; the others are added to the first of their source and kind."""

MAX_HELD: Final = 512 * 1024 * 1024
"""Bytes of requests that wait on all connections; the oldest are given up."""

RECORDING_FILE: Final = r"frames-\d{6,}\.kcrec$"
"""What the name of a source ends in that is one of the files of a recording, whose connections go on in the next."""

_MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
_KINDS: Final = {"request": REQUEST, "response": RESPONSE, "opened": OPENED, "closed": CLOSED}
_PEEKED: Final = 8  # api key, version, correlation id
_CLIENT_ID: Final = 10  # the two bytes of its length end here
_SASL_HANDSHAKE_0: Final = 17 << 16
_UNKNOWN_TOPIC: Final = 3
_NO_ID: Final = bytes(16)


_Place = tuple[str, int]
"""Source and seq, from where on something is known."""


@dataclass(slots=True)
class _Connection:
    """What is remembered of a connection, besides the requests that wait on it."""

    host: str
    client_id: tuple[_Place, str] | None = None
    sasl: bool = False
    topics: dict[str, tuple[int, bytes | None]] = field(default_factory=dict)
    topic_ids: dict[bytes, tuple[_Place, str]] = field(default_factory=dict)
    groups: dict[str, tuple[_Place, str]] = field(default_factory=dict)


def client_host(connection: str) -> str:
    """The address of the client in the name of a connection, as of `Frame.connection`."""
    return connection.partition("-")[0].rpartition(":")[0].strip("[]")


class Matcher:
    """Takes in frames, batch by batch.

    :ivar counts: ``frames``, ``bytes``, ``requests``, ``responses``, ``opened``, ``closed``, ``damage``; ``exchanges``,
        ``unanswered``, ``stray`` (responses without request), ``sasl_tokens``; ``passed_over``: requests of other apis
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._waiting: pa.RecordBatch = joined([], arrow_schema(Frame))
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._losses: dict[tuple[str, int, str], Loss] = {}

    @property
    def losses(self) -> list[Loss]:
        """What could not be read so far."""
        return list(self._losses.values())

    def feed(self, frames: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Take in the next frames; give the rows of `Exchange` and of `TopicSighting` that they complete.

        Calls cost some milliseconds whatever is in them: batches of thousands of frames are best.

        :param frames: rows of `Frame`; views and large types are taken as well
        :return: rows by api; of each in the order of the requests
        """
        parts = _parts(_as_frames(frames))
        if len(parts) == 1:
            return self._feed(parts[0])
        made = [self._feed(part) for part in parts]
        exchanges, topics = ([rows[side] for rows in made] for side in (0, 1))
        return joined(exchanges, arrow_schema(Exchange)), joined(topics, arrow_schema(TopicSighting))

    def _feed(self, frames: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        carried = len(self._waiting)
        batch = _Batch(self, joined([self._waiting, frames], arrow_schema(Frame)), carried)
        batch.introduce()
        found = match(
            batch.codes, batch.kinds, batch.correlation, batch.costs, len(batch.connections), batch.sasl, batch.is_token
        )
        for row in found.stray.tolist():
            self._lose(batch, row, "its request was not seen")
        kinds = np.bincount(batch.kinds[carried:], minlength=DAMAGE + 1).tolist()
        self.counts.update(dict(zip(("requests", "responses", "opened", "closed", "damage"), kinds, strict=True)))
        self.counts.update(frames=len(frames), bytes=int(batch.lengths[carried:].sum()))
        self.counts.update(stray=len(found.stray), sasl_tokens=len(found.tokens))
        held = np.cumsum(batch.costs[found.waiting][::-1])[::-1]
        given_up, waiting = found.waiting[held > MAX_HELD], found.waiting[held <= MAX_HELD]
        none = np.full(len(given_up), -1)
        rows = batch.exchanges(np.concatenate([found.requests, given_up]), np.concatenate([found.responses, none]))
        sightings = batch.sightings
        self._waiting = batch.kept(waiting)
        for row in np.flatnonzero(batch.kinds == CLOSED).tolist():
            sightings.append(batch.sighting(row, "", None, 0))
            self._connections.pop(batch.keys[batch.codes[row]], None)
        return rows, only_batch(table_of(TopicSighting, sightings))

    def finish(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Nothing follows: give the requests that still wait."""
        batch = _Batch(self, self._waiting, len(self._waiting))
        every = np.arange(len(self._waiting))
        rows = batch.exchanges(every, np.full(len(every), -1))
        self._waiting = joined([], arrow_schema(Frame))
        return rows, joined([], arrow_schema(TopicSighting))

    def _lose(self, batch: _Batch, row: int, what: str, lost: int | None = None) -> None:
        source, position = batch.rows.column("source")[row].as_py(), int(batch.positions[row])
        size = int(batch.lengths[row]) if lost is None else lost
        place = (source, position, what)
        if place not in self._losses:
            if len(self._losses) < MAX_LOSSES:
                self._losses[place] = Loss(source, position, what, size)
                return
            place = (source, -1, what)
            if place not in self._losses:
                self._losses[place] = Loss(source, position, what, size)
                return
        self._losses[place].count += 1
        self._losses[place].bytes += size


class _Batch:
    """The frames that wait and those that have come, with what is read of all of them at once.

    :ivar carried: how many of the rows are frames that wait
    :ivar keys: source and name of each connection; `codes` number them. The files of a recording are one source
    :ivar words: api key and version of the requests, 16 bits each
    """

    def __init__(self, matcher: Matcher, rows: pa.RecordBatch, carried: int) -> None:
        self._matcher = matcher
        self.rows = rows
        self.carried = carried
        self.sightings: list[TopicSighting] = []
        self.codes, self.keys = _connection_codes(rows)
        known = matcher._connections
        self.connections = [
            known.get(key) or known.setdefault(key, _Connection(client_host(key[1]))) for key in self.keys
        ]
        directions = rows.column("direction").dictionary_encode()
        names = [_KINDS.get(name, DAMAGE) for name in directions.dictionary.to_pylist()]
        self.kinds = np.array(names, np.int8)[_numbers(directions.indices)]
        self._heads, self.lengths = _heads(rows.column("frame"), _CLIENT_ID)
        words = self._heads[:, :_PEEKED].copy().view(">i4").astype(np.int64)
        self.words = words[:, 0]
        self.correlation = np.where(self.kinds == REQUEST, words[:, 1], words[:, 0])
        short = (self.kinds == REQUEST) & (self.lengths < _PEEKED) | (self.kinds == RESPONSE) & (self.lengths < 4)
        self._short = short
        self.kinds[short] = DAMAGE
        self.positions, self.seqs = _numbers(rows.column("position")), _numbers(rows.column("seq"))
        self.interesting = np.isin(self.words >> 16, APIS) & (self.kinds == REQUEST)
        self.costs = np.where(self.interesting, self.lengths, _PEEKED)
        self.sasl = np.array([connection.sasl for connection in self.connections], np.bool_)
        self.sasl[self.codes[(self.kinds == REQUEST) & (self.words == _SASL_HANDSHAKE_0)]] = True

    def introduce(self) -> None:
        """Note what the new frames tell without being decoded: who their clients are, and what of them is damaged."""
        errors = self.rows.column("error")
        if errors.null_count < len(errors) or self._short.any():
            lost = _numbers(self.rows.column("lost"))
            for row in np.flatnonzero(errors.is_valid().to_numpy(zero_copy_only=False) | self._short).tolist():
                if row >= self.carried:
                    what = errors[row].as_py()
                    size = int(lost[row]) if what is not None else None
                    self._matcher._lose(self, row, what or "too short for a header", size)
        nameless = np.array([connection.client_id is None for connection in self.connections], np.bool_)
        if nameless.any():
            sizes = self._heads[:, _PEEKED:].copy().view(">i2").astype(np.int64)[:, 0]
            named = (self.kinds == REQUEST) & nameless[self.codes] & (sizes >= 0) & (self.lengths >= _CLIENT_ID + sizes)
            named &= (self.words >= 0) & (self.words >> 16 < len(API_NAMES))
            named[: self.carried] = False
            rows = np.flatnonzero(named)
            codes, first = np.unique(self.codes[rows], return_index=True)
            bodies = self.rows.column("frame")
            for code, row in zip(codes.tolist(), rows[first].tolist(), strict=True):
                name = bodies[row].as_buffer().slice(_CLIENT_ID)[: int(sizes[row])].to_pybytes()
                self.connections[code].client_id = self._place(row), name.decode(errors="replace")

    def is_token(self, row: int, answers: bool) -> bool:
        """Whether a frame is a bare SASL token, as follow a SaslHandshake of version 0 until a request comes."""
        if row < self.carried:
            return False
        connection = self.connections[self.codes[row]]
        if answers:
            return bool(connection.sasl)
        if connection.sasl and not has_header(self.rows.column("frame")[row].as_py(), DEFAULT_MAX_FRAME_SIZE):
            return True
        connection.sasl = bool(self.words[row] == _SASL_HANDSHAKE_0)
        return False

    def exchanges(self, requests: NDArray[np.int64], responses: NDArray[np.int64]) -> pa.RecordBatch:
        """The rows of all apis. Topics that Metadata tells of are noted on the way."""
        counts = self._matcher.counts
        wanted = self.interesting[requests]
        counts["passed_over"] += int(len(requests) - wanted.sum())
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
            versions = (self.words[asked] & 0xFFFF).astype(np.uint16).view(np.int16)
            pairs = decode_pairs(key, self.rows, asked, answered, versions, take(hosts, self.codes[asked]), self)
            if key == METADATA:
                self._note_topics(pairs)
                continue
            if not len(pairs):
                continue
            made.append(exchange_rows(pairs, self))
            counts["unanswered"] += int((pairs.responses < 0).sum())
            counts["exchanges"] += len(pairs)
        return joined(made, arrow_schema(Exchange))

    def kept(self, waiting: NDArray[np.int64]) -> pa.RecordBatch:
        """The requests that wait; of those that will not be decoded, what matching needs."""
        rows = self.rows.take(pa.array(waiting))
        whole = self.interesting[waiting] & rows.column("error").is_null().to_numpy(zero_copy_only=False)
        if whole.all():
            return rows
        index = rows.schema.get_field_index("frame")
        bodies = rows.column("frame")
        stripped = pc.if_else(pa.array(whole), bodies, pc.binary_slice(bodies, 0, _PEEKED))
        return rows.set_column(index, rows.schema.field(index), stripped)

    def sighting(self, row: int, topic: str, topic_id: bytes | None, partitions: int) -> TopicSighting:
        """A topic that the frame of that row tells of."""
        code = self.codes[row]
        source, connection = self.rows.column("source")[row].as_py(), self.keys[code][1]
        time_ns = self.rows.column("time_ns")[row].as_py()
        id_ = topic_id.hex() if topic_id else None
        known = self.connections[code].client_id
        client_id = known[1] if known and self._is_before(known[0], row) else None
        return TopicSighting(time_ns, source, connection, client_id, topic, id_, partitions)

    def _note_topics(self, pairs: Decoded) -> None:
        topics = flatten(child(pairs.answered, "topics"))
        rows = pairs.responses[topics.row].tolist()
        sizes = pc.list_value_length(child(topics.values, "partitions")).to_pylist()
        columns = [child(topics.values, name).to_pylist() for name in ("error_code", "name", "topic_id")]
        last, place, first = -1, ("", 0), TopicSighting(0, "", "", None, "", None, 0)
        for row, size, error, name, id_ in zip(rows, sizes, *columns, strict=True):
            if not name or error not in (0, _UNKNOWN_TOPIC):
                continue
            if row != last:  # one response may name a million topics: what they share is looked up once
                last, place, first = row, self._place(row), self.sighting(row, "", None, 0)
            connection = self.connections[self.codes[row]]
            seen = (0 if error else size, id_ if id_ != _NO_ID else None)
            if connection.topics.get(name) == seen:
                continue
            if len(connection.topics) < MAX_NAMES:
                connection.topics[name] = seen
                if seen[1] is not None:
                    connection.topic_ids.setdefault(seen[1], (place, name))
            hex_id = seen[1].hex() if seen[1] else None
            where = (first.time_ns, first.source, first.connection, first.client_id)
            self.sightings.append(TopicSighting(*where, name, hex_id, seen[0]))

    # Knowledge, for exchange_rows

    def lose(self, row: int, what: str) -> None:
        """The frame of that row, or a blob in it, does not decode."""
        self._matcher._lose(self, row, what)

    def topic_name(self, row: int, topic_id: bytes) -> str:
        """What the topic was called on the connection of that row, before that row; else ``id:`` and its hex."""
        known = self.connections[self.codes[row]].topic_ids.get(topic_id)
        return known[1] if known and self._is_before(known[0], row) else f"id:{topic_id.hex()}"

    def joins_as(self, row: int, group_id: str, protocol_type: str) -> None:
        """A JoinGroup of that row named the protocol type of a group."""
        groups = self.connections[self.codes[row]].groups
        if group_id in groups or len(groups) < MAX_NAMES:
            groups.setdefault(group_id, (self._place(row), protocol_type))

    def protocol_type(self, row: int, group_id: str) -> str | None:
        """What was named on the connection of that row, before that row."""
        known = self.connections[self.codes[row]].groups.get(group_id)
        return known[1] if known and self._is_before(known[0], row) else None

    def _place(self, row: int) -> _Place:
        return self.rows.column("source")[row].as_py(), int(self.seqs[row])

    def _is_before(self, place: _Place, row: int) -> bool:
        """Whether what is known from `place` on was known at `row` of the same connection, or in a later file."""
        source, seq = self._place(row)
        return place[0] != source or place[1] < seq


def name_topics(exchanges: pa.Table, topics: pa.Table) -> pa.Table:
    """Call topics by name where an exchange has their id alone (``id:``) and any connection was told the name.

    :param exchanges: rows of `Exchange`
    :param topics: rows of `TopicSighting`
    """

    @cache
    def by_id() -> dict[str, str]:
        told = topics.filter(pc.is_valid(topics.column("topic_id")))
        ids, names = told.column("topic_id").to_pylist(), told.column("topic").to_pylist()
        return {f"id:{id_}": name for id_, name in zip(ids, names, strict=True)}

    for name in ("assignment", "offsets", "owned"):
        index = exchanges.schema.get_field_index(name)
        chunks = [_named(chunk, by_id) for chunk in exchanges.column(index).chunks]
        exchanges = exchanges.set_column(
            index, exchanges.schema.field(index), pa.chunked_array(chunks, exchanges.schema.field(index).type)
        )
    return exchanges


def _named(column: Any, by_id: Callable[[], dict[str, str]]) -> Any:
    flat = flatten(column)
    topics = child(flat.values, "topic")
    if not pc.any(pc.starts_with(topics, "id:")).as_py():
        return column
    kind = flat.values.type
    parts = {kind.field(index).name: child(flat.values, kind.field(index).name) for index in range(kind.num_fields)}
    parts["topic"] = pa.array([by_id().get(topic, topic) for topic in topics.to_pylist()], pa.string())
    return as_type(lists(records(parts), flat.row, flat.rows, absent(column)), column.type)


def _as_frames(frames: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in the types of `Frame`; what may not be null and is, is empty."""
    schema = arrow_schema(Frame)
    if frames.schema == schema and not any(column.null_count for column in frames.columns[:-2]):
        return frames
    columns = []
    for item in schema:
        known = frames.schema.get_field_index(item.name) >= 0
        column = frames.column(item.name).cast(item.type) if known else pa.nulls(len(frames), item.type)
        columns.append(column if item.nullable else filled(column))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _parts(frames: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Pieces of at most `_MAX_BATCH_BYTES`, or of one row: decoded columns must not outgrow their offsets."""
    if len(frames) < 2 or pc.sum(pc.binary_length(frames.column("frame"))).as_py() <= _MAX_BATCH_BYTES:
        return [frames]
    half = len(frames) // 2
    return _parts(frames.slice(0, half)) + _parts(frames.slice(half))


def _numbers(column: Any) -> NDArray[np.int64]:
    found: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return found


_FILE_OF_RECORDING: Final = re.compile(RECORDING_FILE)


def _connection_codes(rows: pa.RecordBatch) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """A number for each row, and what the numbers stand for: source and connection."""
    sources, connections = (rows.column(name).dictionary_encode() for name in ("source", "connection"))
    of_source, of_connection = sources.dictionary.to_pylist(), connections.dictionary.to_pylist()
    whole = [_FILE_OF_RECORDING.sub("", source) for source in of_source]
    codes = _numbers(connections.indices).astype(np.int64)
    if len(set(whole)) == 1:
        return codes, [(whole[0], connection) for connection in of_connection]
    same = np.array([whole.index(source) for source in whole], np.int64)
    both = same[_numbers(sources.indices)] * max(1, len(of_connection)) + codes
    distinct, codes = np.unique(both, return_inverse=True)
    pairs = (divmod(number, len(of_connection)) for number in distinct.tolist())
    return codes, [(whole[source], of_connection[connection]) for source, connection in pairs]


def _heads(column: Any, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The first `size` bytes of each row, zeros where it has fewer, and how many it has."""
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
