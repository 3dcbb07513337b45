"""Members that go on with what they have in hand while their group waits for them to join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.compute as pc

from kcoord_wire.forensics.detectors.finding import (
    SECOND_NS,
    DetectorResult,
    Seen,
    detector,
    lasting,
    person,
    plural,
)
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory, MemberLife, Rebalance
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import first_of, only

if TYPE_CHECKING:
    import pyarrow as pa

_SLOW_LEAST_NS: Final = 5 * SECOND_NS
_TIMEOUTS: Final = {
    "sarama": "Consumer.Group.Rebalance.Timeout",
    "kafkajs": "rebalanceTimeout",
    "franz-go": "RebalanceTimeout",
    "connect": "rebalance.timeout.ms",
}


class Handled(NamedTuple):
    """How long a member took from the news of a rebalance to its join.

    :ivar joined_ns: None where it did not join any more
    :ivar removed: why the coordinator removed it meanwhile; empty where it did not
    """

    rebalance: Rebalance
    life: MemberLife
    news_ns: int
    joined_ns: int | None
    took_ns: int
    removed: str


@detector(34, basis="frames")
def slow_handler(seen: Seen) -> Iterator[DetectorResult]:
    """Slow handler: a member heard of a rebalance and did not join it for long, since its handler went on.

    The time runs from the answer REBALANCE_IN_PROGRESS, with which the client learns of a rebalance, to its next
    JoinGroup. Most libraries send heartbeats meanwhile, so that all others wait, and the member is removed at the
    rebalance timeout; sarama sends none, and is removed when its session is over. Its process lives: it joins on the
    connection that it had. Normal are seconds.

    Threshold: the timeout at which it was removed, or half of the rebalance timeout and five seconds; warning.
    """
    found = handled(seen)
    if not found:
        return
    worst = max(found, key=lambda each: (bool(each.removed), each.took_ns))
    setting = _setting(seen.history, worst.life)
    yield DetectorResult(
        severity="warning",
        from_ns=min(each.news_ns for each in found),
        to_ns=max(each.news_ns + each.took_ns for each in found),
        subject=only(sorted({each.life.client_id or each.life.member_id for each in found})),
        text=_handled_text(found, worst),
        advice="Let the handler end soon when the rebalance begins (in sarama when session.Context() is done), do less "
        f"in one go, or raise {setting} above {lasting(worst.took_ns)}.",
        value=worst.took_ns / SECOND_NS,
        threshold=_limit_ns(worst) / SECOND_NS,
        rebalances=[each.rebalance.number for each in found],
        evidence=(
            Evidence(each.news_ns, "", -1, f"{each.life.client_id or each.life.member_id} hears of the rebalance")
            for each in found
        ),
    )


def _handled_text(found: Sequence[Handled], worst: Handled) -> str:
    names = sorted({person(each.life.client_id, each.life.client_host) for each in found})
    limit_ns = (worst.life.rebalance_timeout_ms or 0) * NS_PER_MS
    removed = sum(bool(each.removed) for each in found)
    took = f"{lasting(worst.took_ns)}{'' if worst.joined_ns is not None else ' at least'}"
    text = (
        f"{first_of(names)} went on with what {plural('it', names, 'they')} had in hand for {took} after the news of a "
        f"rebalance, before joining it; the rebalance timeout is {lasting(limit_ns)}"
    )
    if worst.removed == _SESSION:
        text += f", the session {lasting((worst.life.session_timeout_ms or 0) * NS_PER_MS)}, without heartbeats then"
    if removed:
        text += f", so that the coordinator removed {plural('it', names, 'them')}"
    return text + (f", {removed} times" if removed > 1 else "")


_LATE, _SESSION = "rebalance timeout", "session timeout"  # values of `RemovedMember.why`


def _setting(history: GroupHistory, life: MemberLife) -> str:
    if history.group.protocol_type == "connect":
        return _TIMEOUTS["connect"]
    library = (life.software or life.library or "").partition(" ")[0]
    return _TIMEOUTS.get(library, "max.poll.interval.ms")


def handled(seen: Seen) -> list[Handled]:
    """Return the members that joined late because of what they had in hand."""
    if seen.exchanges is None:
        return []
    lives = {life.member_id: life for life in seen.history.members if life.protocol == "classic"}
    rounds = _of_rounds(seen.exchanges)
    found = []
    for rebalance in seen.history.rebalances:
        for member_id, why in _waited_for(rebalance):
            life = lives.get(member_id)
            if life is not None and life.rebalance_timeout_ms:
                found.append(_took(rounds, life, rebalance, why, seen.history.group.last_ns))
    return [each for each in found if each is not None and each.took_ns >= max(_limit_ns(each), _SLOW_LEAST_NS)]


def _waited_for(rebalance: Rebalance) -> list[tuple[str, str]]:
    """Return the members that were removed while the others waited, with why, and one that joined last (why: empty)."""
    removed = {gone.member_id: gone.why for gone in rebalance.removed if gone.why in (_LATE, _SESSION)}
    is_late = (rebalance.late_ms or 0) * NS_PER_MS >= _SLOW_LEAST_NS
    late = {rebalance.last_member_id: ""} if is_late and rebalance.last_member_id else {}
    return sorted((late | removed).items())


def _limit_ns(each: Handled) -> int:
    """Return from which time on it is slow."""
    if each.removed == _SESSION:
        return (each.life.session_timeout_ms or 0) * NS_PER_MS
    return (each.life.rebalance_timeout_ms or 0) * NS_PER_MS // (1 if each.removed else 2)


def _took(rounds: pa.Table, life: MemberLife, rebalance: Rebalance, why: str, last_ns: int) -> Handled | None:
    """Return how long a member took; None if no answer shows that it heard of the rebalance, or that it lived on."""
    rows = _requests_of(rounds, life, rebalance.started_ns)
    news = [row for row in rows if row["api"] == "Heartbeat" and row["error_code"] == _IN_PROGRESS]
    news = [row for row in news if row["member_id"] == life.member_id]
    if not news or news[0]["answered_ns"] > (rebalance.ended_ns or last_ns):
        return None
    news_ns = news[0]["answered_ns"]
    join = _join_after(rows, life.member_id, news_ns)
    if join is None:
        return None if why == _SESSION else Handled(rebalance, life, news_ns, None, last_ns - news_ns, why)
    if why == _SESSION and join["connection"] != news[-1]["connection"]:
        return None  # of another process
    return Handled(rebalance, life, news_ns, join["asked_ns"], join["asked_ns"] - news_ns, why)


def _join_after(rows: Sequence[dict[str, Any]], member_id: str, since_ns: int) -> dict[str, Any] | None:
    joins = (row for row in rows if row["api"] == "JoinGroup" and row["asked_ns"] >= since_ns)
    return next((row for row in joins if row["member_id"] in ("", member_id)), None)


def _of_rounds(exchanges: pa.Table) -> pa.Table:
    """Return the joins, and what was answered with REBALANCE_IN_PROGRESS: few of the exchanges of a group."""
    # of unanswered requests the second is null, and so is the whole
    is_round = pc.or_(pc.equal(exchanges["api"], "JoinGroup"), pc.equal(exchanges["error_code"], _IN_PROGRESS))
    return exchanges.filter(is_round).select([*_REQUESTS, "client_id", "client_host"])


def _requests_of(rounds: pa.Table, life: MemberLife, since_ns: int) -> list[dict[str, Any]]:
    """Return the joins of a client, and what it was answered with REBALANCE_IN_PROGRESS, in order of time."""
    own = pc.and_(pc.equal(rounds["client_id"], life.client_id), pc.equal(rounds["client_host"], life.client_host))
    own = pc.and_(own, pc.greater_equal(rounds["asked_ns"], since_ns))
    rows = rounds.filter(pc.fill_null(own, False)).select(_REQUESTS)
    return sorted(rows.to_pylist(), key=lambda row: row["asked_ns"])


_REQUESTS: Final = ["api", "member_id", "error_code", "asked_ns", "answered_ns", "connection"]
_IN_PROGRESS: Final = int(ErrorCode.REBALANCE_IN_PROGRESS)
