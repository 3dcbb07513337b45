"""The report in a terminal: for each group a sentence, its rebalances and findings; then the losses.

Laws:

* Each group has its first and last moment in UTC, and its sources; other times are after the first moment.
* No control character of a peer's string reaches the terminal, and no string is markup.
* Each group takes at most a screen: of many rebalances the longest are shown, with a line that says so.
* In a narrow terminal each rebalance is two lines instead of a table row.
* Every event of a group's history is a row of the tables in `kcoord_wire.forensics.model`; nothing is concluded here.
* The same history has the same events. Strings of peers are printable and short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from kcoord_wire.extras import require
from kcoord_wire.forensics.model import GroupHistory, Loss, MemberLife, Outage, Rebalance
from kcoord_wire.protocol.wording import counted
from kcoord_wire.report.digest import FAULTS, Card, Digest, awaited, cards_of, digests, growth, lag_sentence
from kcoord_wire.report.formatting import (
    ago,
    duration,
    name_if_known,
    name_of,
    partition_runs,
    place_text,
    shown,
)

if TYPE_CHECKING:
    from rich.table import Table


ROWS: Final = 20  # rebalances of a group
FINDINGS: Final = 10  # of a group
LOSSES: Final = 10
STYLES: Final = {"critical": "bold red", "warning": "yellow", "info": "cyan", "quiet": "green"}
NARROW: Final = 100  # columns below which the cells of a table would wrap within words
PLAIN: Final = 1 << 16  # columns where the output is not a terminal, so that no line is wrapped


def print_summary(
    histories: Iterable[GroupHistory], losses: Iterable[Loss], file: TextIO | None = None, width: int | None = None
) -> None:
    """Print the summary of every group, worst first.

    :param file: standard output by default; a terminal gets colours
    :param width: in columns; by default that of the terminal, and unlimited elsewhere
    :raises MissingLibraryError: rich is not installed
    """
    console_module = _rich("console")
    console = console_module.Console(file=file, width=width, highlight=False, emoji=False, markup=False)
    if width is None and not console.is_terminal:
        console.width = PLAIN
    found = digests(histories)
    if not found:
        console.print("no consumer group was found")
    for digest in found:
        for part in _group(digest, console.width < NARROW):
            console.print(part, soft_wrap=not console.is_terminal and width is None)
    for line in _losses(list(losses)):
        console.print(line)


def _rich(module: str) -> Any:
    require("rich", "cli", "the summary")
    return import_module(f"rich.{module}")


def _group(digest: Digest, narrow: bool) -> Iterator[Any]:
    text = _rich("text").Text
    history = digest.history
    yield text(digest.opening, STYLES.get(digest.severity, "") if digest.severity != "quiet" else "bold")
    yield text(digest.sentence, "dim")
    yield text(f"{digest.period}, {digest.origin}", "dim")
    if (lag := lag_sentence(history)) is not None:
        yield text(lag)
    if narrow:
        yield from _list(digest)
    elif history.rebalances:
        yield _table(digest)
    if len(history.rebalances) > ROWS:
        rest = len(history.rebalances) - ROWS
        yield text(f"the {ROWS} that took longest; {rest:,} more are in the tables and the page", "dim")
    cards = cards_of(history.findings)
    for card in cards[:FINDINGS]:
        yield _finding(card, history.group.first_ns)
    if len(cards) > FINDINGS:
        yield text(f"{counted(len(cards) - FINDINGS, 'more finding')}", "dim")
    for sentence in history.group.blind:
        yield text(f"not visible in this source: {shown(sentence, 400)}", "dim")
    yield ""


def _table(digest: Digest) -> Table:
    rich_table, text = _rich("table"), _rich("text").Text
    table: Table = rich_table.Table(box=None, pad_edge=False)
    for name, right in (
        ("#", True), ("start", True), ("cause", False), ("who", False), ("took", True), ("waited for", False),
        ("late", True), ("moved", True), ("paused", True), ("outcome", False),
    ):  # fmt: skip
        table.add_column(name, header_style="dim", justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in _longest(digest):
        styles = {2: "red" if row.cause in FAULTS else "", 9: "" if row.outcome == "stable" else "yellow"}
        table.add_row(*(text(cell, styles.get(at, "")) for at, cell in enumerate(_cells(digest, row))))
    return table


def _cells(digest: Digest, row: Rebalance) -> tuple[str, ...]:
    took, wait = digest.lengths[row.number], awaited(row)
    waited_for = "" if wait is None else wait.person + (f", {wait.how}" if wait.how else "")
    return (
        str(row.number),
        ago(row.started_ns, digest.history.group.first_ns),
        shown(str(row.cause), 60) + (f" ({row.confidence:.0%})" if row.confidence < 1 else ""),
        _who(row.client_id, row.member_id, row.instance_id, row.client_host),
        "" if took is None else duration(took),
        waited_for,
        "" if wait is None or wait.ms is None else duration(wait.ms),
        f"{row.moved:,}" + (f" ({row.moved_needlessly:,} needless)" if row.moved_needlessly else ""),
        ", ".join(filter(None, ("" if row.paused_ms is None else duration(row.paused_ms), growth(row)))),
        shown(row.outcome, 20),
    )


def _list(digest: Digest) -> Iterator[Any]:
    text = _rich("text").Text
    for row in _longest(digest):
        number, start, cause, who, took, last, late, moved, paused, outcome = _cells(digest, row)
        line = text(f"#{number} {start} ")
        line.append(cause, "red" if row.cause in FAULTS else "bold")
        line.append(f", {who}" if who else "")
        yield line
        parts = (
            took and f"took {took}", last and f"waited for {last}", late and f"late {late}", f"moved {moved}",
            paused and f"paused {paused}", outcome,
        )  # fmt: skip
        yield text(f"  {', '.join(filter(None, parts))}", "dim" if row.outcome == "stable" else "yellow")


def _longest(digest: Digest) -> Sequence[Rebalance]:
    rows = digest.history.rebalances
    if len(rows) <= ROWS:
        return rows
    chosen = sorted(rows, key=lambda row: (-(digest.lengths[row.number] or 0.0), row.number))[:ROWS]
    return sorted(chosen, key=lambda row: row.number)


def _who(client_id: str | None, member_id: str | None, instance_id: str | None, host: str | None) -> str:
    name = name_if_known(client_id, member_id, instance_id)
    return f"{name} ({shown(host, 45)})" if name and host else name


def _finding(card: Card, first_ns: int) -> Any:
    text, finding = _rich("text").Text, card.first
    line = text(
        f"{shown(finding.severity, 12)} at {ago(finding.from_ns, first_ns)}: ", STYLES.get(finding.severity, "")
    )
    line.append(shown(finding.text, 600), "")
    if (fact := next((fact for fact in finding.evidence if fact.position is not None), None)) is not None:
        line.append(f" ({place_text(fact)} of {shown(fact.source)})", "dim")
    if card.more:
        line.append(f" {shown(card.more, 400)}", "dim")
    if finding.advice:
        line.append(f"\n  {shown(finding.advice, 600)}", "dim")
    return line


def _losses(losses: Sequence[Loss]) -> Iterator[Any]:
    text = _rich("text").Text
    if losses:
        count, lost = sum(loss.count for loss in losses), sum(loss.bytes for loss in losses)
        yield text(f"could not be read: {counted(count, 'piece')}, {counted(lost, 'byte')}", "bold yellow")
    for loss in losses[:LOSSES]:
        times = f" ({loss.count:,} times)" if loss.count != 1 else ""
        size = counted(loss.bytes, "byte")
        yield text(f"  {shown(loss.source)} at {loss.position:,}: {shown(loss.what, 300)}{times}, {size}")
    if len(losses) > LOSSES:
        yield text(f"  {len(losses) - LOSSES:,} more places are in the tables and the page", "dim")


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
