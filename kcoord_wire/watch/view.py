"""The groups of a snapshot as lines for people.

Laws:

* Strings of peers pass through `shown`: no control character reaches the terminal.
* Groups in trouble come first: not described, rebalancing, without members but with lag, growing behind; then by name.
* What the Admin API does not show is said: who has rejoined, and until when a rebalance waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import NS_PER_MS
from kcoord_wire.protocol.wording import counted, first_of
from kcoord_wire.report.formatting import duration, partition_runs, shown
from kcoord_wire.watch.groups import GroupView, Snapshot
from kcoord_wire.watch.polled_group import clock

_MEMBERS: Final = 8  # of a group; of a healthy one without trouble none where the screen is full
_NAMES: Final = 6
_GROWING: Final = 3
_RED, _YELLOW, _GREEN, _DIM, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


def screen(
    snapshot: Snapshot, recent: Sequence[str], *, source: str, now: int, height: int, width: int, until_ms: float | None
) -> list[str]:
    """Return the lines of a whole screen: groups, then the latest changes at the bottom.

    :param recent: lines of changes, the latest last
    :param until_ms: the clients' rebalance timeout, if it is known
    """
    events = list(recent)[-max(height // 3, 3) :]
    room = max(height - len(events) - 3, 3)
    lines: list[str] = []
    left = sorted(snapshot.groups, key=lambda view: (-_trouble(view), view.group_id))
    for number, view in enumerate(left):
        block = list(group_lines(view, now=now, until_ms=until_ms))
        if len(lines) + len(block) > room and lines:
            lines.append(f"{_DIM}{counted(len(left) - number, 'more group')}; --group ID shows fewer{_PLAIN}")
            break
        lines += block
    head = [headline(snapshot, source=source, now=now), ""]
    return [_cut(line, width) for line in (*head, *lines[: room + 1], "", *events)][:height]


def headline(snapshot: Snapshot, *, source: str, now: int) -> str:
    """Return what is watched, and whether it answers."""
    text = f"kcoord watch {shown(source, 80)}  {clock(now)} UTC  {counted(len(snapshot.groups), 'group')}"
    if snapshot.left_out:
        text += f" ({snapshot.left_out:,} more are not watched: name those you want with --group)"
    if snapshot.unanswered is None:
        return text
    last = "never" if snapshot.answered_ns is None else f"{_since(snapshot.answered_ns, now)} ago"
    return f"{text}  {_RED}no answer: {shown(snapshot.unanswered, 200)}; last answer {last}{_PLAIN}"


def group_lines(view: GroupView, *, now: int, until_ms: float | None = None) -> Iterator[str]:
    """Yield the lines of a group: its state, what it waits for, its members with their partitions and lag."""
    yield _state_line(view, now)
    if view.rebalance is not None:
        yield f"  {_YELLOW}{_why(view)}{_PLAIN}"
        yield f"  {_waits(view, until_ms)}"
    for member in view.members[:_MEMBERS]:
        lag = "" if member.lag is None else f"  lag {member.lag:,}"
        yield f"  {member.name}  {partition_runs(member.places) or '-'}{lag}"
    if len(view.members) > _MEMBERS:
        yield f"  {_DIM}and {counted(len(view.members) - _MEMBERS, 'more member')}{_PLAIN}"


def plain(line: str) -> str:
    """Return the line without escape sequences."""
    return re.sub(r"\x1b\[\d*m", "", line)


def view_to_json(view: GroupView) -> dict[str, Any]:
    """Return a group as plain data; what is not known is null."""
    rebalance = view.rebalance
    return {
        "group_id": view.group_id,
        "state": view.state,
        "protocol": view.protocol,
        "assignor": view.assignor,
        "unanswered": view.unanswered,
        "members": [
            {"name": each.name, "partitions": [[*place] for place in each.places], "lag": each.lag}
            for each in view.members
        ],
        "rebalance": rebalance and {"cause": str(rebalance.cause), "confidence": rebalance.confidence},
        "waits_for": list(view.waits_for),
        "lag": view.lag,
        "lags": [[*place, lag] for place, lag in sorted(view.lags.items())],
    }


def _state_line(view: GroupView, now: int) -> str:
    name = shown(view.group_id, 60)
    if view.unanswered is not None:
        return f"{_RED}{name}  not described: {shown(view.unanswered, 160)}{_PLAIN}"
    colour = _YELLOW if view.rebalance is not None else _GREEN if view.members else _DIM
    least = "at least " if view.is_older else ""
    parts = [f"{name}  {colour}{view.state}{_PLAIN} for {least}{_since(view.since_ns, now)}"]
    parts.append(counted(len(view.members), "member"))
    if view.lag is not None:
        parts.append(f"lag {view.lag:,}")
    if view.growing:
        fastest = [f"{shown(topic, 40)}/{n} +{rate:,.0f}/s" for (topic, n), rate in view.growing]
        parts.append(f"{_RED}grows: {first_of(fastest, _GROWING)}{_PLAIN}")
    if view.paused:
        parts.append(f"{counted(view.paused, 'partition')} without an owner")
    total = sum(view.causes.values())
    if total:
        some = ", ".join(
            f"{count:,} {cause}" for cause, count in sorted(view.causes.items(), key=lambda each: -each[1])
        )
        parts.append(f"{_DIM}{counted(total, 'rebalance')}: {some}{_PLAIN}")
    return "  ".join(parts)


def _why(view: GroupView) -> str:
    rebalance = view.rebalance
    assert rebalance is not None
    what = "cause unknown" if rebalance.cause == Cause.UNKNOWN else f"{rebalance.cause} ({rebalance.confidence:.0%})"
    return f"rebalance #{rebalance.number}: {what}: {shown(rebalance.detail, 300)}"


def _waits(view: GroupView, until_ms: float | None) -> str:
    names = first_of(view.waits_for, _NAMES)
    if view.state == "CompletingRebalance":
        return "waits for the assignment of its leader, which the Admin API does not name"
    if not view.waits_for:
        return "waits for members that join" if view.protocol == "classic" else "all members have their target"
    until = _until(view, until_ms)
    if view.protocol == "consumer":
        return f"waits {until} for {names} to take over the target assignment"
    return f"waits {until} for those of {names} that have not rejoined (who has is not shown)"


def _until(view: GroupView, until_ms: float | None) -> str:
    if until_ms is None or view.rebalance is None:
        return "(until when is not shown; --rebalance-timeout S, if you know it)"
    return f"until {clock(view.rebalance.started_ns + round(until_ms * NS_PER_MS))} UTC at the latest"


def _since(then: int, now: int) -> str:
    return duration(max(now - then, 0) / NS_PER_MS)


def _trouble(view: GroupView) -> int:
    if view.unanswered is not None:
        return 4
    if view.rebalance is not None:
        return 3
    if not view.members and view.lag:
        return 2
    return 1 if view.growing else 0


def _cut(line: str, width: int) -> str:
    """Return the line in `width` columns; escape sequences take none."""
    column, at = 0, 0
    while at < len(line) and column < width:
        if line[at] == "\x1b":
            at = line.index("m", at)
        else:
            column += 1
        at += 1
    return line if at == len(line) else line[:at] + _PLAIN
