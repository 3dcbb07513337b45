"""Committed offsets: checked against the group's generation, kept in ZooKeeper where the old consumers have them.

Laws:

* A commit is answered after ZooKeeper has it. Its last check and its write are one step, and the write is guarded, so
  an offset of a generation is never written after the next generation.
* A commit of another generation than the group's is refused; a higher one is logged as a bug of the consumer.
* While the new generation is being written all members have joined, so none may commit (point 3).
* The text that OffsetCommit has beside an offset is not kept: the old layout has no place for it.

Source: "Kafka 0.9 Consumer Rewrite Design", "Offset commits during rebalance", points 1 to 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.answers import committed, refusal
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.group import Group, GroupState
from kcoord_wire.central.rewrite.outbox import Outbox
from kcoord_wire.central.rewrite.shards import Shard, is_fenced_off
from kcoord_wire.kernel.procedures import Procedure, Wait
from kcoord_wire.zookeeper.layout import CONSUMERS, offset_path
from kcoord_wire.zookeeper.model import Create, Node, Outcome, Read, SetData
from kcoord_wire.zookeeper.procedures import RegistryError, create_missing

WRITES: Final = 500
"""Of one `Multi`: ZooKeeper takes a request of 1 MB at most, and a path is shorter than 600 bytes."""


class Offsets:
    """The offsets of the groups that this broker coordinates.

    :param fenced: called with a shard when a write for one of its groups was refused
    """

    def __init__(self, outbox: Outbox, fenced: Callable[[Shard], None]) -> None:
        self._outbox = outbox
        self._fenced = fenced

    def commit(self, shard: Shard, connection: int, request: m.OffsetCommitRequest) -> None:
        """Write the offsets of a request, whose names and numbers are valid, and answer it; or refuse it."""
        group = shard.groups.get(request.group_id)
        if group is None or request.member_id not in group.members:
            self._outbox.refuse(connection, RewriteError.UNKNOWN_CONSUMER_ID)
        elif request.generation_id_or_member_epoch > group.generation:
            why = f"generation {request.generation_id_or_member_epoch}, the group's is {group.generation}"
            self._outbox.refuse(connection, RewriteError.ILLEGAL_GENERATION, f"a bug of the consumer: {why}")
        elif not _is_current(group, request):
            self._outbox.refuse(connection, RewriteError.ILLEGAL_GENERATION)
        else:
            self._outbox.start(self._write(shard, group, connection, request))

    def fetch(self, connection: int, request: m.OffsetFetchRequest) -> None:
        """Answer with the committed offsets, -1 where there is none."""
        self._outbox.start(self._read(connection, request))

    def _write(self, shard: Shard, group: Group, connection: int, request: m.OffsetCommitRequest) -> Procedure:
        offsets = {
            offset_path(group.name, topic.name, str(partition.partition_index)): partition.committed_offset
            for topic in request.topics
            for partition in topic.partitions
        }
        paths = list(offsets)
        for part in (paths[at : at + WRITES] for at in range(0, len(paths), WRITES)):
            missing: set[str] = set()
            is_written = False
            while not is_written:
                if shard.groups.get(group.name) is not group or not _is_current(group, request):
                    self._outbox.refuse(connection, RewriteError.ILLEGAL_GENERATION)
                    return
                try:
                    yield shard.guarded(*(_write(path, offsets[path], path in missing) for path in part))
                    is_written = True
                except RegistryError as error:
                    if error.reply.failed <= 0 and is_fenced_off(error):
                        self._fenced(shard)
                        self._outbox.refuse(connection, RewriteError.NOT_COORDINATOR_FOR_GROUP)
                        return
                    if error.outcome not in (Outcome.NO_NODE, Outcome.NODE_EXISTS):
                        raise
                    missing = yield from _missing(group.name, part)
        self._outbox.answer(connection, committed(request, RewriteError.NONE))

    def _read(self, connection: int, request: m.OffsetFetchRequest) -> Procedure:
        response = refusal(request, RewriteError.NONE)
        assert isinstance(response, m.OffsetFetchResponse)
        wanted = [(topic.name, partition) for topic in response.topics for partition in topic.partitions]
        paths = [offset_path(request.group_id, topic, str(partition.partition_index)) for topic, partition in wanted]
        nodes: list[Node | None] = yield [Read(path) for path in paths]
        for path, node, (_, partition) in zip(paths, nodes, wanted, strict=True):
            if node is not None:
                try:
                    partition.committed_offset = int(node.data)
                except ValueError:
                    self._outbox.note("offset not readable", logging.ERROR, path=path, data=node.data[:100])
        self._outbox.answer(connection, response)


def _is_current(group: Group, request: m.OffsetCommitRequest) -> bool:
    return group.state is not GroupState.COMPLETING and request.generation_id_or_member_epoch == group.generation


def _write(path: str, offset: int, is_missing: bool) -> Create | SetData:
    return Create(path, b"%d" % offset) if is_missing else SetData(path, b"%d" % offset)


def _missing(group: str, paths: Sequence[str]) -> Generator[Wait, Any, set[str]]:
    """Return which of the nodes do not exist, after their parents have been created."""
    nodes: list[Node | None] = yield [Read(path) for path in paths]
    missing = {path for path, node in zip(paths, nodes, strict=True) if node is None}
    topics = sorted({path.rpartition("/")[0] for path in missing})
    yield from create_missing(f"{CONSUMERS}/{group}", f"{CONSUMERS}/{group}/offsets", *topics)
    return missing
