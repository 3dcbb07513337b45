"""Clocks of sources that differ, found from what two sources show of one moment, and corrected.

Captures of several hosts are read together, and each has the clock of its host. Three things show a difference:

* The same exchanges, where a connection was captured at both of its ends. A connection that goes on in the next file of
  a rotated capture has none: a join that was refused, and was sent again, is another one.
* The answers to JoinGroup of one generation: the coordinator sends them to all members at once.
* What follows from a request, before the request: in KIP-848 groups, a member is given an epoch after the join that
  raised it, and a partition after its former owner has released it. Both give bounds of the difference.

Laws:

* A difference counts from `LEAST_NS` on, and only if its marks agree: a network delays by less.
* The reference is the clock that most sources have; of equally many, that of the source with the most rows.
* A connection that two sources have counts once, in the time that both of them cover: the one with more rows keeps it.
* One source has one clock: nothing is computed for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.coded import names_of, ranked, whole
from kcoord_wire.forensics.model import NS_PER_MS, Clock
from kcoord_wire.forensics.wire.epoch_order import ordered_moments
from kcoord_wire.forensics.wire.signs import NEVER_NS, ahead_by_source, shift

LEAST_NS: Final = 500 * NS_PER_MS
"""From which difference on clocks are said to differ."""

_AGREE_NS: Final = 250 * NS_PER_MS  # marks of one difference lie this close to their median
_PARKED_NS: Final = 50 * NS_PER_MS  # a join that waited so long was answered with those of the others
_ENOUGH: Final = 2  # generations, of which a late answer may be one
_MOST_ROWS: Final = 2_000  # of a source and kind: more do not change the median
_EDGE_NS: Final = 1_000 * NS_PER_MS
_JOIN: Final = ["source", "new_generation_id", "asked_ns", "answered_ns", "instance_id", "given_member_id", "leader_id"]
_ONCE: Final = ("JoinGroup", "SyncGroup")
"""Accepted once by member and generation, other than commits of the same offsets; one that is refused comes again."""
_ENOUGH_COMMITS: Final = 3
_MOST_OF: Final = 4  # part of the exchanges that both have; parts of one capture share what was sent again, and no more
_SAME: Final = ["api", "api_version", "member_id", "generation_id", "new_generation_id", "error_code", "reason"]
_SEVERAL: Final = 2


class _Difference(NamedTuple):
    """How far one source is ahead of another."""

    ahead_ns: int
    shown_by: str
    is_exact: bool = True


_Pairs = Mapping[tuple[str, str], _Difference]


def correct_clocks(rows: pa.Table) -> tuple[pa.Table, list[Clock]]:
    """Return the exchanges of a group by one clock, each once, and which clocks differed.

    :param rows: a coded table of `Exchange`
    """
    sources = names_of(rows["source"])
    if len(sources) < _SEVERAL:
        return rows, []
    shared = _shared_connections(rows)
    same = _by_frames(rows, shared)
    pairs = {**_by_epochs(rows), **_by_joins(rows), **same}
    counted = pc.value_counts(rows["source"]).to_pylist()
    clocks = _clocks(sources, pairs, {each["values"]: each["counts"] for each in counted})
    return _once(shift(rows, ahead_by_source(clocks)), shared, same.keys()), clocks


def _clocks(sources: Sequence[str], pairs: _Pairs, counts: Mapping[str, int]) -> list[Clock]:
    """Choose the reference in each set of sources that are compared, and return those that differ from it."""
    found = []
    rest = sorted(sources, key=lambda source: (-counts[source], source))
    while rest:
        ahead = _reached(rest[0], pairs)
        rest = [source for source in rest if source not in ahead]

        def alike(source: str, ahead: Mapping[str, _Difference] = ahead) -> int:
            return sum(abs(other.ahead_ns - ahead[source].ahead_ns) < LEAST_NS for other in ahead.values())

        reference = max(ahead, key=lambda source: (alike(source), counts[source]))
        zero_ns = ahead[reference].ahead_ns
        for source, difference in sorted(ahead.items()):
            if abs(difference.ahead_ns - zero_ns) >= LEAST_NS:
                shown_by = difference.shown_by or ahead[reference].shown_by
                is_exact = difference.is_exact and ahead[reference].is_exact
                found.append(Clock(source, reference, difference.ahead_ns - zero_ns, shown_by, is_exact))
    return found


def _reached(start: str, pairs: _Pairs) -> dict[str, _Difference]:
    """Return how far each source that is compared with one, or with others that are, is ahead of it."""
    ahead = {start: _Difference(0, "")}
    queue = [start]
    for source in queue:
        for (one, other), pair in sorted(pairs.items()):
            for known, new, sign in ((one, other, -1), (other, one, 1)):
                if known == source and new not in ahead:
                    is_exact = ahead[known].is_exact and pair.is_exact
                    ns = ahead[known].ahead_ns + sign * pair.ahead_ns
                    ahead[new] = _Difference(ns, pair.shown_by, is_exact)
                    queue.append(new)
    return ahead


# ---- by the answers of one generation


def _by_joins(rows: pa.Table) -> dict[tuple[str, str], _Difference]:
    marks: dict[tuple[str, str], list[int]] = defaultdict(list)
    certain: set[tuple[str, str]] = set()
    for answers in _first_answers(rows).values():
        for pair in _pairs(answers):
            one, other = (answers[source] for source in pair)
            marks[pair].append(one.answered_ns - other.answered_ns)
            if one.is_certain and other.is_certain:
                certain.add(pair)
    return {
        pair: _Difference(ns, f"the answers to JoinGroup of {len(each)} generation{'s' if len(each) > 1 else ''}")
        for pair, each in marks.items()
        if (len(each) >= _ENOUGH or pair in certain) and (ns := _agreed(each)) is not None
    }


class _Answer(NamedTuple):
    """The answer to a JoinGroup.

    :ivar is_certain: it is not one to a member that asked again later: that one had waited for the others, or was in an
        earlier generation before
    """

    answered_ns: int
    is_certain: bool


def _first_answers(rows: pa.Table) -> dict[tuple[int, str], dict[str, _Answer]]:
    """Return the first answers of each generation, by source; those to static members only where they are certain.

    A generation is known by its number and its leader's member id: a group that is formed anew counts from 1 again.
    """
    answered = pc.and_(pc.equal(rows["api"], "JoinGroup"), pc.equal(rows["error_code"], 0))
    answered = pc.and_(answered, pc.and_(pc.is_valid(rows["answered_ns"]), pc.is_valid(rows["asked_ns"])))
    found: dict[tuple[int, str], dict[str, _Answer]] = defaultdict(dict)
    earlier: dict[tuple[str, str], int] = {}
    joins = rows.select(_JOIN).filter(pc.fill_null(answered, False)).to_pylist()
    for row in sorted(joins, key=itemgetter("answered_ns")):
        source, generation = row["source"], row["new_generation_id"] or 0
        member = (source, row["given_member_id"] or "")
        is_parked = row["answered_ns"] - row["asked_ns"] >= _PARKED_NS
        is_certain = is_parked or 0 <= earlier.get(member, -1) < generation
        earlier[member] = generation
        if is_certain or row["instance_id"] is None:  # a static member that comes back may get a generation again
            found[generation, row["leader_id"] or ""].setdefault(source, _Answer(row["answered_ns"], is_certain))
    return found


def _pairs(sources: Iterable[str]) -> Iterator[tuple[str, str]]:
    names = sorted(sources)
    yield from ((one, other) for index, one in enumerate(names) for other in names[index + 1 :])


def _agreed(marks: Sequence[int]) -> int | None:
    """Return the median of marks, most of which agree with it."""
    middle = round(median(marks))
    agree = sum(abs(mark - middle) <= _AGREE_NS for mark in marks)
    return middle if 2 * agree > len(marks) else None


# ---- by what has to come first


def _by_epochs(rows: pa.Table) -> dict[tuple[str, str], _Difference]:
    modern = rows.filter(pc.equal(rows["api"], "ConsumerGroupHeartbeat"))
    if not len(modern):
        return {}
    ahead: dict[tuple[str, str], int] = {}
    spans = {source: (first, last) for source, first, last in _spans(modern)}
    for before, after in ordered_moments(modern):
        first, second = spans[before.source], spans[after.source]
        is_one_time = first[0] < second[1] and second[0] < first[1]  # else they may be of two days
        if before.source != after.source and is_one_time:
            pair = (before.source, after.source)
            ahead[pair] = max(ahead.get(pair, -NEVER_NS), before.time_ns - after.time_ns)
    found = {}
    for one, other in {(min(pair), max(pair)) for pair in ahead}:
        least_ns, most_ns = ahead.get((one, other)), ahead.get((other, one))
        ns = _within(least_ns, None if most_ns is None else -most_ns)
        found[one, other] = _Difference(ns, "requests behind what follows from them", is_exact=False)
    return found


def _spans(rows: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield the first and the last request of each source."""
    for source in names_of(rows["source"]):
        ends = pc.min_max(rows["asked_ns"].filter(pc.equal(rows["source"], source))).as_py()
        yield source, ends["min"] or 0, ends["max"] or 0


def _within(least_ns: int | None, most_ns: int | None) -> int:
    """Return a difference that lies between two bounds: 0 where it may be, else the middle."""
    bounds = [bound for bound in (least_ns, most_ns) if bound is not None]
    is_ahead = least_ns is not None and least_ns > 0
    is_behind = most_ns is not None and most_ns < 0
    return sum(bounds) // len(bounds) if is_ahead or is_behind else 0


# ---- by the same exchanges

_Shared = Mapping[str, Mapping[str, set[str]]]
"""By connection without its number, the sources that have it, with its names there."""


def _shared_connections(rows: pa.Table) -> _Shared:
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    sources, connections = names_of(rows["source"]), names_of(rows["connection"])
    codes = pc.fill_null(whole(ranked(rows["source"], sources)), -1).to_numpy().astype(np.int64) * len(connections)
    codes += pc.fill_null(whole(ranked(rows["connection"], connections)), 0).to_numpy()
    for code in np.unique(codes[codes >= 0]).tolist():
        source, connection = sources[code // len(connections)], connections[code % len(connections)]
        found[connection.rpartition("#")[0]][source].add(connection)
    return {name: by_source for name, by_source in found.items() if name and len(by_source) >= _SEVERAL}


def _of_shared(rows: pa.Table, shared: _Shared) -> pa.Array:
    names = {name for by_source in shared.values() for each in by_source.values() for name in each}
    return pc.is_in(rows["connection"], value_set=pa.array(sorted(names), pa.string()))


def _by_frames(rows: pa.Table, shared: _Shared) -> dict[tuple[str, str], _Difference]:
    if not shared:
        return {}
    found: dict[tuple[Any, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    both = rows.select(["source", "connection", "asked_ns", "offsets", "assignment", *_SAME])
    for row in both.take(_compared(rows, shared)).to_pylist():
        name = row["connection"].rpartition("#")[0]
        key = (name, str(row["offsets"]), str(row["assignment"]), *(row[column] for column in _SAME))
        found[key][row["source"]].append(row["asked_ns"])
    marks: dict[tuple[str, str], list[int]] = defaultdict(list)
    certain: set[tuple[str, str]] = set()
    seen: Counter[str] = Counter()
    for key, by_source in found.items():
        seen.update(by_source.keys())
        alone = {source: times[0] for source, times in by_source.items() if len(times) == 1}
        for one, other in _pairs(alone):
            marks[one, other].append(alone[one] - alone[other])
            if key[-len(_SAME)] in _ONCE:
                certain.add((one, other))
    return {
        pair: _Difference(ns, f"{len(each):,} {'exchanges' if len(each) > 1 else 'exchange'} that both have")
        for pair, each in marks.items()
        if _are_many(len(each), pair in certain, min(seen[source] for source in pair))
        and (ns := _agreed(each)) is not None
    }


def _are_many(count: int, is_certain: bool, compared: int) -> bool:
    """Whether so many exchanges show that two sources have the same, of those that the one with fewer has."""
    return (is_certain or count >= _ENOUGH_COMMITS) and count * _MOST_OF >= compared


def _compared(rows: pa.Table, shared: _Shared) -> pa.Array:
    """Return the numbers of the rows that are compared: of each source so many joins, and so many commits."""
    of_shared = pc.and_(_of_shared(rows, shared), pc.is_valid(rows["asked_ns"]))
    sources = names_of(rows["source"])
    codes = pc.fill_null(whole(ranked(rows["source"], sources)), -1).to_numpy()
    numbers = []
    accepted = pc.equal(rows["error_code"], 0)
    for apis in (_ONCE, ("OffsetCommit",)):
        wanted = pc.and_(of_shared, pc.is_in(rows["api"], value_set=pa.array(apis)))
        if apis is _ONCE:
            wanted = pc.and_(wanted, accepted)
        at = np.flatnonzero(pc.fill_null(wanted, False).to_numpy())
        numbers += [at[codes[at] == code][:_MOST_ROWS] for code in range(len(sources))]
    return pa.array(np.sort(np.concatenate(numbers)))


def _once(rows: pa.Table, shared: _Shared, pairs: Collection[tuple[str, str]]) -> pa.Table:
    """Leave out exchanges that another source has, too.

    :param pairs: sources that have exchanges in common; the others may be parts of one recording
    """
    if not pairs:
        return rows
    at = np.flatnonzero(pc.fill_null(_of_shared(rows, shared), False).to_numpy())
    few = rows.select(["source", "connection", "asked_ns"]).take(pa.array(at))
    numbers: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    columns = (few[name].to_pylist() for name in few.column_names)
    for number, source, connection, asked_ns in zip(at.tolist(), *columns, strict=True):
        if asked_ns is not None:
            numbers[connection.rpartition("#")[0]][source].append((asked_ns, number))
    kept = np.ones(len(rows), np.bool_)
    for by_source in numbers.values():
        for pair in _pairs(by_source):
            if pair in pairs:
                kept[_repeated(*(by_source[source] for source in pair))] = False
    return rows.filter(pa.array(kept))


def _repeated(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[int]:
    """Return the numbers of the rows of a connection in the source with fewer of them, where the other covers them."""
    many, few = (one, other) if len(one) >= len(other) else (other, one)
    from_ns, to_ns = min(many)[0] - _EDGE_NS, max(many)[0] + _EDGE_NS
    return [number for at, number in few if from_ns <= at <= to_ns]
