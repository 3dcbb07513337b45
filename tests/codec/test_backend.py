"""Which codec runs: what KCOORD_WIRE_BACKEND says, what is built, and what is built for something else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from kcoord_wire.codec import backend
from kcoord_wire.codec.sources import digest
from kcoord_wire.schema.plan import Length, Op, Presence

ROOT = Path(__file__).resolve().parents[2]


def run(wanted: str | None, code: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "KCOORD_WIRE_BACKEND"}
    if wanted is not None:
        environment["KCOORD_WIRE_BACKEND"] = wanted
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


TELL = "import kcoord_wire; print(kcoord_wire.backend)"
ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "kcoord_wire._native":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
STALE = """
import sys, types
stale = types.ModuleType("kcoord_wire._native")
stale.PLAN_FORMAT = {"Op": {"BOOL": 0}}
sys.modules["kcoord_wire._native"] = stale
"""
OF_OTHER_SOURCES = """
import sys, types
import kcoord_wire._native as native
stale = types.ModuleType("kcoord_wire._native")
stale.PLAN_FORMAT = native.PLAN_FORMAT
for name in [name for name in sys.modules if name.startswith("kcoord_wire")]:
    del sys.modules[name]
sys.modules["kcoord_wire._native"] = stale
"""
BROKEN = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "kcoord_wire._native":
            raise ImportError("undefined symbol: PyLong_Gone")
sys.meta_path.insert(0, Broken())
"""
# The process ends without ending its interpreters: CPython 3.12.1 aborts at the end of one that imported hashlib.
SUBINTERPRETER = """
import os, sys
try:
    import _interpreters as interpreters
except ModuleNotFoundError:
    import _xxsubinterpreters as interpreters
made = interpreters.create()
def run(code):
    try:
        failure = interpreters.run_string(made, "import sys; sys.path[:0] = " + repr(sys.path) + chr(10) + code)
    except interpreters.RunFailedError as error:
        failure = error  # since 3.13 it is returned
    if failure is not None:
        print(getattr(failure, "formatted", failure), file=sys.stderr, flush=True)
        os._exit(1)
"""
USE = """
import kcoord_wire as kw
request = kw.HeartbeatRequest(group_id="g", member_id="m")
assert kw.decode(kw.HeartbeatRequest, kw.encode(request, 4), 4) == request
print(kw.backend, flush=True)
"""


@pytest.mark.parametrize(
    ("wanted", "before", "expected"),
    [
        (None, "", "native"),
        ("auto", "", "native"),
        ("native", "", "native"),
        ("python", "", "python"),
        ("python", STALE, "python"),
        ("auto", ABSENT, "python"),
    ],
    ids=["default", "auto", "native", "python", "python-beside-stale", "auto-without-native"],
)
def test_the_environment_chooses_the_backend(wanted: str | None, before: str, expected: str) -> None:
    done = run(wanted, before + TELL)
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


@pytest.mark.parametrize(
    ("wanted", "before", "complaint"),
    [
        ("cython", "", "KCOORD_WIRE_BACKEND is auto, native or python, not 'cython'"),
        ("native", ABSENT, "is not built: make native"),
        ("auto", STALE, "built for another plan format: rebuild it with make native"),
        ("auto", OF_OTHER_SOURCES, "_speedups: rebuild it with make native"),
        ("auto", OF_OTHER_SOURCES + "stale.SOURCES = 1\n", "was not built from the sources in"),
        ("auto", BROKEN, "undefined symbol: PyLong_Gone"),
        ("auto", BROKEN, "rebuild kcoord_wire._native with make native"),
    ],
    ids=["unknown", "native-without-native", "stale", "no-digest", "other-digest", "broken", "broken-hint"],
)
def test_an_unusable_backend_is_refused(wanted: str, before: str, complaint: str) -> None:
    if before.startswith(OF_OTHER_SOURCES) and not backend.SOURCES.is_dir():
        pytest.skip("an installed package has no sources beside it")
    done = run(wanted, before + TELL)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "ImportError" in done.stderr


@pytest.mark.parametrize("first", ["main", "sub"])
def test_a_subinterpreter_takes_the_pure_codec(first: str) -> None:
    in_sub, in_main = f"run({USE!r})", f"exec({USE!r})"
    order = [in_main, in_sub] if first == "main" else [in_sub, in_main]
    done = run("auto", "\n".join([SUBINTERPRETER, *order, "os._exit(0)"]))
    expected = ["native", "python"] if first == "main" else ["python", "native"]
    assert (done.returncode, done.stdout.split()) == (0, expected), done.stderr


def test_a_subinterpreter_refuses_a_required_native_core() -> None:
    done = run("native", f"{SUBINTERPRETER}\nrun({USE!r})")
    assert done.returncode != 0
    assert "kcoord_wire._native does not load in a subinterpreter" in done.stderr


def test_the_native_core_has_the_numbers_of_the_plan() -> None:
    native = import_module("kcoord_wire._native")
    assert {
        kind.__name__: {member.name: member.value for member in kind} for kind in (Op, Length, Presence)
    } == native.PLAN_FORMAT


@pytest.mark.skipif(not backend.SOURCES.is_dir(), reason="an installed package has no sources beside it")
@pytest.mark.parametrize("name", ["_native", "_columns"])
def test_a_native_module_has_the_digest_of_its_sources(name: str) -> None:
    assert import_module(f"kcoord_wire.{name}").SOURCES == digest(backend.SOURCES) != 0


def test_these_tests_run_the_chosen_backend() -> None:
    wanted = os.environ.get("KCOORD_WIRE_BACKEND", "auto")
    assert backend.backend == ("native" if wanted == "auto" else wanted)
