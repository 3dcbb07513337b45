"""Generated files: which ones are stale, and that the command reports or writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcoord_wire.schema import generate

SCHEMA = {"type": "data", "name": "Note", "validVersions": "0", "flexibleVersions": "none", "fields": []}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the generated files of one schema, which `main` uses instead of the package's."""
    schemas, target = tmp_path / "schemas", tmp_path / "messages"
    schemas.mkdir()
    target.mkdir()
    (schemas / "Note.json").write_text(json.dumps(SCHEMA))
    monkeypatch.setattr(generate, "schema_root", lambda: schemas)
    monkeypatch.setattr(generate, "MESSAGES", target)
    return target


def test_check_lists_stale_files_and_writes_nothing(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale: __init__.py\nstale: _index.py\nstale: note.py\n"
    assert list(target.iterdir()) == []


def test_stale_files_are_written_and_others_removed(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (target / "gone.py").write_text("")
    assert generate.main([]) == 0
    assert "removed: gone.py\nwritten: note.py\n" in capsys.readouterr().out
    assert {path.name for path in target.iterdir()} == {"__init__.py", "_index.py", "note.py"}
    assert generate.main(["--check"]) == 0


def test_a_broken_schema_is_reported(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (target.parent / "schemas" / "Note.json").write_text("{}")
    assert generate.main([]) == 1
    assert "Note.json" in capsys.readouterr().err
    assert list(target.iterdir()) == []
