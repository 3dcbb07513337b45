"""`kcoord`: decode and explain bytes, list the schemas, read a capture, tell why groups rebalanced, record
and serve them.

Laws:

* What was asked for goes to stdout, all else to stderr. Bad input ends with status 1 and bad usage with 2, each with
  one line that starts with ``kcoord:``; an interrupt ends with 130, a reader that went away with 141.
* JSON is one object a line, with the keys of the schema files, bytes and uuids as hex; tables are for people. Neither
  lets a control character of a peer's string through to the terminal.
* Only tables need rich, only `explain` needs construct: the rest works where neither is.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import kcoord_wire as kw
from kcoord_wire.api_keys import API_NAMES, api_name
from kcoord_wire.capture import CapturedFrame, CaptureError, CaptureReport, read_capture
from kcoord_wire.cli.analyze import add_parser as add_analyze
from kcoord_wire.cli.record import add_parser as add_record
from kcoord_wire.cli.serve import add_parser as add_serve
from kcoord_wire.codec.framing import SIZE_BYTES
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.fields import fields_of, printable
from kcoord_wire.schema.model import Struct
from kcoord_wire.schema.plan import attribute_name

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from kcoord_wire.story import Event, Member, Story

__all__ = ["main"]

DIRECTIONS = ("request", "response")
WIDE = 1 << 16  # columns of what is no terminal: nothing is wrapped there
CALM = {"beats": "heartbeats", "commits": "commits"}  # told as a number
COLOURS = {
    "asks to join": "cyan",
    "joins": "green",
    "receives": "green",
    "assigns": "blue",
    "leaves": "magenta",
    "is told": "red",
}


class _Failure(Exception):
    """What the user is told in one line, with the exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Failure(f"{message} (see {self.prog} --help)", 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    :param argv: the arguments after the program's name; those of the process by default
    """
    # A shell may hand over closed streams; Python has None for them.
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdin is None or sys.stdout is None:
        return _complain(f"standard {'input' if sys.stdin is None else 'output'} is closed", 1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        args = _parser().parse_args(argv)
        args.run(args)
        sys.stdout.flush()
    except _Failure as failure:
        return _complain(str(failure), failure.status)
    except BrokenPipeError:
        # What is left in the buffer goes nowhere, else the interpreter writes it into the closed pipe on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except CaptureError as error:
        return _complain(f"{args.file}: {error}", 1)
    except (MissingLibraryError, ValueError) as error:
        return _complain(str(error), 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _complain(text: str, status: int) -> int:
    print("kcoord:", printable(" ".join(text.split())), file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kcoord", description="Kafka's consumer-group protocols, byte by byte.")
    parser.add_argument("--version", action="version", version=f"kcoord {kw.__version__} ({kw.backend} codec)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    for name, run, about in (
        ("decode", _decode, "show the fields of a message"),
        ("explain", _explain, "show which bytes of a message hold which field"),
    ):
        command = commands.add_parser(name, help=about, description=f"{about.capitalize()}.")
        command.add_argument(
            "input", metavar="HEX|FILE|-", help="hex digits, or a file (- for stdin) of bytes or hex digits"
        )
        command.add_argument(
            "--api", help="api key or name: 11, JoinGroup, JoinGroupRequest, ConsumerProtocolSubscription"
        )
        command.add_argument("--version", type=int, help="the message's version")
        side = command.add_mutually_exclusive_group()
        side.add_argument(
            "--request", dest="direction", action="store_const", const="request", help="it is the request"
        )
        side.add_argument(
            "--response", dest="direction", action="store_const", const="response", help="it is the response"
        )
        whole = command.add_mutually_exclusive_group()
        whole.add_argument("--body", action="store_true", help="a header stands before the message")
        whole.add_argument("--frame", action="store_true", help="a size and a header stand before the message")
        command.add_argument(
            "--lenient", action="store_true", help="accept what Kafka accepts, not only what it writes"
        )
        command.add_argument("--format", choices=("table", "json"), default="table")
        command.set_defaults(run=run)

    command = commands.add_parser(
        "schemas", help="list the messages, or show one", description="List the messages, or show one."
    )
    command.add_argument("name", nargs="?", help="api key or name of a message")
    command.add_argument("--format", choices=("table", "json"), default="table")
    command.set_defaults(run=_schemas)

    command = commands.add_parser(
        "capture", help="read a capture file", description="Read the Kafka frames of a capture file (pcap or pcapng)."
    )
    command.add_argument("file", type=Path, metavar="FILE|-", help="a pcap or pcapng file, - for stdin")
    command.add_argument(
        "--port",
        type=int,
        action="append",
        help="only this port of a broker; may be repeated; found in the bytes if not given",
    )
    command.add_argument("--api", action="append", help="only this api (key or name); may be repeated")
    view = command.add_mutually_exclusive_group()
    view.add_argument("--format", choices=("table", "json"), default="table")
    view.add_argument("--summary", action="store_true", help="only count the frames by api, version and direction")
    view.add_argument("--story", action="store_true", help="tell what happened in each consumer group")
    command.add_argument(
        "--fields", action="store_true", help="with --story: every field of the messages behind each event"
    )
    command.set_defaults(run=_capture)

    add_analyze(commands)
    add_record(commands)
    add_serve(commands)
    return parser


# ---- decode and explain


def _decode(args: argparse.Namespace) -> None:
    for codec, version, data, base in _parts(args):
        try:
            message = codec.decode(data, version, strict=not args.lenient)
        except kw.DecodeError as error:
            raise kw.DecodeError(error.kind, error.offset + base, error.path, error.detail) from None
        if args.format == "json":
            _print_json({"message": codec.name, "version": version, "value": kw.to_dict(message, version, json=True)})
        else:
            table = _table(f"{codec.name} v{version}", "field", "value")
            for path, text in fields_of(message, version):
                table.add_row(_text(path), _text(text))
            _show(table)


def _explain(args: argparse.Namespace) -> None:
    try:
        from kcoord_wire.codec.explain import explain
    except ModuleNotFoundError:
        raise _Failure("explain needs construct: pip install 'kcoord_wire[explain]'") from None
    for codec, version, data, base in _parts(args):
        explanation = explain(data, codec.cls, version, strict=not args.lenient)
        if args.format == "json":
            _print_json({"offset": base, **explanation.to_json()})
        else:
            where = f", from byte {base} of the input" if base else ""
            head, _, rest = str(explanation).partition("\n")
            print(f"{head}{where}\n{rest}\n")
        if explanation.error is not None:
            sys.stdout.flush()
            raise explanation.error


def _parts(args: argparse.Namespace) -> Iterator[tuple[kw.MessageCodec, int, bytes, int]]:
    """Each header and message of the input: codec, version, bytes, and where in the input they start."""
    data = _read_bytes(args.input)
    if not (args.body or args.frame):
        yield *_codec_at(args), data, 0
        return
    base = 0
    for body in _bodies(data) if args.frame else [data]:
        base += SIZE_BYTES if args.frame else 0
        codec, version = _codec_of(body, args)
        end = 2 if codec.header == "typeId" else 0
        if codec.header == "kafka":
            header, header_version = _header_of(codec, version)
            end = header.decode_prefix(body, header_version, strict=not args.lenient)[1]
            yield header, header_version, body[:end], base
        yield codec, version, body[end:], base + end
        base += len(body)


def _bodies(data: bytes) -> Iterator[bytes]:
    framer = kw.Framer()
    yield from framer.feed(data)
    framer.close()


def _codec_of(body: bytes, args: argparse.Namespace) -> tuple[kw.MessageCodec, int]:
    """What stands in a body: what the arguments say, else what a request says of itself."""
    if args.api is not None or args.direction == "response":
        return _codec_at(args)
    header = kw.peek_request(body)
    try:
        return kw.registry.request(header.request_api_key), header.request_api_version
    except KeyError:
        raise _Failure(
            f"{api_name(header.request_api_key)} (api key {header.request_api_key}) is not known here"
        ) from None


def _header_of(codec: kw.MessageCodec, version: int) -> tuple[kw.MessageCodec, int]:
    header = kw.registry["RequestHeader" if codec.type == "request" else "ResponseHeader"]
    return header, codec.header_version(version)


def _read_bytes(source: str) -> bytes:
    """The bytes that an argument stands for. A file (or stdin) of nothing but hex digits is read as hex."""
    if source == "-":
        data = sys.stdin.buffer.read()
    elif os.path.exists(source) and not os.path.isdir(source):  # a pipe too; pathlib's raise at hex as long as a frame
        data = Path(source).read_bytes()
    else:
        found = _from_hex(source)
        if found is None:
            raise _Failure(f"{source!r} is neither a file nor hex digits")
        return found
    found = _from_hex(data.decode("latin-1"))
    return data if found is None else found


def _from_hex(text: str) -> bytes | None:
    digits = re.sub(r"[\s:]|0x", "", text)
    if len(digits) % 2 or not re.fullmatch("[0-9a-fA-F]*", digits):
        return None
    return bytes.fromhex(digits)


def _codec_at(args: argparse.Namespace) -> tuple[kw.MessageCodec, int]:
    if args.api is None:
        raise _Failure("give --api (see kcoord decode --help)", 2)
    found = _find(args.api, args.direction)
    if len(found) > 1:
        names = ", ".join(f"{codec.family}/{codec.name}" for codec in found)
        raise _Failure(f"--api {args.api} is one of {names}: give --request, --response or the whole name", 2)
    if args.version is None:
        versions = found[0].valid_versions
        if len(versions) != 1:
            raise _Failure(f"give --version: {found[0].name} has {versions.start} to {versions.stop - 1}", 2)
        args.version = versions.start
    return found[0], args.version


def _find(name: str, direction: str | None = None) -> list[kw.MessageCodec]:
    """The messages that a name or api key may mean; `family/Name` where two families share a name."""
    family, _, wanted = name.rpartition("/")
    wanted = wanted.lower()
    names = {wanted, *(wanted + side for side in DIRECTIONS)}
    found = [
        codec
        for codec in kw.registry.values()
        if (codec.name.lower() in names or (wanted == str(codec.api_key) and codec.type in DIRECTIONS))
        and codec.family == (family or codec.family)
        and (direction is None or codec.type == direction)
    ]
    if wanted.isdigit() and not family:
        found = [codec for codec in found if codec.family == "kafka"]
    if not found:
        near = ", ".join(difflib.get_close_matches(name, list(kw.registry), n=3, cutoff=0.5))
        raise _Failure(f"there is no {direction or 'message'} {name!r}" + (f"; there is {near}" if near else ""))
    return found


# ---- schemas


def _schemas(args: argparse.Namespace) -> None:
    if args.name is not None:
        for codec in _find(args.name):
            _schema(codec, args.format)
        return
    order = sorted(
        kw.registry.values(),
        key=lambda codec: (
            codec.family != "kafka",
            codec.family,
            codec.type not in DIRECTIONS,
            codec.api_key or 0,
            codec.name,
        ),
    )
    if args.format == "json":
        for codec in order:
            _print_json(_schema_head(codec))
        return
    table = _table("", "api key", "message", "versions", "flexible", "family", "kind")
    for codec in order:
        key = "" if codec.api_key is None else str(codec.api_key)
        versions = _range(codec.valid_versions), _range(codec.flexible_versions)
        table.add_row(key, codec.name, *versions, codec.family, codec.type)
    _show(table)


def _schema_head(codec: kw.MessageCodec) -> dict[str, Any]:
    return {
        "name": codec.name,
        "api_key": codec.api_key,
        "family": codec.family,
        "type": codec.type,
        "versions": list(codec.valid_versions),
        "flexible": list(codec.flexible_versions),
    }


def _schema(codec: kw.MessageCodec, form: str) -> None:
    rows: list[tuple[str, str, str, str, str]] = []

    def walk(struct: Struct, path: str) -> None:
        for field in struct.fields:
            name = f"{path}{attribute_name(field.name)}"
            marks = [f"tag {field.tag} in {field.tagged}"] if field.tag is not None else []
            marks += [f"null in {field.nullable}"] if field.nullable else []
            marks += ["ignorable"] if field.ignorable else []
            rows.append((name, str(field.type), str(field.versions), ", ".join(marks), field.about))
            if field.type.is_struct:
                walk(codec.schema.struct_of(field), f"{name}[]." if field.type.array else f"{name}.")
            for variant in field.variants:
                walk(variant.struct, f"{name}.{variant.struct.name}.")

    walk(codec.schema.root, "")
    columns = ("field", "type", "versions", "marks", "about")
    if form == "json":
        _print_json({**_schema_head(codec), "fields": [dict(zip(columns, row, strict=True)) for row in rows]})
        return
    key = "" if codec.api_key is None else f", api key {codec.api_key}"
    flexible = f", flexible {_range(codec.flexible_versions)}" if codec.flexible_versions else ""
    table = _table(f"{codec.name}{key}, versions {_range(codec.valid_versions)}{flexible}", *columns)
    for row in rows:
        table.add_row(*map(_text, row))
    _show(table)


def _range(versions: range) -> str:
    if not versions:
        return ""
    return str(versions.start) if len(versions) == 1 else f"{versions.start}-{versions.stop - 1}"


# ---- capture


def _capture(args: argparse.Namespace) -> None:
    keys = {_find_api(name) for name in args.api or ()}
    report = CaptureReport()
    source = sys.stdin.buffer if str(args.file) == "-" else args.file
    if not args.file.is_file() and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a capture that is still being made: tell each frame when it comes
    captured = read_capture(source, ports=args.port, report=report)
    frames = (f for f in captured if not keys or f.api_key in keys)
    if args.story:
        from kcoord_wire.story import tell

        _print_story(tell(frames), args)
    elif args.summary:
        _summarise(frames)
    elif args.format == "json":
        for frame in frames:
            _print_json(_frame_as_dict(frame))
    else:
        _list_frames(frames)
    sys.stdout.flush()
    _judge(report, args.file)


def _judge(report: CaptureReport, file: Path) -> None:
    """Say what the capture lacks. One that could not be read to its end, or has no frames at all, is bad input."""
    if report.damage is not None:
        raise _Failure(f"{file}: {report.damage}")
    if not report.requests + report.responses:
        raise _Failure(f"{file}: no Kafka frame is in this capture")
    lost = {
        "frames that do not decode": report.undecodable,
        "frames that only lenient decoding accepts (IRREGULAR in the list of frames)": report.irregular,
        "responses without their request": report.unmatched_responses,
        "bytes that were not captured": report.hole_bytes,
        "bytes that belong to no frame": report.skipped_bytes + report.stray_bytes,
        "packets that were cut": report.cut_packets,
    }
    if any(lost.values()):
        _complain(f"{file}: " + ", ".join(f"{count} {what}" for what, count in lost.items() if count), 0)


def _find_api(name: str) -> int:
    """The api key that a number or a name stands for: any of Kafka's, for a capture may hold what has no schema."""
    if name.isdecimal():
        return int(name)
    stem = re.sub(r"(request|response)$", "", name.lower())
    keys = {known.lower(): key for key, known in API_NAMES.items()}
    if stem not in keys:
        close = [API_NAMES[keys[found]] for found in difflib.get_close_matches(stem, keys)]
        raise _Failure(f"Kafka has no api {name!r}" + (f"; it has {', '.join(close)}" if close else ""))
    return keys[stem]


def _frame_as_dict(frame: CapturedFrame) -> dict[str, Any]:
    message = None if frame.message is None else kw.to_dict(frame.message, _body_version(frame), json=True)
    return {
        "time": frame.time,
        "connection": frame.connection,
        "direction": frame.direction,
        "api_key": frame.api_key,
        "api": frame.api,
        "api_version": frame.api_version,
        "correlation_id": frame.correlation_id,
        "client_id": frame.client_id,
        "size": frame.size,
        "message": message,
        "error": frame.error,
        "irregularity": frame.irregularity,
    }


def _body_version(frame: CapturedFrame) -> int:
    """The version of the message itself: a broker that lacks one of ApiVersions answers with version 0 (KIP-511)."""
    assert frame.api_version is not None
    refused = isinstance(frame.message, kw.ApiVersionsResponse) and frame.message.error_code == 35
    return 0 if refused else frame.api_version


def _list_frames(frames: Iterable[CapturedFrame]) -> None:
    """A line a frame, as they come: a capture may be long."""
    start = None
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for frame in frames:
        if start is None:
            start = frame.time
            print(
                f"{'seconds':>10}  {'connection':<36} {'':<8} {'api':<24} {'corr.':>6} {'size':>7}  client, fields"[
                    :width
                ]
            )
        what = [] if frame.client_id is None else [printable(frame.client_id)]
        if frame.error is not None:
            what.append(f"ERROR {printable(frame.error)}")
        if frame.irregularity is not None:
            what.append(f"IRREGULAR {printable(frame.irregularity)}")
        if frame.message is not None:
            what += [f"{path}={_cut(text)}" for path, text in fields_of(frame.message, _body_version(frame))]
        api = frame.api or "(unknown api)"
        api += "" if frame.api_version is None else f" v{frame.api_version}"
        correlation = "" if frame.correlation_id is None else frame.correlation_id
        head = f"{frame.time - start:10.6f}  {frame.connection:<36} {frame.direction:<8} {api:<24} {correlation:>6}"
        print(f"{head} {frame.size:>7}  {' '.join(what)}"[:width])


def _cut(text: str, length: int = 120) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def _summarise(frames: Iterable[CapturedFrame]) -> None:
    counts: dict[tuple[str, int, str], list[int]] = {}
    for frame in frames:
        version = -1 if frame.api_version is None else frame.api_version
        row = counts.setdefault((frame.api or "(unknown api)", version, frame.direction), [0, 0, 0])
        row[0] += 1
        row[1] += frame.size
        row[2] += frame.error is not None
    table = _table("", "api", "version", "direction", "frames", "bytes", "errors")
    for (api, version, direction), row in sorted(counts.items()):
        table.add_row(api, str(version) if version >= 0 else "", direction, *map(str, row))
    _show(table)


def _print_story(story: Story, args: argparse.Namespace) -> None:
    if not story.members:
        print("no consumer group is in this capture")
    for group in dict.fromkeys(member.group for member in story.members):
        events = [event for event in story.events if event.member.group == group]
        members = [member for member in story.members if member.group == group]
        start = min(event.frames[0].time for event in events)
        names = ", ".join(member.name for member in members)
        seconds = events[-1].time - start
        title = f"group {group}: {len(members)} members ({names}) in {seconds:.1f} seconds"
        table = _table(title, "seconds", "member", "event", "particulars")
        for event in events:
            text = event.text
            if event.verb in CALM:
                text = ("once" if event.count == 1 else f"{event.count} times") + (f", last {text}" if text else "")
            style = COLOURS.get(event.verb, "")
            verb = CALM.get(event.verb, event.verb)
            table.add_row(f"{event.time - start:.3f}", _text(event.member.name), _text(verb, style), _text(text))
            if args.fields:
                for line in _fields_of_frames(event):
                    table.add_row("", "", "", _text(line, "dim"))
        _show(table)
        _show(_members(members, start))
    if not args.fields:
        print(f"every field of every message: kcoord capture --story --fields {args.file}")


def _fields_of_frames(event: Event) -> Iterator[str]:
    for frame in event.frames:
        api = f"{frame.api} v{frame.api_version} {frame.direction}"
        yield f"{api}, {frame.size} bytes, {frame.connection}, correlation {frame.correlation_id}"
        if frame.message is not None:
            yield from (f"    {path} = {text}" for path, text in fields_of(frame.message, _body_version(frame)))


def _members(members: Iterable[Member], start: float) -> Table:
    table = _table("members", "member", "who it is", "what it did")
    for m in members:
        who = [f"id {', '.join(m.ids) or 'unknown'}", f"from {m.host}", f"client id {m.client_id or '(none)'}"]
        who += [f"instance {m.instance_id}"] if m.instance_id is not None else []
        who += [f"assignors {m.assignors}", f"topics {m.topics}"]
        did = [
            f"{what} at {time - start:.3f}"
            for what, time in (("joined", m.joined), ("left", m.left))
            if time is not None
        ]
        did += [f"generations {', '.join(map(str, m.generations)) or 'none'}"]
        did += [f"{m.syncs} syncs", f"{m.heartbeats} heartbeats", f"{m.commits} commits"]
        did += [f"last assignment {m.assignment}"] if m.assignment else []
        table.add_row(_text(m.name), _text("; ".join(who)), _text("; ".join(did)))
    return table


# ---- output


def _print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    print(re.sub("[\x7f-\x9f\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text))


def _table(title: str, *columns: str) -> Table:
    try:
        from rich.table import Table
    except ModuleNotFoundError:
        raise _Failure("tables need rich: pip install 'kcoord_wire[cli]', or use --format json") from None
    table = Table(title=_text(title, "bold") if title else None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, header_style="dim", overflow="fold")
    return table


def _text(text: str, style: str = "") -> Text:
    """Never markup: what a peer sends must not style itself."""
    from rich.text import Text

    return Text(printable(text), style)


def _show(table: Table) -> None:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), force_terminal=terminal, width=None if terminal else WIDE, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    print("\n".join(line.rstrip() for line in console.file.getvalue().splitlines()), end="\n\n")
