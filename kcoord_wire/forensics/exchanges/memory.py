"""What a matcher remembers: of each connection, of a batch of frames, and of what could not be read.

Laws:

* The memory of a connection is bounded (`MAX_NAMES`), and so are the losses (`MAX_LOSSES`).
* A name counts from the frame that showed it on, never for the frames before it, however frames are cut into batches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kcoord_wire.capture.fetches import FetchSession
from kcoord_wire.forensics.exchanges.arrow import take
from kcoord_wire.forensics.model import Loss, Sighting

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_NAMES: Final = 10_000
"""Topics, and groups, that are remembered of a connection; later ones are reported each time they are seen."""

MAX_LOSSES: Final = 100_000
"""Losses that are kept apart; the others are added to the first of their source and kind."""

RECORDING_FILE: Final = r"frames-\d{6,}\.kcrec$"
"""End of the name of a source that is one file of a recording: its connections continue in the next file."""

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
        self._sources, self._lengths, self._losses = rows.column("source"), lengths, losses
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
        self._losses.add(self._sources[row].as_py(), int(self._positions[row]), what, size)

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
        return take(names, np.where(is_known, codes, -1))

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


def client_host(connection: str) -> str:
    """Return the client's address from the name of a connection, as `Frame.connection` has it."""
    return connection.partition("-")[0].rpartition(":")[0].strip("[]")


_FILE_OF_RECORDING: Final = re.compile(RECORDING_FILE)


def connection_codes(rows: pa.RecordBatch) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """Return a number for each row, and what the numbers stand for: source and connection."""
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


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    found: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return found
