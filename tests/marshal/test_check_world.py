"""The command that compares our world state with a recording: what it accepts, and what it must report as wrong."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.marshal.check_world import main

RECORDING = Path(__file__).parent.parent / "data" / "golden" / "marshal" / "replay_divergence.jsonl"


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDING.read_text().splitlines()]


def written(path: Path, steps: Iterable[Any]) -> str:
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    return str(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("InstanceID", "other"),
        ("ClientID", "other"),
        ("LastHeartbeat", 999),
        ("LastRelease", 1),
        ("CurrentOffset", 6),
        ("Claimed", False),
        ("Group", "other"),
        ("Topic", "other"),
        ("Part", 1),
    ],
)
def test_a_changed_state_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: object) -> None:
    steps = recorded()
    steps[0]["state"][0][name] = value
    assert main([written(tmp_path / "changed.jsonl", steps)]) == 1
    assert capsys.readouterr().out == f"{len(steps) - 1} steps right, 1 wrong\n"


@pytest.mark.parametrize(
    "change", [{"decoded": False}, {"reencoded": "Heartbeat/1/1000/i1/A/g/t/0/6"}, {"state": []}, {"state": None}]
)
def test_a_changed_step_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]) -> None:
    steps = recorded()
    steps[0] |= change
    assert main([written(tmp_path / "changed.jsonl", steps)]) == 1
    assert capsys.readouterr().out == f"{len(steps) - 1} steps right, 1 wrong\n"


@pytest.mark.parametrize("name", ["world.jsonl", "world.jsonl.gz"])
@pytest.mark.parametrize("is_gzipped", [False, True])
def test_the_content_says_whether_it_is_gzipped(tmp_path: Path, name: str, is_gzipped: bool) -> None:
    content = RECORDING.read_bytes().replace(b"\n", b"\n\n")  # empty lines are no steps
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if is_gzipped else content)
    assert main([str(path)]) == 0


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(RECORDING.read_bytes())[:-20],
        gzip.compress(RECORDING.read_bytes())[:40] + b"\xff" * 40,
        RECORDING.read_bytes() + b"{",
        b"5\n",
        b'{"msg": "x"}\n',
        b'{"msg": 5, "now": 1, "decoded": false, "state": []}\n',
        b"\xff\n",
    ],
    ids=["torn", "damaged", "half a line", "no object", "no state", "no text", "no UTF-8"],
)
def test_an_unreadable_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err
