"""Assignors of other packages, found by name through the entry-point group ``kcoord_wire.assignors``.

A package offers one in its ``pyproject.toml``::

    [project.entry-points."kcoord_wire.assignors"]
    nearest = "nearest.assignor:NEAREST"

The object is an `Assignor`, or a function without arguments that returns one: for an assignor that remembers something
between `on_assignment` and `on_join`, so that no two consumers of a process share it.

Laws:

* A name means one assignor. An entry point that has the name of another, or of an assignor of this package, is an error
  for every plug-in, and never used.
* A plug-in is imported only when its name is asked for, so a broken one does no harm to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from kcoord_wire.assignors import ASSIGNORS
from kcoord_wire.assignors.subscriptions import Assignor, RebalanceProtocol

ENTRY_POINT_GROUP: Final = "kcoord_wire.assignors"


class PluginError(ValueError):
    """No assignor has the name, or the plug-in that has it cannot be used; the cause is its own error, if any."""


def find_assignor(name: str) -> Assignor:
    """Return an assignor of this package, or of a plug-in.

    :param name: as in JoinGroup's ``protocols[].name``
    :raises PluginError: none has that name; or the plug-in cannot be loaded, is no assignor, or has the name of another
    """
    if name in ASSIGNORS:
        return ASSIGNORS[name]
    plugins = installed_plugins()
    if name not in plugins:
        raise PluginError(f"no assignor is called {name!r}; there are {', '.join([*ASSIGNORS, *plugins])}")
    return _load(plugins[name])


def installed_plugins() -> Mapping[str, EntryPoint]:
    """Return the entry points of plug-ins by name, none of them loaded.

    :raises PluginError: two have one name, or one has that of an assignor of this package
    """
    found: dict[str, EntryPoint] = {}
    for entry_point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda each: (each.name, each.value)):
        if entry_point.name in ASSIGNORS:
            raise PluginError(f"{_shown(entry_point)} has the name of an assignor of kcoord_wire")
        if entry_point.name in found:
            raise PluginError(f"{_shown(entry_point)} has the name of {_shown(found[entry_point.name])}")
        found[entry_point.name] = entry_point
    return found


def _load(entry_point: EntryPoint) -> Assignor:
    try:
        offered: Any = entry_point.load()
        assignor = offered if isinstance(offered, Assignor) or not callable(offered) else offered()
    except Exception as error:  # the code of another package may raise anything
        raise PluginError(f"{_shown(entry_point)} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(assignor, Assignor):
        raise PluginError(f"{_shown(entry_point)} is no Assignor, but of type {type(assignor).__name__}")
    if assignor.name != entry_point.name:
        raise PluginError(f"{_shown(entry_point)} offers an assignor with the name {assignor.name!r}")
    protocol: Any = assignor.protocol  # a dataclass does not check the types of its fields
    if not isinstance(protocol, RebalanceProtocol) or not callable(assignor.assign):
        raise PluginError(f"{_shown(entry_point)} lacks a RebalanceProtocol or a function `assign`")
    return assignor


def _shown(entry_point: EntryPoint) -> str:
    package = f" of {entry_point.dist.name}" if entry_point.dist else ""
    return f"the assignor plug-in {entry_point.name!r}{package} ({entry_point.value})"
