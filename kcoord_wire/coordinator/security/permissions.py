"""Permissions: rules of who may do what with which group, topic and transactional id, and with the cluster.

Laws:

* What no rule allows is refused; a rule that denies wins over any that allows. Allowing read, write or delete allows
  describe; denying them does not deny it.
* ACLs that clients create are rules like those of a file. Super users may do everything, whatever denies it.
* Permissions do not change: other ACLs make other permissions.

Sources: Kafka's AclAuthorizer and StandardAuthorizer; KIP-11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

from kcoord_wire.coordinator.core.apis import Kind, Operation
from kcoord_wire.coordinator.security.acls import Acl
from kcoord_wire.kernel import settings
from kcoord_wire.kernel.settings import SettingsError, read_rules

__tracebackhide__ = settings.__tracebackhide__

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection without SASL."""

_REMEMBERED: Final = 8192  # decisions; names come from clients, so their number must be bounded

_RULE_KEYS: Final = ("principals", "groups", "topics", "transactional_ids", "operations")
_CLUSTER_KEY: Final = "cluster"
_OPERATIONS = {operation.name.lower(): operation for operation in Operation}
_OF_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
OF_GROUPS = (Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_OF_CONFIGS)
OF_TOPICS = tuple(Operation)
_OF_TRANSACTIONS = (Operation.WRITE, Operation.DESCRIBE)
OF_CLUSTER = (Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, *_OF_CONFIGS)
_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE)
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(_OF_CONFIGS),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Principals, operations, and the groups and topics they concern. A name may end in ``*``, which matches any text.

    :ivar principals: ``User:NAME``
    :ivar operations: what is allowed or denied
    :ivar groups: group ids
    :ivar topics: topic names
    :ivar cluster: whether they concern the cluster, which the configs of a broker belong to
    :ivar transactional_ids: ids of producers with transactions
    """

    principals: tuple[str, ...]
    operations: frozenset[Operation]
    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    cluster: bool = False
    transactional_ids: tuple[str, ...] = ()


class Permissions:
    """Rules that allow and deny, as a file has them::

        [[allow]]
        principals = ["User:billing"]       # or User:billing-*, or *; User:ANONYMOUS where there is no SASL
        groups = ["billing", "billing-*"]
        topics = ["orders", "payments"]
        operations = ["read"]               # or any other `Operation`, or all

        [[allow]]
        principals = ["User:admin"]
        cluster = true
        operations = ["all"]

        [[deny]]
        principals = ["*"]
        topics = ["payments-secret*"]
        operations = ["all"]

        [[super_users]]                     # who may do everything, for example create ACLs
        principals = ["User:admin"]

    What no rule allows is refused, and a rule that denies wins.

    :ivar acls: that clients have created
    """

    def __init__(
        self,
        allow: Iterable[Rule] = (),
        deny: Iterable[Rule] = (),
        *,
        super_users: Iterable[str] = (),
        acls: Iterable[Acl] = (),
    ) -> None:
        """
        :param super_users: principals
        :param acls: that clients have created
        """
        self._allow = tuple(allow)
        self._deny = tuple(deny)
        self._super_users = tuple(super_users)
        self.acls: tuple[Acl, ...] = tuple(acls)
        self._decide_cached = lru_cache(_REMEMBERED)(self._decide)

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Read a TOML file.

        :raises SettingsError: it is not TOML, or not of the form above
        :raises OSError: it cannot be read
        """
        keys: dict[str, tuple[str, ...]] = dict.fromkeys(("allow", "deny"), (*_RULE_KEYS, _CLUSTER_KEY))
        rules = read_rules(path, keys | {"super_users": _RULE_KEYS[:1]})
        super_users = [name for where, table in rules.pop("super_users") for name in _read_principals(table, where)]
        made = {kind: [_read_rule(table, where) for where, table in found] for kind, found in rules.items()}
        return cls(made["allow"], made["deny"], super_users=super_users)

    def with_acls(self, acls: Iterable[Acl]) -> Permissions:
        """Return these permissions with other ACLs."""
        return Permissions(self._allow, self._deny, super_users=self._super_users, acls=acls)

    # ---- decisions

    def allows(self, principal: str, operation: Operation, kind: Kind, name: str = "", host: str = "") -> bool:
        """Return whether the principal may do this with a group, topic or transactional id, or with the cluster.

        :param host: the address from which it does
        """
        return self._decide_cached(principal, operation, kind, name, host)

    def allows_some_topic(self, principal: str, operation: Operation, host: str = "") -> bool:
        """Return whether the principal may do this with any topic that could exist."""
        # No topic name contains NUL: it makes a name that only a pattern can match.
        names = [name.replace("*", "\0") for rule in self._allow for name in rule.topics]
        names += [acl.some_topic for acl in self.acls if acl.allows and acl.some_topic is not None]
        if _matches(self._super_users, principal):
            return True
        return any(self._decide_cached(principal, operation, Kind.TOPIC, name, host) for name in names)

    def _decide(self, principal: str, operation: Operation, kind: Kind, name: str, host: str) -> bool:
        if _matches(self._super_users, principal):
            return True
        acls = [acl for acl in self.acls if acl.concerns(kind, name, principal, host)]
        itself, implied_by = frozenset((operation,)), _IMPLIED_BY.get(operation, frozenset((operation,)))
        if any(not acl.allows and acl.has(itself) for acl in acls):
            return False
        if _covers(self._deny, principal, itself, kind, name):
            return False
        return any(acl.allows and acl.has(implied_by) for acl in acls) or _covers(
            self._allow, principal, implied_by, kind, name
        )


def _read_rule(table: dict[str, Any], where: str) -> Rule:
    texts = {key: _read_texts(table.get(key, []), f"{where}.{key}") for key in _RULE_KEYS}
    for key in ("principals", "operations"):
        if not texts[key]:
            raise SettingsError(f"{where}.{key}", "missing, or empty")
    _check_principals(texts["principals"], where)
    cluster = table.get(_CLUSTER_KEY, False)
    if not isinstance(cluster, bool):
        raise SettingsError(f"{where}.{_CLUSTER_KEY}", "must be true or false")
    kinds = (
        (texts["groups"], OF_GROUPS),
        (texts["topics"], OF_TOPICS),
        (texts["transactional_ids"], _OF_TRANSACTIONS),
        (cluster, OF_CLUSTER),
    )
    if not any(named for named, _ in kinds):
        raise SettingsError(where, "names neither groups nor topics nor transactional ids nor the cluster")
    possible = {operation for named, operations in kinds if named for operation in operations}
    operations = frozenset[Operation]().union(
        *(_read_operation(text, possible, f"{where}.operations") for text in texts["operations"])
    )
    return Rule(texts["principals"], operations, texts["groups"], texts["topics"], cluster, texts["transactional_ids"])


def _read_principals(table: dict[str, Any], where: str) -> tuple[str, ...]:
    found = _read_texts(table.get("principals", []), f"{where}.principals")
    _check_principals(found, where)
    return found


def _check_principals(principals: Iterable[str], where: str) -> None:
    for principal in principals:
        if principal != "*" and not principal.startswith("User:"):
            raise SettingsError(f"{where}.principals", f"{principal!r} does not begin with User:")


def _read_texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise SettingsError(where, "must be a list of texts that are not empty")
    if any("*" in text[:-1] for text in value):
        raise SettingsError(where, "* may stand at the end only")
    return tuple(value)


def _read_operation(text: str, possible: set[Operation], where: str) -> set[Operation]:
    """Return the operations that a word stands for, all of which a rule must be able to allow."""
    if text == "all":
        return possible
    operation = _OPERATIONS.get(text)
    if operation not in possible:
        names = ", ".join(each.name.lower() for each in sorted(possible))
        raise SettingsError(where, f"{text!r} is none of {names} and all")
    return {operation}


def _covers(rules: Sequence[Rule], principal: str, operations: frozenset[Operation], kind: Kind, name: str) -> bool:
    return any(
        not operations.isdisjoint(rule.operations)
        and _matches(rule.principals, principal)
        and (rule.cluster if kind is Kind.CLUSTER else _matches(getattr(rule, kind), name))
        for rule in rules
    )


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)
