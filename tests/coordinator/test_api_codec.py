"""Headers, versions and names of requests on a real socket."""

from __future__ import annotations

import struct
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.api_codec import MAX_NAMES
from kcoord_wire.coordinator.core.apis import APIS, Api, bounded, item_class, refusal
from kcoord_wire.coordinator.fault_injection import Fault, Faults
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import become_stable, commit, join_request
from tests.support.group_states import GROUP_REQUESTS
from tests.support.wire import Wire


@pytest.mark.parametrize("version", [3, 9])
def test_a_null_client_id_is_an_empty_one(coordinator: StartCoordinator, version: int) -> None:
    with Wire(coordinator().address, client_id=None) as wire:
        member_id = wire.call(join_request("g"), version).member_id
        assert member_id.startswith("-")
        if version == 9:
            wire.call(join_request("g", member_id), version)
        group = wire.call(kw.DescribeGroupsRequest(groups=["g"]), 5).groups[0]
        assert [(m.client_id, m.client_host) for m in group.members] == [("", "/127.0.0.1")]


def test_unknown_tags_in_a_header_are_passed_over(coordinator: StartCoordinator) -> None:
    header = struct.pack(">hhih", 12, 4, 7, 2) + b"id" + b"\1\5\3abc"
    body = kw.encode(kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    with Wire(coordinator().address) as wire:
        wire.send_raw(kw.frame(header + body))
        assert wire.receive_body() == b"\0\0\0\7\0" + kw.encode(kw.HeartbeatResponse(error_code=25), 4)


def test_a_name_too_long_for_a_member_id_closes_the_connection(coordinator: StartCoordinator) -> None:
    c = coordinator()
    for client_id, instance_id in (("c" * 32_767, None), ("c", "i" * 32_767)):
        with Wire(c.address, client_id=client_id) as wire:
            wire.send(join_request("g", group_instance_id=instance_id), 9)
            assert wire.is_closed_by_peer()
    with Wire(c.address) as wire:
        assert become_stable(wire, "g")
        assert commit(wire, "simple", 1) == 0


def test_too_many_names_close_the_connection_in_any_case(coordinator: StartCoordinator) -> None:
    """They are counted as the request comes, before a fault delays it."""
    c = coordinator(faults=Faults([Fault(api="FindCoordinator", action="delay", delay_ms=1)]))
    with Wire(c.address) as wire:
        wire.send(kw.FindCoordinatorRequest(coordinator_keys=[""] * (MAX_NAMES + 1)), 4)
        assert wire.is_closed_by_peer()


# ---- Every version of every request can be refused, with a text that fits into the answer


def one_of_each(cls: Any, paths: str) -> Any:
    """A message, or a part of one, with one item in each list of these paths."""
    lists = {}
    for path in paths.split():
        first, _, rest = path.partition(".")
        name = first.partition("=")[0]
        lists[name] = [one_of_each(item_class(cls, name), rest)]
    made = cls(**lists)
    if getattr(made, "name", "") is None:
        made.name = ""
    return made


def codes(answer: Any) -> set[int]:
    """Every error code in an answer, other than 0."""
    found = set()
    for field in fields(answer):
        value = getattr(answer, field.name)
        if field.name.endswith("error_code"):
            found.add(value)
        for item in value if isinstance(value, list) else ():
            found |= codes(item) if is_dataclass(item) else set()
    return found - {0}


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.request.__name__)
def test_every_version_of_every_request_can_be_refused(api: Api) -> None:
    for version in api.versions:
        has_code = version >= (3 if api.key == ApiKey.DESCRIBE_LOG_DIRS else 0)
        for message in (
            api.request(),
            GROUP_REQUESTS.get(api.request, api.request()),
            one_of_each(api.request, api.parts),
        ):
            answer = refusal(message, version, E.NOT_COORDINATOR)
            decoded = kw.decode(api.response, kw.encode(answer, version), version)
        assert codes(decoded) == ({E.NOT_COORDINATOR} if has_code else set())


def test_the_text_of_an_error_is_cut() -> None:
    assert bounded("x" * 1_000) == "x" * 1_000
    assert bounded("x" * 32_767) == "x" * 999 + "…"
