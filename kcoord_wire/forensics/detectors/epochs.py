"""Groups whose coordinator assigns: slow revocation, changes of protocol, records that a share group delivers again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow.compute as pc

from kcoord_wire.forensics.detectors.finding import (
    SECOND_NS,
    DetectorResult,
    Seen,
    client_of,
    detector,
    first_evidence,
    lasting,
    person,
)
from kcoord_wire.forensics.model import NS_PER_MS, Awaited, Evidence, GroupHistory, MemberLife, Rebalance
from kcoord_wire.protocol.wording import first_of, only

# ---- slow revocation

REVOKING_MS: Final = 5_000

_REVOKING: Final = "revoking"
_FENCED: Final = "rebalance timeout"
_CLASSIC: Final = "classic"
_CONSUMER: Final = "consumer"
_ADVICE: Final = (
    "Look at what that client does before it gives partitions up: its rebalance listener (onPartitionsRevoked: flush, "
    "commit, locks) and the batch in hand, for it learns of the revocation at its next poll only. The members that "
    "wait for these partitions read nothing of them meanwhile."
)
_ADVICE_FENCED: Final = (
    " After max.poll.interval.ms, which is its rebalance timeout, the coordinator fences it: its commits are refused, "
    "and what it has read since its last commit is read again. Its session timeout and its network have no part in it."
)


class _Slow(NamedTuple):
    """A member that others waited for while it gave partitions up.

    :ivar ms: how long; 0 where the source does not show it
    :ivar is_fenced: whether the coordinator removed it for that
    """

    rebalance: Rebalance
    name: str
    ms: float
    is_fenced: bool
    limit_ms: int | None


@detector(29)
def slow_revocation(seen: Seen) -> Iterator[DetectorResult]:
    """Slow revocation: a reconciliation (KIP-848) waits for a member to give up partitions, or that member is fenced.

    Normal is that a member calls its rebalance listener and gives partitions up within a heartbeat interval or two. The
    coordinator waits for its rebalance timeout (max.poll.interval.ms), then it removes the member.

    Threshold: 5 s, or 1 member that was removed; warning.
    """
    slow = sorted(_slow(seen.history), key=lambda each: (not each.is_fenced, -each.ms))
    if not slow:
        return
    worst = slow[0]
    rows = sorted({each.rebalance.number: each.rebalance for each in slow}.values(), key=lambda row: row.number)
    more = f"; {len(slow)} such waits ({first_of(sorted({each.name for each in slow}))})" if len(slow) > 1 else ""
    yield DetectorResult(
        severity="warning",
        from_ns=rows[0].started_ns,
        to_ns=max(row.ended_ns or row.started_ns for row in rows),
        subject=only(sorted({each.name for each in slow})),
        text=_sentence(worst, _epoch(seen.history, worst.rebalance)) + more,
        advice=_ADVICE + (_ADVICE_FENCED if any(each.is_fenced for each in slow) else ""),
        value=worst.ms,
        threshold=0 if worst.is_fenced else REVOKING_MS,
        rebalances=sorted({row.number for row in rows} | _that_waited(seen.history)),
        evidence=first_evidence(rows, 2),
    )


def _that_waited(history: GroupHistory) -> set[int]:
    """Return the numbers of the rebalances that waited for a member that was fenced, whatever it was seen to do."""
    fenced = {member_id for member_id, _ in _fenced(history)}
    return {row.number for row in history.rebalances if any(wait.member_id in fenced for wait in row.waited_for)}


def _slow(history: GroupHistory) -> Iterator[_Slow]:
    waits = [(row, wait) for row in history.rebalances for wait in row.waited_for if wait.end == _REVOKING]
    fenced = dict(_fenced(history))
    for row, wait in waits:
        if wait.member_id not in fenced and wait.ms >= REVOKING_MS:
            yield _Slow(row, _name(wait), wait.ms, is_fenced=False, limit_ms=None)
    lives = {life.member_id: life for life in history.members}
    for member_id, row in fenced.items():
        life = lives[member_id]
        ms = max((wait.ms for _, wait in waits if wait.member_id == member_id), default=0.0)
        name = person(client_of(life), life.client_host)
        yield _Slow(row, name, ms, is_fenced=True, limit_ms=life.rebalance_timeout_ms)


def _fenced(history: GroupHistory) -> Iterator[tuple[str, Rebalance]]:
    modern = {life.member_id for life in history.members if life.protocol != _CLASSIC}
    for row in history.rebalances:
        for gone in row.removed:
            if gone.why == _FENCED and gone.member_id in modern:
                yield gone.member_id, row


def _name(wait: Awaited) -> str:
    return person(wait.client_id or wait.member_id, wait.client_host)


def _epoch(history: GroupHistory, row: Rebalance) -> str:
    """Return to which epoch a reconciliation led; polls show none, and their generations are numbers of the watch."""
    if row.generation_id is None or history.group.origin == "admin":
        return ""
    return f" to epoch {row.generation_id}"


def _sentence(slow: _Slow, epoch: str) -> str:
    if not slow.is_fenced:
        return f"the reconciliation{epoch} waited {lasting(slow.ms * NS_PER_MS)} for {slow.name} to give up partitions"
    limit = f" of {lasting(slow.limit_ms * NS_PER_MS)}" if slow.limit_ms else ""
    text = f"{slow.name} was fenced: it did not give up partitions within its rebalance timeout{limit}"
    waited = f"; the others waited {lasting(slow.ms * NS_PER_MS)} for it" if slow.ms else ""
    return text + waited


# ---- change of protocol


class _Change(NamedTuple):
    """Members of the two protocols in one group, in order of their joins.

    :ivar old: those of the protocol that the group had
    :ivar new: those of the other one
    """

    old: Sequence[MemberLife]
    new: Sequence[MemberLife]

    @property
    def is_upgrade(self) -> bool:
        return self.new[0].protocol == _CONSUMER


@detector(82, basis="frames")
def protocol_change(seen: Seen) -> Iterator[DetectorResult]:
    """Change of protocol: members of the classic protocol and of KIP-848 are in one group, or follow each other.

    Such a group works: the coordinator serves both while clients are restarted one after another with the other
    ``group.protocol``. How far it has come counts the members that are there at the end; of a group that was shut down
    those that were there when the last one had joined.

    Threshold: one member of each; info.
    """
    history = seen.history
    change = _change(history)
    if change is None:
        return
    words = ("classic", "consumer (KIP-848)") if change.is_upgrade else ("consumer (KIP-848)", "classic")
    first_ns, last_ns = change.new[0].joined_ns, change.new[-1].joined_ns
    left = [life for life in change.old if life.left_ns is None]
    done = [life for life in change.new if life.left_ns is None]
    there = len(left) + len(done)
    if there == 0:
        before = _there(change.old, last_ns), _there(change.new, last_ns)
        progress = f"{len(before[1])} of {sum(map(len, before))} members used it when the group was shut down"
    elif left:
        progress = f"{len(done)} of {there} members use it at the end, {first_of(_names(left))} not yet"
    else:
        progress = f"it is complete, all {there} members use it, after {lasting(last_ns - first_ns)}"
    rows = [row for row in history.rebalances if first_ns - SECOND_NS <= row.started_ns <= last_ns + SECOND_NS]
    yield DetectorResult(
        severity="info",
        from_ns=first_ns,
        to_ns=last_ns,
        text=f"the group changes its protocol from {words[0]} to {words[1]}: {progress}",
        advice="Finish it: restart the members that are left with the same group.protocol. While both are there, "
        "the members of the classic protocol rejoin for each new epoch.",
        value=len(change.new),
        threshold=1,
        rebalances=[row.number for row in rows],
        evidence=(
            Evidence(life.joined_ns, "", -1, f"{client_of(life)} joins with the protocol {life.protocol}")
            for life in change.new
        ),
    )


def _there(lives: Sequence[MemberLife], at_ns: int) -> list[MemberLife]:
    return [life for life in lives if life.is_there(at_ns)]


def _names(lives: Sequence[MemberLife]) -> list[str]:
    return sorted({client_of(life) for life in lives})


def _change(history: GroupHistory) -> _Change | None:
    lives = sorted(history.members, key=lambda life: life.joined_ns)
    if len({life.protocol for life in lives}) < len(_Change._fields):
        return None
    new = [life for life in lives if life.protocol != lives[0].protocol]
    return _Change([life for life in lives if life.protocol == lives[0].protocol], new)


# ---- records of share groups that come back

OFTEN: Final = 3
_LIMIT: Final = 5  # group.share.delivery.count.limit by default
_REDELIVERED: Final = ["answered_ns", "source", "answer_seq", "client_id", "redelivered"]
_ADVICE_AGAIN: Final = (
    "Look in the logs of these clients for what they do with the record: one that cannot be processed should be "
    "rejected, not released, or it comes back until the delivery limit, and is then archived without a word. One that "
    "takes longer than the lock lasts (group.share.record.lock.duration.ms, 30 s) is delivered to another member while "
    "the first still works on it: acknowledge fewer records at a time, renew the lock (KIP-1222), or make it longer."
)


@detector(28, basis="frames")
def redelivered_records(seen: Seen) -> Iterator[DetectorResult]:
    """Redelivered records: a share group delivers the same records again and again (KIP-932).

    A record comes back when a member releases it, when its lock runs out before it is acknowledged, and when its member
    leaves. Normal is a second delivery of what a member had that left. At the delivery limit
    (group.share.delivery.count.limit, 5) a record is archived: no member sees it any more.

    Threshold: 3 deliveries of a record: warning; critical where the limit of 5 is reached, for what was not accepted
    then is lost.
    """
    if seen.exchanges is None:
        return
    rows = seen.exchanges.filter(pc.is_valid(seen.exchanges["redelivered"])).select(_REDELIVERED).to_pylist()
    rows.sort(key=lambda row: row["answered_ns"])
    often = [(row, each) for row in rows for each in row["redelivered"] if each["deliveries"] >= OFTEN]
    if not often:
        return
    most = max(each["deliveries"] for _, each in often)
    places = sorted({(each["topic"] or "", each["partition"], each["first_offset"]) for _, each in often})
    topic, partition, offset = places[0]
    worst = f"{topic}-{partition} from offset {offset}"
    clients = sorted({row["client_id"] or "" for row, _ in often})
    yield DetectorResult(
        severity="critical" if most >= _LIMIT else "warning",
        from_ns=often[0][0]["answered_ns"],
        to_ns=often[-1][0]["answered_ns"],
        subject=only(clients),
        text=f"records were delivered up to {most} times: {worst}"
        + (f" and {len(places) - 1} other places" if len(places) > 1 else "")
        + f", to {first_of(clients)}"
        + (f"; at {_LIMIT} deliveries, the default limit, they are archived" if most >= _LIMIT else ""),
        advice=_ADVICE_AGAIN,
        value=most,
        threshold=OFTEN,
        evidence=(_delivery(row, each) for row, each in often),
    )


def _delivery(row: dict[str, Any], each: dict[str, Any]) -> Evidence:
    first, last = each["first_offset"], each["last_offset"]
    span = f"{first} to {last}" if last > first else first
    text = f"delivery {each['deliveries']} of {each['topic']}-{each['partition']}, {span}, to {row['client_id']}"
    return Evidence(row["answered_ns"], row["source"], row["answer_seq"], text)
