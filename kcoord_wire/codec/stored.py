"""What a value of a subclass is written as: what it inherits, whatever methods it overrides.

A caller may hand the codecs an IntEnum, a str, list or uuid.UUID of their own, or a subclass of a message class. The
native core reads the memory that such a value inherits; these functions read the same in Python. A class that only
claims to be another one (``__class__``) is not a subclass.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any, Final

from kcoord_wire.codec.lazy import LAZY_ARRAYS

_ALL: Final = slice(None)


def stored_items(value: Any) -> Any:
    """A list or tuple with the items of `value`, which is one or a lazy array; None for anything else."""
    cls = type(value)
    if issubclass(cls, list):
        return value if cls is list else list.__getitem__(value, _ALL)
    if issubclass(cls, tuple):
        return value if cls is tuple else tuple.__getitem__(value, _ALL)
    # Not `in`, which would run what a metaclass defines.
    return value[:] if any(cls is lazy_array for lazy_array in LAZY_ARRAYS) else None


def stored_bytes(value: Any, *, contiguous: bool = True) -> bytes | None:
    """The bytes of a bytes, bytearray or memoryview; None for anything else.

    :param contiguous: refuse a memoryview whose bytes do not follow each other
    """
    cls = type(value)
    if issubclass(cls, bytes):
        return bytes.__getitem__(value, _ALL)
    if issubclass(cls, bytearray) or (cls is memoryview and (not contiguous or value.c_contiguous)):
        return bytes(memoryview(value))
    return None


def stored_int(value: Any) -> int:
    """The number of an int, or of what has an ``__index__``.

    :raises TypeError: `value` is neither
    """
    return value if type(value) is int else int.__pos__(operator.index(value))


def stored_message(value: Any, cls: type) -> Any:
    """A message of class `cls` with the attributes of `value`; None if that is not one. An empty slot stays empty."""
    if type(value) is cls:
        return value
    if not issubclass(type(value), cls):
        return None
    plain: Any = object.__new__(cls)
    for name in vars(cls)["__slots__"]:
        with suppress(AttributeError):
            setattr(plain, name, cls.__dict__[name].__get__(value))
    return plain


def as_subclass(message: Any, subclass: type) -> Any:
    """An instance of a subclass of the message's class with the message's fields set: no code of the subclass runs."""
    made: Any = object.__new__(subclass)
    for name, slot in vars(type(message)).items():
        if isinstance(slot, MemberDescriptorType):
            slot.__set__(made, getattr(message, name))
    return made
