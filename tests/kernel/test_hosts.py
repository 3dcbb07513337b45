"""The clock and the log of hosts."""

from __future__ import annotations

import logging
import time

import pytest

from kcoord_wire.kernel.hosts import log_note, monotonic_ms
from kcoord_wire.kernel.machines import LogEvent


def test_the_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended_ns = 3_600 * 10**9
    clocks = {time.CLOCK_MONOTONIC: 5 * 10**9, time.CLOCK_BOOTTIME: 5 * 10**9 + suspended_ns}
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks[time.CLOCK_MONOTONIC])
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.__getitem__)
    assert monotonic_ms() == 3_605_000


def test_a_note_is_one_printable_line_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "a host"):
        log_note(
            logging.getLogger("a host"), LogEvent(logging.WARNING, "member failed", {"member": "a\nb", "epoch": 3})
        )
    [line] = caplog.records
    assert line.getMessage() == "member failed member=a\\nb epoch=3"
    assert (line.levelno, line.what, line.facts) == (logging.WARNING, "member failed", {"member": "a\nb", "epoch": 3})
