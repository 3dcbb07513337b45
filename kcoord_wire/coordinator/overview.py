"""A running coordinator for who looks at it again and again: what has changed of its groups, how far groups are behind
in each topic, and its transactional ids.

Laws:

* What is returned is a copy.
* Whether a group has changed costs its mark: no metadata or assignment is decoded for it. Of what `GroupDescription`
  shows the mark leaves out the committed offsets alone, which change with each commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.coordinator.consumer_groups.epoch_group import EpochGroup
from kcoord_wire.coordinator.core.events import RebalanceAccount
from kcoord_wire.coordinator.core.groups import BaseGroup, Group
from kcoord_wire.coordinator.description import GroupDescription, describe_group
from kcoord_wire.coordinator.transactions.transaction import Transaction, by_topic

if TYPE_CHECKING:
    from kcoord_wire.coordinator.host import Host
    from kcoord_wire.coordinator.server import Server
    from kcoord_wire.coordinator.topics.catalog import Topic

MOST_FOLLOWED: Final = 1_000  # groups that are looked at again and again
MOST_TRANSACTIONS: Final = 500  # described at once; there can be 100,000


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since an earlier look at the groups.

    :ivar groups: those that have changed or are new, by id
    :ivar gone: ids of those that are no more
    :ivar left_out: groups that were not looked at
    :ivar rebalances: those that have ended since and are remembered, oldest first
    :ivar ended: how many have ended since the start
    :ivar brokers: what each does, in the order of their node ids
    :ivar leaders: of each partition of ``__consumer_offsets``, the node that coordinates its groups; -1 if none runs
    :ivar marks: for the next look
    """

    groups: list[GroupDescription]
    gone: list[str]
    left_out: int
    rebalances: list[RebalanceAccount]
    ended: int
    brokers: list[str]
    leaders: list[int]
    marks: Mapping[str, object]

    def is_news(self, since: Changes) -> bool:
        """Return whether anything differs from the look before."""
        now, then = ((look.left_out, look.brokers, look.leaders) for look in (self, since))
        return bool(self.groups or self.gone or self.rebalances) or now != then


class GroupLag(NamedTuple):
    """How far a group is behind in a topic.

    :ivar group_id: the group
    :ivar partitions: those in which it has committed an offset
    :ivar lag: records behind, of these partitions together
    """

    group_id: str
    partitions: int
    lag: int


@dataclass(frozen=True, slots=True)
class TopicLag:
    """A topic and the groups that have committed offsets in it.

    :ivar name: the topic
    :ivar partitions: how many it has
    :ivar is_internal: whether it is the brokers' own
    :ivar records: offsets from the first record that is kept to the end, of all partitions together
    :ivar groups: in order of their ids
    """

    name: str
    partitions: int
    is_internal: bool
    records: int
    groups: tuple[GroupLag, ...]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition.

    :ivar partition: its number
    :ivar leader: node id; -1 if none runs
    :ivar start_offset: of the first record that is kept
    :ivar end_offset: of the next record
    :ivar stable_offset: of the first record of an open transaction; the end if there is none
    :ivar committed: group to the offset that it has committed
    """

    partition: int
    leader: int
    start_offset: int
    end_offset: int
    stable_offset: int
    committed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id.

    :ivar transactional_id: it
    :ivar state: as DescribeTransactions names it; in ``Ongoing`` a transaction is open
    :ivar producer_id: of its producer
    :ivar producer_epoch: of its producer
    :ivar timeout_ms: how long a transaction may be open
    :ivar started_at: ms since the epoch; None if there is no transaction
    :ivar updated_at: ms since the epoch
    :ivar partitions: topic to partitions that are in the transaction
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_at: int | None
    updated_at: int
    partitions: Mapping[str, tuple[int, ...]]


def changes(server: Server, since: Changes | None, most: int, default_assignor: str) -> Changes:
    """Return what has changed.

    :param since: the look before; None for all groups
    :param most: groups to look at, the first by their ids
    :param default_assignor: see `describe_group`
    """
    groups, log = server.host.groups.machine.groups, server.requests.rebalances
    known, ended = ({}, 0) if since is None else (since.marks, since.ended)
    marks = {group_id: _mark(groups[group_id]) for group_id in sorted(groups)[:most]}
    changed = [groups[group_id] for group_id, mark in marks.items() if known.get(group_id) != mark]
    first_new = max(0, len(log.accounts) - (log.ended - ended))
    return Changes(
        groups=[describe_group(group, server.host.topics, default_assignor) for group in changed],
        gone=[group_id for group_id in known if group_id not in marks],
        left_out=len(groups) - len(marks),
        rebalances=list(islice(log.accounts, first_new, None)),
        ended=log.ended,
        brokers=[str(state) for state in server.states],
        leaders=[server.brokers.node_of(leader) for leader in server.brokers.groups.of],
        marks=marks,
    )


def _mark(group: BaseGroup) -> object:
    """Return what differs when a group has changed. Members of other groups than classic ones are replaced when they
    change, so that comparing those that have not is comparing addresses."""
    rebalance = group.rebalance
    began = None if rebalance is None else (rebalance.started_at, len(rebalance.joins), len(rebalance.removed))
    mark: tuple[Any, ...] = (group.state, group.state_since, began)
    if isinstance(group, EpochGroup):
        return *mark, group.epoch, group.assignment_epoch, tuple(group.members.values())
    assert isinstance(group, Group), "all others are classic"
    counts = (group.generation_id, len(group.pending), group.waiting, len(group.unsynced))
    return *mark, counts, group.leader_id, tuple(group.members)


def topic_lags(host: Host) -> list[TopicLag]:
    """Return all topics, by name."""
    topics = {topic.name: topic for topic in _topics(host)}
    lags: dict[str, list[GroupLag]] = {name: [] for name in topics}
    for group_id, group in sorted(host.groups.machine.groups.items()):
        for name, committed in group.offsets.items():
            if name in topics:
                logs = topics[name].logs
                behind = [logs[at].end_offset - each.offset for at, each in committed.items() if at < len(logs)]
                lags[name].append(GroupLag(group_id, len(behind), sum(max(0, lag) for lag in behind)))
    return [
        TopicLag(
            name,
            len(topic.logs),
            topic.is_internal,
            sum(log.end_offset - log.start_offset for log in topic.logs),
            tuple(lags[name]),
        )
        for name, topic in sorted(topics.items())
    ]


def partitions_of(host: Host, name: str) -> list[PartitionDescription] | None:
    """Return the partitions of a topic; None if there is no such topic."""
    topic = next((topic for topic in _topics(host) if topic.name == name), None)
    if topic is None:
        return None
    committed: list[dict[str, int]] = [{} for _ in topic.logs]
    for group_id, group in sorted(host.groups.machine.groups.items()):
        for at, each in group.offsets.get(name, {}).items():
            if at < len(committed):
                committed[at][group_id] = each.offset
    return [
        PartitionDescription(
            at,
            host.brokers.node_of(topic.leaders.of[at]),
            log.start_offset,
            log.end_offset,
            log.stable_offset,
            committed[at],
        )
        for at, log in enumerate(topic.logs)
    ]


def _topics(host: Host) -> Iterator[Topic]:
    yield from host.topics.catalog
    yield from host.topics.catalog.internal()


def transactions(host: Host) -> list[TransactionDescription]:
    """Return the transactional ids that have changed last, the newest first."""
    known = host.transactions.machine.transactions.values()
    newest = islice(sorted(known, key=lambda each: (-each.updated_at, each.transactional_id)), MOST_TRANSACTIONS)
    return [_described(each) for each in newest]


def transaction(host: Host, transactional_id: str) -> TransactionDescription | None:
    """Return a transactional id; None if no producer has used it."""
    found = host.transactions.machine.transactions.get(transactional_id)
    return None if found is None else _described(found)


def _described(each: Transaction) -> TransactionDescription:
    return TransactionDescription(
        each.transactional_id,
        str(each.state),
        each.producer_id,
        each.producer_epoch,
        each.timeout_ms,
        each.started_at if each.started_at >= 0 else None,
        each.updated_at,
        {topic: tuple(numbers) for topic, numbers in by_topic(sorted(each.partitions)).items()},
    )
