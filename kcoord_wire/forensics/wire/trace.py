"""What a group's course is told in: the lives of its members, what set rebalances off, the rebalances.

Law: these are filled by wire_replay.py, and only read by whoever explains them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kcoord_wire.forensics.wire.joins import Failover, Round
from kcoord_wire.forensics.wire.rows import Key, Leaver, Offer, Partition, Row

__all__ = ["COMPLETING", "EMPTY", "PREPARING", "STABLE", "UNKNOWN_STATE", "Course", "Peer", "Trigger", "is_cooperative"]

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
UNKNOWN_STATE = ""


@dataclass(slots=True, eq=False)
class Peer:
    """A member id with its life, as it came to be known.

    :ivar since: its first sign; `is_new` whether that was its first join
    :ivar joins: its JoinGroup requests that were taken
    :ivar held: what it was last given and has not given back; `gave_up` what its last assignment took from it
    :ivar refused: the last answer that told it that it is not what it takes itself for
    :ivar former: the life that the same client had before
    """

    member_id: str
    instance_id: str | None
    client_id: str | None
    host: str
    since: Key
    is_new: bool
    left: Key | None = None
    why: str | None = None
    leave: Row | None = None
    joins: list[Row] = field(default_factory=list)
    parked: Row | None = None
    waits_sync: Row | None = None
    held: frozenset[Partition] = frozenset()
    gave_up: frozenset[Partition] = frozenset()
    gave_up_by: Row | None = None
    refused: Row | None = None
    former: Peer | None = None
    alive_ns: int = 0
    first_generation: int | None = None
    last_generation: int | None = None
    connections: set[str] = field(default_factory=set)

    @property
    def identity(self) -> str:
        """The same for a static member that comes back under another id."""
        return self.member_id if self.instance_id is None else f"instance {self.instance_id}"

    @property
    def session_ms(self) -> int | None:
        return next((row.session_ms for row in reversed(self.joins) if row.session_ms), None)

    @property
    def rebalance_ms(self) -> int | None:
        for row in reversed(self.joins):
            if row.rebalance_ms is not None and row.rebalance_ms >= 0:
                return row.rebalance_ms
        return self.session_ms


def is_cooperative(offers: Iterable[Offer]) -> bool:
    """Whether a client that offers these keeps its partitions while it rejoins: it does if all of them allow it."""
    offered = list(offers)
    named = bool(offered) and all("cooperative" in offer.assignor for offer in offered)
    return named or any(offer.owned for offer in offered)


@dataclass(slots=True, eq=False)
class Trigger:
    """What moved the group out of its state.

    :ivar kind: ``joined`` (new), ``rejoined`` (known), ``static`` (a known instance id under a new member id),
        ``left``, ``session``, ``sync``, ``vanished`` (gone, and no timeout known that would tell why) or ``hidden``
    :ivar former: the join before this one, of the same member
    :ivar leads: the member led the generation before
    :ivar gave_up: what the member's last assignment had taken from it
    :ivar refused: what it was told before it came back
    :ivar failover: the loss of the coordinator that the member comes back after
    :ivar missed: the round before this one, where it was completed without this (static) member
    :ivar inferred: it does not stand in the source: it follows from what was seen later
    """

    kind: str
    at: Key
    peer: Peer | None = None
    row: Row | None = None
    leaver: Leaver | None = None
    former: Row | None = None
    leads: bool = False
    gave_up: frozenset[Partition] = frozenset()
    gave_up_by: Row | None = None
    refused: Row | None = None
    failover: Failover | None = None
    missed: Round | None = None
    inferred: bool = False


@dataclass(slots=True, eq=False)
class Course:
    """One rebalance, as it went.

    :ivar sign: the answer that showed it, where its trigger is not in the source
    :ivar loaded: the coordinator was lost before, and nothing else had begun since
    :ivar others: what would have set it off, had it not been going on already
    :ivar before: the members when it began
    :ivar from_empty: there were none
    :ivar former_round: the round before
    """

    trigger: Trigger
    started: Key
    before: dict[str, Peer]
    from_empty: bool
    former_round: Round | None
    sign: Row | None = None
    loaded: Failover | None = None
    others: list[Trigger] = field(default_factory=list)
    joins: list[tuple[Key, Peer, Row]] = field(default_factory=list)
    removed: list[tuple[Peer, str]] = field(default_factory=list)
    round: Round | None = None
    generation: int | None = None
    after: dict[str, Peer] = field(default_factory=dict)
    stable: Key | None = None
    over: Key | None = None
    outcome: str = "open"
