"""SCRAM credentials by request: what can be set and deleted, who can log in with them, and that they are kept."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.error import KafkaException

from kcoord_wire import messages as m
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.coordinator.access import Access
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.partitions.partition_log import Storage
from kcoord_wire.coordinator.security.authentication import Credential, Users
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.kernel.disk import Disk, MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.protocol.error_codes import ErrorCode as E

SHA_256, SHA_512 = 1, 2
NAMES = {SHA_256: "SCRAM-SHA-256", SHA_512: "SCRAM-SHA-512"}
SALT = b"salt of 16 bytes"
ADMIN = Users({"admin": "secret"})


def access(disk: Disk, users: Users | None = None) -> Access:
    catalog = Catalog("c", Brokers([Endpoint(0, "h", 1)]))
    catalog.open(Storage(disk))
    made = Access(catalog, None, users)
    made.load()
    return made


def upsertion(name: str = "alice", mechanism: int = SHA_256, **others: Any) -> Any:
    fields = {"iterations": 4096, "salt": SALT, "salted_password": b"x" * 32, **others}
    return m.AlterUserScramCredentialsRequestScramCredentialUpsertion(name=name, mechanism=mechanism, **fields)


def deletion(name: str = "alice", mechanism: int = SHA_256) -> Any:
    return m.AlterUserScramCredentialsRequestScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(of: Access, *parts: Any) -> list[tuple[str, int]]:
    """Each user with its error."""
    kind = m.AlterUserScramCredentialsRequestScramCredentialUpsertion
    request = m.AlterUserScramCredentialsRequest(
        deletions=[part for part in parts if not isinstance(part, kind)],
        upsertions=[part for part in parts if isinstance(part, kind)],
    )
    return [(result.user, result.error_code) for result in of.answer(Request(1, request, 0)).results]


def described(of: Access, *names: str) -> list[tuple[str, int, list[int]]]:
    users = [m.DescribeUserScramCredentialsRequestUserName(name=name) for name in names]
    answer = of.answer(Request(1, m.DescribeUserScramCredentialsRequest(users=users or None), 0))
    return [(each.user, each.error_code, [info.mechanism for info in each.credential_infos]) for each in answer.results]


@pytest.mark.parametrize(
    ("parts", "errors"),
    [
        ([], []),
        ([upsertion()], [("alice", 0)]),
        ([upsertion(mechanism=0)], [("alice", E.UNSUPPORTED_SASL_MECHANISM)]),
        ([upsertion(mechanism=3)], [("alice", E.UNSUPPORTED_SASL_MECHANISM)]),
        ([upsertion(iterations=4095)], [("alice", E.UNACCEPTABLE_CREDENTIAL)]),
        ([upsertion(iterations=16_385)], [("alice", E.UNACCEPTABLE_CREDENTIAL)]),
        ([upsertion(salt=b"short")], [("alice", E.UNACCEPTABLE_CREDENTIAL)]),
        ([upsertion(salted_password=b"")], [("alice", E.UNKNOWN_SERVER_ERROR)]),
        ([upsertion("")], [("", E.UNACCEPTABLE_CREDENTIAL)]),
        ([upsertion("x" * 256)], [("x" * 256, E.UNACCEPTABLE_CREDENTIAL)]),
        ([upsertion(), upsertion(mechanism=SHA_512)], [("alice", E.DUPLICATE_RESOURCE)]),
        ([deletion(), upsertion()], [("alice", E.DUPLICATE_RESOURCE)]),
        ([deletion()], [("alice", E.RESOURCE_NOT_FOUND)]),
        ([deletion("admin", 9)], [("admin", E.UNSUPPORTED_SASL_MECHANISM)]),
        ([deletion("nobody"), upsertion()], [("nobody", E.RESOURCE_NOT_FOUND), ("alice", 0)]),
    ],
)
def test_what_can_be_altered(parts: list[Any], errors: list[tuple[str, int]]) -> None:
    served = access(MemoryDisk(), ADMIN)
    assert alter(served, *parts) == errors
    assert [user for user, _, _ in described(served)] == ["admin", *(name for name, error in errors if not error)]


def test_what_is_described() -> None:
    served = access(MemoryDisk(), ADMIN)
    alter(served, upsertion(), upsertion("bob", SHA_512))
    everybody = [("admin", 0, [SHA_256, SHA_512]), ("alice", 0, [SHA_256]), ("bob", 0, [SHA_512])]
    assert described(served) == everybody
    assert described(served, "bob") == [("bob", 0, [SHA_512])]
    assert described(served, "carol") == [("carol", E.RESOURCE_NOT_FOUND, [])]
    assert described(served, "bob", "bob") == [("bob", E.DUPLICATE_RESOURCE, [])]


def test_a_credential_is_that_of_the_password() -> None:
    served = access(MemoryDisk(), ADMIN)
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 8_192)
    alter(served, upsertion("alice", SHA_512, iterations=8_192, salted_password=salted))
    assert served.users is not None
    derived = Credential.derive("SCRAM-SHA-512", "pencil", 8_192, salt=SALT)
    assert served.users.credential("SCRAM-SHA-512", "alice") == derived


def test_credentials_are_there_after_a_restart() -> None:
    disk = MemoryDisk()
    first = access(disk, ADMIN)
    alter(first, upsertion(), upsertion("bob"), deletion("admin", SHA_512))
    alter(first, deletion("bob"))
    for _ in range(2):
        again = access(disk, ADMIN)
        assert described(again) == [("admin", 0, [SHA_256]), ("alice", 0, [SHA_256])]
        assert again.users is not None
        assert again.users.has_password("admin", "secret")
    assert set(ADMIN.credentials["SCRAM-SHA-512"]) == {"admin"}  # those of the caller do not change
    assert set(ADMIN.credentials["SCRAM-SHA-256"]) == {"admin"}


def test_a_disk_that_fails_leaves_the_credentials_as_they_are() -> None:
    disk = VirtualDisk(Random(1))
    served = access(disk, ADMIN)
    disk.fails_in = 0
    assert alter(served, upsertion(), deletion("admin")) == [
        ("admin", E.KAFKA_STORAGE_ERROR),
        ("alice", E.KAFKA_STORAGE_ERROR),
    ]
    assert described(served, "alice", "admin") == [
        ("alice", E.RESOURCE_NOT_FOUND, []),
        ("admin", 0, [SHA_256, SHA_512]),
    ]


def test_mechanisms_are_offered_while_somebody_can_use_them() -> None:
    users = Users.empty()
    assert users.mechanisms == ()
    users.alter({("SCRAM-SHA-512", "alice"): Credential.derive("SCRAM-SHA-512", "secret")})
    assert users.mechanisms == ("SCRAM-SHA-512",)
    unknown = users.credential("SCRAM-SHA-512", "bob")
    users.alter({("SCRAM-SHA-512", "alice"): None})
    assert users.mechanisms == ()
    assert len(users.credential("SCRAM-SHA-512", "bob").salt) == len(unknown.salt)


# ---- with a real client


def admin_of(address: str, name: str, password: str, mechanism: str = "PLAIN") -> AdminClient:
    settings = {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": password}
    return AdminClient(
        {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "log_level": 0, **settings}
    )


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_user_made_by_an_admin_client_can_log_in(tmp_path: Path, mechanism: int) -> None:
    info = ScramCredentialInfo(ScramMechanism(mechanism), 4_096)
    made = UserScramCredentialUpsertion("alice", info, b"pencil", SALT)
    with Coordinator({"orders": 1}, data_dir=tmp_path, users=ADMIN) as coordinator:
        admin = admin_of(coordinator.address, "admin", "secret")
        (future,) = admin.alter_user_scram_credentials([made]).values()
        future.result(30)
        alice = admin_of(coordinator.address, "alice", "pencil", NAMES[mechanism])
        assert "orders" in alice.list_topics(timeout=30).topics
    with Coordinator({"orders": 1}, data_dir=tmp_path, users=ADMIN) as coordinator:
        alice = admin_of(coordinator.address, "alice", "pencil", NAMES[mechanism])
        assert "orders" in alice.list_topics(timeout=30).topics
        admin = admin_of(coordinator.address, "admin", "secret")
        found = admin.describe_user_scram_credentials(["alice"])["alice"].result(30)
        assert [(each.mechanism.value, each.iterations) for each in found.scram_credential_infos] == [
            (mechanism, 4_096)
        ]
        (future,) = admin.alter_user_scram_credentials(
            [UserScramCredentialDeletion("alice", ScramMechanism(mechanism))]
        ).values()
        future.result(30)
        with pytest.raises(KafkaException):
            admin_of(coordinator.address, "alice", "pencil", NAMES[mechanism]).list_topics(timeout=2)
