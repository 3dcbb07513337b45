"""The committer: consumed offsets go to ZooKeeper at an interval (section 5, field 7; section 9, step 4.3).

Laws:

* Only offsets that have changed are written, guarded by the epoch.
* After `commit` has returned, the offsets that the group had when it was called are in ZooKeeper.
* An offset is recorded only from the consumer that owns the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kcoord_wire.central.draft.context import MOST_WRITES, Context
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, Member
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.zookeeper.model import Write
from kcoord_wire.zookeeper.procedures import RegistryError


class Committer:
    """Records and commits the offsets of all groups.

    :param unsure: called with a group whose nodes have to be read again, after a write that failed
    """

    def __init__(self, context: Context, unsure: Callable[[Group], None]) -> None:
        self._context = context
        self._unsure = unsure
        self._changed: dict[Group, set[Partition]] = {}

    @property
    def waiting(self) -> int:
        """Number of offsets that are not committed."""
        return sum(map(len, self._changed.values()))

    def is_behind(self, group: Group) -> bool:
        """Whether offsets of the group are going to be committed."""
        return group.store.is_loaded and group in self._changed

    def forget(self, group: Group) -> None:
        """The group is dropped."""
        self._changed.pop(group, None)

    def record(self, member: Member, positions: Mapping[Partition, int]) -> list[Partition]:
        """handlePingResponse, step 1: take a consumer's positions; return the partitions that are not its own."""
        offsets, foreign = member.group.offsets, []
        for partition, offset in positions.items():
            if partition not in member.owned or offset < 0:
                foreign.append(partition)
            elif offsets.get(partition) != offset:
                offsets[partition] = offset
                self._changed.setdefault(member.group, set()).add(partition)
        return foreign

    def run(self) -> Procedure:
        """Commit what has changed, at the interval."""
        while True:
            yield Sleep(self._context.settings.offset_commit_interval_ms)
            waiting = list(self._changed)
            while waiting := [group for group in waiting if group.store.is_loaded]:
                batch = _fill(waiting, self._changed)
                try:
                    yield from self._commit(batch, ())
                except RegistryError:
                    for group in batch:
                        self._unsure(group)

    def load(self, group: Group) -> Procedure:
        """Read the group's nodes, and take over the offsets of which nothing newer is known; a part of others."""
        yield from group.store.load()
        for partition, offset in group.store.offsets.items():
            if offset >= 0:
                group.offsets.setdefault(partition, offset)
        if group.offsets.items() - group.store.offsets.items():
            self._changed.setdefault(group, set()).update(group.offsets)

    def commit(self, group: Group, first: Sequence[Write] = ()) -> Procedure:
        """Execute `first`, and write the group's offsets; a part of other procedures.

        :raises RegistryError: it failed; the offsets stay among the changed ones
        """
        yield from self._commit([group], first)

    def _commit(self, groups: Sequence[Group], first: Sequence[Write]) -> Procedure:
        changed = {group: self._changed.pop(group, set()) for group in groups}
        writes = list(first)
        for group, partitions in changed.items():
            writes += group.store.plan_offsets({partition: group.offsets[partition] for partition in partitions})
        try:
            yield from self._context.write(groups, writes)
        except RegistryError:
            for group, partitions in changed.items():
                self._changed.setdefault(group, set()).update(partitions)
            raise


def _fill(waiting: list[Group], changed: Mapping[Group, set[Partition]]) -> list[Group]:
    """Take groups off the list, as many as a `Multi` has room for the offsets of, and at least one."""
    batch = [waiting.pop()]
    room = MOST_WRITES - len(changed.get(batch[0], ()))
    while waiting and len(changed.get(waiting[-1], ())) <= room:
        batch.append(waiting.pop())
        room -= len(changed.get(batch[-1], ()))
    return batch
