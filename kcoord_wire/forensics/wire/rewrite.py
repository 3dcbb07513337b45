"""Groups of the consumer rewrite (clients 0.8.2): what JoinGroup, Heartbeat and OffsetCommit show of them.

    history, rules = explain_rewrite(traffic)

A round is the JoinGroup requests that the coordinator answers together, with a generation and the assignment that it
has computed. It fails where the answers are RebalanceFailed.

Laws:

* A consumer id is a member from its first JoinGroup on, until a round without it. The design has no LeaveGroup: one
  that is gone has been silent for its session timeout, or the source does not show why.
* It owns what JoinGroup assigns from the response on, until its next JoinGroup, or the response that rejects its
  generation: it stops fetching then.

Source: "Kafka 0.9 Consumer Rewrite Design".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory
from kcoord_wire.forensics.wire.facts import evidence_of
from kcoord_wire.forensics.wire.moments import NS_PER_S, Moment
from kcoord_wire.forensics.wire.ownership import Holding
from kcoord_wire.forensics.wire.round_rules import REWRITE_RULES
from kcoord_wire.forensics.wire.rounds import (
    NO_FRAME,
    Departure,
    Life,
    Round,
    RoundHistory,
    Trigger,
    address_of,
    ended,
    first_assigned,
    new_trigger,
    parked_together,
    seconds,
)
from kcoord_wire.forensics.wire.trace import Why
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic, Partition
from kcoord_wire.protocol.error_codes import ErrorCode

_REBALANCE_FAILED: Final = 111
_LOST: Final = frozenset((14, 15, 16, 110))  # the coordinator starts up, or is another broker
_REJECTED: Final = frozenset((ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID))
_AT_ONCE_NS: Final = NS_PER_S
_MAX_NAMED: Final = 3


def explain_rewrite(traffic: GroupTraffic) -> tuple[GroupHistory, dict[int, str]]:
    """Return the history of a group of the rewrite, and the rule that explained each rebalance, by its number."""
    group = _Rewrite(traffic)
    return group.history(), group.rules()


class _Rewrite:
    """Reads one group."""

    def __init__(self, traffic: GroupTraffic) -> None:
        self._traffic = traffic
        self._lives: dict[str, Life] = {}
        self._connections: dict[Round, list[str]] = {}
        self._failed: set[Round] = set()
        self._refused = [each for each in traffic.requests if each.error in _LOST]
        joins = [each for each in traffic.requests if each.api == "JoinGroup" and _takes_part(each)]
        self._rounds = [round_ for together in parked_together(joins) for round_ in self._round(together)]
        known: set[Partition] = set()
        for before, round_ in pairwise([None, *self._rounds]):
            assert round_ is not None
            self._explain(round_, before, known)
            known.update(*round_.assigned.values())

    def history(self) -> GroupHistory:
        by_member: dict[str, list[GroupRequest]] = defaultdict(list)
        for request in self._traffic.requests:
            if request.who:
                by_member[request.who].append(request)
        holdings = [each for life in self._lives.values() for each in _holdings(life, by_member[life.member_id])]
        rows = RoundHistory(
            self._traffic,
            self._rounds,
            list(self._lives.values()),
            holdings,
            protocol="rewrite",
            states=("PreparingRebalance", "CompletingRebalance"),
            blind=self._blind(),
        )
        return rows.history()

    def rules(self) -> dict[int, str]:
        return {number: each.triggers[0].rule.name for number, each in enumerate(self._rounds, start=1)}

    # ---- rounds

    def _round(self, together: list[GroupRequest]) -> Iterator[Round]:
        """A round of JoinGroup requests; none if they only repeat those of the generation before."""
        round_ = Round(address_of(together[0].connection), None, together[0].asked)
        for request in together:
            if request.who:
                self._take(round_, request)
        if round_.assigned:
            round_.joined = min(round_.ready.values())
        elif any(each.error for each in together):
            self._failed.add(round_)
        former = next(reversed(self._connections), None)
        is_repeat = former is not None and round_.generation is not None and round_.generation == former.generation
        if round_.lives and not is_repeat:
            self._connections[round_] = [each.connection for each in together]
            yield round_

    def _take(self, round_: Round, request: GroupRequest) -> None:
        """Add a member to a round."""
        life = self._life(request)
        life.joins.append(request)
        if life not in round_.lives:
            round_.lives.append(life)
        round_.waited[life] = request.asked
        if request.error == 0 and request.answered is not None:
            round_.assigned[life] = request.assignment or frozenset()
            round_.ready[life] = request.answered
            round_.generation = request.new_generation
        else:
            round_.mute.append((life, request))

    def _life(self, request: GroupRequest) -> Life:
        life = self._lives.get(request.who)
        if life is None:
            life = Life(request.who, None, request.client_id, request.host, request.asked, is_new=not request.member_id)
            self._lives[request.who] = life
        return life

    # ---- causes

    def _explain(self, round_: Round, before: Round | None, known: set[Partition]) -> None:
        former = [] if before is None else before.lives
        found = [self._gone(life, round_) for life in former if life not in round_.lives]
        round_.gone = [Departure(trigger.member, Why.SESSION) for trigger in found if trigger.member is not None]
        for life in round_.lives:
            found += self._came(life, round_, is_known=life in former)
        takeover = self._takeover(round_, before)
        if takeover is None and not found:
            found = [self._same_members(round_, before, known)]
        round_.triggers = sorted(found, key=attrgetter("at"))
        if takeover is not None:
            round_.triggers.insert(0, takeover)

    def _came(self, life: Life, round_: Round, *, is_known: bool) -> Iterator[Trigger]:
        join = next(each for each in reversed(life.joins) if each.asked == round_.waited[life])
        earlier = [each for each in life.joins if each.asked < join.asked]
        fact = evidence_of(join, f"{life.member_id} sent JoinGroup", answer=True)
        if not join.member_id:
            yield new_trigger(REWRITE_RULES["new"], join.asked, life, "", [fact])
        elif earlier and earlier[-1].topics != join.topics:
            names = ", ".join(join.topics or ()) or "nothing"
            yield new_trigger(REWRITE_RULES["subscription"], join.asked, life, names, [fact])
        elif earlier and not is_known:
            yield new_trigger(REWRITE_RULES["returned"], join.asked, life, "", [fact])

    def _gone(self, life: Life, round_: Round) -> Trigger:
        """When a member's session was over that is not in a round."""
        beat_ns = self._traffic.heartbeats.answered.before(life.member_id, round_.began.time_ns) or 0
        seen = [join.asked.time_ns for join in life.joins]
        seen += [join.answered.time_ns for join in life.joins if join.answered is not None]
        last_ns = max(beat_ns, *(at for at in seen if at <= round_.began.time_ns), life.since.time_ns)
        over_ns = last_ns + (life.session_ms or 0) * NS_PER_MS
        end = round_.joined or round_.began
        at = Moment(min(max(over_ns, last_ns), end.time_ns), round_.began.source, round_.began.seq)
        life.left, life.why = at, Why.SESSION
        what = seconds(end.time_ns - last_ns)
        facts = [Evidence(last_ns, round_.began.source, NO_FRAME, f"the last sign of {life.member_id}")]
        return new_trigger(REWRITE_RULES["session" if life.session_ms else "vanished"], at, life, what, facts)

    def _takeover(self, round_: Round, before: Round | None) -> Trigger | None:
        """Whether the coordinator is another one than in the round before, or says so."""
        if before is None:
            return None
        since, until = min(before.ready.values(), default=before.began), round_.joined or round_.began
        refused = [each for each in self._refused if each.answered is not None and since < each.answered < until]
        facts = [
            evidence_of(each, f"{each.api} was answered with {each.error}", answer=True)
            for each in refused[:_MAX_NAMED]
        ]
        at = min([round_.began, *(each.answered for each in refused if each.answered is not None)])
        if round_.coordinator != before.coordinator:
            what = f"the members joined at {round_.coordinator}; the coordinator before was {before.coordinator}"
            return new_trigger(REWRITE_RULES["takeover"], at, None, what, facts)
        if refused:
            what = f"{round_.coordinator} answered {refused[0].api} with error {refused[0].error}"
            return new_trigger(REWRITE_RULES["restarted"], at, None, what, facts)
        return None

    def _same_members(self, round_: Round, before: Round | None, known: set[Partition]) -> Trigger:
        if before in self._failed and before is not None:
            life, request = before.mute[0]
            fact = evidence_of(request, f"JoinGroup of {life.member_id} was answered with {request.error}", answer=True)
            return new_trigger(REWRITE_RULES["failed"], round_.began, None, "", [fact])
        new = first_assigned(round_, known)
        closed_ns = self._closed_ns(before, round_)
        if new and known:
            at = round_.began if closed_ns is None else Moment(closed_ns, round_.began.source, round_.began.seq)
            return new_trigger(REWRITE_RULES["topics"], min(at, round_.began), None, new)
        if closed_ns is not None:
            at = Moment(closed_ns, round_.began.source, round_.began.seq)
            fact = Evidence(closed_ns, at.source, NO_FRAME, "the connections of all members were closed")
            return new_trigger(REWRITE_RULES["sockets"], at, None, str(len(round_.lives)), [fact])
        if before is None:
            return new_trigger(REWRITE_RULES["unknown"], round_.began)
        return new_trigger(REWRITE_RULES["rejoined"], round_.began, round_.lives[0])

    def _closed_ns(self, before: Round | None, round_: Round) -> int | None:
        """When the connections of all members of the round before were closed, if at once."""
        names = [] if before is None else self._connections[before]
        closed = [self._traffic.closed.get(name) for name in names]
        times = [at for at in closed if at is not None and at <= round_.began.time_ns + _AT_ONCE_NS]
        if not names or len(times) < len(names) or max(times) - min(times) > _AT_ONCE_NS:
            return None
        return min(times)

    # ---- what the source cannot show

    def _blind(self) -> Iterator[str]:
        yield (
            "The coordinator assigns in this group (the consumer rewrite): what it reads from ZooKeeper, such as "
            "changes of partitions, is not on the wire; nor does a member say that it leaves."
        )
        joined_before = sum(not life.is_new for life in self._lives.values())
        if joined_before:
            yield (
                f"{joined_before} of {len(self._lives)} members had joined before the source began, "
                "or their join is missing."
            )


def _takes_part(join: GroupRequest) -> bool:
    """Whether a JoinGroup was, or may have been, part of a round: not one that is refused at once."""
    return not join.error or join.error == _REBALANCE_FAILED


def _holdings(life: Life, requests: Sequence[GroupRequest]) -> Iterator[Holding]:
    held: list[Holding] = []
    moves: list[tuple[Moment, bool, GroupRequest]] = []
    for request in requests:
        if request.api == "JoinGroup":
            moves.append((request.asked, False, request))
        if request.answered is not None and (request.api == "JoinGroup" or request.error in _REJECTED):
            moves.append((request.answered, request.api == "JoinGroup", request))
    for at, is_assigned, request in sorted(moves, key=lambda move: move[:2]):
        yield from ended(held, at.time_ns)
        held = []
        if is_assigned and not request.error:
            parts = sorted(request.assignment or ())
            held = [Holding(part, life, request.new_generation, at.time_ns) for part in parts]
    yield from ended(held, None if life.left is None else life.left.time_ns)
