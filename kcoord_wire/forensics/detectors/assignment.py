"""What a leader assigns: unevenly, twice, too early, or by assignors that do not fit together.

Cooperative members say in JoinGroup what they own, and the leader believes them (KIP-429).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.detectors.finding import (
    MINUTE_NS,
    DetectorResult,
    Seen,
    client_of,
    detector,
    lasting,
    plural,
    together_ns,
)
from kcoord_wire.forensics.detectors.rounds import Partition, Round, label
from kcoord_wire.forensics.detectors.topics import came_later
from kcoord_wire.forensics.model import Evidence, Generation, GroupHistory, MemberLife
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import first_of, only

# ---- uneven assignment

UNEVEN_ASSIGNMENT_THRESHOLD: Final = 1.5
_LEAST_DIFFERENCE: Final = 2
_ADVICE_ON_RANGE: Final = (
    "range hands each topic's remainder to the same members: take roundrobin, sticky or cooperative-sticky, or numbers "
    "of partitions that the number of members divides."
)
_ADVICE_ON_CLAIMS: Final = (
    "Members of the Go library claim what is free and never give up what they can keep up with: limit MaximumClaims, "
    "or let all members balance their claims."
)
_SHARE: Final = "share"
_ADVICE: Final = "Look at the leader's client library: it computes the assignment, and may be of another version."


@detector(70)
def uneven_assignment(seen: Seen) -> Iterator[DetectorResult]:
    """Uneven assignment: a member has much more to do than its equals, or nothing at all although there is enough.

    Members are compared with those that subscribe to the same topics, in the assignment that lasted longest: by what
    its leader assigned, for a member that died before it received its part holds nothing of an even assignment. Normal
    is a difference of one partition; the range assignor adds one per topic, to the members that come first in the
    alphabet.

    Threshold: the busiest member has at least 1.5 times its fair share and 2 partitions more than the least busy one;
    or a member has nothing while another has 2 or more. Warning; info where topics are part of it that came while the
    members stayed, for then `new_topics` says why.
    """
    stable = [row for row in seen.history.generations if row.stable_ns is not None and row.members > 1]
    if not stable or seen.history.group.protocol_type == _SHARE:
        return  # members of a share group have the same partitions
    longest = max(stable, key=lambda row: (_lasted_ns(seen.history, row), -row.joined_ns))
    # In the middle: members receive their assignments one after the other.
    moment = (longest.stable_ns or 0) + _lasted_ns(seen.history, longest) // 2
    is_led = seen.exchanges is not None and longest.leader_id is not None
    equals = _assigned(longest, seen) if is_led else _held(seen.history, moment)
    for topics, load in equals.items():
        most, share = max(load.values()), sum(load.values()) / len(load)
        if most - min(load.values()) >= _LEAST_DIFFERENCE and most >= UNEVEN_ASSIGNMENT_THRESHOLD * share:
            yield _uneven(seen, longest, moment, topics, load)


def _uneven(
    seen: Seen, generation: Generation, moment: int, topics: tuple[str, ...], load: Mapping[str, int]
) -> DetectorResult:
    """Return the finding; `load` are the partitions of each member id."""
    names = seen.names
    busy = sorted(load, key=lambda member_id: -load[member_id])
    total, busiest = sum(load.values()), names.get(busy[0], busy[0])
    most, least, share = load[busy[0]], load[busy[-1]], total / len(load)
    idle = [names.get(member_id, member_id) for member_id in busy if not load[member_id]]
    return DetectorResult(
        severity="warning" if came_later(seen.history).keys().isdisjoint(topics) else "info",
        from_ns=generation.joined_ns,
        to_ns=generation.ended_ns,
        subject=busiest,
        text=f"of {total} partitions of {first_of(topics)}, {busiest} has {most}, where {share:.1f} would be even"
        + (f"; {len(idle)} have none: {', '.join(idle[:3])}" if idle else f"; the least has {least}")
        + (f" ({generation.assignor})" if generation.assignor else ""),
        advice=_advice(seen.history, generation),
        value=most / share,
        threshold=UNEVEN_ASSIGNMENT_THRESHOLD,
        rebalances=[r.number for r in seen.history.rebalances if r.generation_id == generation.generation_id],
        evidence=(
            Evidence(moment, "", -1, f"{names.get(member_id, member_id)}: {load[member_id]} partitions")
            for member_id in busy
        ),
    )


def _advice(history: GroupHistory, generation: Generation) -> str:
    if history.group.origin == "marshal":
        return _ADVICE_ON_CLAIMS
    return _ADVICE_ON_RANGE if generation.assignor == "range" else _ADVICE


def _assigned(generation: Generation, seen: Seen) -> dict[tuple[str, ...], Counter[str]]:
    """Return what the leader assigned to each member, by what they subscribe to; empty where that was not captured."""
    rounds = [each for each in seen.rounds if each.generation == generation.generation_id]
    led = min(rounds, key=lambda each: abs(each.listed_ns - generation.joined_ns), default=None)
    equals: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    if led is not None and led.given is not None:
        for member_id, claim in led.claims.items():
            if claim.topics:
                equals[tuple(sorted(claim.topics))][member_id] = len(led.given.get(member_id, ()))
    return equals


def _held(history: GroupHistory, moment: int) -> dict[tuple[str, ...], Counter[str]]:
    """Return what each member present at that moment held, by what they subscribe to: a server, or a log, gave it."""
    held = Counter(row.member_id for row in history.ownership if _covers(row.from_ns, row.to_ns, moment))
    equals: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for life in history.members:
        is_dead = life.died_ns is not None and life.died_ns <= moment
        if _covers(life.joined_ns, life.left_ns, moment) and life.topics and not is_dead:
            equals[tuple(sorted(life.topics))][life.member_id] = held[life.member_id]
    return equals


def _covers(from_ns: int, to_ns: int | None, moment: int) -> bool:
    return from_ns <= moment and (to_ns is None or to_ns > moment)


def _lasted_ns(history: GroupHistory, generation: Generation) -> int:
    end = history.group.last_ns if generation.ended_ns is None else generation.ended_ns
    return end - (generation.stable_ns or generation.joined_ns)


# ---- clumped topic

CLUMPED_TOPIC_THRESHOLD: Final = 2
_LEAST_PARTITIONS: Final = 4


@detector(71)
def clumped_topic(seen: Seen) -> Iterator[DetectorResult]:
    """Clumped topic: one member has all partitions of a topic, though counts are even and others subscribe to it.

    Topics differ in traffic, so even counts are no even load: a busy topic on one member is that member's whole work.
    Normal is that a topic is spread over its subscribers. A sticky assignor that keeps partitions in the order of their
    topics gives a new member whole topics (KAFKA-16277).

    Threshold: 2 topics of 4 partitions or more, each wholly on one member, in the assignment that lasted longest; the
    counts of their subscribers differ by one at most.
    """
    rounds = seen.assigned_rounds
    if not rounds:
        return
    longest, _ = max(rounds, key=lambda pair: pair[1] - pair[0].listed_ns)
    clumped = _clumped(longest, longest.given or {})
    if len(clumped) < CLUMPED_TOPIC_THRESHOLD:
        return
    names = seen.names
    yield DetectorResult(
        severity="info",
        from_ns=longest.listed_ns,
        text=f"{len(clumped)} topics are each on one member, though others subscribe to them: "
        f"{first_of(sorted(clumped))} ({longest.assignor})",
        advice="Counts of partitions are even; the load is not if the topics differ in traffic. Update the leader's "
        "client library, or take roundrobin, and let all members rejoin at once.",
        value=len(clumped),
        threshold=CLUMPED_TOPIC_THRESHOLD,
        rebalances=seen.rebalances_of([longest]),
        evidence=(
            longest.evidence(f"all of {topic} to {names.get(who, who)}") for topic, who in sorted(clumped.items())
        ),
        suspects=(longest.leader_id,),
    )


def _clumped(each: Round, given: Mapping[str, frozenset[tuple[str, int]]]) -> dict[str, str]:
    """Return the topics that one member has alone, with that member."""
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for member_id, partitions in given.items():
        for topic, _ in partitions:
            sizes[topic][member_id] += 1
    found = {}
    for topic, held in sizes.items():
        subscribers = [member_id for member_id, claim in each.claims.items() if topic in claim.topics]
        loads = [len(given.get(member_id, ())) for member_id in subscribers]
        if len(held) == 1 and len(loads) > 1 and max(loads) - min(loads) <= 1 and held.total() >= _LEAST_PARTITIONS:
            (found[topic],) = held
    return found


# ---- mixed assignors

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


@detector(21, basis="frames")
def mixed_assignors(seen: Seen) -> Iterator[DetectorResult]:
    """Mixed assignors: members whose assignors are incompatible, so that a migration does not get on.

    * Eager and cooperative: a group becomes cooperative only when every member offers a cooperative assignor, and Java
      members do that by offering both lists for one bounce (KIP-429). librdkafka refuses to offer eager and cooperative
      assignors side by side (librdkafka#3589, #4368): such members cannot migrate by a rolling bounce at all.
    * Classic and consumer protocol (KIP-848): the coordinator serves both in one group until the last classic member is
      gone; a custom assignor of the clients cannot be kept.

    Normal is a mixture during a bounce. Threshold: members that were present at the same time for 10 minutes and share
    no family; or at once where the coordinator refused a member (INCONSISTENT_GROUP_PROTOCOL): critical while a client
    stays outside, a warning once all that were refused have joined, or the group is empty and lets anybody in.
    """
    refused = [] if seen.exchanges is None else _refusals(seen.exchanges)
    if seen.exchanges is not None and refused:
        yield _refusal(refused, _admitted(seen.exchanges, refused), _is_empty(seen.history))
    families: dict[str, list[MemberLife]] = defaultdict(list)
    for life in seen.history.members:
        families[_CLASSIC if life.protocol == "classic" else _CONSUMER].append(life)
        if life.protocol == "classic" and life.assignors:
            families[_family(life.assignors)].append(life)
    for migration in _MIGRATIONS:
        times = [
            (one, together_ns([one], families[migration.new], seen.history.group.last_ns))
            for one in families[migration.old]
        ]
        late = [(one, ns) for one, ns in times if ns >= THRESHOLD_NS]
        if late:
            yield _held_up(migration, late, len(families[migration.new]))


def _family(assignors: list[str]) -> str:
    if not COOPERATIVE.intersection(assignors):
        return _EAGER
    return _COOPERATIVE if COOPERATIVE.issuperset(assignors) else _BOTH


def _held_up(migration: _Migration, late: list[tuple[MemberLife, int]], ready: int) -> DetectorResult:
    """Return the finding about members that hold a migration up; `ready` others are through with it."""
    longest = max(time for _, time in late)
    names = sorted({client_of(one) for one, _ in late})
    who = "; ".join([first_of(names), ", ".join(sorted({one.library for one, _ in late if one.library}))]).removesuffix(
        "; "
    )
    return DetectorResult(
        severity="warning",
        from_ns=min(one.joined_ns for one, _ in late),
        subject=only(names),
        text=f"the migration from {migration.name} stands still: {len(names)} member{'s' * (len(names) > 1)} with "
        f"{migration.old} ({who}) next to {ready} with {migration.new}, for {longest / MINUTE_NS:.0f} min",
        advice=migration.advice,
        value=longest / MINUTE_NS,
        threshold=THRESHOLD_NS / MINUTE_NS,
        evidence=(
            Evidence(one.joined_ns, "", -1, f"{client_of(one)} offers {', '.join(one.assignors) or '-'}")
            for one, _ in late
        ),
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


def _refusal(rows: list[dict[str, Any]], admitted: dict[_Client, int], is_empty: bool) -> DetectorResult:
    last = {_client(row): row for row in rows}
    outside = [row for client, row in last.items() if client not in admitted]
    names = sorted({row["client_id"] or row["client_host"] for row in (outside or rows)})
    if outside:
        end = "; the group was empty at the end of the source" if is_empty else ""
        verb = "cannot join"
    else:
        ns = max(admitted[client] - row["asked_ns"] for client, row in last.items())
        verb, end = "could not join", f"; {plural('it', names, 'all')} joined {lasting(ns)} after the last refusal"
    return DetectorResult(
        severity="critical" if outside and not is_empty else "warning",
        from_ns=rows[0]["asked_ns"],
        to_ns=rows[-1]["asked_ns"],
        subject=only(names),
        text=f"{first_of(names)} {verb}: no assignor that all members offer "
        f"(INCONSISTENT_GROUP_PROTOCOL, {len(rows)} x){end}",
        advice=_ADVICE_ON_REFUSAL,
        value=len(rows),
        evidence=(Evidence(row["asked_ns"], row["source"], row["seq"], f"it offers {_offered(row)}") for row in rows),
    )


def _offered(row: dict[str, Any]) -> str:
    return "nothing" if row["offered"] is None else ", ".join(item["assignor"] for item in row["offered"])


# ---- claims
#
# Cooperative members say in JoinGroup what they own, and the leader believes them (KIP-429). Normal is that each
# partition is claimed by one member at most, is assigned to one, and is withheld from a new owner until the former one
# does not claim it any more. Threshold of each of the three: 1 partition.


_NEVER: Final = -1  # the generation of a member that does not claim a partition
_OLDER: Final = "older claim"
_OLDER_PREFERRED: Final = "older claim preferred"
_RACKS: Final = "racks"

_Wrong = dict[Partition, list[str]]
"""The partitions concerned, with the members concerned."""


@detector(30)
def two_owners(seen: Seen) -> Iterator[DetectorResult]:
    """Two owners: the leader assigns a partition to two members of one generation. Both process its records."""
    wrong = [(each, _twice(each.owners)) for each in seen.rounds]
    yield from _claims(
        seen,
        wrong,
        [each.leader_id for each, partitions in wrong if partitions],
        "critical",
        "assigned to two members of one generation",
        "Both read them. Update the client library of the leader, and restart the members that claim what they lost.",
    )


@detector(54)
def stale_claim(seen: Seen) -> Iterator[DetectorResult]:
    """Stale claim: two members of one generation claim a partition; one of them has lost it and does not know.

    A leader takes the claim of the higher generation (KIP-792) and ignores the others; without generations it cannot
    tell.
    """
    holders: dict[Partition, str] = {}
    wrong: list[tuple[Round, _Wrong]] = []
    for each in seen.rounds:
        twice = _twice(each.claimants)
        stale = {part: [who for who in claimants if who != holders.get(part)] for part, claimants in twice.items()}
        wrong.append((each, stale))
        holders |= {partition: owners[0] for partition, owners in each.owners.items()}
    yield from _claims(
        seen,
        wrong,
        [who for _, partitions in wrong for members in partitions.values() for who in members],
        "warning",
        "claimed by two members of one generation",
        "One of the two has lost them and does not know: restart it, and update its client library.",
    )


@detector(55)
def handed_over_early(seen: Seen) -> Iterator[DetectorResult]:
    """Handed over early: the leader gives a partition to a member while another one still claims it.

    The new owner does not claim it, or claims it from an older generation; the other works on it until it has its own
    assignment.
    """
    wrong = [(each, _early(each)) for each in seen.rounds]
    yield from _claims(
        seen,
        wrong,
        [each.leader_id for each, partitions in wrong if partitions],
        "critical",
        "given to another member while their owner still claimed them",
        "Two members read them for a while. Update the client library of the leader.",
        frozenset(trait for each, partitions in wrong if partitions for trait in _traits_of_early(each, partitions)),
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


def _claims(
    seen: Seen,
    wrong: Iterable[tuple[Round, _Wrong]],
    suspects: Iterable[str],
    severity: str,
    what: str,
    advice: str,
    traits: frozenset[str] = frozenset(),
) -> Iterator[DetectorResult]:
    """Yield the finding about the rounds with something wrong, if there are any."""
    wrong = [(each, partitions) for each, partitions in wrong if partitions]
    if not wrong:
        return
    names, rounds = seen.names, [each for each, _ in wrong]
    concerned = {partition for _, partitions in wrong for partition in partitions}
    suspected = sorted(set(suspects))
    led = first_of(sorted({each.leader for each in rounds}))
    were = plural("partition was", concerned, "partitions were")
    yield DetectorResult(
        severity=severity,
        from_ns=rounds[0].listed_ns,
        to_ns=rounds[-1].listed_ns,
        subject=only(sorted({names.get(who, who) for who in suspected})),
        text=f"{len(concerned)} {were} {what}: {first_of(label(concerned))}, in {len(wrong)} "
        f"{plural('generation', wrong)} led by {led}",
        advice=advice,
        value=len(concerned),
        rebalances=seen.rebalances_of(rounds),
        evidence=(_claim(each, partitions, names) for each, partitions in wrong),
        suspects=tuple(suspected),
        traits=traits,
    )


def _claim(each: Round, partitions: _Wrong, names: Mapping[str, str]) -> Evidence:
    """Return one of the partitions of a round, with its members."""
    first = min(partitions)
    return each.evidence(f"{label([first])[0]}: {', '.join(names.get(who, who) for who in partitions[first])}")
