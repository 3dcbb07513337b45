"""A connection without IO: matched in order, whatever is in the frames and however they are cut."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.schema.files import schema_root

SCHEMAS = schema_root() / "kafka"
UNSUPPORTED_VERSION = 35
BEAT = kw.HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
UNKNOWN = (999).to_bytes(2, "big") + (4).to_bytes(2, "big") + (77).to_bytes(4, "big") + b"\0\x02me" + b"whatever"


def client(**options: Any) -> kw.Connection:
    return kw.Connection("client", client_id="me", **options)


def server(**options: Any) -> kw.Connection:
    return kw.Connection("server", **options)


def one(events: Iterable[kw.Event]) -> Any:
    [event] = events
    return event


def requests(events: Iterable[kw.Event]) -> list[kw.Request]:
    """The events, each of which is a request."""
    found = list(events)
    assert all(isinstance(each, kw.Request) for each in found)
    return cast(list[kw.Request], found)


def responses(events: Iterable[kw.Event]) -> list[kw.Response]:
    """The events, each of which is a response."""
    found = list(events)
    assert all(isinstance(each, kw.Response) for each in found)
    return cast(list[kw.Response], found)


def versions(error_code: int = 0, **ranges: tuple[int, int]) -> kw.ApiVersionsResponse:
    """An ApiVersions response with the first and last version of each api."""
    entry = kw.ApiVersionsResponseApiVersion
    announced = [
        entry(api_key=ApiKey[name], min_version=first, max_version=last) for name, (first, last) in ranges.items()
    ]
    return kw.ApiVersionsResponse(error_code=error_code, api_keys=announced)


def negotiated(here: kw.Connection, **ranges: tuple[int, int]) -> kw.Connection:
    there = server()
    request = one(there.receive_data(here.send(kw.ApiVersionsRequest())))
    one(here.receive_data(there.respond(request, versions(**ranges))))
    return here


def test_a_request_comes_with_its_header_and_is_answered() -> None:
    here, there = client(), server()
    request = one(there.receive_data(here.send(BEAT, 4, context="mine")))
    assert isinstance(request, kw.Request)
    assert (request.header.client_id, request.message, request.error) == ("me", BEAT, None)
    assert (there.pending, str(request)) == ((request,), "Heartbeat v4")
    response = one(here.receive_data(there.respond(request, kw.HeartbeatResponse(error_code=27))))
    assert isinstance(response, kw.Response)
    assert response.message == kw.HeartbeatResponse(error_code=27)
    assert (response.request.message, response.request.context) == (BEAT, "mine")
    assert (here.pending, there.pending) == ((), ())


@pytest.mark.parametrize("first", [1, 0, 2**31 - 1])
def test_correlation_ids_count_up_and_stay_in_an_int32(first: int) -> None:
    here, there = client(correlation_id=first), server()
    ids = [one(there.receive_data(here.send(BEAT, 0))).header.correlation_id for _ in range(3)]
    assert ids == [(first + step) % 2**31 for step in range(3)]


def test_a_client_id_may_be_that_of_one_request() -> None:
    here, there = client(), server()
    sent = here.send(BEAT, 0, client_id="other") + here.send(BEAT, 0, client_id=None) + here.send(BEAT, 0)
    names = [request.header.client_id for request in requests(there.receive_data(sent))]
    assert names == ["other", None, "me"]


def test_responses_leave_in_the_order_of_the_requests() -> None:
    here, there = client(), server()
    sent = b"".join(here.send(BEAT, 4, context=name) for name in "abc")
    a, b, c = requests(there.receive_data(sent))
    assert there.respond(c, kw.HeartbeatResponse(error_code=3)) == b""
    assert there.pending == (a, b)
    due = there.respond(a, kw.HeartbeatResponse(error_code=1))
    due += there.respond(b, kw.HeartbeatResponse(error_code=2))
    answers = responses(here.receive_data(due))
    assert [(each.request.context, each.message.error_code) for each in answers] == [("a", 1), ("b", 2), ("c", 3)]


def test_a_request_is_answered_once() -> None:
    here, there = client(), server()
    first, second = requests(there.receive_data(here.send(BEAT, 4) + here.send(BEAT, 4)))
    there.respond(second, kw.HeartbeatResponse())
    with pytest.raises(kw.ProtocolError) as early:
        there.respond(second, kw.HeartbeatResponse())
    there.respond(first, kw.HeartbeatResponse())
    with pytest.raises(kw.ProtocolError) as late:
        there.respond(first, kw.HeartbeatResponse())
    assert (early.value.kind, late.value.kind) == ("order", "order")


def test_a_request_may_stay_without_a_response() -> None:
    here, there = client(), server()
    first, second = requests(there.receive_data(here.send(BEAT, 4) + here.send(BEAT, 4)))
    assert there.respond(second, kw.HeartbeatResponse()) == b""
    assert kw.peek_response(there.respond(first, None)[4:]).correlation_id == 2


def test_a_response_must_fit_its_request() -> None:
    here, there = client(), server()
    request = one(there.receive_data(here.send(BEAT, 4)))
    for message in (kw.SyncGroupResponse(), BEAT):
        with pytest.raises(TypeError, match="is not the response to Heartbeat v4"):
            there.respond(request, message)
    assert there.pending == (request,)


def test_another_correlation_id_is_reported_with_both_ids() -> None:
    here = client(correlation_id=5)
    here.send(BEAT, 4)
    body = kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=9)
    with pytest.raises(kw.ProtocolError, match="9, 5 is next, of Heartbeat v4") as caught:
        list(here.receive_data(kw.frame(body) + b"rest"))
    error = caught.value
    assert (error.kind, error.expected, error.found, error.body) == ("correlation", 5, 9, body)
    assert (here.closed, here.failure, here.rest) == (True, error, b"rest")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.found, again.path) == (str(error), 9, "Connection")


def test_a_response_that_nothing_asked_for_is_an_error() -> None:
    with pytest.raises(kw.ProtocolError, match="correlation id 9, no request is pending") as caught:
        list(client().receive_data(kw.frame(kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=9))))
    assert (caught.value.expected, caught.value.found) == (None, 9)


def test_produce_with_acks_0_has_no_response() -> None:
    here, there = client(), server()
    sent = here.send(kw.ProduceRequest(acks=0), 9) + here.send(BEAT, 4)
    produce, beat = requests(there.receive_data(sent))
    assert (produce.is_answered, there.pending, len(here.pending)) == (False, (beat,), 1)
    assert isinstance(one(here.receive_data(there.respond(beat, kw.HeartbeatResponse()))), kw.Response)
    between = client()
    between.send_raw(produce.body)
    assert between.pending == ()


def test_a_refused_produce_with_acks_0_has_no_response() -> None:
    body = kw.encode_request(kw.ProduceRequest(acks=0), 9) + b"more"
    there, between = server(), client()
    produce = one(there.receive_data(kw.frame(body)))
    between.send_raw(body)
    assert (produce.error.kind, produce.is_answered, there.pending, between.pending) == ("trailing", False, (), ())


def test_a_registry_of_ones_own_is_used() -> None:
    own = kw.compile_schemas(SCHEMAS / "HeartbeatRequest.json", SCHEMAS / "HeartbeatResponse.json")
    here, there = client(registry=own), server(registry=own)
    beat = own["HeartbeatRequest"].cls(group_id="g")
    request = one(there.receive_data(here.send(beat, 4)))
    assert (request.message, request.header.client_id) == (beat, "me")
    response = one(here.receive_data(there.respond(request, own["HeartbeatResponse"].cls(error_code=27))))
    assert response.message == own["HeartbeatResponse"].cls(error_code=27)
    with pytest.raises(TypeError, match="not a message class of this registry"):
        here.send(BEAT, 4)


def test_the_api_keys_of_ones_own_registry_may_mean_other_things(tmp_path: Path) -> None:
    for api_key in (ApiKey.PRODUCE, ApiKey.API_VERSIONS):
        for kind in ("request", "response"):
            name = f"Ping{api_key.value}{kind.title()}"
            ping = {"apiKey": api_key, "type": kind, "name": name, "validVersions": "0", "flexibleVersions": "none"}
            (tmp_path / f"{name}.json").write_text(json.dumps(ping | {"fields": []}))
    own = kw.compile_schemas(tmp_path)
    here, there = client(registry=own), server(registry=own)
    for api_key in (ApiKey.PRODUCE, ApiKey.API_VERSIONS):
        request = one(there.receive_data(here.send(own[f"Ping{api_key.value}Request"].cls(), 0)))
        answer = own[f"Ping{api_key.value}Response"].cls()
        assert one(here.receive_data(there.respond(request, answer))).message == answer
    assert here.versions is None


def api_keys(**types: str) -> list[dict[str, Any]]:
    """The field of an ApiVersionsResponse whose elements have fields of these types."""
    fields = [{"name": name, "type": type_, "versions": "0+"} for name, type_ in types.items()]
    return [{"name": "ApiKeys", "type": "[]ApiVersion", "fields": fields}]


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ([], b""),
        ([{"name": "ApiKeys", "type": "[]int16"}], b"\0\0\0\1\0\5"),
        ([{"name": "ApiKeys", "type": "string", "nullableVersions": "0+", "default": "null"}], b"\xff\xff"),
        ([{"name": "ApiKeys", "type": "int32"}], b"\0\0\0\1"),
        (api_keys(ApiKey="string", MinVersion="int16", MaxVersion="int16"), b"\0\0\0\1\0\1k\0\0\0\1"),
        (api_keys(ApiKey="int16", MinVersion="int16", MaxVersion="float64"), b"\0\0\0\1\0\3\0\0" + bytes(8)),
        (api_keys(ApiKey="int16", MinVersion="int16"), b"\0\0\0\1\0\3\0\0"),
    ],
)
def test_no_versions_are_read_from_other_fields(tmp_path: Path, fields: list[dict[str, Any]], body: bytes) -> None:
    answer = [{"name": "ErrorCode", "type": "int16"}, *fields]
    for kind, has in (("Request", []), ("Response", answer)):
        schema = {"type": kind.lower(), "apiKey": 18, "validVersions": "0", "flexibleVersions": "none"}
        schema |= {"name": f"ApiVersions{kind}", "fields": [field | {"versions": "0+"} for field in has]}
        (tmp_path / f"{kind}.json").write_text(json.dumps(schema))
    own = kw.compile_schemas(tmp_path)
    here = client(registry=own)
    here.send(own["ApiVersionsRequest"].cls(), 0)
    response = one(here.receive_data(kw.frame(b"\0\0\0\1\0\0" + body)))
    assert (response.error, here.versions, here.failure) == (None, None, None)


def test_the_versions_are_read_by_the_files_of_kafka_2_3(tmp_path: Path) -> None:
    for file in ("ApiVersionsRequest.json", "ApiVersionsResponse.json"):
        text = (SCHEMAS / file).read_text()
        (tmp_path / file).write_text(text.replace('"ApiKey"', '"Index"'))
    own = kw.compile_schemas(tmp_path)
    here, there = client(registry=own), server()
    request = one(there.receive_data(here.send(own["ApiVersionsRequest"].cls(), 2)))
    here.receive_data(there.respond(request, versions(HEARTBEAT=(0, 4)))).__next__()
    assert here.versions == {ApiKey.HEARTBEAT: range(5)}


def test_no_iterator_goes_on_after_a_failure() -> None:
    here = client()
    here.send(BEAT, 4)
    answer, other = (kw.frame(kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=n)) for n in (1, 2))
    first = here.receive_data(other)
    second = here.receive_data(answer)
    with pytest.raises(kw.ProtocolError):
        next(first)
    assert (list(second), here.rest, len(here.pending)) == ([], answer, 1)


def test_an_unknown_api_is_matched_and_passed_on() -> None:
    front, back = server(), client(correlation_id=1000)
    request = one(front.receive_data(kw.frame(UNKNOWN)))
    assert (request.message, request.error.kind, request.api_key, request.version) == (None, "api", 999, 4)
    assert (request.header.client_id, request.body) == ("me", UNKNOWN)
    sent = back.send_raw(request.body, client_id="renamed", context=request)
    assert sent[4:] == UNKNOWN[:4] + (1000).to_bytes(4, "big") + b"\0\x07renamed" + b"whatever"
    response = one(back.receive_data(kw.frame((1000).to_bytes(4, "big") + b"answer")))
    assert (response.message, response.error.kind, response.request.context) == (None, "api", request)
    assert front.respond_raw(response.request.context, response.body) == kw.frame((77).to_bytes(4, "big") + b"answer")


@pytest.mark.parametrize("body", [UNKNOWN, UNKNOWN[:8] + b"\xff\xff" + b"rest", UNKNOWN[:8] + b"\0\x02\xff\xferest"])
def test_what_is_sent_raw_keeps_every_byte_but_the_id(body: bytes) -> None:
    assert client().send_raw(body) == kw.frame(body[:4] + (1).to_bytes(4, "big") + body[8:])


def test_the_only_request_without_a_client_id_gets_none() -> None:
    body = (7).to_bytes(2, "big") + bytes(2) + (5).to_bytes(4, "big") + b"\0\0\0\x09"
    assert client().send_raw(body, client_id="me") == kw.frame(body[:4] + (1).to_bytes(4, "big") + body[8:])


def test_a_damaged_message_is_an_event_and_the_rest_follows() -> None:
    here, there = client(), server()
    good = here.send(BEAT, 4)
    damaged = kw.frame(kw.encode_request(BEAT, 4, correlation_id=2)[:-3])
    first, second, third = requests(there.receive_data(good + damaged + kw.frame(UNKNOWN)))
    assert second.error is not None
    assert (second.error.kind, second.message) == ("truncated", None)
    assert (second.header.correlation_id, third.api_key) == (2, 999)
    assert there.pending == (first, second, third)
    response = kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=1)
    answer = one(here.receive_data(kw.frame(response + b"more")))
    assert (answer.message, answer.error.kind, answer.body) == (None, "trailing", response + b"more")
    assert not here.closed


def test_a_damaged_header_keeps_what_could_be_read() -> None:
    request = one(server().receive_data(kw.frame(UNKNOWN[:8] + b"\x7f\xffshort")))
    assert (request.header.correlation_id, request.header.client_id, request.error.kind) == (77, None, "truncated")


@pytest.mark.parametrize("make", [client, server])
def test_a_frame_without_a_header_is_opaque(make: Any) -> None:
    connection = make()
    short = one(connection.receive_data(kw.frame(b"\0\x01")))
    assert isinstance(short, kw.Opaque)
    assert (short.body, short.error and short.error.kind, connection.closed) == (b"\0\x01", "truncated", False)
    connection.expects_tokens = True
    token = one(connection.receive_data(kw.frame(b"\0user\0password")))
    assert isinstance(token, kw.Opaque)
    assert (token.body, token.error, connection.pending) == (b"\0user\0password", None, ())


def test_a_size_that_cannot_be_one_ends_the_connection() -> None:
    here, there = client(), server(max_frame_size=100)
    stream = there.receive_data(here.send(BEAT, 4) + b"GET / HTTP/1.1\r\n")
    assert isinstance(next(stream), kw.Request)
    with pytest.raises(kw.DecodeError, match="above the limit of 100") as caught:
        next(stream)
    assert (there.failure, list(there.events())) == (caught.value, [])
    with pytest.raises(kw.ProtocolError, match=r"nothing can come any more: .* above") as after:
        there.receive_data(b"x")
    with pytest.raises(kw.ProtocolError, match="nothing can be answered any more"):
        there.respond(there.pending[0], kw.HeartbeatResponse())
    assert after.value.kind == "closed"


def test_the_end_of_the_stream_is_the_last_event() -> None:
    here, there = client(), server()
    there.receive_data(here.send(BEAT, 4))
    request, end = there.receive_data(b"")
    assert isinstance(request, kw.Request)
    assert end == kw.Closed()
    assert (there.closed, there.failure, list(there.events())) == (True, None, [])
    assert isinstance(one(here.receive_data(there.respond(request, kw.HeartbeatResponse()))), kw.Response)
    assert one(here.receive_data(b"")) == kw.Closed()
    for call in (lambda: here.receive_data(b""), lambda: here.send(BEAT, 4)):
        with pytest.raises(kw.ProtocolError, match="the peer has ended its stream"):
            call()


def test_an_end_within_a_frame_is_an_error() -> None:
    here, there = client(), server()
    list(there.receive_data(here.send(BEAT, 4)[:-1]))
    with pytest.raises(kw.DecodeError) as caught:
        list(there.receive_data(b""))
    assert (caught.value.kind, there.failure) == ("truncated", caught.value)


def test_events_that_are_not_taken_come_first_later() -> None:
    here, there = client(), server()
    first = next(there.receive_data(b"".join(here.send(BEAT, 4) for _ in range(3))))
    taken = requests([first, *there.events()])
    assert [each.header.correlation_id for each in taken] == [1, 2, 3]


def test_a_server_takes_no_more_than_it_may_have_unanswered() -> None:
    here, there = client(), server(max_pending=2)
    seen = requests(there.receive_data(b"".join(here.send(BEAT, 4) for _ in range(3))))
    assert (len(seen), there.paused) == (2, True)
    assert list(there.receive_data(b"")) == [], "the end waits, too"
    there.respond(seen[0], kw.HeartbeatResponse())
    assert (len(requests(there.events())), there.paused) == (1, True)
    there.respond(there.pending[0], kw.HeartbeatResponse())
    assert list(there.events()) == [kw.Closed()]


def test_a_failure_behind_a_pause_is_the_last_thing_raised() -> None:
    here, there = client(), server(max_pending=1)
    [request] = requests(there.receive_data(here.send(BEAT, 4) + b"GET / HTTP/1.1"))
    assert list(there.receive_data(b"")) == []
    there.respond(request, None)
    with pytest.raises(kw.DecodeError, match="above the limit"):
        list(there.events())
    assert list(there.events()) == []


def test_a_client_sends_no_more_than_may_be_pending() -> None:
    here = client(max_pending=2)
    here.send(BEAT, 4), here.send(BEAT, 4)
    with pytest.raises(kw.ProtocolError, match="2 requests wait") as caught:
        here.send(BEAT, 4)
    assert (caught.value.kind, len(here.pending)) == ("pending", 2)
    with pytest.raises(ValueError, match="max_pending"):
        client(max_pending=0)


def test_only_the_named_apis_are_decoded() -> None:
    here, there = client(decode=[]), server(decode=[ApiKey.SYNC_GROUP])
    request = one(there.receive_data(here.send(BEAT, 4)))
    assert (request.message, request.error, request.header.client_id) == (None, None, "me")
    response = one(here.receive_data(there.respond(request, kw.HeartbeatResponse())))
    assert (response.message, response.error, response.header.correlation_id) == (None, None, 1)
    assert one(there.receive_data(here.send(kw.SyncGroupRequest(), 5))).message == kw.SyncGroupRequest()
    assert one(there.receive_data(here.send(kw.ProduceRequest(acks=0), 9))).is_answered is False


def test_the_newest_common_version_is_sent() -> None:
    here = negotiated(client(), HEARTBEAT=(0, 2), JOIN_GROUP=(0, 99), API_VERSIONS=(0, 3))
    assert here.versions == {ApiKey.HEARTBEAT: range(3), ApiKey.JOIN_GROUP: range(100), ApiKey.API_VERSIONS: range(4)}
    assert one(server().receive_data(here.send(BEAT))).version == 2
    assert here.version_of(kw.JoinGroupRequest) == kw.registry["JoinGroupRequest"].valid_versions[-1]
    assert here.version_of(ApiKey.HEARTBEAT, newest=1) == 1
    with pytest.raises(kw.ProtocolError, match="no version of SyncGroup, we have 0 to 5") as missing:
        here.send(kw.SyncGroupRequest())
    assert missing.value.kind == "version"
    with pytest.raises(
        kw.ProtocolError, match="not known yet: send an ApiVersionsRequest first, or say which of Heart"
    ):
        client().send(BEAT)


@pytest.mark.parametrize(("offered", "then"), [({"API_VERSIONS": (0, 2)}, 2), ({}, 0)], ids=["since 2.4", "before"])
def test_api_versions_falls_back_to_what_the_broker_offers(offered: dict[str, tuple[int, int]], then: int) -> None:
    here, there = client(), server(serves={ApiKey.API_VERSIONS: range(then + 1)})
    asked = kw.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    request = one(there.receive_data(here.send(asked)))
    assert (request.version, request.error.kind) == (kw.registry["ApiVersionsRequest"].valid_versions[-1], "version")
    refused = one(here.receive_data(there.respond(request, versions(UNSUPPORTED_VERSION, **offered))))
    assert refused.message.error_code == UNSUPPORTED_VERSION
    request = one(there.receive_data(here.send(asked)))
    assert (request.version, request.error) == (then, None)
    one(here.receive_data(there.respond(request, versions(API_VERSIONS=(0, then), HEARTBEAT=(0, 4)))))
    assert here.version_of(kw.HeartbeatRequest) == 4


def test_each_side_refuses_the_calls_of_the_other() -> None:
    request = one(server().receive_data(client().send(BEAT, 4)))
    with pytest.raises(TypeError, match="only a server"):
        client().respond(request, kw.HeartbeatResponse())
    with pytest.raises(TypeError, match="only a client"):
        server().send(BEAT, 4)
    with pytest.raises(TypeError, match="not a request of family kafka"):
        client().send(kw.HeartbeatResponse(), 4)


def test_a_connection_says_what_it_is() -> None:
    with pytest.raises(ValueError, match="client or server, not 'clinet'"):
        kw.Connection("clinet")  # type: ignore[arg-type]  # what callers without a type checker pass
    here = client()
    here.send(BEAT, 4)
    assert repr(here) == "<Connection client, open, 1 pending>"
    assert [type(event) for event in here.receive_data(b"")] == [kw.Closed]
    assert repr(here) == "<Connection client, closed, 1 pending>"
    there = server()
    with pytest.raises(kw.DecodeError):
        list(there.receive_data(b"\xff" * 4))
    assert repr(there).startswith("<Connection server, failed: ")


def test_apis_to_decode_are_classes_or_keys() -> None:
    for api in (kw.HeartbeatRequest, 12):
        there = kw.Connection("server", decode=[api])
        assert one(there.receive_data(client().send(BEAT, 4))).message == BEAT
    with pytest.raises(TypeError, match="'Heartbeat' is not a message class"):
        kw.Connection("server", decode=["Heartbeat"])  # type: ignore[list-item]  # likewise


def test_what_cannot_be_sent_changes_nothing() -> None:
    here = client()
    with pytest.raises(kw.EncodeError):
        here.send(kw.HeartbeatRequest(group_id=None), 4)
    with pytest.raises(kw.EncodeError):
        here.send_raw(UNKNOWN, client_id="x" * 40_000)
    assert here.pending == ()
    assert kw.peek_request(here.send(BEAT, 4)[4:]).correlation_id == 1


STEPS = st.lists(st.tuples(st.sampled_from(["send", "up", "respond", "down"]), st.integers(0, 120)), max_size=60)
DRAIN = [("up", 1 << 20), ("respond", 0), ("down", 1 << 20)] * 60  # whatever is under way arrives


@given(STEPS, st.integers(1, 4))
def test_two_connections_understand_each_other(steps: list[tuple[str, int]], most: int) -> None:
    """Requests are pipelined, bytes arrive in pieces, responses are given in any order; both sides stay in step."""
    here, there = client(correlation_id=2**31 - 3), server(max_pending=most)
    up = down = b""
    sent = 0
    answered: list[kw.Response] = []
    opened: list[kw.Request] = []
    for step, number in [*steps, *DRAIN]:
        if step == "send":
            up += here.send(BEAT, number % 5, context=sent)
            sent += 1
        elif step == "up" and number and not there.paused:
            opened += requests(there.receive_data(up[:number])) if up else []
            up = up[number:]
        elif step == "respond" and opened:
            request = opened.pop(number % len(opened))
            assert request.message == BEAT
            # The error says which request this response is to.
            down += there.respond(request, kw.HeartbeatResponse(error_code=request.header.correlation_id % 100))
            opened += requests(there.events())
        elif step == "down" and number:
            answered += responses(here.receive_data(down[:number])) if down else []
            down = down[number:]
        assert len(there.pending) <= most
    expected = [(number, (2**31 - 3 + number) % 2**31 % 100) for number in range(sent)]
    assert [(each.request.context, each.message.error_code) for each in answered] == expected
    assert (here.pending, there.pending, here.closed) == ((), (), False)


def test_a_fault_in_reading_the_versions_is_not_hidden() -> None:
    class Odd:
        @property
        def api_keys(self) -> Any:
            raise TypeError("a fault")

    with pytest.raises(TypeError, match="a fault"):
        client()._learn(Odd())
