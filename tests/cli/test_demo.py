"""`kcoord demo`: two groups on the coordinator, recorded and explained. Its whole afternoon is `make run`."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from kcoord_wire.cli import demo

Kcoord = Callable[..., tuple[int, str, str]]
started: list[demo._Member] = []


def a_killed_member(address: str, stack: ExitStack, say: Callable[[str], None]) -> None:
    """A member of each library; the first is killed."""
    group = demo._Group(stack, demo._producer(address), address, "billing", "range")
    group.start("one", demo.LIBRDKAFKA)
    group.start("two", demo.KCOORD)
    group.stop("one", demo._Member.kill)


def interrupted(number: int, address: str, stack: ExitStack, say: Callable[[str], None]) -> None:
    group = demo._Group(stack, demo._producer(address), address, "billing", "range")
    group.start("one", demo.KCOORD)
    started[:] = group.members.values()
    signal.raise_signal(number)


def test_it_records_and_explains(kcoord: Kcoord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "_live", a_killed_member)
    status, out, err = kcoord("demo", "--out", str(tmp_path), "--format", "json")
    assert status == 0, err
    (group,) = json.loads(out)["groups"]
    assert group["group"]["group_id"] == "billing"
    assert "session timeout" in {rebalance["cause"] for rebalance in group["rebalances"]}
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_says_what_was_written(
    kcoord: Kcoord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, status: int
) -> None:
    monkeypatch.setattr(demo, "_live", partial(interrupted, number))
    found, out, err = kcoord("demo", "--out", str(tmp_path))
    recording = tmp_path / "recording"
    assert (found, out) == (status, "")
    assert err.splitlines()[-1] == f"kcoord: the recording so far is in {recording}: kcoord analyze {recording}"
    assert list(recording.glob("*.kcrec"))
    assert [member.status() is None for member in started] == [False]


def test_what_is_missing_is_named_first(kcoord: Kcoord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "lacking", lambda *_: ["pyarrow"])
    status, out, err = kcoord("demo", "--out", str(tmp_path / "out"))
    assert (status, out) == (1, "")
    assert err == "kcoord: kcoord demo needs pyarrow: pip install 'kcoord_wire[serve,analyze,kafka]'\n"
    assert not (tmp_path / "out").exists()
