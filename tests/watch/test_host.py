"""The loop: the first poll has to be answered, later ones may fail, and the views print what has changed."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from kcoord_wire.watch import host
from kcoord_wire.watch.groups import Watched
from kcoord_wire.watch.host import JsonView, LineView, ScreenView, Stopped, Watch, WatchError
from kcoord_wire.watch.seen import Missed, Poll
from tests.support.watching import SECOND, START, group, member

ONE = group("Stable", member("c-1", 0))
TWO = group("Stable", member("c-1", 0), member("c-2", 1))
REFUSED = Missed(START, "k1:9092", "Connection refused")


def poll(second: int, *groups: Any) -> Poll:
    return Poll(START + second * SECOND, {each.group_id: each for each in groups})


class Polls:
    """Answers as scripted; then it was stopped."""

    left_out = 0

    def __init__(self, script: Iterable[Poll | Missed]) -> None:
        self._script = iter(script)
        self.asked: list[float] = []
        self.is_stopped = False

    def poll(self) -> Poll | Missed:
        self.asked.append(time.monotonic())
        found = next(self._script, None)
        if found is None:
            raise Stopped
        return found

    def stop(self) -> None:
        self.is_stopped = True


def run(script: Iterable[Poll | Missed], view: Any, *, interval: float = 0.001, times: int | None = None) -> Polls:
    polls: Any = Polls(script)
    Watch(polls, Watched("k1:9092"), interval).run(view, times=times)
    found: Polls = polls
    return found


def test_lines() -> None:
    out = io.StringIO()
    run([poll(0, ONE), poll(2, ONE), poll(4, TWO)], LineView(out))
    assert out.getvalue().splitlines() == [
        "12:00:00 billing: Stable, 1 member: c-1 (10.0.0.1)",
        "12:00:04 billing: member c-2 (10.0.0.2) joined; rebalance #1 between two polls: new member (80%)",
    ]


def test_json_objects() -> None:
    lines: list[dict[str, object]] = []
    run([poll(0, ONE), poll(2, TWO)], JsonView(lines.append, io.StringIO()))
    assert [line["kind"] for line in lines] == ["group seen", "member joined", "rebalance ended"]
    assert json.loads(json.dumps(lines[1]))["client_id"] == "c-2"


def test_a_screen_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("LINES", "20")
    out = io.StringIO()
    run([poll(0, ONE), poll(2, TWO)], ScreenView(out, None))
    first, second = out.getvalue().split("\x1b[H")[1:]
    assert "c-2" not in first
    assert "member c-2 (10.0.0.2) joined" in second
    assert all(part.endswith("\x1b[J") and part.count("\n") < 20 for part in (first, second))


def test_the_first_poll_has_to_be_answered() -> None:
    with pytest.raises(WatchError, match="no broker answers at k1:9092: Connection refused; check address"):
        run([REFUSED], LineView(io.StringIO()))


def test_later_polls_are_tried_again_with_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_LONGEST_S", 0.4)
    out = io.StringIO()
    polls = run([poll(0, ONE), REFUSED, REFUSED, REFUSED, REFUSED, poll(9, ONE)], LineView(out), interval=0.05)
    waits = [later - earlier for earlier, later in pairwise(polls.asked)]
    assert all(wait >= least for wait, least in zip(waits, (0.05, 0.1, 0.2, 0.4, 0.4, 0.05), strict=True))
    assert [line.partition(" ")[2] for line in out.getvalue().splitlines()[1:]] == [
        "k1:9092 does not answer: Connection refused",
        "k1:9092 answers again",
        "billing: described again",
    ]


def test_it_ends_after_so_many_polls() -> None:
    assert len(run([poll(0, ONE)] * 9, LineView(io.StringIO()), times=2).asked) == 2


def test_stop_ends_the_loop() -> None:
    polls: Any = Polls([poll(0, ONE)] * 9)
    watch = Watch(polls, Watched("k1:9092"), 3600)

    class Stopping:
        def show(self, *_: object) -> None:
            watch.stop()

    watch.run(Stopping())
    assert (len(polls.asked), polls.is_stopped) == (1, True)
