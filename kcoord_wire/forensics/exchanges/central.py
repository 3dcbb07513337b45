"""Exchanges of the 0.8 draft, family ``central``: its connections are set apart, and read frame by frame.

Laws:

* A connection is the draft's if its first sound frame is (`capture.central`); all others are left as they are.
* A row names the group that the consumer of the connection has registered for. Requests of the coordinator on a
  connection whose RegisterConsumer was not captured are losses, because the draft names the group nowhere else.
* A partition that the draft calls ``BROKER-NUMBER`` is partition NUMBER of ``TOPIC/BROKER``, as in the old consumers'
  path ``/brokers/topics/[topic]/[broker]``.
* State is bounded for each connection (`capture.central.MAX_PENDING`), and a closed connection leaves nothing behind.

A consumer's few frames per session timeout need no decoding by column.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.capture.central import CentralPending, CentralReader, is_central
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.exchanges.arrow import absent, joined, only_batch
from kcoord_wire.forensics.exchanges.links import ENDS, LINK_EVENTS, link_sighting
from kcoord_wire.forensics.exchanges.memory import Losses, client_host, connection_codes
from kcoord_wire.forensics.model import (
    Exchange,
    OffsetsCommitted,
    Sighting,
    TopicPartitions,
    arrow_schema,
    table_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

CENTRAL_APIS: Final = ("RegisterConsumer", "Ping", "StopFetcher", "StartFetcher")
"""The APIs of the draft that become rows; the others concern no group."""

_PARTITION: Final = re.compile(r"(?:([0-9]{1,10})-)?([0-9]{1,9})")
_Key = tuple[str, str]


class CentralFrames:
    """Takes the draft's connections out of the frames, batch by batch.

    :param losses: takes what cannot be read
    :param counts: as `Matcher.counts`
    """

    def __init__(self, losses: Losses, counts: Counter[str]) -> None:
        self._losses, self._counts = losses, counts
        self._connections: dict[_Key, _Conversation | None] = {}  # None: not the draft's

    def take(self, frames: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch, pa.RecordBatch]:
        """Return the frames of all other connections, and the rows of `Exchange` and `Sighting` that the draft's
        complete."""
        codes, keys = connection_codes(frames)
        self._decide(frames, codes, keys)
        is_taken = np.array([self._connections.get(key) is not None for key in keys], np.bool_)[codes]
        if not is_taken.any():
            return frames, joined([], arrow_schema(Exchange)), joined([], arrow_schema(Sighting))
        exchanges: list[Exchange] = []
        seen: list[Sighting] = []
        for code, row in zip(codes[is_taken].tolist(), frames.filter(pa.array(is_taken)).to_pylist(), strict=True):
            conversation = self._connections[keys[code]]
            assert conversation is not None
            exchanges += conversation.take(row)
            if row["direction"] in LINK_EVENTS:
                seen.append(link_sighting(row, None))
        ends = pc.is_in(frames.column("direction"), pa.array(ENDS)).to_numpy(False)
        for key in {keys[code] for code in codes[is_taken & ends]}:
            self.forget(key)
        return frames.filter(pa.array(~is_taken)), self._rows(exchanges), only_batch(table_of(Sighting, seen))

    def forget(self, key: _Key) -> None:
        """Forget a connection that is closed."""
        self._connections.pop(key, None)

    def finish(self) -> pa.RecordBatch:
        """Return the requests that are still pending, as unanswered."""
        open_ = [conversation for conversation in self._connections.values() if conversation is not None]
        return self._rows([row for conversation in open_ for row in conversation.finish()])

    def _rows(self, exchanges: list[Exchange]) -> pa.RecordBatch:
        self._counts["exchanges"] += len(exchanges)
        self._counts["unanswered"] += sum(row.answered_ns is None for row in exchanges)
        return only_batch(table_of(Exchange, exchanges))

    def _decide(self, frames: pa.RecordBatch, codes: NDArray[np.int64], keys: list[_Key]) -> None:
        """Decide about the new connections, each by its first sound frame."""
        is_new = np.array([key not in self._connections for key in keys], np.bool_)
        if not is_new.any():
            return
        is_frame = pc.is_in(frames.column("direction"), pa.array(["request", "response"])).to_numpy(False)
        rows = np.flatnonzero(is_new[codes] & is_frame & absent(frames.column("error")))
        _, first = np.unique(codes[rows], return_index=True)
        for row in rows[first].tolist():
            key = keys[codes[row]]
            found = is_central(frames.column("direction")[row].as_py(), frames.column("frame")[row].as_py())
            self._connections[key] = _Conversation(key[1], self._losses, self._counts) if found else None


class _Conversation:
    """One connection of the draft."""

    def __init__(self, connection: str, losses: Losses, counts: Counter[str]) -> None:
        self._host = client_host(connection)
        self._losses, self._counts = losses, counts
        self._reader = CentralReader()
        self._pending: CentralPending[list[Exchange]] = CentralPending()  # each with its row; none if it becomes no row
        self._group: str | None = None

    def take(self, row: dict[str, Any]) -> Iterator[Exchange]:
        """Take in the next row of `Frame`, and yield the exchanges that are done."""
        direction, body = row["direction"], row["frame"]
        is_frame = direction in ("request", "response")
        self._counts["frames"] += 1
        self._counts["bytes"] += len(body)
        self._counts[f"{direction}s" if is_frame else direction] += 1
        if row["error"] is not None:
            self._lose(row, row["error"], row["lost"])
        elif is_frame:
            yield from self._read(row)
        else:
            yield from self.finish()

    def finish(self) -> Iterator[Exchange]:
        """Yield the pending requests, as unanswered."""
        return (asked for rows in self._pending.clear() for asked in rows)

    def _read(self, row: dict[str, Any]) -> Iterator[Exchange]:
        body = row["frame"]
        try:
            what = self._reader.identify(row["direction"], body)
            message = what.decode(body, strict=False)
        except DecodeError as error:
            self._lose(row, f"a frame of the 0.8 draft does not decode: {error}")
            return
        if what.direction == "request":
            asked = self._asked(row, what.name, message)
            yield from (each for rows in self._pending.ask(what.type_id, message, asked) for each in rows)
            return
        answered = self._pending.answer(what.type_id, message)
        if answered is None:
            self._counts["stray"] += 1
            self._lose(row, "its request was not seen")
            return
        rows, unanswered = answered
        yield from (each for given_up in unanswered for each in given_up)
        for each in rows:
            each.answer_seq, each.answer_position, each.answered_ns = row["seq"], row["position"], row["time_ns"]
            _ANSWERED[what.name](each, message)
            yield each

    def _asked(self, row: dict[str, Any], name: str, message: Any) -> list[Exchange]:
        """The row of a request, if it becomes one."""
        if name not in CENTRAL_APIS:
            self._counts["passed_over"] += 1
            return []
        if name == "RegisterConsumer":
            self._group = message.group_id
        if self._group is None:
            self._lose(row, f"{name} to a consumer whose RegisterConsumer was not captured: its group is not known")
            return []
        fence = message.fence[0] if message.fence else None
        made = Exchange(
            group_id=self._group,
            api=name,
            api_version=0,
            source=row["source"],
            seq=row["seq"],
            answer_seq=None,
            connection=row["connection"],
            client_id=None,
            client_host=self._host,
            asked_ns=row["time_ns"],
            answered_ns=None,
            member_id=message.consumer_id,
            generation_id=None if fence is None else fence.generation,
            epoch=None if fence is None else fence.epoch,
            position=row["position"],
        )
        if name == "RegisterConsumer":
            made.session_timeout_ms = message.session_timeout_ms
            made.topics, made.topic_regex = topics_of(message.topic_count)
        elif name == "Ping":
            made.retries = message.num_retries
        elif name == "StartFetcher":
            made.assignment = _assignment(message.ownership_info)
        return [made]

    def _lose(self, row: dict[str, Any], what: str, size: int | None = None) -> None:
        self._losses.add(row["source"], row["position"], what, len(row["frame"]) if size is None else size)


def _answer_registration(row: Exchange, message: Any) -> None:
    row.error_code = message.error_code
    row.assignment = None if message.ownership_info is None else _assignment(message.ownership_info)


def _answer_request(row: Exchange, message: Any) -> None:
    row.error_code = message.error_code
    offsets = getattr(message, "offset_info", None)
    if offsets is not None:
        places = ((*place_of(each.topic, each.partition), each.offset) for each in offsets)
        row.offsets = [OffsetsCommitted(topic, partition, offset, 0) for topic, partition, offset in places]


_ANSWERED: Final = {
    "RegisterConsumer": _answer_registration,
    **dict.fromkeys(("Ping", "StopFetcher", "StartFetcher"), _answer_request),
}


def _assignment(threads: Iterable[Any]) -> list[TopicPartitions]:
    """The partitions of all threads of a consumer."""
    parts: dict[str, set[int]] = {}
    for thread in threads:
        for each in thread.assigned_parts:
            topic, number = place_of(each.topic, each.partition)
            parts.setdefault(topic, set()).add(number)
    return [TopicPartitions(topic, sorted(numbers)) for topic, numbers in sorted(parts.items())]


def place_of(topic: str, name: str) -> tuple[str, int]:
    """Topic and number of a partition that the draft calls by a name: ``("orders", "1-0")`` is partition 0 of
    ``orders/1``. A name of another form is partition 0 of ``TOPIC/NAME``."""
    found = _PARTITION.fullmatch(name)
    if found is None:
        return f"{topic}/{name}", 0
    return (topic if found[1] is None else f"{topic}/{found[1]}"), int(found[2])


def topics_of(topic_count: str) -> tuple[list[str] | None, str | None]:
    """Topics, or pattern, of a consumer's ``topic_count``: ``{"orders": 2}`` names topics, other texts are patterns."""
    try:
        read = json.loads(topic_count)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        return None, topic_count
    return sorted(name for name in read if name.isprintable()), None
