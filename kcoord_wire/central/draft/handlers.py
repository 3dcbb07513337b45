"""The rebalance handlers: as many groups rebalance at once as there are handlers (section 5, field 5; section 9).

Laws:

* A group always has the same handler, by a hash that is the same in every process, so no two rebalance it at once.
* The rebalance bit of a group is set while its task waits in the queue: further requests change nothing. It is cleared
  when the task begins, so what changes during a rebalance leads to another one.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.groups import Group, Member
from kcoord_wire.kernel.procedures import Procedure


class RebalanceHandlers:
    """The handlers and their queues.

    :param rebalance: the procedure for one group; it returns the consumers to take for failed
    :param failed: called with each of them, and why
    """

    def __init__(
        self,
        context: Context,
        rebalance: Callable[[Group], Generator[Any, Any, set[Member]]],
        failed: Callable[[Member, str], None],
    ) -> None:
        self._context = context
        self._rebalance = rebalance
        self._failed = failed
        self._queues: list[deque[Group]] = [deque() for _ in range(context.settings.rebalance_handlers)]
        self._running: list[Procedure | None] = [None] * len(self._queues)

    @property
    def waiting(self) -> list[list[str]]:
        """The ids of the groups in each queue."""
        return [[group.group_id for group in queue] for queue in self._queues]

    def request(self, group: Group) -> None:
        """Set the group's rebalance bit, and give its handler a task unless it was set before.

        A group that is not restored gets its task when it is (`restored`)."""
        if not group.needs_rebalance:
            group.needs_rebalance = True
            if group.is_restored:
                self._submit(group)

    def restored(self, group: Group) -> None:
        """The group may be rebalanced from now on."""
        group.is_restored = True
        if group.needs_rebalance:
            self._submit(group)

    def _submit(self, group: Group) -> None:
        number = zlib.crc32(group.group_id.encode("utf-8", "surrogatepass")) % len(self._queues)
        self._queues[number].append(group)
        running = self._running[number]
        if running is None or not self._context.procedures.is_running(running):
            self._running[number] = procedure = self._run(self._queues[number])
            self._context.start(procedure)

    def _run(self, queue: deque[Group]) -> Procedure:
        while queue:
            group = queue.popleft()
            group.needs_rebalance = False
            late = yield from self._rebalance(group)
            for member in late:
                if group.members.get(member.consumer_id) is member:
                    self._failed(member, "no answer to StopFetcher or StartFetcher")
