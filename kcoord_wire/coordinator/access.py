"""Who may connect and do what, as clients change it: ACLs, SCRAM credentials, quotas.

Laws:

* What a request changes is in the journal of the topics' disk, with one fsync, before it is answered and before it has
  an effect; it has one from the next request on, on every connection. After a restart all of it is there.
* Without permissions there are no ACLs: SECURITY_DISABLED (54). Without SASL credentials are kept, and of no use.
* The objects that a coordinator was given do not change. SCRAM credentials of its users can be altered and deleted like
  those that were set by request; passwords for PLAIN cannot.

Source: kafka `AclApis.scala`, `ControllerApis.scala`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused, refusal
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.security.acls import Acl, create_acls, delete_acls, describe_acls
from kcoord_wire.coordinator.security.authentication import Credential, Users
from kcoord_wire.coordinator.security.permissions import Permissions
from kcoord_wire.coordinator.security.quotas import Entity, Throttling, alter_quotas, describe_quotas
from kcoord_wire.coordinator.security.scram import Changes, alter_credentials, describe_credentials
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

ACCESS_APIS: Final = frozenset(
    int(key)
    for key in (
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
    )
)
"""The apis that `Access` answers."""

_ACLS: Final = "acls"
_SCRAM: Final = "scram"
_QUOTAS: Final = "quotas"


class Access:
    """Answers the requests about access.

    :param catalog: keeps what they change
    :ivar permissions: who may do what; None allows everything
    :ivar users: who may connect; None for everybody
    :ivar quotas: what clients may cost; empty for no bounds
    :ivar throttling: counts that
    """

    def __init__(self, catalog: Catalog, permissions: Permissions | None, users: Users | None = None) -> None:
        self._catalog = catalog
        self._given = users
        self.users = None if users is None else users.copy()
        self._credentials = self.users or Users.empty()
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.throttling = Throttling(self.quotas)
        self.permissions = permissions
        self._answers: Mapping[type, Callable[[Any], Any]] = {
            m.CreateAclsRequest: self._create_acls,
            m.DescribeAclsRequest: self._describe_acls,
            m.DeleteAclsRequest: self._delete_acls,
            m.DescribeUserScramCredentialsRequest: self._describe_credentials,
            m.AlterUserScramCredentialsRequest: self._alter_credentials,
            m.DescribeClientQuotasRequest: lambda request: describe_quotas(self.quotas, request),
            m.AlterClientQuotasRequest: self._alter_quotas,
        }

    def load(self) -> None:
        """Take what the catalog has kept."""
        self._load_acls()
        changes: Changes = {}
        for key, text in self._catalog.kept(_SCRAM).items():
            mechanism, _, name = key.partition(" ")
            changes[mechanism, name] = Credential.parse(mechanism, text) if text else None
        self._credentials.alter(changes)
        kept = self._catalog.kept(_QUOTAS).items()
        self.quotas.clear()
        self.quotas.update((tuple((kind, name) for kind, name in json.loads(key)), dict(own)) for key, own in kept)

    def _load_acls(self) -> None:
        if self.permissions is not None:
            self.permissions = self.permissions.with_acls(Acl(*json.loads(key)) for key in self._catalog.kept(_ACLS))

    def answer(self, request: Request) -> Any:
        """Return the response to a request."""
        try:
            return self._answers[type(request.message)](request.message)
        except Refused as refused:
            return refusal(request.message, request.version, refused.error)

    # ---- ACLs

    def _known_acls(self) -> tuple[Acl, ...]:
        if self.permissions is None:
            raise Refused(ErrorCode.SECURITY_DISABLED)
        return self.permissions.acls

    def _create_acls(self, request: m.CreateAclsRequest) -> m.CreateAclsResponse:
        response, added = create_acls(frozenset(self._known_acls()), request)
        self._catalog.keep(_ACLS, {json.dumps(acl): True for acl in added})
        self._load_acls()
        return response

    def _describe_acls(self, request: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
        return describe_acls(self._known_acls(), request)

    def _delete_acls(self, request: m.DeleteAclsRequest) -> m.DeleteAclsResponse:
        response, removed = delete_acls(self._known_acls(), request)
        self._catalog.keep(_ACLS, {json.dumps(acl): None for acl in removed})
        self._load_acls()
        return response

    # ---- SCRAM credentials

    def _describe_credentials(
        self, request: m.DescribeUserScramCredentialsRequest
    ) -> m.DescribeUserScramCredentialsResponse:
        return describe_credentials(self._credentials.credentials, request)

    def _alter_credentials(self, request: m.AlterUserScramCredentialsRequest) -> m.AlterUserScramCredentialsResponse:
        response, changes = alter_credentials(self._credentials.credentials, request)
        given = {} if self._given is None else self._given.credentials
        kept: dict[str, str | None] = {}
        for (mechanism, name), credential in changes.items():
            deleted = "" if name in given.get(mechanism, ()) else None  # one that was given is there again otherwise
            kept[f"{mechanism} {name}"] = deleted if credential is None else str(credential)
        self._catalog.keep(_SCRAM, kept)
        self._credentials.alter(changes)
        return response

    # ---- quotas

    def _alter_quotas(self, request: m.AlterClientQuotasRequest) -> m.AlterClientQuotasResponse:
        response, changed = alter_quotas(self.quotas, request)
        self._catalog.keep(_QUOTAS, {json.dumps(entity): own or None for entity, own in changed.items()})
        for entity, own in changed.items():
            self.quotas.pop(entity, None)
            if own:
                self.quotas[entity] = own
        return response
