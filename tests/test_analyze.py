"""The command `kcoord analyze`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from unittest.mock import patch

import pytest

from kcoord_wire.analyze import _Meter
from kcoord_wire.cli import main

CAPTURES = Path(__file__).parent / "data" / "captures"
CAPTURE = str(CAPTURES / "cooperative.pcap")


def test_text_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", CAPTURE]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("billing: 5 rebalances in 24.2 s: 2 new member, 2 member left, 1 second round")
    assert "c2 (127.0.0.1)" in out
    assert err == "", "progress is for terminals"


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", CAPTURE, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (group,) = told["groups"]
    assert group["group"]["group_id"] == "billing"
    assert [r["cause"] for r in group["rebalances"]][:2] == ["new member", "new member"]


def test_out_has_tables_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "report"
    for _ in range(2):  # over what is there
        assert main(["analyze", CAPTURE, "--out", str(out)]) == 0
    assert str(out / "report.html") in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "report.json", "rebalances.parquet", "losses.parquet", "findings.parquet"} <= names
    assert not [name for name in names if name.endswith(".part")]
    assert "billing" in (out / "report.html").read_text("utf-8")
    assert json.loads((out / "report.json").read_text("utf-8"))["groups"][0]["group"]["group_id"] == "billing"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ([], 1, "give either files or --kafka"),
        ([CAPTURE, "--kafka", "localhost:1"], 1, "give either files or --kafka"),
        (["no-such-file.pcap"], 1, "no-such-file.pcap"),
        ([__file__], 1, "test_analyze.py"),
        ([CAPTURE, "--group", "shipping"], 1, "no consumer group called shipping is in"),
        ([CAPTURE, "--kafka-config", "nothing"], 2, "'nothing' is not NAME=VALUE"),
        ([CAPTURE, "--out", __file__], 1, "test_analyze.py"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", *arguments]) == status
    err = capsys.readouterr().err
    assert told in err
    assert err.startswith("kcoord: ")
    assert err.count("\n") == 1


def test_an_interrupt_leaves_no_half_file(tmp_path: Path) -> None:
    with patch("kcoord_wire.report.write_html", side_effect=KeyboardInterrupt):
        assert main(["analyze", CAPTURE, "--out", str(tmp_path)]) == 130
    assert not list(tmp_path.glob("*.part"))


def test_the_meter_tells_on_one_line_and_wipes_it() -> None:
    file = io.StringIO()
    meter = _Meter(file, silent=False)
    meter.tell("a\x1b[31m.pcap", 50, 200)
    meter.tell("too soon", 60, 200)
    meter.clear()
    assert file.getvalue().startswith("\r\x1b[K 25.0 %")
    assert "\x1b[31m" not in file.getvalue()
    assert "too soon" not in file.getvalue()
    assert file.getvalue().endswith("\r\x1b[K")
    silent = _Meter(file := io.StringIO(), silent=True)
    silent.tell("a", 1, 2)
    silent.clear()
    assert file.getvalue() == ""
