"""What a coordinator does with a group that another one had before (section 2, "Co-ordinator", steps 1 to 3).

A group is read from ZooKeeper when the first consumer of it registers. Its former consumers stop fetching when their
connection breaks, or after a session timeout without a request; until then a partition given to another consumer would
have two owners.

Laws:

* No rebalance begins before all former owners have registered again, or the longest of their session timeouts has
  passed since the election. The draft's nodes do not say it: `GroupRecord` keeps the timeout, and a mark that the
  owners are not the whole truth, with which the whole time is waited for.
"""

from __future__ import annotations

import logging

from kcoord_wire.central.draft.committer import Committer
from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.group_store import consumer_of
from kcoord_wire.central.draft.groups import Group
from kcoord_wire.central.draft.handlers import RebalanceHandlers
from kcoord_wire.kernel.procedures import Opened, Procedure, Sleep
from kcoord_wire.zookeeper.procedures import RETRY_MS, RegistryError


def restore(context: Context, group: Group, committer: Committer, handlers: RebalanceHandlers) -> Procedure:
    """Read a group, and wait for its former consumers."""
    while not group.store.is_loaded:
        try:
            yield from committer.load(group)
        except RegistryError as error:
            context.note(logging.WARNING, "read failed", group=group.group_id, reason=str(error))
            yield Sleep(RETRY_MS)
    record = group.store.record
    group.awaited = {consumer_of(thread_id) for thread_id in group.store.owners.values()} - set(group.members)
    until = context.elected_at + record.session_timeout_ms
    if (group.awaited or record.is_starting) and until > context.now:
        context.note(
            logging.INFO, "former consumers awaited", group=group.group_id, consumers=len(group.awaited), until=until
        )
        yield Opened(group.all_back, until - context.now)
    group.awaited.clear()
    while not context.has_topics:  # else the group's partitions would seem to be gone (3.3)
        yield Sleep(RETRY_MS)
    handlers.restored(group)


def came_back(group: Group, consumer_id: str) -> None:
    """A consumer has registered: it is no longer awaited."""
    if consumer_id in group.awaited:
        group.awaited.discard(consumer_id)
        if not group.awaited and not group.store.record.is_starting:
            group.all_back.open()
