"""Whole frames: the rows, and the calls by which the users of each library decode and encode header and message.

Laws as in `libraries`. kio's users choose reader, header and version themselves; that choice is not part of its time,
while ours follows api key and version. The correlation id is another number in each frame, so that no
library can keep a header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from io import BytesIO
from typing import Any

import kcoord_wire as kw
from kcoord_wire import messages

from .codec import OPTIONS, measure
from .libraries import LIBRARIES, Case
from .report import DIRECTIONS, Report
from .report import RESULTS as BODIES
from .rows import Row, heartbeat, join_request, join_response, member_id, sync_request
from .runner import Bench, conditions, digits
from .runner import table as lines

RESULTS = BODIES / "frames"
KIO = 3.0  # how many times our time kio's is to be
COPIED = "frame-fetch-response"
NUMBER, CLIENT = 99_999, "consumer-billing-7"


def heartbeat_response() -> Any:
    return kw.HeartbeatResponse(throttle_time_ms=0, error_code=27)


def sync_response() -> Any:
    return kw.SyncGroupResponse(
        protocol_type="consumer", protocol_name="range", assignment=sync_request(1).assignments[0].assignment
    )


def commit_request(topics: int, partitions: int) -> Any:
    return kw.OffsetCommitRequest(
        group_id="billing",
        generation_id_or_member_epoch=42,
        member_id=member_id(7),
        topics=[
            messages.OffsetCommitRequestTopic(
                name=f"orders.region-{t:03d}",
                partitions=[
                    messages.OffsetCommitRequestPartition(
                        partition_index=p, committed_offset=5_000_000_000 + p, committed_leader_epoch=300
                    )
                    for p in range(partitions)
                ],
            )
            for t in range(topics)
        ],
    )


def commit_response(topics: int, partitions: int) -> Any:
    return kw.OffsetCommitResponse(
        topics=[
            messages.OffsetCommitResponseTopic(
                name=f"orders.region-{t:03d}",
                partitions=[messages.OffsetCommitResponsePartition(partition_index=p) for p in range(partitions)],
            )
            for t in range(topics)
        ]
    )


def fetch_response(topics: int, partitions: int, size: int) -> Any:
    return kw.FetchResponse(
        session_id=7,
        responses=[
            messages.FetchResponseFetchableTopicResponse(
                topic=f"orders.region-{t:03d}",
                partitions=[
                    messages.FetchResponsePartitionData(
                        partition_index=p,
                        high_watermark=5_000_000_000 + p,
                        last_stable_offset=5_000_000_000 + p,
                        log_start_offset=0,
                        aborted_transactions=None,
                        records=bytes(size),
                    )
                    for p in range(partitions)
                ],
            )
            for t in range(topics)
        ],
    )


FRAMES = [
    Row("frame-heartbeat", "Heartbeat request", 4, heartbeat),
    Row("frame-heartbeat-response", "Heartbeat response", 4, heartbeat_response),
    Row("frame-join", "JoinGroup request with subscriptions", 7, join_request),
    Row("frame-join-response", "JoinGroup response, 100 members", 7, join_response, (100,), (2,)),
    Row("frame-sync", "SyncGroup request, 100 assignments", 5, sync_request, (100,), (2,)),
    Row("frame-sync-response", "SyncGroup response", 5, sync_response),
    Row("frame-commit", "OffsetCommit request, 30 partitions", 8, commit_request, (3, 10), (1, 2)),
    Row("frame-commit-response", "OffsetCommit response, 30 partitions", 8, commit_response, (3, 10), (1, 2)),
    Row(COPIED, "Fetch response, 200 partitions of 5 KB", 12, fetch_response, (20, 10, 5000), (1, 2, 9)),
    Row(
        "frame-fetch-view",
        'Fetch response, 200 partitions of 5 KB, bytes="view"',
        12,
        fetch_response,
        (20, 10, 5000),
        (1, 2, 9),
        {"bytes": "view"},
    ),
]
JUDGED = [row for row in FRAMES if row.key != COPIED]
"""The rows that have targets. Copying 1 MB of records takes as long in any language; kafka-clients and kmsg do not."""


def is_request(message: Any) -> bool:
    """Or a response."""
    return type(message).__name__.endswith("Request")


def frame(message: Any, version: int) -> bytes:
    """Header and message."""
    if is_request(message):
        return kw.encode_request(message, version, correlation_id=NUMBER, client_id=CLIENT)
    return kw.encode_response(message, version, correlation_id=NUMBER)


def our_frames(row: Row, message: Any) -> Case:
    return frame_case(message, row.version, row.read)


def frame_case(message: Any, version: int, read: Mapping[str, Any]) -> Case:
    """A message with its header in our codec.

    :param read: options of decode
    """
    kind = "request" if is_request(message) else "response"
    who = ", client_id=client" if kind == "request" else ""
    what = "" if kind == "request" else ", cls, version"
    what += "".join(f", {option}={value!r}" for option, value in read.items())
    names = {
        "decode": getattr(kw, f"decode_{kind}"), "encode": getattr(kw, f"encode_{kind}"), "cls": type(message),
        "version": version, "message": message, "data": frame(message, version), "number": NUMBER, "client": CLIENT,
    }  # fmt: skip
    statements = {
        "decode": f"decode(data{what})",
        "encode": f"encode(message, version, correlation_id=number{who})",
    }
    return Case(version, names["data"], statements, names, message_of=lambda result: result[1])


def kio_frames(row: Row, message: Any) -> Case:
    from kio.serial import entity_reader, entity_writer

    name = type(message).__name__
    kind = "request" if is_request(message) else "response"
    api = "".join(f"_{c.lower()}" if c.isupper() else c for c in name.removesuffix(kind.capitalize())).lstrip("_")
    cls = getattr(import_module(f"kio.schema.{api}.v{row.version}.{kind}"), name)
    head = cls.__header_schema__
    data = frame(message, row.version)
    read_head, read, write_head, write = (f(c) for f in (entity_reader, entity_writer) for c in (head, cls))
    decode = "head, size = read_head(data, 0)\nbody, size = read(data, size)\nhead, body"
    ids = "correlation_id=number"
    if kind == "request":
        ids = f"request_api_key=key, request_api_version=version, {ids}, client_id=client"
    encode = f"buffer = BytesIO()\nwrite_head(buffer, Head({ids}))\nwrite(buffer, message)\nbuffer.getvalue()"
    names = {
        "read_head": read_head, "read": read, "write_head": write_head, "write": write, "Head": head, "data": data,
        "BytesIO": BytesIO, "number": NUMBER, "client": CLIENT, "key": cls.__api_key__, "version": row.version,
        "message": read(data, read_head(data, 0)[1])[0],
    }  # fmt: skip
    return Case(row.version, data, {"decode": decode, "encode": encode}, names, message_of=lambda result: result[1])


def kafka_python_frames(row: Row, message: Any) -> Case:
    cls = getattr(import_module("kafka.protocol.consumer"), type(message).__name__)
    data = frame(message, row.version)
    who = ", client_id=client" if is_request(message) else ""
    statements = {
        "decode": "cls.decode(data, version=version, header=True)",
        "encode": f"message.with_header(correlation_id=number{who})\nmessage.encode(header=True)",
    }
    same = cls.decode(data, version=row.version, header=True)
    same._header = None  # with a response's header there, kafka-python cannot set its version
    same.API_VERSION = row.version
    names = {"cls": cls, "version": row.version, "data": data, "number": NUMBER, "client": CLIENT, "message": same}
    return Case(row.version, data, statements, names)


FRAMED: dict[str, Callable[[Row, Any], Case]] = {
    "native": our_frames,
    "python": our_frames,
    "kio": kio_frames,
    "kafka-python": kafka_python_frames,
}


def table(made: Report, operation: str) -> Iterator[str]:
    """Native microseconds, and how many times as long the others take."""
    others = [key for key in made.libraries if key != "native"]
    rows = []
    for row in FRAMES:
        time = digits(made.time("native", row.key, operation) / 1e3)
        ratios = [f"{digits(made.ratio(key, row.key, operation))}x" for key in others]
        rows.append([f"{row.title} (v{row.version})", f"{made.cell('native', row.key)['bytes']:,}", time, *ratios])
    return lines([operation, "bytes", "native, µs", *(LIBRARIES[key].title for key in others)], rows)


def missed(made: Report) -> Iterator[str]:
    """A line for each direction in which a row misses its target."""
    for operation in DIRECTIONS if "kio" in made.libraries else ():
        ratios = {row.title: made.ratio("kio", row.key, operation) for row in JUDGED}
        short = [f"{title}: {ratio:.3g}x" for title, ratio in ratios.items() if ratio < KIO]
        if short:
            yield f"- Missed: {operation} at least {KIO:.0f}x kio, in {'; '.join(short)}."


def summary(report: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    made = Report(report)
    parts = [
        "Processor time of one call of `kw.decode_request(body)`, `kw.decode_response(body, cls, version)`,",
        "`kw.encode_request(message, version, correlation_id=..., client_id=...)` or `kw.encode_response` with the",
        "native codec, and how many times as long the others take for the same bytes. Medians. kio's readers and",
        "writers of header and message are chosen beforehand; ours follow api key and version. The Fetch response that",
        "is copied has no target.",
        f"{conditions(report)}.",
    ]
    for operation in DIRECTIONS:
        parts += ["", *table(made, operation)]
    return "\n".join([*parts, "", *missed(made)]).rstrip()


def markdown(report: dict[str, Any]) -> str:
    """The report of the folder of results."""
    return f"# Whole frames\n\n{summary(report)}\n"


BENCH = Bench(
    about="header and message next to other libraries.",
    results=RESULTS,
    measure=lambda options: measure(options, FRAMED, "--frames"),
    markdown=markdown,
    options=OPTIONS,
    quick=True,
    title="Whole frames",
    command="make bench",
    summary=summary,
)
