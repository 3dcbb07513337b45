"""The two libraries that records need beyond Python, both in the optional extra ``records``.

Laws:

* They are imported on first use, so what needs neither (plain and gzip message sets) works without the extra.
* Only their own absence is translated; any other failure to import stays as loud as it is.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["MissingLibraryError", "require"]


class MissingLibraryError(ImportError):
    """A library of the extra ``records`` is not installed.

    :ivar name: the library
    """

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {name}: pip install 'kcoord_wire[records]'", name=name)


def require(name: str, purpose: str) -> ModuleType:
    """The library `name`.

    :param purpose: what it is needed for, as the subject of the error's sentence
    :raises MissingLibraryError: it is not installed
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingLibraryError(name, purpose) from None
