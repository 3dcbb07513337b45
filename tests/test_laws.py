"""The laws of the house, read off the source: who may import whom, what every module has, what no file says."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kcoord_wire"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PYTHON = [path for part in ("kcoord_wire", "tests", "fuzz") for path in sorted((ROOT / part).rglob("*.py"))]
KAFKA_CLIENTS = {"aiokafka", "confluent_kafka", "kafka", "kio", "pykafka"}
BANNED_MODULES = {"utils", "common", "helpers", "misc", "base"}
GENERATORS = re.compile(r"kcoord_wire\.schema\.(emit_\w+|generate)(\.|$)")

# What a part may import of ours besides itself; "" is the package's own public names.
DATA = {"errors", "extras", "background", "serving", "api_keys", "error_codes"}
SYSTEM = {"", "messages", "codec", "assignors", "records"} | DATA
MAY_IMPORT = {
    "messages": set(),
    "schema": DATA,
    "codec": {"messages", "schema", "_native"} | DATA,
    "records": {"", "messages", "codec"} | DATA,
    "capture": {"", "messages", "codec", "records"} | DATA,
    "assignors": {"messages"} | DATA,
    "group": SYSTEM,
    "central": SYSTEM,
    "marshal": SYSTEM,
    "forensics": {"", "messages", "codec", "records", "capture", "fields"} | DATA,
    "report": {"forensics", "fields"} | DATA,
    "spark": SYSTEM | {"capture", "schema", "forensics", "report"},
}
# Pure objects: what happens, and when, is told to them.
STATE_MACHINES = ("group.machine", "group.topics", "group.member", "group.faults", "group.permissions")
WORLD = {"asyncio", "os", "random", "secrets", "select", "selectors", "signal", "socket", "ssl", "subprocess"}
WORLD |= {"tempfile", "threading", "time", "uvloop"}
UNIQUE = {"uuid.uuid1", "uuid.uuid4"}
PARTS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that the file names in an import, wherever it stands, relative ones made absolute."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


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


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_only_what_lies_below_it(part: str) -> None:
    files = sorted((PACKAGE / part).rglob("*.py"))
    allowed = MAY_IMPORT[part] | {part}
    wrong = [
        f"{by_path(path)} imports {name}"
        for path in files
        for name in imports(path)
        if name.split(".")[0] == "kcoord_wire" and "".join(name.split(".")[1:2]) not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=by_path)
def test_foreign_libraries_stay_in_their_folder(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0]
    tops = {name.split(".")[0] for name in imports(path)}
    assert part == "spark" or "pyspark" not in tops
    assert part == "central" or "kazoo" not in tops
    assert part == "marshal" or not tops & KAFKA_CLIENTS


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


@pytest.mark.parametrize("name", STATE_MACHINES)
def test_state_machines_know_nothing_of_the_world(name: str) -> None:
    wrong = [
        f"{by_path(path)} imports {found}"
        for path in sorted(with_siblings(PACKAGE / f"{name.replace('.', '/')}.py"))
        for found in imports(path)
        if found.split(".")[0] in WORLD or found in UNIQUE or found.startswith("kcoord_wire.codec")
    ]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=by_path)
def test_nothing_at_run_time_imports_the_emitters(path: Path) -> None:
    if not GENERATORS.match(module_name(path)):
        assert [name for name in imports(path) if GENERATORS.match(name)] == []


def test_importing_the_package_needs_the_standard_library_alone() -> None:
    """The core has no dependency: with every other library refused, a message still goes there and back."""
    program = """
import sys
for name in ("construct", "cramjam", "crc32c", "dpkt", "rich", "Cython", "pyspark", "kazoo", "uvloop", "scramp"):
    sys.modules[name] = None
import kcoord_wire as kw
import kcoord_wire.group.machine
request = kw.registry.request(12).cls(group_id="g", member_id="m")
assert kw.decode(type(request), kw.encode(request, 4), 4) == request
print(sorted(name for name in sys.modules if name.startswith("kcoord_wire.schema.emit_")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize("path", PYTHON, ids=by_path)
def test_a_module_opens_with_a_docstring_and_has_a_telling_name(path: Path) -> None:
    assert path.stem not in BANNED_MODULES
    assert path.parent.name not in BANNED_MODULES
    text = path.read_text("utf-8")
    assert ast.get_docstring(ast.parse(text)) or not text.strip()


@pytest.mark.parametrize("path", SOURCES, ids=by_path)
def test_a_module_says_what_is_public_and_documents_it(path: Path) -> None:
    if path.name == "__main__.py":
        return
    tree = ast.parse(path.read_text("utf-8"))
    assigned = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    assigned += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    listed = [target for target in assigned if isinstance(target, ast.Name) and target.id == "__all__"]
    assert len(listed) == 1, "a module has one __all__"
    module = importlib.import_module(module_name(path))
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []
    bare = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name in module.__all__
        and node.name != "main"  # a command, whose module's docstring is its manual
        and not ast.get_docstring(node)
    ]
    assert bare == [] or path.is_relative_to(PACKAGE / "messages")


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
