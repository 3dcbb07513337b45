"""Lazy arrays: what a message decoded with ``lazy=True`` has where a decoded one has a long list of structs.

Laws:

* The bytes are checked as a whole before there is a lazy array, by the rules of `decode` and with its errors: no access
  fails.
* An element is made when it is first asked for, and kept: it is one object, and what is changed in it is seen again and
  encoded.
* A lazy array is equal to the list that `decode` makes of the same bytes; copies and pickles of it are lists.
* A walk in Python that makes nothing takes longer than the generated source takes to make a message: the pure codec
  decodes, and shows its lists through the interface of the native core's arrays (`_speedups/objects/lazy.pxi`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, overload

LEAST: Final = 16  # structs: a shorter array is a list
LAZY_ARRAYS: Final[list[type]] = []  # the class below, and that of the native core


class LazyArray(Sequence[Any]):
    """The structs of an array: a `collections.abc.Sequence` that cannot be changed, whose slices are lists."""

    __slots__ = ("_made",)

    def __init__(self, made: list[Any]) -> None:
        self._made = made

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._made[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._made)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyArray):
            return self._made == other._made
        return self._made == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as lists have none

    def __repr__(self) -> str:
        return repr(self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self[:],)


LAZY_ARRAYS.append(LazyArray)


def with_lazy_arrays(message: Any) -> None:
    """Put lazy arrays in the place of a decoded message's lists of `LEAST` structs and more."""
    for name in type(message).__slots__:
        value = getattr(message, name)
        if is_dataclass(value):
            with_lazy_arrays(value)
        elif type(value) is list and value and is_dataclass(value[0]):
            if len(value) >= LEAST:
                setattr(message, name, LazyArray(value))
            else:
                for element in value:
                    with_lazy_arrays(element)
