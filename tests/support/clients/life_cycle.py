"""What a group lives through, written once for all client libraries.

Each script starts from a topic without records and a group that is not there. It fails if any of its members logs a
warning or an error that its client may not log (members.py), and it gives the figures that it measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

from kcoord_wire.coordinator import Coordinator, GroupConfig
from tests.support.clients.heard import PATIENCE
from tests.support.clients.members import Client, Member, Record

HEARTBEAT_MS = 500
CONFIG = GroupConfig(min_session_timeout_ms=1000, initial_rebalance_delay_ms=200)
"""Of a coordinator that is in a hurry."""

Figures = dict[str, float]
"""What a script measured, by name, in seconds."""


def at_once(scripts: Mapping[str, Callable[[], Figures]]) -> dict[str, Figures]:
    """Play scripts side by side, for they mostly wait; the figures of each.

    :raises ExceptionGroup: some have failed; each error says in a note which one it was
    """
    failed: list[Exception] = []
    figures = {}
    with ThreadPoolExecutor(len(scripts)) as threads:
        playing = {name: threads.submit(script) for name, script in scripts.items()}
        for name, future in playing.items():
            try:
                figures[name] = future.result()
            except Exception as error:
                error.add_note(f"in the script {name}")
                failed.append(error)
    if failed:
        raise ExceptionGroup("scripts have failed", failed)
    return figures


@dataclass(frozen=True)
class Place:
    """Where a script plays.

    :ivar topic: with this many `partitions` and no record
    :ivar session_timeout_ms: no machine stands still for so long, or members would be put out without a fault
    :ivar margin: seconds that a takeover may last beyond the session timeout: the other member learns of the rebalance
        by its next heartbeat, joins again, and its program reports it; most of it is for a busy machine
    """

    bootstrap: str
    topic: str
    group: str
    partitions: int = 6
    session_timeout_ms: int = 10_000
    margin: float = 30.0

    @classmethod
    def on(cls, coordinator: Coordinator, name: str) -> Self:
        """A place of our own coordinator, with its own topic and group."""
        place = cls(coordinator.address, topic=f"orders-{name}", group=f"billing-{name}")
        coordinator.create_topic(place.topic, place.partitions)
        return place

    @property
    def all(self) -> range:
        return range(self.partitions)

    @contextmanager
    def member(self, client: Client, name: str, assignor: str, *, static: bool = False) -> Iterator[Member]:
        """A program of that client, which has not joined yet. At the end it is killed, and has to have been content."""
        with Member(
            client,
            bootstrap=self.bootstrap,
            topic=self.topic,
            group=self.group,
            client_id=name,
            assignor=assignor,
            instance_id=name if static else None,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=max(20_000, self.session_timeout_ms),
            options=dict(client.options),
        ) as member:
            yield member
        member.expect_no_more()

    def produce(self, member: Member, text: str, each: int) -> list[Record]:
        """Have a member produce this many records into each partition."""
        return member.produce([(p, f"{text} {p}.{n}") for p in self.all for n in range(each)])

    def kill(self, killed: Member, heir: Member) -> float:
        """Kill a member and wait until the other one owns everything; the seconds from the one to the other."""
        killed.kill()
        lasted = self.share_out([heir], self.session_timeout_ms / 1000 + self.margin)
        assert lasted > 2 * HEARTBEAT_MS / 1000, "a closed connection is not the end of a session"
        return lasted

    def share_out(self, members: Sequence[Member], seconds: float = PATIENCE) -> float:
        """Wait until the members own each partition once, all of them equally many, and this has settled.

        :returns: the seconds that it took, without the settling
        """
        share = self.partitions // len(members)
        settles = max(member.client.settles for member in members)
        began = time.monotonic()
        while True:
            owned = [list(member.now_owned) for member in members]
            changed = max(member.changed for member in members)  # read after what it dates
            now = time.monotonic()
            if sorted(chain(*owned)) != list(self.all) or any(len(some) != share for some in owned):
                assert now < began + seconds, f"{[(m.name, m.client.name, m.owned, m.complaints) for m in members]}"
            elif now >= changed + settles:
                return round(max(changed - began, 0.0), 3)
            time.sleep(0.01)


def expect_shares(members: Sequence[Member], records: Sequence[Record]) -> None:
    """Wait until each member has seen those of the records that are in its partitions, and no other."""
    for member in members:
        member.expect_records(of(member.now_owned, records))


def of(partitions: Sequence[int], records: Sequence[Record]) -> list[Record]:
    """The records of these partitions."""
    return [record for record in records if record[0] in partitions]


def kept(member: Member, since: int) -> None:
    """Since that many tellings the member has never let go a partition that it has now."""
    for owned in member.owned[since:]:
        assert set(owned) >= set(member.owned[since - 1]) & set(member.now_owned), f"{member.owned[since - 1 :]}"


def life_cycle(place: Place, client: Client, assignor: str) -> Figures:
    """Join, poll, commit; a second member comes and leaves; the first is killed; another starts where it stood.

    :returns: ``left``: seconds until a member that left was replaced; ``killed``: the same of one that was killed
    """
    figures: Figures = {}
    cooperative = "cooperative" in assignor
    with (
        place.member(client, "first", assignor) as first,
        place.member(client, "second", assignor) as second,
        place.member(client, "third", assignor) as third,
        place.member(client, "fourth", assignor) as fourth,
    ):
        first.join()
        place.share_out([first])
        first.expect_records(place.produce(first, "one", 5))
        assert first.commit() == dict.fromkeys(place.all, 5)

        before = len(first.owned)
        second.join()
        place.share_out([first, second])
        expect_shares([first, second], place.produce(second, "two", 3))
        assert first.commit() | second.commit() == dict.fromkeys(place.all, 8)
        second.leave()
        figures["left"] = place.share_out([first])
        first.expect_records(place.produce(first, "three", 2))
        first.commit()

        third.join()
        place.share_out([first, third])
        if cooperative:
            kept(first, before)
        records = place.produce(third, "four", 4)
        expect_shares([first, third], records)
        third.commit()
        uncommitted = of(first.now_owned, records)
        before = len(third.owned)
        figures["killed"] = place.kill(first, third)
        if cooperative:
            kept(third, before)
        third.expect_records(uncommitted)
        third.commit()

        records = place.produce(third, "five", 2)
        third.expect_records(records)
        third.leave()
        fourth.join()
        place.share_out([fourth])
        fourth.expect_records(records)
        assert fourth.commit() == dict.fromkeys(place.all, 16)
        fourth.leave()
    return figures


def mixed(place: Place, clients: Sequence[Client], assignor: str) -> Figures:
    """Three members of different libraries; the second leaves, the first is killed and comes again.

    The first to join leads the group, so its library computes the assignment for the others at first.

    :returns: as `life_cycle`
    """
    with (
        place.member(clients[0], "first", assignor) as first,
        place.member(clients[1], "second", assignor) as second,
        place.member(clients[2], "third", assignor) as third,
        place.member(clients[0], "again", assignor) as again,
    ):
        for number, member in enumerate([first, second, third], 1):
            member.join()
            place.share_out([first, second, third][:number])
        records = [record for member in (first, second, third) for record in place.produce(member, member.name, 2)]
        expect_shares([first, second, third], records)
        assert first.commit() | second.commit() | third.commit() == dict.fromkeys(place.all, 6)
        second.leave()
        figures = {"left": place.share_out([first, third])}
        records = place.produce(third, "two", 2)
        expect_shares([first, third], records)
        third.commit()
        uncommitted = of(first.now_owned, records)
        figures["killed"] = place.kill(first, third)
        third.expect_records(uncommitted)
        third.commit()
        records = place.produce(third, "three", 3)
        third.expect_records(records)
        third.leave()
        again.join()
        place.share_out([again])
        again.expect_records(records)
        assert again.commit() == dict.fromkeys(place.all, 11)
        again.leave()
    return figures


def static(place: Place, client: Client, assignor: str, *, leads: bool) -> Figures:
    """Static members: one is closed and comes again, is killed and comes again, and at last is killed for good.

    While it comes again within its session timeout the other member sees no rebalance. How long it takes to come again
    depends on the machine's load, so the session timeout follows from how long a first member takes to join.

    :param leads: whether that member is the one that leads the group
    :returns: ``killed``: seconds until it was replaced at last
    """
    with place.member(client, "first", assignor) as first:
        began = time.monotonic()
        first.join()
        place.share_out([first])
        needed = time.monotonic() - began
        first.leave()
    place = replace(place, session_timeout_ms=max(place.session_timeout_ms, int(4000 * needed)))
    with ExitStack() as stack:
        other = stack.enter_context(place.member(client, "other", assignor, static=True))
        one, again, last = (
            stack.enter_context(place.member(client, "restarted", assignor, static=True)) for _ in range(3)
        )
        joining = [one, other] if leads else [other, one]
        for number, member in enumerate(joining, 1):
            member.join()
            place.share_out(joining[:number])
        mine, before = one.now_owned, list(other.owned)
        expect_shares([one, other], place.produce(other, "one", 2))
        one.commit()
        other.commit()

        one.leave()
        again.join()
        place.share_out([again, other])
        assert again.now_owned == mine
        records = place.produce(other, "two", 2)
        expect_shares([again, other], records)
        other.commit()

        again.kill()
        last.join()
        place.share_out([last, other])
        assert last.now_owned == mine
        last.expect_records(of(mine, records))
        last.commit()
        records = place.produce(other, "three", 2)
        expect_shares([last, other], records)
        other.commit()
        assert other.owned == before, "a restart within the session timeout has caused a rebalance"

        figures = {"killed": place.kill(last, other)}
        other.expect_records(of(mine, records))
        other.commit()
    return figures
