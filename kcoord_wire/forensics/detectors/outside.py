"""Errors that clients get outside groups: refused versions, credentials and topics.

They are findings of the groups whose members the clients are, by client id and host; those of all other clients are the
findings of one more history, without a group (origin ``clients``), so that every report and table has them.

Threshold: 1 for each client and error, 3 for refused ApiVersions. Critical where only a change from outside helps
(`Refusal.is_fatal`), a topic's error only if a client got it twice and it goes on; else warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, error_name, lasting, listed, only, person, plural
from kcoord_wire.forensics.detectors.known_bugs import finding_of
from kcoord_wire.forensics.detectors.windows import SECOND_NS
from kcoord_wire.forensics.model import Evidence, GroupHistory, GroupSummary, Sighting
from kcoord_wire.forensics.refusal_advice import refusal_of

VERSIONS_REFUSED: Final = 3
"""Refused ApiVersions requests; a client may be about to ask with a lower version at the end of a source."""

_QUIET_NS: Final = 3 * SECOND_NS  # without a refusal of a topic that was refused again and again

Client = tuple[str, str]
"""Client id and host."""


def outside_findings(history: GroupHistory, errors: Iterable[Sighting]) -> Iterator[Found]:
    """Yield what the members of a group were refused outside it.

    :param errors: rows of ERROR
    """
    yield from _found([row for row in errors if _is_of(row, history)], history.group.last_ns)


def history_of_clients(histories: Sequence[GroupHistory], errors: Sequence[Sighting]) -> GroupHistory | None:
    """Return a history without a group, of the clients that belong to none of these; None without errors of such.

    :param errors: rows of ERROR
    """
    rows = [row for row in errors if not any(_is_of(row, history) for history in histories)]
    if not rows:
        return None
    times = [row.time_ns for row in rows]
    group = GroupSummary("", "clients", None, min(times), max(times), 0, 0, 0, 0, 0, 0.0, [])
    history = GroupHistory(group)
    history.findings = [finding_of("refused", found, history) for found in _found(rows, group.last_ns)]
    return history


def _is_of(row: Sighting, history: GroupHistory) -> bool:
    """Whether an error is that of a member of the group, by client id, host and, where it has one, topic."""
    return any(
        (life.client_id or "", life.client_host or "") == _client(row)
        and (row.topic is None or not life.topics or row.topic in life.topics)
        for life in history.members
    )


def _client(row: Sighting) -> Client:
    return row.client_id or "", (row.connection or "").partition("-")[0].rpartition(":")[0].strip("[]")


def _found(rows: Iterable[Sighting], last_ns: int) -> Iterator[Found]:
    """Yield one finding for each API and error."""
    alike: dict[tuple[str, int], list[Sighting]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.time_ns):
        alike[row.api or "", row.error_code or 0].append(row)
    for (api, code), found in sorted(alike.items()):
        if api != "ApiVersions" or len(found) >= VERSIONS_REFUSED:
            yield _of_error(api, code, found, last_ns)


def _of_error(api: str, code: int, rows: list[Sighting], last_ns: int) -> Found:
    refusal = refusal_of(code)
    clients = list(dict.fromkeys(_client(row) for row in rows))
    names = [person(*client) for client in clients]
    topics = sorted({row.topic for row in rows if row.topic})
    name = error_name(code)
    about = f" of {plural('topic', topics)} {listed(topics)}" if topics else ""
    quiet_ns = _quiet_ns(rows, last_ns) if topics else 0
    over = f"; not again in the {lasting(quiet_ns)} after that" if quiet_ns else ""
    span = f" in {lasting(rows[-1].time_ns - rows[0].time_ns)}" if len(rows) > 1 else ""
    return Found(
        severity="critical" if refusal.is_fatal and (not topics or len(rows) > 1) and not quiet_ns else "warning",
        from_ns=rows[0].time_ns,
        to_ns=rows[-1].time_ns,
        subject=only([client[0] for client in clients]),
        text=f"{api}{about} was refused to {listed(names)} with {name}, {len(rows):,} {plural('time', rows)}{span}: "
        f"{refusal.meaning}{over}",
        advice=refusal.advice,
        value=float(len(rows)),
        threshold=1.0,
        rebalances=[],
        evidence=[
            Evidence(row.time_ns, row.source, -1, f"{api} of {person(*_client(row))} is answered with {name}")
            for row in rows[:MAX_EVIDENCE]
        ],
    )


def _quiet_ns(rows: list[Sighting], last_ns: int) -> int:
    """Return for how long there was no refusal after the last; 0 if that is not longer than between two of them."""
    quiet_ns = last_ns - rows[-1].time_ns
    gaps = (after.time_ns - before.time_ns for before, after in pairwise(rows))
    return quiet_ns if quiet_ns > max(_QUIET_NS, 3 * max(gaps, default=0)) else 0
