"""One coordination partition that grows: rows as soon as they are final, for a stream.

Laws:

* The rows do not depend on how the records are split among calls of `events`, and each is in one of them.
* A claim comes when it has ended, an instance when it was silent for two intervals, a pause of a partition when the
  next claim begins, a loss with the first value of its kind.
* A finding about a free partition comes when it was free for one interval, while another of its topic was claimed; one
  about an instance, when that instance has ended. The texts are those of `kcoord_wire.forensics.detectors`.
* The state is bytes, and goes on in another process; `LiveReader.restored` refuses a layout that it does not know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.detectors.finding import finding_of
from kcoord_wire.forensics.detectors.marshal import Gap, free_partitions
from kcoord_wire.forensics.marshal.claims import member_life
from kcoord_wire.forensics.marshal.reader import MS_PER_S, ClaimRules, Part, PartitionReader, Sighting
from kcoord_wire.forensics.model import NS_PER_MS, ClaimRow, Finding, GroupHistory, GroupSummary, Pause
from kcoord_wire.forensics.state import pack_state, unpack_state

_KIND: Final = "LiveReader"
_LAYOUT: Final = 1  # of the state, which has the classes of this folder in it: another number with each change of them
_Place = tuple[str, str, int]


class LiveReader:
    """A `PartitionReader` for a log that has no end."""

    def __init__(self, partition: int, judge: ClaimRules) -> None:
        self._judge = judge
        self._reader = PartitionReader(partition, judge)
        self._limit_ns = judge.heartbeat_interval_s * MS_PER_S * NS_PER_MS
        self._free: dict[_Place, ClaimRow] = {}
        self._reported: set[_Place] = set()
        self._paused: dict[str, list[tuple[int, int]]] = {}

    @classmethod
    def restored(cls, state: bytes) -> LiveReader:
        """Return a reader that goes on from a `state`.

        :raises ValueError: another version wrote it, in a layout that this one does not know
        """
        reader: LiveReader = unpack_state(_KIND, _LAYOUT, state)
        return reader

    @property
    def state(self) -> bytes:
        """What `restored` goes on from."""
        return pack_state(_KIND, _LAYOUT, self)

    def read(
        self, offset: int, time_ns: int, is_append_time: bool, value: bytes | None, source: str, position: int
    ) -> None:
        """Take in the next record, as `PartitionReader.read` does."""
        self._reader.read(offset, time_ns, is_append_time, value, source, position)

    def events(self) -> Iterator[Part]:
        """Yield what has become final since the last call."""
        parts = list(self._reader.closed())
        yield from parts
        losses, self._reader.first_losses = self._reader.first_losses, []
        yield from (Part(None, loss=loss) for loss in losses)
        for part in parts:
            if part.pause is not None and part.group_id is not None:
                span = (part.pause.from_ns, part.pause.until_ns)
                self._paused[part.group_id] = [*self._paused.get(part.group_id, [])[-7:], span]
        yield from self._gaps([part.claim for part in parts if part.claim is not None])
        gone = [(part.group_id or "", part.sighting) for part in parts if part.sighting is not None]
        yield from self._of_instances(sorted(gone, key=lambda item: (item[1].last_ns, item[1].instance_id)))

    # ---- partitions

    def _gaps(self, ended: list[ClaimRow]) -> Iterator[Part]:
        """Yield the pauses that are over, and what is to be said of those that last."""
        topics: dict[tuple[str, str], list[ClaimRow]] = defaultdict(list)
        for claim in (*ended, *self._reader.live()):
            topics[claim.group_id, claim.topic].append(claim)
        for claims in topics.values():
            claims.sort(key=lambda row: (row.from_ns, row.token, row.partition))
        due: list[tuple[_Place, ClaimRow]] = []
        for claims in topics.values():
            for claim in claims:
                place = (claim.group_id, claim.topic, claim.partition)
                former = self._free.pop(place, None)
                if former is not None and former.to_ns is not None and former.to_ns < claim.from_ns:
                    due += self._if_due(place, former, claim.from_ns)
                    yield Part(place[0], unowned=_pause(former, claim))
                self._reported.discard(place)
                if claim.to_ns is not None:
                    self._free[place] = claim
        for place, former in self._free.items():
            due += self._if_due(place, former, self._reader.now_ns + 1)
        for place, former in due:
            yield from self._of_free(place, former, topics[place[:2]])

    def _if_due(self, place: _Place, former: ClaimRow, until_ns: int) -> list[tuple[_Place, ClaimRow]]:
        """Return a partition that was free for an interval before `until_ns`, if it was not reported."""
        if place in self._reported or self._since(place, former) + self._limit_ns >= until_ns:
            return []
        self._reported.add(place)
        return [(place, former)]

    def _since(self, place: _Place, former: ClaimRow) -> int:
        """Return since when a partition is free, in a group that is not paused."""
        since = former.to_ns or 0
        for from_ns, until_ns in self._paused.get(place[0], []):
            if from_ns <= since < until_ns:
                since = until_ns
        return since

    def _of_free(self, place: _Place, former: ClaimRow, claims: Iterable[ClaimRow]) -> Iterator[Part]:
        since = self._since(place, former)
        at_ns = since + self._limit_ns
        if not any(row.from_ns <= at_ns and (row.to_ns is None or row.to_ns > at_ns) for row in claims):
            return
        gap = Gap(place[2], since, None, former)
        name = "released_not_reclaimed" if gap.is_given_up else "unclaimed_partition"
        result = free_partitions(place[1], [gap], at_ns, self._limit_ns)
        yield Part(place[0], finding=finding_of(name, result, self._history(place[0])))

    # ---- instances

    def _of_instances(self, gone: list[tuple[str, Sighting]]) -> Iterator[Part]:
        """Yield what is found of instances that have ended, the first to fall silent first."""
        for at, (group_id, seen) in enumerate(gone):
            others = [each for each in (*gone[at + 1 :], *self._reader.heard()) if each[0] == group_id]
            alike = [other for _, other in others if other.client_id == seen.client_id]
            for finding in self._findings(group_id, seen, alike):
                yield Part(group_id, finding=finding)

    def _findings(self, group_id: str, seen: Sighting, alike: list[Sighting]) -> Iterator[Finding]:
        """Yield the findings about an instance, next to those of its client id that were heard of after its end."""
        history = self._history(group_id)
        history.members = [member_life(group_id, [seen], self._judge)]
        yield from findings_of("clock_skew", history)
        for other in alike:
            if other.first_ns <= seen.last_ns:
                until = replace(other, last_ns=seen.last_ns)
                history.members.append(member_life(group_id, [until], self._judge))
        yield from findings_of("client_id_reuse", history)

    def _history(self, group_id: str) -> GroupHistory:
        protocol = f"marshal {self._judge.rules}"
        return GroupHistory(GroupSummary(group_id, "marshal", protocol, 0, 0, 0, 0, 0, 0, 0, 0.0, []))


def _pause(former: ClaimRow, claim: ClaimRow) -> Pause:
    return Pause(
        claim.group_id,
        claim.topic,
        claim.partition,
        former.to_ns or 0,
        claim.from_ns,
        former.instance_id,
        claim.instance_id,
        None,
    )
