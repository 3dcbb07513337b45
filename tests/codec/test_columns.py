"""What the column decoder takes, what it refuses, and that a row depends on nothing but its own frame."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

import kcoord_wire as kw
from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.codec.registry import MessageCodec, compile_schemas
from kcoord_wire.schema.plan import Length, Op, Presence
from tests.support.backends import BACKENDS
from tests.support.column_rows import DATA, KAFKA, damaged, decoder, expected, frames_of

JOIN = kw.JoinGroupRequest(
    group_id="group",
    protocol_type="consumer",
    protocols=[
        kw.JoinGroupRequestProtocol(name="range", metadata=b"r" * 20),
        kw.JoinGroupRequestProtocol(name="a name that is long", metadata=b""),
    ],
)
HEADERS = ["api_key", "api_version", "correlation_id", "client_id"]


def frame(version: int = 9, correlation_id: int = 1, client_id: str | None = "client") -> bytes:
    return kw.encode_request(JOIN, version, correlation_id=correlation_id, client_id=client_id)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def mixed(seed: int = 0) -> list[bytes | None]:
    """Requests of all apis, good and bad ones, nulls between them, the same ones in runs and apart."""
    rng = random.Random(seed)
    found: list[bytes | None] = []
    for name in KAFKA["request"]:
        for _, _, body in frames_of("request", name):
            found += [body] * rng.randrange(1, 6)
            found += [*damaged(body, rng, 1), None]
    return found


# ---- what is asked for


@pytest.mark.skipif("native" not in BACKENDS, reason="the pure decoder reads by programs, which are made when used")
def test_instructions_are_made_for_the_versions_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = kw.registry["JoinGroupRequest"]
    made = decoder("native", ["JoinGroupRequest"])
    frames = [*[frame(5)] * 6, frame(3), b"", *[frame(5)] * 6]
    asked: list[int] = []

    def plan(version: int) -> Any:
        asked.append(version)
        if len(asked) == 1:
            raise MemoryError("of the plan")
        return MessageCodec.plan(codec, version)

    monkeypatch.setattr(codec, "plan", plan)
    with pytest.raises(MemoryError, match="of the plan"):
        made.decode(pa.array(frames[:1]))
    batch = made.decode(pa.array(frames))
    assert asked == [5, 5, 3]
    assert [row and row["group_id"] for row in batch["JoinGroupRequest"].to_pylist()] == [
        "group" if each else None for each in frames
    ]


def test_the_schema_says_what_comes(backend: str) -> None:
    made = decoder(backend, ["JoinGroupRequest", "HeartbeatRequest"])
    assert made.schema.names == [*HEADERS, "JoinGroupRequest", "HeartbeatRequest", "error", "error_offset"]
    batch = made.decode(pa.array([frame()]))
    assert batch.schema.equals(made.schema)
    assert batch.to_pylist() == [
        {
            "api_key": 11,
            "api_version": 9,
            "correlation_id": 1,
            "client_id": "client",
            "JoinGroupRequest": {
                "group_id": "group",
                "session_timeout_ms": 0,
                "rebalance_timeout_ms": -1,
                "member_id": "",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [
                    {"name": "range", "metadata": b"r" * 20},
                    {"name": "a name that is long", "metadata": b""},
                ],
                "reason": None,
            },
            "HeartbeatRequest": None,
            "error": None,
            "error_offset": None,
        }
    ]


def leaves(type_: pa.DataType) -> set[pa.DataType]:
    if pa.types.is_struct(type_):
        return set().union(*(leaves(type_.field(i).type) for i in range(type_.num_fields)))
    return leaves(type_.value_type) if pa.types.is_list(type_) else {type_}


def test_every_type_is_one_that_spark_takes() -> None:
    made = ColumnDecoder([*KAFKA["request"]])
    allowed = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.binary()}
    assert set().union(*(leaves(field.type) for field in made.schema)) <= allowed
    viewed = ColumnDecoder([*KAFKA["request"]], views=True)
    found = set().union(*(leaves(field.type) for field in viewed.schema if field.name != "error"))
    assert found <= allowed - {pa.string(), pa.binary()} | {pa.string_view(), pa.binary_view()}


@pytest.mark.parametrize("views", [False, True])
def test_a_choice_of_columns_is_what_choosing_afterwards_gives(backend: str, views: bool) -> None:
    frames = pa.array(mixed(), pa.binary())
    names = ["JoinGroupRequest", "SyncGroupRequest", "HeartbeatRequest", "OffsetCommitRequest"]
    whole = decoder(backend, names, views=views).decode(frames)
    columns = ["JoinGroupRequest.protocols.name", "member_id", "OffsetCommitRequest.topics", "SyncGroupRequest"]
    some = decoder(backend, names, views=views, columns=columns).decode(frames)
    some.validate(full=True)
    for name in (*HEADERS, "SyncGroupRequest", "error", "error_offset"):
        assert some.column(name).equals(whole.column(name))
    joins = whole.column("JoinGroupRequest").to_pylist()
    assert some.column("JoinGroupRequest").to_pylist() == [
        join
        and {
            "member_id": join["member_id"],
            "protocols": [{"name": protocol["name"]} for protocol in join["protocols"]],
        }
        for join in joins
    ]
    commits = whole.column("OffsetCommitRequest").to_pylist()
    assert some.column("OffsetCommitRequest").to_pylist() == [
        commit and {"member_id": commit["member_id"], "topics": commit["topics"]} for commit in commits
    ]
    assert some.column("HeartbeatRequest").type.names == ["member_id"]
    none = decoder(backend, names, columns=["JoinGroupRequest.reason"]).decode(frames)
    assert none.schema.names == [*HEADERS, "JoinGroupRequest", "error", "error_offset"]
    assert none.column("error").equals(whole.column("error"))


def test_unsigned_numbers_and_uuids(backend: str) -> None:
    name = "ConsumerGroupHeartbeatResponse"
    topic = kw.ConsumerGroupHeartbeatResponseTopicPartitions(partitions=[1, 2])
    assigned = kw.ConsumerGroupHeartbeatResponseAssignment(topic_partitions=[topic])
    response = kw.ConsumerGroupHeartbeatResponse(assignment=assigned)
    body = kw.encode_response(response, 0)
    batch = decoder(backend, [name], form="response").decode(pa.array([body]), keys=68, versions=0)
    row = batch.column(name).to_pylist()[0]
    assert row["assignment"]["topic_partitions"] == [{"topic_id": bytes(16), "partitions": [1, 2]}]


@pytest.mark.parametrize(
    ("messages", "options", "error", "said"),
    [
        ("JoinGroupRequest", {}, TypeError, "not the string"),
        (["Nope"], {}, KeyError, "Nope"),
        ([], {}, ValueError, "no message"),
        (["JoinGroupResponse"], {}, TypeError, "JoinGroupResponse is not a request"),
        (["PingRequest"], {}, TypeError, "PingRequest is not a request with Kafka's header"),
        (["ReleaseGroup"], {"form": "message"}, TypeError, "ReleaseGroup is encoded as text"),
        (["JoinGroupRequest"], {"form": "other"}, ValueError, "not 'other'"),
        (["JoinGroupRequest"], {"columns": ["nope"]}, ValueError, "no field 'nope'"),
        (["JoinGroupRequest"], {"columns": ["protocols.nope"]}, ValueError, r"no field 'protocols\.nope'"),
        (["JoinGroupRequest"], {"columns": "group_id"}, TypeError, "not the string 'group_id'"),
        (["JoinGroupRequest", "JoinGroupResponse"], {"form": "message"}, ValueError, "the same key, 11"),
        (["RequestHeader", "JoinGroupRequest"], {"form": "message"}, ValueError, "RequestHeader has no key"),
    ],
)
def test_unsuitable_messages_forms_and_columns_are_refused(
    backend: str, messages: Any, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        decoder(backend, messages, **options)


def test_a_union_has_no_columns(backend: str) -> None:
    registry = compile_schemas(DATA / "parity")
    with pytest.raises(TypeError, match=r"Everything\.either is a union"):
        decoder(backend, ["Everything"], form="message", registry=registry)


# ---- keys and versions


def test_unsuitable_arrays_are_refused(backend: str) -> None:
    requests = decoder(backend, ["JoinGroupRequest"])
    responses = decoder(backend, ["JoinGroupResponse"], form="response")
    frames = pa.array([frame(), frame()])
    for given in ([b"x"], pa.array(["x"]), pa.array([1]), pa.chunked_array([frames]), pa.array([b"xy"], pa.binary(2))):
        with pytest.raises(TypeError, match="frames is an array of binary"):
            requests.decode(given)
    with pytest.raises(TypeError, match="takes no keys"):
        requests.decode(frames, keys=11)
    with pytest.raises(TypeError, match="takes no versions"):
        requests.decode(frames, versions=9)
    with pytest.raises(TypeError, match="needs keys"):
        responses.decode(frames, versions=9)
    with pytest.raises(TypeError, match="needs versions"):
        responses.decode(frames, keys=11)
    with pytest.raises(TypeError, match="keys is an array of integers"):
        responses.decode(frames, keys=pa.array(["a", "b"]), versions=9)
    with pytest.raises(ValueError, match="there are 1 versions for 2 frames"):
        responses.decode(frames, keys=11, versions=pa.array([9]))


def test_rows_of_other_messages_are_null(backend: str) -> None:
    responses = decoder(backend, ["JoinGroupResponse", "HeartbeatResponse"], form="response")
    body = kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=5)
    keys = pa.array([12, None, 12, 999, 12, 2**40, -1])
    versions = pa.array([4, 4, None, 4, 99, 4, 4])
    frames = pa.array([body] * 7)
    batch = responses.decode(frames, keys=keys, versions=versions)
    assert batch.column("correlation_id").to_pylist() == [5] * 7
    assert [row is not None for row in batch.column("HeartbeatResponse").to_pylist()] == [True] + [False] * 6
    assert batch.column("error").to_pylist() == [None] * 4 + ["version"] + [None] * 2
    assert batch.column("error_offset").to_pylist() == [None] * 4 + [0] + [None] * 2
    # Keys and versions that are slices of something longer.
    again = responses.decode(frames[2:], keys=keys[2:], versions=versions[2:])
    assert again.to_pylist() == batch.to_pylist()[2:]


def test_keys_are_optional_for_one_message(backend: str) -> None:
    """A value's record type chooses; without one, the decoder has only one message."""
    made = decoder(backend, ["OffsetCommitValue"], form="prefixed", columns=["offset"])
    value = kw.encode_prefixed(kw.OffsetCommitValue(offset=5), 3)
    frames = pa.array([value] * 9)
    keys = pa.array([1, 1, 1, 1, 1, 0, 2, None, 1], pa.int16())
    found = [row and row["offset"] for row in made.decode(frames, keys=keys).column(1).to_pylist()]
    assert found == [5, 5, 5, 5, 5, None, None, None, 5]
    assert [row["offset"] for row in made.decode(frames).column(1).to_pylist()] == [5] * 9
    header = decoder(backend, ["RequestHeader"], form="message")
    with pytest.raises(TypeError, match="takes no keys"):
        header.decode(frames, keys=1, versions=1)


def test_headers_stay_where_the_message_fails(backend: str) -> None:
    good, unknown = frame(), b"\x03\xe7\0\x01\0\0\0\x07\0\x01c" + b"rest"
    rows = [good[:-1], unknown, good[:3], b"\0\x0b\0\x63" + good[4:], None]
    batch = decoder(backend, ["JoinGroupRequest"]).decode(pa.array(rows, pa.binary()))
    headers = [tuple(row[name] for name in HEADERS) for row in batch.to_pylist()]
    nothing = (None,) * 4
    assert headers == [(11, 9, 1, "client"), (999, 1, 7, "c"), nothing, (11, 99, 1, "client"), nothing]
    assert batch.column("JoinGroupRequest").null_count == 5
    assert batch.column("error").to_pylist() == ["truncated", None, "truncated", "version", None]
    assert batch.column("error_offset").to_pylist() == [len(good) - 1, None, 2, 2, None]


def test_api_versions_answers_in_version_0_where_it_refuses(backend: str) -> None:
    """KIP-511: error 35 in version 0, whatever was asked; and brokers that write it in the version asked for."""
    made = decoder(backend, ["ApiVersionsResponse"], form="response")
    key = kw.ApiVersionsResponseApiVersion(api_key=18, min_version=0, max_version=4)
    refusal = kw.ApiVersionsResponse(error_code=35, api_keys=[key])
    rows = [kw.encode_response(refusal, version, correlation_id=3) for version in (0, 0, 3, 3)]
    rows += [rows[0][:8], rows[2][:9], rows[0] + b"x"]
    batch = made.decode(pa.array(rows), keys=18, versions=pa.array([3, 0, 3, 4, 3, 3, 3]))
    found = batch.column("ApiVersionsResponse").to_pylist()
    assert [row and len(row["api_keys"]) for row in found] == [1, 1, 1, 1, None, None, None]
    for row, body, version in zip(batch.to_pylist(), rows, (3, 0, 3, 4, 3, 3, 3), strict=True):
        law = expected(lambda b=body, v=version: kw.decode_response(b, 18, v)[1])
        assert (row["ApiVersionsResponse"], row["error"], row["error_offset"]) == law


# ---- a row depends on its frame alone


@pytest.mark.parametrize("views", [False, True])
def test_pieces_are_the_pieces_of_the_whole(backend: str, views: bool) -> None:
    frames = pa.array(mixed(1), pa.binary())
    made = decoder(backend, KAFKA["request"], views=views)
    whole = made.decode(frames)
    rng = random.Random(0)
    for _ in range(4):
        cuts = sorted(rng.sample(range(len(frames)), 9))
        pieces = [made.decode(frames[a:b]) for a, b in zip([0, *cuts], [*cuts, len(frames)], strict=True)]
        for piece in pieces:
            piece.validate(full=True)
        joined = pa.concat_batches(pieces)
        assert joined.equals(whole)
    copied = decoder(backend, KAFKA["request"]).decode(frames)
    assert copied.to_pylist() == whole.to_pylist()


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_every_kind_of_binary(backend: str, kind: pa.DataType, views: bool) -> None:
    rows = [*mixed(2)[:600], b"", b"\0\x0c", b"\0\x12\0\0\0\0\0\1\0\0"]
    made = decoder(backend, KAFKA["request"], views=views)
    whole = pa.array([b"before", None, *rows, b"after"], kind)
    batch = made.decode(whole[2:-1])
    batch.validate(full=True)
    assert batch.equals(made.decode(pa.array(rows, pa.binary())))
    assert made.decode(whole[:0]).num_rows == 0
    assert made.decode(pa.array([None, None], kind)).column("error").null_count == 2


def test_empty_batches_and_null_frames_are_decoded(backend: str) -> None:
    for form, given in (("request", {}), ("response", {"keys": 11, "versions": 9}), ("message", {"versions": 9})):
        name = "JoinGroupResponse" if form == "response" else "JoinGroupRequest"
        made = decoder(backend, [name], form=form)
        for frames in (pa.array([], pa.binary()), pa.nulls(3, pa.binary())):
            batch = made.decode(frames, **given)
            batch.validate(full=True)
            assert batch.num_rows == len(frames)
            assert all(column.null_count == len(frames) for column in batch.columns)


def test_one_decoder_serves_many_batches(backend: str) -> None:
    """What a batch leaves behind, of any size and with any fault, is seen by none after it."""
    made = decoder(backend, KAFKA["request"])
    rows = mixed(3)
    rng = random.Random(0)
    for size in (len(rows), 1, 17, 0, 400):
        frames = pa.array(rng.sample(rows, size), pa.binary())
        assert made.decode(frames).equals(decoder(backend, KAFKA["request"]).decode(frames))


# ---- which decoder runs

TELL = "from kcoord_wire.codec.columns import decoder_class; print(decoder_class().__module__)"
ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "kcoord_wire._columns":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
STALE = """
import sys, types
stale = types.ModuleType("kcoord_wire._columns")
stale.PLAN_FORMAT = {"Op": {"BOOL": 0}}
sys.modules["kcoord_wire._columns"] = stale
"""


def run(wanted: str, program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KCOORD_WIRE_BACKEND": wanted}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "before", "expected_decoder"),
    [
        ("python", "", "kcoord_wire.codec.columns.pure"),
        ("python", STALE, "kcoord_wire.codec.columns.pure"),
        ("auto", ABSENT, "kcoord_wire.codec.columns.pure"),
        ("native", ABSENT, "kcoord_wire._columns is not built: make native"),
        ("auto", STALE, "built for another plan format: rebuild it with make native"),
    ],
)
def test_the_environment_chooses_the_decoder(wanted: str, before: str, expected_decoder: str) -> None:
    done = run(wanted, before + TELL)
    assert expected_decoder in (done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1])
    assert (done.returncode == 0) == expected_decoder.startswith("kcoord_wire.codec")


def test_the_native_decoder_has_the_numbers_of_the_plan() -> None:
    numbers = {kind.__name__: {member.name: member.value for member in kind} for kind in (Op, Length, Presence)}
    assert numbers == import_module("kcoord_wire._columns").PLAN_FORMAT
