"""Type checkers in their strict modes accept programs that embed the codec, and conclude what these assert."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [Path(__file__).with_name("embedding.py"), *sorted((ROOT / "docs" / "examples").glob("*.py"))]
MISTAKES = """\
import kcoord_wire as kw

header, response = kw.decode_response(b"", kw.HeartbeatResponse, 4)
print(response.errorcode)
print(kw.HeartbeatRequests)
kw.registry.by_class(kw.HeartbeatRequest).encode(response, 4)
kw.JoinGroupRequest(group="billing")
kw.encode("x", version=7)
kw.encode(kw.JoinGroupRequest, version=7)
kw.encode_into(b"x", 7, bytearray())
kw.encode_prefixed({"Topics": []}, 3)
kw.encode_request(b"x", 7, correlation_id=1)
kw.encode_response([], 7, correlation_id=1)
"""
LINES_OF_MISTAKES = {*range(4, 14)}
Complaint = tuple[str, int, str]
"""File, line and text."""


def pyright(folder: Path, files: list[Path]) -> list[Complaint]:
    """What pyright reports: basedpyright is pyright as a wheel, with the same strict mode."""
    settings = folder / "pyrightconfig.json"
    strict = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    settings.write_text(json.dumps(strict | {"include": [str(file) for file in files]}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(settings)]
    done = subprocess.run([*command, "--pythonpath", sys.executable], capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files), done.stderr
    found = report["generalDiagnostics"]
    return [(each["file"], each["range"]["start"]["line"] + 1, each["message"]) for each in found]


def mypy(folder: Path, files: list[Path]) -> list[Complaint]:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--follow-imports",
        "silent",
        "--cache-dir",
        str(folder / "cache"),
    ]
    done = subprocess.run(
        [*command, "--config-file", "", *map(str, files)], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode in (0, 1), done.stderr
    parts = [line.split(":", 2) for line in done.stdout.splitlines()]
    return [(file, int(line), text) for file, line, text in parts if " error: " in text]


CHECKERS = pytest.mark.parametrize("checker", [pyright, mypy])


@pytest.mark.slow
@CHECKERS
def test_programs_that_embed_the_codec(checker: Callable[[Path, list[Path]], list[Complaint]], tmp_path: Path) -> None:
    assert checker(tmp_path, PROGRAMS) == []


@pytest.mark.slow
@CHECKERS
def test_mistakes_are_found(checker: Callable[[Path, list[Path]], list[Complaint]], tmp_path: Path) -> None:
    program = tmp_path / "mistakes.py"
    program.write_text(MISTAKES)
    assert {line for _, line, _ in checker(tmp_path, [program])} == LINES_OF_MISTAKES
