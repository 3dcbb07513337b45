"""The scale benchmark runs, small, on our coordinator, and its report says what was measured. No time is asserted."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from ..runner import RunBench
from .beats import run_beats
from .report import TIMES_THE_BASELINE, Report, markdown, summary
from .servers import SERVERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the load is driven by epoll and measured by /proc"),
]


def test_fifty_members(bench: RunBench) -> None:
    options = ["--servers", "ours", "--members", "50", "--groups", "5", "--size", "4", "--baseline", "20"]
    made, text = bench("scale", *options, "--rounds", "1", "--seconds", "0.2")
    ours = made["servers"]["ours"]
    for kind in ("baseline", "large", "small"):
        assert ours[kind]["form"] > 0
        for of in (ours[kind], ours[kind]["cpu"], ours[kind]["load"]):
            assert [len(of[key]) for key in ("rejoin", "leave_one", "join_one")] == [1, 1, 1]
        assert ours[kind]["load"]["form"][0] > 0
    for kind in ("large", "small"):
        assert ours[kind]["beats"]["beats"] >= {"large": 50, "small": 20}[kind]
        assert ours[kind]["paced"]["beats"] == {"large": 50, "small": 20}[kind]
    assert made["floor"]["beats"]["beats"] >= 50
    assert "The floor: " in text
    assert "| 50 members in one group: form |" in text
    assert "| 20 members in one group: rejoin |" in text
    assert "under 20 KB a member" in text


@pytest.mark.parametrize(("mine", "theirs", "met"), [(0.2, 0.3, "yes"), (0.4, 0.3, "no")])
def test_the_report_compares_with_the_others(mine: float, theirs: float, met: str) -> None:
    beats = {"beats": 9, "skipped": 0, "seconds": 1.0, "p50": 0.001, "p99": 0.02}

    def server(title: str, seconds: float, rate: float) -> dict[str, object]:
        times = [seconds, seconds / 2, seconds * 2]
        kind: dict[str, object] = {"form": seconds, "rejoin": times, "leave_one": times, "join_one": times}
        kind |= {"cpu": {"rejoin": [7e-5, 8e-5, 1.0]}, "load": {"form": [5e-5], "rejoin": [4e-5]}}
        kind |= {
            "beats": beats | {"rate": rate, "per_cpu": rate},
            "paced": beats | {"rate": 1.0, "per_cpu": 1.0, "skipped": 3},
        }
        memory = {"before": 1, "rss": 4400.0, "pss": 4300.0}
        return {
            "title": title,
            "version": "1",
            "timers": title == "Mock",
            "memory": memory,
            "baseline": kind,
            "large": kind,
            "small": kind,
        }

    made = {
        "date": "2026-01-02",
        "machine": {"processor": "P", "cores": 2, "system": "S"},
        "load": 0.1,
        "pinned": True,
        "plan": {"members": 5000, "groups": 1000, "size": 10, "baseline": 2000},
        "wanted": {"members": 6000, "groups": 1000},
        "floor": {"beats": {"per_cpu": 1.3 * 9e4 if met == "yes" else 1.31 * 9e4}},
        "servers": {
            "ours": server("Ours", mine, 9e4),
            "kafka": server("Kafka", theirs, 1),
            "mock": server("Mock", 1, 8e4),
        },
    }
    text = markdown(made)
    assert f"| 5,000 members Stable once all have joined in at most Kafka's time | {met} | " in text
    assert (
        "| more heartbeats than the mock cluster, 5,000 members | yes | 90,000/s against 80,000/s (2,000 members) |"
        in text
    )
    assert f"{TIMES_THE_BASELINE} times Kafka's time for 2,000 | yes | " in text
    assert "descriptors are too few for 6,000 members" in text
    assert "(timers)" in text
    assert "3 not sent" in text
    assert ("Missed: 5,000 members Stable" in summary(made)) is (met == "no")
    assert [met for _, met, _ in Report(made).targets()].count(False) == (5 if met == "no" else 0)
    assert f"at most 1.3 times the floor's processor time, 5,000 members | {met} | " in text
    assert ", 80 µs a member |" in text
    assert "The load itself, a member of one group, form / rejoin: 50 / 40 µs of processor time." in summary(made)
    old = {key: value for key, value in made.items() if key != "floor"}
    assert "floor" not in summary(old)


def test_a_server_that_goes_away_is_an_error(tmp_path: Path) -> None:
    with SERVERS["ours"].start(tmp_path) as running:
        host, _, port = running.address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            nonsense = b"\0\0\0\4\x7f\xff\0\0"
            with pytest.raises(OSError, match="after 0 heartbeats"):
                run_beats([connection.fileno()], [nonsense], 14, 1.0)
