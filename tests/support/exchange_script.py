"""Exchanges written by hand: the smallest input for each rule of the wire forensics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pyarrow as pa

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import (
    Departure,
    Exchange,
    GroupHistory,
    JoinedMember,
    LeaderAssignment,
    Offered,
    OffsetsCommitted,
    Rebalance,
    Sighting,
    SightingKind,
    Subscription,
    TopicPartitions,
    table_of,
)
from kcoord_wire.forensics.wire.history import wire_history
from kcoord_wire.forensics.wire.traffic import GroupTraffic, read_sightings, read_traffic

MS = 1_000_000
START = 1_700_000_000_000 * MS
Given = Mapping[str, Sequence[int]]


def at(ms: float) -> int:
    """The time in ns of a time of a script in ms."""
    return START + int(ms * MS)


def parts(given: Given | None) -> list[TopicPartitions] | None:
    return None if given is None else [TopicPartitions(topic, list(numbers)) for topic, numbers in given.items()]


class Script:
    """Exchanges of the group ``billing``, one call each; times in ms. A client `c1` speaks for the member ``c1-id``."""

    def __init__(self) -> None:
        self.rows: list[Exchange] = []
        self.topics: list[Sighting] = []
        self.session_ms = 6_000
        self.rebalance_ms = 10_000
        self._seq = 0

    def add(self, api: str, client: str, asked: float, answered: float | None, **fields: Any) -> Exchange:
        """Any exchange."""
        self._seq += 2
        values: dict[str, Any] = {
            "group_id": "billing", "api": api, "api_version": 5, "source": "script", "seq": self._seq,
            "answer_seq": None if answered is None else self._seq + 1,
            "connection": fields.pop("connection", f"10.0.0.{client.lstrip('c')}:4000-10.0.9.9:9092#{client}"),
            "client_id": client, "client_host": f"10.0.0.{client.lstrip('c')}", "asked_ns": at(asked),
            "answered_ns": None if answered is None else at(answered),
            "error_code": None if answered is None else 0, "member_id": f"{client}-id",
        }  # fmt: skip
        row = Exchange(**{**values, **fields})
        self.rows.append(row)
        return row

    def subscription(self, topics: Sequence[str] | None, owned: Given | None = None, more: bytes = b"") -> Subscription:
        blob = repr((topics, owned)).encode() + more
        return Subscription(None if topics is None else list(topics), parts(owned), None, None, blob)

    def join(
        self,
        client: str,
        asked: float,
        answered: float | None,
        generation: int | None = None,
        *,
        leader: str = "c1",
        members: Sequence[str] = (),
        assignors: Sequence[str] = ("range",),
        topics: Sequence[str] | None = ("orders",),
        owned: Given | None = None,
        more: bytes = b"",
        **fields: Any,
    ) -> Exchange:
        """JoinGroup; `members`: the clients in the list for the leader."""
        values: dict[str, Any] = {
            "session_timeout_ms": self.session_ms, "rebalance_timeout_ms": self.rebalance_ms,
            "protocol_type": "consumer",
            "offered": [Offered(assignor, self.subscription(topics, owned, more)) for assignor in assignors],
        }  # fmt: skip
        if generation is not None and answered is not None:
            values |= {
                "given_member_id": f"{client}-id", "new_generation_id": generation, "assignor": assignors[0],
                "leader_id": f"{leader}-id",
                "members": [JoinedMember(f"{name}-id", None, self.subscription(topics)) for name in members],
            }  # fmt: skip
        return self.add("JoinGroup", client, asked, answered, **{**values, **fields})

    def sync(
        self,
        client: str,
        asked: float,
        answered: float | None,
        generation: int,
        given: Given | None = None,
        gives: Mapping[str, Given] | None = None,
        **fields: Any,
    ) -> Exchange:
        """SyncGroup; `given`: what it is answered, `gives`: what it assigns, by client."""
        assignments = [LeaderAssignment(f"{name}-id", parts(part)) for name, part in (gives or {}).items()]
        values = {"generation_id": generation, "assignments": assignments, "assignment": parts(given)}
        return self.add("SyncGroup", client, asked, answered, **{**values, **fields})

    def beat(self, client: str, ms: float, generation: int, error: int = 0, **fields: Any) -> Exchange:
        return self.add("Heartbeat", client, ms, ms, generation_id=generation, error_code=error, **fields)

    def beats(self, client: str, from_ms: int, to_ms: int, generation: int) -> None:
        for ms in range(from_ms, to_ms, 1_000):
            self.beat(client, ms, generation)

    def leave(self, client: str, asked: float, answered: float | None, reason: str | None = None, **more: Any) -> None:
        left = more.pop("left", client)
        error = None if answered is None else more.pop("error", 0)
        departures = [Departure(f"{left}-id", None, reason, error)]
        self.add("LeaveGroup", client, asked, answered, **{"member_id": "", "departures": departures, **more})

    def consumer(
        self, client: str, asked: float, epoch: int, answered: int | None, given: Given | None = None, **more: Any
    ) -> None:
        """ConsumerGroupHeartbeat: from an epoch, with the epoch and the assignment in its answer."""
        owned = parts(more.pop("owned", None))
        values = {"generation_id": epoch, "new_generation_id": answered, "assignment": parts(given), "owned": owned}
        self.add("ConsumerGroupHeartbeat", client, asked, asked + 1, **{**values, **more})

    def closed(self, client: str, ms: float, connection: str | None = None, **fields: Any) -> None:
        """The connection of a client ends, or what else `kind` says happens to it."""
        name = connection or f"10.0.0.{client.lstrip('c')}:4000-10.0.9.9:9092#{client}"
        self.topics.append(Sighting(at(ms), "script", name, client, **{"kind": SightingKind.CLOSED, **fields}))

    def commit(self, client: str, ms: float, offsets: Mapping[int, int], **fields: Any) -> Exchange:
        """OffsetCommit of partitions of ``orders``."""
        return self._positions("OffsetCommit", client, ms, offsets, **{"generation_id": 1, **fields})

    def position(self, client: str, ms: float, offsets: Mapping[int, int], **fields: Any) -> Exchange:
        """OffsetFetch, and what it was answered; -1 for nothing."""
        return self._positions("OffsetFetch", client, ms, offsets, **{"member_id": "", "generation_id": -1, **fields})

    def _positions(self, api: str, client: str, ms: float, offsets: Mapping[int, int], **fields: Any) -> Exchange:
        found = [OffsetsCommitted("orders", number, offset, 0) for number, offset in offsets.items()]
        return self.add(api, client, ms, ms + 1, offsets=found, **fields)

    def fetch(
        self,
        client: str,
        ms: float,
        partition: int,
        offset: int | None,
        end: int,
        error: int = 0,
        *,
        size: int = 0,
        socket: str = "f",
    ) -> None:
        """What a Fetch of a client shows of a partition of ``orders``.

        :param size: bytes of records
        :param socket: names the connection
        """
        name = f"10.0.0.{client.lstrip('c')}:4002-10.0.9.9:9092#{socket}{client}"
        self.topics.append(
            Sighting(
                at(ms),
                "script",
                name,
                client,
                SightingKind.FETCHED,
                "orders",
                partition=partition,
                end_offset=end,
                start_offset=0,
                fetch_offset=offset,
                api="Fetch",
                error_code=error,
                size=size,
            )
        )

    def saw(self, client: str, ms: float, topic: str, partitions: int) -> None:
        name = f"10.0.0.{client.lstrip('c')}:4001-10.0.9.9:9092#m{client}"
        self.topics.append(Sighting(at(ms), "script", name, client, SightingKind.TOPIC, topic, None, partitions))

    def form(self, *clients: str, generation: int = 1, ms: int = 0, owners: Mapping[str, Given] | None = None) -> None:
        """A group of these clients, the first of which leads, that is stable 20 ms after `ms`."""
        owners = owners or {}
        for number, client in enumerate(clients):
            members = clients if client == clients[0] else ()
            self.join(client, ms + number, ms + 10, generation, leader=clients[0], members=members, member_id="")
        for number, client in enumerate(clients):
            gives = {name: owners.get(name, {}) for name in clients} if client == clients[0] else None
            self.sync(client, ms + 11 + number, ms + 20, generation, owners.get(client, {}), gives)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        return table_of(Exchange, self.rows), table_of(Sighting, self.topics)

    def history(self) -> GroupHistory:
        return wire_history(*self.tables())

    def traffic(self) -> GroupTraffic:
        exchanges, topics = self.tables()
        return read_traffic(exchanges, read_sightings(topics))

    def causes(self) -> list[Cause]:
        return [Cause(rebalance.cause) for rebalance in self.history().rebalances]

    def last(self) -> Rebalance:
        return self.history().rebalances[-1]


def two_members(rebalance_ms: int | None = None) -> Script:
    """c1, which leads, and c2, stable in generation 1 with a partition each."""
    script = Script()
    script.rebalance_ms = rebalance_ms or script.rebalance_ms
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    return script


def both_join(script: Script, first: str, ms: int = 5_000, generation: int = 2, **fields: Any) -> None:
    """Two members rejoin, because `first` does."""
    other = "c2" if first == "c1" else "c1"
    members = ["c1", "c2"]
    script.join(first, ms, ms + 500, generation, members=members if first == "c1" else (), **fields)
    script.beat(other, ms + 300, generation - 1, error=27)
    script.join(other, ms + 400, ms + 500, generation, members=members if other == "c1" else ())


def renamed(value: Any, number: int) -> Any:
    """The same row, or part of one, of a group with another name, on other hosts, with a topic of its own."""
    if isinstance(value, str):
        text = value.replace("10.0.0.", f"10.1.{number}.").replace("billing", f"billing-{number:03}")
        return text.replace("orders", f"orders-{number:03}")
    if isinstance(value, list):
        return [renamed(each, number) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: renamed(getattr(value, each.name), number) for each in fields(value)})
    return value
