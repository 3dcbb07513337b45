"""The command `kcoord`: what it prints, what it ends with, and that it keeps its tables apart from its errors."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

import kcoord_wire as kw
from kcoord_wire.capture import CapturedFrame, read_capture
from kcoord_wire.cli.main import main
from kcoord_wire.fields import fields_of, printable
from kcoord_wire.story import describe_partitions, tell

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "data" / "captures"
COOPERATIVE = str(CAPTURES / "cooperative.pcap")

SUBSCRIPTION = kw.ConsumerProtocolSubscription(topics=["orders"])
REQUEST = kw.JoinGroupRequest(
    group_id="billing",
    session_timeout_ms=6000,
    protocol_type="consumer",
    protocols=[kw.JoinGroupRequestProtocol(name="range", metadata=kw.encode_prefixed(SUBSCRIPTION, 1))],
)
BODY = kw.encode(REQUEST, 7)
FRAME = kw.frame(kw.encode_request(REQUEST, 7, correlation_id=5, client_id="c1"))
RESPONSE = kw.HeartbeatResponse(error_code=27)
RESPONSE_FRAME = kw.frame(kw.encode_response(RESPONSE, 4, correlation_id=9))


class Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.fixture
def kcoord(capsys: pytest.CaptureFixture[str]):
    """Runs the command and gives its status, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        status = main(argv)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def rows(table: str) -> dict[str, str]:
    return {line.split("  ")[0]: line.split("  ")[-1].strip() for line in table.splitlines() if "  " in line}


@pytest.mark.parametrize("api", ["11", "JoinGroup", "joingroup", "JoinGroupRequest", "kafka/JoinGroupRequest"])
def test_decode_takes_every_way_to_name_an_api(kcoord, api: str) -> None:
    status, out, err = kcoord("decode", BODY.hex(), "--api", api, "--request", "--version", "7", "--format", "json")
    value = json.loads(out)
    assert (status, err) == (0, "")
    assert value["message"], value["version"] == ("JoinGroupRequest", 7)
    assert kw.from_dict(kw.JoinGroupRequest, value["value"]) == REQUEST


def test_decode_prints_every_field_and_opens_nested_blobs(kcoord) -> None:
    status, out, _ = kcoord("decode", BODY.hex(), "--api", "JoinGroupRequest", "--version", "7")
    table = rows(out)
    assert status == 0
    assert table["group_id"] == '"billing"'
    assert table["protocols[0].metadata.version"] == "1"
    assert table["protocols[0].metadata.topics"] == '["orders"]'
    assert "reason" not in table, "version 7 has no reason"


@pytest.mark.parametrize("form", ["hex with colons", "file of bytes", "file of hex", "stdin of bytes", "stdin of hex"])
def test_decode_reads_bytes_from_everywhere(kcoord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    data = BODY if form.endswith("bytes") else BODY.hex("\n").encode()
    source = "-"
    if form.startswith("hex"):
        source = BODY.hex(":")
    elif form.startswith("file"):
        (tmp_path / "message").write_bytes(data)
        source = str(tmp_path / "message")
    else:
        monkeypatch.setattr(sys, "stdin", Stdin(data))
    status, out, _ = kcoord("decode", source, "--api", "11", "--request", "--version", "7")
    assert (status, rows(out)["group_id"]) == (0, '"billing"')


def test_decode_reads_the_header_of_a_frame(kcoord) -> None:
    status, out, _ = kcoord("decode", (FRAME + FRAME).hex(), "--frame", "--format", "json")
    messages = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [m["message"] for m in messages] == ["RequestHeader", "JoinGroupRequest"] * 2
    assert messages[0]["value"]["CorrelationId"] == 5
    status, out, _ = kcoord("decode", FRAME[4:].hex(), "--body", "--format", "json")
    assert (status, [json.loads(line) for line in out.splitlines()]) == (0, messages[:2])


@pytest.mark.parametrize(("data", "option"), [(RESPONSE_FRAME, "--frame"), (RESPONSE_FRAME[4:], "--body")])
def test_decode_reads_the_header_of_a_response(kcoord, data: bytes, option: str) -> None:
    arguments = ("decode", data.hex(), option, "--api", "12", "--response", "--version", "4", "--format", "json")
    status, out, _ = kcoord(*arguments)
    header, message = (json.loads(line) for line in out.splitlines())
    assert (status, header["value"]["CorrelationId"], message["value"]["ErrorCode"]) == (0, 9, 27)


def test_decode_tells_an_offset_in_the_input_not_in_the_message(kcoord) -> None:
    body = kw.encode_request(REQUEST, 7)[:-1]
    status, _, err = kcoord("decode", kw.frame(body).hex(), "--frame")
    with pytest.raises(kw.DecodeError) as caught:
        kw.decode_request(body)
    assert status == 1
    assert f"at byte {caught.value.offset + 4} " in err


def test_decode_is_as_lenient_as_it_is_told(kcoord) -> None:
    arguments = ("decode", BODY.hex() + "00", "--api", "11", "--request", "--version", "7")
    assert kcoord(*arguments)[0] == 1
    assert kcoord(*arguments, "--lenient")[0] == 0


def test_a_name_that_two_families_share_takes_the_family(kcoord) -> None:
    text = b"Heartbeat/1/1700000000/i/c/g/t/3/42".hex()
    status, _, err = kcoord("decode", text, "--api", "Heartbeat")
    assert status == 2
    assert "marshal/Heartbeat" in err
    status, out, _ = kcoord("decode", text, "--api", "marshal/Heartbeat")
    assert (status, rows(out)["current_offset"]) == (0, "42")


def test_explain_accounts_for_every_byte(kcoord) -> None:
    status, out, _ = kcoord("explain", FRAME.hex(), "--frame", "--format", "json")
    parts = [json.loads(line) for line in out.splitlines()]
    leaves = [(p["offset"] + row["start"], p["offset"] + row["end"]) for p in parts for row in p["rows"] if row["leaf"]]
    assert status == 0
    assert leaves[0][0] == 4
    assert leaves[-1][1] == len(FRAME)
    assert all(end == start for (_, end), (start, _) in pairwise(leaves))


def test_explain_prints_what_it_can_of_bytes_that_do_not_decode(kcoord) -> None:
    status, out, err = kcoord("explain", BODY[:-1].hex(), "--api", "11", "--request", "--version", "7")
    assert status == 1
    assert "billing" in out
    assert err.startswith("kcoord: JoinGroupRequest")


def test_schemas_lists_every_message(kcoord) -> None:
    status, out, _ = kcoord("schemas", "--format", "json")
    assert status == 0
    assert {json.loads(line)["name"] for line in out.splitlines()} == set(kw.registry)
    status, out, _ = kcoord("schemas")
    assert status == 0
    assert all(name in out for name in kw.registry)


@pytest.mark.parametrize("name", sorted(kw.registry))
def test_schemas_shows_every_field(kcoord, name: str) -> None:
    codec = kw.registry[name]
    status, out, _ = kcoord("schemas", f"{codec.family}/{name}", "--format", "json")
    shown = [message for message in map(json.loads, out.splitlines()) if message["name"] == name]
    assert status == 0
    assert [field["field"] for field in shown[0]["fields"] if "." not in field["field"]] == list(
        codec.cls.__match_args__ or [f for f in codec.cls.__dataclass_fields__ if f != "unknown_tags"]
    )
    assert kcoord("schemas", f"{codec.family}/{name}")[0] == 0


@pytest.mark.parametrize("name", ["aiokafka", "cooperative", "eager_range", "static_bounce"])
def test_capture_as_json_has_every_frame_once(kcoord, name: str) -> None:
    status, out, _ = kcoord("capture", str(CAPTURES / f"{name}.pcap"), "--format", "json")
    frames = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    wanted = (
        "time connection direction api_key api api_version correlation_id client_id size message error irregularity"
    )
    assert {tuple(frame) for frame in frames} == {tuple(wanted.split())}
    asked = Counter((f["connection"], f["correlation_id"]) for f in frames if f["direction"] == "request")
    told = Counter((f["connection"], f["correlation_id"]) for f in frames if f["direction"] == "response")
    assert told <= asked
    assert [f["error"] for f in frames if f["error"] is not None] == []
    for frame in frames:
        if frame["api"] == "SyncGroup":
            codec = getattr(kw.registry, frame["direction"])(14)
            message = kw.from_dict(codec.cls, frame["message"])
            assert kw.to_dict(message, frame["api_version"], json=True) == frame["message"]


@pytest.mark.parametrize(("api", "only"), [("71", 71), ("GetTelemetrySubscriptions", 71), ("heartbeatrequest", 12)])
def test_capture_filters_by_any_api_of_kafka(kcoord, api: str, only: int) -> None:
    status, out, _ = kcoord("capture", COOPERATIVE, "--api", api, "--format", "json")
    assert status == 0
    assert {json.loads(line)["api_key"] for line in out.splitlines()} == {only}


def test_captures_and_messages_come_through_pipes() -> None:
    python = f"{sys.executable} -m kcoord_wire"
    for command in (
        f"cat {COOPERATIVE} | {python} capture - --api 13 --format json | grep -c LeaveGroup",
        f"mkfifo $FIFO; printf 0000 > $FIFO & {python} decode $FIFO --api 16 --version 0 --request --lenient",
    ):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                ["sh", "-c", command],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"FIFO": f"{folder}/fifo"},
            )
        assert done.returncode == 0, done.stderr


def test_capture_refuses_what_is_no_api(kcoord) -> None:
    status, _, err = kcoord("capture", COOPERATIVE, "--api", "OffsetCommitKey")
    assert status == 1
    assert err.startswith("kcoord: Kafka has no api 'OffsetCommitKey'; it has OffsetCommit")


@pytest.mark.parametrize("redirect", ["<&-", ">&-"])
def test_closed_streams_are_one_line(redirect: str) -> None:
    command = f"{sys.executable} -m kcoord_wire schemas {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr in ("kcoord: standard input is closed\n", "kcoord: standard output is closed\n")


def test_capture_filters_by_api_and_port(kcoord) -> None:
    _, out, _ = kcoord(
        "capture", COOPERATIVE, "--api", "JoinGroup", "--api", "14", "--port", "43495", "--format", "json"
    )
    assert {json.loads(line)["api"] for line in out.splitlines()} == {"JoinGroup", "SyncGroup"}
    status, out, err = kcoord("capture", COOPERATIVE, "--port", "1", "--format", "json")
    assert (status, out) == (1, "")
    assert err.startswith("kcoord: ")


def test_capture_as_a_table_opens_subscriptions(kcoord) -> None:
    status, out, _ = kcoord("capture", COOPERATIVE, "--api", "JoinGroup")
    assert status == 0
    assert 'protocols[0].metadata.topics=["orders", "payments"]' in out


def test_capture_summary_counts_what_json_lists(kcoord) -> None:
    _, listed, _ = kcoord("capture", COOPERATIVE, "--format", "json")
    count = Counter((f["api"], str(f["api_version"]), f["direction"]) for f in map(json.loads, listed.splitlines()))
    _, out, _ = kcoord("capture", COOPERATIVE, "--summary")
    lines = [line.split() for line in out.splitlines()[1:] if line]
    assert {(api, version, direction): int(frames) for api, version, direction, frames, *_ in lines} == count


def test_the_story_tells_who_joined_got_what_and_left(kcoord) -> None:
    status, out, _ = kcoord("capture", "--story", COOPERATIVE)
    events = [line.split(maxsplit=2)[1:] for line in out.splitlines() if line[:1].isdigit()]
    assert status == 0
    assert out.startswith("group billing: 3 members (c1, c2, c3)")
    for member in ("c1", "c2", "c3"):
        told = [text for name, text in events if name == member]
        assert told[0].startswith("asks to join  as a new member; from 127.0.0.1:")
        assert told[-1].startswith("leaves")
        assert any(text.startswith("heartbeats") for text in told)
    receives = [text for name, text in events if text.startswith("receives") and name == "c1"]
    assert receives[0].endswith("orders 0-3, payments 0-3 (generation 2)")
    assert "members c1, c2, c3" in out, "a leader's members have names"


def test_the_story_has_every_field_when_asked(kcoord) -> None:
    _, out, _ = kcoord("capture", "--story", "--fields", COOPERATIVE)
    _, listed, _ = kcoord("capture", COOPERATIVE, "--format", "json", "--api", "JoinGroup")
    assert out.count("JoinGroup v5 re") == len(listed.splitlines())
    assert 'protocols[0].metadata.topics = ["orders", "payments"]' in out


def test_every_answered_exchange_is_in_one_event() -> None:
    frames = list(read_capture(COOPERATIVE))
    group = [f for f in frames if f.api in {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit"}]
    told = Counter(id(frame) for event in tell(frames).events for frame in event.frames)
    assert told == Counter(id(frame) for frame in group)


def exchange(start: int, api: str, client: str, request: object, response: object) -> list[CapturedFrame]:
    shared = {"connection": f"{client}:1-broker:2#0", "api": api, "api_version": 0, "client_id": client}
    shared["correlation_id"] = start
    return [
        CapturedFrame(time_ns=start * 10**9, direction="request", message=request, **shared),
        CapturedFrame(time_ns=start * 10**9, direction="response", message=response, **shared),
    ]


def test_the_newer_protocols_heartbeat_is_told_too() -> None:
    ask, answer = kw.ConsumerGroupHeartbeatRequest, kw.ConsumerGroupHeartbeatResponse
    topic = uuid.UUID(int=7)
    given = kw.ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[kw.ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic, partitions=[0, 1])]
    )
    steps = [
        (
            ask(group_id="g", member_epoch=0, subscribed_topic_names=["t"]),
            answer(member_id="m", member_epoch=1, assignment=given),
        ),
        (ask(group_id="g", member_id="m", member_epoch=1), answer(member_id="m", member_epoch=1)),
        (ask(group_id="g", member_id="m", member_epoch=1), answer(member_id="m", member_epoch=1)),
        (ask(group_id="g", member_id="m", member_epoch=1), answer(error_code=110)),
        (ask(group_id="g", member_id="m", member_epoch=-1), answer(member_id="m", member_epoch=-1)),
    ]
    frames = [f for i, (q, a) in enumerate(steps) for f in exchange(i, "ConsumerGroupHeartbeat", "c", q, a)]
    story = tell(frames)
    [member] = story.members
    assert [(event.verb, event.count) for event in story.events] == [
        ("asks to join", 1),
        ("receives", 1),
        ("beats", 3),
        ("is told", 1),
        ("leaves", 1),
    ]
    assert story.events[1].text == f"{topic} 0-1 (epoch 1)"
    assert (member.ids, member.generations, member.left) == (["m"], [1], 4.0)


def test_a_blob_that_is_no_subscription_is_told_by_its_size() -> None:
    join = kw.JoinGroupRequest(group_id="g", protocol_type="consumer", member_id="m")
    join.protocols = [kw.JoinGroupRequestProtocol(name="own", metadata=b"\xff")]
    sync = kw.SyncGroupRequest(group_id="g", member_id="m")
    sync.assignments = [kw.SyncGroupRequestAssignment(member_id="m", assignment=b"\x00\x00\x01")]
    frames = exchange(1, "JoinGroup", "c", join, kw.JoinGroupResponse(member_id="m", leader="m", generation_id=1))
    frames += exchange(2, "SyncGroup", "c", sync, kw.SyncGroupResponse(assignment=b"\x00\x00\x01"))
    assert [event.text for event in tell(frames).events][2:] == ["c: 3 bytes", "3 bytes (generation 0)"]


def test_a_capture_without_a_group_says_so(kcoord) -> None:
    status, out, _ = kcoord("capture", "--story", COOPERATIVE, "--api", "Metadata")
    assert (status, out.splitlines()[0]) == (0, "no consumer group is in this capture")


@pytest.mark.parametrize(
    ("partitions", "text"),
    [([], "nothing"), ([3], "t 3"), ([2, 0, 1], "t 0-2"), ([5, 1, 2, 9, 8], "t 1-2,5,8-9")],
)
def test_partitions_are_told_in_runs(partitions: list[int], text: str) -> None:
    assert describe_partitions([SimpleNamespace(topic="t", partitions=partitions)]) == text


@pytest.mark.parametrize(
    "arguments",
    [
        ("decode",),
        ("decode", "00"),
        ("decode", "00", "--api", "11"),
        ("decode", "00", "--api", "11", "--request"),
        ("decode", "00", "--api", "11", "--request", "--version", "x"),
        ("nonsense",),
        (),
    ],
)
def test_bad_usage_is_one_line_and_status_2(kcoord, arguments: tuple[str, ...]) -> None:
    status, out, err = kcoord(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("kcoord: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("decode", "zz", "--api", "11", "--request", "--version", "0"), "neither a file nor hex"),
        (("decode", "00", "--api", "11", "--request", "--version", "0"), "JoinGroupRequest"),
        (("decode", "00", "--api", "11", "--request", "--version", "99"), "no version 99"),
        (("decode", "00", "--api", "JoinGruop"), "JoinGroupRequest"),
        (("decode", "0000", "--frame"), "the stream ends"),
        (("decode", "0047000000000000ffff", "--body"), "GetTelemetrySubscriptions"),
        (("schemas", "Nothing"), "there is no message 'Nothing'"),
        (("capture", "there/is/none.pcap"), "No such file"),
        (("capture", str(ROOT / "pyproject.toml")), "pyproject.toml: neither pcap"),
        (("capture", str(ROOT)), "directory"),
    ],
)
def test_bad_input_is_one_line_and_status_1(kcoord, arguments: tuple[str, ...], words: str) -> None:
    status, out, err = kcoord(*arguments)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("kcoord: ")
    assert words in err


def test_a_peers_strings_cannot_command_the_terminal(kcoord) -> None:
    evil = kw.HeartbeatRequest(group_id="\x1b[2J\x9b31m[red]\u2028", member_id="ä→")
    data = kw.encode(evil, 4).hex()
    _, table, _ = kcoord("decode", data, "--api", "HeartbeatRequest", "--version", "4")
    _, line, _ = kcoord("decode", data, "--api", "HeartbeatRequest", "--version", "4", "--format", "json")
    for out in (table, line):
        assert not {"\x1b", "\x9b", "\u2028"} & set(out)
        assert "[red]" in out
        assert "ä→" in out
    assert json.loads(line)["value"]["GroupId"] == evil.group_id


def test_fields_of_shows_unknown_tags_and_nulls() -> None:
    message = kw.HeartbeatRequest(unknown_tags=((7, b"\x01\x02"),))
    shown = dict(fields_of(message, 4))
    assert shown["unknown_tags[7]"] == "0102 (2 bytes)"
    assert shown["group_instance_id"] == "null"
    assert "group_instance_id" not in dict(fields_of(message, 2))
    assert printable("a\tb") == "a\\tb"


def run(*argv: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kcoord_wire", *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_version_and_help_end_well() -> None:
    for argument in ("--version", "--help"):
        process = run(argument)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        assert b"kcoord" in out


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = run("capture", COOPERATIVE, "--format", "json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), error) == (141, b"")


def test_an_interrupt_ends_with_130(kcoord, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read=interrupted)))
    assert kcoord("decode", "-", "--api", "12", "--request", "--version", "4") == (130, "", "")


def test_without_rich_json_works_and_a_table_says_what_it_needs() -> None:
    program = (
        "import sys; sys.modules['rich'] = None; from kcoord_wire.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    for form, status in (("json", 0), ("table", 1)):
        arguments = ["decode", BODY.hex(), "--api", "11", "--request", "--version", "7", "--format", form]
        done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode, bool(done.stdout), done.stderr.count(b"\n")) == (status, not status, status)


def test_output_to_a_pipe_is_plain_utf_8() -> None:
    data = kw.encode(kw.HeartbeatRequest(group_id="größe"), 4).hex()
    environment = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1"}
    process = run("decode", data, "--api", "HeartbeatRequest", "--version", "4", env=environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert '"größe"'.encode() in out
    assert b"\x1b" not in out
