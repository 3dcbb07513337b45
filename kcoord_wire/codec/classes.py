"""Message classes made at run time for a user's own schemas: the shape of the generated ones, without the source.

Laws:

* Fields, defaults, annotations and docstrings are those of the generated classes.
* There is one class for one text of a schema file and one name, as long as it is in use: registries compiled from the
  same text share their classes.
* A pickle of an instance holds the schema file's text, once for all instances of a pickle. It is loaded by any process
  that has this package, whether or not that has compiled the schema.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from functools import reduce
from operator import or_
from typing import Any, Final
from weakref import WeakValueDictionary

from kcoord_wire.protocol.short_repr import short_repr
from kcoord_wire.schema.describe import class_doc
from kcoord_wire.schema.model import INTEGERS, Field, Message, Struct
from kcoord_wire.schema.plan import attribute_name, class_name
from kcoord_wire.schema.reader import read_message

_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(INTEGERS, int),
    "bool": bool,
    "float64": float,
    "uuid": uuid.UUID,
    "string": str,
    "bytes": bytes,
    "records": bytes,
}


class _Classes(dict[str, type]):
    """The classes of one schema file, by name."""

    __slots__ = ("__weakref__",)


_lock: Final = threading.RLock()  # making a class may collect garbage, whose finalizers may come here again
_made: Final[WeakValueDictionary[str, _Classes]] = WeakValueDictionary()


def make_classes(message: Message) -> Mapping[str, type]:
    """The class of `message` and of each of its structs, by class name: dataclasses with slots, keyword-only."""
    with _lock:
        classes = _made.get(message.source)
        if classes is None:
            classes = _made.setdefault(message.source, _make(message))
        return classes


def _make(message: Message) -> _Classes:
    classes = _Classes()

    def reduced(self: object, protocol: Any) -> Any:
        cls = type(self)
        if classes.get(cls.__name__) is not cls:  # a subclass, which is in a module
            return object.__reduce_ex__(self, protocol)
        state = object.__reduce_ex__(self, 2)[2]
        return _empty, (message.source, cls.__name__), state

    def make(struct: Struct) -> type:
        name = class_name(message, struct)
        if name not in classes:
            fields = [_field(message, f, make) for f in struct.fields]
            if message.flexible:
                fields.append(("unknown_tags", tuple[tuple[int, bytes], ...], field(default=())))
            namespace: dict[str, Any] = {"__doc__": class_doc(message, struct), "__module__": __name__}
            namespace |= {"__repr__": short_repr, "__reduce_ex__": reduced}
            classes[name] = make_dataclass(name, fields, slots=True, kw_only=True, namespace=namespace)
        return classes[name]

    make(message.root)
    return classes


def _empty(source: str, name: str) -> object:
    """An instance without values of a class of the schema file with the text `source`."""
    classes: Mapping[str, type] | None = _made.get(source)
    if classes is None:  # reading the text takes a thousand times as long, and a pickle has many instances
        classes = make_classes(read_message(source))
    return object.__new__(classes[name])


def _field(message: Message, f: Field, make: Callable[[Struct], type]) -> tuple[str, Any, Any]:
    """Name, annotation and default of a class's attribute."""
    arms = [make(variant.struct) for variant in f.variants]
    if f.type.is_struct:
        arms = [make(message.struct_of(f))]
    kind: Any = reduce(or_, arms) if arms else _TYPES[f.type.base]
    if f.type.array:
        kind = list[kind]
    if f.nullable or f.default is None:
        kind = kind | None
    if f.default == ():
        return attribute_name(f.name), kind, field(default_factory=list)
    if f.default is ...:
        return attribute_name(f.name), kind, field(default_factory=arms[0])
    return attribute_name(f.name), kind, field(default=f.default)
