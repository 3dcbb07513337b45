"""README and docs do what they say: their Python runs, their command lines parse, their folders exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kcoord_wire.cli.main import build_parser, main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = {
    path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
COMMANDS = sorted({line for text in TEXTS.values() for line in re.findall(r"^ *kcoord (.*)$", text, re.M)})


CODEC, SPARK, COORDINATOR = re.findall(r"```python\n(.*?)```", README, re.S)


def run(block: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_codec_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    names = run(CODEC)
    assert names["request"] == names["msg"]
    out = capsys.readouterr().out
    assert "session_timeout_ms" in out
    assert "'orders'" in out


def test_the_coordinator_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    record = run(COORDINATOR)["record"]
    assert record.value() == b"one"  # type: ignore[attr-defined]
    out = capsys.readouterr().out
    assert "new member rdkafka /127.0.0.1 stable" in out
    assert "session timeout" in out


@pytest.mark.xdist_group("spark")
def test_the_spark_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tests" / "data" / "captures", tmp_path / "tests" / "data" / "captures")
    (tmp_path / "recording").mkdir()
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "readme.py"
    program.write_text(SPARK)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "second round of a cooperative rebalance" in done.stdout
    assert "orders" in done.stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_lines_parse(line: str) -> None:
    arguments = shlex.split(line.partition(" #")[0])
    assert build_parser().parse_args(arguments).run is not None


def test_the_bytes_decode(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = re.findall(r"^    kcoord (decode .*)$", README, re.M)
    assert main(line.split()) == 0
    assert "billing" in capsys.readouterr().out


def test_the_folders_and_targets_are_there() -> None:
    table = README.partition("## Where things are")[2].partition("##")[0]
    folders = [cell for row in re.findall(r"^\| (`.*?) \|", table, re.M) for cell in re.findall(r"`(.*?)`", row)]
    assert folders
    assert [f for f in folders if not ((ROOT / f).is_dir() or (ROOT / "kcoord_wire" / f).is_dir())] == []
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(re.findall(r"make ([a-z-]+)", README)) <= set(targets)
