"""The event loop: time, order, tasks, functions of executors, the ends of runs that do not end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kcoord_wire.kernel.virtual.loop import DeadlockError, LimitError, NotSimulatedError, VirtualWorld
from kcoord_wire.kernel.virtual.loop.loop import BOOTED_S, STEP_S


def test_a_week_of_sleep_takes_no_time() -> None:
    world = VirtualWorld(max_seconds=8 * 86_400)

    async def main() -> float:
        await asyncio.sleep(7 * 86_400)
        return asyncio.get_running_loop().time()

    began = time.process_time()
    assert world.run(main()) == pytest.approx(BOOTED_S + 7 * 86_400, abs=0.001)
    assert time.process_time() - began < 60


def test_timers_of_one_time_run_in_the_order_they_were_set() -> None:
    order: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + 5
        for number in range(20):
            loop.call_at(at, order.append, number)
        loop.call_at(at - 1, order.append, -1)
        loop.call_at(at, order.append, 99).cancel()
        await asyncio.sleep(6)

    VirtualWorld().run(main())
    assert order == [-1, *range(20)]


def test_wait_for_times_out_in_virtual_time() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 30)
        return asyncio.get_running_loop().time() - began

    assert VirtualWorld().run(main()) == pytest.approx(30, abs=0.001)


def test_a_callback_takes_a_microsecond() -> None:
    """Else a loop that polls until its deadline has passed would never end."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        deadline, polls = loop.time() + 100 * STEP_S, 0
        while loop.time() <= deadline:
            await asyncio.sleep(0)
            polls += 1
        return polls

    assert 90 <= VirtualWorld().run(main()) <= 101


def test_sets_of_tasks_and_futures_keep_their_order() -> None:
    async def main() -> tuple[list[int], list[str]]:
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(asyncio.sleep(1)) for _ in range(100)]
        futures = [loop.create_future() for _ in range(100)]
        assert len({hash(each) for each in (*tasks, *futures)}) == 200
        return [hash(each) - hash(tasks[0]) for each in set(tasks)], [task.get_name() for task in tasks[:2]]

    first, second = VirtualWorld().run(main()), VirtualWorld().run(main())
    assert first == second
    assert sorted(first[0]) == list(range(100))


def test_functions_for_executors_run_in_the_loop() -> None:
    async def main() -> list[object]:
        found: list[object] = [await asyncio.to_thread(threading.get_ident)]
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        with pytest.raises(RuntimeError, match="no running event loop"):
            await asyncio.to_thread(asyncio.get_running_loop)
        return found

    assert VirtualWorld().run(main()) == [threading.get_ident()]


def test_a_function_that_sleeps_does_not_stop_the_process() -> None:
    async def main() -> list[str]:
        order: list[str] = []

        async def tick() -> None:
            for number in range(3):
                await asyncio.sleep(1)
                order.append(f"tick {number}")

        ticking = asyncio.create_task(tick())
        await asyncio.to_thread(time.sleep, 2.5)
        order.append("slept")
        await ticking
        return order

    assert VirtualWorld().run(main()) == ["tick 0", "tick 1", "slept", "tick 2"]


def test_a_deadlock_names_the_tasks_and_where_they_wait() -> None:
    async def forgotten() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(forgotten(), name="reader"), asyncio.sleep(3))

    with pytest.raises(DeadlockError) as caught:
        VirtualWorld().run(main())
    text = str(caught.value)
    assert "nothing is left to do at 3.000 s" in text
    assert "reader on main: " in text
    assert "forgotten waits at" in text
    assert "test_loop.py:" in text


def test_a_run_without_end_meets_the_limits() -> None:
    async def forever() -> None:
        while True:
            await asyncio.sleep(60)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(LimitError, match="more than 3600 virtual seconds"):
        VirtualWorld(max_seconds=3_600).run(forever())
    with pytest.raises(LimitError, match=r"more than 1000 steps at 0\.001 s"):
        VirtualWorld(max_steps=1_000).run(spin())


def test_what_is_not_simulated_says_so() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NotSimulatedError, match="add_reader is not simulated"):
            loop.add_reader(0, print)
        with pytest.raises(NotSimulatedError, match="add_signal_handler"):
            loop.add_signal_handler(15, print)
        with pytest.raises(NotSimulatedError, match="subprocess_exec"):
            await asyncio.create_subprocess_exec("true")
        with pytest.raises(NotSimulatedError, match="create_datagram_endpoint"):
            await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=("main", 1))

    VirtualWorld().run(main())


def test_another_thread_cannot_reach_the_loop() -> None:
    async def main() -> list[str]:
        loop, errors = asyncio.get_running_loop(), []

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except NotSimulatedError as error:
                errors.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return errors

    assert VirtualWorld().run(main()) == ["call_soon_threadsafe from another thread: threads have no virtual time"]
