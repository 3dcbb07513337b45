"""The sdist and the wheels of this checkout, built and installed as a user gets them.

Laws:

* The sdist is made of the files that a commit would hold, in a copy: what lies in the checkout besides does not get in.
* Wheels are built from the sdist, so it has all that a build needs.
* What is installed runs without a compiler, and sees neither this checkout nor its settings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Final

from tests.support.processes import ROOT, run_tool

SMOKE: Final = ROOT / "tests" / "support" / "wheel_smoke.py"


def committed_files() -> list[Path]:
    """The files that a commit would hold: tracked ones, and new ones that are not ignored; relative to the checkout."""
    listing = run_tool(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    return [Path(name) for name in listing.split("\0") if name and (ROOT / name).is_file()]


def build_sdist(where: Path, python: str = sys.executable) -> Path:
    """Build the sdist in `where`, and give it.

    :param python: an environment that has setuptools
    """
    for name in committed_files():
        (where / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, where / "checkout" / name)
    command = [python, "setup.py", "--quiet", "sdist", "--dist-dir", str(where / "dist")]
    run_tool(command, where / "checkout", attempts=1)
    [sdist] = (where / "dist").glob("*.tar.gz")
    return sdist


def unpack(sdist: Path, where: Path) -> Path:
    """The folder of the sdist's sources, unpacked in `where`."""
    with tarfile.open(sdist) as archive:
        archive.extractall(where, filter="data")
    return where / sdist.name.removesuffix(".tar.gz")


def build_wheel(
    sources: Path, *program: str, python: str = sys.executable, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """Build a wheel of unpacked sources with the tools that are installed; give its log and the new wheels.

    :param program: what runs setup.py; that file itself if left out
    :param python: of the environment whose build tools are used; this one if left out
    """
    built = sources / "dist"
    before = set(built.glob("*.whl"))
    done = subprocess.run(
        [python, *(program or ["setup.py"]), "--quiet", "bdist_wheel", "--dist-dir", str(built)],
        cwd=sources,
        env={key: value for key, value in os.environ.items() if not key.startswith("KCOORD_WIRE_")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, sorted(set(built.glob("*.whl")) - before)


def bare_environment() -> dict[str, str]:
    """No compiler on the path, no variable that leads Python to this checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KCOORD_WIRE_", "PYTHON"))}
    return kept | {"PATH": "/nonexistent", "CC": "/bin/false"}


def empty_environment(where: Path, python: str = sys.executable) -> str:
    """Make a virtual environment without any package, and give its Python."""
    if python == sys.executable:
        venv.create(where, with_pip=False)
    else:
        run_tool([python, "-m", "venv", "--without-pip", str(where)], attempts=1)
    return str(where / "bin" / "python")


def install(python: str, *requirements: str) -> None:
    """Install into an environment with this Python's pip, without a compiler."""
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, *requirements], env=bare_environment(), check=True, stdin=subprocess.DEVNULL)


def smoke(python: str, backend: str) -> str:
    """What the smoke test prints in an environment that has the package.

    :raises AssertionError: it has failed, with what it wrote
    """
    program = [python, str(SMOKE), backend]
    folder = Path(python).parents[1]
    done = subprocess.run(program, env=bare_environment(), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
