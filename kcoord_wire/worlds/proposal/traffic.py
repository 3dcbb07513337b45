"""The bytes that one rebalance moves, under each variant and under the released protocol.

A group is stable; one more member joins, or partitions are added; JoinGroup and SyncGroup are counted until the group
has settled, requests and responses, each with its size and header. The released protocol runs on
`worlds.group.Cluster`, with the versions that the Java client sends.

Laws:

* What is counted has been encoded by the codec, and decoded by the machine that it is for.
* Same arguments, same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from kcoord_wire.codec.registry import peek_request
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.worlds.group.world import Cluster
from kcoord_wire.worlds.proposal.proposal_coordinator import CoordinatorSettings
from kcoord_wire.worlds.proposal.proposal_world import MemberOptions, ProposalCluster
from kcoord_wire.worlds.proposal.single_assignor import VARIANTS

_CHANGE_MS: Final = 1_000  # from one change of the topics to the next
_LOOK_MS: Final = 10  # from one look at who owns what to the next
_START_MS: Final = 3_000
"""How long the group waits for its first members, so that they form one generation."""


class Measured(NamedTuple):
    """A protocol whose traffic can be measured.

    :ivar variant: a key of `VARIANTS`; None for the released protocol
    :ivar compresses: whether members compress their metadata
    :ivar compresses_joins: whether the coordinator compresses each response to JoinGroup as a whole
    :ivar lists_members: see `CoordinatorSettings`
    :ivar batch_ms: see `MemberSettings`
    """

    variant: str | None
    compresses: bool = False
    compresses_joins: bool = False
    lists_members: bool = True
    batch_ms: int = 0


MEASURED: Final[Mapping[str, Measured]] = {
    "all members": Measured("all_members"),
    "all members, compressed": Measured("all_members", compresses=True),
    "all members, responses compressed": Measured("all_members", compresses_joins=True),
    "subscription hash": Measured("subscription_hash"),
    "single assignor": Measured("single_assignor"),
    "single assignor, without GroupMembers": Measured("single_assignor", lists_members=False),
    "two phases": Measured("two_phases"),
    "released": Measured(None),
}
"""By the name in tables and plots."""

CHANGED: Final[Mapping[str, Measured]] = {
    **MEASURED,
    "two phases, batched": Measured("two_phases", batch_ms=5_000),
}
"""The same, for topics that change."""


class Traffic(NamedTuple):
    """What one rebalance has moved, in bytes.

    :ivar to_coordinator: requests
    :ivar to_members: responses
    :ivar idle_ms: of topics that change: how long a partition that had an owner before was without one
    """

    to_coordinator: int
    to_members: int
    idle_ms: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.to_coordinator + self.to_members


def make_topics(members: int, metadata_bytes: int) -> dict[str, int]:
    """Return topics whose names fill a subscription of so many bytes, with at least one partition for each member.

    The names have 32 characters; the last six of each are of a hash, so that they compress as names do and not as
    a counter does.
    """
    count = max(metadata_bytes // 34, 1)  # an int16 of length before each name
    names = [f"team-{each % 40:02}.service-{each % 900:03}.event-" for each in range(count)]
    partitions = -(-members // count)
    return {
        f"{name}{hashlib.sha256(str(each).encode()).hexdigest()[:6]}": partitions for each, name in enumerate(names)
    }


def measure(measured: Measured, members: int, metadata_bytes: int, changes: int = 0) -> Traffic:
    """Return what the rebalance moves that brings a group to so many members.

    :param members: at least 2
    :param metadata_bytes: of each member's topic list
    :param changes: instead, what the rebalances of the whole group move while partitions are added so often
    """
    topics = make_topics(members, metadata_bytes)
    if measured.variant is None:
        return _measure_released(members, topics, changes)
    if measured.variant not in VARIANTS:
        raise ValueError(f"no variant is called {measured.variant!r}")
    settings = CoordinatorSettings(initial_delay_ms=_START_MS, lists_members=measured.lists_members)
    sim = ProposalCluster(
        measured.variant,
        topics=topics,
        members=members - (0 if changes else 1),
        options=MemberOptions(settings={"batch_ms": measured.batch_ms}),
        settings=settings,
        compresses=measured.compresses,
        compresses_joins=measured.compresses_joins,
    )
    with sim:
        sim.run_until(sim.is_settled)
        before, idle_ms = _joins(sim), 0
        if changes:
            idle_ms = _change(sim, topics, changes)
        else:
            sim.member("last")
            sim.run_until(
                lambda: sim.is_settled() and len(sim.coordinator.members if sim.coordinator else ()) == members
            )
        requests, responses = (now - then for now, then in zip(_joins(sim), before, strict=True))
    return Traffic(requests, responses, idle_ms)


def _change(sim: ProposalCluster | Cluster, topics: Mapping[str, int], changes: int) -> int:
    """Add partitions of a topic, one after the other, and wait until the group has settled; return the idle ms."""
    sim.run(_START_MS)  # until each member has sent a heartbeat
    owned, began, made, idle_ms = sim.owners().keys(), sim.now, 0, 0
    while made < changes or not sim.is_settled():
        if made < changes and sim.now >= began + made * _CHANGE_MS:
            sim.add_partitions(next(iter(topics)), 1, refresh_ms=0)
            made += 1
        sim.run(_LOOK_MS)
        idle_ms += _LOOK_MS * (not owned <= sim.owners().keys())
    return idle_ms


def _joins(sim: ProposalCluster) -> tuple[int, int]:
    moved = (sim.to_coordinator, sim.to_members)
    requests, responses = (
        sum(size for name, size in side.items() if "JoinGroup" in name or "SyncGroup" in name) for side in moved
    )
    return requests, responses


class _Tap:
    """Counts the frames of JoinGroup and SyncGroup."""

    def __init__(self) -> None:
        self.moved = {"request": 0, "response": 0}
        self._asked: dict[tuple[str, bytes], bool] = {}  # connection and correlation id: whether it counts

    def __call__(self, time_ms: int, connection: str, direction: str, frame: bytes, /) -> None:
        if direction == "request":
            counts = peek_request(frame).request_api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
            self._asked[connection, frame[4:8]] = counts
        elif direction == "response":
            counts = self._asked.pop((connection, frame[:4]))
        else:
            return
        self.moved[direction] += (4 + len(frame)) * counts


def _measure_released(members: int, topics: Mapping[str, int], changes: int) -> Traffic:
    tap, idle_ms = _Tap(), 0
    with Cluster(topics=topics, config=GroupConfig(initial_rebalance_delay_ms=_START_MS), tap=tap) as sim:
        for number in range(1, members + (1 if changes else 0)):
            sim.member(f"m{number}", assignors=["roundrobin"], commit_ms=None)
        sim.run_until(sim.is_settled)
        tap.moved = dict.fromkeys(tap.moved, 0)
        if changes:
            idle_ms = _change(sim, topics, changes)
        else:
            sim.member("last", assignors=["roundrobin"], commit_ms=None)
            sim.run_until(sim.is_settled)
    return Traffic(tap.moved["request"], tap.moved["response"], idle_ms)
