"""A group's nodes in ZooKeeper: what is in them, and the writes that bring them up to date.

Laws:

* Only the coordinator of the present epoch writes them, guarded, and ZooKeeper executes its requests in their order. So
  what was read once stays true, and writes are planned without reading: a caller sends what it has planned, or calls
  `forget`.
* After any error the content is unknown (`is_loaded` is False) and is read again by `load`.
* The owners are written together with the end of the mark `GroupRecord.is_starting`: the last of the writes that
  `plan_owners` returns removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.zookeeper.layout import GroupRecord, format_group, group_path, offset_path, owner_path, parse_group
from kcoord_wire.zookeeper.model import Create, Delete, Node, Read, ReadChildren, SetData, Write

OWNERS: Final = "owners"
OFFSETS: Final = "offsets"
_PATH_OF: Final = {OWNERS: owner_path, OFFSETS: offset_path}


def consumer_of(thread_id: str) -> str:
    """Return the consumer of a thread, ``CONSUMER-NUMBER``."""
    return thread_id.rpartition("-")[0]


class GroupStore:
    """The nodes of one group.

    :ivar is_loaded: what follows is known
    :ivar record: the data of the group's own node
    :ivar owners: thread id by partition
    :ivar offsets: committed offset by partition
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.is_loaded = False
        self.record = GroupRecord()
        self.owners: dict[Partition, str] = {}
        self.offsets: dict[Partition, int] = {}
        self._parents: set[str] = set()

    def forget(self) -> None:
        """A write has failed: nothing is known any more."""
        self.is_loaded = False

    def load(self) -> Procedure:
        """Read everything; a part of other procedures. Nodes with data of another form are taken for missing data."""
        self._parents.clear()
        self.owners.clear()
        self.offsets.clear()
        node: Node | None = yield Read(group_path(self.group_id))
        self.record = GroupRecord()
        if node is not None:
            self._parents.add(group_path(self.group_id))
            self.record = _record_of(node)
        for kind in (OWNERS, OFFSETS):
            yield from self._load(kind)
        self.is_loaded = True

    def _load(self, kind: str) -> Procedure:
        path = f"{group_path(self.group_id)}/{kind}"
        topics: tuple[str, ...] | None = yield ReadChildren(path)
        if topics is None:
            return
        names: list[tuple[str, ...] | None] = yield [ReadChildren(f"{path}/{topic}") for topic in topics]
        self._parents |= {path, *(f"{path}/{topic}" for topic in topics)}
        partitions = [
            Partition(topic, name) for topic, found in zip(topics, names, strict=True) for name in found or ()
        ]
        nodes: list[Node | None] = yield [Read(f"{path}/{topic}/{name}") for topic, name in partitions]
        for partition, node in zip(partitions, nodes, strict=True):
            if node is not None:
                self._take(kind, partition, node.data.decode(errors="replace"))

    def _take(self, kind: str, partition: Partition, text: str) -> None:
        if kind == OWNERS:
            self.owners[partition] = text
        else:
            self.offsets[partition] = int(text) if text.isascii() and text.isdecimal() else -1

    # ---- writes

    def plan_record(self, record: GroupRecord) -> list[Write]:
        """Return the writes after which the group's node has this record."""
        path, data = group_path(self.group_id), format_group(record)
        if path not in self._parents:
            self._parents.add(path)
        elif self.record == record:
            return []
        else:
            self.record = record
            return [SetData(path, data)]
        self.record = record
        return [Create(path, data)]

    def plan_offsets(self, offsets: Mapping[Partition, int]) -> list[Write]:
        """Return the writes after which these offsets are committed."""
        writes: list[Write] = []
        for partition, offset in offsets.items():
            if self.offsets.get(partition) != offset:
                writes += self._put(OFFSETS, partition, b"%d" % offset, partition in self.offsets)
                self.offsets[partition] = offset
        return writes

    def plan_owners(self, owners: Mapping[Partition, str], session_timeout_ms: int) -> list[Write]:
        """Return the writes after which exactly these own partitions, and none is being started."""
        writes: list[Write] = []
        for partition in [partition for partition in self.owners if partition not in owners]:
            del self.owners[partition]
            writes.append(Delete(owner_path(self.group_id, *partition)))
        for partition, thread_id in owners.items():
            if self.owners.get(partition) != thread_id:
                writes += self._put(OWNERS, partition, thread_id.encode(), partition in self.owners)
                self.owners[partition] = thread_id
        return writes + self.plan_record(GroupRecord(session_timeout_ms))

    def _put(self, kind: str, partition: Partition, data: bytes, exists: bool) -> Iterable[Write]:
        path = _PATH_OF[kind](self.group_id, *partition)
        if exists:
            return [SetData(path, data)]
        top = f"{group_path(self.group_id)}/{kind}"
        parents = [parent for parent in (top, f"{top}/{partition.topic}") if parent not in self._parents]
        self._parents.update(parents)
        root = self.plan_record(self.record) if group_path(self.group_id) not in self._parents else []
        return [*root, *(Create(parent) for parent in parents), Create(path, data)]


def _record_of(node: Node) -> GroupRecord:
    try:
        return parse_group(node.data)
    except ValueError:
        return GroupRecord()
