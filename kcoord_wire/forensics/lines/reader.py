"""Text -> the lines about groups in it, as `LogLine`.

    with open("server.log", "rb") as file:
        for line in lines_of(file, "server.log", UTC, datetime.now(UTC)):
            print(line.kind, line.group_id)

Laws:

* The content of a file raises nothing. A line that is about a group and has no time, in a file without any, is damage.
* Memory holds a block of the file and a batch of rows, whatever the length of a line; beyond `MAX_LINE` bytes no line
  is read.
* A line that cannot be about a group costs a substring search in its block, nothing more: `MARKS` has what any line
  about a group holds.
* Rows come in the order of the file. The client and the group of a line that names none are those that lines of the
  same client, or of a source with one group, have named before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, BinaryIO, Final

from kcoord_wire.forensics.lines.parsing import Parsed, parse_line
from kcoord_wire.forensics.lines.wrapping import MAX_LINE, Message, Stamp, stamp_of, unwrap
from kcoord_wire.forensics.model import LogLine

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
)
"""What each line that `parse_line` knows holds one of, but for those that name the group around the text."""
_SNIFFED_LINES: Final = 20_000


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
    starts: set[int] = set()
    for mark in MARKS:
        at = block.find(mark)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(mark, end) if end >= 0 else -1
    for start in sorted(starts):
        end = block.find(b"\n", start)
        yield start, block[start : len(block) if end < 0 else end]


@dataclass(slots=True)
class _Reader:
    """Reads one source.

    :ivar groups: by client, its group
    :ivar clients: by group, the client of the line before, for libraries whose lines name only the group
    :ivar last: the time of the line before
    """

    source: str
    zone: tzinfo
    latest: datetime
    groups: dict[str, str] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    last: Stamp | None = None

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
        if parsed.program != "broker":
            self._complete(row)
        return row

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
