"""`kcoord explain-line`: lines as arguments and from standard input, text and JSON, statuses."""

from __future__ import annotations

import io
import json
import sys

import pytest

from kcoord_wire.cli.main import main

HEARTBEAT = "Attempt to heartbeat failed since group is rebalancing"
LEFT = "[GroupCoordinator 1]: Member m-1 in group g has failed, removing it from the group"


def test_a_line_is_explained_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-line", LEFT]) == 0
    text = capsys.readouterr().out
    assert "an error: yes" in text
    assert "group_id g" in text
    assert "session.timeout.ms" in text
    polls = "Member app-1-5f sending LeaveGroup request to coordinator b:9092 due to consumer poll timeout"
    assert main(["explain-line", f"{polls} has expired."]) == 0
    assert "None" not in capsys.readouterr().out, "what the line does not name is left out"


def test_unknown_lines_are_said_to_be_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-line", "all is well", HEARTBEAT]) == 0
    assert "all is well\n  not known\n" in capsys.readouterr().out
    assert main(["explain-line", "all is well"]) == 1
    assert "no line of a known kind" in capsys.readouterr().err


def test_known_lines_of_standard_input_are_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = f"noise \xff\n{LEFT}\r\n".encode("latin-1") + b"x" * 100_000 + b"\n" + HEARTBEAT.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["explain-line", "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["failed", "heartbeat_rebalancing"]
    assert (rows[0]["member_id"], rows[0]["is_error"]) == ("m-1", "yes")


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-line", "\x1b]0;owned\x07" + LEFT.replace("m-1", "m-\x1b[2J")]) == 0
    assert "\x1b" not in capsys.readouterr().out
