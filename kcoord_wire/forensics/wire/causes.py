"""Why a rebalance began, in one word and in one sentence, how sure that is, and the frames that say so.

Laws:

* The cause is that of the trigger that moved the group out of its state; what came while the members were joining is
  told in the detail and the evidence.
* Confidence 1 is what the source says outright: a member id given and joined with, a LeaveGroup that was answered, a
  reason that the client states (KIP-800). Time that ran out is inferred from silence (0.9), what no frame shows is
  less, and `Cause.UNKNOWN` has 0.2 or less.
* Every claim about a frame has that frame in its evidence; what a client learnt of topics has no number (-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kcoord_wire.error_codes import describe_error
from kcoord_wire.forensics.model import Cause, Evidence
from kcoord_wire.forensics.wire.joins import REFUSALS, Failover, client_of
from kcoord_wire.forensics.wire.replay import TOO_LARGE, UNKNOWN_MEMBER
from kcoord_wire.forensics.wire.rows import Key, Partition, Row, Rows, Sighting
from kcoord_wire.forensics.wire.trace import Course, Peer, Trigger

__all__ = ["Verdict", "Witness", "describe_peer", "evidence_of"]

_MAX_OTHERS = 8
_MS = 1_000_000
_JUST_NS = 1_000 * _MS
_CLOSES_WITHIN_NS = 2_000_000_000
_RETRIES = (
    "connection was lost",
    "coordinator",
    "tried again",
    "was refused",
    "during syncgroup",
    "member id",
    "member-id",
    "rebalance failed",
    "disconnected",
)
"""Words of reasons that only say that a former attempt has come to nothing."""

_OWN = (
    Cause.COOPERATIVE_FOLLOW_UP,
    Cause.TOPICS_CHANGED,
    Cause.SUBSCRIPTION_CHANGED,
    Cause.ASSIGNORS_CHANGED,
)


@dataclass(slots=True)
class Verdict:
    """A cause with its grounds.

    :ivar reason: what the client states itself
    """

    cause: Cause
    confidence: float
    detail: str
    evidence: list[Evidence]
    reason: str | None = None
    others: list[str] = field(default_factory=list)


def describe_peer(peer: Peer | None, row: Row | None = None) -> str:
    """A member as people know it: client id, instance id and host."""
    client_id = peer.client_id if peer is not None else None
    host = peer.host if peer is not None else ""
    if row is not None:
        client_id, host = client_id or row.client_id, host or row.host
    name = client_id or (peer.member_id if peer is not None else "") or "a member"
    instance = peer.instance_id if peer is not None else None
    more = ", ".join(part for part in (f"instance {instance}" if instance else "", host) if part)
    return f"{name} ({more})" if more else name


def evidence_of(row: Row, text: str, *, answer: bool = False) -> Evidence:
    """A fact that a request, or its answer, shows."""
    key = row.answer_key if answer and row.answer_key is not None else row.key
    return Evidence(key[0], key[1], key[2] if key[2] < 1 << 61 else row.key[2], text)


class Witness:
    """Judges the rebalances of one group, in order.

    :param rows: all exchanges
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._joins = [row for row in rows.rows if row.api == "JoinGroup"]
        self._too_large = [row for row in rows.rows if row.api == "JoinGroup" and row.error == TOO_LARGE]
        self._by_connection: dict[str, list[Row]] = {}
        self._by_member: dict[str, list[Row]] = {}
        for row in rows.rows:
            if row.who:
                self._by_member.setdefault(row.who, []).append(row)
            self._by_connection.setdefault(row.connection, []).append(row)
        self._known_partitions: set[Partition] = set()
        self._known_before: set[Partition] = set()  # the same, up to the round before the last
        self._causes: dict[Key, Cause] = {}  # of the joins that set something off
        self._completed = _completed(rows.rows)

    def judge(self, course: Course) -> Verdict:
        """The cause of one rebalance."""
        trigger = course.trigger
        judges: Mapping[str, Callable[[Course, Trigger], Verdict]] = {
            "joined": self._joined,
            "static": self._static,
            "rejoined": self._rejoined,
            "left": self._left,
            "session": self._session,
            "sync": self._sync,
            "vanished": self._vanished,
        }
        verdict = self._too_many(course) or judges.get(trigger.kind, self._hidden)(course, trigger)
        if trigger.row is not None:
            reason = trigger.leaver.reason if trigger.leaver is not None else trigger.row.reason
            verdict.reason = reason or None
        if trigger.row is not None:
            self._causes[trigger.row.key] = verdict.cause
        if trigger.inferred and trigger.row is not None:
            verdict.confidence = min(verdict.confidence, 0.6)
        self._tell_others(course, verdict)
        if course.sign is not None and course.sign is not trigger.row:
            text = f"{course.sign.api} shows that the group was rebalancing"
            if course.sign.error:
                text = f"{course.sign.api} was answered with {describe_error(course.sign.error)}"
            verdict.evidence.append(evidence_of(course.sign, text, answer=bool(course.sign.error)))
        if course.round is not None:
            self._known_before = set(self._known_partitions)
            self._known_partitions |= {partition for given in course.round.assignments.values() for partition in given}
        return verdict

    # ---- by kind of trigger

    def _joined(self, course: Course, trigger: Trigger) -> Verdict:
        row, peer = trigger.row, trigger.peer
        assert row is not None, "a join has its row"
        who = describe_peer(peer, row)
        facts = [evidence_of(row, f"{who} asks to join as a new member")]
        if trigger.failover is not None:
            return _failover(trigger.failover, f"{who} had to join anew", facts, 0.9)
        if _says_poll_timeout(row.reason):
            return Verdict(Cause.POLL_TIMEOUT, 1.0, f"{who} had not polled in time and joins again", facts)
        former = peer.former if peer is not None else None
        if former is not None and former.why == "rebalance timeout" and former.left is not None:
            refused = former.refused
            after = refused is not None and refused.key > former.left
            same = row.connection in former.connections
            if refused is not None and after:
                facts.append(_refusal(refused))
            if after or same:
                text = f"{who} had missed the join of generation {former.last_generation} + 1 and came back"
                if former.last_generation is not None:
                    text = f"{who} had missed the join of generation {former.last_generation + 1} and came back"
                return Verdict(Cause.REBALANCE_TIMEOUT, 0.95 if after else 0.7, text, facts)
        if former is not None and former.why is not None and former.left is not None:
            seconds = (row.key[0] - former.left[0]) / 1e9
            was = f"; it had been {former.member_id}, gone by {former.why} {seconds:.1f} s before"
            return Verdict(Cause.NEW_MEMBER, 1.0, f"{who} joined as a new member{was}", facts)
        return Verdict(Cause.NEW_MEMBER, 1.0, f"{who} joined as a new member", facts)

    def _static(self, course: Course, trigger: Trigger) -> Verdict:
        row = trigger.row
        assert row is not None, "a join has its row"
        who = describe_peer(trigger.peer, row)
        facts = [evidence_of(row, f"{who} joins with the instance id {row.instance_id} of a member that is there")]
        if trigger.failover is not None and trigger.failover.begin <= row.key:
            return _failover(trigger.failover, f"{who} had to join anew", facts, 0.8)
        if course.former_round is not None and course.former_round.leader_sync is None:
            why = "while the members were waiting for their assignment"
        elif trigger.former is not None and trigger.former.assignors != row.assignors:
            why = f"with other assignors ({', '.join(row.assignors)})"
        else:
            why = "and the coordinator rebalanced"
        return Verdict(Cause.STATIC_REPLACED, 1.0, f"{who} took the place of its former self {why}", facts)

    def _rejoined(self, course: Course, trigger: Trigger) -> Verdict:
        row = trigger.row
        assert row is not None, "a join has its row"
        who = describe_peer(trigger.peer, row)
        lead = "the leader " if trigger.leads else ""
        stated = f" ({row.reason})" if row.reason else ""
        facts = [evidence_of(row, f"{who} joins again" + (f": {row.reason}" if row.reason else ""))]
        former = trigger.former
        if trigger.failover is not None:
            if trigger.refused is not None:
                facts.append(_refusal(trigger.refused))
            return _failover(trigger.failover, f"{lead}{who} joined again", facts, 0.9)
        earlier = self._repeated(row, former)
        if _says_poll_timeout(row.reason):
            return Verdict(Cause.POLL_TIMEOUT, 1.0, f"{lead}{who} had not polled in time and joins again", facts)
        if trigger.gave_up or _says(row.reason, "revoke partitions", "partitions were given up"):
            if trigger.gave_up_by is not None:
                facts.append(
                    evidence_of(trigger.gave_up_by, "its assignment before that took partitions away", answer=True)
                )
            count = len(trigger.gave_up)
            what = f"{count} partition{'' if count == 1 else 's'}" if count else "partitions"
            detail = f"{lead}{who} gave up {what} and joined again so that they can be given out"
            return Verdict(Cause.COOPERATIVE_FOLLOW_UP, 1.0 if row.reason else 0.95, detail, facts)
        if former is not None and former.assignors != row.assignors:
            facts.append(evidence_of(former, f"before, it offered {', '.join(former.assignors)}"))
            detail = f"{lead}{who} offers {', '.join(row.assignors)} in place of {', '.join(former.assignors)}"
            return Verdict(Cause.ASSIGNORS_CHANGED, 1.0, detail, facts)
        before, now = _topics(former), row.subscribed
        if former is not None and before != now:
            facts.append(evidence_of(former, f"before, it subscribed to {', '.join(before) or 'nothing'}"))
            return Verdict(Cause.SUBSCRIPTION_CHANGED, 1.0, f"{lead}{who} {_difference(before, now)}", facts)
        if _says(row.reason, "metadata has changed", "topics have changed"):
            changed = list(self._changed_topics(course, trigger))
            facts += [fact for _, fact in changed[:_MAX_OTHERS]]
            more = f": {changed[0][0]}" if changed else ""
            return Verdict(Cause.TOPICS_CHANGED, 1.0, f"{lead}{who} saw topics change{more}", facts)
        if trigger.leads or former is None:
            is_told = row.reason is not None and not _says(row.reason, *_RETRIES)
            changed = [] if is_told else list(self._changed_topics(course, trigger))
            if changed:
                facts += [fact for _, fact in changed[:_MAX_OTHERS]]
                return Verdict(Cause.TOPICS_CHANGED, 0.9, f"{lead}{who} joined again after {changed[0][0]}", facts)
            grown = [] if is_told else self._grown_topics(course)
            if grown:
                text = f"{lead}{who} joined again, and partitions of {', '.join(grown)} were given out that nobody had"
                return Verdict(Cause.TOPICS_CHANGED, 0.8, text, facts)
        if earlier is not None:
            first, cause = earlier
            facts.append(evidence_of(first, "its join before that came to nothing"))
            return Verdict(cause, 0.8, f"{lead}{who} repeats a join that came to nothing{stated}", facts)
        if trigger.missed is not None:
            text = f"{who} (static) had missed the join of generation {trigger.missed.generation} and came after all"
            if trigger.refused is not None:
                facts.append(_refusal(trigger.refused))
            return Verdict(Cause.REBALANCE_TIMEOUT, 0.9, text, facts)
        if trigger.leads:
            if trigger.refused is not None:
                facts.append(_refusal(trigger.refused))
            detail = f"the leader {who} joined again{stated}"
            return Verdict(Cause.LEADER_REJOINED, 1.0 if row.reason else 0.8, detail, facts)
        if former is None:
            return Verdict(Cause.UNKNOWN, 0.2, f"{who} joined again; what it did before is not in the source", facts)
        facts.append(evidence_of(former, "its join before that had other bytes in its subscription"))
        if trigger.refused is not None:
            facts.append(_refusal(trigger.refused))
        detail = f"{who} joined again with the same topics, but other bytes in its subscription{stated}"
        return Verdict(Cause.SUBSCRIPTION_CHANGED, 0.7, detail, facts)

    def _left(self, course: Course, trigger: Trigger) -> Verdict:
        row, peer, leaver = trigger.row, trigger.peer, trigger.leaver
        assert row is not None, "a leave has its row"
        assert peer is not None, "a leave has its member"
        who = describe_peer(peer)
        reason = None if leaver is None else leaver.reason
        facts = [evidence_of(row, f"{who} leaves" + (f": {reason}" if reason else ""))]
        sure = 1.0 if row.answer_key is not None else 0.9
        if _says_poll_timeout(reason):
            return Verdict(Cause.POLL_TIMEOUT, sure, f"{who} left because its application did not poll", facts)
        if (leaver is not None and not leaver.member_id) or (row.client_id != peer.client_id and peer.client_id):
            return Verdict(Cause.MEMBER_LEFT, sure, f"{who} was removed by {row.client_id or 'an operator'}", facts)
        if self.did_not_poll(peer):
            later = self._goes_on(row)
            if later is not None:
                facts.append(evidence_of(later, "the same connection goes on afterwards"))
                detail = f"{who} left, but did not close: most likely its application did not poll in time"
                return Verdict(Cause.POLL_TIMEOUT, 0.6, detail, facts)
            detail = f"{who} left, but kept its connection open: most likely its application did not poll in time"
            return Verdict(Cause.POLL_TIMEOUT, 0.5, detail, facts)
        more = f": {reason}" if reason else ""
        return Verdict(Cause.MEMBER_LEFT, sure, f"{who} left{more}", facts)

    def _session(self, course: Course, trigger: Trigger) -> Verdict:
        peer = trigger.peer
        assert peer is not None, "it is somebody's session"
        who = describe_peer(peer)
        facts = list(self._last_seen(peer))
        session = f" for its session timeout of {peer.session_ms / 1000:g} s" if peer.session_ms else ""
        sure = 0.9
        if peer.refused is not None and peer.refused.key >= trigger.at and peer.refused.error == UNKNOWN_MEMBER:
            facts.append(_refusal(peer.refused))
            sure = 0.95
        return Verdict(Cause.SESSION_EXPIRED, sure, f"{who} was not heard of{session}", facts)

    def _sync(self, course: Course, trigger: Trigger) -> Verdict:
        who = describe_peer(trigger.peer)
        facts = [] if trigger.peer is None else list(self._last_seen(trigger.peer))
        home = course.former_round
        if home is not None and home.joins:
            facts.append(evidence_of(home.joins[0], f"generation {home.generation} had joined", answer=True))
        late = sum(why == "sync timeout" for _, why in course.removed)
        others = f" and {late - 1} more" if late > 1 else ""
        detail = f"{who}{others} had joined, but did not send SyncGroup within the rebalance timeout"
        return Verdict(Cause.SYNC_EXPIRED, 0.9, detail, facts)

    def _vanished(self, course: Course, trigger: Trigger) -> Verdict:
        assert trigger.peer is not None, "somebody has vanished"
        facts = list(self._last_seen(trigger.peer))
        detail = f"{describe_peer(trigger.peer)} was not heard of any more; its session timeout is not in the source"
        return Verdict(Cause.SESSION_EXPIRED, 0.5, detail, facts)

    def _hidden(self, course: Course, trigger: Trigger) -> Verdict:
        if course.loaded is not None and course.sign is not None and self._began_by_itself(course.loaded, course.sign):
            detail = (
                "the coordinator made the group rebalance as soon as it was back: "
                "most likely group.max.size is below the size of the group"
            )
            return Verdict(Cause.GROUP_TOO_LARGE, 0.5, detail, [])
        if trigger.failover is not None:
            return _failover(trigger.failover, "the group rebalanced after it", [], 0.5)
        return Verdict(Cause.UNKNOWN, 0.2 if course.sign is not None else 0.1, "nothing in the source set it off", [])

    def _too_many(self, course: Course) -> Verdict | None:
        """A coordinator that comes back refuses members that it knows: it allows fewer than there are."""
        if course.loaded is None:
            return None
        until = (1 << 62, "", 0) if course.round is None else course.round.key
        refused = [
            row for row in self._too_large if course.loaded.begin < row.key <= until and row.member_id in course.before
        ]
        if not refused:
            return None
        facts = [
            evidence_of(row, f"{describe_peer(None, row)} is told {describe_error(TOO_LARGE)}", answer=True)
            for row in refused[:_MAX_OTHERS]
        ]
        detail = "the coordinator came back with a group.max.size below the size of the group"
        return Verdict(Cause.GROUP_TOO_LARGE, 0.8, detail, facts)

    def _began_by_itself(self, loaded: Failover, sign: Row) -> bool:
        """Whether a heartbeat showed the rebalance of a group that had just been loaded, and nobody had joined."""
        joins = [row for row in self._joins if loaded.begin < row.due < sign.due and row.error not in REFUSALS]
        return sign.api == "Heartbeat" and not joins

    # ---- what else was seen

    def _repeated(self, row: Row, former: Row | None) -> tuple[Row, Cause] | None:
        """The join that this one repeats because that came to nothing, if it had a reason of its own."""
        if former is None or former.key in self._completed:
            return None
        reason = former.reason
        has_assigned = any(
            other.assignments and former.key < other.key < row.key for other in self._by_member.get(former.who, ())
        )
        if _says(reason, "metadata has changed", "topics have changed"):
            return None if has_assigned else (former, Cause.TOPICS_CHANGED)
        if _says(reason, "revoke partitions", "partitions were given up"):
            return former, Cause.COOPERATIVE_FOLLOW_UP
        cause = self._causes.get(former.key)
        if cause not in _OWN or (cause is Cause.TOPICS_CHANGED and has_assigned):
            return None  # what it had seen of the topics is in what it has assigned
        return former, cause

    def _tell_others(self, course: Course, verdict: Verdict) -> None:
        """What would have set it off, had it not begun already."""
        words = {"joined": "joined", "static": "came back", "rejoined": "joined again", "left": "left",
                 "session": "was not heard of any more", "sync": "did not sync"}  # fmt: skip
        for other in course.others:
            if other.kind not in words or (other.kind == "rejoined" and not (other.former and _is_news(other))):
                continue
            text = f"{describe_peer(other.peer, other.row)} {words[other.kind]}"
            verdict.others.append(text)
            if other.row is not None and len(verdict.others) <= _MAX_OTHERS:
                verdict.evidence.append(evidence_of(other.row, text))
        if verdict.others:
            told = ", ".join(verdict.others[:_MAX_OTHERS])
            more = f" and {len(verdict.others) - _MAX_OTHERS} more" if len(verdict.others) > _MAX_OTHERS else ""
            verdict.detail += f"; while the members joined: {told}{more}"

    def did_not_poll(self, peer: Peer) -> bool:
        """Whether a member that left did so because its application did not poll: it says so, or it says nothing and
        its process goes on. Who leaves sooner after it came than its max.poll.interval.ms has only unsubscribed.
        """
        row = peer.leave
        leaver = None if row is None else next((one for one in row.leavers if one.member_id == peer.member_id), None)
        if row is None or leaver is None:
            return False
        if leaver.reason:
            return _says_poll_timeout(leaver.reason)
        limit = peer.rebalance_ms  # where a client sends its max.poll.interval.ms
        if peer.is_new and limit is not None and row.due[0] - peer.since[0] < limit * _MS:
            return False
        return self._goes_on(row) is not None or self._stays_open(row)

    def _goes_on(self, leave: Row) -> Row | None:
        """A later join on the connection of a LeaveGroup: whoever closes a consumer closes its connection."""
        return next(
            (row for row in self._by_connection[leave.connection] if row.key > leave.key and row.api == "JoinGroup"),
            None,
        )

    def _stays_open(self, leave: Row) -> bool:
        """Whether its connection is not closed although the source goes on, and would have told."""
        closed = self._rows.closed
        end = closed.get(leave.connection, self._rows.horizon_ns)
        told = bool(closed or self._rows.sightings)
        return told and end - (leave.answer_key or leave.due)[0] >= _CLOSES_WITHIN_NS

    def _last_seen(self, peer: Peer) -> Iterator[Evidence]:
        rows = self._by_member.get(peer.member_id, [])
        before = [row for row in rows if peer.left is None or row.key <= peer.left]
        sign = self._rows.signs.last_row(peer.member_id, None if peer.left is None else peer.left[0])
        if sign is not None and (not before or sign[0] > before[-1].key[0]):
            yield Evidence(sign[0], sign[1], sign[2], f"{describe_peer(peer)} is heard of for the last time")
        elif before:
            yield evidence_of(before[-1], f"{describe_peer(peer)} is heard of for the last time")

    def _changed_topics(self, course: Course, trigger: Trigger) -> Iterator[tuple[str, Evidence]]:
        """Subscribed topics of which a client learnt, since the last assignment, that their size is another."""
        subscribed = set(_topics(trigger.former)) if trigger.former is not None else set()
        home = course.former_round
        since: Key = (0, "", 0)
        if home is not None:
            subscribed |= {topic for told in home.members.values() for topic in told.topics or ()}
            since = home.key
        if trigger.former is not None:
            since = min(since, trigger.former.key)  # clients compare with what they knew when they joined
        leader = None if trigger.row is None else (trigger.row.client_id, trigger.row.host)
        sizes: dict[tuple[tuple[str | None, str], str], int] = {}
        latest: dict[str, int] = {}
        started: set[tuple[str | None, str]] = set()
        for sighting in self._rows.sightings:
            if sighting.key > trigger.at:
                return
            client = (sighting.client_id, client_of(sighting.connection))
            mine = (client, sighting.topic)
            before = sizes.get(mine, latest.get(sighting.topic))
            new = before is None and client in started and sighting.key > since
            is_its = sighting.key > since and client == leader and sighting.topic in subscribed
            if is_its and (new or (before is not None and before != sighting.partitions)):
                yield _sighted(sighting, before)
            sizes[mine] = latest[sighting.topic] = sighting.partitions
            if sighting.key <= since:
                started.add(client)

    def _grown_topics(self, course: Course) -> list[str]:
        """Topics that had been given out, of which the new assignment holds partitions that nobody had; or the one
        before, if that has only just been made: the leader learnt of them while it joined."""
        if course.round is None:
            return []
        given = {partition for parts in course.round.assignments.values() for partition in parts}
        grown = _new_in(given, self._known_partitions)
        last = course.former_round
        sync = None if last is None else last.leader_sync
        if not grown and sync is not None and course.started[0] - sync.key[0] < _JUST_NS:
            grown = _new_in(self._known_partitions, self._known_before)
        return grown


def _new_in(given: set[Partition], known: set[Partition]) -> list[str]:
    topics = {topic for topic, _ in known}
    return sorted({topic for topic, _ in given - known if topic in topics})


def _completed(rows: Iterable[Row]) -> set[Key]:
    """The joins after which their member had its assignment."""
    last: dict[str, Row] = {}
    done = set()
    for row in rows:
        if row.api == "JoinGroup" and row.error == 0:
            last[row.who] = row
        elif row.api == "SyncGroup" and row.error == 0 and row.member_id in last:
            done.add(last[row.member_id].key)
    return done


def _failover(failover: Failover, what: str, facts: list[Evidence], confidence: float) -> Verdict:
    signs = [evidence_of(row, failover.text, answer=row.answer_key is not None) for row in failover.signs[:_MAX_OTHERS]]
    detail = f"the coordinator was lost ({failover.text}), and {what}"
    return Verdict(Cause.COORDINATOR_FAILOVER, confidence, detail, [*signs, *facts])


def _refusal(row: Row) -> Evidence:
    told = f"{describe_peer(None, row)} is told {describe_error(row.error or 0)} to its {row.api}"
    return evidence_of(row, told, answer=True)


def _sighted(sighting: Sighting, before: int | None) -> tuple[str, Evidence]:
    was = "was not there before" if before is None else f"had {before} partitions before"
    text = f"topic {sighting.topic} has {sighting.partitions} partitions and {was}"
    return text, Evidence(sighting.key[0], sighting.key[1], -1, text)


def _says(reason: str | None, *words: str) -> bool:
    said = (reason or "").lower()
    return any(word in said for word in words)


def _says_poll_timeout(reason: str | None) -> bool:
    return _says(reason, "poll timeout", "max.poll.interval", "poll interval")


def _topics(row: Row | None) -> tuple[str, ...]:
    return () if row is None else row.subscribed


def _difference(before: Iterable[str], now: Iterable[str]) -> str:
    added, gone = sorted({*now} - {*before}), sorted({*before} - {*now})
    parts = [f"subscribed to {', '.join(added)}"] if added else []
    parts += [f"gave up its subscription to {', '.join(gone)}"] if gone else []
    return " and ".join(parts)


def _is_news(other: Trigger) -> bool:
    """A member that joins with other topics or assignors than before, and not only because all have to."""
    row, former = other.row, other.former
    return (
        row is not None
        and former is not None
        and (former.subscribed != row.subscribed or former.assignors != row.assignors)
    )
