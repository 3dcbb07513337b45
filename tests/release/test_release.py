"""What `make release` refuses: licences that are not allowed, and versions that differ."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from tests.release import __main__ as release
from tests.release.extras_smoke import SMOKES


def sbom(*licences: dict[str, Any], name: str = "library") -> dict[str, Any]:
    return {"components": [{"name": name, "licenses": list(licences)}]}


@pytest.mark.parametrize(
    "licence",
    [
        {"license": {"id": "MIT"}},
        {"license": {"name": "License :: OSI Approved :: BSD License"}},
        {"expression": "GPL-3.0-only OR Apache-2.0"},
        {"expression": "BSD-3-Clause AND (GPL-2.0-only OR MIT)"},
    ],
)
def test_a_licence_that_is_allowed(licence: dict[str, Any]) -> None:
    assert release.refused(sbom(licence)) == {}


@pytest.mark.parametrize(
    "licences",
    [
        [],
        [{"license": {"id": "AGPL-3.0-only"}}],
        [{"license": {"name": "ours"}}],
        [{"expression": "MIT AND GPL-2.0-only"}],
        [{"expression": "GPL-2.0-only AND (MIT OR Apache-2.0)"}],
        [{"expression": "MIT; import os"}],
    ],
)
def test_a_licence_that_is_refused(licences: list[dict[str, Any]]) -> None:
    assert list(release.refused(sbom(*licences))) == ["library"]


def test_versions_of_files_are_those_of_the_package(tmp_path: Path) -> None:
    def files(version: str) -> list[Path]:
        wheel = tmp_path / f"kcoord_wire-{kw.__version__}-py3-none-any.whl"
        sdist = tmp_path / f"kcoord_wire-{kw.__version__}.tar.gz"
        (tmp_path / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: kcoord_wire\nVersion: {version}\n")
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(tmp_path / "PKG-INFO", f"kcoord_wire-{version}.dist-info/METADATA")
        with tarfile.open(sdist, "w:gz") as archive:
            archive.add(tmp_path / "PKG-INFO", f"kcoord_wire-{kw.__version__}/PKG-INFO")
        return [wheel, sdist]

    release.check_versions(files(kw.__version__))
    with pytest.raises(AssertionError, match=r"9\.9\.9"):
        release.check_versions(files("9.9.9"))


def test_every_extra_of_users_has_a_smoke_test() -> None:
    assert set(SMOKES) == set(release.extras_of_users())
