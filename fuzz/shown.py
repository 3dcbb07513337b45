"""Whether a view shows what its program decodes, and refuses what that refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any

from kcoord_wire.codec.backend import Program
from kcoord_wire.codec.view import message_of
from kcoord_wire.errors import DecodeError


def check_view(program: Program, body: bytes, strict: bool) -> Any:
    """Compare the view of `body` with its message, field by field; return the view, None where there is none."""
    message = outcome(lambda: program.decode(body, strict))
    view = outcome(lambda: program.view(body, 0, strict))
    if isinstance(message, DecodeError):
        assert isinstance(view, DecodeError), f"strict={strict}: a view of what decode refuses: {message}"
        assert facts(view) == facts(message)
        return None
    for shown in (rebuilt(view), message_of(view), message_of(program.view(b"\0" + body, 1, strict))):
        assert same(shown, message), f"strict={strict}\n{shown}\n{message}"
    return view


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DecodeError as error:
        return error


def facts(error: DecodeError) -> tuple[str, int, str]:
    return error.kind, error.offset, error.path


def rebuilt(shown: Any) -> Any:
    """A message made of what each field, and each index, of a view returns."""
    if isinstance(shown, Sequence) and not isinstance(shown, str | bytes | tuple):
        elements = [rebuilt(element) for element in shown]
        # The last and the middle by their index: they lie behind an offset that is kept, and between two. Their fields
        # are not read one by one again, which would take 5 to the power of the nesting.
        for index in {len(elements) - 1, len(elements) // 2} if elements else ():
            assert same(message_of(shown[index]), elements[index])
            assert same(message_of(shown[index - len(elements)]), elements[index])
        return elements
    if is_dataclass(shown.__class__):
        return shown.__class__(**{name: rebuilt(getattr(shown, name)) for name in dir(shown)})
    return shown


def same(a: object, b: object) -> bool:
    """NaN is not equal to itself, but is written the same."""
    return a == b or repr(a) == repr(b)
