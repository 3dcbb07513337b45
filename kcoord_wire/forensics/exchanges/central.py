"""Frames of the designs that stood on ZooKeeper: no history explains them, so only their groups become rows.

Laws:

* A connection is the 0.8 draft's if its first sound frame is (`capture.central`); all others are left as they are. Its
  RegisterConsumer, the only message with the group's name, is a row; its other frames are passed over.
* JoinGroup of the consumer rewrite, which Kafka's JoinGroup 0 is not, is a row of the API ``RewriteJoinGroup``. All
  other requests of the rewrite have the bytes of Kafka's, and are read as those.
* A closed connection leaves nothing behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.capture.central import REWRITE, CentralReader, is_central
from kcoord_wire.codec.registry import decode_request
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.exchanges.arrow import absent, joined, only_batch
from kcoord_wire.forensics.exchanges.pairing import Losses, connection_codes
from kcoord_wire.forensics.exchanges.sightings import ENDS, LINK_EVENTS, link_sighting
from kcoord_wire.forensics.model import Exchange, Sighting, arrow_schema, client_host, table_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Key = tuple[str, str]


class CentralFrames:
    """Takes the draft's connections out of the frames, batch by batch.

    :param losses: takes what cannot be read
    :param counts: as `Matcher.counts`
    """

    def __init__(self, losses: Losses, counts: Counter[str]) -> None:
        self._losses, self._counts = losses, counts
        self._connections: dict[_Key, CentralReader | None] = {}  # None: not the draft's

    def set_aside(self, frames: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch, pa.RecordBatch]:
        """Return the frames of all other connections, and the rows of `Exchange` and `Sighting` of the draft's."""
        codes, keys = connection_codes(frames)
        self._decide(frames, codes, keys)
        is_taken = np.array([self._connections.get(key) is not None for key in keys], np.bool_)[codes]
        if not is_taken.any():
            return frames, joined([], arrow_schema(Exchange)), joined([], arrow_schema(Sighting))
        exchanges: list[Exchange] = []
        seen: list[Sighting] = []
        for code, row in zip(codes[is_taken].tolist(), frames.filter(pa.array(is_taken)).to_pylist(), strict=True):
            reader = self._connections[keys[code]]
            assert reader is not None
            exchanges += self._read(reader, row)
            if row["direction"] in LINK_EVENTS:
                seen.append(link_sighting(row, None))
        ends = pc.is_in(frames.column("direction"), pa.array(ENDS)).to_numpy(False)
        for key in {keys[code] for code in codes[is_taken & ends]}:
            self.forget(key)
        self._counts["exchanges"] += len(exchanges)
        rows = only_batch(table_of(Exchange, exchanges))
        return frames.filter(pa.array(~is_taken)), rows, only_batch(table_of(Sighting, seen))

    def forget(self, key: _Key) -> None:
        """Forget a connection that is closed."""
        self._connections.pop(key, None)

    @property
    def state(self) -> dict[_Key, list[int] | None]:
        """What `restore` goes on from, in built-in types."""
        return {key: None if reader is None else list(reader.asked) for key, reader in self._connections.items()}

    def restore(self, state: dict[_Key, list[int] | None]) -> None:
        """Go on from a `state`."""
        self._connections = {key: None if asked is None else CentralReader(asked) for key, asked in state.items()}

    def _decide(self, frames: pa.RecordBatch, codes: NDArray[np.int64], keys: list[_Key]) -> None:
        """Decide about the new connections, each by its first sound frame."""
        is_new = np.array([key not in self._connections for key in keys], np.bool_)
        if not is_new.any():
            return
        is_frame = pc.is_in(frames.column("direction"), pa.array(["request", "response"])).to_numpy(False)
        rows = np.flatnonzero(is_new[codes] & is_frame & absent(frames.column("error")))
        _, first = np.unique(codes[rows], return_index=True)
        for row in rows[first].tolist():
            found = is_central(frames.column("direction")[row].as_py(), frames.column("frame")[row].as_py())
            self._connections[keys[codes[row]]] = CentralReader() if found else None

    def _read(self, reader: CentralReader, row: dict[str, Any]) -> list[Exchange]:
        """Count a row of `Frame`, and return the exchange that it is, if it names a group."""
        direction, body = row["direction"], row["frame"]
        is_frame = direction in ("request", "response")
        self._counts["frames"] += 1
        self._counts["bytes"] += len(body)
        self._counts[f"{direction}s" if is_frame else direction] += 1
        if row["error"] is not None:
            self._losses.add(row["source"], row["position"], row["error"], row["lost"])
        elif is_frame:
            try:
                what = reader.identify(direction, body)
                if (what.name, what.direction) == ("RegisterConsumer", "request"):
                    message = what.decode(body, strict=False)
                    return [_row(row, what.name, message.group_id, message.consumer_id)]
            except DecodeError as error:
                what_failed = f"a frame of the 0.8 draft does not decode: {error}"
                self._losses.add(row["source"], row["position"], what_failed, len(body))
                return []
            self._counts["passed_over"] += 1
        return []


def rewrite_joins(frames: pa.RecordBatch, requests: Iterable[int]) -> pa.RecordBatch:
    """Return a row of `Exchange` for each JoinGroup of the rewrite.

    :param frames: rows of `Frame`
    :param requests: rows of the requests in `frames`, each of which is the rewrite's
    """
    rows = []
    for frame in frames.take(pa.array(requests)).to_pylist():
        header, request = decode_request(frame["frame"], family=REWRITE)
        row = _row(frame, "RewriteJoinGroup", request.group_id, request.consumer_id)
        row.client_id = header.client_id
        rows.append(row)
    return only_batch(table_of(Exchange, rows))


def _row(frame: dict[str, Any], api: str, group_id: str, member_id: str) -> Exchange:
    return Exchange(
        group_id=group_id,
        api=api,
        api_version=0,
        source=frame["capture"] or frame["source"],
        seq=frame["seq"],
        answer_seq=None,
        connection=frame["connection"],
        client_id=None,
        client_host=client_host(frame["connection"]),
        asked_ns=frame["time_ns"],
        answered_ns=None,
        member_id=member_id,
        position=frame["position"],
        file=frame["capture"] and frame["source"],
    )
