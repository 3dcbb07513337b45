"""The history of a group as a list of events in order of time.

Laws:

* Every event is a row of the tables in `kcoord_wire.forensics.model`; nothing is concluded here.
* The same history has the same events. Strings of peers are printable and short.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kcoord_wire.forensics.model import GroupHistory, MemberLife, Outage, Rebalance
from kcoord_wire.report.formatting import counted, duration, name_if_known, name_of, partition_runs, shown
from kcoord_wire.report.lagging import growth


class Event(NamedTuple):
    """One line of a story.

    :ivar time_ns: when it happened
    :ivar who: client or member it is about; empty for the group
    :ivar what: one or two words
    :ivar text: the particulars
    """

    time_ns: int
    who: str
    what: str
    text: str


def events_of(history: GroupHistory) -> list[Event]:
    """The events of a group in order of time."""
    names = {life.member_id: name_of(life.client_id, life.member_id, life.instance_id) for life in history.members}
    events = [event for life in history.members for event in _of_member(life, names[life.member_id])]
    events += [event for row in history.rebalances for event in _of_rebalance(row)]
    for generation in history.generations:
        leader = names.get(generation.leader_id or "", "")
        text = f"{generation.generation_id}: {counted(generation.members, 'member')}"
        text += f", assignor {shown(generation.assignor)}" if generation.assignor else ""
        events.append(Event(generation.joined_ns, "", "generation", text + (f", led by {leader}" if leader else "")))
    events += [event for row in history.outages for event in _of_outage(row)]
    events += _of_ownership(history, names)
    for finding in history.findings:
        events.append(
            Event(finding.from_ns, shown(finding.subject), shown(finding.severity, 20), shown(finding.text, 600))
        )
    return sorted(events, key=lambda event: event.time_ns)


def _of_member(life: MemberLife, name: str) -> Iterator[Event]:
    about = {
        "member id": life.member_id,
        "host": life.client_host,
        "assignors": ", ".join(life.assignors),
        "topics": ", ".join(life.topics),
        "session timeout": life.session_timeout_ms and duration(life.session_timeout_ms),
    }
    yield Event(life.joined_ns, name, "joins", "; ".join(f"{key} {shown(text)}" for key, text in about.items() if text))
    if life.left_ns is not None:
        yield Event(life.left_ns, name, "is gone", shown(life.why_left))


def _of_rebalance(row: Rebalance) -> Iterator[Event]:
    who = name_if_known(row.client_id, row.member_id, row.instance_id)
    cause = f"#{row.number}: {shown(str(row.cause), 60)}" + (
        f" ({row.confidence:.0%} sure)" if row.confidence < 1 else ""
    )
    yield Event(row.started_ns, who, "rebalance", f"{cause}; {shown(row.detail, 400)}" if row.detail else cause)
    if row.ended_ns is not None:
        took = "" if row.duration_ms is None else f" after {duration(row.duration_ms)}"
        text = f"#{row.number}{took}; {counted(row.moved, 'partition')} moved"
        text += f"; {grown}" if (grown := growth(row)) else ""
        yield Event(row.ended_ns, "", shown(row.outcome, 20), text)


def _of_outage(row: Outage) -> Iterator[Event]:
    broker = shown(row.broker)
    yield Event(row.from_ns, broker, shown(row.kind, 40), shown(row.text, 400))
    if row.to_ns is not None:
        text = f"after {duration((row.to_ns - row.from_ns) / 1e6)}, {counted(len(row.members), 'member')} concerned"
        yield Event(row.to_ns, broker, "answers again", text)


def _of_ownership(history: GroupHistory, names: dict[str, str]) -> Iterator[Event]:
    """The partitions that a member receives, or gives up, at one moment are one event."""
    changes: dict[tuple[int, str, str], list[tuple[str, int]]] = {}
    for row in history.ownership:
        name = names.get(row.member_id, shown(row.member_id))
        for time_ns, what in ((row.from_ns, "receives"), (row.to_ns, "gives up")):
            if time_ns is not None:
                changes.setdefault((time_ns, name, what), []).append((row.topic, row.partition))
    return (Event(*key, partition_runs(places)) for key, places in changes.items())
