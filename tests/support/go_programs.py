"""The Go programs of tests/interop/go, built under build/interop.

Debian's go does: where it is older than go.mod asks for, the one that go.mod names is fetched as the Go module that it
is (`go_command`).
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Final

from tests.support.kafka_broker import tool
from tests.support.processes import BUILD, ROOT, locked, run_tool

SOURCES: Final = ROOT / "tests" / "interop" / "go"


def build_go_programs() -> Path:
    """Build them, and give the folder that has them under the names of their packages."""
    folder = BUILD / "go"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        go, environment = go_command()
        run_tool([go, "build", "-mod=readonly", "-buildvcs=false", "-o", str(folder), "./..."], SOURCES, environment)
    return folder


def version(text: str) -> tuple[int, ...]:
    """The first numbers with dots between them."""
    found = re.search(r"\d+(\.\d+)+", text)
    assert found is not None, text
    return tuple(map(int, found[0].split(".")))


def go_command() -> tuple[str, dict[str, str]]:
    """A go that is as new as go.mod asks for, and what has to be in its environment.

    Since 1.21 go fetches a newer one by itself, where it may. An older one can fetch the same module; then its files
    named ``_go.mod`` have to be ``go.mod``, and its programs executable, as a newer go sees to by itself.
    """
    go = tool("go", "golang-go")
    wanted = version((SOURCES / "go.mod").read_text())
    found = version(run_tool([go, "env", "GOVERSION"], SOURCES, {"GOTOOLCHAIN": "local"}))
    if found >= wanted:
        return go, {"GOTOOLCHAIN": "local"}
    if found >= (1, 21):
        return go, {"GOTOOLCHAIN": "auto"}
    toolchain = BUILD / f"go{'.'.join(map(str, wanted))}"
    with locked(toolchain):  # the programs and the peers' suites may be built at the same time
        if not toolchain.exists():
            _fetch_toolchain(go, toolchain)
    return str(toolchain / "bin" / "go"), {"GOTOOLCHAIN": "local", "GOROOT": str(toolchain)}


def _fetch_toolchain(go: str, toolchain: Path) -> None:
    scratch = BUILD / "go-scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    (scratch / "go.mod").write_text("module scratch\n")
    platform = "-".join(run_tool([go, "env", "GOHOSTOS", "GOHOSTARCH"], scratch).split())
    module = f"golang.org/toolchain@v0.0.1-{toolchain.name}.{platform}"
    source = json.loads(run_tool([go, "mod", "download", "-json", module], scratch))["Dir"]
    copy = scratch / toolchain.name
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    for folder in [copy, *filter(Path.is_dir, copy.rglob("*"))]:
        folder.chmod(0o755)
    for renamed in copy.rglob("_go.mod"):
        renamed.rename(renamed.with_name("go.mod"))
    for program in [*(copy / "bin").iterdir(), *(copy / "pkg" / "tool").rglob("*")]:
        program.chmod(0o755)
    copy.rename(toolchain)  # all of it or nothing, whatever breaks off before
