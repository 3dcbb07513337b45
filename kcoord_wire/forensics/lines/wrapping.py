"""What stands around a line: times, JSON of log shippers, prefixes, colours.

| around the line                     | what is read of it                                                            |
|-------------------------------------|-------------------------------------------------------------------------------|
| log4j, logback, Spring Boot, Python | the time before the message: ISO 8601 with a space or T, a comma or a point,  |
|                                     | with or without a zone; Go's ``2024/05/01 12:00:03``                          |
| librdkafka                          | ``%7|1714564803.123|FACILITY|client#consumer-1| ``: seconds since 1970 UTC    |
| docker, kubectl, CRI, journald      | an RFC 3339 time at the beginning, with its zone                              |
| JSON lines                          | the message and its time, under the names of `_MESSAGES` and `_TIMES`, also in|
|                                     | the JSON of another (docker's json-file around kafkajs)                       |
| syslog, ``Nov 22 12:00:03``         | the time, in the latest year that does not lie after the file's own time      |

Laws:

* The first time with a zone counts, else the last one: a wrapper's clock is right where the program's has no zone.
* No line raises, and none is read beyond `MAX_LINE` bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

MAX_LINE: Final = 8192
"""Bytes of a line that are read."""

_NS: Final = 1_000_000_000
_MAX_NS: Final = 2**63 - 1  # years 1678 to 2261: all other times of the sources are in 64 signed bits
_PREFIX: Final = 400  # characters before the message in which its time is looked for
_DEPTH: Final = 3  # JSON in JSON
_MESSAGES: Final = ("message", "msg", "log", "@message", "MESSAGE", "body", "textPayload", "event", "line")
_TIMES: Final = ("@timestamp", "timestamp", "time", "ts", "datetime", "date", "asctime", "__REALTIME_TIMESTAMP")
_DETAILS: Final = ("error", "exception", "stack_trace", "exc_info", "stack", "thrown")  # searched behind the message
_LOGGERS: Final = ("logger", "logger_name", "loggerName", "name")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]{0,20}[mK]")
_CLASS: Final = re.compile(r"\s\([\w.$]{1,200}(?::\d{1,6})?\)\s*$")  # log4j's %c or %c:%L, behind the message
_ISO: Final = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,:](\d{1,9}))?\s?(Z\b|UTC\b|[+-]\d\d:?\d\d\b)?"
)
_EPOCH: Final = re.compile(r"%\d\|(\d{9,11})\.(\d{3})\|")
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], start=1
    )
}
_SYSLOG: Final = re.compile(rf"({'|'.join(_MONTHS)}) {{1,2}}(\d{{1,2}}) (\d\d):(\d\d):(\d\d)(?:\.(\d{{1,9}}))?")
_DATE: Final = re.compile(rf"(\d\d)[ /]({'|'.join(_MONTHS)})[ /](\d{{4}})[ :](\d\d):(\d\d):(\d\d)(?:[.,](\d{{1,9}}))?")
_UNITS: Final = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000), (0, _NS))  # by size: ns, us, ms or s since 1970
_OFFSET: Final = re.compile(r"([+-])(\d\d):?([0-5]\d)")
_DAY: Final = timedelta(hours=24)


class Stamp(NamedTuple):
    """A time in nanoseconds since 1970 UTC, and whether its zone was stated."""

    time_ns: int
    is_zoned: bool


class Message(NamedTuple):
    """What a program wrote.

    :ivar text: without colours, class name and JSON around it; behind it the exception that the JSON has beside it
    :ivar fields: of the innermost JSON object; empty where there was none
    :ivar times: of the JSON objects, the outermost first
    :ivar logger: that the JSON names
    """

    text: str
    fields: Mapping[str, Any]
    times: list[Any]
    logger: str = ""


def unwrap(line: str) -> Message:
    """Return the message in a line."""
    text = line.rstrip("\r\n")
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    times: list[Any] = []
    fields: Mapping[str, Any] = {}
    for _ in range(_DEPTH):
        found = _inner(text)
        if found is None:
            break
        fields, message, before = found
        times += [before] if before else []
        times += [fields[name] for name in _TIMES if name in fields][:1]
        text = message.rstrip("\r\n")
    details = [str(fields[name]) for name in _DETAILS if fields.get(name)]
    logger = next((str(fields[name]) for name in _LOGGERS if isinstance(fields.get(name), str)), "")
    text = " ".join([text, *details])
    at = text.rfind("(") - 1  # a search for the class from the beginning takes as long as all the rest
    return Message(text[:at] if at >= 0 and _CLASS.match(text, at) else text, fields, times, logger)


def _inner(text: str) -> tuple[dict[str, Any], str, str] | None:
    """Return the JSON object at the end of a text, the message in it, and what stands before it."""
    start = text.find("{")
    found = _object(text[start:]) if start >= 0 and '"' in text else None
    if found is None:
        return None
    message = next((found[name] for name in _MESSAGES if isinstance(found.get(name), str)), None)
    return None if message is None else (found, message, text[:start])


def _object(text: str) -> dict[str, Any] | None:
    if not text.rstrip().endswith("}"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def stamp_of(prefix: str, times: list[Any], zone: tzinfo, latest: datetime) -> Stamp | None:
    """Return the time of a message; None where none is stated that 64 bits can hold in nanoseconds.

    :param prefix: what stands before it
    :param times: those of the JSON around it, the outermost first
    :param zone: of times that state none
    :param latest: no time lies after it; for times without a year
    """
    found: Stamp | None = None
    for stamp in _stamps(prefix, times, zone, latest):
        if abs(stamp.time_ns) > _MAX_NS:
            continue
        found = stamp
        if stamp.is_zoned:
            break
    return found


def _stamps(prefix: str, times: list[Any], zone: tzinfo, latest: datetime) -> Iterator[Stamp]:
    for time in times:
        number = _number(time)
        if number is not None:
            yield Stamp(number, True)
        elif isinstance(time, str):
            yield from _in_text(time[:_PREFIX], zone, latest)
    yield from _in_text(prefix[-_PREFIX:], zone, latest)


def _number(time: Any) -> int | None:
    """Return a number of seconds, or of parts of them, since 1970 in nanoseconds."""
    if isinstance(time, str) and time.replace(".", "", 1).isdecimal() and len(time) < len("1714564803000000000.0"):
        time = float(time) if "." in time else int(time)
    if isinstance(time, bool) or not isinstance(time, int | float) or not _NS <= time < _NS * _NS * 9:
        return None
    unit = next(unit for size, unit in _UNITS if time >= size)
    return int(time * unit) if isinstance(time, int) else int(time * 1_000) * unit // 1_000


def _in_text(text: str, zone: tzinfo, latest: datetime) -> Iterator[Stamp]:
    if epoch := _EPOCH.search(text):
        yield Stamp(int(epoch[1]) * _NS + int(epoch[2]) * 1_000_000, True)
    for iso in _ISO.finditer(text):
        year, month, day, hour, minute, second, fraction, offset = iso.groups()
        moment = _moment((year, month, day, hour, minute, second), zone if offset is None else _zone(offset))
        if moment is not None:
            yield Stamp(_ns(moment, fraction), offset is not None)
    if date := _DATE.search(text):
        day, name, year, hour, minute, second, fraction = date.groups()
        moment = _moment((year, _MONTHS[name], day, hour, minute, second), zone)
        if moment is not None:
            yield Stamp(_ns(moment, fraction), False)
    elif syslog := _SYSLOG.search(text):
        name, day, hour, minute, second, fraction = syslog.groups()
        for year in (latest.year + 1, latest.year, latest.year - 1):
            moment = _moment((year, _MONTHS[name], day, hour, minute, second), zone)
            if moment is not None and moment <= latest + timedelta(days=1):
                yield Stamp(_ns(moment, fraction), False)
                break


def _moment(parts: tuple[int | str, ...], zone: tzinfo) -> datetime | None:
    year, month, day, hour, minute, second = map(int, parts)
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        return None


def _ns(moment: datetime, fraction: str | None) -> int:
    whole = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * _NS
    return whole + int((fraction or "0").ljust(9, "0"))


def _zone(text: str) -> tzinfo:
    if text in ("Z", "UTC"):
        return UTC
    hours, minutes = int(text[1:3]), int(text[-2:])
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(offset if text[0] == "+" else -offset) if offset < timedelta(hours=24) else UTC


def parse_zone(text: str) -> tzinfo:
    """Return a time zone by its name (``Europe/Berlin``, ``UTC``) or offset (``+02:00``).

    :raises ValueError: there is none
    """
    if offset := _OFFSET.fullmatch(text):
        ahead = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        if ahead < _DAY:
            return timezone(ahead if offset[1] == "+" else -ahead)
    try:
        return UTC if text == "UTC" else ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{text} is no time zone: give one as in Europe/Berlin, UTC or +02:00") from None
