"""What a detector yields, and how findings name members and list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Final, NamedTuple

from kcoord_wire.forensics.detectors.windows import MINUTE_NS, SECOND_NS
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory, MemberLife, Rebalance
from kcoord_wire.protocol.error_codes import describe_error

if TYPE_CHECKING:
    import pyarrow as pa

MAX_EVIDENCE: Final = 10
"""Facts that a finding carries at most."""

_LISTED: Final = 3


class Found(NamedTuple):
    """A `Finding` without its group and detector, which `kcoord_wire.forensics.detectors.detect` adds.

    :ivar suspects: member ids of those whose client may have the bug; see `known_bugs`
    :ivar traits: what else is known of the damage; see `ClientBug.requires`
    """

    severity: str
    from_ns: int
    to_ns: int | None
    subject: str | None
    text: str
    advice: str
    value: float
    threshold: float
    rebalances: list[int]
    evidence: list[Evidence]
    suspects: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()


Detector = Callable[["GroupHistory", "pa.Table | None"], Iterator[Found]]


def client_of(row: MemberLife) -> str:
    """Return the name that people know a member by: its client id, else its member id."""
    return row.client_id or row.member_id


def error_name(code: int) -> str:
    """Return ``REBALANCE_IN_PROGRESS``, or ``unknown error code``."""
    return describe_error(code).partition(" ")[2].strip("()")


def listed(names: Sequence[str]) -> str:
    """Return the first three names, with an ellipsis where there are more."""
    return ", ".join(names[:_LISTED]) + (" ..." if len(names) > _LISTED else "")


def person(client_id: str | None, host: str | None) -> str:
    """Return ``c1 (10.0.0.1)``, as far as both are known."""
    name = client_id or "a client without a name"
    return f"{name} ({host})" if host else name


def lasting(ns: float) -> str:
    """Return a duration as findings have it: ``340 ms``, ``8.1 s``, ``12 min``."""
    if ns < SECOND_NS:
        return f"{ns / NS_PER_MS:.0f} ms"
    return f"{ns / SECOND_NS:.1f} s" if ns < 2 * MINUTE_NS else f"{ns / MINUTE_NS:.0f} min"


def plural(one: str, items: Sized, several: str | None = None) -> str:
    """Return the word for one item or for several, which by default has an s at its end."""
    return one if len(items) == 1 else several or f"{one}s"


def only(names: Sequence[str]) -> str | None:
    """Return the one name there is: a finding about several members has no subject."""
    return names[0] if len(names) == 1 else None


def subscription_traits(members: Sequence[MemberLife]) -> frozenset[str]:
    """Return ``unequal subscriptions`` if the members want different topics."""
    return frozenset({"unequal subscriptions"} if len({frozenset(life.topics) for life in members}) > 1 else ())


def first_evidence(rebalances: Sequence[Rebalance], facts: int) -> list[Evidence]:
    """Return the first `facts` pieces of evidence of each of the first rebalances, five at most."""
    return [evidence for rebalance in rebalances[:5] for evidence in rebalance.evidence[:facts]]
