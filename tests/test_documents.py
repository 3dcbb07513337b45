"""README and docs do what they say: their Python runs, their commands parse, what they name and link to exists."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcoord_wire.cli.main import main, parse
from tests.support.public_names import CHANGING, PUBLIC, names_of

ROOT = Path(__file__).resolve().parent.parent
FILES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in FILES}
# Each of these is run as one script, and the tests in it are called; docs/codec.md, docs/spark.md and
# docs/recording-format.md have tests of their own.
SCRIPTS = {
    "README.md": ("session_timeout_ms", "group billing: Stable", "; new member: rdkafka-"),
    "docs/assignors.md": (
        "ORDER: {z2 b:0; z4 -}; then {z2 -; z4 b:0}",
        "{'small': {'orders': [3]}, 'large': {'orders': [0, 1, 2]}}",
    ),
    "docs/central.md": ("partitions ['1-0', '1-1'] epoch 1",),
    "docs/connection.md": (
        "c1 billing",
        "27 for Heartbeat v4 mine",
        "ApiVersions v5: error 35\nApiVersions v2: error 0\n3",
    ),
    "docs/consumer.md": ("a gets", "b gets", "member left", "failed for 1 partitions because the disk is full"),
    "docs/coordinator.md": ("127.0.0.1:",),
    "docs/marshal.md": ("orders 2 2 order 8", "committed [3, 3, 3]", "holds True"),
    "docs/rewrite.md": ("partition=5): 'm", "1 partition had two readers"),
    "docs/simulation.md": ("session timeout",),
    "docs/virtual-loop.md": ("session timeout",),
    "docs/proposal-variants.md": ("True 2 12", "settled after"),
    "docs/known-bugs.md": ("False 1",),
    "docs/watch.md": ("gone, held orders 2-3; rebalance #1 began: member left (50%)", "member left 0.5 4000.0"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = "\n".join(re.findall(r"```python\n(.*?)```", TEXTS[name], re.S))
    names: dict[str, Any] = {}
    exec(compile(script, name, "exec"), names)
    for test in [value for each, value in names.items() if each.startswith("test_")]:
        test()
    out = capsys.readouterr().out
    assert [expected for expected in SCRIPTS[name] if expected not in out] == []


def imported(program: str) -> Iterator[tuple[str, str]]:
    """Each name that a program imports of ours, with its module."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kcoord_wire":
            yield from ((node.module, alias.name) for alias in node.names)


def test_pages_import_what_they_say_is_public() -> None:
    """The programs of the examples as well; a page of a design may use what is said to change."""
    programs = [(name, "".join(re.findall(r"```python\n(.*?)```", text, re.S))) for name, text in TEXTS.items()]
    programs += [(path.name, path.read_text("utf-8")) for path in (ROOT / "docs" / "examples").glob("*.py")]
    used = {(module, each) for _, program in programs for module, each in imported(program)}
    assert len(used) > 40
    assert {module for module, _ in used} - set(PUBLIC) <= set(CHANGING)
    assert [(module, name) for module, name in used if module in PUBLIC and name not in names_of(module)] == []
    assert [name for name in CHANGING if not import_module(name)] == []


def test_command_lines_parse() -> None:
    lines = [line for text in TEXTS.values() for line in re.findall(r"^ *kcoord ([^.].*)$", text, re.M)]
    assert len(lines) > 10
    for line in lines:
        assert parse(shlex.split(re.split(" [#|>]", line, maxsplit=1)[0])), line


def test_the_bytes_of_the_codec_page_decode(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = re.findall(r"^    kcoord (decode .*)$", TEXTS["docs/codec.md"], re.M)
    assert main(line.split()) == 0
    assert "billing" in capsys.readouterr().out


def test_links_lead_to_files() -> None:
    dead = [
        f"{name}: {target}"
        for name, text in TEXTS.items()
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text)
        if not (ROOT / name).parent.joinpath(target).exists()
    ]
    assert dead == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    unknown = [(name, word) for name, text in TEXTS.items() for word in re.findall(r"[`(]make ([a-z-]+)", text)]
    assert [(name, word) for name, word in unknown if word not in targets] == []


def test_the_hooks_of_pre_commit_are_what_make_lint_runs() -> None:
    [lint] = re.findall(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    commands = [line.removeprefix("\t$(PY) ").split() for line in lint.splitlines()]
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    hooks = [hook["entry"].split() for hook in repository["hooks"]]
    assert all(hook[0] == ".venv/bin/python" for hook in hooks)
    of_ruff = {".", "--check", "--force-exclude"}  # a hook has the names of the files, and may change them
    assert [set(hook[1:]) - of_ruff for hook in hooks] == [set(command) - of_ruff for command in commands]


def test_the_architecture_names_what_exists() -> None:
    """Paths count from the repository, the package, the coordinator or forensics/wire; other names are defined."""
    text = TEXTS["ARCHITECTURE.md"]
    package = ROOT / "kcoord_wire"
    places = (ROOT, package, package / "coordinator", package / "forensics" / "wire")
    paths = re.findall(r"`([\w./]+/[\w.]*|[\w/]+\.py)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not any((place / path).exists() for place in places)] == []
    sources = "\n".join(path.read_text("utf-8") for path in [ROOT / "tests" / "test_laws.py", *package.rglob("*.py")])
    names = set(re.findall(r"`([A-Z]\w+|[a-z]+(?:_[a-z]+)+)`", text))
    assert len(names) > 15
    assert {name for name in names if not re.search(rf"\b(?:class|def) {name}\b|^{name}\b", sources, re.M)} == set()
    assert len(text.splitlines()) <= 100


def test_the_extras_of_the_readme_are_those_that_pip_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {name: set(map(_library, names)) for name, names in project["optional-dependencies"].items()}
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", TEXTS["README.md"], re.M)
    assert {name for name, _ in rows} == set(extras) - {"native", "test", "dev"}
    for name, listed in rows:
        wanted = {"`analyze`" if "analyze" in library else library for library in extras[name]}
        for inner in [each for each in wanted if each.startswith("kcoord_wire")]:
            wanted.remove(inner)
            for each in re.findall(r"\w+", inner.partition("[")[2]):
                wanted |= extras[each]
        assert set(listed.split(", ")) == wanted, name


def _library(requirement: str) -> str:
    return re.split(r"[<>=;! ]", requirement)[0]


def test_the_readme_is_short() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 150
