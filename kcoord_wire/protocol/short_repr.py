"""The repr of messages: the fields that differ from their defaults.

Most messages leave most of their fields alone, and `Class(field=value)` without those still makes an equal message.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from reprlib import recursive_repr
from typing import Any


@recursive_repr()
def short_repr(message: Any) -> str:
    """The repr of a dataclass whose fields all have defaults."""
    shown = []
    for field in fields(message):
        value = getattr(message, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if value is not default and (type(value) is not type(default) or value != default):
            shown.append(f"{field.name}={_plain(value)!r}")
    return f"{type(message).__qualname__}({', '.join(shown)})"


def _plain(value: Any) -> Any:
    """The value with bytes for memoryviews, whose own repr is their address: bytes make an equal message."""
    if type(value) is list and memoryview in map(type, value):
        return [_plain(each) for each in value]
    return bytes(value) if type(value) is memoryview else value
