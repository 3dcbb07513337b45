"""`kcoord decode`, `kcoord explain` and `kcoord schemas`."""

from __future__ import annotations

import io
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import kcoord_wire as kw
from tests.support.each import each

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


def rows(table: str) -> dict[str, str]:
    return {line.split("  ")[0]: line.split("  ")[-1].strip() for line in table.splitlines() if "  " in line}


@pytest.mark.parametrize("api", ["11", "JoinGroup", "joingroup", "JoinGroupRequest", "kafka/JoinGroupRequest"])
def test_decode_accepts_every_name_of_an_api(kcoord, api: str) -> None:
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


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (FRAME, "the input begins with the size of its rest: give --frame, and --api if it is a response"),
        (FRAME[4:], "the input begins as the header of JoinGroupRequest v7: give --body"),
        (b"\x00\x0b\x7f\xff" + FRAME[8:], "give --api, or --body or --frame where a header precedes the message"),
    ],
)
def test_decode_says_what_an_input_begins_with(kcoord, data: bytes, hint: str) -> None:
    status, _, err = kcoord("decode", data.hex())
    assert (status, err.startswith(f"kcoord: {hint}")) == (2, True), err


def test_decode_reports_offsets_in_the_input(kcoord) -> None:
    body = kw.encode_request(REQUEST, 7)[:-1]
    status, _, err = kcoord("decode", kw.frame(body).hex(), "--frame")
    with pytest.raises(kw.DecodeError) as caught:
        kw.decode_request(body)
    assert status == 1
    assert f"at byte {caught.value.offset + 4} " in err


def test_decode_is_lenient_on_request(kcoord) -> None:
    arguments = ("decode", BODY.hex() + "00", "--api", "11", "--request", "--version", "7")
    assert kcoord(*arguments)[0] == 1
    assert kcoord(*arguments, "--lenient")[0] == 0


def test_decode_needs_the_family_of_a_shared_name(kcoord) -> None:
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


def test_explain_prints_the_fields_before_an_error(kcoord) -> None:
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


@each("name", sorted(kw.registry))
def test_schemas_shows_every_field(kcoord, name: str) -> None:
    codec = kw.registry[name]
    status, out, _ = kcoord("schemas", f"{codec.family}/{name}", "--format", "json")
    shown = [message for message in map(json.loads, out.splitlines()) if message["name"] == name]
    assert status == 0
    assert [field["field"] for field in shown[0]["fields"] if "." not in field["field"]] == list(
        codec.cls.__match_args__ or [f for f in codec.cls.__dataclass_fields__ if f != "unknown_tags"]
    )
    assert kcoord("schemas", f"{codec.family}/{name}")[0] == 0


def test_schemas_says_since_when_a_field_is_there_and_why(kcoord) -> None:
    _, out, _ = kcoord("schemas", "FetchRequest", "--format", "json")
    message = json.loads(out)
    fields = {field["field"]: field for field in message["fields"]}
    assert message["about"].startswith("Reads records. ")
    shown = fields["replica_id"]
    assert (shown["versions"], shown["since"], shown["until"], shown["default"]) == ("0-14", 0, 14, -1)
    shown = fields["topics[].topic_id"]
    assert (shown["since"], shown["until"], shown["default"], shown["kips"]) == (13, None, "0" * 32, [516])
    shown = fields["cluster_id"]
    assert (shown["nullable"], shown["tag"], shown["tagged"]) == ("12-18", 0, "12-18")


def test_schemas_shows_defaults_and_proposals_in_its_table(kcoord) -> None:
    _, out, _ = kcoord("schemas", "JoinGroupRequest")
    [row] = [line.split() for line in out.splitlines() if line.startswith("rebalance_timeout_ms")]
    assert row[1:6] == ["int32", "1-9", "-1", "ignorable", "62"]
    assert out.startswith("Asks the group coordinator to admit a member")
    assert max(map(len, out.partition("\n\n")[0].splitlines())) <= 100
