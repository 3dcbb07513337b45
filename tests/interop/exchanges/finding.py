"""Before a group: ApiVersions, FindCoordinator, and versions that are not there."""

from __future__ import annotations

import struct
from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage

GROUP, TRANSACTION, SHARE = 0, 1, 2


@script(versions=range(5))
def api_versions(stage: Stage, version: int) -> None:
    """What is served, and with which versions."""
    request = kw.ApiVersionsRequest(client_software_name="kcoord-wire", client_software_version="1.0")
    stage.connect("a").call(request, version)


@script(versions=(6, 127, 32767))
def api_versions_of_the_future(stage: Stage, version: int) -> None:
    """A version that is not known is answered in v0, whatever the body, and the connection goes on."""
    a = stage.connect("a")
    a.send_raw(18, version, b"what this holds nobody can know", flexible=True)
    answer = kw.decode_response(a.wire.receive_body(), 18, 0)[1]
    stage.add("a", "ApiVersions", 0, answer)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    a.call(kw.ApiVersionsRequest(), 2)


@script(versions=(3, 4))
def api_versions_of_odd_software(stage: Stage, version: int) -> None:
    """Names and versions of the client's software have rules."""
    a = stage.connect("a")
    good: dict[str, Any] = {"client_software_name": "good", "client_software_version": "1"}
    for field in good:
        for text in ("", "-x", "x-", "x y", ".", "x.y-Z.9-"):
            request = kw.ApiVersionsRequest(**{**good, field: text})
            a.call(request, version, ErrorCode.INVALID_REQUEST)
    for text in ("x", "a.b-c", "0", "A-9.z"):
        a.call(kw.ApiVersionsRequest(client_software_name=text, client_software_version=text), version)


@script()
def versions_that_are_not_there(stage: Stage) -> None:
    """Any other api in a version that is not served ends the connection."""
    for key, version in ((11, 10), (14, 6), (12, 5), (13, 6), (8, 11), (9, 11), (15, 7), (16, 6), (42, 4), (10, 7)):
        _is_hung_up_on(stage, key, version, flexible=True)
    _is_hung_up_on(stage, 47, 1, flexible=False)
    _is_hung_up_on(stage, 11, -1, flexible=False)
    _is_hung_up_on(stage, 999, 0, flexible=False)
    _is_hung_up_on(stage, -1, 0, flexible=False)


def _is_hung_up_on(stage: Stage, key: int, version: int, *, flexible: bool) -> None:
    a = stage.connect(f"api {key}")
    a.send_raw(key, version, b"\0" * 40, flexible=flexible)
    assert a.wire.is_closed_by_peer()
    stage.add(a.name, f"api {key}", version, "closed")


@script()
def bodies_that_do_not_decode(stage: Stage) -> None:
    """Garbage where a message should be ends the connection."""
    for key, version, body in (
        (11, 0, b""),
        (11, 5, b"\x7f\xff group"),
        (8, 2, struct.pack(">h", -1)),
        (42, 0, b"\x7f\xff\xff\xff"),
        (12, 4, b"\xff\xff\xff\xff\xff\xff"),
    ):
        a = stage.connect(f"api {key}")
        a.send_raw(key, version, body, flexible=key == 12)
        assert a.wire.is_closed_by_peer()
        stage.add(a.name, f"api {key}", version, "closed")


@script(versions=range(7))
def find_coordinator(stage: Stage, version: int) -> None:
    """The coordinator of any group is the one asked, from v4 on of several at once."""
    a = stage.connect("a")
    if version < 4:
        for key in (stage.group, "", "another \u00fc"):
            a.call(kw.FindCoordinatorRequest(key=key), version)
        return
    a.call(kw.FindCoordinatorRequest(coordinator_keys=[stage.group, "", "another \u00fc", stage.group]), version)
    a.call(kw.FindCoordinatorRequest(coordinator_keys=[]), version)


@script(versions=(1, 3, 4, 6))
def find_coordinator_of_something_else(stage: Stage, version: int) -> None:
    """Types of coordinators that do not exist are refused."""
    a = stage.connect("a")
    for key_type in (3, 7, -1):
        keys = {"key": "k"} if version < 4 else {"coordinator_keys": ["k", "l"]}
        a.call(kw.FindCoordinatorRequest(key_type=key_type, **keys), version, ErrorCode.INVALID_REQUEST)


@script(versions=(3, 5))
def find_share_coordinator(stage: Stage, version: int) -> None:
    """Before version 6 there are no share groups."""
    a = stage.connect("a")
    keys = (
        {"key": "g:AAAAAAAAAAAAAAAAAAAAAQ:0"} if version < 4 else {"coordinator_keys": ["g:AAAAAAAAAAAAAAAAAAAAAQ:0"]}
    )
    a.call(kw.FindCoordinatorRequest(key_type=SHARE, **keys), version, ErrorCode.INVALID_REQUEST)


@script()
def answers_come_in_order(stage: Stage) -> None:
    """A request behind a parked one on the same connection waits for it; other connections do not."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a)
    joining = b.joining()
    behind = b.connection.park(kw.ListGroupsRequest(states_filter=["Stable"]), 4)
    stage.connect("c").describe()
    a.joins()
    joining.answer()
    behind.answer()
