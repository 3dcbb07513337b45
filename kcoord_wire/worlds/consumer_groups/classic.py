"""Members of the classic protocol in the virtual cluster of KIP-848: the consumers of `worlds.group`, on its wire.

They join by JoinGroup and SyncGroup whatever the group is: it becomes one of KIP-848 when the first consumer of that
joins, and classic again when the last one has gone.

Laws:

* To the laws of `laws` a classic member is a client like any other. Its epoch is the generation of its last assignment:
  that of a JoinGroup which no SyncGroup has followed may be given out again after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from kcoord_wire.assignors import ASSIGNORS
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.consumer.machine import MemberMachine
from kcoord_wire.coordinator.core.groups import TopicNames
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.worlds.consumer_groups.laws import check_client_step
from kcoord_wire.worlds.consumer_groups.member import Partition
from kcoord_wire.worlds.group import members

if TYPE_CHECKING:
    from kcoord_wire.worlds.consumer_groups.cluster import ConsumerGroupCluster, MemberOptions


@dataclass(frozen=True, slots=True)
class ClassicClient:
    """A classic member as the laws see clients; see `laws.Client`."""

    member: MemberMachine
    topics: TopicNames

    @property
    def member_id(self) -> str:
        """Its id; empty before the coordinator has given it one."""
        return self.member.member_id

    @property
    def epoch(self) -> int:
        """The generation of its last assignment; -1 outside of a generation."""
        return min(self.member.owned_generation, self.member.generation_id)

    @property
    def owned(self) -> frozenset[Partition]:
        """What it may use."""
        named = ((self.topics.id_of(partition.topic), partition.partition) for partition in self.member.owned)
        return frozenset(Partition(topic_id, number) for topic_id, number in named if topic_id is not None)

    @property
    def is_at_rest(self) -> bool:
        """Whether it has its assignment, and no reason to join again."""
        return self.member.is_at_rest


class ClassicProcess(members.MemberProcess):
    """A process of a classic member in the cluster of KIP-848.

    :ivar origin: the options from which its own were made
    :ivar client: its member, as the laws see it
    """

    __slots__ = ("_cluster", "_epoch", "client", "origin")

    def __init__(
        self,
        cluster: ConsumerGroupCluster,
        clock: VirtualClock,
        applications: members.Members,
        name: str,
        host: str,
        client: ClassicClient,
        random: Random,
        options: members.MemberOptions,
        origin: MemberOptions,
    ) -> None:
        super().__init__(clock, applications, name, host, client.member, random, options)
        self.client = client
        self.origin = origin
        self._cluster = cluster
        self._epoch = client.epoch

    def handled(self) -> None:
        """Check the laws that depend on what clients own."""
        super().handled()
        check_client_step(self._epoch, self.client)
        self._epoch = self.client.epoch
        self._cluster.check_clients()


def machine_of(options: members.MemberOptions, name: str) -> MemberMachine:
    """Return the machine of a classic member."""
    assignors = [ASSIGNORS[assignor] for assignor in options.assignors]
    return MemberMachine(options.settings(name), assignors, ConsumerProtocol())


def classic_options(origin: MemberOptions, group: str, timing: Any) -> members.MemberOptions:
    """Return the options of a classic member from those of one of KIP-848.

    :param timing: the coordinator's settings, which say the session timeout and the heartbeat interval
    """
    return members.MemberOptions(
        topics=origin.topics,
        assignors=origin.assignors or (),
        group=group,
        instance_id=origin.instance_id,
        session_timeout_ms=timing.consumer_session_timeout_ms,
        rebalance_timeout_ms=origin.rebalance_timeout_ms,
        heartbeat_interval_ms=timing.consumer_heartbeat_interval_ms,
        request_timeout_ms=origin.request_timeout_ms,
        commit_ms=origin.commit_ms,
        release_ms=origin.release_ms,
    )
