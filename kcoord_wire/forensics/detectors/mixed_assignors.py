"""Mixed assignors: members whose assignors are incompatible, so that a migration does not get on.

* Eager and cooperative: a group becomes cooperative only when every member offers a cooperative assignor, and Java
  members do that by offering both lists for one bounce (KIP-429). librdkafka refuses to offer eager and cooperative
  assignors side by side (librdkafka#3589, #4368): such members cannot migrate by a rolling bounce at all.
* Classic and consumer protocol (KIP-848): the coordinator serves both in one group until the last classic member is
  gone; a custom assignor of the clients cannot be kept.

Normal is a mixture during a bounce. Threshold: members that were present at the same time for 10 minutes and share no
family; or at once where the coordinator refused a member (INCONSISTENT_GROUP_PROTOCOL): critical while a client stays
outside, a warning once all that were refused have joined, or the group is empty and lets anybody in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, lasting, listed, only, plural
from kcoord_wire.forensics.detectors.windows import MINUTE_NS
from kcoord_wire.forensics.model import Evidence, GroupHistory, MemberLife
from kcoord_wire.protocol.error_codes import ErrorCode

THRESHOLD_NS: Final = 10 * MINUTE_NS
COOPERATIVE: Final = frozenset({"cooperative-sticky"})

_Client = tuple[str, str]  # client id and host
_EAGER, _BOTH, _COOPERATIVE = "eager assignors alone", "both", "cooperative assignors alone"
_CLASSIC, _CONSUMER = "the classic protocol", "the consumer protocol"
_ADVICE_ON_REFUSAL: Final = (
    "All members must have one assignor in common. librdkafka cannot offer eager and cooperative ones side by side: "
    "stop the group, then start all with the new one."
)


class _Migration(NamedTuple):
    """Members with `old` hold it up where others with `new` are present for longer than the threshold."""

    old: str
    new: str
    name: str
    advice: str


_ADVICE_ON_EAGER: Final = (
    "librdkafka cannot offer eager and cooperative assignors side by side: stop all such members, then start them with "
    "the new assignor. Java members need one rolling bounce with both, and a second one with the new alone."
)
_ADVICE_ON_CLASSIC: Final = (
    "Bounce the members that are left with group.protocol=consumer; custom assignors of the clients have to go."
)
_MIGRATIONS: Final = (
    _Migration(_EAGER, _BOTH, "eager to cooperative", _ADVICE_ON_EAGER),
    _Migration(_BOTH, _COOPERATIVE, "eager to cooperative", _ADVICE_ON_EAGER),
    _Migration(_CLASSIC, _CONSUMER, "classic to consumer protocol (KIP-848)", _ADVICE_ON_CLASSIC),
)


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield the refusals first, then members of different families side by side."""
    refused = [] if exchanges is None else _refusals(exchanges)
    if exchanges is not None and refused:
        yield _refusal(refused, _admitted(exchanges, refused), _is_empty(history))
    families: dict[str, list[MemberLife]] = defaultdict(list)
    for life in history.members:
        families[_CLASSIC if life.protocol == "classic" else _CONSUMER].append(life)
        if life.protocol == "classic" and life.assignors:
            families[_family(life.assignors)].append(life)
    for migration in _MIGRATIONS:
        late = list(_side_by_side(families[migration.old], families[migration.new], history.group.last_ns))
        if late:
            yield _held_up(migration, late, len(families[migration.new]))


def _family(assignors: list[str]) -> str:
    if not COOPERATIVE.intersection(assignors):
        return _EAGER
    return _COOPERATIVE if COOPERATIVE.issuperset(assignors) else _BOTH


def _side_by_side(old: list[MemberLife], new: list[MemberLife], last_ns: int) -> Iterator[tuple[MemberLife, int]]:
    """Yield the members that were present together with one of `new` for the threshold or longer, and how long."""

    def end(life: MemberLife) -> int:
        return last_ns if life.left_ns is None else life.left_ns

    for one in old:
        together = max((min(end(one), end(other)) - max(one.joined_ns, other.joined_ns) for other in new), default=0)
        if together >= THRESHOLD_NS:
            yield one, together


def _held_up(migration: _Migration, late: list[tuple[MemberLife, int]], ready: int) -> Found:
    """Return the finding about members that hold a migration up; `ready` others are through with it."""
    longest = max(time for _, time in late)
    names = sorted({client_of(one) for one, _ in late})
    who = "; ".join([listed(names), ", ".join(sorted({one.library for one, _ in late if one.library}))]).removesuffix(
        "; "
    )
    return Found(
        severity="warning",
        from_ns=min(one.joined_ns for one, _ in late),
        to_ns=None,
        subject=only(names),
        text=f"the migration from {migration.name} stands still: {len(names)} member{'s' * (len(names) > 1)} with "
        f"{migration.old} ({who}) next to {ready} with {migration.new}, for {longest / MINUTE_NS:.0f} min",
        advice=migration.advice,
        value=longest / MINUTE_NS,
        threshold=THRESHOLD_NS / MINUTE_NS,
        rebalances=[],
        evidence=[
            Evidence(one.joined_ns, "", -1, f"{client_of(one)} offers {', '.join(one.assignors) or '-'}")
            for one, _ in late[:MAX_EVIDENCE]
        ],
    )


def _refusals(exchanges: pa.Table) -> list[dict[str, Any]]:
    """Return the JoinGroups that were refused for their assignors, in order of time."""
    is_refused = pc.equal(exchanges["error_code"], ErrorCode.INCONSISTENT_GROUP_PROTOCOL.value)
    columns = ["asked_ns", "source", "seq", "client_id", "client_host", "offered"]
    rows = exchanges.filter(pc.and_(pc.equal(exchanges["api"], "JoinGroup"), is_refused)).select(columns).to_pylist()
    return sorted(rows, key=lambda row: (row["asked_ns"], row["source"], row["seq"]))


def _client(row: dict[str, Any]) -> _Client:
    return row["client_id"] or "", row["client_host"] or ""


def _admitted(exchanges: pa.Table, refused: list[dict[str, Any]]) -> dict[_Client, int]:
    """Return when a client was first let in after its last refusal, under a member id that is new to the group."""
    good = pc.and_(pc.equal(exchanges["api"], "JoinGroup"), pc.equal(exchanges["error_code"], 0))
    columns = ["client_id", "client_host", "asked_ns", "member_id", "given_member_id"]
    last = {_client(row): row["asked_ns"] for row in refused}
    inside: set[str] = set()
    found: dict[_Client, int] = {}
    for row in exchanges.filter(pc.fill_null(good, False)).select(columns).sort_by("asked_ns").to_pylist():
        name, client = row["given_member_id"] or row["member_id"], _client(row)
        if name not in inside and client in last and row["asked_ns"] > last[client]:
            found.setdefault(client, row["asked_ns"])
        inside.add(name)
    return found


def _is_empty(history: GroupHistory) -> bool:
    """Whether the group had lost all its members by the end of the source."""
    return bool(history.members) and all(life.left_ns is not None for life in history.members)


def _refusal(rows: list[dict[str, Any]], admitted: dict[_Client, int], is_empty: bool) -> Found:
    last = {_client(row): row for row in rows}
    outside = [row for client, row in last.items() if client not in admitted]
    names = sorted({row["client_id"] or row["client_host"] for row in (outside or rows)})
    if outside:
        end = "; the group was empty at the end of the source" if is_empty else ""
        verb = "cannot join"
    else:
        ns = max(admitted[client] - row["asked_ns"] for client, row in last.items())
        verb, end = "could not join", f"; {plural('it', names, 'all')} joined {lasting(ns)} after the last refusal"
    return Found(
        severity="critical" if outside and not is_empty else "warning",
        from_ns=rows[0]["asked_ns"],
        to_ns=rows[-1]["asked_ns"],
        subject=only(names),
        text=f"{listed(names)} {verb}: no assignor that all members offer "
        f"(INCONSISTENT_GROUP_PROTOCOL, {len(rows)} x){end}",
        advice=_ADVICE_ON_REFUSAL,
        value=float(len(rows)),
        threshold=1.0,
        rebalances=[],
        evidence=[
            Evidence(row["asked_ns"], row["source"], row["seq"], f"it offers {_offered(row)}")
            for row in rows[:MAX_EVIDENCE]
        ],
    )


def _offered(row: dict[str, Any]) -> str:
    return "nothing" if row["offered"] is None else ", ".join(item["assignor"] for item in row["offered"])
