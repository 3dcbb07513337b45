"""Builds floor.c, beside everything else that is built, and loads it. Built anew where the source is newer."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).with_suffix(".c")
BUILT = SOURCE.parent.parent.parent / "build" / "bench" / f"floor{sysconfig.get_config_var('EXT_SUFFIX')}"


def build_floor() -> Path:
    """The compiled module's file. CalledProcessError where the compiler refuses."""
    if not BUILT.exists() or BUILT.stat().st_mtime < SOURCE.stat().st_mtime:
        BUILT.parent.mkdir(parents=True, exist_ok=True)
        link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
        flags = ["-O3", "-DNDEBUG", "-fPIC", "-Wall", "-Werror", f"-I{sysconfig.get_path('include')}", *link]
        # Two test processes may build at once: each its own file, then one rename.
        with tempfile.TemporaryDirectory(dir=BUILT.parent) as folder:
            made = Path(folder, BUILT.name)
            subprocess.run([os.environ.get("CC", "cc"), *flags, str(SOURCE), "-o", str(made)], check=True)
            made.replace(BUILT)
    return BUILT


def load_floor() -> ModuleType:
    """The module with `Recipe`."""
    path = str(build_floor())
    spec = spec_from_file_location("floor", path, loader=ExtensionFileLoader("floor", path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
