"""Libraries of the optional extras of this package.

Laws:

* They are imported on first use, so that everything else works without the extra.
* Only the absence of the library itself is translated; any other error of an import is raised unchanged.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


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
