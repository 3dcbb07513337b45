"""Offset reset: the position of a group was set back, or ahead, by something else than reading on.

Normal is that committed offsets rise, and that a consumer reads on from where it was. They are set by an operator
(``kafka-consumer-groups.sh --reset-offsets``), by a member that commits less than was committed, by the expiry of
committed offsets, by an offset that the log does not have any more (auto.offset.reset), and by seeking.

Threshold: 1 partition. Partitions that one client changed in one way within `_TOGETHER_NS` are one finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, listed, only, person, plural
from kcoord_wire.forensics.detectors.windows import SECOND_NS
from kcoord_wire.forensics.model import Evidence, GroupHistory, OffsetReset, ResetKind

THRESHOLD: Final = 1
_TOGETHER_NS: Final = 10 * SECOND_NS
_DID: Final = {
    ResetKind.ADMIN: "{who}, no member of the group, set the committed offset of {places}",
    ResetKind.COMMIT: "{who} committed less than was committed of {places}",
    ResetKind.UNSEEN: "The committed offset of {places} is another one than was committed last",
    ResetKind.OUT_OF_RANGE: "{who} asked for an offset that the log does not have (OFFSET_OUT_OF_RANGE) of {places}",
    ResetKind.SEEK: "{who} reads again what was committed of {places}",
}
_ADVICE: Final = {
    ResetKind.ADMIN: "If this (kafka-consumer-groups.sh --reset-offsets) was not intended, find out who uses this "
    "client. After a step back records are read again, after a step ahead some are never read.",
    ResetKind.COMMIT: "Records are read again. Look for a process that commits positions of its own, such as an old "
    "checkpoint or a retry that comes late.",
    ResetKind.UNSEEN: "Offsets expire while a group is empty (offsets.retention.minutes) and are gone with a deleted "
    "group; a tool may have set them from where this source does not see.",
    ResetKind.OUT_OF_RANGE: "The records were deleted before they were read (retention.ms, retention.bytes), or the "
    "topic was made again. auto.offset.reset decides where reading goes on: latest skips what is there.",
    ResetKind.SEEK: "The application seeks, or keeps positions of its own: the records are read again.",
}
_WARNINGS: Final = (ResetKind.COMMIT, ResetKind.UNSEEN, ResetKind.OUT_OF_RANGE, ResetKind.ADMIN)


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield a finding for each reset of one or several partitions."""
    for resets in _together(history.resets):
        first, kind = resets[0], ResetKind(resets[0].kind)
        places = [f"{each.topic}-{each.partition}" for each in resets]
        who = person(first.client_id, first.client_host)
        text = _DID[kind].format(who=who, places=f"{len(places)} {plural('partition', places)}")
        yield Found(
            severity="warning" if kind in _WARNINGS else "info",
            from_ns=first.time_ns,
            to_ns=resets[-1].time_ns,
            subject=first.client_id if kind != ResetKind.UNSEEN else only(places),
            text=f"{text}: {listed([_change(each) for each in resets])}{_cost(resets)}.",
            advice=_ADVICE[kind],
            value=float(len(resets)),
            threshold=float(THRESHOLD),
            rebalances=[],
            evidence=[Evidence(each.time_ns, "", -1, _change(each)) for each in resets[:MAX_EVIDENCE]],
        )


def _together(resets: Sequence[OffsetReset]) -> Iterator[list[OffsetReset]]:
    """Yield the resets of one client, kind and time; several of one partition stay apart."""
    open_: dict[tuple[str, str | None, str | None], list[OffsetReset]] = {}
    for each in resets:
        key = (each.kind, each.client_id, each.client_host)
        held = open_.get(key)
        is_again = held is not None and any((each.topic, each.partition) == (one.topic, one.partition) for one in held)
        if held is None or is_again or each.time_ns - held[-1].time_ns > _TOGETHER_NS:
            if held is not None:
                yield held
            open_[key] = held = []
        held.append(each)
    yield from open_.values()


def _change(reset: OffsetReset) -> str:
    after = "none" if reset.to_offset is None else f"{reset.to_offset:,}"
    return f"{reset.topic}-{reset.partition} from {reset.from_offset:,} to {after}"


def _cost(resets: Sequence[OffsetReset]) -> str:
    """Return how many records are read again, and how many are skipped."""
    moves = [each.to_offset - each.from_offset for each in resets if each.to_offset is not None]
    again, skipped = -sum(move for move in moves if move < 0), sum(move for move in moves if move > 0)
    counts = ((again, "are read again"), (skipped, "are skipped"))
    return "".join(f"; {count:,} records {what}" for count, what in counts if count)
