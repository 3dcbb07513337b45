"""`kcoord capture`: frames as JSON, as a list, counted, and the story of the groups."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

import kcoord_wire as kw
from tests.support.central_script import CentralScript

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "data" / "captures"
COOPERATIVE = str(CAPTURES / "cooperative.pcap")


@pytest.mark.parametrize("name", ["aiokafka", "cooperative", "eager_range", "static_bounce"])
def test_capture_as_json_has_every_frame_once(kcoord, name: str) -> None:
    status, out, _ = kcoord("capture", str(CAPTURES / f"{name}.pcap"), "--format", "json")
    frames = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    wanted = (
        "time connection direction api_key api api_version correlation_id client_id size message error irregularity"
    )
    assert {tuple(frame) for frame in frames} == {tuple(wanted.split())}
    asked = Counter((f["connection"], f["correlation_id"]) for f in frames if f["direction"] == "request")
    answered = Counter((f["connection"], f["correlation_id"]) for f in frames if f["direction"] == "response")
    assert answered <= asked
    assert [f["error"] for f in frames if f["error"] is not None] == []
    for frame in frames:
        if frame["api"] == "SyncGroup":
            codec = getattr(kw.registry, frame["direction"])(14)
            message = kw.from_dict(codec.cls, frame["message"])
            assert kw.to_dict(message, frame["api_version"], json=True) == frame["message"]


@pytest.mark.parametrize(("api", "only"), [("71", 71), ("GetTelemetrySubscriptions", 71), ("heartbeatrequest", 12)])
def test_capture_filters_by_any_api_of_kafka(kcoord, api: str, only: int) -> None:
    status, out, _ = kcoord("capture", COOPERATIVE, "--api", api, "--format", "json")
    assert status == 0
    assert {json.loads(line)["api_key"] for line in out.splitlines()} == {only}


def test_capture_and_decode_read_pipes() -> None:
    python = f"{sys.executable} -m kcoord_wire"
    for command in (
        f"cat {COOPERATIVE} | {python} capture - --api 13 --format json | grep -c LeaveGroup",
        f"mkfifo $FIFO; printf 0000 > $FIFO & {python} decode $FIFO --api 16 --version 0 --request --lenient",
    ):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                ["sh", "-c", command],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"FIFO": f"{folder}/fifo"},
            )
        assert done.returncode == 0, done.stderr


def test_capture_shows_frames_of_the_draft(kcoord, tmp_path) -> None:
    script = CentralScript()
    consumer = script.consumer("c-1")
    script.register(consumer)
    script.rebalance({"c-1": [("orders", "1-0")]}, [consumer])
    file = tmp_path / "draft.pcap"
    file.write_bytes(script.capture().getvalue())
    status, out, err = kcoord("capture", str(file), "--api", "stopfetcher", "--format", "json")
    assert (status, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["direction"], each["message"]["ConsumerId"]) for each in found] == [
        ("request", "c-1"),
        ("response", "c-1"),
    ]
    assert "RegisterConsumer v0" in kcoord("capture", str(file))[1]


def test_capture_rejects_an_unknown_api(kcoord) -> None:
    status, _, err = kcoord("capture", COOPERATIVE, "--api", "OffsetCommitKey")
    assert status == 1
    assert err.startswith("kcoord: Kafka has no api 'OffsetCommitKey'; it has OffsetCommit")


def test_capture_filters_by_api_and_port(kcoord) -> None:
    _, out, _ = kcoord(
        "capture", COOPERATIVE, "--api", "JoinGroup", "--api", "14", "--port", "43495", "--format", "json"
    )
    assert {json.loads(line)["api"] for line in out.splitlines()} == {"JoinGroup", "SyncGroup"}
    status, out, err = kcoord("capture", COOPERATIVE, "--port", "1", "--format", "json")
    assert (status, out) == (1, "")
    assert err.startswith("kcoord: ")


def test_capture_as_a_table_opens_subscriptions(kcoord) -> None:
    status, out, _ = kcoord("capture", COOPERATIVE, "--api", "JoinGroup")
    assert status == 0
    assert 'protocols[0].metadata.topics=["orders", "payments"]' in out


def test_capture_summary_counts_what_json_lists(kcoord) -> None:
    _, listed, _ = kcoord("capture", COOPERATIVE, "--format", "json")
    count = Counter((f["api"], str(f["api_version"]), f["direction"]) for f in map(json.loads, listed.splitlines()))
    _, out, _ = kcoord("capture", COOPERATIVE, "--summary")
    lines = [line.split() for line in out.splitlines()[1:] if line]
    assert {(api, version, direction): int(frames) for api, version, direction, frames, *_ in lines} == count


def test_story_lists_joins_assignments_and_departures(kcoord) -> None:
    status, out, err = kcoord("capture", "--story", COOPERATIVE)
    events = [line.split(maxsplit=2)[1:] for line in out.splitlines() if line[:1].isdigit()]
    assert (status, err) == (0, "")
    assert out.startswith("group billing: 3 member ids in 24.2 s")
    for member in ("c1", "c2", "c3"):
        lines = [text for name, text in events if name == member]
        assert lines[0].startswith("joins")
        assert "host 127.0.0.1" in lines[0]
        assert re.search(r"is gone +left$", "\n".join(lines), re.MULTILINE)
    receives = [text for name, text in events if name == "c1" and text.startswith("receives")]
    assert receives[0].endswith("orders 0-3; payments 0-3")


def test_story_is_of_one_group_or_an_error(kcoord, tmp_path: Path) -> None:
    header = Path(COOPERATIVE).read_bytes()[:24]
    (tmp_path / "empty.pcap").write_bytes(header)
    status, out, err = kcoord("capture", "--story", str(tmp_path / "empty.pcap"))
    assert (status, out) == (1, "")
    assert "no consumer group is in this capture" in err
    assert kcoord("capture", "--story", "--api", "Metadata", COOPERATIVE)[0] == 2
