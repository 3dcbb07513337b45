"""`kcoord capture`: the frames of a capture file, as a list, as JSON, counted, or as a story of its consumer groups.

The frames are Kafka's and the 0.8 draft's (`kcoord_wire.capture.central`).

Laws:

* Frames are printed as they are read, so that a capture that is still being written can be followed.
* What the capture lacks is one line on stderr. A capture that cannot be read to its end, or has no frame, is an error.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import kcoord_wire as kw
from kcoord_wire.capture import CapturedFrame, CaptureError, CaptureReport, read_capture
from kcoord_wire.cli.options import Argument, CapturedPorts, Command, Format, Option, UsageError
from kcoord_wire.cli.output import complain, print_json, print_table, styled, table
from kcoord_wire.codec.fields import fields_of, printable
from kcoord_wire.extras import require
from kcoord_wire.protocol.api_keys import API_NAMES
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import near_names

_NO_API: Final = "(unknown api)"
_LONGEST_VALUE: Final = 120  # characters of one field's value in the list of frames


@dataclass(frozen=True, kw_only=True)
class Capture(Command):
    """Read the Kafka frames of a capture file (pcap or pcapng).

    examples:
      kcoord capture trace.pcap
          a line for each frame
      kcoord capture trace.pcap --api JoinGroup --api 14 --format json
          the frames of two apis, as JSON objects
      kcoord capture trace.pcap --story
          what happened in each consumer group
    """

    file: Annotated[Path, Argument("FILE|-", "a pcap or pcapng file, - for stdin")]
    port: CapturedPorts = ()
    api: Annotated[tuple[str, ...], Option("only this api (key or name); may be repeated")] = ()
    summary: Annotated[bool, Option("only count the frames by api, version and direction", one_of="view")] = False
    story: Annotated[bool, Option("print what happened in each consumer group, in order of time", one_of="view")] = (
        False
    )
    format: Format = "text"

    def __post_init__(self) -> None:
        if self.story and (self.api or str(self.file) == "-"):
            raise UsageError("--story reads a whole file: leave out --api, and see kcoord analyze for standard input")
        if self.format == "json" and (self.story or self.summary):
            raise UsageError("--format json is for frames: leave out --summary and --story")

    def run(self) -> None:
        """Print the frames, or what was asked for of them.

        :raises ValueError: the capture cannot be read to its end, or has no frame
        """
        if self.story:
            _print_story(self)
            return
        apis = {_api(name) for name in self.api}
        report = CaptureReport()
        source = sys.stdin.buffer if str(self.file) == "-" else self.file
        if not self.file.is_file() and isinstance(sys.stdout, io.TextIOWrapper):
            # A pipe may still be written to: print each frame when it comes.
            sys.stdout.reconfigure(line_buffering=True)
        try:
            captured = read_capture(source, ports=self.port or None, report=report)
            frames = (frame for frame in captured if not apis or frame.api in apis)
            if self.summary:
                _print_summary(frames)
            elif self.format == "json":
                for frame in frames:
                    print_json(_as_dict(frame))
            else:
                _print_frames(frames)
        except CaptureError as error:
            raise ValueError(f"{self.file}: {error}") from error
        sys.stdout.flush()
        _report_losses(report, self.file)


def _report_losses(report: CaptureReport, file: Path) -> None:
    if report.damage is not None:
        raise ValueError(f"{file}: {report.damage}")
    if not report.requests + report.responses:
        raise ValueError(f"{file}: no Kafka frame is in this capture")
    lost = {
        "frames that do not decode": report.undecodable,
        "frames that only lenient decoding accepts (IRREGULAR in the list of frames)": report.irregular,
        "responses without their request": report.unmatched_responses,
        "bytes that were not captured": report.hole_bytes,
        "bytes that belong to no frame": report.skipped_bytes + report.stray_bytes,
        "packets that were cut": report.cut_packets,
        "connections without a Kafka request, left out": report.foreign_connections,
    }
    if any(lost.values()):
        complain(f"{file}: " + ", ".join(f"{count} {what}" for what, count in lost.items() if count))


def _api(name: str) -> str:
    """The api of a key (Kafka's), or of a name: Kafka's, or the 0.8 draft's."""
    if name.isdecimal():
        return API_NAMES.get(int(name), name)
    stem = re.sub(r"(request|response)$", "", name.lower())
    of_draft = [codec.name for codec in kw.registry.values() if (codec.family, codec.type) == ("central", "request")]
    known = [*API_NAMES.values(), *(each.removesuffix("Request") for each in of_draft)]
    apis = {each.lower(): each for each in known}
    if stem not in apis:
        close = near_names(stem, known, 3)
        raise ValueError(f"Kafka has no api {name!r}" + (f"; it has {', '.join(close)}" if close else ""))
    return apis[stem]


# ---- frames


def _as_dict(frame: CapturedFrame) -> dict[str, Any]:
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
    """The version of the body: a broker that lacks a version of ApiVersions responds with version 0 (KIP-511)."""
    assert frame.api_version is not None
    is_refusal = (
        isinstance(frame.message, kw.ApiVersionsResponse) and frame.message.error_code == ErrorCode.UNSUPPORTED_VERSION
    )
    return 0 if is_refusal else frame.api_version


def _print_frames(frames: Iterable[CapturedFrame]) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    start = None
    for frame in frames:
        if start is None:
            start = frame.time
            columns = (
                f"{'seconds':>10}  {'connection':<36} {'':<8} {'api':<24} {'corr.':>6} {'size':>7}  client, fields"
            )
            print(columns[:width])
        api = frame.api or _NO_API
        api += "" if frame.api_version is None else f" v{frame.api_version}"
        correlation = "" if frame.correlation_id is None else frame.correlation_id
        head = f"{frame.time - start:10.6f}  {frame.connection:<36} {frame.direction:<8} {api:<24} {correlation:>6}"
        print(f"{head} {frame.size:>7}  {' '.join(_particulars(frame))}"[:width])


def _particulars(frame: CapturedFrame) -> Iterator[str]:
    if frame.client_id is not None:
        yield printable(frame.client_id)
    if frame.error is not None:
        yield f"ERROR {printable(frame.error)}"
    if frame.irregularity is not None:
        yield f"IRREGULAR {printable(frame.irregularity)}"
    if frame.message is not None:
        for path, text in fields_of(frame.message, _body_version(frame)):
            yield f"{path}={text if len(text) <= _LONGEST_VALUE else f'{text[:_LONGEST_VALUE]}...'}"


def _print_summary(frames: Iterable[CapturedFrame]) -> None:
    counts: dict[tuple[str, int, str], list[int]] = {}
    for frame in frames:
        version = -1 if frame.api_version is None else frame.api_version
        row = counts.setdefault((frame.api or _NO_API, version, frame.direction), [0, 0, 0])
        row[0] += 1
        row[1] += frame.size
        row[2] += frame.error is not None
    made = table("", "api", "version", "direction", "frames", "bytes", "errors")
    for (api, version, direction), row in sorted(counts.items()):
        made.add_row(api, str(version) if version >= 0 else "", direction, *map(str, row))
    print_table(made)


# ---- the story


def _print_story(args: Capture) -> None:
    require("pyarrow", "analyze", "--story")
    from kcoord_wire.forensics.analysis import analyze
    from kcoord_wire.protocol.wording import counted
    from kcoord_wire.report.formatting import duration, shown
    from kcoord_wire.report.terminal import events_of

    histories = analyze([args.file], ports=args.port or None).histories
    if not histories:
        raise ValueError(f"{args.file}: no consumer group is in this capture")
    for history in histories:
        group = history.group
        span = duration((group.last_ns - group.first_ns) / 1e6)
        title = f"group {shown(group.group_id)}: {counted(len(history.members), 'member id')} in {span}"
        made = table(title, "seconds", "member", "event", "particulars")
        for event in events_of(history):
            made.add_row(f"{(event.time_ns - group.first_ns) / 1e9:.3f}", *map(styled, event[1:]))
        print_table(made)
