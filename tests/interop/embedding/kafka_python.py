"""kafka-python on this codec: its protocol classes are ours, its client is unchanged. A plugin of pytest (``-p``).

It is imported before `kafka`. What `kafka.protocol` then declares for consumers and producers is made of the codecs of
kafka-python's own schema files, compiled by us; frames are cut by `Framer` and read and written by `Registry.frames`.
Metadata and the messages of its admin client, whose schemas it changes after reading them, stay its own. What the
client asks of its classes besides attributes is added here: positional arguments, unpacking, versions.
"""

# ruff: noqa: B905, E402
from __future__ import annotations

import re
import sys
from dataclasses import asdict
from functools import cache, partial
from importlib.util import find_spec, module_from_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import kcoord_wire as kw
from kcoord_wire.schema.plan import Presence, attribute_name, class_name

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
frames: Final = {"written": 0, "read": 0}


FILES: Final = Path(SPEC.submodule_search_locations[0]).glob("protocol/schemas/resources/*.json")
TEXTS: Final = {file.name: re.sub(*CHANGED[0], re.sub(*CHANGED[1], file.read_text("utf-8"))) for file in FILES}
REGISTRY: Final = kw.compile_schemas(TEXTS)


def make(self: Any, *args: Any, version: int | None = None, **values: Any) -> None:
    """The constructor of every struct, which takes values by position, too."""
    fill(self, values | dict(zip(self._names, args)))


def fill(self: Any, values: dict[str, Any]) -> Any:
    """Set the fields: tuples become structs, messages become bytes."""
    for name, fit in self._fits:
        if name in values:
            values[name] = fit(values[name])
    self._made(**values)
    return self


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, (Data, TheirData)) else value


def as_list(value: Any) -> Any:
    return value if value is None or type(value) is list else list(value)


def as_structs(cls: Any, value: Any) -> Any:
    new = partial(object.__new__, cls)
    return value and [e if isinstance(e, cls) else fill(new(), dict(zip(cls._names, e))) for e in value]


def dress(codec: kw.MessageCodec[Any], struct: Any) -> Any:
    """Make the codec's class of a struct, and those of the structs in it, look as the client's."""
    cls: Any = codec.classes[class_name(codec.schema, struct)]
    if "_made" not in vars(cls):
        cls._made, cls.__init__ = cls.__init__, make
        cls.__iter__ = lambda self: (getattr(self, name) for name in self._names)
        cls._names = UNPACKED.get(struct.name) or tuple(attribute_name(each.name) for each in struct.fields)
        fits: dict[str, Any] = {}
        for each in struct.fields:
            if each.type.array or each.type.base == "bytes":
                fits[attribute_name(each.name)] = as_list if each.type.array else as_bytes
            if each.type.is_struct:
                inner = codec.schema.struct_of(each)
                setattr(cls, inner.name, dress(codec, inner))
                if each.type.array:
                    fits[attribute_name(each.name)] = partial(as_structs, getattr(cls, inner.name))
        cls._fits = tuple(fits.items())
    return cls


@cache
def by_position(codec: kw.MessageCodec[Any], version: int) -> tuple[str, ...]:
    return tuple(step.attr for step in codec.plan(version).steps if step.presence is Presence.PLAIN)


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
    _version_first = False

    def __new__(cls, *args: Any, **values: Any) -> Any:
        made = object.__new__(cls[None])
        if cls._class_version is not None:
            made.__init__(*args, **{"version": cls._class_version, **values})
        return made

    def __init__(self, *args: Any, version: int | None = None, **values: Any) -> None:
        if self._version_first and args and isinstance(args[0], int):
            version, args = args[0], args[1:]
        self.API_VERSION, self.header = version, None
        self._min_version, self._max_version = values.pop("min_version", None), values.pop("max_version", None)
        names = self._names if version is None else by_position(self.codec, version)
        fill(self, values | dict(zip(names, args)))

    version = property(lambda self: self.API_VERSION)

    def expect_response(self) -> bool:
        return True

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self.header = Pending(self.codec.api_key, self.API_VERSION or 0, correlation_id, client_id)

    def encode(self, version: int | None = None, header: bool = False, framed: bool = False) -> bytes:
        if version is not None:
            self.API_VERSION = version
        write = partial(self.codec.encode, drop=True)
        if header and self.header:
            ids = {"correlation_id": self.header.correlation_id, "client_id": self.header.client_id}
            write = partial(REGISTRY.frames.encode_request, drop=True, **ids)
        frames["written"] += 1
        body = write(self, self.API_VERSION)
        return kw.frame(body) if framed else body

    @classmethod
    def decode(cls, data: Any, version: int | None = None) -> Any:
        version = cls._class_version if version is None else version
        return cls.of(cls.codec.decode(bytes(data), version, strict=False), version)

    @staticmethod
    def of(read: Any, version: int | None) -> Any:  # whose own slots the codec leaves empty
        frames["read"] += 1
        read.API_VERSION, read.header, read._min_version, read._max_version = version, None, None, None
        return read


class Data(Message):
    """What members put into byte fields: their version comes first."""

    __slots__ = ()
    _version_first = True

    def to_dict(self, **options: Any) -> dict[str, Any]:
        return asdict(self)

    def encode(self, version: int | None = None, header: bool = True, framed: bool = False) -> bytes:
        body = super().encode(version)
        return (self.API_VERSION or 0).to_bytes(2, "big") + body if header else body

    @classmethod
    def decode(cls, data: Any, version: int | None = None) -> Any:
        return cls.of(*reversed(kw.decode_prefixed(cls[None], data, strict=False, registry=REGISTRY)))


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
        about = {"name": name, "API_KEY": codec.api_key, "_versions": {}}
        about |= {"min_version": codec.valid_versions[0], "max_version": codec.valid_versions[-1], "__slots__": slots}
        own = ("json_patch", "decode", "parse_header", "encode_header")  # the codec has those rules
        kept = {key: value for key, value in namespace.items() if key not in own}
        made: Any = type.__new__(Versioned, name, (bases[0].ours, dress(codec, codec.schema.root)), {**kept, **about})
        made.codec = REGISTRY.by_class(made)  # which reads instances of the client's class
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
        header, found = REGISTRY.frames.decode_response(body, cls[None], version, strict=False, bytes="view")
        if header.correlation_id != pending.correlation_id:
            raise errors.CorrelationIdError(f"sent {pending.correlation_id}, received {header.correlation_id}")
        return pending.correlation_id, cls.of(found, version)


parser.KafkaProtocol = Parser
SPEC.loader.exec_module(sys.modules["kafka"])


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what went through the codec."""
    terminalreporter.write_line(f"frames of kcoord_wire ({kw.backend}): {frames}")
