"""Ctrl-C while Spark starts."""

from __future__ import annotations

import signal
import threading
from unittest.mock import patch

import pytest
from pyspark import SparkContext

from kcoord_wire.spark.sessions import _interrupt_after_start


def interrupted(times: int, reached: list[int]) -> None:
    with _interrupt_after_start():
        for number in range(times):
            signal.raise_signal(signal.SIGINT)
            reached.append(number)


@pytest.mark.parametrize(
    ("gateway", "times", "expected"),
    [(None, 1, [0]), (None, 2, [0]), (object(), 2, [])],
    ids=["the first is delayed", "the second is not", "none is once Java runs"],
)
def test_an_interrupt_is_delayed_until_java_runs(gateway: object, times: int, expected: list[int]) -> None:
    reached: list[int] = []
    with patch.object(SparkContext, "_gateway", gateway), pytest.raises(KeyboardInterrupt):
        interrupted(times, reached)
    assert reached == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_handlers_and_threads_are_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with _interrupt_after_start():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]

    def elsewhere() -> None:
        with _interrupt_after_start():
            seen.append(0)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.SIGINT, 0]
