"""ACLs: what requests may name, what is found and deleted, what they allow, and that they are kept."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.error import KafkaException

from kcoord_wire import messages as m
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.coordinator.access import Access
from kcoord_wire.coordinator.core.apis import Kind, Operation
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.partitions.partition_log import Storage
from kcoord_wire.coordinator.security.acls import MOST_ACLS, Acl, create_acls, delete_acls, describe_acls
from kcoord_wire.coordinator.security.permissions import ANONYMOUS, Permissions, Rule
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.kernel.disk import Disk, MemoryDisk
from kcoord_wire.kernel.settings import SettingsError
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.wire import Wire

TOPIC, GROUP, CLUSTER = 2, 3, 4
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
DENY, ALLOW = 2, 3
BOB = "User:bob"


def acl(name: str = "orders", operation: int = Operation.READ, **others: Any) -> Acl:
    made = Acl(TOPIC, name, LITERAL, BOB, "*", operation, ALLOW)
    return made._replace(**others)


def creation(made: Acl) -> m.CreateAclsRequestAclCreation:
    kind, name, pattern, principal, host, operation, permission = made
    return m.CreateAclsRequestAclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def wanted(**others: Any) -> dict[str, Any]:
    anything = {"resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY}
    return {
        **anything,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **others,
    }


# ---- decisions


@pytest.mark.parametrize(
    ("acls", "may"),
    [
        ([], False),
        ([acl()], True),
        ([acl(operation=2)], True),
        ([acl(operation=Operation.WRITE)], False),
        ([acl(principal="User:*")], True),
        ([acl(principal="User:b*")], False),
        ([acl(host="10.0.0.1")], True),
        ([acl(host="10.0.0.2")], False),
        ([acl("*")], True),
        ([acl("ord")], False),
        ([acl("ord*")], False),
        ([acl("ord", pattern=PREFIXED)], True),
        ([acl("*", pattern=PREFIXED)], False),
        ([acl(resource_type=GROUP)], False),
        ([acl(), acl("*", permission=DENY)], False),
        ([acl(), acl("*", permission=DENY, principal="User:eve")], True),
        ([acl(), acl("o", permission=DENY, pattern=PREFIXED, operation=2)], False),
    ],
)
def test_what_acls_allow(acls: list[Acl], may: bool) -> None:
    permissions = Permissions(acls=acls)
    assert permissions.allows(BOB, Operation.READ, Kind.TOPIC, "orders", "10.0.0.1") is may
    assert (
        not permissions.allows("User:eve", Operation.READ, Kind.TOPIC, "orders", "10.0.0.2") or not may or len(acls) > 0
    )
    assert Permissions(acls=acls, super_users=[BOB]).allows(BOB, Operation.READ, Kind.TOPIC, "orders", "10.0.0.1")


def test_what_an_acl_implies() -> None:
    def may(operation: Operation, *acls: Acl) -> bool:
        return Permissions(acls=acls).allows(BOB, operation, Kind.TOPIC, "orders")

    assert [operation.name for operation in Operation if may(operation, acl())] == ["READ", "DESCRIBE"]
    assert may(Operation.DESCRIBE_CONFIGS, acl(operation=Operation.ALTER_CONFIGS))
    assert may(Operation.DESCRIBE, acl(), acl(permission=DENY, operation=Operation.WRITE))
    assert not may(Operation.DESCRIBE, acl(), acl(permission=DENY, operation=Operation.DESCRIBE))


def test_acls_and_the_rules_of_a_file_are_one() -> None:
    rules = [Rule((BOB,), frozenset({Operation.READ}), topics=("orders*",))]
    by_file, by_acl = Permissions(rules), Permissions(acls=[acl()])
    denied = acl(permission=DENY)
    for permissions in (by_file, by_acl):
        assert permissions.allows(BOB, Operation.READ, Kind.TOPIC, "orders")
        both = permissions.with_acls([*permissions.acls, denied])
        assert not both.allows(BOB, Operation.READ, Kind.TOPIC, "orders")
    assert Permissions(deny=rules, acls=[acl()]).allows(BOB, Operation.READ, Kind.TOPIC, "orders") is False
    assert Permissions(acls=[acl("kafka-cluster", Operation.ALTER, resource_type=CLUSTER)]).allows(
        BOB, Operation.ALTER, Kind.CLUSTER
    )


@pytest.mark.parametrize(
    ("acls", "may"),
    [
        ([], False),
        ([acl(operation=Operation.WRITE)], True),
        ([acl("o", Operation.WRITE, pattern=PREFIXED)], True),
        ([acl("*", Operation.WRITE)], True),
        ([acl()], False),
        ([acl(operation=Operation.WRITE), acl("*", Operation.WRITE, permission=DENY)], False),
        ([acl("o", Operation.WRITE, pattern=PREFIXED), acl(operation=Operation.WRITE, permission=DENY)], True),
    ],
)
def test_a_producer_without_transactions_may_write_to_some_topic(acls: list[Acl], may: bool) -> None:
    assert Permissions(acls=acls).allows_some_topic(BOB, Operation.WRITE) is may
    assert Permissions(acls=acls, super_users=[BOB]).allows_some_topic(BOB, Operation.WRITE)


# ---- requests


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (acl("x", resource_type=CLUSTER), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (acl(""), "Invalid empty resource name"),
        (acl(resource_type=99), "Invalid resourceType UNKNOWN"),
        (acl(pattern=9), "Invalid patternType UNKNOWN"),
        (acl(operation=99), "Invalid operation UNKNOWN"),
        (acl(permission=9), "Invalid permissionType UNKNOWN"),
        (acl(principal="bob"), "Could not parse principal from `bob` (no colon is present separating the principal"),
        (acl(host=""), "Host pattern cannot be null or empty"),
    ],
)
def test_acls_that_cannot_be(made: Acl, text: str) -> None:
    answer, added = create_acls([], m.CreateAclsRequest(creations=[creation(made), creation(acl())]))
    assert [result.error_code for result in answer.results] == [ErrorCode.INVALID_REQUEST, 0]
    assert (answer.results[0].error_message or "").startswith(text)
    assert added == [acl()]


@pytest.mark.parametrize("made", [acl(resource_type=ANY), acl(pattern=MATCH), acl(operation=ANY), acl(permission=ANY)])
def test_any_is_nothing_that_can_be_created(made: Acl) -> None:
    answer, added = create_acls([], m.CreateAclsRequest(creations=[creation(made), creation(acl())]))
    assert [(result.error_code, result.error_message) for result in answer.results] == [(-1, None)] * 2
    assert added == []


def test_an_acl_is_there_once_and_there_are_not_too_many() -> None:
    answer, added = create_acls([acl("a")], m.CreateAclsRequest(creations=[creation(acl(n)) for n in "abb"]))
    assert ([result.error_code for result in answer.results], added) == ([0, 0, 0], [acl("b")])
    many = {acl(str(number)) for number in range(MOST_ACLS)}
    answer, added = create_acls(many, m.CreateAclsRequest(creations=[creation(acl("0")), creation(acl("x"))]))
    assert [result.error_code for result in answer.results] == [0, ErrorCode.POLICY_VIOLATION]
    assert added == []


KNOWN = [acl(), acl(operation=Operation.WRITE), acl("pay", pattern=PREFIXED), acl("*", permission=DENY)]


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ({}, [0, 1, 2, 3]),
        ({"resource_type_filter": GROUP}, []),
        ({"resource_name_filter": "orders"}, [0, 1]),
        ({"resource_name_filter": "payments"}, []),
        ({"resource_name_filter": "payments", "pattern_type_filter": MATCH}, [2, 3]),
        ({"resource_name_filter": "pay", "pattern_type_filter": PREFIXED}, [2]),
        ({"resource_name_filter": "pay", "pattern_type_filter": LITERAL}, []),
        ({"pattern_type_filter": LITERAL}, [0, 1, 3]),
        ({"operation": Operation.WRITE}, [1]),
        ({"permission_type": DENY}, [3]),
        ({"principal_filter": "User:eve"}, []),
        ({"host_filter": "*"}, [0, 1, 2, 3]),
    ],
)
def test_what_a_filter_finds(others: dict[str, Any], found: list[int]) -> None:
    described = describe_acls(KNOWN, m.DescribeAclsRequest(**wanted(**others)))
    listed = [
        acl(each.resource_name, one.operation, pattern=each.pattern_type, permission=one.permission_type)
        for each in described.resources
        for one in each.acls
    ]
    assert listed == [KNOWN[number] for number in found]
    answer, removed = delete_acls(
        KNOWN, m.DeleteAclsRequest(filters=[m.DeleteAclsRequestDeleteAclsFilter(**wanted(**others))])
    )
    assert removed == listed
    assert [each.resource_name for each in answer.filter_results[0].matching_acls] == [each.name for each in listed]


def test_filters_that_cannot_be_match_nothing() -> None:
    filters = [wanted(resource_type_filter=99), wanted(operation=99), wanted(resource_name_filter="pay")]
    request = m.DeleteAclsRequest(filters=[m.DeleteAclsRequestDeleteAclsFilter(**each) for each in filters])
    answer, removed = delete_acls(KNOWN, request)
    assert [result.error_message for result in answer.filter_results] == [
        "Unknown patternFilter.",
        "Unknown entryFilter.",
        None,
    ]
    assert removed == [KNOWN[2]]


# ---- keeping


def access(disk: Disk, permissions: Permissions | None) -> Access:
    catalog = Catalog("c", Brokers([Endpoint(0, "h", 1)]))
    catalog.open(Storage(disk))
    made = Access(catalog, permissions)
    made.load()
    return made


def ask(of: Access, message: Any) -> Any:
    return of.answer(Request(1, message, 3))


CREATE = m.CreateAclsRequest(creations=[creation(acl())])


def test_acls_are_there_after_a_restart() -> None:
    disk, permissions = MemoryDisk(), Permissions(super_users=["User:root"])
    first = access(disk, permissions)
    ask(first, m.CreateAclsRequest(creations=[creation(each) for each in KNOWN]))
    for _ in range(2):
        again = access(disk, permissions)
        assert again.permissions is not None
        assert again.permissions.acls == tuple(KNOWN)
    ask(again, m.DeleteAclsRequest(filters=[m.DeleteAclsRequestDeleteAclsFilter(**wanted(permission_type=ALLOW))]))
    last = access(disk, permissions).permissions
    assert last is not None
    assert last.acls == (KNOWN[3],)
    assert permissions.acls == ()  # those of the caller do not change


def test_a_disk_that_fails_leaves_the_acls_as_they_are() -> None:
    disk = VirtualDisk(Random(1))
    served = access(disk, Permissions())
    disk.fails_in = 0
    assert [each.error_code for each in ask(served, CREATE).results] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert served.permissions is not None
    assert served.permissions.acls == ()
    assert ask(served, CREATE).results[0].error_code == 0


def test_without_permissions_there_are_no_acls() -> None:
    served = access(MemoryDisk(), None)
    deletion = m.DeleteAclsRequest(filters=[m.DeleteAclsRequestDeleteAclsFilter()])
    assert ask(served, m.DescribeAclsRequest()).error_code == ErrorCode.SECURITY_DISABLED
    assert [each.error_code for each in ask(served, CREATE).results] == [ErrorCode.SECURITY_DISABLED]
    assert [each.error_code for each in ask(served, deletion).filter_results] == [ErrorCode.SECURITY_DISABLED]


# ---- with a real client


def binding(name: str, operation: AclOperation) -> AclBinding:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, name, literal, "User:ANONYMOUS", "127.0.0.1", operation, allow)


def test_an_admin_client_grants_and_takes_back(tmp_path: Path) -> None:
    """Without SASL every client is User:ANONYMOUS, so the administrator's rules are in the file."""
    cluster = Rule((ANONYMOUS,), frozenset({Operation.ALTER, Operation.DESCRIBE}), cluster=True)
    with Coordinator({"orders": 1}, data_dir=tmp_path, permissions=Permissions([cluster])) as coordinator:
        admin = AdminClient({"bootstrap.servers": coordinator.address})
        assert "orders" not in admin.list_topics(timeout=30).topics
        for future in admin.create_acls([binding("orders", AclOperation.DESCRIBE)]).values():
            future.result(30)
        assert "orders" in admin.list_topics(timeout=30).topics
        with pytest.raises(KafkaException, match="empty"):
            next(iter(admin.create_acls([binding("", AclOperation.READ)]).values())).result(30)
    with Coordinator({"orders": 1}, data_dir=tmp_path, permissions=Permissions([cluster])) as coordinator:
        admin = AdminClient({"bootstrap.servers": coordinator.address})
        assert "orders" in admin.list_topics(timeout=30).topics
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        assert admin.describe_acls(everything).result(30) == [binding("orders", AclOperation.DESCRIBE)]
        (deleted,) = admin.delete_acls([everything]).values()
        assert deleted.result(30) == [binding("orders", AclOperation.DESCRIBE)]
        assert "orders" not in admin.list_topics(timeout=30).topics


def test_a_request_with_an_unknown_element_is_not_read() -> None:
    with Coordinator(permissions=Permissions(super_users=[ANONYMOUS])) as coordinator:
        with Wire(coordinator.address) as wire, pytest.raises(EOFError):
            wire.call(m.CreateAclsRequest(creations=[creation(acl(operation=0))]), 3)
        with Wire(coordinator.address) as wire, pytest.raises(EOFError):
            wire.call(m.DescribeAclsRequest(**wanted(pattern_type_filter=0)), 3)


def test_super_users_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "permissions.toml"
    file.write_text('[[super_users]]\nprincipals = ["User:admin"]\n')
    permissions = Permissions.from_file(file)
    may = [permissions.allows(who, Operation.ALTER, Kind.CLUSTER) for who in ("User:admin", BOB)]
    assert may == [True, False]
    for wrong in ('principals = ["admin"]', 'topics = ["orders"]'):
        file.write_text(f"[[super_users]]\n{wrong}\n")
        with pytest.raises(SettingsError, match="super_users"):
            Permissions.from_file(file)
