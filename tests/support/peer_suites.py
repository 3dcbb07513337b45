"""Test suites of other projects, as their packages carry them, run against a broker, and judged by a list.

Laws:

* Sources come from the registry of their language (Go's module proxy, PyPI) at the version of the list, and lie under
  build/. Go checks the sums of its modules, the list has those of PyPI; what is changed of a source is in the list, and
  has to be found there.
* A test that fails or skips itself and is not listed is a problem; so is a listed one that passes, or is not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from tests.support.go_programs import go_command
from tests.support.processes import BUILD, ROOT, locked, run_tool

PASSED: Final = "passes"
FAILED: Final = "fails"
SKIPPED: Final = "skips itself"
NOT_RUN: Final = "is not run"
_GO_WORDS: Final = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
_GO_RESULT: Final = re.compile(r"(?:^|\x16)\s*--- (PASS|FAIL|SKIP): (\S+) \(", re.MULTILINE)
_GO_BEGUN: Final = re.compile(r"(?:^|\x16)=== RUN +(\S+)$", re.MULTILINE)
_SOURCES: Final = BUILD / "suites"

Outcomes = Mapping[str, str]
"""Test -> `PASSED`, `FAILED` or `SKIPPED`."""


@dataclass(frozen=True)
class Listed:
    """Tests that do not pass, and why.

    :ivar test: a regular expression that fits to the whole name; a node id where pytest is not to run it
    :ivar outcome: `FAILED`, `SKIPPED` or `NOT_RUN`
    :ivar reason: in words
    """

    test: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class Suite:
    """Tests of a project.

    :ivar package: of the registry, with its version: ``github.com/IBM/sarama@v1.61.1`` or ``kafka-python==3.0.12``
    :ivar inside: the folder of the tests' package, or the files of tests
    :ivar tests: a regular expression of the names of those that are run
    :ivar environment: for the tests; ``{address}`` and ``{toxiproxy}`` are replaced
    :ivar arguments: for the program of the tests
    :ivar tags: of the build, for Go
    :ivar replaced: file, old, new: what is changed in the source
    :ivar added: file -> text of what is added to the source
    :ivar auto_create: whether the broker creates topics that clients ask for
    :ivar seconds: that it may take on a busy machine
    :ivar sha256: of the package, for PyPI
    :ivar plugin: a module of ours that pytest loads before the tests
    """

    name: str
    package: str
    inside: Sequence[str]
    tests: str
    environment: Mapping[str, str]
    listed: Sequence[Listed]
    arguments: Sequence[str] = ()
    tags: str = ""
    replaced: Sequence[Mapping[str, str]] = ()
    added: Mapping[str, str] = field(default_factory=dict)
    auto_create: bool = False
    seconds: int = 480
    sha256: str = ""
    plugin: str = ""

    @property
    def is_go(self) -> bool:
        return "@" in self.package

    def not_run(self) -> list[str]:
        """The expressions of the tests that are left out."""
        return [each.test for each in self.listed if each.outcome == NOT_RUN]


def read_suites(path: Path) -> dict[str, Suite]:
    """The suites of a file, by name."""
    suites = [
        Suite(**{**entry, "listed": [Listed(**line) for line in entry.get("listed", ())]})
        for entry in tomllib.loads(path.read_text("utf-8"))["suite"]
    ]
    return {suite.name: suite for suite in suites}


# ---- the verdict


def judge(suite: Suite, outcomes: Outcomes) -> list[str]:
    """What is wrong, a line each; none if the list says it all."""
    problems = [] if PASSED in outcomes.values() else [f"{suite.name}: no test passes"]
    for test, outcome in sorted(outcomes.items()):
        lines = [line for line in suite.listed if line.outcome != NOT_RUN and re.fullmatch(line.test, test)]
        if lines and outcome != lines[0].outcome:
            problems.append(f"{suite.name}: {test} {outcome}, and the list is stale: it {lines[0].outcome}")
        elif not lines and outcome != PASSED:
            problems.append(f"{suite.name}: {test} {outcome}, and is not listed")
    for line in suite.listed:
        if line.outcome != NOT_RUN and not any(re.fullmatch(line.test, test) for test in outcomes):
            problems.append(f"{suite.name}: {line.test} is listed, and there is no such test")
    return problems


# ---- fetching and building


def prepare(suite: Suite) -> Path:
    """Fetch the sources and build what has to be built; gives the folder in which the suite is run."""
    _SOURCES.mkdir(parents=True, exist_ok=True)
    folder = _SOURCES / re.sub(r"[^\w.-]+", "-", suite.package)
    with locked(folder):
        if suite.is_go:
            return _prepare_go(suite, folder)
        if not folder.exists():
            with _scratch() as scratch:
                _fetch_sdist(suite, scratch).rename(folder)
        return folder


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder beside the sources, of which a part is moved there when it is complete."""
    with tempfile.TemporaryDirectory(dir=_SOURCES) as scratch:
        yield Path(scratch)


def _prepare_go(suite: Suite, folder: Path) -> Path:
    go, environment = go_command()
    if not folder.exists():
        with _scratch() as scratch:
            (scratch / "go.mod").write_text("module scratch\n")
            found = json.loads(run_tool([go, "mod", "download", "-json", suite.package], scratch, environment))
            copy = scratch / "copy"
            shutil.copytree(found["Dir"], copy, copy_function=shutil.copyfile)
            for each in [copy, *filter(Path.is_dir, copy.rglob("*"))]:
                each.chmod(0o755)  # of the module cache, which is read-only
            _change(suite, copy)
            copy.rename(folder)
    inside = folder / suite.inside[0]
    command = [go, "test", "-c", "-buildvcs=false", "-mod=readonly", f"-tags={suite.tags}", "-o", "suite.test", "."]
    run_tool(command, inside, environment)
    return inside


def _fetch_sdist(suite: Suite, scratch: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", suite.package]
    run_tool(pip, scratch)
    (archive,) = scratch.glob("*.tar.gz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == suite.sha256, f"{suite.package} is {found}, not {suite.sha256}"
    with tarfile.open(archive) as files:
        files.extractall(scratch / "copy", filter="data")
    (copy,) = (scratch / "copy").iterdir()
    _change(suite, copy)
    return copy


def _change(suite: Suite, copy: Path) -> None:
    for each in suite.replaced:
        path = copy / each["file"]
        text = path.read_text("utf-8")
        assert each["old"] in text, f"{suite.package} has no {each['old']!r} in {each['file']}"
        path.write_text(text.replace(each["old"], each["new"]), "utf-8")
    for name, text in suite.added.items():
        assert not (copy / name).exists(), f"{suite.package} has {name}"
        (copy / name).write_text(text, "utf-8")


# ---- running


def run_suite(suite: Suite, folder: Path, **places: str) -> tuple[Outcomes, str]:
    """Run the tests in the folder that `prepare` gave.

    :param places: what the environment names: ``address`` and the like
    :returns: the outcomes, and what the tests wrote
    """
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "KCOORD"))}
    environment = {**given, **{name: value.format(**places) for name, value in suite.environment.items()}}
    play = _run_go if suite.is_go else _run_pytest
    return play(suite, folder, environment)


def _run_go(suite: Suite, folder: Path, environment: Mapping[str, str]) -> tuple[Outcomes, str]:
    command = [str(folder / "suite.test"), "-test.v=test2json", f"-test.run={suite.tests}"]
    command += [f"-test.skip={'|'.join(suite.not_run())}", f"-test.timeout={suite.seconds}s"]
    written = _output([*command, *suite.arguments], folder, environment, suite.seconds + 60)
    outcomes = dict.fromkeys(_GO_BEGUN.findall(written), FAILED)  # one that did not end has failed
    outcomes |= {test: _GO_WORDS[word] for word, test in _GO_RESULT.findall(written)}
    return outcomes, written


def _run_pytest(suite: Suite, folder: Path, environment: Mapping[str, str]) -> tuple[Outcomes, str]:
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "--tb=short"]
        command += ["-p", "no:xdist", "-k", suite.tests, f"--junitxml={results}", *suite.arguments, *suite.inside]
        command += [f"--deselect={test}" for test in suite.not_run()]
        path = str(folder)
        if suite.plugin:
            command += ["-p", suite.plugin]
            path += f"{os.pathsep}{ROOT}"
        written = _output(command, folder, {**environment, "PYTHONPATH": path}, suite.seconds)
        cases = ElementTree.parse(results).iter("testcase") if results.exists() else ()
        return {case.get("name", ""): _pytest_word(case) for case in cases}, written


def _pytest_word(case: Any) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED
    return SKIPPED if case.find("skipped") is not None else PASSED


def _output(command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: int) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace") + f"\nended after {seconds} s"
    return done.stdout.decode(errors="replace")
