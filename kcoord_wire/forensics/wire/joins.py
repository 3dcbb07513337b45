"""The rounds of a group, and the times at which its coordinator was lost: what the answers alone say.

A round is one join that was completed: all JoinGroup requests that wait are answered, with the next generation.
What set it off is another matter (wire_replay.py).

Laws:

* A JoinGroup request that was asked after its generation was complete has joined nothing: it is in `Round.late`.
* The same generation number again, or a lower one, is another round only where the coordinator can have forgotten
  the first: its leader's SyncGroup was not answered, or the number went down.
* A coordinator that refuses (14, 15, 16) and yet answers a request from before that was not lost (`failovers`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kcoord_wire.error_codes import describe_error
from kcoord_wire.forensics.wire.rows import Key, Partition, Row, Rows, Told, last_key

__all__ = ["NOT_COORDINATOR", "REFUSALS", "Failover", "Round", "client_of", "find_failovers", "find_rounds"]

LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
REFUSALS = {LOADING, NOT_AVAILABLE, NOT_COORDINATOR}
_APART_NS = 10_000_000_000  # signs of one failover are not further apart
_AT_ONCE_NS = 100_000_000  # connections that end within this time end together
_BACK_NS = 60_000_000_000  # a client that has lost its connection is back within this time
_MS = 1_000_000
_PARKED_NS = 20 * _MS  # an answer that took longer had to wait for others
_DURING = ("JoinGroup", "SyncGroup")


@dataclass(slots=True, eq=False)
class Round:
    """One completed join.

    :ivar joined: when the first JoinGroup was answered; None where only its SyncGroup requests were seen
    :ivar joins: that it answered; `late` were answered with its generation later, at once
    :ivar members: as the leader was told, or those that were seen where `is_listed` is false
    :ivar leader_sync: the leader's SyncGroup that went well
    :ivar syncs: SyncGroup requests that went well, by member; `asked` all of them
    """

    generation: int
    joined: Key | None
    joins: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    members: dict[str, Told] = field(default_factory=dict)
    is_listed: bool = False
    assignor: str | None = None
    leader_id: str | None = None
    protocol_type: str | None = None
    leader_sync: Row | None = None
    syncs: dict[str, Row] = field(default_factory=dict)
    asked: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """When it was complete; the first SyncGroup, where that is not known."""
        if self.joined is not None:
            return self.joined
        return min(row.due for rows in self.asked.values() for row in rows)

    @property
    def assignments(self) -> dict[str, frozenset[Partition]]:
        """Who was given what: by the leader, or as far as the answers say."""
        given = {} if self.leader_sync is None else dict(self.leader_sync.assignments)
        for member_id, row in self.syncs.items():
            if row.assignment is not None:
                given.setdefault(member_id, row.assignment)
        return given


@dataclass(slots=True, eq=False)
class Failover:
    """The coordinator was lost, or another took over.

    :ivar begin: the first sign; what waited then is lost
    :ivar end: the last sign
    :ivar signs: the exchanges that say so
    :ivar text: what the signs are
    """

    begin: Key
    end: Key
    signs: list[Row]
    text: str


def find_failovers(rows: Rows) -> list[Failover]:
    """The times at which the coordinator was lost, as far as refusals and connections that end together tell."""
    refused = list(_by_refusals(rows.rows))
    found = _merged([*refused, *_by_connections(rows, refused)], rows.rows)
    return [failover for failover in found if not _is_survived(rows.rows, failover)]


def _by_refusals(rows: list[Row]) -> Iterable[Failover]:
    for row in rows:
        if row.error in REFUSALS and row.api != "FindCoordinator" and row.answer_key is not None:
            text = f"{row.api} was answered with {describe_error(row.error)}"
            yield Failover(row.answer_key, row.answer_key, [row], text)


def _by_connections(rows: Rows, refused: list[Failover]) -> Iterable[Failover]:
    """Connections that end together, although their clients go on, and no other connection goes on."""
    last: dict[str, Row] = {}
    spoken = {member_id: set(places) for member_id, places in rows.signs.connections.items()}
    for row in rows.rows:
        last[row.connection] = row
        if row.who:
            spoken.setdefault(row.who, set()).add(row.connection)
    ended = sorted(
        (at, connection)
        for connection, at in rows.closed.items()
        if connection in rows.answered and not (connection in last and last[connection].api == "LeaveGroup")
    )
    index = 0
    while index < len(ended):
        begin = ended[index][0]
        together = [connection for at, connection in ended[index:] if at - begin <= _AT_ONCE_NS]
        index += len(together)
        end = ended[index - 1][0]
        goes_on = any(first < begin and until > begin + _MS for first, until in rows.answered.values())
        clients = {client_of(name) for name in together}
        back = {
            client
            for name, (first, _) in rows.answered.items()
            if end <= first <= end + _BACK_NS and (client := client_of(name)) in clients
        }
        is_refused = any(0 <= item.begin[0] - end <= _APART_NS for item in refused)
        if not goes_on and (len(back) >= 2 or (back and is_refused) or _came_back(rows, spoken, together, end) >= 2):
            signs = [last[name] for name in together if name in last]
            count = len(together)
            text = "its connection ended" if count == 1 else f"{count} connections ended at once"
            yield Failover(last_key(begin), last_key(end), signs[:4], text)


def _came_back(rows: Rows, spoken: Mapping[str, set[str]], together: Iterable[str], end_ns: int) -> int:
    """How many members that spoke over these connections did so over others later: their processes had not ended."""
    ended = set(together)
    fresh = {name for name, (first, _) in rows.answered.items() if end_ns <= first <= end_ns + _BACK_NS} - ended
    return sum(bool(places & ended and places & fresh) for places in spoken.values())


def client_of(connection: str) -> str:
    """The client's end of a connection, without its port."""
    return connection.partition("-")[0].rpartition(":")[0].strip("[]")


def _merged(found: Iterable[Failover], rows: list[Row]) -> list[Failover]:
    """Signs that are close to each other, without a member being served in between, are of one loss."""
    served = sorted(
        row.answer_key for row in rows if row.error == 0 and row.api in _DURING and row.answer_key is not None
    )
    merged: list[Failover] = []
    for failover in sorted(found, key=lambda item: item.begin):
        at = bisect_right(served, merged[-1].end) if merged else 0
        is_served = at < len(served) and served[at] < failover.begin
        if merged and failover.begin[0] - merged[-1].end[0] <= _APART_NS and not is_served:
            merged[-1].end = max(merged[-1].end, failover.end)
            merged[-1].signs += failover.signs
        else:
            merged.append(failover)
    return merged


def _is_survived(rows: list[Row], failover: Failover) -> bool:
    """Whether a request that waited before it was answered well after it."""
    return any(
        row.error == 0 and row.api in _DURING and row.due < failover.begin and row.answer_key > failover.end
        for row in rows
        if row.answer_key is not None
    )


def find_rounds(rows: list[Row], failovers: list[Failover]) -> list[Round]:
    """All rounds, in order. A generation that went down adds to `failovers`."""
    syncs = _syncs(rows)
    rounds: list[Round] = []
    answered = [row for row in rows if row.api == "JoinGroup" and row.error == 0 and row.new_generation is not None]
    answered.sort(key=lambda row: row.answer_key or row.key)
    for row in answered:
        key = row.answer_key or row.key
        home = _home(rounds, row, failovers, syncs, answered)
        if home is None:
            if rounds and row.new_generation is not None and row.new_generation <= rounds[-1].generation:
                _went_down(rounds[-1], row, failovers, syncs)
            home = Round(row.new_generation or 0, key)
            rounds.append(home)
        _take_join(home, row)
    return sorted([*rounds, *_take_syncs(rounds, syncs)], key=lambda item: item.key)


def _take_join(home: Round, row: Row) -> None:
    assert home.joined is not None, "it was made of a join"
    (home.joins if row.due <= home.joined else home.late).append(row)
    home.assignor = home.assignor or row.assignor
    home.leader_id = home.leader_id or row.leader_id
    home.protocol_type = home.protocol_type or row.protocol_type
    if row.members and not home.is_listed:
        home.members = dict(row.members)
        home.is_listed = True
    elif not home.is_listed and row.who:
        first = row.offers[0] if row.offers else None
        told = Told(row.instance_id, first and first.topics, first and first.owned)
        home.members.setdefault(row.who, told)


def _joins_anew(answered: list[Row], row: Row) -> bool:
    """Whether a generation is joined once more, from this row on: somebody waited, or led."""
    again = [other for other in answered if other.new_generation == row.new_generation and other.due >= row.due]
    return any(other.members or _waited(other) for other in again)


def _waited(row: Row) -> bool:
    return row.answer_key is not None and row.answer_key[0] - row.due[0] > _PARKED_NS


def _home(
    rounds: list[Round],
    row: Row,
    failovers: list[Failover],
    syncs: dict[int, list[Row]],
    answered: list[Row],
) -> Round | None:
    """The round that this answer belongs to, if there is one."""
    key = row.answer_key or row.key
    for home in reversed(rounds[-8:]):
        if home.generation != row.new_generation or home.joined is None:
            continue
        if row.due <= home.joined:
            return home
        lost = [
            item
            for item in failovers
            if home.joined < item.begin < key and not _kept(home, syncs.get(home.generation, ()), item.begin)
        ]
        if lost and not _joins_anew(answered, row):
            # What it answers, it cannot have forgotten: it had written that down, or was never lost.
            spurious = [item for item in lost if not any(sign.error in REFUSALS for sign in item.signs)]
            failovers[:] = [item for item in failovers if item not in spurious]
            lost = []
        return None if lost or home is not rounds[-1] else home
    return None


def _kept(home: Round, syncs: Iterable[Row], by: Key) -> list[Key]:
    """When somebody had his assignment of this round, up to a moment: then it was written down."""
    begun = home.key
    return [
        row.answer_key
        for row in syncs
        if row.error == 0 and row.answer_key is not None and row.due >= begun and row.answer_key <= by
    ]


def _went_down(last: Round, row: Row, failovers: list[Failover], syncs: dict[int, list[Row]]) -> None:
    """The coordinator has forgotten a generation: it was lost in between."""
    begun = last.key
    if not any(begun <= item.begin <= row.due for item in failovers):
        text = f"generation {row.new_generation} follows {last.generation}"
        begin = max([begun, *_kept(last, syncs.get(last.generation, ()), row.due)])
        failovers.append(Failover(begin, max(begin, row.due), [row], text))
        failovers.sort(key=lambda item: item.begin)


def _syncs(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row.api == "SyncGroup" and row.generation is not None and row.member_id:
            found.setdefault(row.generation, []).append(row)
    return found


def _take_syncs(rounds: list[Round], syncs: dict[int, list[Row]]) -> list[Round]:
    """Give every round its SyncGroup requests; those that went well and have none make rounds of their own."""
    by_generation: dict[int, list[Round]] = {}
    for home in rounds:
        by_generation.setdefault(home.generation, []).append(home)
    unseen = []
    for generation, rows in syncs.items():
        homes = by_generation.get(generation, [])
        strays = []
        for row in rows:
            earlier = [home for home in homes if home.key <= row.due]
            if earlier:
                _take_sync(earlier[-1], row)
            else:
                strays.append(row)
        if any(row.error == 0 for row in strays):
            stray = Round(generation, None)
            for row in strays:
                _take_sync(stray, row)
            unseen.append(stray)
    return unseen


def _take_sync(home: Round, row: Row) -> None:
    home.asked.setdefault(row.member_id, []).append(row)
    if row.error != 0:
        return
    home.syncs[row.member_id] = row
    if home.leader_sync is None and (row.assignments or row.member_id == home.leader_id):
        home.leader_sync = row
        home.leader_id = home.leader_id or row.member_id
    if home.joined is None:
        home.members.setdefault(row.member_id, Told(row.instance_id, None, None))
