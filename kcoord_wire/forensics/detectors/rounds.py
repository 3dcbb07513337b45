"""What a leader received and assigned, generation by generation: the rounds that the detectors of claims read.

A round is one JoinGroup response to the leader, with the SyncGroup request that followed it, if one did. Groups of the
newer protocol (KIP-848) have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import Evidence

Partition = tuple[str, int]
"""Topic and partition number."""

_JOIN_COLUMNS: Final = ["given_member_id", "client_id", "new_generation_id", "assignor", "members"]
_SYNC_COLUMNS: Final = ["member_id", "generation_id", "assignments", "error_code"]
_TIMES: Final = ["asked_ns", "answered_ns", "source", "seq", "answer_seq"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member claims to own.

    :ivar partitions: its ownedPartitions (KIP-429)
    :ivar generation: in which they were assigned to it (KIP-792); None if its subscription has no generation
    :ivar topics: that it subscribes to
    :ivar has_rack: whether it states its rack (KIP-881)
    """

    partitions: frozenset[Partition]
    generation: int | None
    topics: frozenset[str]
    has_rack: bool


@dataclass(slots=True)
class Round:
    """One generation, as its leader saw it.

    :ivar asked_ns: when the leader asked to join
    :ivar listed_ns: when it got the list of members
    :ivar claims: by member id
    :ivar given: by member id, what the leader assigned; None where it sent no SyncGroup that succeeded
    :ivar is_synced: whether it sent a SyncGroup at all
    :ivar synced_ns: when it sent the first; 0 where it sent none
    """

    generation: int
    leader_id: str
    leader: str
    assignor: str
    asked_ns: int
    listed_ns: int
    source: str
    seq: int
    claims: Mapping[str, Claim]
    given: Mapping[str, frozenset[Partition]] | None = None
    is_synced: bool = False
    synced_ns: int = 0
    owners: dict[Partition, list[str]] = field(default_factory=dict)

    @property
    def claimants(self) -> dict[Partition, list[str]]:
        """Return which members claim each partition."""
        found: dict[Partition, list[str]] = {}
        for member_id in sorted(self.claims):
            for partition in self.claims[member_id].partitions:
                found.setdefault(partition, []).append(member_id)
        return found

    def evidence(self, text: str) -> Evidence:
        """Return a fact that the list of members shows, or the SyncGroup that followed it."""
        return Evidence(
            self.listed_ns, self.source, self.seq, f"generation {self.generation}, led by {self.leader}: {text}"
        )


def label(partitions: Iterable[Partition]) -> list[str]:
    """Return ``topic-number`` of each, in order."""
    return [f"{topic}-{number}" for topic, number in sorted(partitions)]


def read_rounds(exchanges: pa.Table | None) -> list[Round]:
    """Return the rounds of a group in order of time.

    :param exchanges: rows of `Exchange`; None where the source is a log
    """
    if exchanges is None or not exchanges.num_rows:
        return []
    joins = exchanges.filter(pc.and_(pc.equal(exchanges["api"], "JoinGroup"), pc.equal(exchanges["error_code"], 0)))
    joins = joins.filter(pc.greater(pc.list_value_length(joins["members"]), 0)).select(_JOIN_COLUMNS + _TIMES)
    rounds = [_round(row) for row in joins.to_pylist()]
    rounds.sort(key=lambda each: (each.listed_ns, each.source, each.seq))
    syncs = exchanges.filter(pc.equal(exchanges["api"], "SyncGroup")).select(_SYNC_COLUMNS + _TIMES)
    led: dict[tuple[str, int | None], list[Round]] = {}
    for each in rounds:
        led.setdefault((each.leader_id, each.generation), []).append(each)
    for row in sorted(syncs.to_pylist(), key=lambda row: row["asked_ns"]):
        before = [
            each for each in led.get((row["member_id"], row["generation_id"]), []) if each.listed_ns <= row["asked_ns"]
        ]
        if before:
            _add_sync(before[-1], row)
    return rounds


def _round(row: dict[str, Any]) -> Round:
    return Round(
        generation=row["new_generation_id"] or 0,
        leader_id=row["given_member_id"] or "",
        leader=row["client_id"] or row["given_member_id"] or "",
        assignor=row["assignor"] or "",
        asked_ns=row["asked_ns"],
        listed_ns=row["answered_ns"] or row["asked_ns"],
        source=row["source"],
        seq=-1 if row["answer_seq"] is None else row["answer_seq"],
        claims={each["member_id"]: _claim(each["subscription"] or {}) for each in row["members"] if each["member_id"]},
    )


def _claim(subscription: dict[str, Any]) -> Claim:
    generation = subscription.get("generation_id")
    return Claim(
        partitions=_partitions(subscription.get("owned")),
        generation=generation if generation is not None and generation >= 0 else None,
        topics=frozenset(subscription.get("topics") or ()),
        has_rack=bool(subscription.get("rack_id")),
    )


def _partitions(entries: list[dict[str, Any]] | None) -> frozenset[Partition]:
    return frozenset((entry["topic"] or "", number) for entry in entries or () for number in entry["partitions"] or ())


def _add_sync(each: Round, row: dict[str, Any]) -> None:
    each.synced_ns = each.synced_ns or row["asked_ns"]
    each.is_synced = True
    if row["error_code"] or not row["assignments"]:
        return
    given = {item["member_id"]: _partitions(item["partitions"]) for item in row["assignments"]}
    each.given = given
    each.owners = {}
    for member_id in sorted(given):
        for partition in given[member_id]:
            each.owners.setdefault(partition, []).append(member_id)
