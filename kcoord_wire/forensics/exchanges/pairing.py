"""Which response answers which request, for a batch of frames of many connections at once.

Nearly every connection is a plain conversation: its n-th response answers its n-th request. Those are paired all
together by array operations, the fast path of the rule in `kcoord_wire.codec.pending`; only the others are walked
frame by frame, with `PendingRequests` itself.

Laws:

* The cut of the frames into batches makes no difference: pending requests precede the next batch, as if they came then.
* At most `MAX_PENDING` requests of a connection are pending, of `MAX_PENDING_BYTES` together; the oldest are given up.
* When a connection is opened or closed, its pending requests are given up.
* The memory of a connection is bounded (`MAX_NAMES`), and so are the losses (`MAX_LOSSES`).
* A name counts from the frame that showed it on, never for the frames before it, however frames are cut into batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.capture.fetches import FetchSession
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.forensics.exchanges.arrow import take_or_null
from kcoord_wire.forensics.model import Loss, Sighting

if TYPE_CHECKING:
    from numpy.typing import NDArray


MAX_NAMES: Final = 10_000
"""Topics, and groups, that are remembered of a connection; later ones are reported each time they are seen."""

MAX_LOSSES: Final = 100_000
"""Losses that are kept apart; the others are added to the first of their source and kind."""

RECORDING_FILE: Final = r"frames-\d{6,}\.kcrec$"
"""End of the name of a source that is one file of a recording: its connections continue in the next file."""


def sources_of(rows: pa.RecordBatch) -> pa.Array:
    """Return the source of each row of `Frame`: the rotated capture that its file is of, else the file."""
    return pc.coalesce(rows.column("capture"), rows.column("source"))


Place = tuple[str, int]
"""Source and seq of the frame from which on something is known."""


@dataclass(slots=True)
class ConnectionMemory:
    """What is remembered of a connection, besides its pending requests.

    :ivar host: the client's address
    :ivar client_id: the client's name
    :ivar software: its software and version, as its first ApiVersions request with them states
    :ivar sasl: a SaslHandshake of version 0 came last, so that bare tokens follow
    :ivar topics: number of partitions and topic id of each topic that Metadata has shown
    :ivar topic_ids: names of topics, by the bytes of their ids
    :ivar groups: protocol types of groups, from JoinGroup
    :ivar fetching: where it reads, and which partitions of Fetch were reported last
    :ivar listed: when an offset of ListOffsets was reported last, by topic, partition and timestamp asked for
    :ivar is_answered: a request other than an ApiVersions was answered, or an ApiVersions was accepted
    :ivar unsupported: the ApiVersions requests that were refused before that
    :ivar topic_errors: topics in Metadata with their errors
    :ivar cluster_id: as Metadata states it
    :ivar throttled_ns: when a response with a throttle time was reported last
    """

    host: str
    client_id: tuple[Place, str] | None = None
    software: tuple[Place, str] | None = None
    sasl: bool = False
    topics: dict[str, tuple[int, bytes | None]] = field(default_factory=dict)
    topic_ids: dict[bytes, tuple[Place, str]] = field(default_factory=dict)
    groups: dict[str, tuple[Place, str]] = field(default_factory=dict)
    fetching: FetchSession = field(default_factory=FetchSession)
    listed: dict[tuple[str, int, int], int] = field(default_factory=dict)
    is_answered: bool = False
    unsupported: list[Sighting] = field(default_factory=list)
    topic_errors: set[tuple[str, int]] = field(default_factory=set)
    cluster_id: str | None = None
    throttled_ns: int | None = None

    @classmethod
    def restored(cls, state: tuple[Any, ...]) -> ConnectionMemory:
        """Return the memory with this `state`."""
        memory = cls(*state)
        memory.fetching = FetchSession(*state[_FETCHING])
        memory.unsupported = [Sighting(*row) for row in state[_UNSUPPORTED]]
        return memory

    @property
    def state(self) -> tuple[Any, ...]:
        """The fields in built-in types."""
        values = [getattr(self, name) for name in _FIELDS]
        values[_FETCHING] = astuple(self.fetching)
        values[_UNSUPPORTED] = [astuple(row) for row in self.unsupported]
        return tuple(values)


_FIELDS: Final = [item.name for item in fields(ConnectionMemory)]
_FETCHING, _UNSUPPORTED = (_FIELDS.index(name) for name in ("fetching", "unsupported"))


class Losses:
    """The losses so far, `MAX_LOSSES` of them apart."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], Loss] = {}

    def add(self, source: str, position: int, what: str, size: int) -> None:
        """Add a loss of `size` bytes, to an equal one at the same place where there is one."""
        place = (source, position, what)
        if place not in self._found and len(self._found) >= MAX_LOSSES:
            place = (source, -1, what)
        if place not in self._found:
            self._found[place] = Loss(source, position, what, size)
        else:
            self._found[place].count += 1
            self._found[place].bytes += size

    def rows(self) -> list[Loss]:
        return list(self._found.values())


class BatchMemory:
    """The memory of the connections of a batch, asked and extended by the number of a frame's row in the batch.

    :ivar rows: rows of `Frame`
    :ivar codes: per row, the index of its connection
    :ivar connections: the connections of the batch
    """

    def __init__(
        self,
        rows: pa.RecordBatch,
        codes: NDArray[np.int64],
        connections: Sequence[ConnectionMemory],
        lengths: NDArray[np.int64],
        losses: Losses,
    ) -> None:
        self.rows, self.codes, self.connections = rows, codes, connections
        self._sources, self._files = sources_of(rows), rows.column("source")
        self._lengths, self._losses = lengths, losses
        self._seqs, self._positions = rows.column("seq").to_numpy(), rows.column("position").to_numpy()

    def of(self, row: int) -> ConnectionMemory:
        """Return the memory of the connection of that row."""
        return self.connections[int(self.codes[row])]

    def name(self, row: int) -> str:
        """Return the name of the connection of that row."""
        return str(self.rows.column("connection")[row].as_py())

    def place(self, row: int) -> Place:
        return self._sources[row].as_py(), int(self._seqs[row])

    def lose(self, row: int, what: str, size: int | None = None) -> None:
        """Report that `size` bytes of the frame, or all of it, could not be read."""
        size = int(self._lengths[row]) if size is None else size
        self._losses.add(self._files[row].as_py(), int(self._positions[row]), what, size)

    def client_id(self, row: int) -> str | None:
        """Return the client's name, as far as it was known before that row."""
        return self._known(self.of(row).client_id, row)

    def software(self, rows: NDArray[np.int64]) -> pa.Array:
        """Return, per row, the client's software, as far as it was known before that row."""
        stated = [connection.software for connection in self.connections]
        codes = self.codes[rows]
        since = np.array([-1 if each is None else each[0][1] for each in stated], np.int64)
        is_known = since[codes] >= 0
        for index in np.flatnonzero(self._seqs[rows] <= since[codes]).tolist():  # before it, or in a later file
            is_known[index] = self._known(stated[codes[index]], int(rows[index])) is not None
        names = pa.array([None if each is None else each[1] for each in stated], pa.string())
        return take_or_null(names, np.where(is_known, codes, -1))

    def topic_name(self, row: int, topic_id: bytes) -> str:
        """Return the topic's name as the connection had it before that row; else ``id:`` and the id in hex."""
        return self._known(self.of(row).topic_ids.get(topic_id), row) or f"id:{topic_id.hex()}"

    def joins_as(self, row: int, group_id: str, protocol_type: str) -> None:
        """Remember the protocol type of a group, which the JoinGroup of that row has named."""
        groups = self.of(row).groups
        if group_id in groups or len(groups) < MAX_NAMES:
            groups.setdefault(group_id, (self.place(row), protocol_type))

    def protocol_type(self, row: int, group_id: str) -> str | None:
        """Return the protocol type that a JoinGroup of the connection named before that row."""
        return self._known(self.of(row).groups.get(group_id), row)

    def _known(self, known: tuple[Place, str] | None, row: int) -> str | None:
        """Return the name if its place is before that row of the same connection; an earlier file is always before."""
        if known is None:
            return None
        (from_source, from_seq), name = known
        source, seq = self.place(row)
        return name if from_source != source or from_seq < seq else None


_FILE_OF_RECORDING: Final = re.compile(RECORDING_FILE)


def connection_codes(rows: pa.RecordBatch) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """Return a number for each row, and what the numbers stand for: source and connection."""
    sources, connections = (column.dictionary_encode() for column in (sources_of(rows), rows.column("connection")))
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


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    found: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return found


REQUEST, RESPONSE, OPENED, CLOSED, DAMAGE, RESENT = range(6)

MAX_PENDING: Final = 1024
"""Requests of one connection. Each batch pairs them again, which costs time where responses were not captured."""

MAX_PENDING_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the requests of one connection."""


@dataclass(slots=True)
class Pairs:
    """Rows of the batch, by number.

    :ivar requests: those that are done: answered, or given up
    :ivar responses: the response to each of `requests`; -1 where there is none
    :ivar pending: requests that may still be answered
    :ivar stray: responses without a request
    :ivar tokens: frames that are bare SASL tokens
    """

    requests: NDArray[np.int64]
    responses: NDArray[np.int64]
    pending: NDArray[np.int64]
    stray: NDArray[np.int64]
    tokens: NDArray[np.int64]


def pair(
    codes: NDArray[np.int64],
    kinds: NDArray[np.int8],
    correlation: NDArray[np.int32],
    sizes: NDArray[np.int64],
    connections: int,
    speaks_sasl: NDArray[np.bool_],
    is_token: Callable[[int, bool], bool],
) -> Pairs:
    """Find the response to every request.

    :param codes: the connection of each row, below `connections`
    :param kinds: REQUEST, RESPONSE, OPENED, CLOSED, DAMAGE or RESENT
    :param correlation: the correlation ids of requests and responses
    :param sizes: bytes that a row costs while it is pending
    :param connections: how many there are
    :param speaks_sasl: by connection: a SaslHandshake of version 0 was seen or is in this batch
    :param is_token: called with a row that may be a bare SASL token and whether it is a response that fits no request;
        returns whether it is a token, and keeps track of the handshakes
    """
    requests, responses = np.flatnonzero(kinds == REQUEST), np.flatnonzero(kinds == RESPONSE)
    requests = requests[np.argsort(codes[requests], kind="stable")]
    responses = responses[np.argsort(codes[responses], kind="stable")]
    asked, answered = (np.bincount(codes[rows], minlength=connections) for rows in (requests, responses))
    # The n-th response of a connection is tried with its n-th request; where that fails, the connection is odd.
    first = np.cumsum(asked) - asked
    rank = np.arange(len(responses)) - (np.cumsum(answered) - answered)[codes[responses]]
    plain = rank < asked[codes[responses]]
    partner = np.where(plain, first[codes[responses]] + rank, 0)
    if len(requests):
        partner = requests[partner]
        plain &= (correlation[partner] == correlation[responses]) & (partner < responses)

    odd = speaks_sasl | (asked > MAX_PENDING)
    odd |= np.bincount(codes[requests], weights=sizes[requests], minlength=connections) > MAX_PENDING_BYTES
    odd[codes[responses[~plain]]] = True
    closed = np.zeros(connections, np.bool_)
    _note_borders(codes, kinds, connections, odd, closed)

    of_plain = ~odd[codes[responses]]
    done, answers = partner[of_plain], responses[of_plain]
    left = np.ones(len(codes), np.bool_)
    left[done] = False
    rest = requests[left[requests] & ~odd[codes[requests]]]
    given_up = closed[codes[rest]]
    walked = _Walk(kinds, correlation, sizes, is_token)
    if odd.any():
        of_odd = np.flatnonzero(odd[codes])
        of_odd = of_odd[np.argsort(codes[of_odd], kind="stable")]
        for rows in np.split(of_odd, np.flatnonzero(np.diff(codes[of_odd])) + 1):
            walked.connection(rows.tolist())
    return Pairs(
        np.concatenate([done, rest[given_up], _rows(walked.requests)]),
        np.concatenate([answers, np.full(int(given_up.sum()), -1), _rows(walked.responses)]),
        np.sort(np.concatenate([rest[~given_up], _rows(walked.pending)])),
        _rows(walked.stray),
        _rows(walked.tokens),
    )


def _rows(found: list[int]) -> NDArray[np.int64]:
    return np.array(found, np.int64)


def _note_borders(
    codes: NDArray[np.int64],
    kinds: NDArray[np.int8],
    connections: int,
    odd: NDArray[np.bool_],
    closed: NDArray[np.bool_],
) -> None:
    """Mark as odd every connection that is not opened first and closed last, and note those that are closed."""
    borders = np.flatnonzero((kinds == OPENED) | (kinds == CLOSED))
    if not len(borders):
        return
    of_frames = np.flatnonzero(kinds <= RESPONSE)
    first, last = np.full(connections, len(codes)), np.full(connections, -1)
    np.minimum.at(first, codes[of_frames], of_frames)
    np.maximum.at(last, codes[of_frames], of_frames)
    opens, of = kinds[borders] == OPENED, codes[borders]
    odd[of[opens & (borders > first[of])]] = True
    odd[of[~opens & (borders < last[of])]] = True
    closed[of[~opens]] = True


class _Walk:
    """Walks odd connections frame by frame. The attributes are those of `Pairs`."""

    def __init__(
        self,
        kinds: NDArray[np.int8],
        correlation: NDArray[np.int32],
        sizes: NDArray[np.int64],
        is_token: Callable[[int, bool], bool],
    ) -> None:
        self._kinds, self._correlation, self._sizes, self._is_token = kinds, correlation, sizes, is_token
        self.requests: list[int] = []
        self.responses: list[int] = []
        self.pending: list[int] = []
        self.stray: list[int] = []
        self.tokens: list[int] = []

    def connection(self, rows: list[int]) -> None:
        """Pair all rows of one connection, given in order."""
        pending: PendingRequests[int] = PendingRequests(MAX_PENDING, MAX_PENDING_BYTES)
        for row in rows:
            kind = self._kinds[row]
            if kind == REQUEST:
                self._ask(pending, row)
            elif kind == RESPONSE:
                self._answer(pending, row)
            elif kind < DAMAGE:
                self._done(pending.clear())
        self.pending += pending.clear()

    def _ask(self, pending: PendingRequests[int], row: int) -> None:
        if self._is_token(row, False):
            self.tokens.append(row)
        else:
            self._done(pending.add(int(self._correlation[row]), row, int(self._sizes[row])))

    def _answer(self, pending: PendingRequests[int], row: int) -> None:
        found = pending.answer(int(self._correlation[row]))
        if found is None:
            (self.tokens if self._is_token(row, True) else self.stray).append(row)
        else:
            self._done(found[1])
            self._done([found[0]], row)

    def _done(self, requests: list[int], response: int = -1) -> None:
        self.requests += requests
        self.responses += [response] * len(requests)
