"""Whatever the text, or the archive of texts, reading a schema ends in a SchemaError or in a message that all codecs
read and write alike."""

from __future__ import annotations

from kcoord_wire.codec.backend import program_class
from kcoord_wire.codec.python import Program
from kcoord_wire.codec.registry import make_classes
from kcoord_wire.codec.text import TextProgram
from kcoord_wire.errors import DecodeError, EncodeError, SchemaError
from kcoord_wire.schema.files import schema_files
from kcoord_wire.schema.model import Message
from kcoord_wire.schema.plan import compile_plan
from kcoord_wire.schema.reader import read_message

MAX_VERSIONS = 4
PROBES = (b"", b"\0" * 40, b"\1" * 40, b"\xff" * 40)


def check(data: bytes) -> None:
    """`data`: the text of a schema file, or a zip archive."""
    try:
        texts = [text for _, text in schema_files(data, "fuzz.zip")] if data.startswith(b"PK") else [data]
    except SchemaError:
        return
    for text in texts:
        try:
            check_message(read_message(text))
        except SchemaError:
            continue


def check_message(message: Message) -> None:
    classes = make_classes(message)
    first, last = message.versions.low, message.versions.high
    for version in sorted({*range(first, min(last, first + MAX_VERSIONS) + 1), last} if first <= last else ()):
        plan = compile_plan(message, version)
        assert plan.digest
        if message.encoding == "text":
            programs = [TextProgram(message, plan, classes)]
        else:
            programs = [program_class(plan, classes), Program(plan, classes)]
        default = classes[plan.name]()
        written = [written_by(program, default) for program in programs]
        assert written.count(written[0]) == len(written), written
        if isinstance(written[0], bytes):
            for program in programs:
                assert repr(program.decode(written[0])) == repr(default)
        for probe in PROBES:
            read = [read_by(program, probe) for program in programs]
            assert len(set(map(repr, read))) == 1, read


def written_by(program: Program | TextProgram, message: object) -> object:
    try:
        return program.encode(message)
    except EncodeError as error:
        return error.kind, error.path


def read_by(program: Program | TextProgram, data: bytes) -> object:
    try:
        return program.decode(data)
    except DecodeError as error:
        return error.kind, error.offset, error.path
