"""Scripted polls: a cluster as the Admin API would show it, from one moment to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.watch.groups import GroupView, Watched
from kcoord_wire.watch.polled_group import Change
from kcoord_wire.watch.seen import Missed, Place, Poll, SeenGroup, SeenMember, Unanswered

SECOND = 1_000_000_000
START = 1_795_262_400 * SECOND  # 2026-11-21 12:00:00 UTC


def places(*partitions: int, topic: str = "orders") -> frozenset[Place]:
    return frozenset((topic, partition) for partition in partitions)


def member(
    name: str, *partitions: int, life: str = "a", instance: str | None = None, target: Iterable[int] | None = None
) -> SeenMember:
    """A member of client ``c-2`` at 10.0.0.2, with these partitions of orders; another `life` has another member id."""
    host = f"10.0.0.{name.rpartition('-')[2]}"
    wanted = None if target is None else places(*target)
    return SeenMember(f"{name}-{life}", name, host, instance, places(*partitions), wanted)


def group(
    state: str, *members: SeenMember, name: str = "billing", protocol: str = "classic", assignor: str | None = "range"
) -> SeenGroup:
    return SeenGroup(name, state, protocol, assignor, "k1:9092", {each.member_id: each for each in members})


class Script:
    """A watch of groups whose polls are made up, two seconds apart."""

    def __init__(self, watched: Watched | None = None) -> None:
        self.watched = watched or Watched("k1:9092")
        self.now = START - 2 * SECOND

    def poll(
        self,
        *groups: SeenGroup,
        seconds: float = 2,
        unanswered: Mapping[str, Unanswered] | None = None,
        committed: Mapping[int, int] | None = None,
        ends: Mapping[int, int] | None = None,
        coordinator: str | None = None,
    ) -> list[Change]:
        """A poll that shows these groups.

        :param committed: offsets of orders, of each of the groups
        :param coordinator: of each of the groups
        """
        self.now += int(seconds * SECOND)
        seen = [each if coordinator is None else replace(each, coordinator=coordinator) for each in groups]
        offsets = None if committed is None else {("orders", n): offset for n, offset in committed.items()}
        return self.watched.update(
            Poll(
                self.now,
                {each.group_id: each for each in seen},
                unanswered or {},
                {} if offsets is None else {each.group_id: offsets for each in seen},
                {("orders", n): end for n, end in (ends or {}).items()},
            )
        )

    def miss(self, *, seconds: float = 2, text: str = "Connection refused") -> list[Change]:
        """A poll that no broker answers."""
        self.now += int(seconds * SECOND)
        return self.watched.miss(Missed(self.now, "k1:9092", text))

    def view(self, name: str = "billing") -> GroupView:
        (found,) = [view for view in self.watched.snapshot.groups if view.group_id == name]
        return found

    def history(self, name: str = "billing") -> GroupHistory:
        (found,) = [each for each in self.watched.histories() if each.group.group_id == name]
        return found
