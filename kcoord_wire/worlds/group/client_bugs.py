"""Bugs of clients as switches of a virtual member: what its machine does wrong, and what its assignors do wrong.

Laws:

* `MemberMachine` and the assignors know nothing of this: a bug is a subclass of the one or a function around the other.
* Every key of `SWITCHES` is a row of `kcoord_wire.clients.bugs.CLIENT_BUGS`, and the reverse.
* A switch does what the project's own report describes, no more: where the report names a condition (unequal
  subscriptions, racks, claims of an older generation), the member is correct without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from kcoord_wire.assignors import (
    ASSIGNORS,
    NO_RACKS,
    Assign,
    Assignment,
    Assignor,
    MemberAssignment,
    MemberSubscription,
    OnJoin,
    Partitions,
    Racks,
    RebalanceProtocol,
    TopicPartition,
    group_partitions,
    list_partitions,
)
from kcoord_wire.assignors.sticky import with_generation_from_user_data
from kcoord_wire.clients.bugs import CLIENT_BUGS
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.messages import JoinGroupResponse

Counts = Mapping[str, int]
Members = Mapping[str, MemberSubscription]
Wrong = Callable[[Assign, Counts, Members, Racks], Assignment]
"""An assignor with a bug: called with the correct one and its arguments."""

_NO_GENERATION: Final = b"\xff" * 4
_MOST_ROUNDS: Final = 8
"""Needless rounds of librdkafka#3891: 7 to 8, as reported."""


class _NeverEndsError(Exception):
    """The assignor does not return."""


class _RefusedError(Exception):
    """The leader refuses what its assignor returned."""


# ---- the member's side


class _KeepsClaims(MemberMachine):
    """KAFKA-12983: what it owns is cleared before it rejoins, not when the member id turns out to be lost meanwhile."""

    def _lose_owned(self) -> None:
        if self.state is not events.MemberState.JOINING:
            super()._lose_owned()


class _CommitsFirst(MemberMachine):
    """KAFKA-14024: it rejoins when its commit is done, and commits again before that. The application commits here."""

    def _begin_join(self) -> None:
        if self.owned and self._is_cooperative:
            self._retry_at = self._now + self.settings.retry_backoff_ms
        else:
            super()._begin_join()


class _RejoinsAsLeader(MemberMachine):
    """KAFKA-13406: an assignment that is refused raises out of the join, and the member rejoins."""

    def _sync(self, joined: JoinGroupResponse) -> None:
        try:
            super()._sync(joined)
        except _RefusedError:
            self._unjoin("rebalance failed due to IllegalStateException")
            self._back_off()


class _NeverAssigns(_RejoinsAsLeader):
    """librdkafka#3866: the leader of several joins again where it should send SyncGroup."""

    def _assign(self, joined: JoinGroupResponse) -> list[Any]:
        if len(joined.members) > 1:
            raise _RefusedError
        return super()._assign(joined)


class _Hangs(MemberMachine):
    """librdkafka#4783: the thread that computes the assignment also sends heartbeats and reads responses."""

    _hangs = False

    @property
    def deadline(self) -> int | None:
        return None if self._hangs else super().deadline

    def handle(self, event: events.MemberEvent, now: int) -> list[events.MemberEffect]:
        if self._hangs:
            return []
        try:
            return super().handle(event, now)
        except _NeverEndsError:
            self._hangs = True
            return []


class _NeverSyncs(MemberMachine):
    """aiokafka#1176: the assignment does not come to an end, and heartbeats go on."""

    def _sync(self, joined: JoinGroupResponse) -> None:
        try:
            super()._sync(joined)
        except _NeverEndsError:
            self.state = events.MemberState.SYNCING


class _RemembersRevoked(MemberMachine):
    """franz-go#686: what an eager member revokes stays in its list of the last assignment, and the first cooperative
    assignment brings only what that list lacks."""

    _last_protocol: RebalanceProtocol | None = None

    def _take_assignment(self, assignment: MemberAssignment) -> None:
        before = frozenset(list_partitions(self._last_assignment))
        protocol = self._all_assignors[self._protocol or ""].protocol
        super()._take_assignment(assignment)
        if (self._last_protocol, protocol) == (RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE):
            self._unfetched -= before
            for effect in self._effects:
                if isinstance(effect, events.Assigned):
                    effect.partitions -= before
        self._last_protocol = protocol


# ---- the leader's side


def _owned(members: Members, member_id: str) -> list[TopicPartition]:
    return list_partitions(members[member_id].owned)


def _generation(member: MemberSubscription) -> int:
    return with_generation_from_user_data(member).generation


def _claimants(members: Members) -> dict[TopicPartition, list[str]]:
    """Return the members that claim each partition, the oldest generation first."""
    claimants: dict[TopicPartition, list[str]] = {}
    for member_id in sorted(members, key=lambda each: (_generation(members[each]), each)):
        for partition in _owned(members, member_id):
            claimants.setdefault(partition, []).append(member_id)
    return claimants


def _with_claims(members: Members, is_valid: Callable[[str, TopicPartition], bool]) -> dict[str, MemberSubscription]:
    """Return the subscriptions with the claims that are valid, and without the others."""
    return {
        member_id: replace(
            member, owned=group_partitions(each for each in _owned(members, member_id) if is_valid(member_id, each))
        )
        for member_id, member in members.items()
    }


def _without(assignment: Assignment, partitions: Iterable[TopicPartition]) -> Assignment:
    taken = set(partitions)
    return {
        member_id: group_partitions(each for each in list_partitions(given) if each not in taken)
        for member_id, given in assignment.items()
    }


def _differ(members: Members) -> bool:
    """Whether the subscriptions are unequal."""
    return len({frozenset(member.topics) for member in members.values()}) > 1


def _keep_both(assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
    """KAFKA-12984: a partition that two members claim stays with both, whatever the generations."""
    claimants = _claimants(members)
    once = assign(counts, _with_claims(members, lambda who, each: who == claimants[each][0]), racks)
    return {
        member_id: group_partitions(
            [*list_partitions(given), *(each for each in _owned(members, member_id) if len(claimants[each]) > 1)]
        )
        for member_id, given in once.items()
    }


def _ignore_older(assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
    """KAFKA-14639: only claims of the highest generation count; what the others hold is free."""
    newest = max(map(_generation, members.values()))
    return assign(counts, _with_claims(members, lambda who, _: _generation(members[who]) == newest), racks)


def _prefer_older(assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
    """librdkafka#4252: of several claims, that of the lowest generation counts."""
    claimants = _claimants(members)
    return assign(counts, _with_claims(members, lambda who, each: who == claimants[each][0]), racks)


def _refuse_moves(assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
    """KAFKA-13406: the leader refuses an assignment in which a member gets what another claims and is to give up.

    The assignor of those versions is that of KAFKA-14639, so a claim that is out of date is enough.
    """
    assignment = _ignore_older(assign, counts, members, racks)
    claimed = {member_id: set(_owned(members, member_id)) for member_id in members}
    given = {member_id: set(list_partitions(partitions)) for member_id, partitions in assignment.items()}
    added = set[TopicPartition]().union(*(given[each] - claimed[each] for each in members))
    if any(added & (claimed[each] - given[each]) for each in members):
        raise _RefusedError
    return assignment


def _forget_one(assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
    """KAFKA-15170: with racks, an owned partition is neither kept at once nor noted as one that changes its owner."""
    if all(member.rack is None for member in members.values()):
        return assign(counts, members, racks)
    forgotten = {_owned(members, member_id)[0] for member_id, member in members.items() if member.owned}
    return assign(counts, _with_claims(members, lambda _, each: each not in forgotten), racks)


def _clump(assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
    """KAFKA-16277: a member keeps its partitions in order of the topics, so those of the last topics move."""
    if _differ(members):
        return assign(counts, members, racks)
    quota = -(-sum(counts.values()) // len(members))
    moving = {each for member_id in members for each in _owned(members, member_id)[quota:]}
    return _without(assign(counts, _with_claims(members, lambda _, each: each not in moving), racks), moving)


def _never_end(assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
    """librdkafka#4783: unequal subscriptions, and a topic with fewer partitions than members that want it."""
    wanted = [topic for member in members.values() for topic in member.topics]
    if _differ(members) and any(counts.get(topic, 0) < wanted.count(topic) for topic in wanted):
        raise _NeverEndsError
    return assign(counts, members, racks)


def _never_end_over_claims(assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
    """aiokafka#1176: unequal subscriptions, and claims without a generation."""
    if _differ(members) and any(member.user_data.endswith(_NO_GENERATION) for member in members.values()):
        raise _NeverEndsError
    return assign(counts, members, racks)


class _MovesOn:
    """KAFKA-15106, librdkafka#3306, librdkafka#3891: a balanced assignment is not seen as one, and something moves.

    :param rounds: how often; None for ever
    :param only_unequal: only if the subscriptions are unequal
    """

    def __init__(self, rounds: int | None = None, *, only_unequal: bool = False) -> None:
        self._left = rounds
        self._only_unequal = only_unequal

    def __call__(self, assign: Assign, counts: Counts, members: Members, racks: Racks) -> Assignment:
        assignment = assign(counts, members, racks)
        owned = {member_id: _owned(members, member_id) for member_id in members}
        is_balanced = all(set(owned[each]) <= set(list_partitions(assignment[each])) for each in members)
        if not is_balanced or len(members) < 2 or self._left == 0 or (self._only_unequal and not _differ(members)):
            return assignment
        if self._left is not None:
            self._left -= 1
        return _without(assignment, owned[max(sorted(members), key=lambda each: len(owned[each]))][:1])


def _without_generation(topics: Sequence[str], assigned: Partitions, generation: int) -> bytes:
    """aiokafka#1176: the user data of the sticky assignor with generation -1."""
    on_join = ASSIGNORS["sticky"].on_join
    data = b"" if on_join is None else on_join(topics, assigned, generation)
    return data and data[: -len(_NO_GENERATION)] + _NO_GENERATION


# ---- the switches


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """What a bug changes.

    :ivar machine: the member's machine
    :ivar wrong: makes the assignor of one member; None for the correct one
    :ivar on_join: user data of the assignor; None for the correct one
    """

    machine: type[MemberMachine] = MemberMachine
    wrong: Callable[[], Wrong] | None = None
    on_join: OnJoin | None = None


SWITCHES: Final[Mapping[str, Switch]] = MappingProxyType(
    {
        "KAFKA-12983": Switch(machine=_KeepsClaims),
        "KAFKA-12984": Switch(wrong=lambda: _keep_both),
        "KAFKA-13406": Switch(machine=_RejoinsAsLeader, wrong=lambda: _refuse_moves),
        "KAFKA-14024": Switch(machine=_CommitsFirst),
        "KAFKA-14639": Switch(wrong=lambda: _ignore_older),
        "KAFKA-15106": Switch(wrong=lambda: _MovesOn(only_unequal=True)),
        "KAFKA-15170": Switch(wrong=lambda: _forget_one),
        "KAFKA-16277": Switch(wrong=lambda: _clump),
        "librdkafka#3306": Switch(wrong=_MovesOn),
        "librdkafka#3866": Switch(machine=_NeverAssigns),
        "librdkafka#3891": Switch(wrong=lambda: _MovesOn(_MOST_ROUNDS)),
        "librdkafka#4252": Switch(wrong=lambda: _prefer_older),
        "librdkafka#4783": Switch(machine=_Hangs, wrong=lambda: _never_end),
        "franz-go#686": Switch(machine=_RemembersRevoked),
        "aiokafka#1176": Switch(machine=_NeverSyncs, wrong=lambda: _never_end_over_claims, on_join=_without_generation),
    }
)
"""What each bug of `CLIENT_BUGS` changes, by its name."""


def machine_with(bugs: Sequence[str]) -> type[MemberMachine]:
    """Return the machine of a member with these bugs.

    :param bugs: keys of `SWITCHES`
    """
    kinds = {SWITCHES[name].machine for name in bugs}
    first, *others = sorted(kinds or {MemberMachine}, key=lambda kind: (-len(kind.__mro__), kind.__name__))
    return type(first.__name__, (first, *others), {}) if others else first


def assignors_with(bugs: Sequence[str], assignors: Iterable[Assignor]) -> list[Assignor]:
    """Return the assignors of a member with these bugs.

    :param bugs: keys of `SWITCHES`
    """
    found = list(assignors)
    for name in bugs:
        switch, concerned = SWITCHES[name], CLIENT_BUGS[name].assignors
        found = [_changed(each, switch) if not concerned or each.name in concerned else each for each in found]
    return found


def _changed(assignor: Assignor, switch: Switch) -> Assignor:
    if switch.on_join is not None:
        assignor = replace(assignor, on_join=switch.on_join)
    if switch.wrong is None:
        return assignor
    correct, wrong = assignor.assign, switch.wrong()

    def assign(counts: Counts, members: Members, racks: Racks = NO_RACKS, /) -> Assignment:
        return wrong(correct, counts, members, racks)

    return replace(assignor, assign=assign)
