"""Flapping member: a client that is lost and comes back, over and over.

A client that comes back has a new member id, so the detector counts member ids one after the other of the same client
id and host (or of the same group.instance.id). Normal are several consumers with one client id on one host at the same
time; they look alike, so the returns are divided by the number of members present at once. A dead one is not present,
although the coordinator counts it until its session is over.

The advice follows from how the lives ended (`MemberLife.end`, `MemberLife.why_left`), the commonest way first.

Threshold: 3 returns of each within 10 minutes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found
from kcoord_wire.forensics.detectors.windows import MINUTE_NS, SECOND_NS, busiest
from kcoord_wire.forensics.model import Evidence, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_NS: Final = 10 * MINUTE_NS
THRESHOLD: Final = 3

_MS_PER_S: Final = 1_000
_NO_REASON: Final = "Look at this one process: what ends it, a supervisor that restarts it, or the network between."
_STATIC: Final = (
    "Until that is fixed, a group.instance.id lets a restart within session.timeout.ms take its partitions back "
    "without a rebalance."
)
_ADVICE: Final[Mapping[str, str]] = {
    "process died": "The process dies without leaving the group: look at its exit code and log, the OOM killer (exit "
    f"code 137, OOMKilled), and its liveness probe; let the supervisor wait between restarts. {_STATIC}",
    "process ended": "The process is restarted again and again: look at its exit code and log, the OOM killer (exit "
    "code 137, OOMKilled), its liveness probe, and who deploys it.",
    "silent": "The process falls silent although it is not closed: look for long garbage collections, CPU limits that "
    "throttle it, a frozen host, and the network between it and the broker; session.timeout.ms says how long it may.",
    "poll timeout": "Its application takes longer between two polls than max.poll.interval.ms allows: do less per poll "
    "(max.poll.records), move the work to another thread, or raise max.poll.interval.ms.",
    "rebalance timeout": "It does not rejoin in time, because its application does not poll: do less per poll "
    "(max.poll.records), move the work to another thread, or raise max.poll.interval.ms.",
    "session timeout": "Its heartbeats stop for longer than session.timeout.ms: look for long garbage collections, CPU "
    "limits that throttle it, and the network between it and the broker.",
    "left": "It leaves the group in order each time: look at what closes and opens it, an autoscaler, a deployment, a "
    f"supervisor, or an application that closes its consumer after an error. {_STATIC}",
}
"""By how the lives ended. Shortening a timeout is in none: none of these ends waits for one."""


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per client."""
    for name, lives in _clients(history.members).items():
        at_once = _most_at_once(lives)
        returns = busiest(lives[at_once:], lambda life: life.joined_ns, WINDOW_NS)
        if len(returns) < THRESHOLD * at_once:
            continue
        first, last = returns[0].joined_ns, returns[-1].joined_ns
        ended = [life for life in lives if first - WINDOW_NS <= _gone_ns(life) <= last and _end_of(life)]
        ways = Counter(_end_of(life) for life in ended).most_common()
        ids = {life.member_id for life in lives}
        yield Found(
            severity="warning",
            from_ns=lives[0].joined_ns,
            to_ns=last,
            subject=name,
            text=f"{name} came back {len(returns)} times within {_span(last - lives[0].joined_ns)}"
            + (f"; it was lost by {', '.join(f'{way} ({count} x)' for way, count in ways)}" if ways else "")
            + _cost(history, ids),
            advice=_ADVICE.get(ways[0][0], _NO_REASON) if ways else _NO_REASON,
            value=len(returns) / at_once,
            threshold=float(THRESHOLD),
            rebalances=[rebalance.number for rebalance in history.rebalances if rebalance.member_id in ids],
            evidence=_evidence(returns, ended),
        )


def _evidence(returns: Sequence[MemberLife], ended: Sequence[MemberLife]) -> list[Evidence]:
    facts = [Evidence(life.joined_ns, "", -1, f"it joins as {life.member_id}") for life in returns]
    facts += [Evidence(_gone_ns(life), "", -1, f"{life.member_id}: {_end_of(life)}") for life in ended]
    return sorted(facts, key=lambda fact: fact.time_ns)[:MAX_EVIDENCE]


def _cost(history: GroupHistory, ids: set[str]) -> str:
    """How long rebalances waited for its dead incarnations."""
    waits = [wait.ms for row in history.rebalances for wait in row.waited_for if wait.died_ns and wait.member_id in ids]
    if not waits:
        return ""
    times = "a rebalance" if len(waits) == 1 else f"rebalances {len(waits)} times"
    return f"; {times} waited for a dead incarnation of it, {sum(waits) / _MS_PER_S:.0f} s in all"


def _span(length_ns: int) -> str:
    if length_ns < MINUTE_NS * 2:
        return f"{max(1, round(length_ns / SECOND_NS))} s"
    return f"{round(length_ns / MINUTE_NS)} min"


def _end_of(life: MemberLife) -> str:
    """How it ended, as `_ADVICE` has it; empty for a life that goes on."""
    if life.end in (None, "left", "gone"):
        return life.why_left or life.end or ""
    return life.end or ""


def _gone_ns(life: MemberLife) -> int:
    """When it was gone: dead, removed or last seen."""
    if life.died_ns is not None:
        return life.died_ns
    return life.last_seen_ns if life.left_ns is None else life.left_ns


def _clients(members: list[MemberLife]) -> dict[str, list[MemberLife]]:
    """Return the lives of each client, in order of their start."""
    clients: dict[str, list[MemberLife]] = defaultdict(list)
    for life in sorted(members, key=lambda life: life.joined_ns):
        if name := life.instance_id or " at ".join(filter(None, [life.client_id, life.client_host])):
            clients[name].append(life)
    return clients


def _most_at_once(lives: list[MemberLife]) -> int:
    """Return how many of them there were at the same time, at most; 1 at least."""
    moments = [(life.joined_ns, 1) for life in lives]
    moments += [(_gone_ns(life), -1) for life in lives]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return max(most, 1)
