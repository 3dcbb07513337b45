"""`make` sets up what it needs, also after a SIGKILL at any of its steps, and then does nothing twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.waiting import eventually

# A project that is installed and built as ours is, but without a network or a compiler. As a linker does, its setup.py
# writes into the file itself, and takes one that is newer than its source to be whole.
FILES = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": """
import pathlib, runpy, zipfile

def build_editable(folder, settings=None, metadata=None):
    files = {
        "kcoord_wire.pth": str(pathlib.Path.cwd()),
        "kcoord_wire-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: kcoord_wire\\nVersion: 1\\n"
        "Provides-Extra: dev\\n",
        "kcoord_wire-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "kcoord_wire-1.dist-info/RECORD": "",
    }
    runpy.run_path("setup.py")
    with zipfile.ZipFile(pathlib.Path(folder, "kcoord_wire-1-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "kcoord_wire-1-py3-none-any.whl"
""",
    "setup.py": """
import pathlib, sysconfig, time

module = pathlib.Path("kcoord_wire", "_native" + sysconfig.get_config_var("EXT_SUFFIX"))
if not module.exists() or module.stat().st_mtime_ns < pathlib.Path("setup.py").stat().st_mtime_ns:
    with open("builds", "a") as log:
        log.write("built\\n")
    module.write_text("half")
    while pathlib.Path("hold").exists():
        time.sleep(0.01)
    module.write_text("whole")
""",
    "kcoord_wire/__init__.py": "import pathlib; [module] = pathlib.Path(__file__).parent.glob('_native*.so')\n"
    "backend = module.read_text()\n",
}
READY = "kcoord_wire is ready: whole codec\n"


def make(folder: Path) -> subprocess.Popen[str]:
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTHON", "VIRTUAL"))
    }
    command = ["make", "--silent", "setup", f"PYTHON={sys.executable}"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=kept, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def kill_when(reached: Callable[[], bool], folder: Path) -> None:
    """Kill `make` and all that it has started as soon as they have got so far."""
    running = make(folder)
    try:
        eventually(lambda: reached() or running.poll() is not None, seconds=300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        out, errors = running.communicate()
    assert reached(), out + errors
    assert running.returncode == -signal.SIGKILL, "make had ended before it was killed"


def setup(folder: Path) -> str:
    out, errors = (running := make(folder)).communicate(timeout=300)
    assert running.returncode == 0, errors
    return out


@pytest.mark.slow
def test_a_set_up_that_was_killed_is_made_good(tmp_path: Path) -> None:
    """Each `make` gets over the place where the one before it was killed."""
    (tmp_path / "kcoord_wire").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "hold").touch()
    module, venv = tmp_path / "kcoord_wire" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}", tmp_path / ".venv"

    def is_half() -> bool:
        return module.exists() and module.read_text() == "half"

    kill_when((venv / "bin" / "python").exists, tmp_path)  # without pip
    kill_when(lambda: any(venv.glob("lib/*/site-packages/pip")), tmp_path)  # pip is there in part
    kill_when(is_half, tmp_path)  # pip builds the module
    (tmp_path / "hold").unlink()
    assert setup(tmp_path) == READY
    (tmp_path / "hold").touch()
    (tmp_path / "setup.py").touch()
    kill_when(is_half, tmp_path)  # make builds it
    (tmp_path / "hold").unlink()
    assert setup(tmp_path) == READY
    builds = (tmp_path / "builds").read_text()
    assert (setup(tmp_path), (tmp_path / "builds").read_text()) == (READY, builds)
