"""The laws of the repository, read off the source: who may import whom, what every module has, what no file says.

A law is one test that lists every file that breaks it, so that one run shows all of them.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lizard
import pytest

from tests.support.distributions import committed_files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kcoord_wire"
SOURCES = sorted(PACKAGE.rglob("*.py"))
WRITTEN = [path for path in SOURCES if not path.is_relative_to(PACKAGE / "messages")]  # the rest is generated
PYTHON = [
    path for part in ("kcoord_wire", "tests", "fuzz", "docs/website") for path in sorted((ROOT / part).rglob("*.py"))
]
TESTS = [path for path in PYTHON if path.name.startswith("test_")]
CONFTESTS = [path for path in PYTHON if path.name == "conftest.py"]
STARTS_WITH_A_DOCSTRING = re.compile(r'(?:#.*\n)*r?"""\S')
BANNED_MODULES = {"utils", "common", "helpers", "misc", "base"}
GENERATORS = re.compile(r"kcoord_wire\.schema\.(emit_\w+|generate)(\.|$)")

# What a room may import of this package besides itself; "" means the package's own public names. A folder without a row
# belongs to the room around it.
GROUND = {"errors", "extras", "json_schemas", "lazy_names", "protocol"}
CODEC = {"", "messages", "codec"} | GROUND
FRAMES = {"codec.columns", "records", "capture", "recorder"} | CODEC
MACHINES = {"kernel", "assignors"} | CODEC
VIRTUAL = {"kernel", "kernel.virtual"} | MACHINES
MAY_IMPORT = {
    "protocol": {"errors"},
    "messages": {"protocol", "lazy_names"},
    "schema": GROUND,
    "codec": {"", "messages", "schema", "_native", "_columns"} | GROUND,
    "codec.columns": {"messages", "schema", "codec", "_columns"} | GROUND,
    "records": CODEC,
    "kernel": {"codec"} | GROUND,
    "kernel.virtual": {"kernel"} | GROUND,
    "log": {"kernel", "records"} | GROUND,
    "clients": {"kernel"} | GROUND,
    "assignors": CODEC - {""},
    "capture": {"kernel"} | CODEC,
    "recorder": {"kernel", "capture"} | CODEC,
    "coordinator.core": {"kernel"} | CODEC - {"codec"},
    "coordinator.consumer_groups": {"kernel", "assignors", "coordinator.core", "coordinator.share_groups"}
    | {"coordinator.streams_groups"}
    | CODEC - {"codec"},
    "coordinator.share_groups": {"kernel", "assignors", "coordinator.core", "coordinator.consumer_groups"}
    | CODEC - {"codec"},
    "coordinator.streams_groups": {"kernel", "assignors", "coordinator.core", "coordinator.consumer_groups"}
    | CODEC - {"codec"},
    "coordinator.transactions": {"kernel", "coordinator.core"} | CODEC - {"codec"},
    "coordinator.share": {"kernel", "coordinator.core"} | CODEC - {"codec"},
    "coordinator.security": {"kernel", "coordinator.core"} | CODEC - {"codec"},
    "coordinator.log": {"kernel", "log", "coordinator.core", "records"} | GROUND,
    "coordinator.partitions": {"kernel", "log", "coordinator.core", "records"} | GROUND,
    "coordinator.topics": {"kernel", "log", "records", "coordinator.core", "coordinator.log", "coordinator.partitions"}
    | {"coordinator.share"}
    | CODEC - {"codec"},
    "coordinator": {
        "log",
        "records",
        "recorder",
        "coordinator.consumer_groups",
        "coordinator.core",
        "coordinator.log",
        "coordinator.partitions",
        "coordinator.share",
        "coordinator.share_groups",
    }
    | {"coordinator.security", "coordinator.streams_groups", "coordinator.topics", "coordinator.transactions"}
    | MACHINES,
    "consumer": {"records"} | MACHINES,
    "zookeeper": {"kernel"} | GROUND,
    "central": {"records", "zookeeper", "consumer"} | MACHINES,
    "marshal": {"clients", "log", "records"} | MACHINES,
    "worlds": {"coordinator", "coordinator.core"} | VIRTUAL,
    "worlds.proposal": {"worlds.group", "consumer", "coordinator.core"} | VIRTUAL,
    "worlds.central": {"zookeeper", "central"} | VIRTUAL,
    "worlds.marshal": {"marshal"} | VIRTUAL,
    "worlds.group": {"worlds", "clients", "consumer", "coordinator", "coordinator.core", "coordinator.consumer_groups"}
    | {"coordinator.log", "coordinator.security", "coordinator.topics"}
    | VIRTUAL,
    "worlds.share_groups": {"worlds", "coordinator.core", "coordinator.share"} | VIRTUAL,
    "worlds.consumer_groups": {"worlds", "worlds.group", "consumer", "coordinator", "coordinator.core"}
    | {"coordinator.consumer_groups"}
    | VIRTUAL,
    "worlds.transactions": {
        "worlds",
        "consumer",
        "records",
        "coordinator",
        "coordinator.core",
        "coordinator.consumer_groups",
    }
    | {"coordinator.log", "coordinator.partitions", "coordinator.topics", "coordinator.transactions"}
    | VIRTUAL,
    "forensics": {"forensics.sources", "forensics.exchanges", "forensics.wire", "forensics.records"}
    | {"forensics.detectors", "forensics.marshal", "forensics.lines"}
    | GROUND,
    "forensics.sources": {"forensics", "forensics.lines", "forensics.marshal", "clients", "kernel"} | FRAMES,
    "forensics.lines": {"forensics"} | GROUND,
    "forensics.exchanges": {"forensics"} | FRAMES - {"recorder", "records"},
    "forensics.wire": {"forensics"} | GROUND,
    "forensics.records": {"forensics"} | FRAMES - {"recorder", "capture"},
    "forensics.marshal": {"forensics", "forensics.detectors", "marshal", "messages"} | GROUND,
    "forensics.detectors": {"forensics", "forensics.lines", "clients"} | GROUND,
    "control": {"", "kernel", "protocol", "coordinator", "coordinator.core", "json_schemas"},
    "watch": {"clients", "forensics", "forensics.detectors", "kernel", "report"} | GROUND,
    "report": {"codec", "forensics", "forensics.detectors"} | GROUND,
    "spark": {"kernel", "schema", "forensics", "forensics.sources", "forensics.exchanges", "forensics.wire"}
    | {"forensics.records", "forensics.lines", "forensics.marshal", "forensics.detectors"}
    | FRAMES,
    "cli": {"*"},
}
# Pure objects: events and times come in as arguments.
STATE_MACHINES = (
    "coordinator.core.machine",
    "coordinator.consumer_groups.machine",
    "coordinator.topics.topics",
    "coordinator.transactions.machine",
    "coordinator.share.share_machine",
    "coordinator.transaction_flow",
    "coordinator.fault_injection",
    "coordinator.security.authorization",
    "consumer.classic_member",
    "consumer.group_client",
    "consumer.kip848_client",
    "marshal.holding",
    "marshal.claiming",
    "marshal.admin",
    "marshal.member",
    "marshal.observer",
    "marshal.member_events",
    "marshal.inbox",
    "marshal.world_state",
    "marshal.status",
    "marshal.ranges",
    "marshal.range_claiming",
    "marshal.range_topics",
    "zookeeper.leadership",
    "central.draft.coordinator",
    "central.draft.term",
    "zookeeper.layout",
    "central.draft.consumer",
    "central.rewrite.member",
    "central.rewrite.coordinator",
    "consumer.kip848_member",
    "worlds.transactions.transformer",
    "worlds.proposal.all_members",
    "worlds.proposal.single_assignor",
    "worlds.proposal.two_phases",
    "watch.polled_group",
    "watch.groups",
    "watch.view",
    "zookeeper.memory",
)
# A foreign library, and the room that alone may import it.
ONLY_IN = {"pyspark": {"spark"}, "dpkt": {"capture"}, "construct": {"schema", "codec"}, "altair": {"report.page"}}
ONLY_IN |= {name: set() for name in ("aiokafka", "kafka", "kio", "pykafka")}  # Kafka clients belong to the tests
ONLY_IN |= {"kazoo": {"zookeeper"}}
ONLY_IN |= {"confluent_kafka": set()}  # `librdkafka` requires it, for live topics: it brings TLS and SASL
WORLD = {"asyncio", "os", "random", "secrets", "select", "selectors", "signal", "socket", "ssl", "subprocess"}
WORLD |= {"tempfile", "threading", "time", "uvloop"}
UNIQUE = {"uuid.uuid1", "uuid.uuid4"}
LONGEST_NAME = 60
MOST_COMPLEX = 15
MOST_NAMESAKES = 3


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file; several laws read each."""
    return ast.parse(path.read_text("utf-8"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Every statement below the node; `ast.walk` goes through the expressions as well, ten times as many nodes."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, part, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


@cache
def imports(path: Path) -> list[str]:
    """Every module that the file names in an import, at any place, relative ones made absolute."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    found = []
    for node in statements(tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return found


def by_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked_text_files() -> list[Path]:
    """The files that a commit would hold, without images and the like."""
    return [path for path in map(ROOT.joinpath, committed_files()) if is_text(path.read_bytes())]


def is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def test_imports_reads_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "kcoord_wire" / "codec" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text("import a.b\nfrom c import d\nfrom . import e\nfrom ..f import g\ndef h():\n    import i\n")
    assert set(imports(file)) == {
        "a.b", "c", "c.d", "kcoord_wire.codec", "kcoord_wire.codec.e", "kcoord_wire.f", "kcoord_wire.f.g", "i",
    }  # fmt: skip


def room_of(name: str) -> str:
    """Return the innermost room of a module: ``forensics.wire`` for ``kcoord_wire.forensics.wire.rows``."""
    inner = name.removeprefix("kcoord_wire").lstrip(".")
    while inner and inner not in MAY_IMPORT:
        inner = inner.rpartition(".")[0]
    return inner


def imported_rooms(path: Path) -> Iterator[tuple[str, str]]:
    """Each import of ours in the file, and the room or top-level module that it reaches."""
    for name in imports(path):
        if name.split(".")[0] == "kcoord_wire":
            yield name, room_of(name) or "".join(name.split(".")[1:2])


def test_a_room_imports_only_what_its_row_allows() -> None:
    """A name below the package that is not a room is a public name, and counts as ""."""
    files = {path.stem for path in PACKAGE.glob("*.py")} | {"_native", "_columns"}
    wrong = []
    for path in SOURCES:
        room = room_of(module_name(path))
        allowed = MAY_IMPORT.get(room, {"*"})
        for name, reached in imported_rooms(path):
            reached = reached if reached in MAY_IMPORT or reached in files else ""
            if "*" not in allowed and reached not in allowed | {room}:
                wrong.append(f"{by_path(path)} imports {name}")
    assert wrong == []
    folders = {".".join(path.parent.relative_to(PACKAGE).parts) for path in SOURCES}
    assert {room for room in MAY_IMPORT if room not in folders} == set(), "a row without its room"
    assert {name.split(".")[0] for name in folders if name} - set(MAY_IMPORT) == set(), "a room without its row"


def test_foreign_libraries_stay_in_their_rooms() -> None:
    wrong = [
        f"{by_path(path)} imports {library}"
        for path in SOURCES
        for library in {name.split(".")[0] for name in imports(path)} & set(ONLY_IN)
        if path.relative_to(PACKAGE).parts[0] not in ONLY_IN[library]
    ]
    assert wrong == []


def test_no_test_module_imports_another() -> None:
    """What several test modules share is in tests/support, so that each runs alone."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in TESTS + CONFTESTS}
    wrong = [
        f"{by_path(path)} imports {name}"
        for path in PYTHON
        if re.search(r"import.*test_|from.*test_|conftest", path.read_text("utf-8"))  # not all are worth parsing
        for name in imports(path)
        if name in modules
    ]
    assert wrong == []


def test_every_room_has_its_tests() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0] for path in SOURCES if path.parent != PACKAGE}
    tested = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert rooms - tested == {"messages"}, "messages are generated; the codec's tests run over all of them"


def test_the_makefile_names_tests_that_exist() -> None:
    """pytest ignores an `--ignore` of a path that does not exist."""
    named = re.findall(r"tests/[\w/]+(?:\.\w+)?", (ROOT / "Makefile").read_text("utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_name_of_a_module_stands_more_than_three_times() -> None:
    """Who looks for a module by its name in an editor finds a handful at most."""
    names = Counter(path.name for path in SOURCES if not path.is_relative_to(PACKAGE / "messages"))
    assert [name for name, count in names.items() if count > MOST_NAMESAKES and not name.startswith("__")] == []


def test_names_of_tests_are_short() -> None:
    long = re.compile(rf"^ *(?:async )?def (test_\w{{{LONGEST_NAME - 4},}})", re.MULTILINE)
    assert [f"{by_path(path)}: {name}" for path in TESTS for name in long.findall(path.read_text("utf-8"))] == []


def test_no_function_is_too_complex() -> None:
    """lizard counts each condition, so it sees what ruff's C901 (10 at most) does not."""
    found = {
        f"{by_path(Path(file.filename))}:{function.name}"
        for file in lizard.analyze_files([str(path) for path in WRITTEN], exts=[])
        for function in file.function_list
        if function.cyclomatic_complexity > MOST_COMPLEX
    }
    assert found == set()


def with_siblings(path: Path) -> set[Path]:
    """The module, and what it imports of its own folder, however many steps away."""
    found, left = set(), [path]
    while left:
        found.add(module := left.pop())
        names = (
            name.rsplit(".", 1)[-1] for name in imports(module) if name.startswith(module_name(path.parent / "x")[:-2])
        )
        left += [sibling for name in names if (sibling := path.parent / f"{name}.py").exists() and sibling not in found]
    return found


def test_state_machines_import_nothing_of_the_outside_world() -> None:
    wrong = [
        f"{by_path(path)} imports {found}"
        for machine in STATE_MACHINES
        for path in sorted(with_siblings(PACKAGE / f"{machine.replace('.', '/')}.py"))
        for found in imports(path)
        if found.split(".")[0] in WORLD or found in UNIQUE or found.startswith("kcoord_wire.codec")
    ]
    assert wrong == []


def test_nothing_at_run_time_imports_the_emitters() -> None:
    wrong = [
        f"{by_path(path)} imports {name}"
        for path in SOURCES
        if not GENERATORS.match(module_name(path))
        for name in imports(path)
        if GENERATORS.match(name)
    ]
    assert wrong == []


def test_importing_the_package_needs_the_standard_library_alone() -> None:
    """The core has no dependency: with every other library refused, a message still goes there and back."""
    program = """
import sys
for name in ("construct", "cramjam", "crc32c", "dpkt", "rich", "Cython", "pyspark", "uvloop", "scramp"):
    sys.modules[name] = None
import kcoord_wire as kw
import kcoord_wire.coordinator.core.machine
request = kw.registry.request(12).cls(group_id="g", member_id="m")
assert kw.decode(type(request), kw.encode(request, 4), 4) == request
print(sorted(name for name in sys.modules if name.startswith("kcoord_wire.schema.emit_")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_every_module_has_a_docstring_and_a_meaningful_name() -> None:
    wrong = []
    for path in PYTHON:
        if {path.stem, path.parent.name} & BANNED_MODULES:
            wrong.append(f"{by_path(path)}: the name says nothing")
        if path.stat().st_size and not STARTS_WITH_A_DOCSTRING.match(path.read_text("utf-8")):
            wrong.append(f"{by_path(path)}: no docstring")
    assert wrong == []


def test_public_names_are_documented_and_packages_list_theirs() -> None:
    """`__all__` is the face of a package; elsewhere a name is public unless it begins with an underscore."""
    wrong = []
    for path in WRITTEN:
        body = tree(path).body
        assigned = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in assigned):
            module = importlib.import_module(module_name(path))
            wrong += [f"{by_path(path)}: {name} does not exist" for name in module.__all__ if not hasattr(module, name)]
            if path.name != "__init__.py":
                wrong.append(f"{by_path(path)}: only a package lists its names")
        wrong += [
            f"{by_path(path)}: {node.name} has no docstring"
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and node.name not in ("main", "add_parser")  # commands, whose module's docstring is their manual
            and not ast.get_docstring(node)
        ]
    assert wrong == []


def test_no_file_speaks_of_what_is_outside_the_repository() -> None:
    this = Path(__file__).resolve()
    outside = re.compile(r"(?<![\w.])/(work|root|farm|home)/[\w.]|\.\./shared\b")
    unfinished = re.compile(r"\b(TODO|FIXME|XXX)\b")
    wrong = [
        f"{by_path(path)}:{number}: {line.strip()[:100]}"
        for path in tracked_text_files()
        if path != this
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if outside.search(line) or unfinished.search(line)
    ]
    assert wrong == []


def test_generated_files_are_fresh() -> None:
    command = [sys.executable, "-m", "kcoord_wire.schema.generate", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
