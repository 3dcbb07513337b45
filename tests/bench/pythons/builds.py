"""The native modules of a checkout for another Python: built once for the same sources, under build/bench/pythons."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final
from zlib import crc32

from kcoord_wire.codec.sources import digest
from tests.support.processes import locked, run_tool
from tests.support.pythons import interpreter

from ..runner import ROOT

BUILT: Final = ROOT / "build" / "bench" / "pythons"
TOOLS: Final = "cython>=3.1,<4", "setuptools>=77,<90"


def modules(checkout: Path, name: str) -> tuple[Path, list[Path]]:
    """The program of a Python, and the native modules of the checkout for it.

    :param name: as `tests.support.pythons` has it
    :raises tests.support.pythons.NotToBeHad: no place has this Python
    """
    home = BUILT / name
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        python = environment(name, home / "venv")
        made = home / f"{digest(checkout / '_speedups'):08x}-{crc32((checkout / 'setup.py').read_bytes()):08x}"
        if not made.exists():
            build(checkout, python, made)
    return python, sorted(made.iterdir())


def environment(name: str, where: Path) -> Path:
    """A virtual environment with what builds the modules."""
    python = where / "bin" / "python"
    if not (where / "ready").exists():
        run_tool([str(interpreter(name)), "-m", "venv", "--clear", str(where)], attempts=1)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--only-binary", ":all:"]
        run_tool([*pip, *TOOLS])
        (where / "ready").touch()
    return python


def build(checkout: Path, python: Path, made: Path) -> None:
    """Build them from a copy of the sources, so that nothing of the checkout changes."""
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        sources = Path(scratch, "sources")
        for part in ("kcoord_wire", "_speedups"):
            shutil.copytree(checkout / part, sources / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        for file in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "kcoord_wire_pytest.py"):
            shutil.copy(checkout / file, sources / file)
        settings = {"KCOORD_WIRE_REQUIRE_NATIVE": "1"}
        run_tool([str(python), "setup.py", "--quiet", "build_ext", "--inplace"], sources, settings, attempts=1)
        found = Path(scratch, "made")
        found.mkdir()
        for module in (sources / "kcoord_wire").glob("_*.so"):
            module.rename(found / module.name)
        found.rename(made)
