"""What is public, as docs/README.md says it: the modules, and the names of each."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Final

from tests.support.processes import ROOT

_SAID: Final = (ROOT / "docs" / "README.md").read_text("utf-8").partition("## What is public")[2]
_PUBLIC, _, _CHANGING = _SAID.partition("Pages of designs")
PUBLIC: Final = re.findall(r"`(kcoord_wire[\w.]*)`", _PUBLIC)
CHANGING: Final = re.findall(r"`(kcoord_wire[\w.]*)`", _CHANGING)
"""What the pages use besides."""


def names_of(module: str) -> dict[str, object]:
    """The public names of a module, with what they stand for."""
    found = import_module(module)
    names = getattr(found, "__all__", None) or [name for name in _defined(found) if name[0] != "_"]
    return {name: getattr(found, name) for name in names}


def _defined(module: ModuleType) -> Iterator[str]:
    """What its own statements define: classes, functions and variables, not what it imports."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
