"""The libraries beyond Python that an optional extra of this package brings.

Laws:

* They are imported on first use, so what does not need them works without the extra.
* Only their own absence is translated; any other failure to import stays as loud as it is.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["MissingLibraryError", "require"]


class MissingLibraryError(ImportError):
    """A library of an optional extra is not installed.

    :ivar name: the library
    """

    def __init__(self, name: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {name}: pip install 'kcoord_wire[{extra}]'", name=name)


def require(name: str, extra: str, purpose: str) -> ModuleType:
    """The library `name`.

    :param extra: the extra that brings it
    :param purpose: what it is needed for, as the subject of the error's sentence
    :raises MissingLibraryError: it is not installed
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingLibraryError(name, extra, purpose) from None
