"""Groups whose coordinator assigns round by round: the 0.8 draft (`draft`) and the consumer rewrite (`rewrite`).

A round is one attempt of the coordinator to give the members their partitions. Neither protocol states why one begins,
so the members of a round are compared with those of the round before: who came, who went, whether the coordinator is
another one, who did not answer. What is left, by exclusion, is a change of topics.

Laws:

* Everything that may have begun a round is listed; the earliest gives the cause, but a takeover comes before all.
* A round is over when every member has its assignment; one that another round follows before is interrupted.
* The generation of a draft's group is the number of the assignment in the source: its messages have none, or one that
  each coordinator begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kcoord_wire.forensics.model import (
    NS_PER_MS,
    Evidence,
    Generation,
    GroupHistory,
    GroupSummary,
    MemberLife,
    Rebalance,
    RemovedMember,
    StateInterval,
    new_rebalance,
)
from kcoord_wire.forensics.wire.commits import commit_rows
from kcoord_wire.forensics.wire.facts import MAX_CITED, describe_member, identity_of, removed_member
from kcoord_wire.forensics.wire.members import member_row
from kcoord_wire.forensics.wire.moments import Moment
from kcoord_wire.forensics.wire.ownership import Holding, Owners, fair_share, find_pauses, ownership_rows
from kcoord_wire.forensics.wire.round_rules import RoundRule
from kcoord_wire.forensics.wire.trace import MemberTrace, Why
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic, Partition

NO_FRAME: Final = -1
_MAX_NAMED: Final = 3  # partitions in a sentence


@dataclass(slots=True, eq=False)
class Life(MemberTrace):
    """The life of a member on one connection, from the request that made it a member.

    :ivar coordinator: the address of the coordinator that it is a member at
    """

    coordinator: str = ""


@dataclass(slots=True)
class Trigger:
    """What may have begun a round."""

    at: Moment
    rule: RoundRule
    text: str
    member: Life | None = None
    facts: list[Evidence] = field(default_factory=list)


@dataclass(slots=True)
class Departure:
    """A member that was in the round before, or had joined since, and is not in this one."""

    member: Life
    why: Why


@dataclass(slots=True, eq=False)
class Round:
    """One attempt of a coordinator to assign.

    :ivar coordinator: its address
    :ivar epoch: of its election, where its requests have one
    :ivar began: its first frame
    :ivar lives: its members, each once
    :ivar waited: when each had done what the coordinator waits for before it assigns: stopped, or joined
    :ivar joined: when all had; None if that never came
    :ivar assigned: what the coordinator assigned to each
    :ivar ready: when each had that
    :ivar mute: members that did not answer in time, or with an error, each with the request
    :ivar triggers: in order of time, at least one
    """

    coordinator: str
    epoch: int | None
    began: Moment
    lives: list[Life] = field(default_factory=list)
    waited: dict[Life, Moment] = field(default_factory=dict)
    joined: Moment | None = None
    assigned: dict[Life, frozenset[Partition]] = field(default_factory=dict)
    ready: dict[Life, Moment] = field(default_factory=dict)
    mute: list[tuple[Life, GroupRequest]] = field(default_factory=list)
    triggers: list[Trigger] = field(default_factory=list)
    gone: list[Departure] = field(default_factory=list)
    generation: int | None = None

    @property
    def start(self) -> Moment:
        """When the first of its triggers came."""
        return min(self.began, *(trigger.at for trigger in self.triggers)) if self.triggers else self.began

    @property
    def over(self) -> Moment | None:
        """When the last member had its assignment; None if one did not get it."""
        return max(self.ready.values()) if self.lives and len(self.ready) == len(self.lives) else None


def new_trigger(
    rule: RoundRule, at: Moment, member: Life | None = None, what: str = "", facts: Iterable[Evidence] = ()
) -> Trigger:
    """Make the trigger that a rule describes."""
    text = rule.sentence.format(who=describe_member(member), what=what)
    return Trigger(at, rule, text, member, list(facts))


def parked_together(requests: Sequence[GroupRequest]) -> list[list[GroupRequest]]:
    """Split requests that a coordinator answers all at once, when it has those of all members.

    :param requests: in order of time
    """
    rounds: list[list[GroupRequest]] = []
    first: Moment | None = None
    for request in requests:
        if not rounds or (first is not None and request.asked > first):
            rounds.append([])
            first = None
        rounds[-1].append(request)
        if request.answered is not None:
            first = request.answered if first is None else min(first, request.answered)
    _move_late(rounds)
    return [round_ for round_ in rounds if round_]


def _move_late(rounds: list[list[GroupRequest]]) -> None:
    """Move requests that came just before the answers of a round: they are answered with those of the next one."""
    for round_, following in pairwise(rounds):
        last = max(request.asked for request in following)
        late = [request for request in round_ if request.answered is not None and request.answered > last]
        following[:0] = late
        round_[:] = [request for request in round_ if request not in late]


def address_of(connection: str) -> str:
    """The coordinator's end of a connection."""
    return connection.partition("#")[0].rpartition("-")[2]


def first_assigned(round_: Round, known: set[Partition]) -> str:
    """The partitions of a round that no member had before, in words; empty if there are none."""
    new = sorted(set().union(*round_.assigned.values()) - known)
    names = ", ".join(f"{topic}-{number}" for topic, number in new[:_MAX_NAMED])
    return names + (f" and {len(new) - _MAX_NAMED} more" if len(new) > _MAX_NAMED else "")


def ended(held: list[Holding], at_ns: int | None) -> list[Holding]:
    """End what a member has held."""
    for holding in held:
        holding.to_ns = None if at_ns is None else max(at_ns, holding.from_ns)
    return held


def seconds(ns: int) -> str:
    """A duration for people."""
    return f"{ns / NS_PER_MS:.0f} ms" if ns < 1_000 * NS_PER_MS else f"{ns / NS_PER_MS / 1_000:.1f} s"


class RoundHistory:
    """Makes the rows of a group.

    :param protocol: as in `MemberLife.protocol`
    :param states: names of the states while it waits for the members, and while it gives them their assignment
    :param blind: what the source cannot show, in sentences
    """

    def __init__(
        self,
        traffic: GroupTraffic,
        rounds: Sequence[Round],
        lives: Sequence[Life],
        holdings: Iterable[Holding],
        *,
        protocol: str,
        states: tuple[str, str],
        blind: Iterable[str],
    ) -> None:
        self._traffic, self._rounds, self._lives = traffic, rounds, lives
        self._holdings = sorted(holdings, key=lambda holding: holding.order)
        self._protocol, self._states_of_round, self._blind = protocol, states, list(blind)

    def history(self, last: Rebalance | None = None) -> GroupHistory:
        """Return all rows.

        :param last: the rebalance in which the group became empty
        """
        traffic = self._traffic
        rebalances = [*self._rebalances(), *([] if last is None else [last])]
        spans = [(row.started_ns, row.ended_ns) for row in rebalances]
        pauses, _ = find_pauses(traffic.group_id, self._holdings, spans)
        for pause in pauses:
            if pause.rebalance is not None:
                row = rebalances[pause.rebalance - 1]
                end_ns = max(traffic.last_ns, pause.from_ns) if pause.to_ns is None else pause.to_ns
                row.paused_ms = (row.paused_ms or 0.0) + (end_ns - pause.from_ns) / NS_PER_MS
        generations = self._generations(rebalances)
        if rebalances and rebalances[-1].outcome == "open":
            self._blind.append("The source ends in the middle of a rebalance.")
        if traffic.unplaced:
            self._blind.append(f"{traffic.unplaced} exchanges have no time and were left out.")
        return GroupHistory(
            group=GroupSummary(
                group_id=traffic.group_id,
                origin="wire",
                protocol_type="consumer",
                first_ns=traffic.first_ns,
                last_ns=traffic.last_ns,
                members=len(self._lives),
                generations=len(generations),
                rebalances=len(rebalances),
                exchanges=traffic.count,
                commits=len(traffic.commits),
                paused_ms=sum(row.paused_ms or 0.0 for row in rebalances),
                blind=self._blind,
            ),
            rebalances=rebalances,
            generations=generations,
            states=self._states(rebalances),
            members=[self._member(life) for life in self._lives],
            ownership=ownership_rows(traffic.group_id, self._holdings),
            pauses=pauses,
            commits=commit_rows(traffic.group_id, traffic.commits),
        )

    # ---- rebalances

    def _rebalances(self) -> Iterator[Rebalance]:
        owners = Owners()
        for number, (round_, following) in enumerate(pairwise([*self._rounds, None]), start=1):
            assert round_ is not None
            before = self._rounds[number - 2] if number > 1 else None
            row = self._rebalance(number, round_, before, following)
            gains = [(part, life) for life, parts in round_.assigned.items() for part in sorted(parts)]
            staying = {life.identity for life in round_.lives}
            row.moved, row.moved_needlessly = owners.count_moves(gains, staying, fair_share(len(gains), len(staying)))
            yield row

    def _rebalance(self, number: int, round_: Round, before: Round | None, following: Round | None) -> Rebalance:
        first, *others = round_.triggers
        start = round_.start if before is None else max(round_.start, before.began)
        end = _end(round_, following)
        more = "; with it: " + ", ".join(other.text for other in others[:MAX_CITED]) if others else ""
        row = new_rebalance(
            group_id=self._traffic.group_id,
            number=number,
            generation_id=round_.generation,
            started_ns=start.time_ns,
            joined_ns=None if round_.joined is None else max(round_.joined.time_ns, start.time_ns),
            ended_ns=None if end is None else max(end.time_ns, start.time_ns),
            outcome="stable" if round_.over is not None else "open" if following is None else "interrupted",
            cause=str(first.rule.cause),
            confidence=first.rule.confidence,
            detail=first.text + more,
            evidence=[fact for trigger in round_.triggers[: MAX_CITED + 1] for fact in trigger.facts],
            trigger=identity_of(first.member),
            protocol_type="consumer",
            cooperative=False,
            members_before=0 if before is None else len(before.lives),
            members_after=len(round_.lives),
            removed=[_removed(each) for each in round_.gone],
        )
        row.paused_ms = 0.0
        _add_last(row, round_)
        return row

    def _generations(self, rebalances: Sequence[Rebalance]) -> list[Generation]:
        return [
            Generation(
                group_id=self._traffic.group_id,
                generation_id=round_.generation,
                joined_ns=row.joined_ns,
                stable_ns=row.ended_ns if row.outcome == "stable" else None,
                ended_ns=None if following is None else following.started_ns,
                assignor=row.assignor,
                leader_id=None,
                members=len(round_.lives),
                partitions=sum(len(parts) for parts in round_.assigned.values()),
            )
            for round_, row, following in zip(self._rounds, rebalances, [*rebalances[1:], None], strict=False)
            if round_.generation is not None and row.joined_ns is not None
        ]

    def _states(self, rebalances: Sequence[Rebalance]) -> list[StateInterval]:
        moves: list[tuple[str, int, int | None]] = []
        waiting, giving = self._states_of_round
        for row in rebalances:
            if row.outcome == "empty":
                moves.append(("Empty", row.started_ns, None))
                continue
            moves.append((waiting, row.started_ns, None))
            if row.joined_ns is not None:
                moves.append((giving, row.joined_ns, row.generation_id))
            if row.outcome == "stable" and row.ended_ns is not None:
                moves.append(("Stable", row.ended_ns, row.generation_id))
        ends = [*(at for _, at, _ in moves[1:]), None]
        return [
            StateInterval(self._traffic.group_id, state, at, end, generation)
            for (state, at, generation), end in zip(moves, ends, strict=False)
            if end is None or end > at
        ]

    # ---- members

    def _member(self, life: Life) -> MemberLife:
        seen = [self._traffic.heartbeats.last(life.member_id) or 0, *(join.asked.time_ns for join in life.joins)]
        seen += [round_.ready[life].time_ns for round_ in self._rounds if life in round_.ready]
        last_ns = max(seen) if life.left is None else min(max(seen), life.left.time_ns)
        row = member_row(self._traffic.group_id, life, max(last_ns, life.since.time_ns))
        row.protocol, row.session_timeout_ms = self._protocol, life.session_ms
        numbers = [round_.generation for round_ in self._rounds if life in round_.assigned]
        row.first_generation_id, row.last_generation_id = next(iter(numbers), None), next(reversed(numbers), None)
        join = life.last_join
        if join is not None:
            row.topics = list(join.topics or ()) or ([join.topic_regex] if join.topic_regex else [])
            row.assignors = [join.assignor] if join.assignor else []
        return row


def _end(round_: Round, following: Round | None) -> Moment | None:
    """When a round was over, or another cut it short."""
    if round_.over is None:
        return None if following is None else max(following.start, round_.began)
    return round_.over if following is None else min(round_.over, following.start)


def _removed(departure: Departure) -> RemovedMember:
    return removed_member(departure.member, departure.why)


def _add_last(row: Rebalance, round_: Round) -> None:
    """Add the member that the others waited for: one that did not answer, else the last to do so."""
    done = sorted(round_.waited.items(), key=lambda item: item[1])
    if round_.mute:
        last = round_.mute[0][0]
    elif done:
        last = done[-1][0]
        row.late_ms = (done[-1][1].time_ns - done[-2][1].time_ns) / NS_PER_MS if len(done) > 1 else None
    else:
        return
    row.last_member_id, row.last_client_id, row.last_client_host = last.member_id, last.client_id, last.host or None
