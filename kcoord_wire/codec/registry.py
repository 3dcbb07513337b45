"""Messages by name, class and api key, each with the codec that reads and writes it; the functions of `kcoord_wire`.

Laws:

* A codec's plan, classes and programs are made when they are first needed, and kept; importing makes none.
* One message class serves all versions; the version is always an argument.
* The package's own registry and one that a user compiles at run time behave alike: the classes made for it have
  the fields, defaults, annotations and docstrings that generated ones have.
* Registries compiled from the same text of a schema file share their classes as long as these are in use. A pickle of
  an instance holds that text, once, and is loaded by any process that has this package.

To add a message, a field or a version: schemas/README.md.
"""

from __future__ import annotations

import reprlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import field, make_dataclass
from functools import cached_property, reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol
from weakref import WeakValueDictionary

from kcoord_wire.codec import text
from kcoord_wire.codec.backend import (
    Buffer,
    BytesAs,
    Frames,
    Program,
    ProgramClass,
    dispatch_class,
    frames_class,
    plain_text,
    program_class,
)
from kcoord_wire.codec.frames import Frames as PythonFrames
from kcoord_wire.codec.frames import as_bytes, int16_bytes
from kcoord_wire.codec.view import wants_parts
from kcoord_wire.errors import DecodeError, EncodeError, SchemaError
from kcoord_wire.messages._index import INDEX
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.short_repr import short_repr
from kcoord_wire.schema.describe import class_doc
from kcoord_wire.schema.files import Texts, collect_messages, schema_root
from kcoord_wire.schema.model import INTEGERS, Field, Message, Struct
from kcoord_wire.schema.plan import StructPlan, attribute_name, class_name, compile_plan
from kcoord_wire.schema.reader import load_message, read_message

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


if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import TypeVar  # a default, which typing has from 3.13 on; type checkers bring the module

    M = TypeVar("M", default=Any)
    S = TypeVar("S")
else:
    from typing import TypeVar

    M, S = TypeVar("M"), TypeVar("S")

_Row = tuple[str, str, str, str, int | None, str, str, tuple[int, int], tuple[int, int]]  # of a package's INDEX


class MessageCodec(Generic[M]):
    """One message of class `M`: what it is, and its bytes in every version.

    :ivar name: the schema's name, ``JoinGroupRequest``
    :ivar type: ``request``, ``response``, ``header``, ``data``, ``metadata`` or ``coordinator-key`` and ``-value``
    :ivar api_key: the api key, type id or record type; None where it has none
    :ivar family: the namespace of its api key: ``kafka``, ``central``, ``proposal`` ...
    :ivar header: what precedes it in a frame: ``kafka``, ``typeId`` or ``none``
    :ivar valid_versions: the versions it has
    :ivar flexible_versions: those of them in the compact encoding
    """

    def __init__(
        self,
        name: str,
        type_: str,
        api_key: int | None,
        family: str,
        header: str,
        valid_versions: range,
        flexible_versions: range,
        schema: Callable[[], Message],
        classes: Callable[[], Mapping[str, type]],
        program: ProgramClass = program_class,
    ) -> None:
        self.name = name
        self.type = type_
        self.api_key = api_key
        self.family = family
        self.header = header
        self.valid_versions = valid_versions
        self.flexible_versions = flexible_versions
        self._schema = schema
        self._classes = classes
        self._program_class = program
        self._programs: dict[int, Program] = {}
        self._dropping: dict[int, Program] = {}  # those that write without what the version lacks
        self._plans: dict[int, StructPlan] = {}
        self._header_versions: dict[int, int] = {}

    @cached_property
    def schema(self) -> Message:
        """The checked schema (read from its file when first asked for)."""
        return self._schema()

    @cached_property
    def classes(self) -> Mapping[str, type]:
        """The message's class and those of its structs, by class name."""
        return self._classes()

    @cached_property
    def cls(self) -> type[M]:
        """The message's class, or the subclass that this codec was made for."""
        return self.classes[self.name]

    def plan(self, version: int) -> StructPlan:
        """The plan at `version` (ValueError where the message does not have it)."""
        plan = self._plans.get(version)
        if plan is None:
            plan = self._plans.setdefault(version, compile_plan(self.schema, version))
        return plan

    def encode(self, message: M, version: int, *, drop: bool = False) -> bytes:
        """The bytes of `message` at `version`, without size or header.

        :param drop: leave out what the version lacks, fields and unknown tags, whatever they hold: for programs that
            fill in the fields of all versions. Else such a field must hold its default, unless it is ignorable
        :raises EncodeError: the message has no such version, or the value cannot be written in it
        """
        programs = self._dropping if drop else self._programs
        program = programs.get(version) or self.program(version, reading=False, drop=drop)
        return program.encode(message)

    def encode_into(self, message: M, version: int, buffer: bytearray, *, offset: int = 0, drop: bool = False) -> int:
        """Write what `encode` would return into `buffer` from `offset` on: `kcoord_wire.encode_into`.

        :returns: the offset of the byte after it
        """
        programs = self._dropping if drop else self._programs
        program = programs.get(version) or self.program(version, reading=False, drop=drop)
        return program.encode_into(message, buffer, offset)

    def decode(
        self, data: Buffer, version: int, *, strict: bool = True, bytes: BytesAs = "copy", lazy: bool = False
    ) -> M:
        """The message that `data` holds, a body without size or header.

        :param strict: reject trailing bytes, text that is not UTF-8, varints that are not canonical, tags out of order
            and bools other than 0 and 1. False accepts what Kafka's own readers accept (docs/codec.md has the table),
            and null where it is not allowed as the empty value, which librdkafka's mock broker writes
        :param bytes: ``"view"`` makes bytes fields of 1 KB and more (records, assignments, metadata) read-only
            memoryviews that keep the input alive, instead of copies of their part of it. Input that is not `bytes`,
            nor a memoryview of `bytes`, is copied once, as a whole (docs/codec.md)
        :param lazy: check all bytes, and make the structs of long arrays (16 and more) when they are first asked for.
            Such an array is a sequence that cannot be changed, not a list. It keeps the input, which is copied once
            where it is not `bytes` (docs/codec.md)
        :raises DecodeError: the message has no such version (kind ``version``), or the bytes are not such a message
        """
        program = self._programs.get(version) or self.program(version)
        message: M = program.decode(data, strict, bytes != "copy" and wants_parts(bytes), lazy)
        return message

    def decode_prefix(
        self,
        data: Buffer,
        version: int,
        *,
        offset: int = 0,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
    ) -> tuple[M, int]:
        """The message that starts at `offset`, and the offset of the byte after it: `decode` where more may follow."""
        program = self._programs.get(version) or self.program(version)
        return program.decode_prefix(data, offset, strict, wants_parts(bytes), lazy)

    def program(self, version: int, reading: bool = True, drop: bool = False) -> Program:
        """What reads and writes this message at `version`, made on first use: for loops that know their version.

        :param drop: one that writes without what the version lacks (`encode`)
        :raises DecodeError: the message has no such version (EncodeError where not `reading`)
        """
        programs = self._dropping if drop else self._programs
        if version in programs:
            return programs[version]
        if version not in self.valid_versions:
            if reading:
                raise DecodeError("version", 0, self.name, self.no_version(version))
            raise EncodeError("version", self.name, self.no_version(version))
        plan = compile_plan(self.schema, version, drops=True) if drop else self.plan(version)
        subclass = None if self.cls is self.classes[self.name] else self.cls
        if self.schema.encoding == "text":
            plain = plain_text(plan, self.classes)
            program: Program = text.TextProgram(self.schema, plan, self.classes, plain, subclass)
        else:
            program = self._program_class(plan, self.classes, subclass)
        return programs.setdefault(version, program)  # that of another thread, where it was first

    def for_subclass(self, subclass: type[S]) -> MessageCodec[S]:
        """The codec that reads instances of a subclass of the message's class; `Registry.by_class` keeps it."""
        codec: MessageCodec[Any] = copy(self)
        codec.cls = subclass
        codec._programs, codec._dropping = {}, {}
        return codec

    def header_version(self, version: int) -> int:
        """Return the version of the request or response header that precedes this message at `version`.

        Flexible messages have request header 2 and response header 1, others 1 and 0 (KIP-482). Two exceptions: the
        response to ApiVersions always has header 0, because the client may not know the broker's versions yet
        (KIP-511), and ControlledShutdown v0 has request header 0. Source: Kafka's ApiMessageType.

        :raises ValueError: the message is neither a request nor a response of Kafka, so it has no such header
        """
        known = self._header_versions.get(version)
        if known is None:
            known = self._header_versions[version] = self._find_header_version(version)
        return known

    def _find_header_version(self, version: int) -> int:
        if self.header != "kafka" or self.type not in ("request", "response"):
            raise ValueError(f"{self.name} has no Kafka header")
        is_kafka = self.family == "kafka"
        if self.type == "request":
            if is_kafka and self.api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
                return 0
            return 2 if version in self.flexible_versions else 1
        if is_kafka and self.api_key == ApiKey.API_VERSIONS:
            return 0
        return 1 if version in self.flexible_versions else 0

    def no_version(self, version: int) -> str:
        """What errors say of a version that the message does not have."""
        return f"there is no version {version!r}, only {self.valid_versions.start} to {self.valid_versions.stop - 1}"

    def __repr__(self) -> str:
        return f"<MessageCodec {self.name} versions {self.valid_versions.start}-{self.valid_versions.stop - 1}>"


class _UnknownMessageError(KeyError):
    """A registry has no message of a name. The text suggests some, and is made when it is asked for: `Registry.get` and
    programs that try a name never do."""

    def __init__(self, name: object, known: Mapping[str, object]) -> None:
        super().__init__(name)
        self._known = known

    def __str__(self) -> str:
        from kcoord_wire.protocol.wording import near_names

        (name,) = self.args
        lower = {each.lower(): each for each in self._known}
        meant = [str(name).lower() + side for side in ("", "request", "response", "key", "value")]
        near = [lower[each] for each in meant if each in lower] or near_names(str(name), self._known, 3)
        return f"there is no message {reprlib.repr(name)}" + (f"; there is {', '.join(near)}" if near else "")


class Registry(Mapping[str, MessageCodec]):
    """Codecs by message name; also by class and, for requests and responses, by family and api key.

    :ivar refused: why a schema file of a folder or archive was left out, by its name without .json (`compile_schemas`)
    """

    def __init__(self, codecs: Iterable[MessageCodec], refused: Mapping[str, SchemaError] | None = None) -> None:
        self.refused: Mapping[str, SchemaError] = refused or {}
        self._codecs = {codec.name: codec for codec in codecs}
        self._by_key: dict[tuple[str, str, int], MessageCodec] = {}
        self._ambiguous: set[tuple[str, str, int]] = set()
        self._request_headers: dict[str, str] = {}
        for codec in self._codecs.values():
            self._add(codec)
        for key in self._ambiguous:
            del self._by_key[key]
        self._by_class: dict[type, MessageCodec] = {}
        self._text_programs: dict[str, Mapping[str, Program]] = {}

    def _add(self, codec: MessageCodec) -> None:
        if codec.api_key is None:
            return
        key = (codec.type, codec.family, codec.api_key)
        other = self._by_key.setdefault(key, codec)
        if other is not codec:
            # Record types are numbered by topic: Kafka's group and share coordinators use the same. Neither is found.
            self._ambiguous.add(key)
            if codec.type in ("request", "response"):
                rule = (
                    f"{codec.api_key} is the api key of the {codec.type} {other.name} too, in the family {codec.family}"
                )
                raise SchemaError(rule, file=codec.schema.file, where="$.apiKey")
        if codec.type == "request" and self._request_headers.setdefault(codec.family, codec.header) != codec.header:
            rule = f"all requests of the family {codec.family} have the same kind of header"
            raise SchemaError(rule, file=codec.schema.file, where="$.header")

    @cached_property
    def frames(self) -> Frames:
        """What reads and writes whole frames of these messages: `kcoord_wire.decode_request` with ``registry=``."""
        return frames_class(PythonFrames(self, registry))

    def request_header(self, family: str) -> str:
        """What precedes a family's requests: ``kafka`` (also where it has none), ``typeId`` or ``none``."""
        return self._request_headers.get(family, "kafka")

    def __getitem__(self, name: str) -> MessageCodec:
        """The codec of a message.

        :raises SchemaError: the schema file of that name is `refused`
        :raises KeyError: there is no such message; the text suggests names
        """
        try:
            return self._codecs[name]
        except KeyError:
            if name in self.refused:
                raise self.refused[name] from None
            raise _UnknownMessageError(name, self) from None

    def __contains__(self, name: object) -> bool:
        return name in self._codecs

    def __iter__(self) -> Iterator[str]:
        return iter(self._codecs)

    def __len__(self) -> int:
        return len(self._codecs)

    def __repr__(self) -> str:
        refused = f", {len(self.refused)} files refused" if self.refused else ""
        return f"<Registry of {len(self)} messages{refused}>"

    def by_class(self, cls: type[M]) -> MessageCodec[M]:
        """The codec of a message class, or of a subclass: that one reads instances of the subclass.

        These are made without calling their class. The fields of the message are set, slots of their own are not.

        :raises TypeError: `cls` is not the class of a message of this registry (structs within a message do not count)
        """
        codec = self._by_class.get(cls)
        if codec is None:
            given: Any = cls  # whatever a caller without a type checker gives
            for base in given.__mro__ if isinstance(given, type) else ():
                codec = self._codecs.get(base.__name__)
                if codec is not None and codec.cls is base:
                    codec = codec if cls is base else codec.for_subclass(cls)
                    return self._by_class.setdefault(cls, codec)
            raise TypeError(self._no_message(cls))
        return codec

    def _no_message(self, cls: object) -> str:
        """What errors say of something that is not a message class of this registry."""
        if not isinstance(cls, type):
            by_name = f" (registry[{cls!r}].cls has that name)" if isinstance(cls, str) and cls in self else ""
            return f"{reprlib.repr(cls)} is not a message class{by_name}"
        if cls is type:
            return "a message is an instance of its class, not the class"
        for codec in self._codecs.values():
            if cls.__name__.startswith(codec.name) and codec.classes.get(cls.__name__) is cls:
                return f"{cls.__name__} is not a message class, but a struct within {codec.name}"
        return f"{cls!r} is not a message class of this registry (compile_schemas returns a registry for its classes)"

    def request(self, api_key: int, family: str = "kafka") -> MessageCodec:
        """The request with that api key (or type id). Raises KeyError if there is none."""
        return self._keyed("request", family, api_key)

    def response(self, api_key: int, family: str = "kafka") -> MessageCodec:
        """The response with that api key (or type id). Raises KeyError if there is none."""
        return self._keyed("response", family, api_key)

    def _keyed(self, type_: str, family: str, api_key: int) -> MessageCodec:
        try:
            return self._by_key[type_, family, api_key]
        except KeyError:
            raise KeyError(f"no {type_} of family {family} has number {api_key}") from None

    def text_programs(self, family: str) -> Mapping[str, Program]:
        """The programs of a family's text-encoded messages, at their newest version, by the token they start with."""
        if family not in self._text_programs:
            codecs = [c for c in self._codecs.values() if c.family == family and c.schema.encoding == "text"]
            programs = {c.schema.text_type or "": c.program(c.valid_versions[-1]) for c in codecs}
            self._text_programs[family] = programs
        return self._text_programs[family]

    def record_key(self, record_type: int) -> MessageCodec:
        """The `__consumer_offsets` key of that record type. Raises KeyError if there is none."""
        return self._keyed("coordinator-key", "kafka", record_type)

    def record_value(self, record_type: int) -> MessageCodec:
        """The `__consumer_offsets` value of that record type. Raises KeyError if there is none."""
        return self._keyed("coordinator-value", "kafka", record_type)


def packaged(index: Iterable[_Row], package: str, root: Callable[[], Path]) -> Registry:
    """The registry of a package of generated classes, which are imported, and their files read, when first needed.

    :param index: `INDEX` of the package
    :param package: its name
    :param root: gives the folder of its schema files
    """

    def classes(module: str) -> Mapping[str, type]:
        made = import_module(f"{package}.{module}")
        return {name: getattr(made, name) for name in made.__all__}

    def codec(row: _Row) -> MessageCodec:
        name, file, module, type_, api_key, family, header, valid, flexible = row
        ranges = _range(*valid), _range(*flexible)
        return MessageCodec(
            name, type_, api_key, family, header, *ranges, lambda: load_message(root() / file), lambda: classes(module)
        )

    return Registry(map(codec, index))


def _range(low: int, high: int) -> range:
    return range(low, high + 1) if low <= high else range(0)


registry: Final = packaged(INDEX, "kcoord_wire.messages", schema_root)


def compile_schemas(path: str | Path | Texts, *more: str | Path | Texts) -> Registry:
    """A registry of a user's own schema files, or of Kafka's.

    Each path is a .json file, a folder (every .json file below it) or a jar or zip archive (every .json file below its
    common/message/, as in kafka-clients, or else in it). A mapping of names to texts is taken for a folder.

    Classes are made when they are first used, with the names, attributes, defaults, annotations and docstrings that
    generated ones would have; the laws of this module say how they are pickled. Codecs are native where the native
    core is built. A file of a folder or archive that breaks a rule is left out: `Registry.refused` has it, and asking
    for its message raises its SchemaError.

    :raises SchemaError: a path that is a file breaks a rule of the schema language, every file of a path does, an
        archive is not one or above its bounds (`kcoord_wire.schema.files`), or two files contradict each other: they
        define one message, or one api key
    :raises FileNotFoundError: a path does not exist
    """
    messages, refused = collect_messages(each if isinstance(each, Mapping) else Path(each) for each in (path, *more))
    return Registry(map(_compiled, messages.values()), refused)


def _compiled(m: Message) -> MessageCodec:
    valid, flexible = _range(m.versions.low, m.versions.high), _range(m.flexible.low, m.flexible.high)
    kind = m.name, m.type, m.api_key, m.family, m.header
    return MessageCodec(*kind, valid, flexible, lambda: m, lambda: make_classes(m))


class _Decode(Protocol):  # `Dispatch.decode`, whose result has the type of the class it is given
    def __call__(
        self,
        cls: type[M],
        data: Buffer,
        version: int,
        *,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
    ) -> M: ...


def _find(cls: type, version: int, reading: bool, *, drop: bool = False) -> Program:
    return registry.by_class(cls).program(version, reading, drop)


_dispatch = dispatch_class(_find)
encode: Final = _dispatch.encode
encode_into: Final = _dispatch.encode_into
decode: _Decode = _dispatch.decode


def decode_text(value: Buffer, *, family: str = "marshal", registry: Registry = registry) -> Any:
    """The text-encoded message that `value` holds, whichever of the family's messages its first token names.

    :raises DecodeError: kind ``text`` where the family has no such message; else as that message's `decode`
    """
    return text.decode_text(value, registry.text_programs(family))


decode_prefixed: Final = registry.frames.decode_prefixed
decode_request: Final = registry.frames.decode_request
decode_response: Final = registry.frames.decode_response
encode_request: Final = registry.frames.encode_request
encode_request_into: Final = registry.frames.encode_request_into
encode_response: Final = registry.frames.encode_response
encode_response_into: Final = registry.frames.encode_response_into
_peek = PythonFrames(registry, registry).peek_request


def peek_request(body: Buffer, *, strict: bool = True) -> RequestHeader:
    """The header of a Kafka request, without its tagged fields: the same for every api and version, known to us or not.

    :raises DecodeError: the bytes end inside it, or the client id is not a string
    """
    return _peek(as_bytes(body), strict)


def peek_response(body: Buffer) -> ResponseHeader:
    """The header of a Kafka response, without its tagged fields: which request it answers.

    :raises DecodeError: the bytes end inside it
    """
    header: ResponseHeader = registry["ResponseHeader"].decode_prefix(as_bytes(body), 0)[0]
    return header


def encode_prefixed(
    message: DataclassInstance, version: int, *, drop: bool = False, registry: Registry = registry
) -> bytes:
    """The blob of `message`: its version as int16, then its bytes. `drop` and errors as `encode`."""
    body = registry.by_class(type(message)).encode(message, version, drop=drop)
    return int16_bytes(version) + body
