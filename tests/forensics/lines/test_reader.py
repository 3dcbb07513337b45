"""Files of text: which lines are read, their places and times, and bounds."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.lines.broker_shapes import BROKER_SHAPES
from kcoord_wire.forensics.lines.client_shapes import CLIENT_SHAPES
from kcoord_wire.forensics.lines.reader import MARKS, holds_lines
from kcoord_wire.forensics.lines.shapes import Shape
from tests.support.text_logs import parse

TIME = "[2026-11-22 12:00:03,123] INFO"
LINE = f"{TIME} Stabilized group g generation 5 (__consumer_offsets-0) with 2 members (kafka.coordinator.group.X)"


def test_a_row_has_the_byte_at_which_its_line_begins() -> None:
    text = f"{TIME} Rolled new log segment\r\n{LINE}\r\n"
    [row] = parse(text)
    assert text.encode()[row.position :].startswith(LINE.encode())


def test_lines_across_blocks_are_whole() -> None:
    text = f"{TIME} x\n" * 40_000 + f"{LINE}\n" + f"{TIME} y\n" * 40_000 + LINE
    assert [row.generation_id for row in parse(text)] == [5, 5]


def test_a_line_of_gigabytes_is_cut() -> None:
    text = b"roup " * (1 << 20) + b"\n" + LINE.encode() + b"\n"
    assert [row.kind for row in parse(text)] == ["stabilized"]


def test_bytes_that_are_no_utf_8_cost_their_characters() -> None:
    [row] = parse(LINE.replace("group g", "group g\u00fc").encode("latin-1"))
    assert row.group_id == "g\ufffd"


def test_a_stack_trace_has_the_time_of_its_line() -> None:
    text = (
        f"{TIME} commit failed "
        "(com.example.App)\norg.apache.kafka.clients.consumer.CommitFailedException: Offset commit "
    )
    text += (
        "cannot be completed since the consumer is not part of an active group for auto partition assignment\n\tat x\n"
    )
    [row] = parse(text)
    assert (row.kind, row.time_ns % 10**9) == ("commit_refused", 123_000_000)


def test_lines_without_any_date_are_one_loss() -> None:
    [row] = parse("12:00:03.123 [main] INFO Stabilized group g generation 5\nStabilized group g generation 6\n")
    assert row.error is not None
    assert "2 lines" in row.error


def test_the_group_of_a_client_is_known_from_lines_before() -> None:
    head = "%7|1795348803.123|JOIN|c#consumer-1| [thrd:main]: "
    joined = 'localhost:9092/1: Joining group "g" with 1 subscribed topic(s) and member id ""'
    late = "Application maximum poll interval (300000ms) exceeded by 88ms (adjust max.poll.interval.ms): leaving group"
    rows = parse(f"{head}{joined}\n{head.replace('7', '4', 1)}{late}\n")
    assert [(row.kind, row.group_id, row.client_id) for row in rows] == [
        ("joining", "g", "c"),
        ("poll_timeout", "g", "c"),
    ]
    assert rows[1].timeout_ms == 300_000
    assert rows[1].took_ms == 88


@pytest.mark.parametrize(
    ("content", "is_log"),
    [
        (LINE.encode(), True),
        (b"the working group met on Monday\n" * 1000, False),
        (b"", False),
        (bytes(range(256)), False),
    ],
)
def test_text_is_a_log_by_a_line_about_a_group(content: bytes, is_log: bool) -> None:
    assert holds_lines(content) is is_log


@pytest.mark.parametrize("shape", [*BROKER_SHAPES, *CLIENT_SHAPES], ids=lambda shape: shape.template[:40])
def test_every_template_passes_the_search_for_marks(shape: Shape) -> None:
    """Lines of Java clients hold ``groupId=``, those of kafkajs the field of that name."""
    text = shape.template.replace("<group>", "g").encode()
    assert set(shape.programs) & {"java", "kafkajs"} or any(mark in text for mark in MARKS)
