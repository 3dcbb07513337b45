"""The laws of the repository, read off the source: who may import whom, what every module has, what no file says.

A law is one test that lists every file that breaks it, so that one run shows all of them.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lizard
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kcoord_wire"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PYTHON = [path for part in ("kcoord_wire", "tests", "fuzz") for path in sorted((ROOT / part).rglob("*.py"))]
BANNED_MODULES = {"utils", "common", "helpers", "misc", "base"}
GENERATORS = re.compile(r"kcoord_wire\.schema\.(emit_\w+|generate)(\.|$)")

# What a room may import of this package besides itself; "" means the package's own public names. A room without a row
# belongs to the room around it.
DATA = {"errors", "extras", "api_keys", "error_codes", "client_bugs", "key_partitions", "lazy_names"}
PROTOCOL = {"", "messages", "codec", "assignors"} | DATA
FRAMES = {"", "messages", "codec", "codec.columns", "records", "capture", "recorder"} | DATA
MAY_IMPORT = {
    "messages": {"short_repr", "lazy_names"},
    "schema": DATA,
    "codec": {"messages", "schema", "short_repr", "_native", "_columns"} | DATA,
    "codec.columns": {"messages", "schema", "codec", "_columns"} | DATA,
    "records": {"", "messages", "codec"} | DATA,
    "assignors": {"messages", "codec"} | DATA,
    "capture": {"", "messages", "codec", "net"} | DATA,
    "recorder": {"", "messages", "codec", "capture", "background", "net"} | DATA,
    "coordinator.core": {"", "messages", "machines", "timers"} | DATA,
    "coordinator.consumer_groups": {"", "messages", "assignors", "coordinator.core", "timers"} | DATA,
    "coordinator.log": {"coordinator.core", "records", "disk"} | DATA,
    "coordinator.partitions": {"coordinator.core", "coordinator.log", "disk", "records"} | DATA,
    "coordinator.topics": {"", "messages", "coordinator.core", "coordinator.log", "coordinator.partitions"}
    | {"disk", "records"}
    | DATA,
    "coordinator.security": {"", "messages", "coordinator.core"} | DATA,
    "coordinator.transactions": {"", "messages", "coordinator.core", "timers"} | DATA,
    "coordinator": {
        "coordinator.consumer_groups",
        "coordinator.core",
        "coordinator.log",
        "coordinator.partitions",
        "coordinator.security",
        "coordinator.topics",
        "coordinator.transactions",
        "background",
        "disk",
        "exposition",
        "fields",
        "net",
    }
    | PROTOCOL,
    "consumer": {"machines", "net", "records"} | PROTOCOL,
    "zookeeper": {"java", "machines", "procedures", "timers"} | DATA,
    "central.draft": {"machines", "procedures", "timers", "zookeeper"} | PROTOCOL,
    "central.rewrite": {"machines", "procedures", "timers", "zookeeper"} | PROTOCOL,
    "central": {
        "central.draft",
        "central.rewrite",
        "hosts",
        "machines",
        "procedures",
        "zookeeper",
        "background",
        "fields",
        "net",
    }
    | {"records"}
    | PROTOCOL,
    "marshal": {"hosts", "librdkafka", "machines", "procedures", "timers", "records", "disk", "net", "coordinator.log"}
    | PROTOCOL,
    "simulation": {"disk", "machines", "zookeeper"} | DATA,
    "simulation.proposal": {"simulation", "simulation.group", "machines", "coordinator.core"} | PROTOCOL,
    "simulation.central": {"simulation", "machines", "zookeeper", "central", "central.draft"} | PROTOCOL,
    "simulation.rewrite": {"simulation", "simulation.central", "machines", "zookeeper", "central", "central.rewrite"}
    | PROTOCOL,
    "simulation.marshal": {"simulation", "machines", "marshal"} | PROTOCOL,
    "simulation.virtual_loop": {"simulation"} | DATA,
    "simulation.consumer_groups": {"simulation", "simulation.group", "machines", "consumer"}
    | {"coordinator", "coordinator.core", "coordinator.consumer_groups"}
    | PROTOCOL,
    "simulation.transactions": {"simulation", "machines", "procedures", "timers", "key_partitions", "records"}
    | {"coordinator", "coordinator.core", "coordinator.consumer_groups", "coordinator.log", "coordinator.topics"}
    | {"coordinator.transactions", "coordinator.partitions"}
    | PROTOCOL,
    "simulation.group": {"simulation", "simulation.virtual_loop", "disk", "machines", "consumer"}
    | {"coordinator", "coordinator.core", "coordinator.consumer_groups", "coordinator.log", "coordinator.topics"}
    | {"coordinator.security"}
    | PROTOCOL,
    "forensics": {"forensics.sources", "forensics.exchanges", "forensics.wire", "forensics.log", "forensics.detectors"}
    | {"forensics.marshal", "forensics.lines"}
    | DATA,
    "forensics.sources": {"forensics", "forensics.lines", "forensics.marshal", "librdkafka"} | FRAMES,
    "forensics.lines": {"forensics"} | DATA,
    "forensics.exchanges": {"forensics"} | FRAMES - {"recorder", "records"},
    "forensics.wire": {"forensics"} | DATA,
    "forensics.log": {"forensics"} | FRAMES - {"recorder", "capture"},
    "forensics.marshal": {"forensics", "forensics.detectors", "marshal", "messages"} | DATA,
    "forensics.detectors": {"forensics"} | DATA,
    "control": {"", "coordinator", "coordinator.core"},
    "report": {"report.page", "forensics", "fields"} | DATA,
    "report.page": {"report", "forensics"} | DATA,
    "watch": {"forensics", "forensics.detectors", "forensics.log", "report", "exposition", "librdkafka"} | DATA,
    "spark": {"java", "schema", "forensics", "forensics.sources", "forensics.exchanges", "forensics.wire"}
    | {"forensics.log", "forensics.lines", "forensics.marshal", "forensics.detectors"}
    | FRAMES,
    "cli": {"*"},
}
# Pure objects: events and times come in as arguments.
STATE_MACHINES = (
    "coordinator.core.machine",
    "coordinator.consumer_groups.machine",
    "coordinator.topics.topics",
    "coordinator.transactions.machine",
    "coordinator.transaction_flow",
    "coordinator.fault_injection",
    "coordinator.security.authorization",
    "consumer.machine",
    "marshal.at_most_once",
    "marshal.balance",
    "marshal.admin",
    "marshal.complaints",
    "marshal.divergence",
    "marshal.events",
    "marshal.handoff",
    "marshal.inbox",
    "marshal.machine",
    "marshal.state",
    "marshal.observer",
    "marshal.set_position",
    "marshal.status",
    "marshal.prefix",
    "marshal.range_claimer",
    "marshal.ranges",
    "zookeeper.leadership",
    "central.draft.coordinator",
    "zookeeper.brokers",
    "central.draft.consumer",
    "central.rewrite.link",
    "central.rewrite.member",
    "central.rewrite.coordinator",
    "simulation.consumer_groups.member",
    "simulation.transactions.transformer",
    "simulation.proposal.all_members",
    "simulation.proposal.subscription_hash",
    "simulation.proposal.single_assignor",
    "watch.group",
    "watch.groups",
    "watch.view",
    "zookeeper.memory",
    "zookeeper.memory_registry",
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
# The modules without a test module of their name, the file that tests them, and why that is enough.
TESTED_IN = {
    # Plain data: these tests construct and compare the instances.
    "coordinator.core.events": "coordinator/test_machine.py",
    # What the machine keeps and answers: its tests run on it.
    "coordinator.transactions.operators": "coordinator/test_transactions_machine.py",
    # What a group machine keeps: these tests run on it.
    "coordinator.core.any_group": "coordinator/test_groups.py",
    "coordinator.core.rebalancing": "coordinator/test_machine.py",
    "coordinator.core.logged_machine": "coordinator/test_machine.py",
    "coordinator.core.moves": "coordinator/test_groups.py",
    "coordinator.core.pending_offsets": "coordinator/test_transactional_offsets.py",
    # What the permissions leave of a request: these tests send each api's.
    "coordinator.security.authorization": "coordinator/test_permissions.py",
    "coordinator.security.request_parts": "coordinator/test_permissions.py",
    # Two pairs of functions, with which the store's tests run.
    "coordinator.log.formats": "coordinator/test_store.py",
    # The store's reading and compaction, which its tests run as a whole.
    "coordinator.log.replay": "coordinator/test_store.py",
    "coordinator.log.compaction": "coordinator/test_store.py",
    "coordinator.topics.limits": "coordinator/test_topics.py",
    "coordinator.topics.served": "coordinator/test_topics.py",
    # Parts of the topics, whose tests send every request through the whole.
    "coordinator.topics.fetching": "coordinator/test_topics.py",
    "coordinator.topics.lookups": "coordinator/test_topics.py",
    "coordinator.topics.metadata": "coordinator/test_topics.py",
    "forensics.detectors.found": "forensics/detectors/test_registry.py",
    "forensics.importance": "forensics/detectors/test_registry.py",
    "forensics.model": "forensics/test_analysis.py",
    "forensics.refusal_advice": "forensics/detectors/test_refusals.py",
    "records.model": "records/test_batch.py",
    "watch.seen": "watch/test_group.py",
    "zookeeper.model": "zookeeper/test_procedures.py",
    "marshal.events": "marshal/test_machine.py",
    # Arguments and connections, with which these tests run.
    "cli.marshal_cluster": "cli/test_marshal_status.py",
    "marshal.state": "marshal/test_machine.py",
    # Implementations of an interface, which its contract tests.
    "marshal.memory_log": "marshal/test_log_contract.py",
    "marshal.memory_topics": "marshal/test_topics_contract.py",
    # Plain data: these tests compare the instances.
    "forensics.marshal.parts": "forensics/marshal/test_reader.py",
    # The thread around the member, which these tests start and stop as a whole.
    "marshal.member_host": "marshal/test_client.py",
    # The part of the procedures that needs requests; their tests ask ZooKeeper in memory.
    "procedures": "zookeeper/test_procedures.py",
    # What the registry's client adds to kazoo's: the contract and these tests run it on a real server.
    "zookeeper.strict_client": "zookeeper/test_client.py",
    "simulation.violation": "simulation/test_script.py",
    "cli.seeds": "cli/test_simulate.py",
    # The processes of a virtual cluster, which these tests start, pause, cut off and kill.
    "simulation.central.brokers": "simulation/central/test_cluster.py",
    "simulation.central.consumers": "simulation/central/test_cluster.py",
    "simulation.proposal.events": "simulation/proposal/test_member.py",
    # Applications, which these tests run, fence and kill; laws, each of which these tests break.
    "simulation.transactions.transformer": "simulation/transactions/test_cluster.py",
    "simulation.transactions.readers": "simulation/transactions/test_invariants.py",
    # One table, which the codec of each API applies.
    "coordinator.core.versions": "coordinator/test_api_codec.py",
    # Error classes: these tests compare kind, path and text of every error that the codec raises, or a connection.
    "errors": "codec/test_python.py",
    "consumer.errors": "consumer/test_connection.py",
    # A part of the member, which these tests drive through every error and timeout.
    "central.rewrite.link": "central/rewrite/test_member.py",
    # Error classes; and what runs the pure modules beside them on sockets: these tests do so as a whole.
    "consumer.failures": "consumer/test_client.py",
    # Parts of the coordinator, which these tests run as a whole.
    "central.draft.context": "central/draft/test_coordinator.py",
    "central.draft.fetcher_rebalance": "central/draft/test_rebalance.py",
    # One function that imports a library: here the library of an extra is missing.
    "extras": "coordinator/test_metrics.py",
    # A thread or a socket around the coordinator, which these tests start and stop as a whole.
    "central.hosting": "central/test_broker.py",
    "background": "coordinator/test_coordinator.py",
    "coordinator.server": "coordinator/test_coordinator.py",
    # The bytes and bounds of a connection, which its server's tests send over sockets.
    "central.connection": "central/test_server.py",
    # What the relays of a proxy share; each relay test builds one and reads its counters.
    "recorder.context": "recorder/test_relay.py",
    # One side of a pair that is tested in both directions.
    "records.lz4_header": "records/test_compression.py",
    "records.reader": "records/test_segment.py",
    "records.record": "records/test_batch.py",
    # Tables of lines, each row of which these tests read.
    "forensics.lines.broker_shapes": "forensics/lines/test_parsing.py",
    "forensics.lines.client_shapes": "forensics/lines/test_parsing.py",
    # What a reader of lines fills; its tests read it.
    "forensics.lines.tables": "forensics/lines/test_broker.py",
    # Two functions over a list of times; a storm is the busiest window.
    "forensics.detectors.windows": "forensics/detectors/test_storm.py",
}
# The packages in messages are generated with it, and are one room.
ROOMS = {
    module: path
    for path in SOURCES
    if path.name == "__init__.py"
    if (module := ".".join(path.parent.relative_to(PACKAGE).parts)) and not module.startswith("messages.")
}


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file; several laws read each."""
    return ast.parse(path.read_text("utf-8"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> list[str]:
    """Every module that the file names in an import, at any place, relative ones made absolute."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    found = []
    for node in ast.walk(tree(path)):
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
    """The files that a commit would hold: tracked ones and new ones that are not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    paths = [ROOT / name for name in listing.split("\0") if name]
    return [path for path in paths if path.is_file() and is_text(path.read_bytes())]


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
    while inner and inner not in ROOMS:
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
            reached = reached if reached in ROOMS or reached in files else ""
            if room and "*" not in allowed and reached not in allowed | {room}:
                wrong.append(f"{by_path(path)} imports {name}")
    assert wrong == []
    assert {room for room in MAY_IMPORT if room not in ROOMS} == set(), "a row without its room"
    assert set(ROOMS) - set(MAY_IMPORT) == set(), "a room without its row"


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
    wrong = [
        f"{by_path(path)} imports {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in imports(path)
        if name.split(".")[0] == "tests" and re.match(r"test_|conftest$", name.rsplit(".", 1)[-1])
        if (ROOT / f"{name.replace('.', '/')}.py").exists()
    ]
    assert wrong == []


def test_every_module_has_its_tests() -> None:
    """tests/<part>/test_<module>.py, or below it; or the row of `TESTED_IN` that says where, for what has none."""
    tests: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests.setdefault(path.relative_to(ROOT / "tests").parts[0], set()).add(path.name)
    without = set()
    for path in SOURCES:
        *rooms, name = path.relative_to(PACKAGE).with_suffix("").parts
        if name not in ("__init__", "__main__") and rooms[:1] != ["messages"]:
            part = tests.get(rooms[0] if rooms else f"test_{name}.py", set())
            if not part & {f"test_{name}.py", *(f"test_{room}_{name}.py" for room in rooms)}:
                without.add(".".join([*rooms, name]))
    assert without - set(TESTED_IN) == set(), "a module without tests"
    assert set(TESTED_IN) - without == set(), "a row of a module that has its own tests, or does not exist"
    assert [file for file in TESTED_IN.values() if not (ROOT / "tests" / file).exists()] == []


def test_the_makefile_names_tests_that_exist() -> None:
    """pytest ignores an `--ignore` of a path that does not exist."""
    named = re.findall(r"tests/[\w/]+(?:\.\w+)?", (ROOT / "Makefile").read_text("utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_names_of_tests_are_short() -> None:
    long = [
        f"{by_path(path)}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > LONGEST_NAME
    ]
    assert long == []


def test_no_function_is_too_complex() -> None:
    """lizard counts each condition, so it sees what ruff's C901 (10 at most) does not."""
    found = {
        f"{by_path(Path(file.filename))}:{function.name}"
        for file in lizard.analyze_files([str(path) for path in SOURCES], exts=[])
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
        if path.stat().st_size and not ast.get_docstring(tree(path)):
            wrong.append(f"{by_path(path)}: no docstring")
    assert wrong == []


def test_public_names_are_documented_and_packages_list_theirs() -> None:
    """`__all__` is the face of a package; elsewhere a name is public unless it begins with an underscore."""
    wrong = []
    for path in SOURCES:
        if path.is_relative_to(PACKAGE / "messages"):
            continue  # generated: the schema file has the text
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
