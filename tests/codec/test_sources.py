"""The digest of the native modules' sources: what changes it, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.codec.sources import digest, files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "objects").mkdir()
    for name in ("native.pyx", "plan.pxd", "lazy.pxi", "capi.h", "README.md", "native.c"):
        (tmp_path / "objects" / name).write_text(name)
    return tmp_path


def test_sources_are_what_cython_and_the_compiler_read(folder: Path) -> None:
    assert [path.name for path in files(folder)] == ["capi.h", "lazy.pxi", "native.pyx", "plan.pxd"]


@pytest.mark.parametrize("name", ["native.pyx", "plan.pxd", "lazy.pxi", "capi.h"])
def test_a_change_of_a_source_changes_the_digest(folder: Path, name: str) -> None:
    before = digest(folder)
    (folder / "objects" / name).write_text("another")
    assert digest(folder) != before


def test_a_renamed_source_changes_the_digest(folder: Path) -> None:
    before = digest(folder)
    (folder / "objects" / "plan.pxd").rename(folder / "objects" / "plan2.pxd")
    assert digest(folder) != before


def test_other_files_do_not_change_the_digest(folder: Path) -> None:
    before = digest(folder)
    (folder / "objects" / "README.md").write_text("another")
    (folder / "objects" / "native.c").unlink()
    assert digest(folder) == before


def test_without_sources_there_is_no_digest(tmp_path: Path) -> None:
    assert digest(tmp_path / "_speedups") == 0
