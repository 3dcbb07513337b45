"""Access control lists that clients create, describe and delete (KIP-11, KIP-290), beside the rules of `permissions`.

Laws:

* Functions of the ACLs that there are: an answer, and what is added or removed. Who keeps them is `coordinator.access`.
* What a request may name is what Kafka's controller accepts, with its codes and texts; a number that means ANY fails
  the whole CreateAcls with UNKNOWN_SERVER_ERROR (-1), as there. A request with the number 0 is not read.
* There are at most `MOST_ACLS`, and more are refused with POLICY_VIOLATION (44); Kafka has no bound.

Source: kafka `AclApis.scala`, `AclControlManager.java`, `StandardAcl.java`, `CreateAclsRequest.java`,
`ResourcePatternFilter.java`, `AccessControlEntryFilter.java`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Kind, Operation, Refused, filled, refusal, refused_in
from kcoord_wire.protocol.error_codes import ErrorCode

MOST_ACLS: Final = 10_000
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the cluster as a resource."""

ALL: Final = 2
"""The operation that stands for each (``AclOperation``)."""

_ANY: Final = 1  # of resource types, pattern types, operations and permissions
_MATCH, _LITERAL, _PREFIXED = 2, 3, 4  # PatternType
_DENY, _ALLOW = 2, 3  # AclPermissionType
_CLUSTER: Final = 4
_TYPES: Final = {Kind.TOPIC: 2, Kind.GROUP: 3, Kind.CLUSTER: _CLUSTER, Kind.TRANSACTION: 5}
_KNOWN: Final = {
    "resource_type": ("resourceType", range(2, 8)),
    "pattern": ("patternType", range(3, 5)),
    "operation": ("operation", range(2, 16)),
    "permission": ("permissionType", range(2, 4)),
}


class Acl(NamedTuple):
    """An ACL, with Kafka's numbers.

    :ivar resource_type: a ``ResourceType``
    :ivar name: of the resource; ``*`` for all, with a literal pattern
    :ivar pattern: a ``PatternType``: literal or prefixed
    :ivar principal: ``User:NAME``, or ``User:*``
    :ivar host: an address, or ``*``
    :ivar operation: an ``AclOperation``
    :ivar permission: an ``AclPermissionType``: deny or allow
    """

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def allows(self) -> bool:
        """Whether it allows; else it denies."""
        return self.permission == _ALLOW

    def concerns(self, kind: Kind, name: str, principal: str, host: str) -> bool:
        """Return whether it is for a resource, and what a principal at an address does with it.

        :param name: of the resource; of the cluster any
        """
        if self.resource_type != _TYPES[kind] or self.principal not in (principal, "User:*"):
            return False
        if self.host not in ("*", host):
            return False
        if kind is Kind.CLUSTER:
            return True
        if self.pattern == _PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, "*")

    def has(self, operations: Collection[Operation]) -> bool:
        """Return whether it is for one of some operations."""
        return self.operation == ALL or self.operation in operations

    @property
    def some_topic(self) -> str | None:
        """A name of a topic that it is for, which no other pattern than its own and wider ones is for; None if it is
        not for topics."""
        if self.resource_type != _TYPES[Kind.TOPIC]:
            return None
        # No topic name contains NUL: it makes a name that only a pattern can match.
        return self.name + "\0" if self.pattern == _PREFIXED else self.name.replace("*", "\0")


def create_acls(known: Collection[Acl], request: m.CreateAclsRequest) -> tuple[m.CreateAclsResponse, list[Acl]]:
    """Return the answer to CreateAcls, and the ACLs that are new."""
    made = [_created(creation) for creation in request.creations]
    numbers = [(acl.resource_type, acl.pattern, acl.operation, acl.permission) for acl in made]
    if any(_ANY in each or each[1] == _MATCH for each in numbers):
        answer = refusal(request, 1, ErrorCode.UNKNOWN_SERVER_ERROR)
        for result in answer.results:
            result.error_message = None
        return answer, []
    answer = m.CreateAclsResponse()
    added: dict[Acl, None] = {}
    for acl in made:
        result = m.CreateAclsResponseAclCreationResult()
        answer.results.append(result)
        with refused_in(result):
            _check(acl)
            if acl not in known and acl not in added:
                if len(known) + len(added) >= MOST_ACLS:
                    raise Refused(ErrorCode.POLICY_VIOLATION, f"There are {MOST_ACLS:,} ACLs.")
                added[acl] = None
    return answer, list(added)


def _created(creation: m.CreateAclsRequestAclCreation) -> Acl:
    return Acl(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _check(acl: Acl) -> None:
    if acl.resource_type == _CLUSTER and acl.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.name:
        raise _invalid("Invalid empty resource name")
    for field, (name, known) in _KNOWN.items():
        if getattr(acl, field) not in known:
            raise _invalid(f"Invalid {name} UNKNOWN")
    if ":" not in acl.principal:
        why = "no colon is present separating the principal type from the principal name"
        raise _invalid(f"Could not parse principal from `{acl.principal}` ({why})")
    if not acl.host:
        raise _invalid("Host pattern cannot be null or empty")


def _invalid(text: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, text)


def describe_acls(known: Iterable[Acl], request: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
    """Return the answer to DescribeAcls."""
    resources: dict[tuple[int, str, int], m.DescribeAclsResponseDescribeAclsResource] = {}
    for acl in known:
        if _matches(request, acl):
            resource = resources.setdefault(
                acl[:3],
                m.DescribeAclsResponseDescribeAclsResource(
                    resource_type=acl.resource_type, resource_name=acl.name, pattern_type=acl.pattern
                ),
            )
            resource.acls.append(filled(m.DescribeAclsResponseAclDescription, acl, permission_type=acl.permission))
    return m.DescribeAclsResponse(resources=list(resources.values()))


def delete_acls(known: Collection[Acl], request: m.DeleteAclsRequest) -> tuple[m.DeleteAclsResponse, list[Acl]]:
    """Return the answer to DeleteAcls, and the ACLs that go."""
    answer = m.DeleteAclsResponse()
    removed: dict[Acl, None] = {}
    for wanted in request.filters:
        result = m.DeleteAclsResponseDeleteAclsFilterResult(error_message=None)
        answer.filter_results.append(result)
        with refused_in(result):
            _check_filter(wanted)
            for acl in known:
                if _matches(wanted, acl):
                    removed[acl] = None
                    result.matching_acls.append(
                        filled(
                            m.DeleteAclsResponseDeleteAclsMatchingAcl,
                            acl,
                            error_code=0,
                            error_message=None,
                            resource_name=acl.name,
                            pattern_type=acl.pattern,
                            permission_type=acl.permission,
                        )
                    )
    return answer, list(removed)


def _check_filter(wanted: Any) -> None:
    if wanted.resource_type_filter not in range(1, 8) or wanted.pattern_type_filter not in range(1, 5):
        raise _invalid("Unknown patternFilter.")
    if wanted.operation not in range(1, 16) or wanted.permission_type not in range(1, 4):
        raise _invalid("Unknown entryFilter.")


def _matches(wanted: Any, acl: Acl) -> bool:
    """Return whether a filter of DescribeAcls or DeleteAcls matches an ACL."""
    numbers = (
        (wanted.resource_type_filter, acl.resource_type),
        (wanted.operation, acl.operation),
        (wanted.permission_type, acl.permission),
    )
    texts = ((wanted.principal_filter, acl.principal), (wanted.host_filter, acl.host))
    return (
        all(number in (_ANY, own) for number, own in numbers)
        and all(text in (None, own) for text, own in texts)
        and _matches_name(wanted.resource_name_filter, wanted.pattern_type_filter, acl)
    )


def _matches_name(name: str | None, pattern: int, acl: Acl) -> bool:
    if pattern not in (_ANY, _MATCH, acl.pattern):
        return False
    if name is None:
        return True
    if pattern != _MATCH:
        return name == acl.name
    return name.startswith(acl.name) if acl.pattern == _PREFIXED else acl.name in (name, "*")


_NUMBERS: Final = (
    *("resource_type", "resource_type_filter", "resource_pattern_type", "pattern_type_filter"),
    *("operation", "permission_type"),
)


def has_unknown_number(part: Any) -> bool:
    """Return whether a part of a request has the number 0, which Kafka's brokers do not read."""
    return any(getattr(part, name, None) == 0 for name in _NUMBERS)
