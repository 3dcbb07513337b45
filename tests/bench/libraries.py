"""Each library's way to decode and encode a row: the calls that its users write, and nothing around them.

Laws:

* A library is imported by its own function alone, so that a process holds one of them.
* Where the library writes Kafka's format, its bytes for the row are our bytes; `Case.check` says so or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version as installed
from io import BytesIO
from itertools import repeat
from typing import Any

import kcoord_wire as kw
from kcoord_wire.schema.plan import Op, Presence, Step, StructPlan

from .floor import load_floor
from .rows import Row, rebuild

Loop = Callable[[int], None]


@dataclass
class Case:
    """A row in one library. A statement's last line is the expression whose value it gives."""

    version: int
    data: bytes  # what decode reads and encode gives
    statements: dict[str, str]
    names: dict[str, Any]
    message_of: Callable[[Any], Any] = field(default=lambda result: result)

    def once(self, operation: str) -> Any:
        """What the statement gives."""
        *before, last = self.statements[operation].split("\n")
        return self._compile("once", [*before, f"return {last}"])(1)

    def loop(self, operation: str) -> Loop:
        """A function that runs the statement so many times, each result dropped before the next is made."""
        lines = ["for _ in repeat(None, count):", *(f"    {line}" for line in self.statements[operation].split("\n"))]
        return self._compile("loop", lines)

    def _compile(self, name: str, lines: list[str]) -> Any:
        # Names are local to the function, as in a user's own; a global costs a little more in each library alike.
        parameters = ", ".join(["count", "repeat=repeat", *(f"{key}={key}" for key in self.names)])
        scope = {"repeat": repeat, **self.names}
        exec("\n    ".join([f"def {name}({parameters}):", *lines]), scope)
        return scope[name]

    def check(self) -> None:
        """Both directions give what they should, or AssertionError."""
        assert bytes(self.once("encode")) == self.data, "other bytes than ours"
        assert self.message_of(self.once("decode")) == self.names["message"], "another message than the one encoded"
        if "floor" in self.statements:
            assert self.once("floor") == self.names["message"], "the floor is another message"


def version_of(message: Any, version: int) -> Any:
    """The message without the fields that the version lacks."""
    codec = kw.registry[type(message).__name__]
    return rebuild(codec.plan(version), message, lambda plan, fields: codec.classes[plan.name](**fields))


def ours(row: Row, message: Any) -> Case:
    return case_of(message, row.version)


def case_of(message: Any, version: int) -> Case:
    """A message in our codec."""
    data = kw.encode(message, version)
    names = {
        "decode": kw.decode, "encode": kw.encode, "cls": type(message), "version": version,
        "data": data, "message": message,
    }  # fmt: skip
    statements = {"decode": "decode(cls, data, version)", "encode": "encode(message, version)"}
    return Case(version, data, statements, names)


def native(row: Row, message: Any) -> Case:
    assert kw.backend == "native"
    case = ours(row, message)
    recipe = load_floor().Recipe(case.once("decode"), case.once("decode"))
    case.statements["floor"] = "build()"
    case.names["build"] = recipe.build
    return case


def python(row: Row, message: Any) -> Case:
    assert kw.backend == "python"
    return ours(row, message)


KIO = {
    "HeartbeatRequest": "heartbeat.v{}.request",
    "JoinGroupRequest": "join_group.v{}.request",
    "JoinGroupResponse": "join_group.v{}.response",
    "SyncGroupRequest": "sync_group.v{}.request",
    "MetadataResponse": "metadata.v{}.response",
    "OffsetFetchResponse": "offset_fetch.v{}.response",
}


def kio(row: Row, message: Any) -> Case:
    from kio.serial import entity_reader, entity_writer

    name = type(message).__name__
    cls = getattr(import_module(f"kio.schema.{KIO[name].format(row.version)}"), name)
    data = kw.encode(message, row.version)
    read, write = entity_reader(cls), entity_writer(cls)
    statements = {"decode": "read(data, 0)", "encode": "buffer = BytesIO()\nwrite(buffer, message)\nbuffer.getvalue()"}
    names = {"read": read, "write": write, "BytesIO": BytesIO, "data": data, "message": read(data, 0)[0]}
    return Case(row.version, data, statements, names, message_of=lambda result: result[0])


def kafka_python(row: Row, message: Any) -> Case:
    name = type(message).__name__
    module = "metadata" if name.startswith("Metadata") else "consumer"
    cls = getattr(import_module(f"kafka.protocol.{module}"), name)

    def structs(parent: Any) -> Iterator[tuple[str, Any]]:
        yield parent.__name__, parent
        for each in parent.fields.values():
            if each.is_struct_array():
                yield from structs(each.data_class)

    classes = dict(structs(cls))
    plan = kw.registry[name].plan(row.version)

    def make(plan: StructPlan, fields: dict[str, Any]) -> Any:
        # By position, for its operations have a name of their own. They are a set of bits there, None where unknown.
        values = [None if attr.endswith("authorized_operations") else value for attr, value in fields.items()]
        return classes[plan.name](*values, version=row.version)

    same = rebuild(plan, message, make)
    data = kw.encode(message, row.version)
    statements = {"decode": "cls.decode(data, version=version)", "encode": "message.encode(version=version)"}
    return Case(row.version, data, statements, {"cls": cls, "version": row.version, "data": data, "message": same})


AIOKAFKA = {
    "HeartbeatRequest": ("group", 1),
    "JoinGroupRequest": ("group", 5),
    "JoinGroupResponse": ("group", 5),
    "SyncGroupRequest": ("group", 3),
    "MetadataResponse": ("metadata", 5),
    "OffsetFetchResponse": ("commit", 3),
}


def aiokafka(row: Row, message: Any) -> Case:
    name = type(message).__name__
    module, version = AIOKAFKA[name]
    cls = getattr(import_module(f"aiokafka.protocol.{module}"), f"{name}_v{version}")
    data = kw.encode(version_of(message, version), version)
    statements = {"decode": "cls.decode(data)", "encode": "message.encode()"}
    return Case(version, data, statements, {"cls": cls, "data": data, "message": cls.decode(data)})


def construct(row: Row, message: Any) -> Case:
    from kcoord_wire.schema.construct_model import construct_model

    codec = kw.registry[type(message).__name__]
    grammar = construct_model(codec.schema, row.version, codec.classes)
    data = kw.encode(message, row.version)
    statements = {"decode": "grammar.parse(data)", "encode": "grammar.build(message)"}
    return Case(row.version, data, statements, {"grammar": grammar, "data": data, "message": message})


def msgspec(row: Row, message: Any) -> Case:
    import msgspec

    scalars: dict[Op, type] = {Op.BOOL: bool, Op.STRING: str, Op.BYTES: bytes}
    structs: dict[str, Any] = {}

    def struct_of(plan: StructPlan) -> Any:
        # The leanest that msgspec has: arrays instead of maps, and no tracking by the garbage collector.
        if plan.name not in structs:
            fields = [(step.attr, kind_of(step)) for step in plan.steps if step.presence is not Presence.ABSENT]
            structs[plan.name] = msgspec.defstruct(plan.name, fields, array_like=True, gc=False)
        return structs[plan.name]

    def kind_of(step: Step) -> Any:
        kind = struct_of(step.struct) if step.struct is not None else scalars.get(step.op, int)
        kind = list[kind_of(step.item)] if step.item is not None else kind  # type: ignore[misc]
        return kind | None if step.nullable else kind

    plan = kw.registry[type(message).__name__].plan(row.version)
    same = rebuild(plan, message, lambda plan, fields: struct_of(plan)(**fields))
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(type(same)).decode
    data = encode(same)
    statements = {"decode": "decode(data)", "encode": "encode(message)"}
    return Case(row.version, data, statements, {"decode": decode, "encode": encode, "data": data, "message": same})


@dataclass(frozen=True)
class Library:
    """A library that is measured.

    :ivar package: the distribution whose version the report names
    :ivar peer: whether it is another's, and reads and writes Kafka's format
    """

    key: str
    title: str
    package: str
    case: Callable[[Row, Any], Case]
    peer: bool = True

    def installed(self) -> str:
        return kw.__version__ if self.package == "kcoord_wire" else installed(self.package)


LIBRARIES = {
    library.key: library
    for library in [
        Library("native", "native", "kcoord_wire", native, peer=False),
        Library("python", "pure Python", "kcoord_wire", python, peer=False),
        Library("kio", "kio", "kio", kio),
        Library("kafka-python", "kafka-python", "kafka-python", kafka_python),
        Library("aiokafka", "aiokafka", "aiokafka", aiokafka),
        Library("construct", "construct", "construct", construct),
        Library("msgspec", "msgspec", "msgspec", msgspec, peer=False),
    ]
}
