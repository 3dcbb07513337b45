"""What a capture tells of a group: its rebalances with their causes, generations, states, members, owners and pauses.

    history = wire_history(exchanges, topics)    # tables of `Exchange` of one group, and of `TopicSighting`

The way: wire_rows.py parts the exchanges, wire_rounds.py finds the completed joins in the answers, wire_replay.py plays
the coordinator's part again and so finds what set each of them off, causes.py names it, ownership.py follows the
partitions. Groups of KIP-848 are read by wire_epochs.py.

Laws:

* Order and chunks of the input have no effect.
* Any subset of a capture, with fields missing, gives a history: what cannot be told is None, or `Cause.UNKNOWN` with
  little confidence, and `GroupSummary.blind` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import (
    CommitRow,
    Generation,
    GroupHistory,
    GroupSummary,
    Pause,
    Rebalance,
    RemovedMember,
    StateInterval,
)
from kcoord_wire.forensics.wire.causes import Verdict, Witness
from kcoord_wire.forensics.wire.joins import Round, find_failovers, find_rounds
from kcoord_wire.forensics.wire.kip848 import Epochs, read_epochs
from kcoord_wire.forensics.wire.members import member_rows
from kcoord_wire.forensics.wire.ownership import count_moves, find_holdings, find_pauses, ownership_rows
from kcoord_wire.forensics.wire.replay import Replay
from kcoord_wire.forensics.wire.rows import Key, Partition, Rows, read_rows
from kcoord_wire.forensics.wire.trace import Course, Peer

__all__ = ["wire_history"]

_AT_ONCE_NS = 1_000_000_000  # a static member that is back within this time belongs to the same rebalance
_MINUTE_NS = 60_000_000_000
_MS = 1e6


def wire_history(exchanges: pa.Table, topics: pa.Table) -> GroupHistory:
    """The history of one group; `findings` stays empty.

    :param exchanges: of the schema of `model.Exchange`, of one group, in any order
    :param topics: of the schema of `model.TopicSighting`
    """
    rows = read_rows(exchanges, topics)
    failovers = find_failovers(rows)
    rounds = find_rounds(rows.rows, failovers)
    replay = Replay(rows, rounds, failovers)
    replay.run()
    epochs = read_epochs(rows)
    courses = replay.group.courses
    witness = Witness(rows)
    verdicts = [witness.judge(course) for course in courses]
    given = {id(row): part for home in rounds for row, part in _brought(home)}
    holdings = [*find_holdings(replay.group.peers, rows.rows, given), *epochs.holdings]
    holdings.sort(key=lambda holding: (holding.partition, *holding.order))
    peers = replay.group.peers
    kinds = {id(peer): "poll timeout" for peer in peers if peer.why == "left" and witness.did_not_poll(peer)}
    rebalances = _in_order([*_rebalances(rows, courses, verdicts, kinds), *epochs.rebalances])
    spans = [(rebalance.started_ns, rebalance.ended_ns) for rebalance in rebalances]
    pauses = find_pauses(rows.group_id, holdings, spans)
    _add_pauses(rebalances, pauses, rows.last_ns)
    members = [*member_rows(rows.group_id, replay.group.peers, rows, kinds), *epochs.members]
    members.sort(key=lambda member: member.joined_ns)
    generations = [*_generations(rows.group_id, courses), *epochs.generations]
    generations.sort(key=lambda generation: generation.joined_ns)
    types = [home.protocol_type for home in rounds if home.protocol_type]
    types += [row.protocol_type for row in rows.rows if row.protocol_type]
    types += ["consumer"] * bool(epochs.members)
    return GroupHistory(
        group=GroupSummary(
            group_id=rows.group_id,
            origin="wire",
            protocol_type=types[0] if types else None,
            first_ns=rows.first_ns,
            last_ns=rows.last_ns,
            members=len(members),
            generations=len(generations),
            rebalances=len(rebalances),
            exchanges=rows.count,
            commits=rows.commit_count,
            paused_ms=sum(rebalance.paused_ms or 0.0 for rebalance in rebalances),
            blind=_blind(rows, replay, rounds, epochs),
        ),
        rebalances=rebalances,
        generations=generations,
        states=sorted([*_states(rows.group_id, replay.group.states), *epochs.states], key=lambda state: state.from_ns),
        members=members,
        ownership=ownership_rows(rows.group_id, holdings),
        pauses=pauses,
        commits=_commit_rows(rows.group_id, rows.commits),
    )


def _in_order(rebalances: list[Rebalance]) -> list[Rebalance]:
    """Numbered anew, where members of both protocols are in the group."""
    rebalances.sort(key=lambda rebalance: (rebalance.started_ns, rebalance.number))
    for number, rebalance in enumerate(rebalances, start=1):
        rebalance.number = number
    return rebalances


def _brought(home: Round) -> list[tuple[object, frozenset[Partition]]]:
    """What each SyncGroup of a round brought its member."""
    given = home.assignments
    return [
        (row, row.assignment if row.assignment is not None else given[row.member_id])
        for asked in home.asked.values()
        for row in asked
        if row.error == 0 and (row.assignment is not None or row.member_id in given)
    ]


# ---- rebalances


def _rebalances(
    rows: Rows, courses: list[Course], verdicts: list[Verdict], kinds: Mapping[int, str]
) -> list[Rebalance]:
    owners: dict[Partition, Peer] = {}
    revoked: set[Partition] = set()
    rebalances = []
    for number, (course, verdict) in enumerate(zip(courses, verdicts, strict=True), start=1):
        following = courses[number].started if number < len(courses) else None
        rebalance = _rebalance(rows.group_id, number, course, verdict, following, kinds)
        rebalance.moved, rebalance.moved_needlessly = count_moves(course, owners, revoked)
        rebalances.append(rebalance)
    return rebalances


def _rebalance(
    group_id: str, number: int, course: Course, verdict: Verdict, following: Key | None, kinds: Mapping[int, str]
) -> Rebalance:
    home, trigger = course.round, course.trigger
    peer, row = trigger.peer, trigger.row
    started = course.started[0]
    joined = None if home is None or home.joined is None else max(home.joined[0], started)
    ended = _ended(course, following)
    rebalance = Rebalance(
        group_id=group_id,
        number=number,
        generation_id=course.generation,
        started_ns=started,
        joined_ns=joined,
        ended_ns=ended,
        outcome=course.outcome,
        cause=str(verdict.cause),
        member_id=(peer.member_id if peer is not None else "" if row is None else row.member_id) or None,
        client_id=peer.client_id if peer is not None else None if row is None else row.client_id,
        client_host=(peer.host if peer is not None else "" if row is None else row.host) or None,
        instance_id=peer.instance_id if peer is not None else None if row is None else row.instance_id,
        reason=verdict.reason,
        detail=verdict.detail,
        confidence=verdict.confidence,
        evidence=verdict.evidence,
        protocol_type=None if home is None else home.protocol_type,
        assignor=None if home is None else home.assignor or None,
        leader_id=None if home is None else home.leader_id or None,
        cooperative=_is_cooperative(course),
        duration_ms=None if ended is None else (ended - started) / _MS,
        joining_ms=None if joined is None else (joined - started) / _MS,
        syncing_ms=None if joined is None or ended is None or course.outcome != "stable" else (ended - joined) / _MS,
        members_before=len(course.before),
        members_after=len(course.after),
        removed=[
            RemovedMember(
                gone.member_id, gone.client_id, gone.host or None, kinds.get(id(gone), why) if why == "left" else why
            )
            for gone, why in course.removed
        ],
    )
    _tell_last(course, rebalance)
    return rebalance


def _ended(course: Course, following: Key | None) -> int | None:
    if course.over is None:
        return None
    end = course.over
    if course.outcome == "stable" and course.round is not None:
        for key, is_member in _answers_of(course.round):
            if (following is None or key < following) and (is_member or key[0] - end[0] <= _AT_ONCE_NS):
                end = max(end, key)
    return max(end[0], course.started[0])


def _answers_of(home: Round) -> list[tuple[Key, bool]]:
    """When the members of a round were told their assignments, then those who took a static member's place."""
    answers = [
        (row.answer_key, member_id in home.members)
        for member_id, row in home.syncs.items()
        if row.answer_key is not None
    ]
    return sorted(answers, key=lambda answer: (not answer[1], answer[0]))


def _tell_last(course: Course, rebalance: Rebalance) -> None:
    """Who joined last, and how long after the one before."""
    joins = sorted(course.joins, key=lambda join: join[0])
    if not joins:
        return
    key, peer, _ = joins[-1]
    rebalance.last_member_id = peer.member_id
    rebalance.last_client_id = peer.client_id
    rebalance.last_client_host = peer.host or None
    if len(joins) > 1:
        rebalance.late_ms = (key[0] - joins[-2][0][0]) / _MS


def _is_cooperative(course: Course) -> bool | None:
    """Whether members keep what they own meanwhile; by the assignor, and by what they state."""
    home = course.round
    if home is None or not home.assignor:
        return None
    stated = [told.owned for told in home.members.values()]
    stated += [offer.owned for row in home.joins for offer in row.offers]
    if any(stated):
        return True
    if home.assignor in ("range", "roundrobin", "sticky"):
        return False
    if "cooperative" in home.assignor:
        offered = [row.assignors for row in home.joins]
        return all("cooperative" in name for names in offered for name in names)
    return None


def _add_pauses(rebalances: list[Rebalance], pauses: list[Pause], last_ns: int) -> None:
    for rebalance in rebalances:
        rebalance.paused_ms = 0.0
    for pause in pauses:
        if pause.rebalance is not None:
            rebalance = rebalances[pause.rebalance - 1]
            end = max(last_ns, pause.from_ns) if pause.to_ns is None else pause.to_ns
            rebalance.paused_ms = (rebalance.paused_ms or 0.0) + (end - pause.from_ns) / _MS


# ---- generations and states


def _generations(group_id: str, courses: list[Course]) -> list[Generation]:
    generations = []
    for index, course in enumerate(courses):
        home = course.round
        if home is None:
            continue
        following = courses[index + 1].started[0] if index + 1 < len(courses) else None
        stable = None if course.stable is None else course.stable[0]
        sync = home.leader_sync
        if stable is not None and sync is not None and sync.answer_key is not None:
            stable = sync.answer_key[0]
        generations.append(
            Generation(
                group_id,
                home.generation,
                home.key[0],
                stable,
                following,
                home.assignor or None,
                home.leader_id or None,
                len(home.members),
                sum(len(part) for part in home.assignments.values()),
            )
        )
    return generations


def _states(group_id: str, moves: list[tuple[str, Key, int | None]]) -> list[StateInterval]:
    intervals = []
    for index, (state, key, generation) in enumerate(moves):
        end = moves[index + 1][1][0] if index + 1 < len(moves) else None
        if end != key[0]:
            intervals.append(StateInterval(group_id, state, key[0], end, generation))
    return intervals


# ---- commits


def _commit_rows(group_id: str, commits: pa.Table) -> list[CommitRow]:
    """Commits by partition and minute.

    :param commits: OffsetCommit exchanges in order of time
    """
    offsets = commits["offsets"].combine_chunks() if len(commits) else None
    if offsets is None or not len(offsets):
        return []
    if isinstance(offsets, pa.ChunkedArray):
        offsets = offsets.chunk(0)
    parents = pc.list_parent_indices(offsets)
    flat = pc.list_flatten(offsets)
    asked = pc.take(commits["asked_ns"].combine_chunks(), parents)
    bad = pc.fill_null(pc.not_equal(flat.field("error_code"), 0), False)
    table = pa.table(
        {
            "topic": pc.fill_null(flat.field("topic"), ""),
            "partition": pc.fill_null(flat.field("partition"), -1),
            "minute": pc.multiply(pc.divide(asked, _MINUTE_NS), _MINUTE_NS),
            "offset": pc.fill_null(flat.field("offset"), -1),
            "bad": bad.cast(pa.int64()),
            "good": pc.invert(bad).cast(pa.int64()),
            "member": pc.take(commits["member_id"].combine_chunks(), parents),
        }
    )
    keys = ["topic", "partition", "minute"]
    counted = table.group_by(keys, use_threads=False).aggregate([("bad", "sum"), ("good", "sum"), ("member", "last")])
    taken = table.filter(pc.equal(table["bad"], 0)).group_by(keys, use_threads=False)
    ends = {
        (row["topic"], row["partition"], row["minute"]): (row["offset_first"], row["offset_last"])
        for row in taken.aggregate([("offset", "first"), ("offset", "last")]).to_pylist()
    }
    rows = []
    for row in counted.to_pylist():
        first, last = ends.get((row["topic"], row["partition"], row["minute"]), (-1, -1))
        rows.append(
            CommitRow(
                group_id,
                row["topic"],
                row["partition"],
                row["minute"],
                row["good_sum"],
                row["bad_sum"],
                first,
                last,
                row["member_last"] or None,
            )
        )
    return sorted(rows, key=lambda row: (row.minute_ns, row.topic, row.partition))


# ---- what stays dark


def _blind(rows: Rows, replay: Replay, rounds: list[Round], epochs: Epochs) -> list[str]:
    said = []
    if epochs.members:
        said.append("The coordinator assigns in this group (KIP-848): epochs that no member was told, and the session "
                    "timeout, are not on the wire.")  # fmt: skip
    if epochs.members and replay.group.peers:
        said.append("Members of both protocols are in the group: what was made of them together is not seen.")
    if epochs.unknown:
        said.append(f"Nothing in the source raised {epochs.unknown} of {len(epochs.generations)} epochs.")
    if any(not peer.is_new for peer in replay.group.peers):
        count, all_ = sum(not peer.is_new for peer in replay.group.peers), len(replay.group.peers)
        said.append(f"{count} of {all_} members had joined before the source began, or their join is missing.")
    unknown = sum(course.trigger.kind == "hidden" for course in replay.group.courses)
    if unknown:
        said.append(f"Nothing in the source set off {unknown} of {len(replay.group.courses)} rebalances.")
    unseen = [home.generation for home in rounds if home.joined is None]
    if unseen:
        said.append(f"The joins of {len(unseen)} generations are missing: {_few(unseen)}.")
    unlisted = [home.generation for home in rounds if home.joined is not None and not home.is_listed]
    if unlisted:
        said.append(f"Who was in generation {_few(unlisted)} is known by the members' own requests alone: the leader's "
                    f"answer is missing.")  # fmt: skip
    skipped = _skipped(replay.group.courses)
    if skipped:
        said.append(f"Generations that nobody was seen to join: {_few(skipped)}.")
    if rows.unplaced:
        said.append(f"{rows.unplaced} exchanges have no time and were left out.")
    if replay.group.courses and replay.group.courses[-1].outcome == "open":
        said.append("The source ends in the middle of a rebalance.")
    return said


def _skipped(courses: list[Course]) -> list[int]:
    numbers = [course.generation for course in courses if course.generation is not None]
    return [missing for before, after in pairwise(numbers) for missing in range(before + 1, min(after, before + 20))]


def _few(numbers: list[int]) -> str:
    told = ", ".join(map(str, numbers[:5]))
    return f"{told} and {len(numbers) - 5} more" if len(numbers) > 5 else told
