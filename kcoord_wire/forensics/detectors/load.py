"""More records than are read: throttled clients, and lag that grows while its owner reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from statistics import median
from typing import Final, NamedTuple

from kcoord_wire.forensics.detectors.finding import (
    SECOND_NS,
    DetectorResult,
    Seen,
    client_of,
    covered_ns,
    detector,
    lasting,
    person,
    plural,
    was_cut_off,
)
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory, Lag, Sighting
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import clock, first_of, only

# ---- throttling

THROTTLED_NS: Final = SECOND_NS
_MUCH_NS: Final = 10 * SECOND_NS
_MUCH: Final = 0.1  # of the time from the first throttled response to the end
_ADVICE_ON_QUOTA: Final = (
    "A quota of the broker holds this client back (consumer_byte_rate, request_percentage): kafka-configs.sh "
    "--describe --entity-type clients (or users) shows it. Raise it, or read less; more members with the same client "
    "id share one quota. Timeouts have nothing to do with it."
)


def is_throttling(row: Sighting) -> bool:
    """Whether an error is that of a response that throttles its client."""
    return row.throttle_ms is not None and row.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


@detector(26, basis="frames")
def throttled(seen: Seen) -> Iterator[DetectorResult]:
    """Throttled: a quota of the broker holds a member back.

    The broker answers with the time for which it then reads nothing more from the connection (KIP-219). A second that
    several answers throttle counts once. Normal is none.

    Threshold: a second; a warning from ten seconds, or a tenth of the time since the first such answer, on.
    """
    members = {(life.client_id or "", life.client_host or "") for life in seen.history.members}
    for client, rows in throttled_clients(seen.errors).items():
        if client in members:
            yield from throttled_found(client, rows, seen.history)


def throttled_clients(errors: Iterable[Sighting]) -> dict[tuple[str, str], list[Sighting]]:
    """Return the answers that throttle each client, by its id and host, in order of time."""
    found: dict[tuple[str, str], list[Sighting]] = defaultdict(list)
    for row in sorted(filter(is_throttling, errors), key=lambda row: row.time_ns):
        found[row.client].append(row)
    return dict(sorted(found.items()))


def throttled_found(
    client: tuple[str, str], rows: Sequence[Sighting], history: GroupHistory
) -> Iterator[DetectorResult]:
    """Yield the finding about one client, if it lost a second; parameters as `throttled_clients` has them."""
    first_ns, last_ns = rows[0].time_ns, max(history.group.last_ns, rows[-1].time_ns)
    spans = [(row.time_ns, min(row.time_ns + _throttle_ns(row), last_ns)) for row in rows]
    ns, most_ns = covered_ns(spans), max(map(_throttle_ns, rows))
    if max(ns, most_ns) < THROTTLED_NS:
        return
    apis = first_of([f"{count:,} {api}" for api, count in Counter(row.api or "" for row in rows).most_common()])
    held = _held(history, client)
    until_ns = max(to_ns for _, to_ns in spans)
    yield DetectorResult(
        severity="warning" if ns >= min(_MUCH_NS, _MUCH * max(last_ns - first_ns, 1)) else "info",
        from_ns=first_ns,
        to_ns=None if until_ns >= last_ns else until_ns,
        subject=client[0] or None,
        text=f"{person(*client)} was throttled by the broker for {lasting(ns)} of {lasting(last_ns - first_ns)}, since "
        f"{clock(first_ns)} UTC: a quota (throttle_time_ms up to {most_ns // NS_PER_MS:,}, {apis})"
        f"{_lag_meanwhile(history, held)}",
        advice=_ADVICE_ON_QUOTA,
        value=ns / SECOND_NS,
        threshold=0,
        evidence=map(_throttle_evidence, rows),
        cost_ms=ns / NS_PER_MS * max(1, len(held)),
    )


def _throttle_ns(row: Sighting) -> int:
    return (row.throttle_ms or 0) * NS_PER_MS


def _throttle_evidence(row: Sighting) -> Evidence:
    return Evidence(row.time_ns, row.source, -1, f"{row.api} is answered with throttle_time_ms {row.throttle_ms:,}")


def _ids_of(history: GroupHistory, clients: Container[tuple[str, str]]) -> set[str]:
    """Return the member ids of clients, which are given by id and host."""
    return {life.member_id for life in history.members if (life.client_id or "", life.client_host or "") in clients}


def _held(history: GroupHistory, client: tuple[str, str]) -> set[tuple[str, int]]:
    """Return the partitions that a client has held."""
    ids = _ids_of(history, [client])
    return {(row.topic, row.partition) for row in history.ownership if row.member_id in ids}


def _lag_meanwhile(history: GroupHistory, held: set[tuple[str, int]]) -> str:
    """Return how far its partitions are behind at the end of the source."""
    lags = [row.lag for row in history.partitions if (row.topic, row.partition) in held and row.lag]
    return f"; lag {sum(lags):,} on {len(lags)} of its {len(held)} {plural('partition', held)}" if lags else ""


# ---- growing lag

GROWING_NS: Final = 20 * SECOND_NS
BEHIND_NS: Final = 10 * SECOND_NS
_RECENT_NS: Final = 30 * SECOND_NS  # before the end of the source: to there it lasts
_PARTS: Final = 5
_LEAST_ROWS: Final = 2  # in each part
_LEAST_FETCHES: Final = 3  # where there are fewer rows, each of which is a part
_FEW: Final = 32  # such rows, at most
_TWO_DIGITS: Final = 10

_ADVICE_ON_ONE: Final = (
    "Its owner reads without a pause and is too slow for this partition alone: more members do not help, since one "
    "reads it. Look at the key that the producer partitions by, and at what the application does for each record "
    "(batches, work outside the polling thread)."
)
_ADVICE_ON_ALL: Final = (
    "The members read without a pause and are too slow for what comes: add members, up to the number of partitions, or "
    "do less for each record (batches, work outside the polling thread, a larger fetch)."
)


class Growth(NamedTuple):
    """A partition whose lag grows while its owner reads.

    :ivar first: the first row of the time in which it has grown
    :ivar last: the last one
    :ivar after: the last row of the partition, where it has not grown steadily since; None where it grows to the end
    """

    first: Lag
    last: Lag
    after: Lag | None = None

    @property
    def place(self) -> tuple[str, int]:
        return self.last.topic, self.last.partition

    @property
    def ns(self) -> int:
        return self.last.time_ns - self.first.time_ns

    @property
    def grown(self) -> int:
        return (self.last.lag or 0) - (self.first.lag or 0)

    @property
    def came(self) -> int:
        """Records that came meanwhile."""
        return self.last.end_offset - self.first.end_offset

    @property
    def behind_ns(self) -> float:
        """By how much longer ago the records that are read now were written, at the rate at which they come."""
        return self.grown / max(self.came, 1) * self.ns

    def rate(self, records: int) -> str:
        """Return them by second, with two digits at least."""
        per_s = records / max(self.ns / SECOND_NS, 1e-9)
        return f"{per_s:,.0f}" if per_s >= _TWO_DIGITS else f"{per_s:,.1f}"


@detector(57, basis="frames")
def growing_lag(seen: Seen) -> Iterator[DetectorResult]:
    """Growing lag: a partition falls behind steadily while its owner reads it.

    Normal is lag that falls again: after a burst, after a rebalance, between two commits. A partition that its owner
    leaves as it is is `stuck_partition`, and one whose owner is throttled is reported as that.

    Threshold: for 20 s at least, in the hands of one owner, the lag is higher in each fifth of the time than in the one
    before, its position rises in each, and what it has grown by is what comes in ten seconds; warning. A client that
    works on what one Fetch gave for seconds shows its lag at each Fetch only: then it is higher at each of three at
    least than at the one before, and records come between any two at half of the usual rate at least, so that the lag
    is none of a burst; so is what each found waiting behind the offset it asked for, whatever was committed in between
    behind an end that had not been read since. Growth need not last to the end: that of an earlier time counts, too, if
    none does.
    """
    throttled_ids = _ids_of(seen.history, throttled_clients(seen.errors))
    grown = [each for each in growths(seen.history) if each.last.member_id not in throttled_ids]
    grown = [
        each
        for each in grown
        if not was_cut_off(seen.history, each.last.member_id, each.first.time_ns, each.last.time_ns)
    ]
    if grown:
        yield _growing_found(seen, grown)


def growths(history: GroupHistory) -> list[Growth]:
    """Return the partitions whose lag grows steadily, or did: those where it lasts first, then the worst."""
    rows: dict[tuple[str, int], list[Lag]] = defaultdict(list)
    for row in history.lag:
        if row.lag is not None:
            rows[row.topic, row.partition].append(row)
    found = [growth for each in rows.values() if (growth := _growth(each, history.group.last_ns)) is not None]
    return sorted(found, key=lambda each: (each.after is not None, -each.grown, each.place))


def _growth(rows: list[Lag], last_ns: int) -> Growth | None:
    """Return how the lag of one partition has grown in the hands of one owner: to the end, else most at any time."""
    by_owner = [list(owned) for _, owned in groupby(rows, key=lambda row: row.member_id)]
    lasting_one = _steady(by_owner[-1]) or _steady(_at_fetches(by_owner[-1]), last_ns)
    if lasting_one is not None and last_ns - lasting_one.last.time_ns <= max(_RECENT_NS, lasting_one.ns):
        return lasting_one
    past = [growth for owned in by_owner if (growth := _steady(_to_the_peak(owned))) is not None]
    for owned, following in pairwise(by_owner):
        if (growth := _steady(_at_fetches(owned), following[0].time_ns)) is not None:
            past.append(growth)
    past = [growth._replace(after=rows[-1]) for growth in past if growth.last is not rows[-1]]
    return max(past, key=lambda each: each.grown, default=None)


def _at_fetches(owned: list[Lag]) -> list[Lag]:
    """Return what the last Fetch requests with a new offset found waiting; no more than count as few."""
    offsets = [None, *(row.fetch_offset for row in owned)]
    read = [row for row, before in zip(owned, offsets, strict=False) if row.fetch_offset not in (None, before)]
    if len(read) < _LEAST_FETCHES:
        return owned[-1:]
    waiting = [(row, max(0, row.end_offset - (row.fetch_offset or 0))) for row in read[-_FEW:]]
    return [replace(row, committed_offset=None, lag=lag) for row, lag in waiting]


def _to_the_peak(owned: list[Lag]) -> list[Lag]:
    return owned[: max(range(len(owned)), key=lambda at: (owned[at].lag or 0, at)) + 1]


def _steady(owned: list[Lag], until_ns: int | None = None) -> Growth | None:
    """Return how the lag has grown from its lowest to the last of these rows, if it has in every part of the time.

    Of few rows, it may have grown from a later one on, where more records come than before.

    :param until_ns: until when the reader was at work on what the last of these rows gave; None: not longer
    """
    lowest = min(range(len(owned)), key=lambda at: (owned[at].lag or 0, -at))
    rows = owned[lowest:]
    if _is_large(rows, None) and (parts := _parts(rows)) is not None:
        return Growth(rows[0], rows[-1]) if _rises(parts) else None
    while sum(bool(row.lag) for row in rows) >= _LEAST_FETCHES and _is_large(rows, until_ns):
        if len(rows) <= _FEW and _rises([[row] for row in rows]) and _comes_evenly(rows):
            return Growth(rows[0], rows[-1])
        rows = rows[max(1, len(rows) - _FEW) :]
    return None


def _is_large(rows: Sequence[Lag], until_ns: int | None) -> bool:
    growth = Growth(rows[0], rows[-1])
    ns = growth.ns if until_ns is None else until_ns - growth.first.time_ns
    return ns >= GROWING_NS and growth.behind_ns >= BEHIND_NS


def _parts(rows: Sequence[Lag]) -> list[list[Lag]] | None:
    """Return the rows by the part of the time that they are in; None where one has too few."""
    ns = rows[-1].time_ns - rows[0].time_ns
    parts: list[list[Lag]] = [[] for _ in range(_PARTS)]
    for row in rows:
        parts[min((row.time_ns - rows[0].time_ns) * _PARTS // ns, _PARTS - 1)].append(row)
    return None if any(len(part) < _LEAST_ROWS for part in parts) else parts


def _rises(parts: Sequence[Sequence[Lag]]) -> bool:
    """Whether lag and position are higher in each part of a time than in the part before."""
    lags = [median(row.lag or 0 for row in part) for part in parts]
    positions = [_position(part[-1]) for part in parts]
    # At the end of the partition the position stays until the first records come.
    return _ascend(lags) and _ascend(positions if parts[0][0].lag else positions[1:])


def _comes_evenly(rows: Sequence[Lag]) -> bool:
    """Whether records come between any two rows at half of the rate of the whole time at least."""
    whole = Growth(rows[0], rows[-1])
    return all(
        2 * (after.end_offset - row.end_offset) * whole.ns >= whole.came * (after.time_ns - row.time_ns)
        for row, after in pairwise(rows)
    )


def _ascend(values: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(values))


def _position(row: Lag) -> int:
    return (row.committed_offset if row.committed_offset is not None else row.fetch_offset) or 0


class _Words(NamedTuple):
    """The verbs of a sentence, in one tense."""

    grows: str
    grow: str
    reads: str
    come: str
    are: str


_NOW: Final = _Words("grows", "grow", "reads", "come", "are")
_THEN: Final = _Words("grew", "grew", "read", "came", "were")


def _growing_found(seen: Seen, grown: list[Growth]) -> DetectorResult:
    worst = grown[0]
    known = [row for row in seen.history.partitions if row.lag is not None]
    names = [f"{topic}-{number}" for topic, number in (each.place for each in grown)]
    words = _NOW if worst.after is None else _THEN
    more = f"; {len(grown)} of {len(known)} partitions {words.grow} ({first_of(names)})" if len(grown) > 1 else ""
    yet = [each.last.time_ns for each in grown if each.after is not None]
    return DetectorResult(
        severity="warning",
        from_ns=min(each.first.time_ns for each in grown),
        to_ns=max(yet) if len(yet) == len(grown) else None,
        subject=only(names),
        text=f"the lag of {names[0]} {words.grows} steadily while {_reader(seen.history, worst)} {words.reads} it: "
        f"from {worst.first.lag or 0:,} to {worst.last.lag or 0:,} within {lasting(worst.ns)}; "
        f"{worst.rate(worst.came)} records/s {words.come}, {worst.rate(worst.came - worst.grown)} {words.are} read"
        f"{_share(seen.history, worst, words)}{_afterwards(worst)}{more}",
        advice=_ADVICE_ON_ONE if 2 * len(grown) <= len(known) else _ADVICE_ON_ALL,
        value=worst.behind_ns / SECOND_NS,
        threshold=BEHIND_NS / SECOND_NS,
        evidence=map(_growth_evidence, grown),
        cost_ms=sum(each.behind_ns for each in grown) / NS_PER_MS,
    )


def _afterwards(growth: Growth) -> str:
    """Return what the lag was at the end, where it has not grown steadily until then."""
    if growth.after is None:
        return ""
    return f"; {lasting(growth.after.time_ns - growth.last.time_ns)} later it was {growth.after.lag or 0:,}"


def _reader(history: GroupHistory, growth: Growth) -> str:
    owner = next((life for life in history.members if life.member_id == growth.last.member_id), None)
    return "its reader" if owner is None else person(client_of(owner), owner.client_host)


def _growth_evidence(each: Growth) -> Evidence:
    topic, number = each.place
    text = f"{topic}-{number}: lag {each.first.lag or 0:,} to {each.last.lag or 0:,}"
    text += f", end {each.first.end_offset:,} to {each.last.end_offset:,}"
    return Evidence(each.last.time_ns, "", -1, text)


def _share(history: GroupHistory, worst: Growth, words: _Words) -> str:
    """Return which part of its topic's records came to a partition in that time; empty where that is not most."""
    firsts: dict[int, int] = {}
    lasts: dict[int, int] = {}
    for row in history.lag:
        if row.topic == worst.last.topic and worst.first.time_ns <= row.time_ns <= worst.last.time_ns:
            firsts.setdefault(row.partition, row.end_offset)
            lasts[row.partition] = row.end_offset
    total = sum(lasts[number] - firsts[number] for number in firsts)
    if len(firsts) == 1 or 2 * worst.came < total:
        return ""
    return f"; {worst.came / total:.0%} of the records of {worst.last.topic} {words.come} to this partition"


# ---- hot partition

_HOT: Final = 5
_LEAST_PARTITIONS: Final = 3
_LEAST_PER_S: Final = 10
_ADVICE_ON_HOT: Final = (
    "One member reads a partition, whatever their number: look at the key that the producer partitions by, if its "
    "owner is too slow for that."
)


@detector(84, basis="frames")
def hot_partition(seen: Seen) -> Iterator[DetectorResult]:
    """Hot partition: most records of a topic come to one partition, which one member reads.

    Normal are partitions that grow alike. Whether the owner keeps up, the source shows only where it commits: a client
    may fetch far ahead of its application. Partitions whose lag grows are `growing_lag`.

    Threshold: of three partitions or more whose ends are known over the same time, one gets ten records per second for
    20 s at least, as many as all others together, and five times the mean of the others; info.
    """
    grown = {each.place for each in growths(seen.history)}
    ends: dict[str, dict[int, list[Lag]]] = defaultdict(lambda: defaultdict(list))
    for row in seen.history.lag:
        ends[row.topic][row.partition].append(row)
    for topic in sorted(ends):
        came = [_came(rows) for rows in ends[topic].values()]
        hot = max(came, key=lambda each: each.came)
        if hot.place not in grown and _is_hot(hot, [each for each in came if each is not hot], ends[topic]):
            yield _hot_found(seen.history, hot, sum(each.came for each in came), len(came))


def _came(rows: Sequence[Lag]) -> Growth:
    """Return what came to a partition, until its end was last seen to move."""
    last = next((row for before, row in zip(rows[-2::-1], rows[:0:-1], strict=True) if _moved(before, row)), rows[0])
    return Growth(rows[0], last)


def _moved(before: Lag, row: Lag) -> bool:
    return before.end_offset != row.end_offset


def _is_hot(hot: Growth, others: Sequence[Growth], rows: Mapping[int, Sequence[Lag]]) -> bool:
    seen_ns = (each[-1].time_ns - each[0].time_ns for each in rows.values())
    rest = sum(each.came for each in others)
    return (
        len(others) + 1 >= _LEAST_PARTITIONS
        and hot.ns >= GROWING_NS
        and all(2 * ns >= hot.ns for ns in seen_ns)
        and hot.came * SECOND_NS >= _LEAST_PER_S * hot.ns
        and hot.came >= max(rest, _HOT * rest / len(others))
    )


def _hot_found(history: GroupHistory, hot: Growth, total: int, count: int) -> DetectorResult:
    name = f"{hot.last.topic}-{hot.last.partition}"
    is_known = hot.last.committed_offset is not None
    unknown = "" if is_known else "; whether it keeps up the source does not show, as no offset is committed"
    return DetectorResult(
        severity="info",
        from_ns=hot.first.time_ns,
        to_ns=hot.last.time_ns,
        subject=name,
        text=f"records come to {name} faster than to the other {count - 1} partitions of its topic together: "
        f"{hot.came:,} of {total:,} within {lasting(hot.ns)} ({hot.rate(hot.came)} records/s), which "
        f"{_reader(history, hot)} reads alone{unknown}",
        advice=_ADVICE_ON_HOT,
        value=hot.came / total,
        threshold=0.5,
        evidence=[_growth_evidence(hot)],
    )
