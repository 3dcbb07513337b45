"""Which groups this broker coordinates: it takes shards over, loads their groups, and loses shards.

"As part of becoming the leader for a subset of the offset topic partitions, the co-ordinator reads metadata for each
group that it is responsible for, from zookeeper."

Laws:

* A takeover begins with a write: it counts the shard's epoch up if the assignment of shards is still the one that names
  this broker. Every later write for a group checks that epoch in the same `Multi` (`guarded`), so a broker that has
  lost a shard, or an earlier process of this broker, cannot write; and what is read after that write is not older.
* A shard's groups are known when all of them have been read (`Shard.is_loaded`), not before.

Source: "Kafka 0.9 Consumer Rewrite Design", "Co-ordinator failover or connection loss to the co-ordinator", point 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from kcoord_wire.central.rewrite.group import Group, GroupState, Member
from kcoord_wire.central.rewrite.layout import (
    SHARDS,
    GroupMetadata,
    metadata_path,
    parse_metadata,
    parse_owners,
    shard_path,
)
from kcoord_wire.central.rewrite.outbox import Outbox
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.zookeeper.model import Check, Multi, Node, Outcome, Read, ReadChildren, SetData, Write
from kcoord_wire.zookeeper.procedures import RegistryError, create_missing


@dataclass(slots=True, eq=False)
class Shard:
    """A subset of the groups.

    :ivar epoch: number of takeovers, this one included; 0 before it has happened
    :ivar version: of the epoch's node
    :ivar is_loaded: whether `groups` are all that ZooKeeper has
    :ivar procedure: the takeover
    """

    number: int
    epoch: int = 0
    version: int = 0
    is_loaded: bool = False
    groups: dict[str, Group] = field(default_factory=dict)
    procedure: Procedure | None = None

    def guarded(self, *writes: Write) -> Multi:
        """Return the writes, which fail if another broker has taken the shard over."""
        return Multi((Check(shard_path(self.number), self.version), *writes))


def is_fenced_off(error: RegistryError) -> bool:
    """Whether a guarded write failed because the shard, or the group's node, was written by another."""
    return error.outcome in (Outcome.BAD_VERSION, Outcome.NO_NODE, Outcome.NODE_EXISTS)


class Shards:
    """The shards of the cluster, and those of this broker.

    :param loaded: called with a shard whose groups have been read
    :param lost: called with a shard that is no longer this broker's
    :ivar owners: the broker of each shard as last read; empty before that
    """

    def __init__(
        self, broker_id: int, outbox: Outbox, loaded: Callable[[Shard], None], lost: Callable[[Shard], None]
    ) -> None:
        self.broker_id = broker_id
        self.owners: list[int | None] = []
        self.own: dict[int, Shard] = {}
        self._outbox = outbox
        self._loaded, self._lost = loaded, lost

    def owner(self, group: str) -> int | None:
        """Return the broker that coordinates a group, as far as this one knows."""
        return self.owners[partition_of(group, len(self.owners))] if self.owners else None

    def find(self, group: str) -> Shard | None:
        """Return the shard of a group if it is this broker's."""
        return self.own.get(partition_of(group, len(self.owners))) if self.owners else None

    def clear(self) -> None:
        """Lose all shards."""
        for shard in list(self.own.values()):
            self._drop(shard)
        self.owners = []

    def follow(self) -> Procedure:
        """Read the assignment of shards: take over those that are new, lose those that are no longer this broker's. It
        is done again whenever the node changes (`fired`)."""
        node: Node | None = yield Read(SHARDS, watch=True)
        try:
            owners = [] if node is None else parse_owners(node.data)
        except ValueError as error:
            self._outbox.note("assignment of shards not readable", logging.ERROR, reason=str(error))
            owners = []
        self.owners = owners
        wanted = {number for number, owner in enumerate(owners) if owner == self.broker_id}
        for shard in [shard for number, shard in self.own.items() if number not in wanted]:
            self._drop(shard)
        for number in sorted(wanted):
            shard = self.own.setdefault(number, Shard(number))
            if not shard.epoch and node is not None:
                self._cancel(shard)
                shard.procedure = self._outbox.start(self._take_over(shard, node.version))

    def fired(self, path: str) -> None:
        """Take in that the watch of a node has fired."""
        if path == SHARDS:
            self._outbox.start(self.follow())

    def retake(self, shard: Shard) -> None:
        """Lose a shard whose guarded write was refused, and take it over again if it is still this broker's."""
        self._outbox.note("coordination lost", logging.WARNING, shard=shard.number, epoch=shard.epoch)
        if self.own.get(shard.number) is shard:
            self._drop(shard)
            self._outbox.start(self.follow())

    def _drop(self, shard: Shard) -> None:
        self._cancel(shard)
        del self.own[shard.number]
        self._lost(shard)

    def _cancel(self, shard: Shard) -> None:
        if shard.procedure is not None:
            self._outbox.procedures.cancel(shard.procedure)
            shard.procedure = None

    def _take_over(self, shard: Shard, assignment_version: int) -> Procedure:
        path = shard_path(shard.number)
        yield from create_missing(path)
        node: Node | None = yield Read(path)
        if node is None:
            return
        epoch = node.version + 1  # only takeovers write the node
        try:
            yield Multi((Check(SHARDS, assignment_version), SetData(path, b"%d" % epoch, node.version)))
        except RegistryError as error:
            if error.reply.failed == 0 and is_fenced_off(error):
                return  # the assignment has changed: its watch leads back to `follow`
            raise
        shard.epoch, shard.version = epoch, node.version + 1
        names: tuple[str, ...] = (yield ReadChildren(path)) or ()
        nodes: list[Node | None] = yield [Read(metadata_path(shard.number, name)) for name in names]
        for name, group in zip(names, nodes, strict=True):
            if group is not None:
                shard.groups[name] = self._read_group(shard, name, group)
        shard.is_loaded, shard.procedure = True, None
        self._outbox.note("coordination started", shard=shard.number, epoch=epoch, groups=len(shard.groups))
        self._loaded(shard)

    def _read_group(self, shard: Shard, name: str, node: Node) -> Group:
        try:
            record = parse_metadata(node.data)
        except ValueError as error:
            # Each write adds 1 to the version and at most 1 to the generation, so this one is not lower.
            self._outbox.note("group not readable", logging.ERROR, group=name, reason=str(error))
            record = GroupMetadata(node.version + 1)
        group = Group(name, shard.number, node.version, strategy=record.strategy)
        for consumer_id, consumer in record.consumers.items():
            member = Member(consumer_id, consumer.topics, consumer.session_timeout_ms, is_new=False)
            group.add(member)
        group.begin(record)
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        return group
