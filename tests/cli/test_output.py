"""JSON lines, tables and complaints."""

from __future__ import annotations

import json

import pytest

from kcoord_wire.cli.output import complain, print_json, print_table, styled, table

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
