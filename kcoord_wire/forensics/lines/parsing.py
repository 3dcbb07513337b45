"""One line of text -> what it says: kind, program and the fields that it states.

Laws:

* The first template that matches counts, those of brokers before those of clients.
* Parsing keeps no state: what a line leaves out (client, group) is added by `kcoord_wire.forensics.lines.reader`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from kcoord_wire.forensics.lines.broker_shapes import BROKER_SHAPES
from kcoord_wire.forensics.lines.client_shapes import CLIENT_SHAPES
from kcoord_wire.forensics.lines.shapes import FIELDS, Shape
from kcoord_wire.forensics.lines.wrapping import Message, unwrap

_SHAPES: Final = tuple((shape.literal, shape) for shape in (*BROKER_SHAPES, *CLIENT_SHAPES))
_NUMBERS: Final = frozenset({"generation_id", "members", "timeout_ms", "took_ms"})
_INT32: Final = range(-(2**31), 2**31)
_NONE: Final = frozenset({"", "None", "null", "(not-set)", "Optional.empty"})
_SOME: Final = re.compile(r"(?:Some|Optional)[(\[](.{1,300}?)[)\]]")
_JAVA: Final = re.compile(
    r"\[(?:Consumer|Worker)\s(?:instanceId=(?P<instance>[^,\]]{1,300}), )?"
    r"clientId=(?P<client>[^,\]]{1,300}), groupId=(?P<group>[^\]]{1,300})\]"
)
_RDKAFKA: Final = re.compile(r"(?:\|(?P<facility>[A-Z_]{2,30})\||\[)(?P<client>[^|\[\]]{1,300})#consumer-\d+[|\]]")
_BROKER: Final = re.compile(r"\[GroupCoordinator (?:id=)?(?P<coordinator>\d{1,10})\b")
_UUID: Final = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
_PROGRAMS: Final = (  # what a line shows of the program that wrote it
    ("[Consumer ", "java"),
    ("[Worker ", "java"),
    ("org.apache.kafka.clients", "java"),
    ("aiokafka", "aiokafka"),
    ("kafka.coordinator", "kafka-python"),
    ("[thrd:", "librdkafka"),
    ("rdkafka", "librdkafka"),
    ("kafkajs", "kafkajs"),
    ("sarama", "sarama"),
)
_KAFKAJS: Final = {"groupId": "group_id", "memberId": "member_id", "clientId": "client_id", "leaderId": "other_id"}


@dataclass(slots=True)
class Parsed:
    """What a line says.

    :ivar at: where in the text its template begins
    :ivar columns: of `LogLine`, those that it states
    """

    kind: str
    program: str
    at: int
    text: str
    columns: dict[str, Any] = field(default_factory=dict)


def parse_line(line: str) -> tuple[Parsed, Message] | None:
    """Return what a line says, and the message in it; None for a line of no known kind."""
    is_escaped = "\\" in line  # JSON escapes quotes
    shapes = [shape for literal, shape in _SHAPES if is_escaped or literal in line]
    if not shapes:
        return None
    message = unwrap(line)
    for shape in shapes:
        if found := shape.match(message.text):
            return _parsed(shape, found, message), message
    return None


def _parsed(shape: Shape, found: re.Match[str], message: Message) -> Parsed:
    text = message.text
    columns: dict[str, Any] = {}
    for name, value in found.groupdict().items():
        column = FIELDS[name][0]
        if column is not None and value is not None and (stated := _stated(column, value)) is not None:
            columns[column] = stated
    program = _program(shape, f"{message.logger} {text}")
    around = {"java": _JAVA, "librdkafka": _RDKAFKA, "broker": _BROKER}.get(program)
    if around is not None and (named := around.search(text)):
        for name, value in named.groupdict().items():
            if name != "facility" and value is not None:
                columns.setdefault(FIELDS.get(name, (name,))[0] or name, value)
    if program == "kafkajs":
        _read_kafkajs(message, columns)
    if "client_id" not in columns and program != "broker" and (member := columns.get("member_id")):
        columns["client_id"] = client_of(member)
    return Parsed(shape.kind, program, found.start(), text[found.start() :].strip(), columns)


def _stated(column: str, value: str) -> Any:
    if column in _NUMBERS:
        number = int(value)
        return number if number in _INT32 else None
    if some := _SOME.fullmatch(value):
        value = some[1]
    value = value.strip()
    return None if value in _NONE else value


def _program(shape: Shape, text: str) -> str:
    if shape.programs[0] == "broker":
        return "broker"
    return next((name for mark, name in _PROGRAMS if mark in text), shape.programs[0])


def _read_kafkajs(message: Message, columns: dict[str, Any]) -> None:
    """kafkajs logs JSON: the group and the member are fields beside the message."""
    fields = message.fields
    for name, column in _KAFKAJS.items():
        if isinstance(value := fields.get(name), str) and value:
            columns.setdefault(column, value)
    if isinstance(assignor := fields.get("groupProtocol"), str):
        columns["assignor"] = assignor
    took = fields.get("duration")
    if isinstance(took, int) and not isinstance(took, bool) and took in _INT32:
        columns["took_ms"] = took


@lru_cache(maxsize=4096)
def client_of(member_id: str | None) -> str | None:
    """Return the client id (or group.instance.id) in a member id, ``client-UUID``; None where it has no such form."""
    if not member_id:
        return None
    client, count = _UUID.subn("", member_id)
    return client if count and client else None
