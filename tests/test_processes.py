"""What tests say of a program that they have started and that does not answer."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import Process

PROGRAM = "import sys, time; print('its log', file=sys.stderr, flush=True); print('up', flush=True); "


@pytest.mark.parametrize(("then", "why"), [("time.sleep(600)", "it says nothing for 0.5 s"), ("", "it has ended")])
def test_a_program_that_does_not_answer_fails_with_its_log(then: str, why: str) -> None:
    with Process([sys.executable, "-c", PROGRAM + then], ready="up") as process:
        with pytest.raises(AssertionError, match=f"{why}; the end of its log:\nits log"):
            process.line(0.5)
        assert process.process.wait(60) in (0, -9)


def test_a_program_that_says_something_else_is_killed() -> None:
    with pytest.raises(AssertionError, match="says 'up'; the end of its log"):
        Process([sys.executable, "-c", PROGRAM + "time.sleep(600)"], ready="down")


def test_a_program_that_has_ended_takes_no_line() -> None:
    """What it wrote last is in the error, and what it has not read stands in no one's way."""
    with Process([sys.executable, "-c", "raise SystemExit('it broke')"]) as process:
        process.process.wait()
        with pytest.raises(AssertionError, match=r"it has ended; the end of its log:\nit broke"):
            process.tell("a line")
