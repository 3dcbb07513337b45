"""Who may do what, as clients change it: ACLs.

Laws:

* What a request changes is in the journal of the topics' disk, with one fsync, before it is answered and before it has
  an effect; it has one from the next request on, on every connection. After a restart all of it is there.
* Without permissions there are no ACLs: SECURITY_DISABLED (54).

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
from kcoord_wire.coordinator.security.permissions import Permissions
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

ACCESS_APIS: Final = frozenset(int(key) for key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS))
"""The apis that `Access` answers."""

_ACLS: Final = "acls"


class Access:
    """Answers the requests about access.

    :param catalog: keeps what they change
    :ivar permissions: who may do what; None allows everything
    """

    def __init__(self, catalog: Catalog, permissions: Permissions | None) -> None:
        self._catalog = catalog
        self.permissions = permissions
        self._answers: Mapping[type, Callable[[Any], Any]] = {
            m.CreateAclsRequest: self._create_acls,
            m.DescribeAclsRequest: self._describe_acls,
            m.DeleteAclsRequest: self._delete_acls,
        }

    def load(self) -> None:
        """Take what the catalog has kept."""
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
        self.load()
        return response

    def _describe_acls(self, request: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
        return describe_acls(self._known_acls(), request)

    def _delete_acls(self, request: m.DeleteAclsRequest) -> m.DeleteAclsResponse:
        response, removed = delete_acls(self._known_acls(), request)
        self._catalog.keep(_ACLS, {json.dumps(acl): None for acl in removed})
        self.load()
        return response
