"""The control port: every operation on a real coordinator, who may use it, and what a client may cost."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import jsonschema
import pytest

import kcoord_wire as kw
from kcoord_wire.control import ControlServer, server
from kcoord_wire.control.operations import openapi
from kcoord_wire.control.server import TOKEN_VARIABLE, live_page, live_policy
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.kernel.http_server import MOST_CONNECTIONS
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.control_client import ask, events
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import become_stable, commit
from tests.support.waiting import eventually
from tests.support.wire import Wire


@pytest.fixture
def c(coordinator: StartCoordinator) -> Coordinator:
    return coordinator()


@pytest.fixture
def control(c: Coordinator) -> Iterator[ControlServer]:
    with ControlServer(c) as server:
        yield server


def checked(control: ControlServer, method: str, path: str, body: Any = None, template: str | None = None) -> Any:
    """The result of an operation, which must be as the description says."""
    status, answer = ask(control, method, path, body)
    description = openapi(control.url)
    described = description["paths"][template or path.partition("?")[0]][method.lower()]["responses"][str(status)]
    schema = described.get("content", {}).get("application/json", {}).get("schema")
    assert (schema is None) == (answer is None)
    if schema is not None:
        schema = {**schema, "components": description["components"]}
        jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
    assert status < 400, answer
    return answer


def test_groups_and_rebalances(c: Coordinator, control: ControlServer) -> None:
    with Wire(c.address) as wire:
        heartbeat = become_stable(wire, "a/b c")
        [group] = checked(control, "GET", "/groups")
        assert (group["group_id"], group["state"], group["is_settled"]) == ("a/b c", "Stable", True)
        path = "/groups/a%2Fb%20c"
        assert checked(control, "GET", path, template="/groups/{group}") == group
        group = checked(control, "POST", f"{path}/rebalance", {"reason": "why"}, "/groups/{group}/rebalance")
        assert group["rebalance"]["reason"] == "why"
        assert wire.call(heartbeat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        become_stable(wire, "other")
    assert [each["group_id"] for each in checked(control, "GET", "/rebalances")] == ["a/b c", "other"]
    assert [each["group_id"] for each in checked(control, "GET", "/rebalances?group=other")] == ["other"]


def test_waits(c: Coordinator, control: ControlServer) -> None:
    path = "/groups/billing/wait-until-stable"
    assert ask(control, "POST", path, {"timeout_ms": 10})[0] == 504
    assert "there is no such group" in ask(control, "POST", path, {"timeout_ms": 10})[1]["error"]
    with Wire(c.address) as wire:
        become_stable(wire, "billing")
        group = checked(control, "POST", path, {"members": 1}, "/groups/{group}/wait-until-stable")
        assert len(group["members"]) == 1
        assert commit(wire, "offsets", 7) == 0
    wanted = {"topic": "orders", "partition": 0, "offset": 6}
    group = checked(control, "POST", "/groups/offsets/wait-for-commit", wanted, "/groups/{group}/wait-for-commit")
    assert group["offsets"] == {"orders": {"0": 7}}


def test_faults(c: Coordinator, control: ControlServer) -> None:
    rule = {"action": "error", "api": "Heartbeat", "error": "REBALANCE_IN_PROGRESS", "count": 1}
    first = checked(control, "POST", "/faults", rule)
    second = checked(control, "POST", "/faults", {"action": "drop", "api": "Heartbeat", "after": 9})
    with Wire(c.address) as wire:
        heartbeat = become_stable(wire, "billing")
        assert [wire.call(heartbeat, 4).error_code for _ in range(2)] == [ErrorCode.REBALANCE_IN_PROGRESS, 0]
    assert [each["hits"] for each in checked(control, "GET", "/faults")] == [1, 0]
    checked(control, "DELETE", f"/faults/{first['number']}", template="/faults/{number}")
    assert [each["number"] for each in checked(control, "GET", "/faults")] == [second["number"]]
    checked(control, "DELETE", "/faults")
    assert checked(control, "GET", "/faults") == []
    for path in (f"/faults/{second['number']}", "/faults/x", "/faults/99999999999999999999"):
        assert ask(control, "DELETE", path)[0] == 404
    assert ask(control, "POST", "/faults", {"action": "explode"})[0] == 400
    assert ask(control, "POST", "/faults", {"action": "drop", "versions": [1]})[0] == 400


def test_topics(c: Coordinator, control: ControlServer) -> None:
    assert checked(control, "POST", "/topics", {"name": "payments", "partitions": 3})["partitions"] == 3
    grown = checked(control, "POST", "/topics/payments/partitions", {"count": 2}, "/topics/{topic}/partitions")
    assert grown == {"name": "payments", "partitions": 5}
    assert {"name": "orders", "partitions": 12} in checked(control, "GET", "/topics")
    assert ask(control, "POST", "/topics", {"name": "payments", "partitions": 3})[0] == 400
    checked(control, "DELETE", "/topics/payments", template="/topics/{topic}")
    for method, path, body in (("DELETE", "/topics/payments", None), ("POST", "/topics/x/partitions", {"count": 1})):
        assert ask(control, method, path, body)[0] == 404


def test_lags_and_partitions(c: Coordinator, control: ControlServer) -> None:
    with Wire(c.address) as wire:
        assert commit(wire, "billing", 0) == 0
    topic = checked(control, "GET", "/lags")[-1]
    assert (topic["name"], topic["partitions"], topic["records"]) == ("orders", 12, 0)
    assert topic["groups"] == [{"group_id": "billing", "partitions": 1, "lag": 0}]
    first, *others = checked(control, "GET", "/topics/orders/partitions", template="/topics/{topic}/partitions")
    assert first["committed"] == {"billing": 0}
    assert [each["committed"] for each in others] == [{}] * 11
    assert ask(control, "GET", "/topics/missing/partitions")[0] == 404


def test_transactions(c: Coordinator, control: ControlServer) -> None:
    assert checked(control, "GET", "/transactions") == []
    with Wire(c.address) as wire:
        producer = wire.call(kw.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), 2)
    [found] = checked(control, "GET", "/transactions")
    assert (found["transactional_id"], found["state"], found["started_at"]) == ("t", "Empty", None)
    assert found["producer_id"] == producer.producer_id


def test_brokers(coordinator: StartCoordinator) -> None:
    with ControlServer(coordinator(brokers=3, node_id=7)) as control:

        def steer(what: str, node: int) -> list[str]:
            answer = checked(control, "POST", f"/brokers/{node}/{what}", template=f"/brokers/{{node}}/{what}")
            return [broker["state"] for broker in answer]

        path, template = "/groups/billing/coordinator", "/groups/{group}/coordinator"
        first = checked(control, "GET", path, template=template)["node"]
        assert checked(control, "POST", path, {"to": 7 + (first - 6) % 3}, template)["node"] == 7 + (first - 6) % 3
        assert steer("stop", 8) == ["running", "stopped", "running"]
        assert steer("pause", 9) == ["running", "stopped", "paused"]
        assert steer("resume", 9) == ["running", "stopped", "running"]
        assert steer("restart", 8) == ["running"] * 3
        assert [broker["node"] for broker in checked(control, "GET", "/brokers")] == [7, 8, 9]
        assert first in (7, 8, 9)
        for node in ("0", "10", "x", "-1", "9" * 5000):
            assert ask(control, "POST", f"/brokers/{node}/stop")[0] == 404
        assert ask(control, "POST", path, {"to": 3})[0] == 400
        for failover_ms in (-1, 600_001, 10**400):
            assert ask(control, "POST", "/brokers/8/pause", {"failover_ms": failover_ms})[0] == 400


def test_the_coordinator_is_stopped(c: Coordinator, control: ControlServer) -> None:
    status, answer = ask(control, "POST", "/stop")
    assert (status, answer) == (204, None)
    c.wait()
    status, answer = ask(control, "GET", "/groups")
    assert (status, answer) == (503, {"error": "the coordinator is not running"})


def test_events_are_sent_when_something_changes(c: Coordinator, control: ControlServer) -> None:
    with Wire(c.address) as wire, closing(events(control)) as stream:
        assert next(stream)["groups"] == []
        become_stable(wire, "billing")
        shown = next(each for each in stream if each["rebalances"])
        assert [group["group_id"] for group in shown["groups"]] == ["billing"]
        become_stable(wire, "other")
        shown = next(each for each in stream if each["rebalances"])
        assert [group["group_id"] for group in shown["groups"]] == ["other"], "the first has not changed"
        assert not shown["is_first"]
        c.stop()
        assert list(stream)[1:] == [], "the stream ends with the coordinator"


def test_streams_end_with_the_server(c: Coordinator) -> None:
    before = threading.active_count()
    with ControlServer(c) as control:
        stream = events(control)
        next(stream)
    assert list(stream) == []
    eventually(lambda: threading.active_count() == before)


# ---- the report, which tests/interop/test_live_page.py reads


def analyze_as(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(server, "ANALYZE", (sys.executable, "-c", program))


def test_why_there_is_no_report_is_said(control: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    analyze_as(monkeypatch, "import sys; sys.exit('first\\nno group is in ' + sys.argv[1])")
    assert ask(control, "GET", "/report") == (503, {"error": "no group is in what was kept"})
    analyze_as(monkeypatch, "")  # it writes none
    assert "report.html" in ask(control, "GET", "/report")[1]["error"]


def test_one_report_is_made_at_a_time(c: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    analyze_as(monkeypatch, "import time; time.sleep(600)")
    with ControlServer(c) as control:
        threading.Thread(target=lambda: suppressed(ask, control, "GET", "/report")).start()
        eventually(control._server._reporting.locked)
        assert ask(control, "GET", "/report") == (503, {"error": "a report is being made already"})
    eventually(lambda: threading.active_count() == before, "it ends with the server")


def suppressed(call: Callable[..., object], *arguments: object) -> None:
    with suppress(OSError, http.client.HTTPException):
        call(*arguments)


# ---- who may use it


@pytest.mark.parametrize("authorization", ["", "Bearer ", "Bearer wrong", "Basic {}", "Bearer {}!", "Bearer é", "{}*"])
def test_nothing_without_the_token(control: ControlServer, authorization: str) -> None:
    whole = authorization == "{}*"  # without the word Bearer
    headers = {"Authorization": control.token if whole else authorization.format(control.token[:-1])}
    for method, path in (("GET", "/groups"), ("POST", "/stop"), ("GET", "/events"), ("GET", "/nothing")):
        status, answer = ask(control, method, path, headers=headers)
        assert (status, answer) == (401, {"error": "the header Authorization must be: Bearer TOKEN"})
    assert ask(control, "GET", "/openapi.json", headers=headers)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1", "127.0.0.1:1", "localhost:{}.evil"])
def test_the_host_header_must_be_its_own(control: ControlServer, host: str) -> None:
    """Against DNS rebinding: a browser sends the name of the page's site."""
    for path in ("/groups", "/openapi.json", "/"):
        assert ask(control, "GET", path, headers={"Host": host.format(control.port)})[0] == 403
    assert ask(control, "GET", "/groups", headers={"Host": f"localhost:{control.port}"})[0] == 200


def test_the_token_is_chosen(c: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    with ControlServer(c) as first, ControlServer(c) as second:
        assert first.token != second.token
        assert len(first.token) >= 32
    monkeypatch.setenv(TOKEN_VARIABLE, "from-the-environment")
    with ControlServer(c) as control:
        assert control.token == "from-the-environment"
    for token in ("short", "x" * 15, "a token with spaces", "with\nnewline-in-it", "ünïcödé-ünïcödé-ünï"):
        with pytest.raises(ValueError, match="a token has at least 16 characters"):
            ControlServer(c, token=token)


def test_it_listens_on_the_loopback_alone(coordinator: StartCoordinator) -> None:
    everywhere = coordinator(host="0.0.0.0")
    with ControlServer(everywhere) as control:
        assert control.url == f"http://127.0.0.1:{control.port}"
        with pytest.raises(OSError, match=f"control port {control.port}: .* in use"):
            ControlServer(everywhere, control.port)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", control.port), 60)


# ---- what a client may send


def raw(control: ControlServer, data: bytes) -> bytes:
    """What is answered to these bytes until the connection is closed."""
    with socket.create_connection(("127.0.0.1", control.port), 60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def head(control: ControlServer, line: str, *headers: str) -> bytes:
    lines = [line, f"Host: 127.0.0.1:{control.port}", f"Authorization: Bearer {control.token}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize(
    ("line", "headers", "body", "status"),
    [
        ("POST /topics HTTP/1.1", ["Content-Length: 65537"], b"", 413),
        ("POST /topics HTTP/1.1", [f"Content-Length: {'9' * 5000}"], b"", 413),
        ("POST /topics HTTP/1.1", ["Content-Length: -1"], b"", 400),
        ("POST /topics HTTP/1.1", ["Content-Length: ²"], b"", 400),
        ("POST /topics HTTP/1.1", ["Transfer-Encoding: chunked"], b"5\r\nhello\r\n0\r\n\r\n", 400),
        ("POST /topics HTTP/1.1", ["Content-Length: 2", "Content-Type: text/plain"], b"{}", 400),
        ("POST /topics HTTP/1.1", ["Content-Length: 2", "Content-Type: application/json"], b"{]", 400),
        ("POST /topics HTTP/1.1", ["Content-Length: 60000", "Content-Type: application/json"], b"[" * 60000, 400),
        ("POST /topics HTTP/1.1", ["Content-Length: 2", "Content-Type: application/json"], b"\xff\xff", 400),
        ("PUT /topics HTTP/1.1", [], b"", 501),
        ("PATCH / HTTP/1.1", [], b"", 501),
        ("POST /groups HTTP/1.1", [], b"", 405),
        ("DELETE /rebalances HTTP/1.1", [], b"", 405),
        ("GET /nothing HTTP/1.1", [], b"", 404),
        ("GET /groups/missing HTTP/1.1", [], b"", 404),
        ("GET /groups?x=1 HTTP/1.1", [], b"", 400),
        ("GET /rebalances?" + "&".join(["group=g"] * 50) + " HTTP/1.1", [], b"", 400),
        ("GET /groups HTTP/1.1", ["Host: evil.example"], b"", 400),
        ("GET /groups HTTP/1.1", ["Authorization: Bearer " + "x" * 20], b"", 400),
        ("GET /" + "x" * 70000 + " HTTP/1.1", [], b"", 414),
        ("GET /groups HTTP/1.1", [f"X-{number}: 1" for number in range(200)], b"", 431),
        ("GET http://evil.example/groups HTTP/1.1", [], b"", 400),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused(
    control: ControlServer, line: str, headers: list[str], body: bytes, status: int
) -> None:
    answer = raw(control, head(control, line, *headers) + body)
    first, _, rest = answer.partition(b"\r\n")
    assert first.split(b" ")[1:2] == [str(status).encode()], answer[:200]
    assert b"Connection: close" in rest
    assert list(json.loads(rest.partition(b"\r\n\r\n")[2])) == ["error"]
    assert ask(control, "GET", "/groups") == (200, [])


def test_bytes_that_are_not_http_are_refused(control: ControlServer) -> None:
    for data in (b"nonsense\r\n\r\n", b"\x16\x03\x01\x00\xff" * 100, b"\0" * 70_000, b"\r\n" * 100, b""):
        assert not raw(control, data).startswith(b"HTTP/1.1 200")
    assert ask(control, "GET", "/groups") == (200, [])


def test_a_connection_is_used_again(control: ControlServer) -> None:
    request = head(control, "GET /topics HTTP/1.1")
    assert raw(control, request * 3).count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX: ", b"GET /groups HTTP/1.1\r\nHost: {}\r\n\r\n"])
def test_clients_without_the_token_keep_nobody_out(control: ControlServer, sent: bytes) -> None:
    """They send nothing, half a request, or one without the token; none of them is ever told that there is no place."""
    sent = sent.replace(b"{}", f"127.0.0.1:{control.port}".encode())
    with ExitStack() as held:
        kept = held.enter_context(socket.create_connection(("127.0.0.1", control.port), 60))
        kept.sendall(head(control, "GET /topics HTTP/1.1"))
        assert kept.recv(65536).startswith(b"HTTP/1.1 200 OK")
        for _ in range(200):
            held.enter_context(socket.create_connection(("127.0.0.1", control.port), 60)).sendall(sent)
        for _ in range(5):
            assert ask(control, "GET", "/groups") == (200, [])
        assert len(control._server.peers) <= MOST_CONNECTIONS
        kept.sendall(head(control, "GET /topics HTTP/1.1"))
        assert kept.recv(65536).startswith(b"HTTP/1.1 200 OK"), "who has shown the token goes last"


def test_requests_in_progress_are_bounded(c: Coordinator, control: ControlServer) -> None:
    wait = b'{"timeout_ms": 600000}'
    line, fields = "POST /groups/g/wait-until-stable HTTP/1.1", ("Content-Type: application/json", "Content-Length: 22")
    request = head(control, line, *fields) + wait
    with ExitStack() as held:
        for _ in range(MOST_CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", control.port), 60)).sendall(request)
        eventually(lambda: len(control._server._at_work) == MOST_CONNECTIONS)
        assert raw(control, head(control, "GET /groups HTTP/1.1")).startswith(b"HTTP/1.1 503 ")
        c.stop()
        eventually(lambda: not control._server._at_work)


def test_a_body_is_no_request(control: ControlServer) -> None:
    inner = head(control, "GET /topics HTTP/1.1")
    for path in ("/", "/openapi.json", "/groups"):
        length = f"Content-Length: {len(inner)}"
        answers = raw(control, head(control, f"GET {path} HTTP/1.1", length) + inner)
        assert answers.count(b"HTTP/1.1 ") == 1
    assert raw(control, head(control, "POST /stop HTTP/1.1", "Content-Length: 0", f"{length}") + inner)[9:12] == b"400"
    assert ask(control, "GET", "/groups") == (200, [])


@pytest.mark.parametrize("path", ["/", "/openapi.json", "/groups", "/nothing"])
def test_pages_of_other_sites_may_not_ask(control: ControlServer, path: str) -> None:
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{control.port}", "http://127.0.0.1:1"):
        status, answer = ask(control, "GET", path, headers={"Origin": origin})
        assert status == 403
        assert "Origin must name this server" in answer["error"]
    answer = raw(control, head(control, f"GET {path} HTTP/1.1", f"Origin: {control.url}"))
    assert not answer.startswith(b"HTTP/1.1 403")


def test_no_other_site_may_read_or_embed_it(control: ControlServer) -> None:
    for path in ("/", "/openapi.json", "/groups"):
        for origin in ([], ["Origin: http://evil.example"]):
            answer = raw(control, head(control, f"GET {path} HTTP/1.1", *origin)).decode()
            headers = answer.partition("\r\n\r\n")[0]
            assert "Access-Control" not in headers
            assert "Content-Security-Policy: default-src 'none'" in headers
            assert "X-Content-Type-Options: nosniff" in headers
            assert "Cache-Control: no-store" in headers


def test_the_policy_allows_what_is_in_the_page_alone() -> None:
    page, policy = live_page().decode(), live_policy()
    for tag in ("style", "script"):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_names_no_other_site() -> None:
    page = live_page().decode()
    assert set(re.findall(r"https?://[\w.]+", page)) <= {"http://www.w3.org"}, "a namespace of SVG"
    assert "innerHTML" not in page
    assert "{{" not in page.replace("${{", "")
