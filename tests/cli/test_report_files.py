"""The files of a report: all of them or an error that names one, and no part of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcoord_wire.cli.output import make_writable, write_report
from kcoord_wire.forensics.analysis import TABLES
from tests.support.watching import Script, group, member


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
