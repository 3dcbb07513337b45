"""One coordination partition, from its records to the parts of histories, and whether a log is such a partition at all.

    reader = PartitionReader(3, ClaimRules())
    for record in records:                      # values of `COLUMNS`, in order of their offsets
        reader.read(*record)
    parts = [*reader.closed(), *reader.end()]

Laws:

* `kcoord_wire.marshal.world_state.WorldState` judges each entry; nothing is decided here but how a claim is described.
* No value raises: those that are no message are one `Loss` per kind.
* An offset that was read before has no effect: records that a source has twice count once.
* A row that ends is the same however the records are split among calls of `closed`, and is in one of them. An instance
  that was silent for two intervals has ended; if it comes back, that is another row.
* Memory holds the live claims, the members, and a minute of commits for each partition; it does not grow with the log.

Under the rules of the library, which read the clock, the reader's clock is the log's time: that of a member that reads
each entry when it is appended.

A claim depends on the entries of its coordination partition alone, so that each can be read by itself, into `Part`,
which is small next to the log; what is about a whole group is put together afterwards (`claims`). A value of Marshal
begins with the name of a message, its version and a time, as text, and has no key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import NS_PER_MS, ClaimRow, CommitRow, Finding, Loss, Pause, record_time_ns
from kcoord_wire.marshal.log import RawEntry
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import HEARTBEAT_INTERVAL_S, Claim, Outcome, Place, Rules, WorldState
from kcoord_wire.messages.marshal import ClaimingRange, RangeHeartbeat, ReleaseGroup, ReleasingRange


class ClaimRules(NamedTuple):
    """By what a log is judged.

    :ivar rules: ``document``: by the log's order and times alone. ``library``: what a member with the Go library
        believes that reads each entry when it is appended
    :ivar heartbeat_interval_s: of the group's members; the Go library's is a constant
    :ivar partitions: of the coordination topic; with it, entries on another partition than their topic's are left out
        by the rules of the document. None if it is not known
    """

    rules: str = Rules.DOCUMENT.value
    heartbeat_interval_s: int = HEARTBEAT_INTERVAL_S
    partitions: int | None = None


@dataclass(slots=True)
class Sighting:
    """An instance of a group, as one coordination partition shows it.

    :ivar topics: that its messages name
    :ivar ahead_ms: the most by which a time in its messages is ahead of the record's append time; None without append
        times
    :ivar behind_ms: how far the times in its messages are behind the newest one in the log before them, summed; 0 for
        those that are not
    :ivar messages: how many it has sent
    :ivar has_append_time: the broker has set the times of the records
    :ivar end_ns: the log's time when the row was made; two intervals after `last_ns` for an instance that went silent
    :ivar is_trimmed: the beginning of the partition is gone
    :ivar refused: claims, heartbeats and releases of it without effect
    :ivar unread: messages about offset ranges, which no table has
    :ivar misplaced: messages that lie on another partition than their topic's
    """

    coordination_partition: int
    client_id: str
    instance_id: str
    topics: list[str]
    first_ns: int
    last_ns: int
    has_append_time: bool
    ahead_ms: int | None = None
    behind_ms: int = 0
    messages: int = 0
    end_ns: int = 0
    is_trimmed: bool = False
    refused: int = 0
    unread: int = 0
    misplaced: int = 0


@dataclass(slots=True)
class GroupPause:
    """A ReleaseGroup: the group holds nothing until a time."""

    client_id: str
    from_ns: int
    until_ns: int


@dataclass(slots=True)
class Part:
    """One row of a coordination partition: about a group, or a loss, which has no group; one column is set.

    Only a stream has the last two (`live`): in a history they follow from the others.
    """

    group_id: str | None
    claim: ClaimRow | None = None
    commit: CommitRow | None = None
    sighting: Sighting | None = None
    pause: GroupPause | None = None
    loss: Loss | None = None
    unowned: Pause | None = None
    finding: Finding | None = None


MS_PER_S: Final = 1000


COLUMNS: Final = ("offset", "time_ns", "is_append_time", "value", "source", "position")
"""Those of `LogRow` that `PartitionReader.read` takes."""

_FAR_MS: Final = 1 << 52  # a time beyond this, the year 144,000, is no clock's
_LATEST_MS: Final = 1 << 30  # 12 days: how far behind one message counts at most
_REASON: Final = 200  # characters of why a value is no message, which quotes it
_MINUTE_NS: Final = 60_000_000_000
_RANGES: Final = (ClaimingRange, RangeHeartbeat, ReleasingRange)
_REFUSED: Final = (
    Outcome.CLAIM_REFUSED,
    Outcome.HEARTBEAT_REFUSED,
    Outcome.RELEASE_REFUSED,
    Outcome.PROPOSAL_REFUSED,
)
_COMMITS: Final = (Outcome.RENEWED, Outcome.TAKEN_OVER, Outcome.RELEASED)
_REFUSED_COMMITS: Final = (Outcome.HEARTBEAT_REFUSED, Outcome.RELEASE_REFUSED)


@dataclass(slots=True)
class _LiveClaim:
    """A live claim.

    :ivar at_ms: log time of the last entry that renewed it
    :ivar renewed_ms: the time from which its age counts by the rules
    """

    row: ClaimRow
    at_ms: int
    renewed_ms: int


class PartitionReader:
    """Reads the records of one coordination partition in the order of their offsets.

    :param has_commits: return rows of `CommitRow`, of which a long log has many
    :ivar first_losses: the first value of each kind that was no message
    :ivar now_ns: the log's time
    """

    def __init__(self, partition: int, judge: ClaimRules, *, has_commits: bool = True) -> None:
        self.first_losses: list[Loss] = []
        self._losses: dict[str, Loss] = {}
        self._partition = partition
        self._rules = Rules(judge.rules)
        self._limit_ms = 2 * judge.heartbeat_interval_s * MS_PER_S
        self._limit_ns = self._limit_ms * NS_PER_MS
        self._world = WorldState(self._rules, judge.heartbeat_interval_s, judge.partitions)
        self._has_commits = has_commits
        self._next_offset = 0
        self._is_trimmed = False
        self._time_ms = 0
        self.now_ns = 0
        self._held: dict[Place, _LiveClaim] = {}
        self._minutes: dict[Place, CommitRow] = {}
        self._seen: dict[tuple[str, str], Sighting] = {}
        self._parts: list[Part] = []

    def read(
        self, offset: int, time_ns: int, is_append_time: bool, value: bytes | None, source: str, position: int
    ) -> None:
        """Take in the next record; the arguments are columns of `LogRow`."""
        if offset < self._next_offset:
            return
        if self._next_offset == 0:
            self._is_trimmed = offset > 0
        self._next_offset = offset + 1
        entry = read_entry(RawEntry(self._partition, offset, time_ns // NS_PER_MS, is_append_time, value))
        message, before_ms = entry.message, self._time_ms
        is_bad = isinstance(message, str)
        time_ms = entry.time_ms if is_append_time or is_bad else message.time * MS_PER_S
        if time_ms > before_ms:
            self._time_ms, self.now_ns = time_ms, record_time_ns(time_ms)
        outcome = self._world.apply(entry, self._time_ms // MS_PER_S)
        if is_bad:
            self._lose(message, source, position, value)
            return
        if not isinstance(message, ReleaseGroup):
            self._see(message, outcome, entry.time_ms if is_append_time else None, before_ms)
        elif outcome is Outcome.PAUSED:
            self._pause(message)
        if outcome is not Outcome.SKIPPED:
            self._apply(message, outcome, offset)

    def closed(self) -> Iterator[Part]:
        """Yield what has ended since the last call: claims, pauses of the group, minutes of commits."""
        for place, held in list(self._held.items()):
            if self._is_stale(held):
                self._close_stale(place, held)
        for key, seen in list(self._seen.items()):
            if self._is_silent(seen):
                self._close_sighting(key, seen)
        parts, self._parts = self._parts, []
        yield from parts

    def live(self) -> Iterator[ClaimRow]:
        """Yield the claims that have not ended."""
        return (held.row for held in self._held.values())

    def heard(self) -> Iterator[tuple[str, Sighting]]:
        """Yield the instances that were heard of within two intervals, each with its group."""
        return ((group_id, seen) for (group_id, _), seen in self._seen.items())

    def end(self) -> Iterator[Part]:
        """Yield what is left when the log has no more records: live claims, the last minutes, and the members."""
        yield from self.closed()
        for place, held in self._held.items():
            yield Part(place.group_id, claim=held.row)
        for place, commit in self._minutes.items():
            yield Part(place.group_id, commit=commit)
        for (group_id, _), sighting in self._seen.items():
            sighting.end_ns = self.now_ns
            yield Part(group_id, sighting=sighting)
        for loss in self._losses.values():
            yield Part(None, loss=loss)

    # ---- one entry

    def _lose(self, reason: str, source: str, position: int, value: bytes | None) -> None:
        """Count a value that is no message."""
        kind = re.sub(r"\d+", "#", reason.partition(":")[0])
        loss = self._losses.get(kind)
        if loss is None:
            what = f"no message of Marshal: {reason[:_REASON]}"
            self._losses[kind] = Loss(source, position, what, len(value or b""))
            self.first_losses.append(Loss(source, position, what, len(value or b"")))
            return
        loss.count += 1
        loss.bytes += len(value or b"")

    def _see(self, message: Any, outcome: Outcome, append_ms: int | None, before_ms: int) -> None:
        """Record that an instance is there, and its clock; `before_ms` is the log's time before the message."""
        key = (message.group_id, message.instance_id)
        seen = self._seen.get(key)
        now_ns = self.now_ns
        if seen is not None and self._is_silent(seen):
            self._close_sighting(key, seen)
            seen = None
        if seen is None:
            seen = self._seen[key] = Sighting(
                self._partition, message.client_id, message.instance_id, [], now_ns, now_ns, append_ms is not None
            )
            seen.is_trimmed = self._is_trimmed
        seen.last_ns = now_ns
        if message.topic not in seen.topics:
            seen.topics.append(message.topic)
        seen.messages += 1
        time_ms = max(-_FAR_MS, min(_FAR_MS, message.time * MS_PER_S))
        if append_ms is None:
            seen.behind_ms += min(max(before_ms - time_ms, 0), _LATEST_MS)
        else:
            ahead_ms = time_ms - append_ms
            seen.ahead_ms = ahead_ms if seen.ahead_ms is None else max(seen.ahead_ms, ahead_ms)
        if outcome is Outcome.SKIPPED:
            seen.unread += isinstance(message, _RANGES)
            seen.misplaced += not isinstance(message, _RANGES)
        elif outcome in _REFUSED:
            seen.refused += 1

    def _is_silent(self, seen: Sighting) -> bool:
        return self.now_ns - seen.last_ns > self._limit_ns

    def _close_sighting(self, key: tuple[str, str], seen: Sighting) -> None:
        seen.end_ns = record_time_ns(seen.last_ns // NS_PER_MS + self._limit_ms + 1)
        del self._seen[key]
        self._parts.append(Part(key[0], sighting=seen))

    def _pause(self, message: ReleaseGroup) -> None:
        until = self._world.paused_until(message.group_id, self._partition)
        until_ms = until * MS_PER_S if self._rules is Rules.LIBRARY else until
        pause = GroupPause(message.client_id, self.now_ns, record_time_ns(until_ms))
        self._parts.append(Part(message.group_id, pause=pause))

    def _apply(self, message: Any, outcome: Outcome, offset: int) -> None:
        """Describe what an entry has done to a claim."""
        if isinstance(message, ReleaseGroup) or outcome in (Outcome.PRESENT, Outcome.CLAIM_REPEATED):
            return
        place = Place(message.group_id, message.topic, message.partition)
        held = self._held.get(place)
        if held is not None and self._is_stale(held):
            self._close_stale(place, held)
            held = None
        if outcome is Outcome.CLAIMED:
            self._open(place, held, message, offset, "claimed")
        elif outcome in (Outcome.RENEWED, Outcome.TAKEN_OVER):
            self._heartbeat(place, held, message, outcome)
        elif outcome is Outcome.RELEASED and held is not None:
            self._set_offset(held.row, self._world.claims[place].current_offset)
            self._close(place, held, self._time_ms, self._why_released(place))
        if self._has_commits and outcome in _COMMITS:
            self._commit(place, message.instance_id, self._world.claims[place].current_offset)
        elif self._has_commits and outcome in _REFUSED_COMMITS:
            self._commit(place, message.instance_id, None)

    def _heartbeat(self, place: Place, held: _LiveClaim | None, message: Any, outcome: Outcome) -> None:
        claim = self._world.claims[place]
        if held is None or outcome is Outcome.TAKEN_OVER:
            self._open(place, held, message, claim.token, self._how(place, held, message))
            held = self._held[place]
        row, gap_ms = held.row, min(self._time_ms - held.at_ms, _FAR_MS)
        row.heartbeats += 1
        if gap_ms > row.longest_gap_ms:
            row.longest_gap_ms = gap_ms
        self._set_offset(row, claim.current_offset)
        held.at_ms, held.renewed_ms = self._time_ms, self._renewed_ms(claim)

    def _how(self, place: Place, held: _LiveClaim | None, message: Any) -> str:
        """Return how a claim began that no ClaimingPartition has begun."""
        if self._world.claims[place].token < 0:
            return "before the log"
        if held is None:
            return "resumed"
        return "restarted" if held.row.client_id == message.client_id else "taken over"

    def _why_released(self, place: Place) -> str:
        handoff = self._world.claims[place].handoff
        if handoff is not None and self._time_ms <= handoff.until_ms:
            return "handed over"
        now = self._time_ms // MS_PER_S if self._rules is Rules.LIBRARY else self._time_ms
        return "paused" if self._world.is_paused(place.group_id, self._partition, now) else "released"

    def _open(self, place: Place, held: _LiveClaim | None, message: Any, token: int, began: str) -> None:
        if held is not None:
            self._close(place, held, self._time_ms, "taken over")
        at_ns = self.now_ns
        row = ClaimRow(*place, message.client_id, message.instance_id, token, at_ns, None, began, "open")
        self._held[place] = _LiveClaim(row, self._time_ms, self._renewed_ms(self._world.claims[place]))

    def _set_offset(self, row: ClaimRow, offset: int) -> None:
        if row.first_offset < 0:
            row.first_offset = offset
        row.last_offset = offset

    def _renewed_ms(self, claim: Claim) -> int:
        return claim.heartbeat_ms if self._rules is Rules.DOCUMENT else claim.last_heartbeat * MS_PER_S

    def _is_stale(self, held: _LiveClaim) -> bool:
        """By the document more than two intervals old, by the library two; there, a time ahead is not live either."""
        age = self._time_ms - held.renewed_ms
        return age > self._limit_ms or (age == self._limit_ms and self._rules is Rules.LIBRARY)

    def _close_stale(self, place: Place, held: _LiveClaim) -> None:
        self._close(place, held, max(held.renewed_ms + self._limit_ms, held.at_ms), "stale")

    def _close(self, place: Place, held: _LiveClaim, at_ms: int, ended: str) -> None:
        row = held.row
        row.to_ns, row.ended = max(record_time_ns(at_ms), row.from_ns), ended
        del self._held[place]
        self._parts.append(Part(row.group_id, claim=row))

    def _commit(self, place: Place, instance_id: str, offset: int | None) -> None:
        """Count a heartbeat or release with its offset; None for one that was refused."""
        minute_ns = self.now_ns // _MINUTE_NS * _MINUTE_NS
        row = self._minutes.get(place)
        if row is None or row.from_ns != minute_ns:
            if row is not None:
                self._parts.append(Part(place.group_id, commit=row))
            row = self._minutes[place] = CommitRow(*place, minute_ns, 0, 0, -1, -1, None)
        if offset is None:
            row.errors += 1
            return
        row.commits += 1
        row.first_offset = offset if row.first_offset < 0 else row.first_offset
        row.last_offset = offset
        row.member_id = instance_id


_START: Final = (
    r"(?:Heartbeat|ClaimingPartition|ReleasingPartition|ClaimingMessages|ReleaseGroup|Presence|HandingOver"
    r"|IdentifyingTopic|ClaimingRange|RangeHeartbeat|ReleasingRange)/[+-]?[0-9]{1,19}/[+-]?[0-9]{1,19}/"
)
MARSHAL_PATTERN: Final = f"^{_START}"
"""A regular expression, for Arrow and for Java, that finds a value of Marshal as text."""

_ANYWHERE: Final = re.compile(_START.encode())


def coordination_sources(records: pa.Table) -> pa.Array:
    """Return the names of the sources that have a value of Marshal; all their records count as such.

    :param records: `LogRow`
    """
    without_key = records.filter(pc.is_null(records["key"]))
    is_text = pc.match_substring_regex(without_key["value"], MARSHAL_PATTERN)
    return pc.unique(without_key.filter(pc.fill_null(is_text, False))["source"])


def holds_marshal_text(start: bytes) -> bool:
    """Return whether a message of Marshal begins anywhere in the first bytes of a segment.

    Its members write uncompressed records.
    """
    return _ANYWHERE.search(start) is not None
