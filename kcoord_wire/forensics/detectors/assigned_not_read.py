"""Assigned, not read: a member gets partitions, fetches the offsets of some of them, and never those of the others.

Normal is that a consumer fetches the committed offsets of all partitions that it was assigned and does not claim to own
already. One that leaves some out behaves as if it read them (franz-go#686): no member does; only their lag grows.

Partitions that a source shows to be left behind are `stuck_partition`'s, and not named again here.

Threshold: 1 partition that no OffsetFetch of the member's client names, and no commit, for 10 s after the assignment;
the client has fetched or committed others of the same assignment in that time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, listed, only, plural
from kcoord_wire.forensics.detectors.rounds import Partition, Round, assigned_rounds, label
from kcoord_wire.forensics.detectors.stuck_partition import stuck_partitions
from kcoord_wire.forensics.detectors.windows import SECOND_NS
from kcoord_wire.forensics.model import GroupHistory, MemberLife

THRESHOLD: Final = 1
PATIENCE_NS: Final = 10 * SECOND_NS


class _Left(NamedTuple):
    """Partitions of an assignment that their member does not read."""

    round: Round
    life: MemberLife
    partitions: frozenset[Partition]


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all members that leave partitions out."""
    rounds = assigned_rounds(history, exchanges)
    left = list(_left(history, rounds, _reads(exchanges))) if exchanges is not None else []
    stuck = {each.place for each in stuck_partitions(history)}
    left = [item._replace(partitions=item.partitions - stuck) for item in left if item.partitions - stuck]
    if not left:
        return
    concerned = {partition for item in left for partition in item.partitions}
    clients = sorted({client_of(item.life) for item in left})
    is_assigned = plural("partition is assigned", concerned, "partitions are assigned")
    yield Found(
        severity="critical",
        from_ns=left[0].round.listed_ns,
        to_ns=None,
        subject=only(clients),
        text=f"{len(concerned)} {is_assigned} to {listed(clients)} and not read: {listed(label(concerned))}",
        advice="Their lag grows, and nothing else shows it: restart the member, and update its client library.",
        value=float(len(concerned)),
        threshold=float(THRESHOLD),
        rebalances=sorted({number for item in left for number in item.round.rebalances_of(history)}),
        evidence=[
            item.round.evidence(f"{client_of(item.life)} gets {listed(label(item.partitions))}, and fetches no offset")
            for item in left[:MAX_EVIDENCE]
        ],
        suspects=tuple(sorted({item.life.member_id for item in left})),
    )


_Reads = dict[tuple[str | None, str], list[tuple[int, frozenset[Partition]]]]
"""By client id and host: when offsets were fetched or committed, and of which partitions."""


def _reads(exchanges: pa.Table) -> _Reads:
    wanted = pc.is_in(exchanges["api"], value_set=pa.array(["OffsetFetch", "OffsetCommit"]))
    rows = exchanges.filter(wanted).select(["client_id", "client_host", "asked_ns", "offsets"]).to_pylist()
    found: _Reads = defaultdict(list)
    for row in rows:
        found[row["client_id"], row["client_host"]].append((row["asked_ns"], _places(row)))
    return found


def _places(row: dict[str, Any]) -> frozenset[Partition]:
    return frozenset((item["topic"], item["partition"]) for item in row["offsets"] or ())


def _left(history: GroupHistory, rounds: list[tuple[Round, int]], reads: _Reads) -> Iterator[_Left]:
    """Yield what members leave out, in the generations that lasted long enough."""
    lives = {life.member_id: life for life in history.members}
    for each, end_ns in rounds:
        if end_ns - each.listed_ns < PATIENCE_NS:
            continue
        for member_id in each.given or {}:
            life = lives.get(member_id)
            if life is not None and (missing := _missing(each, end_ns, life, reads)):
                yield _Left(each, life, missing)


def _missing(each: Round, end_ns: int, life: MemberLife, reads: _Reads) -> frozenset[Partition]:
    """Return the new partitions of a member that it does not read until the next generation."""
    given = (each.given or {})[life.member_id]
    new = given - each.claims[life.member_id].partitions if life.member_id in each.claims else frozenset()
    times = reads.get((life.client_id, life.client_host or ""), [])
    read = frozenset[Partition]().union(*(parts for at, parts in times if each.listed_ns <= at <= end_ns))
    return new - read if read & given else frozenset()
