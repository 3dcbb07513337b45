"""The controller: the elected broker that says which broker coordinates which shard.

Laws:

* Brokers that live keep their shards, unless one has more than another by two or more: then shards move, so that all
  have their part of the work. Shards of the others go to those with the fewest.
* The number of shards is fixed by the first controller of a cluster: a group never changes its shard.
* Only the elected controller writes the assignment (`Leadership.guarded`), and only if it has changed.

Source: "Kafka 0.9 Consumer Rewrite Design", "Co-ordinator failover", point 1: "the controller elects a new leader for a
subset of the consumer groups affected". In place of the document's UpdateMetadataRequest the brokers watch the node.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from kcoord_wire.central.rewrite.layout import CONTROLLER, CONTROLLER_EPOCH, SHARDS, parse_owners
from kcoord_wire.central.rewrite.outbox import Outbox
from kcoord_wire.kernel.procedures import Gate, Opened, Procedure, Sleep
from kcoord_wire.zookeeper.layout import BROKER_IDS, ROOTS
from kcoord_wire.zookeeper.leadership import Leadership, ancestors
from kcoord_wire.zookeeper.model import Create, Fired, Node, Read, ReadChildren, Replied, SetData
from kcoord_wire.zookeeper.procedures import RegistryError, ZooKeeperProcedures, create_missing

RETRY_MS: Final = 500


def spread(owners: Sequence[int | None], live: Collection[int]) -> list[int | None]:
    """Return the coordinator of each shard when these brokers live.

    :param owners: those before
    """
    if not live:
        return [None] * len(owners)
    load = dict.fromkeys(sorted(live), 0)
    for owner in owners:
        if owner in load:
            load[owner] += 1
    after: list[int | None] = []
    for owner in owners:
        if owner not in load:
            owner = min(load, key=load.__getitem__)
            load[owner] += 1
        after.append(owner)
    for shard, owner in enumerate(after):
        idlest = min(load, key=load.__getitem__)
        if owner is not None and load[owner] - load[idlest] > 1:
            load[owner] -= 1
            load[idlest] += 1
            after[shard] = idlest
    return after


class Controller:
    """A candidate for controller.

    :param shards: how many, if ZooKeeper has no assignment yet
    """

    def __init__(self, broker_id: int, shards: int, outbox: Outbox) -> None:
        self._leadership = Leadership(
            broker_id,
            CONTROLLER,
            CONTROLLER_EPOCH,
            outbox.emit,
            outbox.tokens,
            self._elected,
            self._resigned,
            partial(outbox.note_failure, "election failed"),
        )
        self._outbox = outbox
        self._shards = shards
        self._changed = Gate()
        self._procedures = ZooKeeperProcedures(outbox.emit, outbox.tokens)
        self._now = 0
        self._broken = ""

    @property
    def deadline(self) -> int | None:
        """When `handle` has something to do, in ms; None for never."""
        ends = (self._leadership.deadline, self._procedures.deadline)
        return min((end for end in ends if end is not None), default=None)

    def handle(self, event: object, now: int) -> None:
        """Take in an event of the machine, of whatever class, before the machine does anything else."""
        self._now = now
        self._leadership.handle(event, now)
        if isinstance(event, Replied):
            self._procedures.replied(event, now)
        elif event == Fired(BROKER_IDS, of_children=True):
            self._changed.open()
        self._procedures.advance(now)
        if self._broken:
            reason, self._broken = self._broken, ""
            self._leadership.resign(reason)

    def bar(self, is_barred: bool) -> None:
        """See `Leadership.bar`."""
        self._leadership.bar(is_barred)

    def _elected(self, epoch: int) -> None:
        self._outbox.note("controller elected", epoch=epoch)
        self._procedures.start(self._lead(), self._now)

    def _resigned(self, reason: str) -> None:
        self._outbox.note("controller resigned", logging.WARNING, reason=reason)
        self._procedures.cancel_all()

    def _lead(self) -> Procedure:
        try:
            yield from self._assign()
        except (RegistryError, ValueError) as error:
            self._outbox.note_failure("shards not assigned", str(error))
            yield Sleep(RETRY_MS)
            self._broken = str(error)

    def _assign(self) -> Procedure:
        """Assign the shards to the brokers that live, and again when others do."""
        yield from create_missing(*ROOTS, *ancestors(SHARDS))
        while True:
            self._changed = changed = Gate()
            names: tuple[str, ...] = (yield ReadChildren(BROKER_IDS, watch=True)) or ()
            live = sorted(int(name) for name in names if name.isdecimal())
            node: Node | None = yield Read(SHARDS)
            before = [None] * self._shards if node is None else parse_owners(node.data)
            after = spread(before, live)
            data = json.dumps(after).encode()
            if node is None:
                yield self._leadership.guarded(Create(SHARDS, data))
            elif after != before:
                yield self._leadership.guarded(SetData(SHARDS, data, node.version))
            if after != before:
                self._outbox.note("shards assigned", brokers=live, moved=_differences(before, after))
            yield Opened(changed)


def _differences(before: Sequence[int | None], after: Sequence[int | None]) -> int:
    return sum(old != new for old, new in zip(before, after, strict=True))
