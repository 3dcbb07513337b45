"""`kcoord marshal pause`, on a broker."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest

from kcoord_wire.cli.marshal_admin import parse_span, parse_time
from tests.support.fixtures import StartCoordinator
from tests.support.marshal_log import append_lines

Kcoord = Callable[..., tuple[int, str, str]]


def test_a_pause_and_its_end(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    address = coordinator(topics={"__marshal": 3, "orders": 1}).address
    append_lines(address, 3, int(time.time()), "0 ClaimingPartition i1/c1/billing/orders/0")
    code, out, err = kcoord("marshal", "pause", "billing", "--kafka", address, "--for", "5m")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"group billing is paused until [\d: -]+ UTC\n", out)
    code, out, _ = kcoord("marshal", "status", "--kafka", address, "--format", "json")
    status = json.loads(out)["document"]
    assert 0 < status["paused_until_ms"]["billing"] - status["now_ms"] <= 300_000
    assert "although the group is paused until" in status["partitions"][0]["why"]
    code, out, _ = kcoord("marshal", "pause", "billing", "--kafka", address, "--resume")
    assert (code, out) == (0, "group billing is not paused any more\n")
    _, out, _ = kcoord("marshal", "status", "--kafka", address, "--format", "json")
    assert json.loads(out)["document"]["paused_until_ms"] == {}


def test_json(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    address = coordinator(topics={"__marshal": 1}).address
    code, out, _ = kcoord("marshal", "pause", "billing", "--kafka", address, "--for", "90s", "--format", "json")
    assert code == 0
    assert 0 < json.loads(out)["paused_until_ms"] - time.time() * 1000 <= 90_000


def test_what_is_refused(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    address = coordinator(topics={"__marshal": 1}).address
    for argv, code, reason in (
        (["g/h", "--for", "5m"], 2, 'holds a "/"'),
        (["g", "--for", "8d"], 1, "within 7 days"),
        (["g", "--until", "2020-01-01"], 1, "ends in the future"),
        (["g", "--for", "5"], 2, "is not a span of time"),
        (["g", "--until", "soon"], 2, "is not a time"),
        (["g"], 2, "--for --until --resume"),
    ):
        found, out, err = kcoord("marshal", "pause", *argv, "--kafka", address)
        assert (found, out) == (code, "")
        assert reason in err


def test_times_are_read() -> None:
    assert [parse_span(text) for text in ("90s", "5m", "2h", "1d")] == [90, 300, 7_200, 86_400]
    assert parse_time("1970-01-01T00:00:02Z") == 2_000
    assert parse_time("1970-01-01T01:00:02+01:00") == 2_000
    assert parse_time("1970-01-02") == 86_400_000
    for text in ("", "m", "0s", "-1s", "1.5h"):
        with pytest.raises(ValueError, match="span"):
            parse_span(text)
