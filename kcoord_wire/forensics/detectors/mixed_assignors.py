"""Mixed assignors: members whose assignors do not go together, so that a migration stands still.

* Eager and cooperative: a group becomes cooperative only when every member offers a cooperative assignor, and Java
  members do that by offering both lists for one bounce (KIP-429). librdkafka refuses to offer eager and cooperative
  assignors side by side (librdkafka#3589, #4368): such members cannot migrate by a rolling bounce at all.
* Classic and consumer protocol (KIP-848): the coordinator can serve both in one group, until the last classic member is
  gone; an assignor of a client's own cannot come along.

Normal is a mixture during a bounce. Threshold: members that were there at the same time for 10 minutes and share no
family; or at once where the coordinator refused one (INCONSISTENT_GROUP_PROTOCOL).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.windows import MINUTE_NS
from kcoord_wire.forensics.model import Evidence, Finding, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COOPERATIVE", "THRESHOLD_NS", "find"]

THRESHOLD_NS: Final = 10 * MINUTE_NS
COOPERATIVE: Final = frozenset({"cooperative-sticky"})
_INCONSISTENT: Final = 23


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """Refusals first; then members of different families side by side."""
    refused = _refusals(exchanges)
    if refused:
        yield _refusal(history, refused)
    classic = [life for life in history.members if life.protocol == "classic" and life.assignors]
    families = {
        "cooperative assignors alone": [m for m in classic if set(m.assignors) <= COOPERATIVE],
        "eager assignors alone": [m for m in classic if not set(m.assignors) & COOPERATIVE],
        "both": [m for m in classic if set(m.assignors) & COOPERATIVE and not set(m.assignors) <= COOPERATIVE],
    }
    yield from _side_by_side(history, families, "eager assignors alone", "both", "eager to cooperative")
    yield from _side_by_side(history, families, "both", "cooperative assignors alone", "eager to cooperative")
    protocols = {
        "the classic protocol": [life for life in history.members if life.protocol == "classic"],
        "the consumer protocol": [life for life in history.members if life.protocol == "consumer"],
    }
    yield from _side_by_side(
        history, protocols, "the classic protocol", "the consumer protocol", "classic to consumer protocol (KIP-848)"
    )


def _side_by_side(
    history: GroupHistory, families: dict[str, list[MemberLife]], old: str, new: str, migration: str
) -> Iterator[Finding]:
    """Members that hold a migration up, where others were ready next to them for longer than the threshold."""
    last_ns = history.group.last_ns

    def together(one: MemberLife, other: MemberLife) -> int:
        ends = (last_ns if life.left_ns is None else life.left_ns for life in (one, other))
        return min(ends) - max(one.joined_ns, other.joined_ns)

    held_up = [(one, max((together(one, other) for other in families[new]), default=0)) for one in families[old]]
    held_up = [(one, time) for one, time in held_up if time >= THRESHOLD_NS]
    if not held_up:
        return
    libraries = sorted({one.library for one, _ in held_up if one.library})
    longest = max(time for _, time in held_up)
    names = sorted({one.client_id or one.member_id for one, _ in held_up})
    yield Finding(
        history.group.group_id,
        "mixed_assignors",
        "warning",
        min(one.joined_ns for one, _ in held_up),
        None,
        names[0] if len(names) == 1 else None,
        f"the migration from {migration} stands still: {len(names)} member{'s' * (len(names) > 1)} with {old} "
        f"({', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        f"{'; ' + ', '.join(libraries) if libraries else ''}) next to {len(families[new])} with {new}, for "
        f"{longest / MINUTE_NS:.0f} min",
        "librdkafka cannot offer eager and cooperative assignors side by side: stop all such members, then start them "
        "with the new assignor. Java members need one rolling bounce with both, and a second one with the new alone."
        if migration.startswith("eager")
        else "Bounce the members that are left with group.protocol=consumer; assignors of a client's own have to go.",
        longest / MINUTE_NS,
        THRESHOLD_NS / MINUTE_NS,
        [],
        [
            Evidence(
                one.joined_ns, "", -1, f"{one.client_id or one.member_id} offers {', '.join(one.assignors) or '-'}"
            )
            for one, _ in held_up[:10]
        ],
    )


def _refusals(exchanges: pa.Table | None) -> list[dict[str, object]]:
    if exchanges is None:
        return []
    import pyarrow.compute as pc

    wrong = pc.and_(pc.equal(exchanges["api"], "JoinGroup"), pc.equal(exchanges["error_code"], _INCONSISTENT))
    columns = ["asked_ns", "source", "seq", "client_id", "client_host", "offered"]
    rows: list[dict[str, object]] = exchanges.filter(wrong).select(columns).to_pylist()
    return sorted(rows, key=lambda row: (row["asked_ns"], row["source"], row["seq"]))


def _refusal(history: GroupHistory, rows: list[dict[str, object]]) -> Finding:
    names = sorted({str(row["client_id"] or row["client_host"]) for row in rows})
    return Finding(
        history.group.group_id,
        "mixed_assignors",
        "critical",
        int(str(rows[0]["asked_ns"])),
        int(str(rows[-1]["asked_ns"])),
        names[0] if len(names) == 1 else None,
        f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''} cannot join: no assignor that all members offer "
        f"(INCONSISTENT_GROUP_PROTOCOL, {len(rows)} x)",
        "All members must have one assignor in common. librdkafka cannot offer eager and cooperative ones side by "
        "side: stop the group, then start all with the new one.",
        float(len(rows)),
        1.0,
        [],
        [
            Evidence(int(str(row["asked_ns"])), str(row["source"]), int(str(row["seq"])), f"it offers {_names(row)}")
            for row in rows[:10]
        ],
    )


def _names(row: dict[str, object]) -> str:
    offered = row["offered"]
    return ", ".join(str(item["assignor"]) for item in offered) if isinstance(offered, list) else "nothing"
