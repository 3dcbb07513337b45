"""Claims: two owners of a partition, two claims to one, and a partition that changes hands before it is given up.

Cooperative members say in JoinGroup what they own, and the leader believes them (KIP-429). Normal is that each
partition is claimed by one member at most, is assigned to one, and is withheld from a new owner until the former one
does not claim it any more.

Two owners: the leader assigns a partition to two members of one generation. Both process its records.

Stale claim: two members of one generation claim a partition; one of them has lost it and does not know. A leader takes
the claim of the higher generation (KIP-792) and ignores the others; without generations it cannot tell.

Handed over early: the leader gives a partition to a member that does not claim it, or claims it from an older
generation, while another member claims it: that one works on it until it has its own assignment.

Thresholds: 1 partition each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, listed, only, plural
from kcoord_wire.forensics.detectors.rounds import Partition, Round, label, read_rounds
from kcoord_wire.forensics.model import Evidence, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 1
_NEVER: Final = -1  # the generation of a member that does not claim a partition
_OLDER: Final = "older claim"
_OLDER_PREFERRED: Final = "older claim preferred"
_RACKS: Final = "racks"

_Wrong = dict[Partition, list[str]]
"""The partitions concerned, with the members concerned."""


def find_two_owners(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all generations in which a partition was assigned twice."""
    wrong = [(each, _twice(each.owners)) for each in read_rounds(exchanges)]
    yield from _found(
        history,
        [(each, partitions) for each, partitions in wrong if partitions],
        "critical",
        "assigned to two members of one generation",
        "Both read them. Update the client library of the leader, and restart the members that claim what they lost.",
        lambda each, _: [each.leader_id],
    )


def find_stale(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all generations in which two members claimed a partition."""
    holders: dict[Partition, str] = {}
    wrong: list[tuple[Round, _Wrong]] = []
    for each in read_rounds(exchanges):
        twice = _twice(each.claimants)
        if twice:
            stale = {part: [who for who in claimants if who != holders.get(part)] for part, claimants in twice.items()}
            wrong.append((each, stale))
        holders |= {partition: owners[0] for partition, owners in each.owners.items()}
    yield from _found(
        history,
        wrong,
        "warning",
        "claimed by two members of one generation",
        "One of the two has lost them and does not know: restart it, and update its client library.",
        lambda _, partitions: [who for members in partitions.values() for who in members],
    )


def find_early(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all generations in which a partition was given away under its owner."""
    wrong = [(each, _early(each)) for each in read_rounds(exchanges)]
    yield from _found(
        history,
        [(each, partitions) for each, partitions in wrong if partitions],
        "critical",
        "given to another member while their owner still claimed them",
        "Two members read them for a while. Update the client library of the leader.",
        lambda each, _: [each.leader_id],
        _traits_of_early,
    )


def _twice(members: _Wrong) -> _Wrong:
    return {partition: who for partition, who in members.items() if len(who) > 1}


def _since(each: Round, member_id: str, partition: Partition) -> int:
    """Return the generation from which a member claims a partition; 0 if it claims it and does not say."""
    claim = each.claims.get(member_id)
    if claim is None or partition not in claim.partitions:
        return _NEVER
    return claim.generation or 0


def _early(each: Round) -> _Wrong:
    """Return the partitions that are given away under a better claim, each with the member that has that claim."""
    found: _Wrong = {}
    for partition, claimants in each.claimants.items():
        for owner in each.owners.get(partition, [])[:1]:
            since = _since(each, owner, partition)
            better = [who for who in claimants if who != owner and _since(each, who, partition) > since]
            if better:
                found[partition] = better
    return found


def _traits_of_early(each: Round, partitions: _Wrong) -> Iterator[str]:
    newest = max((claim.generation or 0 for claim in each.claims.values()), default=0)
    for partition, better in partitions.items():
        if _since(each, each.owners[partition][0], partition) != _NEVER:
            yield _OLDER_PREFERRED
        elif any(_since(each, who, partition) < newest for who in better):
            yield _OLDER
    if any(claim.has_rack for claim in each.claims.values()):
        yield _RACKS


def _no_traits(_each: Round, _partitions: _Wrong) -> Iterator[str]:
    yield from ()


def _found(
    history: GroupHistory,
    wrong: list[tuple[Round, _Wrong]],
    severity: str,
    what: str,
    advice: str,
    suspects: Callable[[Round, _Wrong], list[str]],
    traits: Callable[[Round, _Wrong], Iterator[str]] = _no_traits,
) -> Iterator[Found]:
    """Yield the finding about the rounds with something wrong, if there are any."""
    if not wrong:
        return
    names = {life.member_id: client_of(life) for life in history.members}
    concerned = {partition for _, partitions in wrong for partition in partitions}
    suspected = sorted({who for each, partitions in wrong for who in suspects(each, partitions)})
    led = listed(sorted({each.leader for each, _ in wrong}))
    text = (
        f"{len(concerned)} {plural('partition was', concerned, 'partitions were')} {what}: {listed(label(concerned))}, "
    )
    yield Found(
        severity=severity,
        from_ns=wrong[0][0].listed_ns,
        to_ns=wrong[-1][0].listed_ns,
        subject=only(sorted({names.get(who, who) for who in suspected})),
        text=f"{text}in {len(wrong)} {plural('generation', wrong)} led by {led}",
        advice=advice,
        value=float(len(concerned)),
        threshold=float(THRESHOLD),
        rebalances=sorted({number for each, _ in wrong for number in each.rebalances_of(history)}),
        evidence=[_evidence(each, partitions, names) for each, partitions in wrong[:MAX_EVIDENCE]],
        suspects=tuple(suspected),
        traits=frozenset(trait for each, partitions in wrong for trait in traits(each, partitions)),
    )


def _evidence(each: Round, partitions: _Wrong, names: Mapping[str, str]) -> Evidence:
    """Return one of the partitions of a round, with its members."""
    first = min(partitions)
    return each.evidence(f"{label([first])[0]}: {', '.join(names.get(who, who) for who in partitions[first])}")
