"""kafka-python on this codec: its protocol classes are ours, its client is unchanged. A plugin of pytest (``-p``).

It is imported before `kafka`. What `kafka.protocol` then declares for consumers and producers is made of the codecs of
kafka-python's own schema files, compiled by us; frames are cut by `Framer` and read and written by `Registry.frames`.
Metadata and the messages of its admin client, whose schemas it changes after reading them, stay its own. What the
client asks of its classes besides attributes is added here: positional arguments, unpacking, versions.
"""

# ruff: noqa: E402
from __future__ import annotations

import re
import sys
from dataclasses import asdict
from functools import cache, partial
from importlib.util import find_spec, module_from_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pytest

import kcoord_wire as kw
from kcoord_wire.schema.plan import Presence, Step, StructPlan, attribute_name, class_name

SPEC: Final = find_spec("kafka")
assert "kafka" not in sys.modules, "the client is imported already"
sys.modules["kafka"] = module_from_spec(SPEC)  # run at the end of this module, for it declares all messages

from kafka import errors
from kafka.protocol import api_data, api_message
from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry

ROOMS: Final = tuple(f"kafka.protocol.{room}" for room in ("consumer", "metadata.api", "metadata.find", "producer"))
UNPACKED: Final = {"OffsetCommitResponseTopic": ("name", "partitions")}  # its elements do not know their version
CHANGED: Final = (
    (r'"validVersions": *"\d+', '"validVersions": "0'),  # it asks the broker for the lowest one
    (r'("name": "ReplicaId", "type": "int32", )("versions": "0\+", )(?!"default")', r'\1\2"default": "-1", '),
)
PLAIN: Final = {int, str, bytes, bool, type(None)}
frames: Final = {"written": 0, "read": 0}


with TemporaryDirectory() as folder:
    for file in Path(SPEC.submodule_search_locations[0]).glob("protocol/schemas/resources/*.json"):
        text = file.read_text("utf-8")
        for old, new in CHANGED:
            text = re.sub(old, new, text)
        Path(folder, file.name).write_text(text, "utf-8")
    REGISTRY: Final = kw.compile_schemas(folder)


def make(self: Any, *args: Any, version: int | None = None, **values: Any) -> None:
    """The constructor of every struct, which takes values by position, too."""
    self._made(**dict(zip(self._names, args, strict=False)), **values)


def dress(codec: kw.MessageCodec[Any], struct: Any) -> Any:
    """Make the codec's class of a struct, and those of the structs in it, look as the client's."""
    cls: Any = codec.classes[class_name(codec.schema, struct)]
    if "_made" not in vars(cls):
        cls._made, cls.__init__ = cls.__init__, make
        cls.__iter__ = lambda self: (getattr(self, name) for name in self._names)
        cls._names = UNPACKED.get(struct.name) or tuple(attribute_name(each.name) for each in struct.fields)
        for each in struct.fields:
            if each.type.is_struct:
                inner = codec.schema.struct_of(each)
                setattr(cls, inner.name, dress(codec, inner))
    return cls


written = cache(lambda plan: [step for step in plan.steps if step.presence is not Presence.ABSENT])


def fitted(value: Any, plan: StructPlan, classes: Any) -> Any:
    """The struct that can be written: tuples become structs, fields that the version lacks are left out."""
    (made := object.__new__(classes[plan.name]))._made()
    steps = written(plan)
    given = value if isinstance(value, tuple) else [getattr(value, step.attr) for step in steps]
    for step, each in zip(steps, given, strict=False):
        setattr(made, step.attr, fitted_field(each, step, classes) if type(each) not in PLAIN else each)
    return made


def fitted_field(value: Any, step: Step, classes: Any) -> Any:
    if value is not None and step.item is not None:
        return [each if type(each) in PLAIN else fitted_field(each, step.item, classes) for each in value]
    if value is not None and step.struct is not None:
        return fitted(value, step.struct, classes)
    return value.encode() if isinstance(value, (Data, TheirData)) else value


class Versioned(type):
    """The metaclass of messages: JoinGroupRequest[5] is the class whose instances have that version."""

    def __getitem__(cls: Any, version: int | None) -> Any:
        primary = cls.__mro__[1] if cls._class_version is not None else cls
        if version is None:
            return primary
        if version not in primary._versions:
            name, namespace = f"{primary.__name__}_v{version}", {"__slots__": (), "_class_version": version}
            primary._versions[version] = type.__new__(Versioned, name, (primary,), namespace)
        return primary._versions[version]


class Message:
    """A request or response of the client."""

    __slots__ = ()
    _class_version: int | None = None

    def __new__(cls, *args: Any, **values: Any) -> Any:
        made = object.__new__(cls[None])
        if cls._class_version is not None:
            made.__init__(*args, **{"version": cls._class_version, **values})
        return made

    def __init__(self, *args: Any, version: int | None = None, **values: Any) -> None:
        self.API_VERSION, self.header = version, None
        self._min_version, self._max_version = values.pop("min_version", None), values.pop("max_version", None)
        names = self._names
        if args and version is not None:
            names = tuple(s.attr for s in self.codec.plan(version).steps if s.presence is Presence.PLAIN)
        self._made(**dict(zip(names, args, strict=False)), **values)

    version = property(lambda self: self.API_VERSION)

    def expect_response(self) -> bool:
        return True

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self.header = Pending(self.codec.api_key, self.API_VERSION or 0, correlation_id, client_id)

    def encode(self, version: int | None = None, header: bool = False, framed: bool = False) -> bytes:
        if version is not None:
            self.API_VERSION = version
        write = partial(self.codec.encode, version=self.API_VERSION)
        if header and self.header:
            ids = {"correlation_id": self.header.correlation_id, "client_id": self.header.client_id}
            write = partial(REGISTRY.frames.encode_request, version=self.API_VERSION, **ids)
        frames["written"] += 1
        body = write(fitted(self, self.codec.plan(self.API_VERSION), self.codec.classes))
        return kw.frame(body) if framed else body

    @classmethod
    def decode(cls, data: Any, version: int | None = None) -> Any:
        version = cls._class_version if version is None else version
        return cls.of(cls.codec.decode(bytes(data), version, strict=False), version)

    @classmethod
    def of(cls, found: Any, version: int | None) -> Any:  # for the codec makes no instances of subclasses
        frames["read"] += 1
        made = object.__new__(cls[None])
        for name in cls.codec.cls.__slots__:
            setattr(made, name, getattr(found, name))
        made.API_VERSION, made.header, made._min_version, made._max_version = version, None, None, None
        return made


class Data(Message):
    """What members put into byte fields: their version comes first."""

    __slots__ = ()

    def to_dict(self, **options: Any) -> dict[str, Any]:
        return asdict(self)

    def __init__(self, *args: Any, version: int | None = None, **values: Any) -> None:
        if args and isinstance(args[0], int):
            version, *rest = args
            args = tuple(rest)
        super().__init__(*args, version=version, **values)

    def encode(self, version: int | None = None, header: bool = True, framed: bool = False) -> bytes:
        body = super().encode(version)
        return (self.API_VERSION or 0).to_bytes(2, "big") + body if header else body

    @classmethod
    def decode(cls, data: Any, version: int | None = None) -> Any:
        return cls.of(*reversed(kw.decode_prefixed(cls.codec.cls, data, strict=False, registry=REGISTRY)))


class Pending(NamedTuple):
    request_api_key: int
    request_api_version: int
    correlation_id: int
    client_id: str | None
    get_response_class = RequestHeader.get_response_class


class Declared(Versioned):
    """The metaclass of what takes the place of ApiMessage and ApiData: makes ours of what is declared in `ROOMS`."""

    def __new__(mcs, name: str, bases: tuple[Any, ...], namespace: dict[str, Any], **options: Any) -> Any:
        if not namespace["__module__"].startswith(ROOMS):
            return type(bases[0].theirs)(name, (bases[0].theirs,), namespace, **options)
        codec = REGISTRY[name]
        slots = ("API_VERSION", "header", "_min_version", "_max_version")
        about = {"codec": codec, "name": name, "API_KEY": codec.api_key, "_versions": {}}
        about |= {"min_version": codec.valid_versions[0], "max_version": codec.valid_versions[-1], "__slots__": slots}
        own = ("json_patch", "decode", "parse_header", "encode_header")  # the codec has those rules
        kept = {key: value for key, value in namespace.items() if key not in own}
        made = type.__new__(Versioned, name, (bases[0].ours, dress(codec, codec.schema.root)), {**kept, **about})
        if codec.type == "response":
            ResponseClassRegistry.register_response_class(made)
        return made


TheirData: Final = api_data.ApiData
for module, replaced, ours in ((api_message, "ApiMessage", Message), (api_data, "ApiData", Data)):
    hook = type.__new__(Declared, replaced, (), {"theirs": getattr(module, replaced), "ours": ours})
    setattr(module, replaced, hook)

from kafka.protocol import parser  # imports messages


class Parser(parser.KafkaProtocol):
    """The client's side of a connection, with our framer."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._framer = kw.Framer(max_frame_size=self._max_frame_size)

    def receive_bytes(self, data: bytes) -> list[tuple[int, Any]]:
        try:
            return [self._answer(body) for body in self._framer.feed(data)]
        except kw.WireError as error:
            raise errors.KafkaProtocolError(str(error)) from error

    def _answer(self, body: bytes) -> tuple[int, Any]:
        pending = self.in_flight_requests[0] if self.in_flight_requests else None
        if not isinstance(pending, Pending):
            return self._process_response(BytesIO(body))
        cls, version = pending.get_response_class(), pending.request_api_version
        self.in_flight_requests.popleft()
        header, found = REGISTRY.frames.decode_response(body, cls[None].codec.cls, version, strict=False)
        if header.correlation_id != pending.correlation_id:
            raise errors.CorrelationIdError(f"sent {pending.correlation_id}, received {header.correlation_id}")
        return pending.correlation_id, cls.of(found, version)


parser.KafkaProtocol = Parser
SPEC.loader.exec_module(sys.modules["kafka"])


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what went through the codec."""
    terminalreporter.write_line(f"frames of kcoord_wire ({kw.backend}): {frames}")
