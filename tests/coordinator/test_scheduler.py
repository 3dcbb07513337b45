"""Who goes on after an event, and when: connections, the log and deadlines, on a real event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kcoord_wire.coordinator.scheduler import Scheduler, steady_clock


class Machines:
    """Machines with one deadline, and a log; what is asked of them goes into `happened`."""

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened
        self.deadline: int | None = None
        self.ticked = asyncio.Event()
        self.commit: Callable[[], Any] = lambda: happened.append("commit")

    def tick(self) -> None:
        self.happened.append("tick")
        self.deadline = None
        self.ticked.set()


class Connection:
    def __init__(self, happened: list[str], name: str) -> None:
        self.pump = lambda: happened.append(name)


Scenario = Callable[[Scheduler, Machines, list[str]], Awaitable[None]]


def happens(scenario: Scenario) -> list[str]:
    """Play a scenario with a scheduler, and return what has happened."""

    async def run() -> list[str]:
        happened: list[str] = []
        scheduler = Scheduler(in_memory=True)
        scheduler.host = machines = Machines(happened)
        await scenario(scheduler, machines, happened)
        scheduler.close()
        return happened

    return asyncio.run(run())


async def events_of_one_iteration(scheduler: Scheduler, machines: Machines, happened: list[str]) -> None:
    for _ in range(5):
        scheduler.settle_soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def answered_connections(scheduler: Scheduler, machines: Machines, happened: list[str]) -> None:
    scheduler.ready += [Connection(happened, "a"), Connection(happened, "b")]
    scheduler.settle()


async def watchers(scheduler: Scheduler, machines: Machines, happened: list[str]) -> None:
    def look() -> None:
        happened.append("look")
        scheduler.watchers.discard(look)

    scheduler.watchers.add(look)
    scheduler.settle()
    scheduler.settle()


async def answers_of_a_write(scheduler: Scheduler, machines: Machines, happened: list[str]) -> None:
    answers = [Connection(happened, "a")]
    machines.commit = lambda: scheduler.ready.extend(answers[len(happened) :])
    scheduler.settle()


async def a_busy_connection(scheduler: Scheduler, machines: Machines, happened: list[str]) -> None:
    scheduler.wait_for_others(Connection(happened, "busy"))
    happened.append("other")
    await asyncio.sleep(0)


async def deadlines(scheduler: Scheduler, machines: Machines, happened: list[str]) -> None:
    machines.commit = lambda: False
    for ms in (3_600_000, 1):
        machines.deadline = scheduler.now() + ms
        scheduler.settle()
    await asyncio.wait_for(machines.ticked.wait(), 30)


@pytest.mark.parametrize(
    ("scenario", "happened"),
    [
        (events_of_one_iteration, ["commit"]),
        (answered_connections, ["a", "b", "commit"]),
        (watchers, ["commit", "look", "commit"]),
        (answers_of_a_write, ["a"]),
        (a_busy_connection, ["other", "busy", "commit"]),
        (deadlines, ["tick"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_who_goes_on_when(scenario: Scenario, happened: list[str]) -> None:
    assert happens(scenario) == happened


def test_the_clock_never_goes_back() -> None:
    clock = steady_clock()
    times = [clock() for _ in range(1_000)]
    assert times == sorted(times)


def test_the_log_says_whose_log_has_failed_and_why(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scheduler: Scheduler, machines: Machines, happened: list[str]) -> None:
        scheduler.note("cannot show", "__consumer_offsets", OSError("no 100% of it"))
        scheduler.note("serves again", "groups")
        scheduler.note("compacts", "groups")

    happens(scenario)
    assert caplog.messages == [
        "the log cannot be read for readers of __consumer_offsets: no 100% of it",
        "the log has been read again; groups are served",
    ]


@pytest.mark.parametrize(("error", "is_logged"), [(OSError("full"), False), (KeyError("a fault"), True)])
def test_a_fault_in_work_for_the_disk_is_logged(
    error: Exception, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(scheduler: Scheduler, machines: Machines, happened: list[str]) -> None:
        def work() -> None:
            raise error

        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        scheduler.run("read", work, lambda _: None, failed.set_result)
        scheduler.note("cannot read", "groups", await asyncio.wait_for(failed, 30))

    happens(scenario)
    shown = "KeyError('a fault')" if is_logged else "full"
    assert caplog.messages == [f"the log cannot be read: {shown}; groups are still refused"]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error] * is_logged
