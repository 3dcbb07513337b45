"""JSON lines, tables, complaints, and the files of a report: all of them or an error, and no part of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcoord_wire.cli.output import complain, make_writable, print_json, print_table, styled, table, write_report
from kcoord_wire.forensics.analysis import TABLES
from tests.support.watching import Script, group, member

HOSTILE = "\x1b[31m\x9b\u2028\x7f"


def test_complaints_are_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain(f"two\n  lines {HOSTILE}")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "kcoord: two lines \\x1b[31m\\x9b \\x7f\n"


def test_json_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": HOSTILE, "b": "ä"})
    out = capsys.readouterr().out
    assert out.removesuffix("\n").isprintable()
    assert json.loads(out) == {"a": HOSTILE, "b": "ä"}
    assert "ä" in out


def test_tables_are_not_wrapped_and_have_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    made = table("title", "one", "two")
    made.add_row(styled("[red]x[/red]"), styled("y" * 500))
    print_table(made)
    title, heads, row, _ = capsys.readouterr().out.split("\n", 3)
    assert (title, heads.split()) == ("title", ["one", "two"])
    assert row.split() == ["[red]x[/red]", "y" * 500]


@pytest.mark.slow
def test_a_report_is_written(tmp_path: Path) -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0)))
    folder = tmp_path / "a" / "report"
    make_writable(folder)
    write_report(script.watched.histories(), [], folder, title="k1", source="1 poll")
    tables = {f"{name}.parquet" for name in (*TABLES, "losses")}
    assert {path.name for path in folder.iterdir()} == tables | {"report.json", "report.html"}
    assert json.loads((folder / "report.json").read_text())["groups"][0]["group"]["origin"] == "admin"


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("")
    with pytest.raises(OSError, match="exists"):
        make_writable(tmp_path / "report")


def test_what_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        write_report([], [], tmp_path, title="k1", source="")
    assert [path for path in tmp_path.iterdir() if path.suffix == ".part"] == []
