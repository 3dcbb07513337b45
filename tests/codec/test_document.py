"""The examples of docs/codec.md run, in their order, as one script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    script = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "codec.md").read_text(), re.S))
    exec(compile(script, "docs/codec.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [line.split("# ")[1] for line in script.splitlines() if "print(error.kind" in line]
