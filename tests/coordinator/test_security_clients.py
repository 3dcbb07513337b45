"""A coordinator with TLS, SASL and permissions on a real socket: unmodified clients get in or are told why not, and
what no client sends ends its connection."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

import kcoord_wire as kw
from kcoord_wire.consumer import Consumer, ConsumerSettings
from kcoord_wire.consumer.connection import BrokerConnection, ConnectionSettings
from kcoord_wire.consumer.errors import BrokerError
from kcoord_wire.consumer.settings import tls_context
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.core.apis import Operation
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.security.authentication import FAILURE_DELAY_MS, MAX_TOKEN_BYTES, Credential, Users
from kcoord_wire.coordinator.security.permissions import ANONYMOUS, Permissions, Rule
from kcoord_wire.kernel.net import parse_address
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support import secured_client
from tests.support.processes import ROOT
from tests.support.wire import Wire

LIBRARIES = ("kafka-python", "librdkafka", "aiokafka", "kcoord-wire")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ALL = frozenset(Operation)
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
ILLEGAL = ErrorCode.ILLEGAL_SASL_STATE

PERMISSIONS = Permissions(
    [
        Rule(("User:alice",), ALL, ("billing*",), ("orders",)),
        Rule(("User:bob",), frozenset((Operation.DESCRIBE,)), ("billing*",), ()),
        Rule(("User:bob",), ALL, (), ("orders",)),
        Rule(("User:carol",), ALL, ("payroll",), ("orders",)),
        Rule((ANONYMOUS,), ALL, ("billing",), ("orders",)),
    ]
)


class Secured(NamedTuple):
    """A coordinator with everything on, and what its clients trust."""

    coordinator: Coordinator
    trust: ssl.SSLContext
    ca_file: Path

    def wire(self) -> Wire:
        return Wire(self.coordinator.address, ssl_context=self.trust)

    def use(self, library: str, **changes: str) -> dict[str, Any]:
        """What has become of a client program; alice in group billing with the right password unless told otherwise."""
        task = {
            "library": library,
            "address": self.coordinator.address,
            "ca_file": str(self.ca_file),
            "mechanism": "PLAIN",
            "name": "alice",
            "password": "secret",
            "group": "billing",
            "topic": "orders",
        }
        command = [sys.executable, "-m", secured_client.__name__, json.dumps(task | changes)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=True)
        outcome: dict[str, Any] = json.loads(done.stdout)
        return outcome


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    folder = tmp_path_factory.mktemp("secured")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    stored = "\n".join(f'{name} = "{Credential.derive(name, "hunter2", 8192)}"' for name in MECHANISMS[1:])
    (folder / "users.toml").write_text(
        f'[users.alice]\npassword = "secret"\n[users.carol]\npassword = "c"\n[users.bob]\n{stored}\n'
    )
    with Coordinator(
        {"orders": 2, "secret": 1},
        config=GroupConfig(initial_rebalance_delay_ms=0),
        tls=server,
        users=Users.from_file(folder / "users.toml"),
        permissions=PERMISSIONS,
    ) as coordinator:
        yield Secured(coordinator, trust, folder / "ca.pem")


# ---- unmodified clients


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_get_in(secured: Secured, library: str, mechanism: str) -> None:
    outcome = secured.use(library, mechanism=mechanism, group=f"billing-{library}-{mechanism}")
    assert outcome.get("committed", 0) > 0, outcome


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("name", ["alice", "mallory"])
def test_clients_report_wrong_credentials(secured: Secured, library: str, mechanism: str, name: str) -> None:
    outcome = secured.use(library, mechanism=mechanism, name=name, password="wrong")
    assert "AUTHENTICATION" in outcome["error"], outcome
    words = {
        "PLAIN": "Authentication failed: Invalid username or password",
        "SCRAM-SHA-256": "Authentication failed during authentication due to invalid credentials with SASL mechanism",
    }
    assert words[mechanism] in outcome["text"]


NOT_THE_GROUP = {
    "kafka-python": "GroupAuthorizationFailedError",
    "librdkafka": "GROUP_AUTHORIZATION_FAILED",
    "kcoord-wire": "GROUP_AUTHORIZATION_FAILED",
    "aiokafka": "GroupAuthorizationFailedError",
}
NOT_THE_TOPIC = {
    "kafka-python": "TopicAuthorizationFailedError",
    "librdkafka": "TOPIC_AUTHORIZATION_FAILED",
    "kcoord-wire": "TOPIC_AUTHORIZATION_FAILED",
    "aiokafka": "TopicAuthorizationFailedError",
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_clients_report_missing_permissions(secured: Secured, library: str) -> None:
    assert secured.use(library, group="payroll")["error"] == NOT_THE_GROUP[library]
    assert secured.use(library, topic="secret")["error"] == NOT_THE_TOPIC[library]
    # Bob may see the group, so he finds its coordinator, but may not join.
    bob = secured.use(library, mechanism="SCRAM-SHA-512", name="bob", password="hunter2")
    assert bob["error"] == NOT_THE_GROUP[library]


def test_our_consumer_shows_its_certificate(tmp_path: Path) -> None:
    authority, server = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))

    async def join(address: str) -> int:
        tls = tls_context(tmp_path / "ca.pem", tmp_path / "own.pem")
        async with Consumer(ConsumerSettings(bootstrap_servers=address, group_id="billing", tls=tls)) as consumer:
            consumer.subscribe(["orders"])
            while not consumer.assignment:
                await consumer.poll(100)
            return len(consumer.assignment)

    async def connect(address: str) -> None:
        settings = ConnectionSettings(tls=tls_context(tmp_path / "ca.pem"))
        with pytest.raises(BrokerError):  # not why: asyncio and uvloop close without sending the alert
            await BrokerConnection.open(*parse_address(address), settings)

    with Coordinator({"orders": 2}, config=GroupConfig(initial_rebalance_delay_ms=0), tls=server) as coordinator:
        assert asyncio.run(asyncio.wait_for(join(coordinator.address), 40)) == 2
        asyncio.run(connect(coordinator.address))


# ---- on the wire


def token(name: str, password: str) -> kw.SaslAuthenticateRequest:
    return kw.SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{password}".encode())


def plain(version: int = 1) -> kw.SaslHandshakeRequest:
    return kw.SaslHandshakeRequest(mechanism="PLAIN")


def test_versions_can_be_asked_before_anything_else(secured: Secured) -> None:
    with secured.wire() as wire:
        assert (
            wire.call(kw.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3).error_code == 0
        )
        assert wire.call(plain(), 1).mechanisms == list(MECHANISMS)
        assert wire.call(token("alice", "secret"), 2).session_lifetime_ms == 0
        assert wire.call(kw.FindCoordinatorRequest(key="billing"), 0).error_code == 0
        assert wire.call(kw.FindCoordinatorRequest(key="payroll"), 0).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_an_unauthenticated_request_ends_the_connection(secured: Secured) -> None:
    for request in (kw.MetadataRequest(), kw.FindCoordinatorRequest(key="billing"), token("alice", "secret")):
        with secured.wire() as wire:
            wire.send(request, 0)
            assert wire.is_closed_by_peer()


def test_another_request_ends_the_authentication(secured: Secured) -> None:
    with secured.wire() as wire:
        wire.call(plain(), 1)
        assert wire.call(kw.FindCoordinatorRequest(key="billing"), 0).error_code == ILLEGAL
        assert wire.is_closed_by_peer()


def test_an_unknown_mechanism_ends_the_connection(secured: Secured) -> None:
    with secured.wire() as wire:
        answer = wire.call(kw.SaslHandshakeRequest(mechanism="GSSAPI"), 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == list(MECHANISMS)
        assert wire.is_closed_by_peer()


def test_a_wrong_password_costs_time_and_the_connection(secured: Secured) -> None:
    with secured.wire() as wire:
        wire.call(plain(), 1)
        assert wire.call(token("alice", "wrong"), 2).error_code == FAILED
        answered = time.monotonic()
        wire.send(token("alice", "secret"), 2)  # comes too late
        assert wire.is_closed_by_peer()
        assert time.monotonic() - answered > FAILURE_DELAY_MS / 1000 * 0.8


def test_a_second_authentication_is_refused_and_harmless(secured: Secured) -> None:
    with secured.wire() as wire:
        wire.call(plain(), 1)
        wire.call(token("alice", "secret"), 2)
        assert wire.call(plain(), 1).error_code == ILLEGAL
        assert wire.call(token("bob", "hunter2"), 2).error_code == ILLEGAL
        assert wire.call(kw.FindCoordinatorRequest(key="billing"), 0).error_code == 0


def test_bare_tokens(secured: Secured) -> None:
    with secured.wire() as wire:
        assert wire.call(plain(), 0).error_code == 0
        wire.send_raw(kw.frame(b"\0alice\0secret"))
        assert wire.receive_body() == b""
        assert wire.call(kw.FindCoordinatorRequest(key="billing"), 0).error_code == 0
    for bad in (b"", b"\0alice\0wrong", b"x" * (MAX_TOKEN_BYTES + 1)):
        with secured.wire() as wire:
            wire.call(plain(), 0)
            wire.send_raw(kw.frame(bad))
            assert wire.is_closed_by_peer()


def test_frames_are_small_before_authentication(secured: Secured) -> None:
    with secured.wire() as wire:
        wire.send_raw((600 << 10).to_bytes(4, "big") + b"\0")
        assert wire.is_closed_by_peer()
    with secured.wire() as wire:
        wire.call(plain(), 1)
        wire.call(token("alice", "secret"), 2)
        request = kw.DeleteGroupsRequest(groups_names=["x" * 30_000] * 30)
        assert {part.error_code for part in wire.call(request, 1).results} == {ErrorCode.GROUP_AUTHORIZATION_FAILED}


def test_requests_sent_with_the_token_are_served_after_it(secured: Secured) -> None:
    with secured.wire() as wire:
        ids = [wire.send(plain(), 1), wire.send(token("alice", "secret"), 2)]
        ids += [wire.send(kw.FindCoordinatorRequest(key="billing"), 0) for _ in range(20)]
        assert [wire.receive(number).error_code for number in ids] == [0] * 22


def test_listed_groups_are_those_one_may_see(secured: Secured) -> None:
    def groups(name: str, password: str, group: str) -> set[str]:
        with secured.wire() as wire:
            wire.call(plain(), 1)
            assert wire.call(token(name, password), 2).error_code == 0
            topics = [
                kw.OffsetCommitRequestTopic(name=topic, partitions=[kw.OffsetCommitRequestPartition()])
                for topic in ("secret", "orders")
            ]
            committed = wire.call(kw.OffsetCommitRequest(group_id=group, topics=topics), 2)
            errors = [(topic.name, topic.partitions[0].error_code) for topic in committed.topics]
            assert errors == [("secret", ErrorCode.TOPIC_AUTHORIZATION_FAILED), ("orders", 0)]
            return {group.group_id for group in wire.call(kw.ListGroupsRequest(), 4).groups}

    assert groups("carol", "c", "payroll") == {"payroll"}
    assert "billing-listed" in (seen := groups("alice", "secret", "billing-listed"))
    assert "payroll" not in seen


def test_permissions_without_users_are_those_of_anonymous() -> None:
    with (
        Coordinator({"orders": 1, "secret": 1}, permissions=PERMISSIONS) as coordinator,
        Wire(coordinator.address) as wire,
    ):
        assert wire.call(kw.FindCoordinatorRequest(key="billing"), 0).error_code == 0
        assert wire.call(kw.FindCoordinatorRequest(key="payroll"), 0).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        named = wire.call(kw.MetadataRequest(topics=None), 5).topics
        assert [topic.name for topic in named] == ["orders"]
        assert wire.call(plain(), 1).error_code == ILLEGAL
        produce = kw.ProduceRequest(acks=0, topic_data=[kw.ProduceRequestTopicProduceData(name="secret")])
        wire.send(produce, 7)
        assert wire.is_closed_by_peer()
