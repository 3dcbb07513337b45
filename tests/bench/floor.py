"""Builds floor.c, and loads it."""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .runner import build


def load_floor() -> ModuleType:
    """The module with `Recipe`."""
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    flags = ["-O3", "-DNDEBUG", f"-I{sysconfig.get_path('include')}", *link]
    path = str(build(Path(__file__).with_suffix(".c"), f"floor{sysconfig.get_config_var('EXT_SUFFIX')}", *flags))
    spec = spec_from_file_location("floor", path, loader=ExtensionFileLoader("floor", path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
