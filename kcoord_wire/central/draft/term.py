"""An elected coordinator of the draft: groups, consumers and what happens to them (sections 5 to 9 and 11).

An object of this class lives from one election to the resignation; "reset its state by clearing its in memory metadata"
(handleNewSession, step 1) is its end.

Laws:

* A message that a consumer cannot send in its state, or with another consumer's id, closes its sender's connection, and
  no other.
* A consumer leaves its group as soon as its connection has ended, without waiting for pings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kcoord_wire.central.draft.committer import Committer
from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.events import CentralError, Partition, RebalanceBy
from kcoord_wire.central.draft.fetcher_rebalance import FetcherRebalancer
from kcoord_wire.central.draft.group_store import GroupStore
from kcoord_wire.central.draft.groups import Group, Member
from kcoord_wire.central.draft.handlers import RebalanceHandlers
from kcoord_wire.central.draft.ping_schedule import PingSchedule
from kcoord_wire.central.draft.purgatory import Answer
from kcoord_wire.central.draft.rebalance import Rebalancer
from kcoord_wire.central.draft.registration import RegistrationError, check_registration, new_member
from kcoord_wire.central.draft.restoration import came_back, restore
from kcoord_wire.central.draft.socket_rebalance import SocketRebalancer
from kcoord_wire.central.draft.watches import TopicWatches
from kcoord_wire.kernel.machines import Close, Disconnected, Received, Send
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.model import Fired, Replied


class Term:
    """What a broker does while it is the coordinator."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.groups = context.groups
        self.pings = PingSchedule(context, self.handle_consumer_failure)
        self.watches = TopicWatches(context, self._topics_added, self._topic_changed)
        self.committer = Committer(context, self._unsure)
        self._answers: dict[type, Callable[[Member, Any], Answer]] = {m.PingResponse: self._pinged}
        parts = (context, self.committer, self.pings, self.watches.partitions)
        self.fetchers: FetcherRebalancer | None = None
        self.rebalancer: Rebalancer
        if context.settings.rebalance_by is RebalanceBy.SOCKETS:
            self.rebalancer = SocketRebalancer(*parts)
        else:
            self.rebalancer = self.fetchers = fetchers = FetcherRebalancer(*parts)
            self._answers[m.StopFetcherResponse] = partial(self._stopped, fetchers)
            self._answers[m.StartFetcherResponse] = lambda member, _: fetchers.answered(fetchers.starts, member)
        self.handlers = RebalanceHandlers(context, self.rebalancer.rebalance, self.handle_consumer_failure)

    def startup(self) -> None:
        """coordinatorStartup. Step 1 needs nothing: the session's end reaches the machine as an event. The handlers of
        step 5 run while there are tasks."""
        self.context.start(self.watches.startup())
        self.context.start(self.committer.run())
        self.context.start(self._drop_empty_groups())

    def end(self) -> None:
        """Stop acting: what is under way ends where it is, and the consumers' connections are closed."""
        self.context.procedures.cancel_all()
        self.context.timers.clear()
        for member in self.groups.by_connection.values():
            self.context.close(member)

    def has_connection(self, event: object) -> bool:
        """Whether an event is about the connection of a registered consumer."""
        return isinstance(event, Received | Disconnected) and event.connection in self.groups.by_connection

    def replied(self, event: Replied) -> None:
        """ZooKeeper has answered."""
        self.context.procedures.replied(event, self.context.now)

    def fired(self, event: Fired) -> None:
        """A watch has fired."""
        self.watches.fired(event)

    # ---- section 6

    def _topics_added(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self.groups.topic_added(topic)

    def _topic_changed(self, topic: str) -> None:
        for group in self.groups.interested_in(topic):
            self.handlers.request(group)

    # ---- section 7

    def register(self, connection: int, request: m.RegisterConsumerRequest) -> None:
        """Handle RegisterConsumerRequest: check it, answer, and add the consumer."""
        if (registered := self.groups.by_connection.get(connection)) is not None:
            self.handle_consumer_failure(registered, "a second RegisterConsumer on its connection")
            return
        if request.fence and request.fence[0].epoch > self.context.epoch:
            self._refuse(connection, request, CentralError.NOT_COORDINATOR, "it knows a later coordinator")
            return
        try:
            check_registration(request, self.groups.by_id, self.context.settings)
        except RegistrationError as refused:
            self._refuse(connection, request, refused.error, str(refused))
            return
        group = self.groups.by_id.get(request.group_id) or self.handle_new_group(request.group_id)
        self.handle_added_consumer(new_member(request, group, connection))

    def _refuse(self, connection: int, request: m.RegisterConsumerRequest, error: CentralError, reason: str) -> None:
        facts = {"error": error.name, "reason": reason}
        self._note(logging.WARNING, "registration refused", request.group_id[:255], request.consumer_id[:255], **facts)
        self.context.emit(Send(connection, m.RegisterConsumerResponse(error_code=error)))

    def handle_new_group(self, group_id: str) -> Group:
        """handleNewGroup; and what a former coordinator knew of the group is read."""
        group = self.groups.by_id[group_id] = Group(group_id, GroupStore(group_id))
        group.generation = self.context.least_generation
        self.context.start(restore(self.context, group, self.committer, self.handlers))
        return group

    def handle_added_consumer(self, member: Member) -> None:
        """handleAddedConsumer."""
        group = member.group
        self.rebalancer.added(member)  # 1
        self.groups.add_member(member)  # 2, 3
        self._note(logging.INFO, "consumer registered", group.group_id, member.consumer_id)
        came_back(group, member.consumer_id)
        self.handlers.request(group)  # 4

    # ---- section 8

    def disconnected(self, connection: int) -> None:
        """A connection has ended."""
        if (member := self.groups.by_connection.get(connection)) is not None:
            self.handle_consumer_failure(member, "its connection ended", is_open=False)

    def handle_consumer_failure(self, member: Member, reason: str, *, is_open: bool = True) -> None:
        """handleConsumerFailure."""
        group = member.group
        self._note(logging.WARNING, "consumer failed", group.group_id, member.consumer_id, reason=reason)
        self.pings.remove(member)  # 1
        if is_open:
            self.context.close(member)  # 2
        self.groups.remove_member(member)  # 3
        self.rebalancer.removed(member)  # 4
        if group.members:
            self.handlers.request(group)  # 5

    def _drop_empty_groups(self) -> Procedure:
        """Forget groups without consumers and without anything to do: ids from outside must not fill the memory. What
        is known of such a group is in ZooKeeper."""
        while True:
            yield Sleep(self.context.settings.offset_commit_interval_ms)
            empty = [group for group in self.groups.by_id.values() if not group.members and group.is_idle]
            for group in [group for group in empty if not self.committer.is_behind(group)]:
                del self.groups.by_id[group.group_id]
                self.committer.forget(group)
                self.context.least_generation = max(self.context.least_generation, group.generation)

    # ---- section 11

    def answered(self, connection: int, message: Any) -> None:
        """Handle PingResponse, StopFetcherResponse or StartFetcherResponse; anything else is an error of the sender."""
        member = self.groups.by_connection.get(connection)
        handle = self._answers.get(type(message))
        if member is None:
            self.context.note(logging.WARNING, "unexpected message", message=type(message).__name__)
            self.context.emit(Close(connection))
        elif handle is None:
            self.handle_consumer_failure(member, f"a {type(message).__name__}, which a consumer does not send")
        elif message.error_code:
            self.handle_consumer_failure(member, f"it answered with the error {message.error_code}")
        elif message.consumer_id != member.consumer_id:
            self.handle_consumer_failure(member, f"an answer in the name of {message.consumer_id[:255]!r}")
        elif (answer := handle(member, message)) is Answer.UNASKED:
            self.handle_consumer_failure(member, f"a {type(message).__name__} that was not asked for")
        elif answer is Answer.LATE:
            self._note(logging.INFO, "late answer", member.group.group_id, member.consumer_id)

    def _pinged(self, member: Member, message: m.PingResponse) -> Answer:
        self._record(member, message.offset_info)  # 1
        return self.pings.answered(member)  # 2

    def _stopped(self, fetchers: FetcherRebalancer, member: Member, message: m.StopFetcherResponse) -> Answer:
        self._record(member, message.offset_info)
        return fetchers.answered(fetchers.stops, member)

    def _record(self, member: Member, offsets: Sequence[Any] | None) -> None:
        if offsets and member.auto_commit:
            positions = {Partition(entry.topic, entry.partition): entry.offset for entry in offsets}
            if foreign := self.committer.record(member, positions):
                self._note(
                    logging.WARNING,
                    "offsets of partitions of others",
                    member.group.group_id,
                    member.consumer_id,
                    partitions=len(foreign),
                    first=f"{foreign[0].topic} {foreign[0].name}"[:300],
                )

    def _unsure(self, group: Group) -> None:
        """The group's nodes are not known: a rebalance reads them again."""
        if group.members:
            self.handlers.request(group)

    def _note(self, level: int, what: str, group_id: str, consumer_id: str, **facts: Any) -> None:
        self.context.note(level, what, group=group_id, consumer=consumer_id, **facts)
