"""Whether a message decoded lazily is what its program decodes, and whether what `decode` refuses is refused alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

from kcoord_wire.codec.backend import Program
from kcoord_wire.codec.lazy import LAZY_ARRAYS, LEAST
from kcoord_wire.errors import DecodeError, EncodeError


def check_lazy(program: Program, body: bytes, strict: bool) -> Any:
    """Compare the lazy message of `body` with its message; return it, None where there is none."""
    message = outcome(lambda: program.decode(body, strict))
    lazy = outcome(lambda: program.decode(body, strict, lazy=True))
    if isinstance(message, DecodeError):
        assert isinstance(lazy, DecodeError), f"strict={strict}: what decode refuses: {message}"
        assert facts(lazy) == facts(message)
        return None
    arrays = list(lazy_arrays(lazy))
    assert [len(array) for array in arrays] == [len(array) for array in long_arrays(message)]
    touch(arrays)
    assert same(lazy, message), f"strict={strict}\n{lazy}\n{message}"
    assert written(program, lazy) == written(program, message)
    behind = program.decode_prefix(bytearray(b"\0" + body), 1, strict, lazy=True)
    assert same(behind[0], message)
    assert behind[1] <= 1 + len(body)
    assert written(program, program.decode(body, strict, lazy=True)) == written(program, message), "nothing was touched"
    return lazy


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DecodeError as error:
        return error


def facts(error: DecodeError) -> tuple[str, int, str, str]:
    return error.kind, error.offset, error.path, error.detail


def written(program: Program, message: Any) -> object:
    """The bytes; what refuses a message that was read leniently, or at a version that carries no such default."""
    try:
        return program.encode(message)
    except EncodeError as error:
        return error.kind, error.path


def touch(arrays: list[Any]) -> None:
    """Elements by index and in part, in another order than theirs: each is one object."""
    for array in arrays:
        n = len(array)
        once = {index: array[index] for index in (n - 1, 0, n // 2, -(n // 3) - 1)}
        part = array[n // 4 :: 3]
        assert type(part) is list
        for at, element in enumerate(part):
            assert element is array[n // 4 + 3 * at]
        for at, element in enumerate(array):
            assert element is array[at] is array[at - n]
            assert once.get(at, element) is element
            assert once.get(at - n, element) is element


def lazy_arrays(message: Any) -> Iterator[Any]:
    return arrays_of(message, lambda value: type(value) in LAZY_ARRAYS)


def long_arrays(message: Any) -> Iterator[Any]:
    """The lists of a decoded message that are lazy arrays in the lazy one."""
    return arrays_of(message, lambda value: len(value) >= LEAST and is_dataclass(value[0]))


def arrays_of(message: Any, chosen: Callable[[Any], bool]) -> Iterator[Any]:
    for name in type(message).__slots__:
        value = getattr(message, name)
        if is_dataclass(value):
            yield from arrays_of(value, chosen)
        elif type(value) is list or type(value) in LAZY_ARRAYS:
            if chosen(value):
                yield value
            elif value and is_dataclass(value[0]):
                for element in value:
                    yield from arrays_of(element, chosen)


def widened(message: Any, level: int, count: int = LEAST + 1) -> Any:
    """The message with `count` structs in each array of structs that is so deep; level 0 are the message's own."""
    for name in type(message).__slots__:
        value = getattr(message, name)
        if is_dataclass(value):
            widened(value, level, count)
        elif type(value) is list and value and is_dataclass(value[0]):
            if level == 0:
                setattr(message, name, (value * count)[:count])
            else:
                for element in value:
                    widened(element, level - 1, count)
    return message


def same(a: object, b: object) -> bool:
    """NaN is not equal to itself, but is written the same."""
    return a == b or repr(a) == repr(b)
