"""Lines of logs -> the history of a group, of origin ``text``.

    history = text_history(lines)               # a table of `LogLine`, of one group

Where a broker's lines are there, they make the history, and lines of clients are witnesses: what a client states about
the rebalance that it set off is evidence, and a poll timeout, which only the client logs, is the cause. Where only
clients logged, their lines make the history.

Laws:

* Order and chunking of the rows do not matter; the same line in two sources (a rotated file and its copy) counts once.
* Lines of one moment are in the order in which a coordinator writes them, also where what collected the logs of several
  brokers has sorted them as text.
* What the lines do not say is None, and `GroupSummary.blind` names it: no log says which member was late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

import pyarrow as pa

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.lines.broker import BrokerLines, Kip848Lines
from kcoord_wire.forensics.lines.clients import ENDS, ClientLines, trigger_of
from kcoord_wire.forensics.lines.tables import GroupTables, evidence_of
from kcoord_wire.forensics.model import NS_PER_MS, GroupHistory, LogLine, Rebalance

_NEAR_NS: Final = 5_000 * NS_PER_MS
_WITNESSES: Final = frozenset(
    {"poll_timeout", "leaving", "session_lost", "fenced", "unauthorized", "unknown_member", "commit_refused"}
    | {"rejoin_requested", "joining"}
)
_SAYS_NOTHING: Final = "group is already rebalancing"
_MOST_WITNESSES: Final = 3
_BLIND_BROKER: Final = (
    "Who joined last and how late, what moved, and how long partitions were without an owner, brokers do not log.",
)
_BLIND_EPOCHS: Final = "When each member reached an epoch of KIP-848, brokers from 4.1 on do not log."
_BLIND_CLIENTS: Final = (
    "Only clients' logs are here: members whose log is missing do not count, and what they did is unknown.",
    "Who joined last and how late, and what moved, is not in these lines.",
)
_BLIND_REASON: Final = "{} of {} rebalances have no reason: brokers before 2.3 log none."
_BLIND_NAME: Final = "No line names the group: the lines of all sources that name none are read as one."
_BLIND_ZONE: Final = "The lines state no time zone: their times were read as {}."


def text_history(lines: pa.Table) -> GroupHistory:
    """Return the history of the one group whose lines these are.

    :param lines: `LogLine`, one or more, in any order
    """
    rows = lines_in_order(lines)
    broker = [row for row in rows if row.program == "broker"]
    clients = [row for row in rows if row.program != "broker"]
    _name_by_source(clients)
    named = {row.member_id: row.client_id for row in clients if row.member_id and row.client_id}
    tables = GroupTables(rows[0].group_id or "")
    if any(row.kind in ("preparing", "stabilized", "epoch_bumped") for row in broker):
        blind = list(_of_brokers(tables, broker))
        tables.name_clients(named)
        for rebalance in tables.rebalances:
            _add_witnesses(rebalance, clients)
    else:
        reader = ClientLines(tables)
        for row in clients:
            reader.read(row)
        reader.finish()
        tables.name_clients(named)
        blind = list(_BLIND_CLIENTS) if clients else []
    blind += _blind_rows(rows)
    return tables.history(rows[0].time_ns, rows[-1].time_ns, [], blind, origin="text")


def _blind_rows(rows: Sequence[LogLine]) -> Iterator[str]:
    if not rows[0].group_id:
        yield _BLIND_NAME
    if not all(row.is_zoned for row in rows):
        yield _BLIND_ZONE.format("UTC, or as --timezone says")


def _of_brokers(tables: GroupTables, rows: list[LogLine]) -> Iterator[str]:
    classic = BrokerLines(tables, {row.member_id: row for row in rows if row.kind == "left" and row.member_id})
    epochs = Kip848Lines(tables)
    for row in rows:
        classic.read(row)
        epochs.read(row)
    epochs.finish()
    yield from _BLIND_BROKER
    if any(row.kind == "epoch_bumped" for row in rows) and not any(row.kind == "epoch_state" for row in rows):
        yield _BLIND_EPOCHS
    bare = sum(row.kind == "preparing" and row.reason is None for row in rows)
    if bare:
        yield _BLIND_REASON.format(bare, len(tables.rebalances))


def lines_in_order(lines: pa.Table) -> list[LogLine]:
    """Return rows of `LogLine` in order of time, each line once."""
    found: dict[tuple[int, str, str], LogLine] = {}
    for row in lines.to_pylist():
        line = LogLine(**row)
        key = (line.time_ns, line.coordinator or line.client_id or line.source, line.text)
        if key not in found or (line.source, line.position) < (found[key].source, found[key].position):
            found[key] = line
    rows = sorted(found.values(), key=lambda line: (line.time_ns, line.source, line.position))
    return [row for _, moment in groupby(rows, attrgetter("time_ns")) for row in _as_written(list(moment))]


_STAGES: Final = {"stabilized": 0, "assigned_by_leader": 1, "empty": 2, "preparing": 3}  # of one generation
_EPOCH_STAGES: Final = {"epoch_topics": 0, "epoch_bumped": 1, "epoch_target": 2, "epoch_state": 3}


def _as_written(rows: list[LogLine]) -> list[LogLine]:
    """Return the lines of one moment in the order in which a coordinator writes them."""
    if len(rows) == 1:
        return rows
    is_epoch = rows[0].kind in _EPOCH_STAGES
    stages = _EPOCH_STAGES if is_epoch else _STAGES
    places = [at for at, row in enumerate(rows) if row.kind in stages]
    numbers = [0 if is_epoch else rows[at].generation_id or 0 for at in places]
    staged = sorted(
        zip(numbers, (rows[at] for at in places), strict=True), key=lambda row: (row[0], stages[row[1].kind])
    )
    for at, (_, row) in zip(places, staged, strict=True):
        rows[at] = row
    return rows


def _name_by_source(clients: list[LogLine]) -> None:
    """Name the client of lines that stand before the first that names it, in sources of one client."""
    names: dict[str, set[str]] = {}
    for row in clients:
        if row.client_id is not None:
            names.setdefault(row.source, set()).add(row.client_id)
    for row in clients:
        if row.client_id is None and len(known := names.get(row.source, set())) == 1:
            (row.client_id,) = known


def _add_witnesses(rebalance: Rebalance, clients: list[LogLine]) -> None:
    """Add what clients state about a rebalance that they set off."""
    near = [row for row in clients if _is_near(row, rebalance) and _may_be_of(row, rebalance)]
    cause, confidence, line, detail = trigger_of(near, _joined_before(clients, rebalance.started_ns))
    stated = [row for row in near if row is line or row.kind != "joining"]
    rebalance.evidence += [evidence_of(row) for row in stated[:_MOST_WITNESSES]]
    is_poll = rebalance.cause == Cause.MEMBER_LEFT and cause == Cause.POLL_TIMEOUT
    if line is None or not (is_poll or rebalance.confidence < confidence):
        return
    rebalance.cause, rebalance.confidence = cause, confidence
    rebalance.detail += f"; the client's log: {detail}"
    if rebalance.member_id is None:
        rebalance.member_id, rebalance.client_id = line.member_id, rebalance.client_id or line.client_id


def _is_near(row: LogLine, rebalance: Rebalance) -> bool:
    is_known = row.reason is None or _SAYS_NOTHING not in row.reason
    return is_known and row.kind in _WITNESSES and abs(row.time_ns - rebalance.started_ns) <= _NEAR_NS


def _joined_before(clients: list[LogLine], at_ns: int) -> set[str]:
    """Return the clients that were in the group, as their own lines say."""
    joined: set[str] = set()
    for row in clients:
        name = row.client_id or row.source
        if row.time_ns >= at_ns:
            break
        if row.kind == "joined":
            joined.add(name)
        elif row.kind in ENDS:
            joined.discard(name)
    return joined


def _may_be_of(row: LogLine, rebalance: Rebalance) -> bool:
    """Return whether a line is of the client that set a rebalance off, as far as that is known."""
    if rebalance.client_id is None and rebalance.member_id is None:
        return True
    if row.kind == "joining":
        return False
    if row.member_id is not None and rebalance.member_id is not None:
        return row.member_id == rebalance.member_id
    return row.client_id is not None and row.client_id == rebalance.client_id
