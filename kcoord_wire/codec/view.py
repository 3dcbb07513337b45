"""Views: messages whose fields are read when they are asked for. This module has those of the pure codec.

Laws:

* A view is made of bytes that were checked as a whole, by the rules of `decode` and with its errors: no access fails.
* A view is equal to the message that `decode` returns for the same bytes, field by field, and never changes.
* A walk in Python that makes nothing takes longer than the generated source takes to make a message: the pure codec
  decodes, and shows the message through the interface of the native core's views (`_speedups/objects/views.pxi`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

if TYPE_CHECKING:
    from kcoord_wire.codec.backend import Buffer

M = TypeVar("M")
VIEWED: Final = 1024  # bytes from which a field may be a memoryview: one costs about as much as a copy of so many
READ_ONLY: Final = "a view is read-only; kcoord_wire.message_of(view) returns a message"


class View:
    """A message, or a struct in one, that cannot be changed.

    `isinstance` takes it for an instance of the message's class, so that it matches the same patterns; `type` does not.
    """

    __slots__ = ("_held",)
    _held: Any

    def __init__(self, message: object) -> None:
        object.__setattr__(self, "_held", message)

    def __getattr__(self, name: str) -> Any:
        if name not in type(self._held).__slots__:
            raise AttributeError(f"{type(self._held).__name__} has no field {name!r}")
        return shown(getattr(self._held, name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(READ_ONLY)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(READ_ONLY)

    @property  # type: ignore[misc]  # the class of what it shows, as unittest.mock does it
    def __class__(self) -> type:
        return type(self._held)

    def __dir__(self) -> list[str]:
        return [field.name for field in fields(self._held)]

    def __eq__(self, other: object) -> bool:
        return bool(self._held == message_of(other))

    __hash__ = None  # type: ignore[assignment]  # as messages have none

    def __repr__(self) -> str:
        return f"<view of {type(self._held).__name__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self._message(),)

    def _message(self) -> Any:
        return deepcopy(self._held)


class ArrayView(Sequence[Any]):
    """An array in a `View`: a `collections.abc.Sequence`, equal to the list of the message."""

    __slots__ = ("_held",)

    def __init__(self, held: list[Any]) -> None:
        self._held = held

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> ArrayView: ...

    def __getitem__(self, index: int | slice) -> Any:
        return shown(self._held[index])

    def __iter__(self) -> Iterator[Any]:
        return map(shown, self._held)

    def __setitem__(self, index: object, value: object) -> None:
        raise TypeError(READ_ONLY)

    def __delitem__(self, index: object) -> None:
        raise TypeError(READ_ONLY)

    def __eq__(self, other: object) -> bool:
        other = message_of(other)
        return self._held == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as lists have none

    def __repr__(self) -> str:
        return f"<view of {len(self)} elements>"

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self._message(),)

    def _message(self) -> list[Any]:
        return deepcopy(self._held)


def wants_parts(option: object) -> bool:
    """Whether ``bytes=`` asks for memoryviews.

    :raises ValueError: it is neither ``"copy"`` nor ``"view"``
    """
    if option not in ("copy", "view"):
        raise ValueError(f'bytes is "copy" or "view", not {option!r}')
    return option == "view"


def parts_of(data: Buffer) -> memoryview:
    """The memoryview whose parts a message may keep: of `data` itself where that is, or shows, `bytes`; else of a copy.

    What is not `bytes` may change after the read, and a part of a bytearray would keep that from changing its size.

    :raises TypeError: `data` is not a bytes-like object, or not contiguous
    """
    whole = memoryview(data).cast("B")
    return whole if type(whole.obj) is bytes else memoryview(bytes(whole))


def shown(value: Any) -> Any:
    """A value of a decoded message as a view shows it."""
    if isinstance(value, list):
        return ArrayView(value)
    return View(value) if is_dataclass(value) else value


def message_of(view: M) -> M:
    """The message that a view shows, decoded; the list of an array. Anything else is returned as it is.

    It belongs to the caller alone: whatever is changed in it, the view shows what it showed.
    """
    decoded = getattr(type(view), "_message", None)
    return view if decoded is None else decoded(view)
