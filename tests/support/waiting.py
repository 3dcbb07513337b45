"""Waits for what other threads, processes or tasks bring about: bounded, and a failure says what was there instead.

Laws:

* A test waits for a condition, never for time to pass: the bound is far more than anything takes on a busy machine.
* A wait that fails gives the last answer, and what its caller says besides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from kcoord_wire.coordinator import Coordinator

PATIENCE: Final = 60.0  # seconds

T = TypeVar("T")


def eventually(
    ask: Callable[[], T],
    otherwise: Callable[[], object] | str = "",
    *,
    until: Callable[[T], object] = bool,
    seconds: float = PATIENCE,
    every: float = 0.01,
) -> T:
    """Ask again and again until the answer is right, and return it.

    :param otherwise: what a failure says besides the last answer, or a function that returns it
    :param until: whether an answer is right; by default one that is true
    :param seconds: within which the right answer has to come
    :param every: seconds between two questions
    :raises AssertionError: it has not come in time
    """
    end = time.monotonic() + seconds
    while not until(answer := ask()):
        assert time.monotonic() < end, _verdict(seconds, answer, otherwise)
        time.sleep(every)
    return answer


async def eventually_async(
    ask: Callable[[], T],
    otherwise: Callable[[], object] | str = "",
    *,
    seconds: float = PATIENCE,
    every: float = 0.01,
) -> T:
    """As `eventually`, in a task of an event loop, by its clock: the condition is asked on the loop."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while not (answer := ask()):
        assert clock() < end, _verdict(seconds, answer, otherwise)
        await asyncio.sleep(every)
    return answer


def _verdict(seconds: float, answer: Any, otherwise: Callable[[], object] | str) -> str:
    said = otherwise if isinstance(otherwise, str) else otherwise()
    return f"not within {seconds:g} s; the last answer is {answer!r}; {said}"


def consumed(consumer: Consumer, count: int, *, seconds: float = PATIENCE) -> list[Message]:
    """Poll a consumer of librdkafka until so many records have come; an error fails the test."""
    messages: list[Message] = []

    def come() -> int:
        for message in consumer.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
        return len(messages)

    eventually(come, f"of {count} records", until=lambda number: number >= count, seconds=seconds)
    return messages


def in_background(c: Coordinator, wait: Callable[[], T]) -> Future[T]:
    """Call a wait in another thread, and return when it has begun."""
    before = len(c._waits)
    pool = ThreadPoolExecutor(1)
    waiting = pool.submit(wait)
    pool.shutdown(wait=False)
    eventually(lambda: waiting.done() or len(c._waits) > before)
    return waiting
