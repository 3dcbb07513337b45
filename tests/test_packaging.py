"""What a user gets from `pip install`: a wheel that runs on its own, with a C compiler and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = sorted(str(path.relative_to(ROOT / "schemas")) for path in (ROOT / "schemas").rglob("*.json"))
ALONE = """
import sys
sys.path[:0] = [sys.argv[1]]
import kcoord_wire as kw
from kcoord_wire.schema.files import schema_root
assert kw.__file__.startswith(sys.argv[1]) and str(schema_root()).startswith(sys.argv[1])
request = kw.registry.request(11).cls(group_id="g", protocol_type="consumer")
assert kw.decode(type(request), kw.encode(request, 9), 9) == request
print(kw.backend)
"""

pytestmark = pytest.mark.slow


def build(where: Path, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """Build a wheel of a copy of the sources, with the build tools of this environment; give its log and the wheels."""
    sources = where / "sources"
    for part in ("kcoord_wire", "schemas", "_speedups"):
        shutil.copytree(ROOT / part, sources / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources / name)
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(where / "dist")],
        cwd=sources,
        env={key: value for key, value in os.environ.items() if not key.startswith("KCOORD_WIRE_")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, sorted((where / "dist").glob("*.whl"))


def run_alone(wheel: Path, where: Path) -> str:
    """The codec that runs from the wheel's files alone, once it has coded a message."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(where)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KCOORD_WIRE_")}
    program = [sys.executable, "-I", "-S", "-c", ALONE, str(where)]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def names_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_is_complete_and_runs_on_its_own(tmp_path: Path) -> None:
    done, wheels = build(tmp_path, KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stderr
    [wheel] = wheels
    names = names_of(wheel)
    assert {f"kcoord_wire/_schemas/{name}" for name in SCHEMAS} <= names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "kcoord_wire").rglob("*.py")}
    assert modules | {"kcoord_wire/py.typed"} <= names
    for module in ("_native", "_columns"):
        assert [name for name in names if name.startswith(f"kcoord_wire/{module}") and name.endswith((".so", ".pyd"))]
    assert {name.split("/")[0] for name in names} == {"kcoord_wire", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    assert run_alone(wheel, tmp_path / "alone") == "native"


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    done, wheels = build(tmp_path, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    [wheel] = wheels
    assert wheel.name.endswith("-py3-none-any.whl")
    said = [line for line in done.stderr.splitlines() if line.startswith("kcoord_wire:")]
    assert said == ["kcoord_wire: no working C compiler: this build is pure Python, slower but the same"]
    assert not [name for name in names_of(wheel) if name.endswith((".so", ".pyd"))]
    assert run_alone(wheel, tmp_path / "alone") == "python"


def test_a_required_native_module_needs_a_compiler(tmp_path: Path) -> None:
    done, wheels = build(tmp_path, CC="/bin/false", KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert wheels == []
