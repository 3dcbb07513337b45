"""Text -> the lines about groups in it, as `LogLine`.

    with open("server.log", "rb") as file:
        for line in lines_of(file, "server.log", UTC, datetime.now(UTC)):
            print(line.kind, line.group_id)

Laws:

* The content of a file raises nothing. A line that is about a group and has no time, in a file without any, is damage.
* Memory holds a block of the file and a batch of rows, whatever the length of a line; beyond `MAX_LINE` bytes no line
  is read.
* A line that cannot be about a group costs one search in its block, nothing more: `MARKS` has what any line about a
  group holds.
* Rows come in the order of the file. The client and the group of a line that names none are those that lines of the
  same client, or of a source with one group, have named before. Parsing a line by itself keeps no state.
* The first template that matches a line counts, those of brokers before those of clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from functools import cache, lru_cache
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.lines.shapes import BROKER_SHAPES, CLIENT_SHAPES, FIELDS, Shape
from kcoord_wire.forensics.lines.wrapping import MAX_LINE, Message, Stamp, stamp_of, unwrap
from kcoord_wire.forensics.model import LogLine

_NUMBERS: Final = frozenset({"generation_id", "members", "timeout_ms", "took_ms"})
_INT32: Final = range(-(2**31), 2**31)
_NONE: Final = frozenset({"", "None", "null", "(not-set)", "Optional.empty"})
_SOME: Final = re.compile(r"(?:Some|Optional)[(\[](.{1,300}?)[)\]]")
_JAVA: Final = re.compile(
    r"\[(?:Consumer|Worker)\s(?:instanceId=(?P<instance>[^,\]]{1,300}), )?"
    r"clientId=(?P<client>[^,\]]{1,300}), groupId=(?P<group>[^\]]{1,300})\]"
)
_RDKAFKA: Final = re.compile(r"(?:\|(?P<facility>[A-Z_]{2,30})\||\[)(?P<client>[^|\[\]]{1,300})#consumer-\d+[|\]]")
_BROKER: Final = re.compile(
    r"\[(?:GroupCoordinator|ReplicaManager|BrokerServer|KafkaServer|BrokerLifecycleManager)"
    r" (?:id=|broker=)?(?P<coordinator>\d{1,10})\b"
)
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


_SHAPES: Final = (*BROKER_SHAPES, *CLIENT_SHAPES)


@cache
def _by_word() -> dict[str, list[int]]:
    """Return by word the places of the shapes whose lines hold it, between two spaces; of the empty one, the others.

    A line has 40 words and is searched for 10 literals, in place of 240: two thirds of the time that parsing took.
    """
    places: dict[str, list[int]] = {}
    for place, shape in enumerate(_SHAPES):
        words = shape.literal.split(" ")[1:-1]
        places.setdefault(max(words, key=len, default=""), []).append(place)
    return places


def parse_line(line: str) -> tuple[Parsed, Message] | None:
    """Return what a line says, and the message in it; None for a line of no known kind."""
    if "\\" in line:  # JSON escapes quotes
        shapes: Sequence[Shape] = _SHAPES
    else:
        words = _by_word()
        places = sorted(place for word in words.keys() & {"", *line.split()} for place in words[word])
        shapes = [shape for place in places if (shape := _SHAPES[place]).literal in line]
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
    _complete_kind(shape.kind, columns)
    return Parsed(shape.kind, program, found.start(), text[found.start() :].strip(), columns)


def _complete_kind(kind: str, columns: dict[str, Any]) -> None:
    """Add what follows from the columns of a kind.

    The time between two polls is whole, also where a line states by how much it exceeded the interval. A deletion of
    one group is about it.
    """
    limit, excess = columns.get("timeout_ms"), columns.get("took_ms")
    if kind == "poll_timeout" and limit is not None and excess is not None:
        columns["took_ms"] = limit + excess
    if kind == "groups_deleted" and ", " not in columns.get("reason", ", "):
        columns["group_id"] = columns["reason"]


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
    if isinstance(topic := fields.get("topic"), str) and fields.get("offset") is not None:
        columns["reason"] = f"{topic}-{fields.get('partition')} at offset {fields['offset']}"
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


_BLOCK: Final = 1 << 20
_BACK: Final = 64  # lines before one without a time in which its time is looked for
MARKS: Final = (
    b"roup",
    b"eartbeat",
    b"oll timeout",
    b"poll interval",
    b"poll()",
    b"member",
    b"oordinator",
    b"ommit",
    b"FENCED",
    b"Fenced",
    b"AUTHORIZATION",
    b"Broker: ",
    b"ebalance",
    b"Offset out",
    b"Server id=",
    b"og dir",
    b" in dir ",
    b"on device",
    b"put error",
    b"Error while ",
    b"min.isr",
    b"uthentication",
    b"uthorization",
    b"uthorized",
    b"andshake",
    b"ertificat",
    b"x509",
    b"onnection to node",
    b"onnection error: connect",
    b"onnect to ",
    b"onnection to broker",
    b"onnecting from",
    b"kafka server: ",
    b"rokers",
    b"o bootstrap from",
    b"abandoned subscription",
    b" size ",
    b" timed out",
    b"past the record",
    b"Crash: ",
    b"exception during processing",
    b"fetch size",
    b"decoding packet",
    b"Fencing broker",
    b"Graceful stop",
    b"out of range",
    b"outside the range",
    b"hrinking ISR",
    b" loading of",
    b"d to load metadata",
    b"OutOfMemoryError",
    b"FetchRequest: ",
    b"calling each",
    b"sync loop errored",
    b"OutOfRange",
)
"""What each line that `parse_line` knows holds one of, but for those that name the group around the text."""
_MARK: Final = "|".join(re.escape(mark.decode()) for mark in MARKS)  # one pass of RE2, whatever their number
_NEWLINE: Final = ord("\n")
_SNIFFED_LINES: Final = 20_000
_OF_ANY: Final = frozenset({"disk_full", "disk_error", "out_of_memory"})  # lines of Java, whatever program it runs
_MEMBERS: Final = 10_000  # whose group is remembered


def lines_of(
    file: BinaryIO, source: str, zone: tzinfo, latest: datetime, goes_on: Callable[[int], bool] | None = None
) -> Iterator[LogLine]:
    """Yield the lines about groups in a log; the last may be damage, with an error.

    :param source: its name
    :param zone: of times that state none
    :param latest: no line is later, for times without a year
    :param goes_on: asked from time to time, with the bytes read so far, whether to read on
    :raises OSError: the file cannot be read
    """
    return _Reader(source, zone, latest).rows(file, goes_on)


def holds_lines(start: bytes) -> bool:
    """Return whether a line about a group stands in the first bytes of a file."""
    lines = (line for _, line in _candidates(start))
    return any(parse_line(_decoded(line)) for line, _ in zip(lines, range(_SNIFFED_LINES), strict=False))


def _decoded(line: bytes) -> str:
    return line[:MAX_LINE].decode("utf-8", "replace")


def _blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield blocks that end with a line, each with its place; a line longer than a block is cut."""
    position, rest = 0, b""
    while data := file.read(_BLOCK):
        data = rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= _BLOCK:
            end = len(data)
        yield position, data[:end]
        position += end
        rest = data[end:]
    yield position, rest


def _candidates(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that hold one of `MARKS`, with their places."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
    bounds = np.concatenate([[0], ends + 1, [len(block)]]).astype(np.int32)
    offsets, data = pa.py_buffer(bounds), pa.py_buffer(block)
    lines = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, offsets, data])
    for at in np.flatnonzero(pc.match_substring_regex(lines, _MARK).to_numpy(zero_copy_only=False)).tolist():
        yield int(bounds[at]), block[bounds[at] : bounds[at + 1]].removesuffix(b"\n")


@dataclass(slots=True)
class _Reader:
    """Reads one source.

    :ivar groups: by client, its group
    :ivar clients: by group, the client of the line before, for libraries whose lines name only the group
    :ivar last: the time of the line before
    :ivar broker: whose log it is, as its lines have said
    :ivar of_members: the group of each of the last members that lines of a broker have named
    """

    source: str
    zone: tzinfo
    latest: datetime
    groups: dict[str, str] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    last: Stamp | None = None
    broker: str | None = None
    of_members: dict[str, str] = field(default_factory=dict)

    def rows(self, file: BinaryIO, goes_on: Callable[[int], bool] | None) -> Iterator[LogLine]:
        timeless = first = 0
        for position, block in _blocks(file):
            if goes_on is not None and not goes_on(position):
                break
            for start, line in _candidates(block):
                found = parse_line(_decoded(line))
                if found is None:
                    continue
                stamp = self._stamp(*found) or self._stamp_before(block, start) or self.last
                if stamp is None:
                    first = first if timeless else position + start
                    timeless += 1
                    continue
                self.last = stamp
                yield self._row(found[0], position + start, stamp)
        if timeless:
            why = f"{timeless} lines about groups without a date and time, which cannot be put in order"
            yield LogLine(self.source, first, 0, False, "", "", "", error=why)

    def _stamp(self, parsed: Parsed, message: Message) -> Stamp | None:
        return stamp_of(message.text[: parsed.at], message.times, self.zone, self.latest)

    def _stamp_before(self, block: bytes, start: int) -> Stamp | None:
        """Return the time of the line that a line without one (of a stack trace, as a rule) belongs to."""
        for _ in range(_BACK):
            if start <= 0:
                return None
            end, start = start - 1, block.rfind(b"\n", 0, start - 1) + 1
            message = unwrap(_decoded(block[start:end]))
            if stamp := stamp_of(message.text[:MAX_LINE], message.times, self.zone, self.latest):
                return stamp
        return None

    def _row(self, parsed: Parsed, position: int, stamp: Stamp) -> LogLine:
        columns: dict[str, Any] = parsed.columns
        row = LogLine(self.source, position, *stamp, parsed.program, parsed.kind, parsed.text, **columns)
        if row.kind in _OF_ANY and self.groups and self.broker is None:
            row.program = "java"  # the disk is that of a client, as of Kafka Streams with its state
        if row.program != "broker":
            self._complete(row)
        else:
            self._complete_broker(row)
        return row

    def _complete_broker(self, row: LogLine) -> None:
        """Add the broker whose log it is, and the group of a member that lines before have named with it."""
        self.broker = self.broker or row.coordinator
        row.coordinator = row.coordinator or self.broker
        ids = [each for each in (row.member_id, row.other_id) if each is not None]
        if row.group_id is None:
            row.group_id = next((self.of_members[each] for each in ids if each in self.of_members), None)
            return
        for each in ids:
            self.of_members[each] = row.group_id
        while len(self.of_members) > _MEMBERS:
            del self.of_members[next(iter(self.of_members))]

    def _complete(self, row: LogLine) -> None:
        if row.group_id is None and row.client_id is not None:
            row.group_id = self.groups.get(row.client_id)
        if row.group_id is None and len(known := set(self.groups.values())) == 1:
            (row.group_id,) = known
        if row.group_id is None:
            return
        if row.client_id is None:
            row.client_id = self.members.get(row.group_id)
        elif row.member_id is not None or row.program in ("java", "librdkafka"):
            self.members[row.group_id] = row.client_id
        self.groups[row.client_id or row.group_id] = row.group_id
