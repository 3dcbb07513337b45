"""What a capture shows of a group: rebalances with their causes, generations, states, members, owners and pauses.

    history = wire_history(exchanges, topics)    # tables of `Exchange` of one group, and of `Sighting`

The way: `traffic` splits the exchanges, `joins` reads the responses, `replay` plays the coordinator's
part again and finds what started each rebalance, the first of the `rules` that holds explains it, and
`ownership` follows the partitions. `kip848` reads the groups of the newer protocol.

Laws:

* The order and the chunks of the input have no effect.
* Any subset of a capture, with fields missing, gives a history. What cannot be determined is None, or `Cause.UNKNOWN`
  with little confidence, and `GroupSummary.blind` says so.
* Rules and detectors name a frame by source and seq; only `place_evidence` looks its position up (packet or byte).
  Evidence that no single frame shows, and that from records of a log, keeps None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.coded import coded
from kcoord_wire.forensics.history import HistoryBuilder, add_pauses, state_intervals
from kcoord_wire.forensics.model import (
    EPOCH_APIS,
    NS_PER_MS,
    Awaited,
    Evidence,
    Generation,
    GroupHistory,
    MemberLife,
    Outage,
    Ownership,
    Pause,
    Rebalance,
    StateInterval,
)
from kcoord_wire.forensics.wire.blocked import blocked_hosts, explains
from kcoord_wire.forensics.wire.facts import identity_of, removed_member
from kcoord_wire.forensics.wire.gaps import Coverage, Holes
from kcoord_wire.forensics.wire.joins import Join, find_failovers, find_joins
from kcoord_wire.forensics.wire.kip848 import Epochs, EpochTrace, read_epochs
from kcoord_wire.forensics.wire.lag import commit_rows, note_growth, read_lag
from kcoord_wire.forensics.wire.links import TopicSizes
from kcoord_wire.forensics.wire.members import End, add_end, awaited_text, find_awaited, find_ends, member_rows
from kcoord_wire.forensics.wire.mixed import Entry, count_both, one_by_epoch, start_with_what_came
from kcoord_wire.forensics.wire.outages import find_outages, outage_rows
from kcoord_wire.forensics.wire.ownership import (
    HeldPartition,
    Owners,
    find_holdings,
    find_pauses,
    find_readings,
    ownership_rows,
)
from kcoord_wire.forensics.wire.replay import Replay
from kcoord_wire.forensics.wire.revocations import awaited_owners
from kcoord_wire.forensics.wire.rules import CauseFinder, Explanation
from kcoord_wire.forensics.wire.signs import NS_PER_S, Moment
from kcoord_wire.forensics.wire.trace import LeaveReason, MemberTrace, RebalanceTrace, StartKind
from kcoord_wire.forensics.wire.traffic import GroupTraffic, Sightings, read_sightings, read_traffic
from kcoord_wire.forensics.wire.unwritten import find_unwritten
from kcoord_wire.protocol.wording import first_of

_AT_ONCE_NS: Final = NS_PER_S  # a static member that is back within this time belongs to the same rebalance
_LISTED_NUMBERS: Final = 5
_MAX_SKIPPED: Final = 20  # a larger jump is a group that was deleted and formed again
_KIPS: Final = {"consumer": "KIP-848", "share": "KIP-932", "streams": "KIP-1071"}
_READ_TYPES: Final = frozenset({None, *EPOCH_APIS.values()})  # what their members hold is read
_UNEXPLAINED: Final = {"RegisterConsumer": "the 0.8 draft", "RewriteJoinGroup": "the consumer rewrite"}
"""The APIs of the designs that stood on ZooKeeper which name a group, with the design."""

_EAGER_ASSIGNORS: Final = ("range", "roundrobin", "sticky")


def wire_history(exchanges: pa.Table, topics: pa.Table | Sightings) -> GroupHistory:
    """Return the history of one group; `findings` stays empty.

    :param exchanges: a table of `model.Exchange`, of one group, in any order
    :param topics: a table of `model.Sighting`; for many groups, read it once with `read_sightings`
    """
    return explain_group(exchanges, topics)[0]


def explain_group(exchanges: pa.Table, topics: pa.Table | Sightings) -> tuple[GroupHistory, dict[int, str]]:
    """Return the same, and the rule that explained each rebalance, by its number; KIP-848 has none."""
    sightings = topics if isinstance(topics, Sightings) else read_sightings(topics)
    exchanges = coded(exchanges)
    traffic = read_traffic(exchanges, sightings)
    of_design = pc.is_in(exchanges["api"], value_set=pa.array(list(_UNEXPLAINED)))
    if pc.any(of_design).as_py():
        return _unexplained(traffic, sorted(exchanges["api"].filter(of_design).unique().to_pylist())), {}
    group = _WireGroup(traffic)
    return group.history(), group.rules()


def _unexplained(traffic: GroupTraffic, apis: Sequence[str]) -> GroupHistory:
    """The history of a group of a design that stood on ZooKeeper: a summary that says so."""
    designs = " and ".join(_UNEXPLAINED[api] for api in apis)
    blind = [f"The group uses the protocol of {designs}, which is not explained."]
    builder = HistoryBuilder(traffic.group_id)
    return GroupHistory(
        builder.summary(traffic.first_ns, traffic.last_ns, blind, origin="wire", exchanges=traffic.count)
    )


class _WireGroup:
    """Runs all stages over one group."""

    def __init__(self, traffic: GroupTraffic) -> None:
        self._traffic = traffic
        unwritten = find_unwritten(traffic)
        failovers = find_failovers(traffic, unwritten)
        self._joins = find_joins(traffic.requests, failovers)
        self._outages = find_outages(traffic, failovers, unwritten)
        self._replay = Replay(traffic, self._joins, failovers, self._outages)
        self._replay.run()
        self._epochs = read_epochs(traffic)
        self._traces = self._replay.rebalances
        self._is_mixed = bool(self._replay.traces and self._epochs.lives)
        if self._is_mixed:
            start_with_what_came(self._traces)
        finder = CauseFinder(traffic)
        explanations = [finder.explain(trace) for trace in self._traces]
        for member in self._replay.traces:
            if member.why == LeaveReason.LEFT and finder.did_not_poll(member):
                member.why = LeaveReason.POLL_TIMEOUT
        self._lives: list[MemberTrace] = [*self._replay.traces, *self._epochs.lives]
        self._ends = find_ends(traffic, self._lives, self._outages)
        self._holes = Holes(traffic, self._lives)
        self._builder = HistoryBuilder(traffic.group_id)
        self._rules: dict[int, str] = {}
        self._add_rebalances(explanations)

    def rules(self) -> dict[int, str]:
        return self._rules

    def history(self) -> GroupHistory:
        traffic, epochs, builder = self._traffic, self._epochs, self._builder
        rebalances = builder.rebalances
        if self._is_mixed:
            count_both(rebalances, self._lives)
        holdings = self._holdings()
        coverage = Coverage(traffic, self._joins, () if epochs.lives else _skipped(self._traces), epochs)
        pauses, unknown = self._pauses(rebalances, holdings, coverage)
        ownership = ownership_rows(traffic.group_id, holdings)
        members = self._members()
        lag = read_lag(traffic, ownership, members)
        note_growth(rebalances, lag.rows)
        builder.lives = sorted(members, key=lambda member: member.joined_ns)
        builder.generations = sorted(
            [*self._generations(), *epochs.generations], key=lambda generation: generation.joined_ns
        )
        builder.protocol_type = self._protocol_type()
        blind = [
            *_blind(traffic, self._replay, self._joins, epochs),
            *self._holes.blind(),
            *_blind_pauses(coverage, builder.protocol_type, is_known=not unknown),
        ]
        return GroupHistory(
            group=builder.summary(
                traffic.first_ns,
                traffic.last_ns,
                blind,
                origin="wire",
                exchanges=traffic.count,
                commits=len(traffic.commits),
                paused_ms=None if unknown else sum(rebalance.paused_ms or 0.0 for rebalance in rebalances),
            ),
            rebalances=rebalances,
            generations=builder.generations,
            states=sorted(self._states(), key=lambda state: state.from_ns),
            members=builder.lives,
            ownership=ownership,
            pauses=pauses,
            commits=commit_rows(traffic.group_id, traffic.commits),
            lag=lag.rows,
            partitions=lag.partitions,
            resets=lag.resets,
            rereads=lag.rereads,
            holes=self._holes.rows,
            outages=self._outage_rows(ownership),
        )

    def _add_rebalances(self, explanations: Sequence[Explanation]) -> None:
        """Add the rebalances of both protocols, in order of time."""
        owners = Owners()
        following = [*(trace.started for trace in self._traces), None][1:]
        moves = [owners.count_assigned(trace) for trace in self._traces]
        classic = map(Entry, self._traces, explanations, following, moves)
        modern = (Entry(trace, why, trace.following, trace.moved) for trace, why in self._epochs.rebalances)
        entries = sorted([*classic, *modern], key=lambda each: each.trace.started.time_ns)
        if self._is_mixed:
            entries = one_by_epoch(entries, self._replay.traces, self._epochs.lives)
        for trace, explanation, until, moved in entries:
            row = self._builder.add(trace.started.time_ns, **_columns(trace, explanation, until))
            row.moved, row.moved_needlessly = moved
            _add_last_joiner(trace, row)
            row.detail += _ended_text(trace, self._ends)
            if isinstance(trace, EpochTrace):
                row.waited_for = self._awaited_owners(trace)
                row.detail += awaited_text(row.waited_for)
                continue
            if trace.outcome == "unseen":
                row.duration_ms = None  # others may still have joined
            self._rules[row.number] = explanation.rule
            row.waited_for = find_awaited(trace, self._ends, self._traffic.horizon_ns)
            row.detail += awaited_text(row.waited_for)
            self._holes.weaken(trace, row)

    def _outage_rows(self, ownership: Sequence[Ownership]) -> list[Outage]:
        blocked = list(blocked_hosts(self._traffic, self._lives, self._builder.rebalances, ownership))
        rows = [
            row
            for row in outage_rows(self._traffic.group_id, self._outages, self._replay.traces, self._traces)
            if not any(explains(each, row, self._traffic) for each in blocked)
        ]
        return sorted([*rows, *blocked], key=lambda row: row.from_ns)

    def _awaited_owners(self, trace: EpochTrace) -> list[Awaited]:
        before = [life for life in self._epochs.lives if trace.before.get(life.member_id) is life]
        return awaited_owners(before, trace.joins, (trace.started, trace.until), self._ends, self._traffic.seen_until)

    def _holdings(self) -> list[HeldPartition]:
        traces, requests = self._replay.traces, self._traffic.requests
        holdings = find_holdings(traces, requests)
        holdings += find_readings(traces, requests, self._traffic.fetched, holdings)
        holdings += self._epochs.holdings
        for holding in holdings:
            end = self._ends.get(holding.member)
            holding.end_with(None if end is None else end.died_ns)
        return sorted(holdings, key=lambda holding: holding.order)

    def _pauses(
        self, rebalances: list[Rebalance], holdings: list[HeldPartition], coverage: Coverage
    ) -> tuple[list[Pause], set[int]]:
        """Add the pauses to the rebalances; return them, and the numbers of the rebalances whose pauses are unknown."""
        spans = [(rebalance.started_ns, rebalance.ended_ns) for rebalance in rebalances]
        pauses, missing = find_pauses(self._traffic.group_id, holdings, spans, coverage.is_unseen)
        pauses = list(_while_topics_were(pauses, self._traffic.sizes))
        is_read = self._protocol_type() in _READ_TYPES
        unknown = set(missing) if is_read else {rebalance.number for rebalance in rebalances}
        add_pauses(rebalances, pauses, self._traffic.last_ns)
        for rebalance in rebalances:
            if rebalance.number in unknown:
                rebalance.paused_ms = None
        return pauses, unknown

    def _members(self) -> list[MemberLife]:
        rows = [*member_rows(self._traffic, self._replay.traces), *self._epochs.members]
        for life, row in zip(self._lives, rows, strict=True):
            add_end(row, self._ends.get(life))
        return rows

    def _protocol_type(self) -> str | None:
        types = [join.protocol_type for join in self._joins]
        types += [request.protocol_type for request in self._traffic.requests]
        known = next((name for name in types if name), None)
        return known or self._epochs.protocol_type

    # ---- generations and states

    def _generations(self) -> list[Generation]:
        following = [*(trace.started.time_ns for trace in self._traces[1:]), None]
        return [
            Generation(
                group_id=self._traffic.group_id,
                generation_id=join.generation,
                joined_ns=join.at.time_ns,
                stable_ns=_stable_ns(trace, join),
                ended_ns=ended_ns,
                assignor=join.assignor or None,
                leader_id=join.leader_id or None,
                members=len(join.members),
                partitions=sum(len(part) for part in join.assignments.values()),
            )
            for trace, ended_ns in zip(self._traces, following, strict=False)
            if (join := trace.join) is not None
        ]

    def _states(self) -> list[StateInterval]:
        moves = [(at.time_ns, state or None, generation) for state, at, generation in self._replay.states]
        group_id = self._traffic.group_id
        return [*state_intervals(group_id, moves), *state_intervals(group_id, self._epochs.states)]


def _while_topics_were(pauses: Sequence[Pause], sizes: TopicSizes) -> Iterator[Pause]:
    """Yield the pauses, those of deleted topics until a client saw that they were gone.

    :param sizes: of topics as Metadata stated them
    """
    deleted: dict[str, int] = {}
    known: set[str] = set()
    for size in sizes.of(pause.topic for pause in pauses):
        if size.partitions:
            known.add(size.topic)
            deleted.pop(size.topic, None)
        elif size.topic in known:
            deleted.setdefault(size.topic, size.at.time_ns)
    for pause in pauses:
        gone_ns = deleted.get(pause.topic)
        if gone_ns is None or pause.to_ns is not None:
            yield pause
        elif pause.from_ns < gone_ns:
            yield replace(pause, to_ns=gone_ns)


def _stable_ns(trace: RebalanceTrace, join: Join) -> int | None:
    if trace.stable is None:
        return None
    sync = join.leader_sync
    return sync.answered.time_ns if sync is not None and sync.answered is not None else trace.stable.time_ns


# ---- rebalances


def _columns(trace: RebalanceTrace, explanation: Explanation, following: Moment | None) -> dict[str, Any]:
    """Return the columns of a rebalance.

    :param following: when the next one of the same protocol starts
    """
    columns = {
        "generation_id": trace.generation,
        "joined_ns": None if trace.joined is None else max(trace.joined.time_ns, trace.started.time_ns),
        "ended_ns": _ended_ns(trace, following),
        "outcome": trace.outcome,
        "cause": str(explanation.cause),
        "confidence": explanation.confidence,
        "detail": explanation.detail,
        "evidence": explanation.evidence,
        "trigger": identity_of(trace.start.member or trace.start.request),
        "reason": explanation.reason,
        "members_before": len(trace.before),
        "members_after": len(trace.after),
        "removed": [
            removed_member(member, LeaveReason.POLL_TIMEOUT if _did_not_poll(member, why) else why)
            for member, why in trace.removed
        ],
    }
    if isinstance(trace, EpochTrace):
        return columns | {"protocol_type": trace.protocol_type, "assignor": trace.assignor, "cooperative": True}
    join = trace.join
    if join is None:
        return columns
    return columns | {
        "protocol_type": join.protocol_type,
        "assignor": join.assignor or None,
        "leader_id": join.leader_id or None,
        "cooperative": _is_cooperative(join),
    }


def _ended_text(trace: RebalanceTrace, ends: Mapping[MemberTrace, End]) -> str:
    """What became of a process whose session ran out, to be added to the sentence of the cause."""
    member = trace.start.member
    if trace.start.kind not in (StartKind.SESSION, StartKind.VANISHED) or member is None or member not in ends:
        return ""
    return ends[member].text


def _did_not_poll(member: MemberTrace, why: LeaveReason) -> bool:
    """Whether a removal by LeaveGroup turned out to be a poll timeout."""
    return why == LeaveReason.LEFT and member.why == LeaveReason.POLL_TIMEOUT


def _add_last_joiner(trace: RebalanceTrace, rebalance: Rebalance) -> None:
    """Add which member joined last, and how long after the one before it."""
    joins = sorted(trace.joins, key=lambda join: join[0])
    if not joins:
        return
    at, member = joins[-1]
    rebalance.last_member_id = member.member_id
    rebalance.last_client_id = member.client_id
    rebalance.last_client_host = member.host or None
    if len(joins) > 1:
        rebalance.late_ms = (at.time_ns - joins[-2][0].time_ns) / NS_PER_MS


def _ended_ns(trace: RebalanceTrace, following: Moment | None) -> int | None:
    """When the last member had its assignment, or when the rebalance was cut short."""
    if trace.over is None:
        return None
    end = trace.over
    if trace.outcome == "stable" and trace.join is not None:
        for at, is_member in _assigned_at(trace.join):
            if (following is None or at < following) and (is_member or at.time_ns - end.time_ns <= _AT_ONCE_NS):
                end = max(end, at)
    return max(end.time_ns, trace.started.time_ns)


def _assigned_at(join: Join) -> list[tuple[Moment, bool]]:
    """When each member of a join received its assignment; then processes that took a static member's place."""
    answers = [
        (request.answered, member_id in join.members)
        for member_id, request in join.syncs.items()
        if request.answered is not None
    ]
    return sorted(answers, key=lambda answer: (not answer[1], answer[0]))


def _is_cooperative(join: Join) -> bool | None:
    """Whether members keep what they own meanwhile, by what they state and by the assignor."""
    if not join.assignor:
        return None
    stated = [member.owned for member in join.members.values()]
    stated += [offer.owned for request in join.requests for offer in request.offers]
    if any(stated):
        return True
    if join.assignor in _EAGER_ASSIGNORS:
        return False
    if "cooperative" in join.assignor:
        return all("cooperative" in name for request in join.requests for name in request.assignors)
    return None


# ---- what the source cannot show


def _blind(traffic: GroupTraffic, replay: Replay, joins: list[Join], epochs: Epochs) -> Iterator[str]:
    if epochs.members:
        yield from _blind_epochs(replay, epochs)
    joined_before = sum(not member.is_new for member in replay.traces)
    if joined_before:
        yield (
            f"{joined_before} of {len(replay.traces)} members had joined before the source began, "
            "or their join is missing."
        )
    unknown = sum(trace.start.kind == StartKind.HIDDEN for trace in replay.rebalances)
    if unknown:
        yield f"Nothing in the source started {unknown} of {len(replay.rebalances)} rebalances."
    yield from _blind_joins(joins)
    if skipped := _skipped(replay.rebalances):
        yield f"The source does not show who joined these generations: {_few(skipped)}."
    if traffic.unplaced:
        yield f"{traffic.unplaced} exchanges have no time and were left out."
    if replay.rebalances and replay.rebalances[-1].outcome == "open":
        yield "The source ends in the middle of a rebalance."


def _blind_epochs(replay: Replay, epochs: Epochs) -> Iterator[str]:
    kip = _KIPS[epochs.lives[0].protocol_type]
    yield (
        f"The coordinator assigns in this group ({kip}): epochs that no member received, and the session timeout, "
        "are not on the wire."
    )
    if replay.traces:
        yield "Members of both protocols are in the group: how the coordinator combined them is not on the wire."
    if epochs.unknown:
        yield f"Nothing in the source raised {epochs.unknown} of {len(epochs.generations)} epochs."


def _blind_pauses(coverage: Coverage, protocol_type: str | None, *, is_known: bool) -> Iterator[str]:
    if coverage.unshown:
        yield (
            f"{len(coverage.unshown)} members of the group sent nothing in this source: they are on hosts that were "
            "not captured."
        )
    if coverage.others_hold:
        yield f"{coverage.others_hold} partitions are with members that this source does not show."
    if protocol_type not in _READ_TYPES:
        yield f"What members of the protocol type {protocol_type} hold is not read: their pauses are not known."
    elif not is_known:
        yield "Pauses are not known where members that this source does not show may have had the partitions."


def _blind_joins(joins: list[Join]) -> Iterator[str]:
    if unseen := [join.generation for join in joins if join.joined is None]:
        yield f"The joins of {len(unseen)} generations are missing: {_few(unseen)}."
    if unlisted := [join.generation for join in joins if join.joined is not None and not join.is_listed]:
        yield (
            f"The members of generation {_few(unlisted)} are known from their own requests alone: the response to "
            "the leader is missing."
        )


def _skipped(traces: Iterable[RebalanceTrace]) -> list[int]:
    numbers = [trace.generation for trace in traces if trace.generation is not None]
    return [
        missing
        for before, after in pairwise(numbers)
        for missing in range(before + 1, min(after, before + _MAX_SKIPPED))
    ]


def _few(numbers: list[int]) -> str:
    return first_of(numbers, _LISTED_NUMBERS)


def place_evidence(history: GroupHistory, exchanges: pa.Table) -> None:
    """Set `Evidence.position` in a history, and of a rotated capture the file that it is in.

    :param exchanges: the group's rows of `Exchange`
    """
    wanted = [fact for fact in _evidence(history) if fact.seq >= 0]
    if not wanted:
        return
    seqs = pa.array({fact.seq for fact in wanted}, pa.int64())
    places: dict[tuple[str, int], tuple[int, str | None]] = {}
    for seq, *place in (("seq", "position", "file"), ("answer_seq", "answer_position", "answer_file")):
        rows = exchanges.select(["source", seq, *place])
        found = rows.filter(pc.is_in(rows[seq], seqs))
        columns = (found[name].to_pylist() for name in found.column_names)
        rows_ = zip(*columns, strict=True)
        places |= {(source, number): (at, file) for source, number, at, file in rows_ if at is not None}
    placed = [(fact, places.get((fact.source, fact.seq))) for fact in wanted]  # some are in it twice
    for fact, at in placed:
        fact.position, file = at or (None, None)
        fact.source = file or fact.source


def _evidence(history: GroupHistory) -> Iterator[Evidence]:
    for evidence in (*(row.evidence for row in history.rebalances), *(row.evidence for row in history.findings)):
        yield from evidence
