"""Kafka's generated message classes as the oracle of our codecs: what it is asked, and how its answers are compared.

Laws:

* What is asked follows from the seed alone, and from the schemas in the jar.
* The oracle is one JVM that reads all questions from a file and ends; it judges without our schemas.
* A difference never ends a run: all are found, the first ones are shown.

    python -m tests.support.jvm_oracle --seeds 1 20    # all jars, twenty seeds
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcoord_wire.codec.convert import from_dict, to_dict
from kcoord_wire.codec.registry import MessageCodec, Registry, compile_schemas, registry
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.model import INTEGERS, Field, Message, Struct
from tests.support import kafka_broker
from tests.support.codecs import Codec, codecs
from tests.support.kafka_broker import class_path, compile_java, java

_SOURCE: Final = Path(kafka_broker.__file__).with_name("java") / "Oracle.java"
_SECONDS: Final = 900  # it takes a few; a busy machine must not end it
_SHOWN: Final = 20
_VALUES: Final = 3  # of each version: one with all fields set, two drawn
_DAMAGES: Final = 6  # of each body
_TAGS: Final = "_unknownTags"
_LENIENT: Final = ("was serialized as null", "Invalid negative number of tagged fields")
"""What lenient reading takes although a Kafka refuses it (docs/codec.md): librdkafka writes the first, Kafka 3.9 reads
the second."""
_TEXTS: Final = ("", "a", "orders", "größe", "漢字", "\U0001f600", "x" * 130)
_LENGTHS: Final = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff", b"\x7f\xff", b"\0\0\0\0")
_VARINTS: Final = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x10", b"\x80\0", b"\x01", b"\0")


class Jar(NamedTuple):
    """A jar with generated messages.

    :ivar artifact: of org.apache.kafka
    :ivar package: of its classes
    """

    artifact: str
    version: str
    package: str

    def __str__(self) -> str:
        return f"{self.artifact}-{self.version}"


JARS: Final = (
    Jar("kafka-clients", "3.9.2", "org.apache.kafka.common.message"),
    Jar("kafka-clients", "4.4.0", "org.apache.kafka.common.message"),
    Jar("kafka-group-coordinator", "4.4.0", "org.apache.kafka.coordinator.group.generated"),
    Jar("kafka-metadata", "4.4.0", "org.apache.kafka.common.metadata"),
    Jar("kafka-share-coordinator", "4.4.0", "org.apache.kafka.coordinator.share.generated"),
)


@dataclass
class Comparison:
    """What was compared, and what was different.

    :ivar counts: by what was compared
    :ivar messages: of the jar
    :ivar pairs: of a message and a version
    """

    messages: int = 0
    pairs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def differs(self, what: str) -> None:
        self.differences.append(what)

    @property
    def text(self) -> str:
        more = f"\n... and {len(self.differences) - _SHOWN} more" if len(self.differences) > _SHOWN else ""
        return "\n".join(part[:1_500] for part in self.differences[:_SHOWN]) + more


class _Case(NamedTuple):
    """A question about a version of a message. `values` and `data`: one of them is there."""

    what: str
    codec: MessageCodec
    registry: Registry
    version: int
    values: Mapping[str, Any] | None
    data: bytes | None = None

    def __str__(self) -> str:
        given = json.dumps(self.values) if self.data is None else self.data.hex()
        return f"{self.codec.name} v{self.version}, {self.what}, {given}"


# ---- what is asked


class _Drawer:
    """Draws values of one version of a message, as dicts with the names of the schema."""

    def __init__(self, message: Message, version: int, rng: random.Random) -> None:
        self._message = message
        self._version = version
        self.rng = rng
        self.structs: list[tuple[Struct, dict[str, Any]]] = []  # all that were drawn, with what they hold

    def message(self, *, whole: bool = False) -> dict[str, Any]:
        """Values of the message; `whole`: every field has one that is not null."""
        self.structs = []
        return self._struct(self._message.root, whole)

    def _struct(self, struct: Struct, whole: bool) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for each in struct.fields:
            must = each.default is None and self._version not in each.nullable
            if self._version in each.versions and (whole or must or self.rng.random() < 0.8):
                values[each.name] = self.field(each, whole)
        if self._version in self._message.flexible and (whole or self.rng.random() < 0.2):
            tags = sorted(self.rng.sample(range(1_000, 2**31 - 1), 2))
            values[_TAGS] = [[tag, self.rng.randbytes(self.rng.randrange(5)).hex()] for tag in tags]
        self.structs.append((struct, values))
        return values

    def field(self, each: Field, whole: bool) -> Any:
        if not whole and self._version in each.nullable and self.rng.random() < 0.25:
            return None
        if not each.type.array:
            return self._one(each, whole)
        return [self._one(each, whole) for _ in range(2 if whole else self.rng.randrange(4))]

    def _one(self, each: Field, whole: bool) -> Any:
        rng, base = self.rng, each.type.base
        if each.type.is_struct:
            return self._struct(self._message.struct_of(each), whole)
        if base == "string":
            return rng.choice(_TEXTS[1:] if whole else _TEXTS)
        if base in ("bytes", "records"):
            return rng.randbytes(rng.choice((1, 2, 7, 130))).hex() if whole or rng.random() < 0.8 else ""
        if base == "uuid":
            return rng.randbytes(16).hex()
        if base == "bool":
            return rng.random() < 0.5
        if base == "float64":
            return rng.choice((0.0, -0.0, 1.5, -1e300, 5e-324, rng.random()))
        low, high = INTEGERS[base]
        return rng.choice((low, high, low + (high - low) // 2, 1, rng.randint(low, high)))


def _trapped(codec: MessageCodec, own: Registry, version: int, drawer: _Drawer) -> Iterator[_Case]:
    """Each field once that is null and must not be, and each that has a value and is not in the version."""
    values = drawer.message(whole=True)
    places = {(struct.name, each.name): (each, held) for struct, held in drawer.structs for each in struct.fields}
    for each, held in places.values():
        there = [other for other in codec.valid_versions if other in each.versions]
        if version in each.versions and version not in each.nullable and _is_object(each):
            what, trap = f"null in {each.name}", None
        elif version not in each.versions and there:
            what = f"{each.name}, which it does not have"
            trap = _Drawer(codec.schema, there[-1], drawer.rng).field(each, True)
        else:
            continue
        former = dict(held)
        held[each.name] = trap
        yield _Case(what, codec, own, version, copy.deepcopy(values))
        held.clear()
        held.update(former)


def _is_object(each: Field) -> bool:
    """Whether a Java field of this type can be null."""
    return each.type.array or each.type.is_struct or each.type.base in ("string", "bytes", "records")


def _questions(codec: MessageCodec, own: Registry, version: int, seed: int) -> Iterator[_Case]:
    rng = random.Random(f"{seed} {codec.name} {version}")
    drawer = _Drawer(codec.schema, version, rng)
    for number in range(_VALUES):
        values = drawer.message(whole=number == 0)
        yield _Case("values", codec, own, version, values)
        data = _encoded(codec, own, version, values)
        if data is not None:
            yield _Case("bytes", codec, own, version, None, data)
            for _ in range(_DAMAGES):
                yield _Case("damaged", codec, own, version, None, _damaged(data, rng))
    yield from _trapped(codec, own, version, drawer)
    if version not in codec.schema.flexible:
        values = {**drawer.message(whole=True), _TAGS: [[1_000, "00"]]}
        yield _Case("tagged fields, which it does not have", codec, own, version, values)


def _encoded(codec: MessageCodec, own: Registry, version: int, values: Mapping[str, Any]) -> bytes | None:
    try:
        return codec.encode(from_dict(codec.cls, values, registry=own), version)
    except EncodeError:
        return None  # the question about these values shows it


def _damaged(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(5)
    if kind == 0 or at == len(data):
        return data[:at] if at < len(data) else data + rng.randbytes(3)
    if kind == 1:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + bytes([rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))]) + data[at + 1 :]
    new = rng.choice(_LENGTHS if kind == 3 else _VARINTS)
    return data[:at] + new + data[at + (len(new) if kind == 3 else 1) :]


# ---- the oracle


def _java_names(value: Any) -> Any:
    """Values with the names of the Java fields."""
    if isinstance(value, dict):
        return {
            name if name == _TAGS else name[0].lower() + name[1:]: _java_names(each) for name, each in value.items()
        }
    return [_java_names(each) for each in value] if isinstance(value, list) else value


class _Oracle:
    """A jar, its schemas, and the program that asks its classes."""

    def __init__(self, jar: Jar, program: Path, folder: Path) -> None:
        self._jar = jar
        self._folder = folder
        path = class_path(jar.artifact, jar.version)
        with zipfile.ZipFile(Path(path).parent / f"{jar}.jar") as files:
            files.extractall(folder, [name for name in files.namelist() if name.endswith(".json")])
        self.schemas = compile_schemas(folder)
        self._command = java(f"{program}{os.pathsep}{path}", "Oracle")

    @cached_property
    def _names(self) -> dict[str, str]:
        """The class of each message."""
        suffixed = {"request", "response", "header"}
        return {
            codec.name: f"{self._jar.package}.{codec.name}{'Data' if codec.type in suffixed else ''}"
            for codec in self.schemas.values()
        }

    def ask(self, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answers, in order."""
        asked, answered = self._folder / "asked", self._folder / "answered"
        asked.write_text("".join(json.dumps(question) + "\n" for question in questions))
        with asked.open() as given, answered.open("w") as taken:
            subprocess.run(self._command, stdin=given, stdout=taken, timeout=_SECONDS, check=True)
        with answered.open() as lines:
            return [json.loads(line) for line in lines]

    def question(self, case: _Case) -> dict[str, Any]:
        given = {"values": _java_names(case.values)} if case.data is None else {"hex": case.data.hex()}
        return {"name": self._names[case.codec.name], "version": case.version, **given}

    def listing(self) -> list[dict[str, Any]]:
        return [{"list": self._jar.package}, *({"name": self._names[codec.name]} for codec in self.schemas.values())]

    def versions(self, listed: list[list[Any]]) -> Counter[tuple[str, int]]:
        """The messages of the jar at their versions, by the names of the schemas."""
        names = {name: short for short, name in self._names.items()}
        return Counter(
            (names.get(name, name), version) for name, low, high in listed for version in range(low, high + 1)
        )


# ---- the comparison


def compile_oracle(folder: Path) -> Path:
    """Compile the program into a folder: it runs on all the jars."""
    compile_java(_SOURCE, folder, class_path(JARS[0].artifact, JARS[0].version))
    return folder


def compare(jar: Jar, seed: int, program: Path, folder: Path) -> Comparison:
    """Ask a jar, and compare its answers with what our codecs make of the same.

    :param program: as `compile_oracle` returns it
    :param folder: an empty one
    """
    oracle, found = _Oracle(jar, program, folder), Comparison()
    cases = []
    ours: Counter[tuple[str, int]] = Counter()
    for codec in oracle.schemas.values():
        for version in codec.valid_versions:
            ours[codec.name, version] += 1
            chosen = _codec_of(codec, version, oracle.schemas)
            found.counts["versions of the package"] += chosen[1] is registry
            cases += _questions(*chosen, version, seed)
    asked = oracle.listing()
    listed, *answers = oracle.ask([*asked, *map(oracle.question, cases)])
    theirs = oracle.versions(listed["messages"])
    found.messages, found.pairs = len(listed["messages"]), theirs.total()
    if theirs != ours:
        found.differs(f"only in the jar: {theirs - ours}; only in its schemas: {ours - theirs}")
    for codec, answer in zip(oracle.schemas.values(), answers, strict=False):
        _compare_defaults(codec, oracle.schemas, answer, found)
    for case, answer in zip(cases, answers[len(asked) - 1 :], strict=True):
        if case.data is None:
            _compare_written(case, answer, found)
        else:
            _compare_read(case, answer, found)
    return found


def _codec_of(codec: MessageCodec, version: int, own: Registry) -> tuple[MessageCodec, Registry]:
    """The package's own codec where it has this message; fields of a later Kafka must not be among its fields."""
    packaged = registry.get(codec.name)
    if packaged is None or version not in packaged.valid_versions:
        return codec, own
    same = _fields(packaged.schema, packaged.schema.root) == _fields(codec.schema, codec.schema.root)
    return (packaged, registry) if same else (codec, own)


def _fields(message: Message, struct: Struct) -> dict[str, Any]:
    return {
        each.name: _fields(message, message.struct_of(each)) if each.type.is_struct else None for each in struct.fields
    }


def _text(values: Any) -> str:
    """Values in a form in which NaN equals itself, and 0.0 is not -0.0."""
    return json.dumps(values, sort_keys=True)


def _plain(message: object, own: Registry) -> str:
    return _text(_java_names(to_dict(message, json=True, registry=own)))


def _compare_defaults(schema: MessageCodec, schemas: Registry, answer: Mapping[str, Any], found: Comparison) -> None:
    codec, own = _codec_of(schema, schema.valid_versions[-1], schemas)
    found.counts["defaults"] += 1
    ours = _plain(codec.cls(), own)
    if ours != _text(answer["values"]):
        found.differs(f"defaults of {codec.name}: ours {ours}, Kafka's {_text(answer['values'])}")


def _compare_written(case: _Case, answer: Mapping[str, Any], found: Comparison) -> None:
    hex_ = answer.get("hex")
    kind = case.what.split()[0] if case.what == "values" else ("refused" if hex_ is None else "dropped")
    found.counts[kind] += 1
    if case.what == "values" and hex_ is None:
        found.differs(f"{case}: Kafka does not write it: {answer['error']}")
    for codec in codecs(case.codec, case.version):
        try:
            written = codec.encode(from_dict(case.codec.cls, case.values or {}, registry=case.registry)).hex()
        except EncodeError as error:
            if hex_ is not None:
                found.differs(f"{case}: {codec.name} refuses it: {error}; Kafka writes {hex_}")
            continue
        if written != hex_:
            found.differs(f"{case}: {codec.name} writes {written}, Kafka {hex_ or answer['error']}")


def _compare_read(case: _Case, answer: Mapping[str, Any], found: Comparison) -> None:
    refusal = answer.get("error")
    found.counts[f"{case.what} {'read' if refusal is None else 'refused'}"] += 1
    for codec in codecs(case.codec, case.version):
        for strict in (True, False):
            problem = _read_problem(case, codec, strict, answer)
            if problem:
                mode = "strict" if strict else "lenient"
                found.differs(f"{case}: {codec.name}, {mode}: {problem}; Kafka: {refusal or _text(answer)}")


def _read_problem(case: _Case, codec: Codec, strict: bool, answer: Mapping[str, Any]) -> str:
    refusal = answer.get("error")
    try:
        message = codec.decode(case.data or b"", strict)
    except DecodeError as error:
        may_refuse = refusal is not None or (strict and case.what == "damaged")
        return "" if may_refuse else str(error)
    values = _plain(message, case.registry)
    if refusal is not None:
        is_lenient = any(words in refusal for words in _LENIENT)
        return "" if is_lenient and not strict else f"reads {values}"
    if values != _text(answer["values"]):
        return f"reads {values}"
    if strict and answer["left"]:
        return f"does not see {answer['left']} bytes left"
    if answer["again"] is None:
        return ""  # Java's tags have a sign: it reads those of 2^31 and above, and cannot write them
    try:
        again = codec.encode(message).hex()
    except EncodeError as error:
        return f"does not write it again: {error}"
    return "" if again == answer["again"] else f"writes it again as {again}"


def main(arguments: list[str] | None = None) -> int:
    """Compare all jars with a range of seeds; 1 if there are differences."""
    parser = argparse.ArgumentParser(prog="tests.support.jvm_oracle", description=compare.__doc__)
    parser.add_argument("--seeds", nargs=2, type=int, metavar=("FIRST", "LAST"), default=(1, 1))
    given = parser.parse_args(arguments)
    failed = 0
    for seed in range(given.seeds[0], given.seeds[1] + 1):
        for jar in JARS:
            with tempfile.TemporaryDirectory() as program, tempfile.TemporaryDirectory() as scratch:
                found = compare(jar, seed, compile_oracle(Path(program)), Path(scratch))
            print(f"{jar}, seed {seed}: {found.messages} messages, {found.pairs} versions, {dict(found.counts)}")
            print(found.text)
            failed |= bool(found.differences)
    return failed


if __name__ == "__main__":
    sys.exit(main())
