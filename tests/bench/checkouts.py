"""Two checkouts of this project next to each other, in processes that take turns.

Laws:

* Both are measured by this checkout's programs on this checkout's messages; only the package is each one's own.
* Processes of the two alternate, so that what else the machine does meets both alike. A ratio is the median of the
  ratios of neighbours; a spread is the slowest process's median by the fastest one's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from .runner import ROOT

OPTION: Final = {"type": Path, "metavar": "PATH", "help": "a checkout with its native modules built, to compare with"}
"""What `--old` takes."""


@dataclass(frozen=True)
class Side:
    """A package and the Python that runs it.

    :ivar folder: what stands before this checkout on the path
    """

    folder: Path
    python: str = sys.executable

    def ask(self, module: str, question: dict[str, Any]) -> dict[str, Any]:
        """What a module of this checkout answers, in a process of its own. CalledProcessError where it fails."""
        environment = {**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}", "KCOORD_WIRE_BACKEND": "native"}
        done = subprocess.run(
            [self.python, "-P", "-m", module],
            input=json.dumps(question | {"folder": str(self.folder)}) + "\n",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=ROOT,
            env=environment,
            timeout=300,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def asked() -> dict[str, Any]:
    """In that process: the question. AssertionError where the package is not that of its side."""
    import kcoord_wire

    question: dict[str, Any] = json.loads(sys.stdin.readline())
    assert Path(str(kcoord_wire.__file__)).is_relative_to(question["folder"]), kcoord_wire.__file__
    return question


def side(checkout: Path, folder: Path, python: Path = Path(sys.executable), modules: Collection[Path] = ()) -> Side:
    """The package of a checkout as it stands there, by links.

    :param folder: to be made; beside the package it gets the sources that the native modules are checked by
    :param modules: the native modules for another Python; those of the checkout itself if left out
    """
    package = folder / "kcoord_wire"
    package.mkdir(parents=True)
    (folder / "_speedups").symlink_to((checkout / "_speedups").resolve(strict=True))
    entries = {entry for entry in (checkout / "kcoord_wire").resolve(strict=True).iterdir() if entry.suffix != ".so"}
    own = () if modules else (checkout / "kcoord_wire").resolve().glob("*.so")
    for entry in {*entries, *own, *modules}:
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    return Side(folder, str(python))


def sides(old: Path | None, folder: Path) -> dict[str, Side]:
    """``old``, where there is one, and ``now``, in the order in which they take turns."""
    return {name: side(checkout, folder / name) for name, checkout in checkouts(old).items()}


def checkouts(old: Path | None) -> dict[str, Path]:
    """Those that are measured, by name."""
    return {"now": ROOT} if old is None else {"old": old, "now": ROOT}


def commit(checkout: Path) -> str:
    """The commit of a checkout, shortened; ``+`` where it has changes."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def ratio(*, now: list[float], old: list[float]) -> float:
    """How many times the old time the new one is."""
    return median(a / b for a, b in zip(now, old, strict=True))


def spread(medians: list[float]) -> float:
    """How far processes lie apart."""
    return max(medians) / min(medians)
