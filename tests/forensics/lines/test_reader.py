"""Files of text: which lines are read, their places and times, and bounds.

Lines of five libraries and of brokers from 0.10 to 4.1: what each says.
"""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.forensics.lines.extraction import MARKS, client_of, holds_lines, parse_line
from kcoord_wire.forensics.lines.shapes import BROKER_SHAPES, CLIENT_SHAPES, Shape
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
    assert rows[1].took_ms == 300_088


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


UUID = "b542b773-d427-4892-9760-92cf58a9215a"
M = f"app-1-{UUID}"
OFFSETS = "(__consumer_offsets-12)"
# Written after the sources of the releases named; what a release of tests/data/logs wrote is tested with its recording.
BROKERS: list[tuple[str, str, dict[str, Any]]] = [
    ("0.10.2", "Preparing to restabilize group g with old generation 3", {"kind": "preparing", "generation_id": 3}),
    ("0.10.2", "Stabilized group g generation 4", {"kind": "stabilized", "generation_id": 4}),
    ("0.10.2", "Assignment received from leader for group g for generation 4", {"kind": "assigned_by_leader"}),
    ("0.10.2", "Group g with generation 5 is now empty", {"kind": "empty", "generation_id": 5}),
    ("1.1.1", f"Preparing to rebalance group g with old generation 3 {OFFSETS}", {"kind": "preparing", "reason": None}),
    ("1.1.1", f"Member {M} in group g has failed, removing it from the group", {"kind": "failed", "member_id": M}),
    (
        "2.3.1",
        f"Preparing to rebalance group g in state PreparingRebalance with old generation 3 {OFFSETS} "
        f"(reason: Adding new member {M} with group instanceid Some(pod-1))",
        {"kind": "preparing", "reason": f"Adding new member {M} with group instanceid Some(pod-1)"},
    ),
    ("2.3.1", f"Member {M} in group g has left, removing it from the group", {"kind": "left", "member_id": M}),
    (
        "2.8.2",
        f"Member[group.instance.id Some(pod-1), member.id {M}] in group g has left, removing it from the group",
        {"kind": "left", "member_id": M, "instance_id": "pod-1"},
    ),
    (
        "2.8.2",
        f"Group g removed dynamic members who haven't joined: Set({M})",
        {"kind": "removed_late", "reason": f"Set({M})"},
    ),
    (
        "2.8.2",
        f"Static member pod-1 of group g with unknown member id rejoins, assigning new member id {M}, while old member "
        f"id {M[:-1]}0 will be removed.",
        {"kind": "static_replaced", "instance_id": "pod-1", "member_id": M, "other_id": f"{M[:-1]}0"},
    ),
    (
        "3.6.1",
        f"Member MemberMetadata(memberId={M}, groupInstanceId=Some(pod-1), clientId=app-1, clientHost=/10.0.0.7, "
        "sessionTimeoutMs=45000, rebalanceTimeoutMs=300000, supportedProtocols=List(range)) has left group g through "
        "explicit `LeaveGroup`; client reason: consumer poll timeout has expired.",
        {"kind": "left", "client_id": "app-1", "client_host": "10.0.0.7", "timeout_ms": 45000},
    ),
    (
        "3.6.1",
        f"Request memberId={M} for static member with groupInstanceId=pod-1 is fenced by current memberId=x during "
        "operation heartbeat",
        {"kind": "broker_fenced", "group_id": None, "instance_id": "pod-1"},
    ),
    ("3.6.1", "Loading group metadata for g with generation 8", {"kind": "loaded", "generation_id": 8}),
    ("4.1.0", "Loaded classic group g with 3 members.", {"kind": "loaded", "members": 3}),
    (
        "4.0.0",
        f"[GroupId g] Member {M} fenced from the group because it failed to transition from epoch 7 within 45000ms.",
        {"kind": "epoch_fenced", "reason": "it failed to transition from epoch 7 within 45000ms"},
    ),
    (
        "3.9, KIP-848",
        f"[GroupId g] Member {M} new assignment state: epoch=7, previousEpoch=6, "
        "state=STABLE, assignedPartitions=[a-0].",
        {"kind": "epoch_state", "generation_id": 7, "state": "STABLE"},
    ),
]
JAVA = "[Consumer clientId=app-1, groupId=g] "
STATIC = "[Consumer instanceId=pod-1, clientId=app-1, groupId=g] "
CLIENTS: list[tuple[str, str, dict[str, Any]]] = [
    ("java", f"{JAVA}Attempt to heartbeat failed since group is rebalancing", {"kind": "heartbeat_rebalancing"}),
    ("java", f"{STATIC}(Re-)joining group", {"kind": "joining", "instance_id": "pod-1", "client_id": "app-1"}),
    ("java", f"{JAVA}Successfully joined group with generation 5", {"kind": "joined", "generation_id": 5}),
    (
        "java",
        "[Worker clientId=connect-1, groupId=g] Successfully joined group with generation "
        f"Generation{{generationId=5, memberId='{M}', protocol='sessioned'}}",
        {"kind": "joined", "client_id": "connect-1", "assignor": "sessioned", "member_id": M},
    ),
    (
        "java",
        f"{JAVA}Group coordinator b1:9092 (id: 2147483646 rack: null) is unavailable or "
        "invalid due to cause: session timed "
        "out without receiving a heartbeat response. isDisconnected: false. Rediscovery will be attempted.",
        {"kind": "session_lost"},
    ),
    ("java", f"{JAVA}Not authorized to access group: g", {"kind": "unauthorized", "group_id": "g"}),
    (
        "librdkafka",
        "%4|1795348803.123|SESSTMOUT|app-1#consumer-1| [thrd:main]: Consumer group session "
        "timed out (in join-state steady) "
        "after 6001 ms without a successful response from the group coordinator",
        {"kind": "session_lost", "client_id": "app-1", "took_ms": 6001, "state": "steady"},
    ),
    (
        "librdkafka",
        "FENCED [app-1#consumer-1] [thrd:main]: Fatal error: Broker: Static consumer "
        "fenced by other consumer with same "
        "group.instance.id: blah",
        {"kind": "fenced", "client_id": "app-1"},
    ),
    (
        "kafkajs",
        '{"level":"ERROR","timestamp":"2026-11-22T12:00:00.000Z","logger":"kafkajs","message":"[Connection] Response '
        'Heartbeat(key: 12, version: 3)","clientId":"app-1","error":"The group is rebalancing, so a rejoin is needed"}',
        {"kind": "heartbeat_rebalancing", "client_id": "app-1"},
    ),
    (
        "kafka-python",
        "kafka.coordinator: Heartbeat failed for group g: it is rebalancing",
        {"kind": "heartbeat_rebalancing"},
    ),
    ("aiokafka", "aiokafka.x - WARNING - Heartbeat failed for group g because it is rebalancing", {"group_id": "g"}),
    ("franz-go", "[INFO] joining group; group: g", {"kind": "joining", "group_id": "g"}),
    (
        "franz-go",
        f'time=2026-11-22T12:00:00Z level=INFO msg="joined, balancing group" group=g member_id={M} instance_id=<nil> '
        "generation=6 balance_protocol=cooperative-sticky leader=true",
        {"kind": "joined", "group_id": "g", "member_id": M, "generation_id": 6},
    ),
    (
        "sarama",
        "[sarama] 2026/11/22 12:00:00 client/coordinator requesting coordinator for "
        "consumergroup g from localhost:9092",
        {"kind": "joining", "group_id": "g"},
    ),
]


@pytest.mark.parametrize(("release", "line", "expected"), BROKERS)
def test_lines_of_brokers_of_all_releases(release: str, line: str, expected: dict[str, Any]) -> None:
    check(
        f"[2026-11-22 12:00:03,123] INFO [GroupCoordinator 2]: {line} (kafka.coordinator.group.X)", "broker", expected
    )


@pytest.mark.parametrize(("program", "line", "expected"), CLIENTS)
def test_lines_of_clients(program: str, line: str, expected: dict[str, Any]) -> None:
    check(line, program, expected)


def check(line: str, program: str, expected: dict[str, Any]) -> None:
    found = parse_line(line)
    assert found is not None
    parsed, _ = found
    stated = {"kind": parsed.kind, **parsed.columns}
    assert parsed.program == program
    assert {name: stated.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "line", ["", "INFO Rolled new log segment at offset 5", '{"message": null}', "group", "\x00" * 500]
)
def test_other_lines_are_none(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize(
    ("member_id", "client_id"),
    [
        (M, "app-1"),
        (f"a-b-{UUID}", "a-b"),
        ("b80vUvmCTHuVSUmxR5uwng", None),
        ("", None),
        (None, None),
        (f"-{UUID}", None),
    ],
)
def test_a_classic_member_id_begins_with_the_client_id(member_id: str | None, client_id: str | None) -> None:
    assert client_of(member_id) == client_id
