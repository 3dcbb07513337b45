"""Libraries of the optional extras of this package.

Laws:

* They are imported on first use, so that everything else works without the extra.
* Only the absence of the library itself is translated; any other error of an import is raised unchanged.
* Which libraries an extra brings is read from the metadata of the installed package, as pip has read it.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

_PACKAGE: Final = "kcoord_wire"
_REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[^]]*)\])?(?P<versions>[^;]*)(?:;(?P<marker>.*))?")
_CLAUSE: Final = re.compile(r"(\w+) *(==|!=) *[\"']([^\"']*)[\"']")


class MissingLibraryError(ImportError):
    """A library of an optional extra is not installed.

    :ivar name: the library
    """

    def __init__(self, name: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {name}: pip install 'kcoord_wire[{extra}]'", name=name)
        self._arguments = name, extra, purpose

    def __reduce__(self) -> tuple[type[MissingLibraryError], tuple[str, str, str]]:
        """A process of a pool gives it to the one that waits; an exception is made anew from its text alone."""
        return type(self), self._arguments


def require(name: str, extra: str, purpose: str) -> ModuleType:
    """Import a library.

    :param name: of its module
    :param extra: the extra that installs it
    :param purpose: the feature that needs it, as the subject of the error's sentence
    :raises MissingLibraryError: it is not installed
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingLibraryError(name, extra, purpose) from None


def require_later(name: str, extra: str, purpose: str) -> None:
    """Check that a library is installed which is imported when it is used. Arguments and errors as `require`."""
    with suppress(ModuleNotFoundError):
        if find_spec(name) is not None:
            return
    raise MissingLibraryError(name, extra, purpose)


@cache
def extras() -> Mapping[str, tuple[str, ...]]:
    """Return the distributions that each extra brings on this platform, in the order of their names.

    Without any where this package is not installed, but found on the path: nothing is known then.
    """
    direct: dict[str, set[str]] = {}
    for text in _requirements():
        found = _REQUIREMENT.match(text)
        clauses = _CLAUSE.findall((found and found["marker"]) or "")
        if found is None or not all(_holds(*clause) for clause in clauses):
            continue
        inner = [f"[{each.strip()}]" for each in (found["extras"] or "").split(",")]
        names = inner if _normal(found["name"]) == _normal(_PACKAGE) else [found["name"]]
        for name, operator, extra in clauses:
            if (name, operator) == ("extra", "=="):
                direct.setdefault(extra, set()).update(names)

    def whole(extra: str) -> set[str]:
        parts = [whole(name[1:-1]) if name.startswith("[") else {name} for name in direct.get(extra, ())]
        return set().union(*parts)

    return {extra: tuple(sorted(whole(extra))) for extra in direct}


def _requirements() -> list[str]:
    from importlib import metadata  # here: it takes 12 ms, and few programs ask

    try:
        return metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _holds(name: str, operator: str, value: str) -> bool:
    """Whether a clause of a marker (PEP 508) holds here; what is not of a platform, such as the extra, does."""
    known = {
        "platform_system": platform.system(),
        "sys_platform": sys.platform,
        "os_name": os.name,
        "implementation_name": sys.implementation.name,
        "platform_python_implementation": platform.python_implementation(),
    }
    return name not in known or (known[name] == value) == (operator == "==")


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def lacking(*names: str) -> list[str]:
    """Return the distributions of extras that are not installed; none of an extra that is not known."""
    brought = sorted({each for name in names for each in extras().get(name, ())})
    return [each for each in brought if installed_version(each) is None]
