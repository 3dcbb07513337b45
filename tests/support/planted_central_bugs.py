"""Bugs of the 0.8 draft's machines and topics, planted one by one, and the law of the simulation that each breaks.

A check that never fails checks nothing: `PLANTED` has at least one bug for every law.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kcoord_wire.central.draft import rebalance
from kcoord_wire.central.draft.consumer import DraftConsumer
from kcoord_wire.central.draft.context import TopicWatches
from kcoord_wire.central.draft.coordinator import Candidate, DraftCoordinator
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, RegisteredConsumer
from kcoord_wire.central.draft.purgatory import Answer, Committer, PingSchedule, Purgatory
from kcoord_wire.central.draft.rebalance import Rebalances
from kcoord_wire.central.served_topics import GeneratedTopics
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.zookeeper.leadership import Leadership
from kcoord_wire.zookeeper.requests import Multi, Write
from tests.support.planting import Patch, replaces

FOREVER_MS: Final = 1 << 40


@replaces(Leadership, "handle")
def lease_not_checked(handle: Any, self: Leadership, event: object, now: int) -> None:
    self.lease_until = now + FOREVER_MS
    handle(self, event, now)


@replaces(Leadership, "guarded")
def write_not_guarded(_guarded: Any, self: Leadership, *writes: Write) -> Multi:
    return Multi(writes)


@replaces(GeneratedTopics, "_is_owner")
def fence_not_compared(_is_owner: Any, self: GeneratedTopics, request: Any, sent: Any) -> bool:
    return True


@replaces(Committer, "commit")
def offsets_not_committed_before_start(
    commit: Any, self: Committer, group: Group, first: Iterable[Write] = ()
) -> Procedure:
    if first:
        yield from self._context.write(group, first)
    else:
        yield from commit(self, group)


@replaces(Committer, "load")
def offsets_not_taken_over(_load: Any, self: Committer, group: Group) -> Procedure:
    yield from group.store.load()


@replaces(Committer, "record")
def offset_of_another_committed(
    record: Any, self: Committer, member: RegisteredConsumer, positions: Mapping[Partition, int]
) -> Any:
    return record(self, member, {partition: offset + 7 for partition, offset in positions.items()})


def late_answer_of_a_dead_consumer(patch: Patch) -> None:
    """What a consumer has owned stays its own: an answer that comes late counts although others have consumed more."""
    owned: dict[tuple[str, str], frozenset[Partition]] = {}

    @replaces(Committer, "record")
    def planted(record: Any, self: Committer, member: RegisteredConsumer, positions: Mapping[Partition, int]) -> Any:
        key = (member.group.group_id, member.consumer_id)
        member.owned = owned[key] = owned.get(key, frozenset()) | member.owned
        return record(self, member, dict.fromkeys(member.owned, 3) | dict(positions))

    planted(patch)


@replaces(TopicWatches, "fired")
def watch_not_renewed(_fired: Any, self: TopicWatches, event: object) -> None:
    pass


@replaces(PingSchedule, "answered")
def ping_watcher_not_cleared(_answered: Any, self: PingSchedule, member: RegisteredConsumer) -> Answer:
    return Answer.IN_TIME


@replaces(Purgatory, "forget")
def purgatory_leaks(forget: Any, self: Purgatory, member: RegisteredConsumer) -> None:
    watchers = self._watchers.get(member)
    forget(self, member)
    if watchers:
        self._watchers[member] = watchers


@replaces(Purgatory, "give_up")
def former_attempts_count(_give_up: Any, self: Purgatory, member: RegisteredConsumer) -> None:
    """The time of a request goes on when the next attempt has begun."""


@replaces(PingSchedule, "add")
def first_ping_is_late_at_once(add: Any, self: PingSchedule, member: RegisteredConsumer) -> None:
    """A consumer is taken for failed when it is asked for the first time, as if it had not answered."""
    add(self, member)
    self._context.timers.start(self._context.now + member.session_timeout_ms // 3, lambda: self._failed(member, "late"))


@replaces(Rebalances, "_run")
def rebalance_bit_not_reset(_run: Any, self: Rebalances, group: Group) -> Procedure:
    yield from self._rebalance(group)
    self._running.discard(group)


@replaces(Rebalances, "_begin")
def two_handlers_for_a_group(begin: Any, self: Rebalances, group: Group) -> None:
    """Each task of a group has a handler of its own."""
    self._running.discard(group)
    begin(self, group)


@replaces(rebalance, "assign")
def partition_left_out(assign: Any, *arguments: Any) -> Any:
    return dict(list(assign(*arguments).items())[1:])


@replaces(DraftConsumer, "_offsets")
def consumer_reports_ahead(offsets: Any, self: DraftConsumer, entry: Any) -> Any:
    """It reports what was fetched, not what was consumed: records are lost when it fails."""
    return offsets(self, lambda **fields: entry(**{**fields, "offset": fields["offset"] + 20}))


@replaces(DraftConsumer, "_offset_to_start")
def consumer_starts_ahead(start: Any, self: DraftConsumer, partition: Partition, offset: int) -> int:
    found: int = start(self, partition, offset)
    return found if found < 0 else found + 7


@replaces(DraftCoordinator, "candidate_of")
def group_of_another_subset(_candidate_of: Any, self: DraftCoordinator, group_id: str) -> Candidate | None:
    """Whatever it coordinates, it takes any group."""
    return next((candidate for candidate in self.candidates if candidate.term is not None), None)


@replaces(Leadership, "bar")
def work_not_shared_out(_bar: Any, self: Leadership, reason: str) -> None:
    """Who is elected first keeps all subsets."""


OF_SEVERAL = {
    group_of_another_subset: "one coordinator|one writer",
    work_not_shared_out: "settles",
}
"""With several coordinators."""
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
    former_attempts_count: "patience",
    first_ping_is_late_at_once: "patience",
    watch_not_renewed: "settles",
    purgatory_leaks: "settles",
    ping_watcher_not_cleared: "patience|settles",
    rebalance_bit_not_reset: "settles",
    partition_left_out: "settles",
}
