"""Names of a package whose modules are imported when a name is first asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Collection[str]], packages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    :param package: its ``__name__``
    :param modules: its modules, each with the names that the package has from it
    :param packages: packages in it, which are attributes without being imported
    """
    namespace = sys.modules[package].__dict__
    home = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name in packages:
            value: Any = import_module(f"{package}.{name}")
        elif name in home:
            value = getattr(import_module(f"{package}.{home[name]}"), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        namespace[name] = value
        return value

    return get, lambda: sorted({*namespace, *home, *packages})
