"""Who goes on after an event, and when: connections, the log and deadlines, on a real event loop."""

from __future__ import annotations

import asyncio

import pytest

from kcoord_wire.coordinator.scheduler import Scheduler, steady_clock


class Machines:
    """Machines with one deadline, and a log that counts commits."""

    def __init__(self) -> None:
        self.deadline: int | None = None
        self.ticks = self.commits = 0
        self.ticked = asyncio.Event()

    def tick(self) -> None:
        self.ticks += 1
        self.deadline = None
        self.ticked.set()

    def commit(self) -> bool:
        self.commits += 1
        return False


def started(machines: Machines) -> Scheduler:
    scheduler = Scheduler(in_memory=True)
    scheduler.host = machines
    return scheduler


class Connection:
    def __init__(self, happened: list[str], name: str) -> None:
        self.happened = happened
        self.name = name

    def pump(self) -> None:
        self.happened.append(self.name)


def test_events_of_one_iteration_are_settled_once() -> None:
    async def main() -> int:
        machines = Machines()
        scheduler = started(machines)
        for _ in range(5):
            scheduler.settle_soon()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return machines.commits

    assert asyncio.run(main()) == 1


def test_answered_connections_go_on_before_the_write() -> None:
    async def main() -> list[str]:
        machines = Machines()
        happened: list[str] = []
        scheduler = started(machines)
        scheduler.ready += [Connection(happened, "a"), Connection(happened, "b")]
        machines.commit = lambda: bool(happened.append("commit"))  # type: ignore[method-assign]
        scheduler.settle()
        return happened

    assert asyncio.run(main()) == ["a", "b", "commit"]


def test_watchers_look_when_all_is_settled() -> None:
    async def main() -> list[str]:
        machines = Machines()
        happened: list[str] = []
        scheduler = started(machines)
        machines.commit = lambda: bool(happened.append("commit"))  # type: ignore[method-assign]

        def look() -> None:
            happened.append("look")
            scheduler.watchers.discard(look)

        scheduler.watchers.add(look)
        scheduler.settle()
        scheduler.settle()
        return happened

    assert asyncio.run(main()) == ["commit", "look", "commit"]


def test_connections_answered_by_a_write_go_on_at_once() -> None:
    async def main() -> list[str]:
        machines = Machines()
        happened: list[str] = []
        scheduler = started(machines)
        answers = [Connection(happened, "a")]
        machines.commit = lambda: scheduler.ready.extend(answers[len(happened) :])  # type: ignore[method-assign]
        scheduler.settle()
        return happened

    assert asyncio.run(main()) == ["a"]


def test_a_busy_connection_waits_for_others() -> None:
    async def main() -> list[str]:
        machines = Machines()
        happened: list[str] = []
        scheduler = started(machines)
        scheduler.wait_for_others(Connection(happened, "busy"))
        happened.append("other")
        await asyncio.sleep(0)
        return happened

    assert asyncio.run(main()) == ["other", "busy"]


def test_the_earliest_deadline_decides() -> None:
    async def main() -> int:
        machines = Machines()
        scheduler = started(machines)
        machines.deadline = scheduler.now() + 3_600_000
        scheduler.settle()
        machines.deadline = scheduler.now() + 1
        scheduler.settle()
        await asyncio.wait_for(machines.ticked.wait(), 30)
        scheduler.close()
        return machines.ticks

    assert asyncio.run(main()) == 1


def test_the_clock_never_goes_back() -> None:
    clock = steady_clock()
    times = [clock() for _ in range(1_000)]
    assert times == sorted(times)


def test_the_log_says_whose_log_has_failed_and_why(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        scheduler = Scheduler(in_memory=True)
        scheduler.note("cannot show", "__consumer_offsets", OSError("no 100% of it"))
        scheduler.note("serves again", "groups")
        scheduler.note("compacts", "groups")
        scheduler.close()

    asyncio.run(scenario())
    assert caplog.messages == [
        "the log cannot be read for readers of __consumer_offsets: no 100% of it",
        "the log has been read again; groups are served",
    ]
