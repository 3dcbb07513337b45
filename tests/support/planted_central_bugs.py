"""Bugs of the 0.8 draft's machines and topics, planted one by one, and the law of the simulation that each breaks.

A check that never fails checks nothing: `PLANTED` has at least one bug for every law.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest

from kcoord_wire.central.draft import context, rebalance
from kcoord_wire.central.draft.consumer import DraftConsumer
from kcoord_wire.central.draft.context import TopicWatches
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, RegisteredConsumer
from kcoord_wire.central.draft.purgatory import Answer, Committer, PingSchedule, Purgatory
from kcoord_wire.central.draft.rebalance import RebalanceHandlers
from kcoord_wire.central.served_topics import GeneratedTopics
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.zookeeper.leadership import Leadership
from kcoord_wire.zookeeper.requests import Multi, Write

Patch = pytest.MonkeyPatch
FOREVER_MS: Final = 1 << 40


def lease_not_checked(patch: Patch) -> None:
    handle = Leadership.handle

    def planted(self: Leadership, event: object, now: int) -> None:
        self.lease_until = now + FOREVER_MS
        handle(self, event, now)

    patch.setattr(Leadership, "handle", planted)


def write_not_guarded(patch: Patch) -> None:
    patch.setattr(Leadership, "guarded", lambda self, *writes: Multi(writes))


def fence_not_compared(patch: Patch) -> None:
    patch.setattr(GeneratedTopics, "_is_owner", lambda self, request, sent: True)


def offsets_not_committed_before_start(patch: Patch) -> None:
    commit = Committer.commit

    def planted(self: Committer, group: Group, first: Iterable[Write] = ()) -> Procedure:
        if first:
            yield from self._context.write(group, first)
        else:
            yield from commit(self, group)

    patch.setattr(Committer, "commit", planted)


def offsets_not_taken_over(patch: Patch) -> None:
    def load(self: Committer, group: Group) -> Procedure:
        yield from group.store.load()

    patch.setattr(Committer, "load", load)


def offset_of_another_committed(patch: Patch) -> None:
    record = Committer.record

    def planted(self: Committer, member: RegisteredConsumer, positions: Mapping[Partition, int]) -> list[Partition]:
        return record(self, member, {partition: offset + 7 for partition, offset in positions.items()})

    patch.setattr(Committer, "record", planted)


def late_answer_of_a_dead_consumer(patch: Patch) -> None:
    """What a consumer has owned stays its own: an answer that comes late counts although others have consumed more."""
    record = Committer.record
    owned: dict[tuple[str, str], frozenset[Partition]] = {}

    def planted(self: Committer, member: RegisteredConsumer, positions: Mapping[Partition, int]) -> list[Partition]:
        key = (member.group.group_id, member.consumer_id)
        member.owned = owned[key] = owned.get(key, frozenset()) | member.owned
        return record(self, member, dict.fromkeys(member.owned, 3) | dict(positions))

    patch.setattr(Committer, "record", planted)


def watch_not_renewed(patch: Patch) -> None:
    patch.setattr(TopicWatches, "fired", lambda self, event: None)


def ping_watcher_not_cleared(patch: Patch) -> None:
    patch.setattr(PingSchedule, "answered", lambda self, member: Answer.IN_TIME)


def purgatory_leaks(patch: Patch) -> None:
    forget = Purgatory.forget

    def planted(self: Purgatory, member: RegisteredConsumer) -> None:
        watchers = self._watchers.get(member)
        forget(self, member)
        if watchers:
            self._watchers[member] = watchers

    patch.setattr(Purgatory, "forget", planted)


def rebalance_bit_not_reset(patch: Patch) -> None:
    def run(self: RebalanceHandlers, queue: Any) -> Procedure:
        while queue:
            yield from self._rebalance(queue.popleft())

    patch.setattr(RebalanceHandlers, "_run", run)


def two_handlers_for_a_group(patch: Patch) -> None:
    """Each task of a group has a handler of its own."""
    submit = RebalanceHandlers._submit

    def planted(self: RebalanceHandlers, group: Group) -> None:
        self._queues.append(type(self._queues[0])())
        self._running.append(None)
        patch.setattr(rebalance.zlib, "crc32", lambda _: len(self._queues) - 1)
        submit(self, group)

    patch.setattr(RebalanceHandlers, "_submit", planted)


def partition_left_out(patch: Patch) -> None:
    assign = context.assign

    def planted(*arguments: Any) -> Any:
        return dict(list(assign(*arguments).items())[1:])

    patch.setattr(rebalance, "assign", planted)


def consumer_reports_ahead(patch: Patch) -> None:
    """It reports what was fetched, not what was consumed: records are lost when it fails."""
    offsets = DraftConsumer._offsets

    def planted(self: DraftConsumer, entry: Any) -> Any:
        return offsets(self, lambda **fields: entry(**{**fields, "offset": fields["offset"] + 20}))

    patch.setattr(DraftConsumer, "_offsets", planted)


def consumer_starts_ahead(patch: Patch) -> None:
    start = DraftConsumer._offset_to_start

    def planted(self: DraftConsumer, partition: Partition, offset: int) -> int:
        found = start(self, partition, offset)
        return found if found < 0 else found + 7

    patch.setattr(DraftConsumer, "_offset_to_start", planted)


PLANTED = {
    lease_not_checked: "one coordinator",
    write_not_guarded: "one writer",
    offsets_not_committed_before_start: "offsets",
    offsets_not_taken_over: "offsets",
    offset_of_another_committed: "offsets",
    late_answer_of_a_dead_consumer: "offsets",
    consumer_reports_ahead: "offsets",
    consumer_starts_ahead: "no gap",
    two_handlers_for_a_group: "one handler",
    watch_not_renewed: "settles",
    purgatory_leaks: "settles",
    ping_watcher_not_cleared: "settles",
    rebalance_bit_not_reset: "settles",
    partition_left_out: "settles",
}
