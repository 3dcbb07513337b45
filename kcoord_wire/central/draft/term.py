"""What a broker does while it is the coordinator of some groups (sections 5 to 9 and 11).

A `Term` lasts from the election to the resignation. It begins by reading the groups that another coordinator had before
(`Term.read_groups`). Their former consumers stop fetching when their connection breaks, or after a session timeout
without a request; until then a partition given to another consumer would have two owners.

Laws:

* A message that a consumer cannot send in its state, or with another consumer's id, closes its sender's connection, and
  no other.
* A consumer leaves its group as soon as its connection has ended, without waiting for pings.
* No rebalance begins before all former owners have registered again, or the longest of their session timeouts has
  passed since the election. The draft's nodes do not say it: `GroupRecord` keeps the timeout, and a mark that the
  owners are not the whole truth, with which the whole time is waited for.

Source: "the 0.8 consumer-coordinator draft", sections 2, 5 to 9 and 11.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kcoord_wire.central.draft.context import Context, TopicWatches, again
from kcoord_wire.central.draft.events import CentralError, Partition, RebalanceBy
from kcoord_wire.central.draft.groups import (
    Group,
    GroupStore,
    RegisteredConsumer,
    RegistrationError,
    check_registration,
    consumer_of,
    new_member,
)
from kcoord_wire.central.draft.purgatory import Answer, Committer, PingSchedule
from kcoord_wire.central.draft.rebalance import FetcherRebalancer, Rebalancer, Rebalances, SocketRebalancer
from kcoord_wire.kernel.machines import Disconnected, Received, Send
from kcoord_wire.kernel.procedures import Latched, Procedure, Sleep
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import CONSUMERS, is_node_name
from kcoord_wire.zookeeper.requests import RETRY_MS, Fired, ReadChildren, Replied, answer_to


def group_status(group: Group, host_of: Callable[[int], str]) -> m.CentralStatusResponseGroup:
    """Return a group as it is now.

    ``phase`` is that of the rebalance that is under way, else ``restoring`` or ``stable``.

    :param host_of: returns the address of a connection's peer; empty if it has ended
    """
    attempt = group.attempt
    phase, waits_for = "stable", set(group.awaited)
    if attempt is not None:
        phase = attempt.phase
        waits_for = {member.consumer_id for member in attempt.waiting} | group.reconnecting
    elif not group.is_restored:
        phase = "restoring"
    return m.CentralStatusResponseGroup(
        group_id=group.group_id,
        generation=group.generation,
        phase=phase,
        waits_for=sorted(waits_for),
        consumers=[
            m.CentralStatusResponseConsumer(
                consumer_id=member.consumer_id,
                host=host_of(member.connection),
                topic_count=member.topic_count.text,
                session_timeout_ms=member.session_timeout_ms,
                failed_pings=member.failed_pings,
                partitions=len(member.owned) if member.is_started else 0,
            )
            for member in group.members.values()
        ],
    )


def load(context: Context, group: Group, committer: Committer) -> Procedure:
    """Read a group, unless it is known."""
    if not group.store.is_loaded:
        yield from again(context, lambda: committer.load(group), group=group.group_id)


def restore(context: Context, group: Group, committer: Committer, rebalances: Rebalances) -> Procedure:
    """Read a group, and wait for its former consumers (section 2, "Co-ordinator", steps 2 and 3).

    They have no connection for pings, so those that have not registered again by then fail without any.
    """
    yield from load(context, group, committer)
    record = group.store.record
    group.awaited = {consumer_of(thread_id) for thread_id in group.store.owners.values()} - set(group.members)
    until = context.elected_at + record.session_timeout_ms
    if (group.awaited or record.is_starting) and until > context.now:
        context.note(
            logging.INFO, "former consumers awaited", group=group.group_id, consumers=len(group.awaited), until=until
        )
        yield Latched(group.all_back, until - context.now)
        if failed := sorted(group.awaited):
            facts = {"consumers": len(failed), "first": failed[0]}
            context.note(logging.WARNING, "former consumers failed", group=group.group_id, **facts)
    group.awaited.clear()
    while not context.has_topics:  # else the group's partitions would seem to be gone (3.3)
        yield Sleep(RETRY_MS)
    rebalances.restored(group)


def came_back(group: Group, consumer_id: str) -> None:
    """A consumer has registered: it is no longer awaited."""
    if consumer_id in group.awaited:
        group.awaited.discard(consumer_id)
        if not group.awaited and not group.store.record.is_starting:
            group.all_back.open()


class Term:
    """What a broker does while it is the coordinator.

    :param has_group: whether a group of this name is one of its own
    """

    def __init__(self, context: Context, has_group: Callable[[str], bool]) -> None:
        self.context = context
        self._has_group = has_group
        self.groups = context.groups
        self.pings = PingSchedule(context, self.handle_consumer_failure)
        self.watches = TopicWatches(context, self._topics_added, self._topic_changed)
        self.committer = Committer(context, self._unsure)
        self._answers: dict[type, Callable[[RegisteredConsumer, Any], Answer]] = {m.PingResponse: self._pinged}
        parts = (context, self.committer, self.pings, self.watches)
        self.fetchers: FetcherRebalancer | None = None
        self.rebalancer: Rebalancer
        if context.settings.rebalance_by is RebalanceBy.SOCKETS:
            self.rebalancer = SocketRebalancer(*parts)
        else:
            self.rebalancer = self.fetchers = fetchers = FetcherRebalancer(*parts)
            self._answers[m.StopFetcherResponse] = partial(self._stopped, fetchers)
            self._answers[m.StartFetcherResponse] = lambda member, _: fetchers.answered(fetchers.starts, member)
        self.rebalances = Rebalances(context, self.rebalancer.rebalance, self.handle_consumer_failure)

    def startup(self) -> None:
        """coordinatorStartup. Step 1 needs nothing: the session's end reaches the machine as an event. Each group
        has a handler of step 5 while it is rebalanced."""
        self.context.start(self.watches.startup())
        self.context.start(self.committer.run())
        self.context.start(self._drop_empty_groups())
        self.context.start(self.read_groups())

    def read_groups(self) -> Procedure:
        """Section 2, "Co-ordinator", step 1: read the groups one after another, so that an election does not flood
        ZooKeeper. A group whose consumer registers meanwhile is read at once."""
        for name in (yield from again(self.context, partial(answer_to, ReadChildren(CONSUMERS)))) or ():
            if is_node_name(name) and self._has_group(name) and name not in self.groups.by_id:
                group = self._add_group(name)
                yield from load(self.context, group, self.committer)
                self.context.start(restore(self.context, group, self.committer, self.rebalances))

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
            self.rebalances.request(group)

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
        group = self._add_group(group_id)
        self.context.start(restore(self.context, group, self.committer, self.rebalances))
        return group

    def _add_group(self, group_id: str) -> Group:
        group = self.groups.by_id[group_id] = Group(group_id, GroupStore(group_id))
        group.generation = self.context.least_generation
        return group

    def handle_added_consumer(self, member: RegisteredConsumer) -> None:
        """handleAddedConsumer."""
        group = member.group
        self.rebalancer.added(member)  # 1
        self.groups.add_member(member)  # 2, 3
        self._note(logging.INFO, "consumer registered", group.group_id, member.consumer_id)
        came_back(group, member.consumer_id)
        self.rebalances.request(group)  # 4

    # ---- section 8

    def disconnected(self, connection: int) -> None:
        """A connection has ended."""
        if (member := self.groups.by_connection.get(connection)) is not None:
            self.handle_consumer_failure(member, "its connection ended", is_open=False)

    def handle_consumer_failure(self, member: RegisteredConsumer, reason: str, *, is_open: bool = True) -> None:
        """handleConsumerFailure."""
        group = member.group
        self._note(logging.WARNING, "consumer failed", group.group_id, member.consumer_id, reason=reason)
        self.pings.remove(member)  # 1
        if is_open:
            self.context.close(member)  # 2
        self.groups.remove_member(member)  # 3
        self.rebalancer.removed(member)  # 4
        if group.members:
            self.rebalances.request(group)  # 5

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
        """Handle PingResponse, StopFetcherResponse or StartFetcherResponse of a registered consumer; anything else is
        its error."""
        member = self.groups.by_connection[connection]
        handle = self._answers.get(type(message))
        if handle is None:
            self.handle_consumer_failure(member, f"a {type(message).__name__}, which a consumer does not send")
        elif message.error_code:
            self.handle_consumer_failure(member, f"it answered with the error {message.error_code}")
        elif message.consumer_id != member.consumer_id:
            self.handle_consumer_failure(member, f"an answer in the name of {message.consumer_id[:255]!r}")
        elif (answer := handle(member, message)) is Answer.UNASKED:
            self.handle_consumer_failure(member, f"a {type(message).__name__} that was not asked for")
        elif answer is Answer.LATE:
            self._note(logging.INFO, "late answer", member.group.group_id, member.consumer_id)

    def _pinged(self, member: RegisteredConsumer, message: m.PingResponse) -> Answer:
        self._record(member, message.offset_info)  # 1
        return self.pings.answered(member)  # 2

    def _stopped(
        self, fetchers: FetcherRebalancer, member: RegisteredConsumer, message: m.StopFetcherResponse
    ) -> Answer:
        self._record(member, message.offset_info)
        return fetchers.answered(fetchers.stops, member)

    def _record(self, member: RegisteredConsumer, offsets: Sequence[Any] | None) -> None:
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
            self.rebalances.request(group)

    def _note(self, level: int, what: str, group_id: str, consumer_id: str, **facts: Any) -> None:
        self.context.note(level, what, group=group_id, consumer=consumer_id, **facts)
