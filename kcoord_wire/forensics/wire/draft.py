"""Groups of the 0.8 draft: what RegisterConsumer, Ping, StopFetcher and StartFetcher show of them.

    history, rules = explain_draft(traffic)

A round is a StopFetcher to every consumer and, when all have answered, a StartFetcher. In the older passage (section 2)
it is the consumers' registrations, which the coordinator answers together and with partitions.

Laws:

* A consumer is a member from its registration to the end of that connection, or to its next registration. In the older
  passage, where connections are closed to rebalance, it is one until a round without it.
* It owns what StartFetcher assigns from its answer on, until its answer to the next StopFetcher: it closes its fetchers
  before it answers (section 11). One that does not answer owns it to the end of its connection.
* Positions in answers to Ping and StopFetcher are counted as commits: the coordinator writes them for the consumer.

Source: "the 0.8 consumer-coordinator draft", sections 2, 7 to 11.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory, Rebalance, new_rebalance
from kcoord_wire.forensics.wire.facts import evidence_of, identity_of, removed_member
from kcoord_wire.forensics.wire.moments import NS_PER_S, UNKNOWN_SEQ, Moment
from kcoord_wire.forensics.wire.ownership import Holding
from kcoord_wire.forensics.wire.round_rules import DRAFT_RULES
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

_REGISTER, _STOP, _START = "RegisterConsumer", "StopFetcher", "StartFetcher"
DRAFT_APIS: Final = (_REGISTER, _STOP, _START, "Ping")
_AT_ONCE_NS: Final = NS_PER_S
_MAX_NAMED: Final = 3  # of a kind, in a sentence or its evidence
_DEFAULT_SESSION_MS: Final = 6_000


def explain_draft(traffic: GroupTraffic) -> tuple[GroupHistory, dict[int, str]]:
    """Return the history of a group of the 0.8 draft, and the rule that explained each rebalance, by its number.

    :param traffic: the exchanges of the draft alone
    """
    group = _Draft(traffic)
    return group.history(), group.rules()


class _Draft:
    """Reads one group."""

    def __init__(self, traffic: GroupTraffic) -> None:
        self._traffic = traffic
        registered = [each for each in traffic.requests if each.api == _REGISTER and each.error == 0]
        self._by_sockets = any(each.assignment is not None for each in registered)
        self._lives: list[Life] = []
        self._at: dict[str, Life] = {}  # by connection
        for request in registered:
            self._register(request)
        self._to: dict[Life, list[GroupRequest]] = defaultdict(list)  # what the coordinator asked each
        for request in traffic.requests:
            if request.api != _REGISTER and request.connection in self._at:
                self._to[self._at[request.connection]].append(request)
        self._rounds = self._rounds_of_sockets(registered) if self._by_sockets else self._rounds_of_fetchers()
        _number(self._rounds)
        known: set[Partition] = set()
        for before, round_ in pairwise([None, *self._rounds]):
            assert round_ is not None
            self._explain(round_, before, known)
            known.update(*round_.assigned.values())

    def history(self) -> GroupHistory:
        holdings = [holding for life in self._lives for holding in self._holdings(life)]
        states = ("PreparingRebalance", "CompletingRebalance") if self._by_sockets else ("Stopping", "Starting")
        rows = RoundHistory(
            self._traffic,
            self._rounds,
            self._lives,
            holdings,
            protocol="draft",
            states=states,
            blind=self._blind(),
        )
        return rows.history(self._emptied())

    def rules(self) -> dict[int, str]:
        return {number: each.triggers[0].rule.name for number, each in enumerate(self._rounds, start=1)}

    # ---- members

    def _register(self, request: GroupRequest) -> None:
        former = next((life for life in reversed(self._lives) if life.member_id == request.member_id), None)
        if former is not None and self._by_sockets:
            former.joins.append(request)
            self._at[request.connection] = former
            return
        if former is not None and (former.left is None or former.left > request.asked):
            former.left = request.asked
        life = Life(request.member_id, None, None, request.host, request.asked, is_new=True, former=former)
        life.joins.append(request)
        life.coordinator = address_of(request.connection)
        life.left = None if self._by_sockets else self._closed_at(request)
        self._lives.append(life)
        self._at[request.connection] = life

    def _closed_at(self, request: GroupRequest) -> Moment | None:
        """When the connection of a registration was closed."""
        closed_ns = self._traffic.closed.get(request.connection)
        return None if closed_ns is None else Moment(closed_ns, request.asked.source, UNKNOWN_SEQ)

    # ---- rounds

    def _rounds_of_fetchers(self) -> list[Round]:
        rounds: list[Round] = []
        current: dict[str, Round] = {}  # by coordinator
        asked: dict[Round, list[tuple[Life, GroupRequest]]] = defaultdict(list)
        for request in self._traffic.requests:
            life = self._at.get(request.connection)
            if life is None or request.api not in (_STOP, _START):
                continue
            round_ = current.get(life.coordinator)
            if round_ is None or _begins_another(round_, life, request):
                round_ = current[life.coordinator] = Round(life.coordinator, request.epoch, request.asked)
                rounds.append(round_)
            round_.epoch = request.epoch if round_.epoch is None else round_.epoch  # consumers may have none
            if life not in round_.lives:
                round_.lives.append(life)
            if request.api == _START:
                round_.joined = round_.joined or request.asked
                round_.assigned[life] = request.assignment or frozenset()
            asked[round_].append((life, request))
        for round_, following in zip(rounds, [*rounds[1:], None], strict=False):
            _settle(round_, asked[round_], following)
        return rounds

    def _rounds_of_sockets(self, registered: list[GroupRequest]) -> list[Round]:
        rounds = []
        for together in parked_together(registered):
            round_ = Round(address_of(together[0].connection), None, together[0].asked)
            for request in together:
                life = self._at[request.connection]
                if life not in round_.lives:
                    round_.lives.append(life)
                round_.waited[life] = request.asked
                if request.answered is not None:
                    round_.assigned[life] = request.assignment or frozenset()
                    round_.ready[life] = request.answered
            round_.joined = min(round_.ready.values(), default=None)
            rounds.append(round_)
        return rounds

    # ---- causes

    def _explain(self, round_: Round, before: Round | None, known: set[Partition]) -> None:
        former = [] if before is None else before.lives
        came = [life for life in round_.lives if life not in former]
        takeover = self._takeover(round_, before, came)
        found = self._missing(round_, former)
        if takeover is None:
            found += self._came(came, before)
            found = found or [self._same_members(round_, before, known)]
        elif before is not None:
            found += self._came([life for life in came if life.former is None], before)
        round_.triggers = sorted(found, key=attrgetter("at"))
        if takeover is not None:
            round_.triggers.insert(0, takeover)

    def _missing(self, round_: Round, former: Sequence[Life]) -> list[Trigger]:
        """Record the consumers that were in the round before and are not in this one."""
        names = {life.member_id for life in round_.lives}
        found = []
        for life in former:
            if life.member_id not in names:
                why, trigger = self._gone(life, round_)
                round_.gone.append(Departure(life, why))
                found.append(trigger)
        return found

    def _takeover(self, round_: Round, before: Round | None, came: list[Life]) -> Trigger | None:
        """Whether another coordinator makes this round than the one before."""
        facts = [
            evidence_of(life.joins[-1], f"{life.member_id} registered", answer=True)
            for life in round_.lives[:_MAX_NAMED]
        ]
        count = f"{len(round_.lives)} consumer{'s' if len(round_.lives) != 1 else ''}"
        if before is None:
            return _known_before(round_, count, facts)
        closed = [life.left for life in before.lives if life.left is not None and life.left > before.began]
        since = min([*closed, *(life.since for life in came), round_.began])
        if round_.coordinator != before.coordinator or _is_newer(round_.epoch, before.epoch):
            what = f"{count} registered with {_described(round_)}; the coordinator before was {_described(before)}"
            return new_trigger(DRAFT_RULES["takeover"], since, None, what, facts)
        again = sum(life.former in before.lives for life in came)
        if again > 1 and again == len(before.lives) == len(closed) and _at_once(closed):
            what = f"all {again} connections to {round_.coordinator} were closed, and the consumers registered again"
            return new_trigger(DRAFT_RULES["lost"], since, None, what, facts)
        return None

    def _came(self, lives: list[Life], before: Round | None) -> Iterator[Trigger]:
        for life in lives:
            join, former = life.joins[0], life.former
            facts = [evidence_of(join, f"{life.member_id} registered", answer=True)]
            if not isinstance(former, Life) or former.left is None or before is None:
                yield new_trigger(DRAFT_RULES["new"], life.since, life, "", facts)
            elif (join.topics, join.topic_regex) != (former.joins[-1].topics, former.joins[-1].topic_regex):
                names = ", ".join(join.topics or ()) or join.topic_regex or "none"
                yield new_trigger(DRAFT_RULES["subscription"], life.since, life, f"for other topics: {names}", facts)
            else:
                gap = f"{seconds(max(0, life.since.time_ns - former.left.time_ns))} after its connection was closed"
                at = min(former.left, life.since)
                yield new_trigger(DRAFT_RULES["reconnected"], at, life, gap, [_closed(former, former.left), *facts])

    def _gone(self, life: Life, round_: Round) -> tuple[Why, Trigger]:
        """Why a consumer is not in a round, by what it left unanswered."""
        end = life.left or self._closed_at(life.joins[-1])
        is_closed = end is not None and end.time_ns <= round_.began.time_ns + _AT_ONCE_NS
        at = round_.began if end is None else min(end, round_.began)
        session_ns = (life.session_ms or _DEFAULT_SESSION_MS) * NS_PER_MS
        waiting = [each for each in self._to[life] if each.asked < at and (each.answered is None or each.answered > at)]
        is_silent = bool(waiting) and at.time_ns - waiting[0].asked.time_ns >= session_ns // 2
        life.why, life.left = Why.SESSION if is_silent else Why.LEFT, at
        closed = [_closed(life, at)] if is_closed else []
        some = waiting[:_MAX_NAMED]
        facts = [evidence_of(each, f"{each.api} to {life.member_id}, without an answer") for each in some]
        if is_silent:
            return life.why, new_trigger(DRAFT_RULES["silent"], at, life, _unanswered(waiting, at), facts + closed)
        return life.why, new_trigger(DRAFT_RULES["left" if is_closed else "vanished"], at, life, "", closed)

    def _same_members(self, round_: Round, before: Round | None, known: set[Partition]) -> Trigger:
        mute = [] if before is None else before.mute
        for life, request in mute:
            if request.answered is None or not request.error:
                late = "" if request.answered is None else " in time"
                text = f"{request.api} to {life.member_id}, without an answer{late}"
                return new_trigger(
                    DRAFT_RULES["retry"], round_.began, life, request.api + late, [evidence_of(request, text)]
                )
        for life, request in mute:
            what = f"{request.api} with error {request.error}"
            fact = evidence_of(
                request, f"{request.api} of {life.member_id}, answered with {request.error}", answer=True
            )
            return new_trigger(DRAFT_RULES["refused"], round_.began, life, what, [fact])
        new = first_assigned(round_, known)
        if new and known:
            return new_trigger(DRAFT_RULES["topics"], round_.began, None, new)
        return new_trigger(DRAFT_RULES["topics, by exclusion"], round_.began)

    def _emptied(self) -> Rebalance | None:
        """The last consumer has gone: no frame shows what the coordinator does then."""
        last = self._rounds[-1] if self._rounds else None
        if last is None or self._by_sockets or any(life.left is None for life in self._lives):
            return None
        lefts = sorted(life.left for life in last.lives if life.left is not None)
        if len(lefts) > 1 and _at_once(lefts):
            return None  # the coordinator may have closed them, or the capture's host have ended
        ending = Round(last.coordinator, None, lefts[-1])
        found = sorted(((life, *self._gone(life, ending)) for life in last.lives), key=lambda each: each[2].at)
        triggers = [each[2] for each in found]
        return new_rebalance(
            group_id=self._traffic.group_id,
            number=len(self._rounds) + 1,
            generation_id=None,
            started_ns=triggers[0].at.time_ns,
            ended_ns=lefts[-1].time_ns,
            outcome="empty",
            cause=str(triggers[0].rule.cause),
            confidence=triggers[0].rule.confidence,
            detail=triggers[0].text,
            evidence=[fact for trigger in triggers for fact in trigger.facts],
            trigger=identity_of(triggers[0].member),
            protocol_type="consumer",
            cooperative=False,
            members_before=len(last.lives),
            removed=[removed_member(life, why) for life, why, _ in found],
        )

    # ---- owners

    def _holdings(self, life: Life) -> Iterator[Holding]:
        held: list[Holding] = []
        moves = [(each.answered, each) for each in [*self._to[life], *life.joins] if each.answered is not None]
        for at, request in sorted(moves, key=lambda move: move[0]):
            is_start = request.api == _START and not request.error
            if request.api in (_STOP, _START) or request.assignment is not None:
                yield from ended(held, at.time_ns)
                held = []
            if is_start or (request.api == _REGISTER and request.assignment is not None):
                number = next((each.generation for each in self._rounds if each.ready.get(life) == at), None)
                held = [Holding(part, life, number, at.time_ns) for part in sorted(request.assignment or ())]
        yield from ended(held, None if life.left is None else life.left.time_ns)

    # ---- what the source cannot show

    def _blind(self) -> Iterator[str]:
        yield (
            "The coordinator assigns in this group (the 0.8 draft): what it reads from ZooKeeper, such as changes of "
            "topics and its own election, is not on the wire."
        )
        excluded = sum(each.triggers[0].rule is DRAFT_RULES["topics, by exclusion"] for each in self._rounds)
        if excluded:
            yield f"Nothing in the source started {excluded} of {len(self._rounds)} rebalances."


def _described(round_: Round) -> str:
    return round_.coordinator if round_.epoch is None else f"{round_.coordinator} (epoch {round_.epoch})"


def _is_newer(epoch: int | None, before: int | None) -> bool:
    return epoch is not None and before is not None and epoch != before


def _at_once(moments: Sequence[Moment]) -> bool:
    return max(moments).time_ns - min(moments).time_ns <= _AT_ONCE_NS


def _known_before(round_: Round, count: str, facts: list[Evidence]) -> Trigger | None:
    """Whether the consumers that the source begins with know another coordinator."""
    epochs = [join.epoch for life in round_.lives for join in life.joins if join.epoch is not None]
    if round_.epoch is None or max(epochs, default=round_.epoch) == round_.epoch:
        return None
    what = f"{count} registered with {_described(round_)}, and had known epoch {max(epochs)}"
    return new_trigger(DRAFT_RULES["known epoch"], min(life.since for life in round_.lives), None, what, facts)


def _begins_another(round_: Round, life: Life, request: GroupRequest) -> bool:
    """Whether a request begins another round: in each, a consumer is asked once to stop and once to start."""
    if _is_newer(request.epoch, round_.epoch):
        return True
    if request.api == _STOP:
        return life in round_.lives or bool(round_.assigned)
    return life in round_.assigned


def _settle(round_: Round, asked: Sequence[tuple[Life, GroupRequest]], following: Round | None) -> None:
    """Record when the consumers answered; an answer that came when the next round had begun counts for none.

    A consumer that answers StartFetcher has stopped, whatever became of its answer to StopFetcher.
    """
    for life, request in asked:
        at = request.answered
        if at is None or request.error or (following is not None and at > following.began):
            round_.mute.append((life, request))
        elif request.api == _STOP:
            round_.waited[life] = at
        else:
            round_.ready[life] = at
    round_.mute = [each for each in round_.mute if each[0] not in round_.ready]
    if round_.joined is None and round_.lives and len(round_.waited) == len(round_.lives):
        round_.joined = max(round_.waited.values())


def _number(rounds: Sequence[Round]) -> None:
    number = 0
    for round_ in rounds:
        if round_.assigned:
            number += 1
            round_.generation = number


def _unanswered(waiting: Sequence[GroupRequest], at: Moment) -> str:
    """What a consumer has not answered, and for how long."""
    pings = sum(each.api == "Ping" for each in waiting)
    others = [each.api for each in waiting if each.api != "Ping"]
    names = [*dict.fromkeys(others), *([f"{pings} pings" if pings > 1 else "a ping"] if pings else [])]
    return f"{' and '.join(names)} for {seconds(at.time_ns - waiting[0].asked.time_ns)}"


def _closed(life: Life, at: Moment) -> Evidence:
    return Evidence(at.time_ns, at.source, NO_FRAME, f"the connection of {life.member_id} was closed")
