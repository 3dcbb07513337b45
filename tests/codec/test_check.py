"""`kw.check`: what is found, and what is not. Each rule of the schemas: tests/coordinator/test_refused.py."""

from __future__ import annotations

import json

import pytest

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode

FIELD = {
    "name": "Group",
    "type": "string",
    "versions": "0+",
    "nullableVersions": "1+",
    "refused": [
        {"empty": True, "error": "INVALID_GROUP_ID", "source": "Groups"},
        {"null": True, "versions": "2+", "notBeside": {"Id": [0]}, "error": "INVALID_REQUEST", "source": "Groups"},
    ],
}
OWN = kw.compile_schemas({
    "PingRequest": json.dumps({
        "apiKey": 1,
        "type": "request",
        "name": "PingRequest",
        "validVersions": "0-2",
        "fields": [{"name": "Id", "type": "int32", "versions": "0+"}, FIELD],
    })
})  # fmt: skip


def found(version: int, **fields: object) -> list[str]:
    return [str(finding) for finding in kw.check(OWN["PingRequest"].cls(**fields), version, registry=OWN)]


def test_rules_of_own_schemas_hold_in_their_versions_and_places() -> None:
    assert found(0, group="") == ["group: must not be empty (INVALID_GROUP_ID)"]
    assert found(1, group=None, id=1) == found(2, group=None, id=0) == found(2, group="g", id=1) == []
    assert found(2, group=None, id=1) == ["group: must not be null where id is not 0 (INVALID_REQUEST)"]


def test_lazy_messages_and_subclasses_are_checked() -> None:
    class Leave(kw.LeaveGroupRequest):
        """A program's own."""

    member = kw.LeaveGroupRequestMemberIdentity
    many = kw.LeaveGroupRequest(group_id="g", members=[*(member(member_id="m") for _ in range(39)), member()])
    lazy = kw.registry["LeaveGroupRequest"].decode(kw.encode(many, 5), 5, lazy=True)
    for message in (many, lazy, Leave(group_id="g", members=many.members)):
        (finding,) = kw.check(message, 5)
        assert (finding.path, finding.error) == ("members[39].member_id", ErrorCode.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize(
    ("message", "error"), [(kw.ApiVersionsRequest(), ErrorCode.UNSUPPORTED_VERSION), (kw.HeartbeatRequest(), None)]
)
def test_a_version_that_does_not_exist_is_a_finding(message: object, error: ErrorCode | None) -> None:
    (finding,) = kw.check(message, 99)
    assert (finding.path, finding.error) == ("", error)
    assert finding.rule.startswith("there is no version 99, only 0 to ")


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="not a message class"):
        kw.check(OWN["PingRequest"].cls(), 0)
