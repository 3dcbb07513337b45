"""`kcoord analyze` and `kcoord explain-line` as a user runs them: results, files, interrupts, statuses."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import sys
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from kcoord_wire.cli.analyze import Analyze, _Meter
from kcoord_wire.cli.main import main
from kcoord_wire.forensics.analysis import TABLES
from kcoord_wire.forensics.sources.segments import MAX_EXPANSION
from tests.support.marshal_rows import generated_log, log_rows, write_segments
from tests.support.packets import Line, capture
from tests.support.pages import Outline
from tests.support.processes import Process

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
PIPE_SIZE = 65_536  # what a writer may be ahead, pipe(7)
CAPTURE = str(CAPTURES / "cooperative.pcap")


def test_text_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", CAPTURE]) == 0
    out, err = capsys.readouterr()
    headline, summary = out.splitlines()[:2]
    assert headline.startswith("billing: 1 commit of c1 (3 offsets) was refused")
    assert summary.startswith("5 rebalances in 24.2 s: 2 new member, 2 member left, 1 second round")
    assert "c2 (127.0.0.1)" in out
    assert err == "", "progress is for terminals"


def test_a_coordination_topic_is_read_whatever_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*generated_log(2), *log_rows([(1, b"\xff"), (2, b"\xff")], partition=2, first=10_000)]
    for topic in ("__marshal", "coordination"):
        folder = write_segments(tmp_path / topic, rows, topic)
        assert main(["analyze", str(folder), "--format", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert {group["group"]["protocol_type"] for group in report["groups"]} == {"marshal document"}
        assert any("no message has the type" in loss["what"] and loss["count"] > 1 for loss in report["losses"])
    assert (
        main(["analyze", str(folder / "coordination-1"), "--marshal-rules", "library", "--heartbeat-interval", "5"])
        == 0
    )
    assert "rules of the library, with a heartbeat interval of 5 s" in capsys.readouterr().out


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", CAPTURE, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (group,) = report["groups"]
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


def snapped(capture: bytes, length: int) -> bytes:
    """A little-endian pcap as tcpdump writes it with a snap length."""
    cut, at = bytearray(capture[:24]), 24
    while at < len(capture):
        seconds, fraction, kept, size = struct.unpack_from("<4I", capture, at)
        short = min(kept, length)
        cut += struct.pack("<4I", seconds, fraction, short, size) + capture[at + 16 : at + 16 + short]
        at += 16 + kept
    return bytes(cut)


def test_cut_packets_are_reported_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(snapped(Path(CAPTURE).read_bytes(), 96))
    assert main(["analyze", str(cut)]) == 0
    err = capsys.readouterr().err
    assert "rebalances may be missing" in err
    assert "tcpdump -s 0" in err
    assert err.count("\n") == 1


def test_an_empty_capture_is_an_error_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(Path(CAPTURE).read_bytes()[:24])
    assert main(["analyze", str(empty)]) == 1
    assert "without TLS" in capsys.readouterr().err


def test_a_capture_of_tls_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = Line().open().send(0, b"\x16\x03\x01" + bytes(200)).send(1, bytes(500))
    path = tmp_path / "tls.pcap"
    path.write_bytes(capture(line.packets).getvalue())
    assert main(["analyze", str(path)]) == 1
    err = capsys.readouterr().err
    assert "look like TLS" in err
    assert "kcoord record (--upstream-tls)" in err


def test_standard_input_and_pipes_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(CAPTURE).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["analyze", "-", "--out", str(tmp_path / "report")]) == 0
    assert "<title>stdin" in (tmp_path / "report" / "report.html").read_text("utf-8")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    assert main(["analyze", str(pipe)]) == 0
    writer.join()
    out = capsys.readouterr().out
    first, second = (line for line in out.splitlines() if line.startswith("billing: "))
    assert first == second
    assert out.count("from captured frames: pipe-1/stdin") == 2


def test_a_read_only_folder_is_reported_before_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        patch("kcoord_wire.cli.analyze.os.access", return_value=False),  # root may write everywhere
        patch("kcoord_wire.forensics.analysis.analyze", side_effect=AssertionError("read")),
    ):
        assert main(["analyze", CAPTURE, "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"kcoord: {tmp_path}: Permission denied\n"


def test_an_error_of_spark_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Failure(Exception):
        __module__ = "py4j.protocol"

    with patch(
        "kcoord_wire.spark.analysis.analyze_on_spark", side_effect=Failure("An error occurred\n: no master\n\tat org")
    ):
        assert main(["analyze", CAPTURE, "--spark-master", "spark://nowhere:1"]) == 1
    assert capsys.readouterr().err == "kcoord: Spark at spark://nowhere:1 failed: An error occurred no master\n"


@pytest.mark.parametrize("writer", ["kcoord_wire.report.write_html", "pyarrow.parquet.write_table"])
def test_an_interrupt_leaves_no_partial_file(writer: str, tmp_path: Path) -> None:
    with patch(writer, side_effect=KeyboardInterrupt):
        assert main(["analyze", CAPTURE, "--out", str(tmp_path)]) == 130
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_writes_what_was_read(interrupts: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one stops the reading, within a capture; the second one ends the command."""

    def show(meter: _Meter, what: str, done: int, total: int) -> None:
        if total // 3 < done < total:
            for _ in range(interrupts):
                signal.raise_signal(signal.SIGINT)

    behind = str(CAPTURES / "static_bounce.pcap")
    arguments = ["analyze", str(CAPTURES / "incidents" / "moves.pcap.gz"), behind, "--out", str(tmp_path)]
    with patch.object(_Meter, "show", show):
        assert main(arguments) == 130
    out, err = capsys.readouterr()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interrupts == 2:
        assert list(tmp_path.iterdir()) == []
        return
    assert "interrupt again to end at once" in err
    assert "PARTIAL: reading was stopped at " in err
    assert "PARTIAL: reading was stopped at " in Outline((tmp_path / "report.html").read_text("utf-8")).first("source")
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert {group["group"]["group_id"] for group in report["groups"]} == {"moves"}
    stops = [loss for loss in report["losses"] if "reading was stopped here on request" in loss["what"]]
    assert [Path(loss["source"]).name for loss in stops] == ["moves.pcap.gz", "static_bounce.pcap"]
    assert "100% of this source was not read" in stops[1]["what"]
    assert "reading was stopped here" in out


ANALYSING = """
import sys
from kcoord_wire.cli.main import main
from kcoord_wire.forensics import analysis

analyse = analysis.group_history

def analyse_when_asked(*args):
    print("analysing", flush=True)
    sys.stdin.readline()
    return analyse(*args)

analysis.group_history = analyse_when_asked
raise SystemExit(main(sys.argv[1:]))
"""


def test_an_interrupt_of_the_analysis_leaves_groups_out(tmp_path: Path) -> None:
    """A process that waits in the middle of a group: the group is finished, those behind it are not begun."""
    sources = [CAPTURE, str(CAPTURES / "incidents" / "moves.pcap.gz"), str(CAPTURES / "incidents" / "connect.pcap.gz")]
    with Process([sys.executable, "-c", ANALYSING, "analyze", *sources, "--out", str(tmp_path)]) as process:
        assert process.line() == "analysing"
        process.process.send_signal(signal.SIGINT)
        process.tell("")
        status, out, err = process.finish()
    assert status == 130, err
    assert "stopping: what was read so far is analysed and written; interrupt again to end at once" in err
    assert "PARTIAL: the analysis was stopped, 2 more of the sources' groups are not in it" in err
    assert "Traceback" not in err
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [group["group"]["group_id"] for group in report["groups"]] == ["billing"]
    assert report["stopped"] is None, "all was read"
    assert "the analysis was stopped here on request: 2 groups left out" in [loss["what"] for loss in report["losses"]]
    page = Outline((tmp_path / "report.html").read_text("utf-8"))
    assert page.first("source").startswith("PARTIAL: the analysis was stopped, 2 more of the sources' groups")
    assert "billing" in out


def test_an_interrupt_does_not_end_the_writing(tmp_path: Path) -> None:
    """The page is a pipe that nothing is read from until the process was interrupted in the middle of it."""
    place = tmp_path / "report.html.part"
    os.mkfifo(place)
    command = [sys.executable, "-m", "kcoord_wire", "analyze", str(CAPTURES / "aiokafka.pcap"), "--out", str(tmp_path)]
    with Process(command) as process:
        with place.open("rb") as file:  # opens when the process has opened it
            process.process.send_signal(signal.SIGINT)
            written = file.read()
        status, out, err = process.finish()
    assert len(written) > PIPE_SIZE, "else the process might have ended before it was interrupted"
    assert status == 130, err
    assert "stopping: the report is complete, and is written first; interrupt again to end at once" in err
    assert "PARTIAL" not in err
    assert written.endswith(b"</html>\n")
    assert {path.name for path in tmp_path.iterdir()} >= {"report.json", "report.html", "findings.parquet"}
    assert not list(tmp_path.glob("*.part"))
    assert "billing: " in out


def test_progress_is_one_line_and_wiped() -> None:
    file = io.StringIO()
    meter = _Meter(file, silent=False)
    meter.show("a\x1b[31m.pcap", 50, 200)
    meter.show("too soon", 60, 200)
    meter.clear()
    assert file.getvalue().startswith("\r\x1b[K 25.0 %")
    assert "\x1b[31m" not in file.getvalue()
    assert "too soon" not in file.getvalue()
    assert file.getvalue().endswith("\r\x1b[K")
    silent = _Meter(file := io.StringIO(), silent=True)
    silent.show("a", 1, 2)
    silent.clear()
    assert file.getvalue() == ""


def test_the_help_names_every_table() -> None:
    named = (Analyze.__doc__ or "").rpartition("tables in DIR:")[2].split()
    assert sorted(named) == sorted([*TABLES, "losses"])


HEARTBEAT_LINE = "Attempt to heartbeat failed since group is rebalancing"
LEFT_LINE = "[GroupCoordinator 1]: Member m-1 in group g has failed, removing it from the group"


def test_a_line_is_explained_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-line", LEFT_LINE]) == 0
    text = capsys.readouterr().out
    assert "an error: yes" in text
    assert "group_id g" in text
    assert "session.timeout.ms" in text
    polls = "Member app-1-5f sending LeaveGroup request to coordinator b:9092 due to consumer poll timeout"
    assert main(["explain-line", f"{polls} has expired."]) == 0
    assert "None" not in capsys.readouterr().out, "what the line does not name is left out"


def test_unknown_lines_are_said_to_be_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-line", "all is well", HEARTBEAT_LINE]) == 0
    assert "all is well\n  not known\n" in capsys.readouterr().out
    assert main(["explain-line", "all is well"]) == 1
    assert "no line of a known kind" in capsys.readouterr().err


def test_known_lines_of_standard_input_are_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = f"noise \xff\n{LEFT_LINE}\r\n".encode("latin-1") + b"x" * 100_000 + b"\n" + HEARTBEAT_LINE.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["explain-line", "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["failed", "heartbeat_rebalancing"]
    assert (rows[0]["member_id"], rows[0]["is_error"]) == ("m-1", "yes")


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-line", "\x1b]0;owned\x07" + LEFT_LINE.replace("m-1", "m-\x1b[2J")]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_the_default_expansion_is_that_of_the_reader() -> None:
    """The command does not import the reader for it."""
    assert Analyze(source=("trace.pcap",)).max_expansion == MAX_EXPANSION
