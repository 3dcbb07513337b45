"""A stage for situations: one consumer group on a real broker, played by programs of client libraries.

Law: a step has to show at the broker before the next one is taken: so what happened is known without the analysis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import kcoord_wire as kw
from tests.support.clients.heard import PATIENCE
from tests.support.clients.members import Client, Member
from tests.support.waiting import eventually
from tests.support.wire import Wire

PARTITIONS = 4
HEARTBEAT_MS = 500
LONG_MS = 120_000
"""More than a situation takes on a machine that is busy with other things."""


@dataclass
class Stage:
    """Where a situation is played: its own group and topic.

    :ivar broker: that is asked about the group
    :ivar bootstrap: where the members connect
    :ivar kept: what lives as long as the members, and is no `Member`
    """

    name: str
    broker: str
    bootstrap: str
    clients: Mapping[str, Client]
    members: list[Member] = field(default_factory=list)
    kept: ExitStack = field(default_factory=ExitStack)

    @property
    def topic(self) -> str:
        return f"orders-{self.name}"

    @property
    def more(self) -> str:
        return f"bills-{self.name}"

    @contextmanager
    def played(self) -> Iterator[None]:
        """At the end all programs that are left are killed."""
        try:
            yield
        finally:
            for member in self.members:
                with suppress(ValueError, OSError):
                    member.kill()
            self.kept.close()

    def host(self, name: str) -> AbstractContextManager[None]:
        """Where a client with this name is started; here all share one host."""
        return nullcontext()

    def joins(self, library: str, name: str, assignor: str = "range", **options: Any) -> Member:
        """A program that joins the group."""
        member = self.program(library, name, assignor, **options)
        member.join()
        return member

    def program(
        self,
        library: str,
        name: str,
        assignor: str = "range",
        *,
        session_ms: int = 10_000,
        poll_ms: int = LONG_MS,
        static: bool = False,
        instance: str | None = None,
        topic: str | None = None,
        beats_ms: int = HEARTBEAT_MS,
        **options: Any,
    ) -> Member:
        """A program that is ready to join; options with ``_`` for ``.``, except in Python's libraries.

        :param static: whether it has a group.instance.id, which is its name unless `instance` says otherwise
        :param beats_ms: heartbeat.interval.ms
        """
        dotted = library in ("java", "confluent")
        if dotted:
            options.setdefault("reconnect_backoff_max_ms", 200)  # else some are not back while their session lasts
        with self.host(name):
            member = Member(
                self.clients[library],
                bootstrap=self.bootstrap,
                topic=topic or self.topic,
                group=self.name,
                client_id=name,
                assignor=assignor,
                instance_id=(instance or name) if static else None,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=beats_ms,
                rebalance_timeout_ms=poll_ms,
                options={key.replace("_", ".") if dotted else key: value for key, value in options.items()},
            )
        self.members.append(member)
        return member

    def settles(self, **shares: int) -> None:
        """Wait until the broker has the group stable with these clients, each with so many partitions, for good."""

        def found() -> str:
            members = [(member.name, member.owned[-3:], member.complaints[-3:]) for member in self.members]
            return f"{self.name}: that is what the broker has, not {shares}; {members}"

        wanted = ("Stable" if shares else "Empty", shares)
        eventually(
            self.described, found, until=lambda seen: seen == wanted and self.is_calm(), seconds=PATIENCE, every=0.05
        )

    def is_calm(self) -> bool:
        """Whether no member may be about to join once more unasked, as some libraries do."""
        return all(time.monotonic() > member.changed + 2 * member.client.settles for member in self.members)

    def described(self) -> tuple[str, dict[str, int]]:
        with Wire(self.broker) as wire:
            group = wire.call(kw.DescribeGroupsRequest(groups=[self.name]), 0).groups[0]
        return group.group_state, {member.client_id: _count(member.member_assignment) for member in group.members}

    def waits(self, condition: Callable[[], bool], what: str) -> None:
        eventually(condition, lambda: f"{self.name}: {what}; {self.described()}", seconds=PATIENCE, every=0.02)

    def again(self, member: Member, act: Callable[[], Any]) -> None:
        """Do something after which the member is assigned its partitions anew, and wait for that."""
        before = len(member.owned)
        act()
        self.waits(lambda: len(member.owned) >= before + 2 and bool(member.now_owned), "it is not assigned anew")

    def has(self, *names: str) -> bool:
        """Whether the broker has the group stable, with just these clients."""
        state, shares = self.described()
        return state == "Stable" and sorted(shares) == sorted(names)

    def part(self, *leaving: Member) -> None:
        """All leave, one after the other."""
        for number, member in enumerate(leaving, 1):
            member.leave()
            names = [other.name for other in leaving[number:]]
            if names:
                self.waits(lambda names=names: self.has(*names), f"{names} are not alone")
            else:
                self.settles()


def _count(assignment: bytes) -> int:
    if not assignment:
        return 0
    _, decoded = kw.decode_prefixed(kw.ConsumerProtocolAssignment, assignment)
    return sum(len(topic.partitions) for topic in decoded.assigned_partitions)
