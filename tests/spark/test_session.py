"""Ctrl-C while Spark starts."""

from __future__ import annotations

import signal
import threading
from unittest.mock import patch

import pytest
from pyspark import SparkContext

from kcoord_wire.spark.session import _java_started_whole


def interrupted(times: int, reached: list[int]) -> None:
    with _java_started_whole():
        for number in range(times):
            signal.raise_signal(signal.SIGINT)
            reached.append(number)


@pytest.mark.parametrize(
    ("gateway", "times", "expected"),
    [(None, 1, [0]), (None, 2, [0]), (object(), 2, [])],
    ids=["the first waits", "the second does not", "none waits once Java runs"],
)
def test_an_interrupt_waits_until_java_has_started(gateway: object, times: int, expected: list[int]) -> None:
    reached: list[int] = []
    with patch.object(SparkContext, "_gateway", gateway), pytest.raises(KeyboardInterrupt):
        interrupted(times, reached)
    assert reached == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_program_and_other_threads_are_left_alone() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    try:
        with _java_started_whole():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [signal.SIGINT]

    def elsewhere() -> None:
        with _java_started_whole():
            told.append(0)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert told == [signal.SIGINT, 0]
