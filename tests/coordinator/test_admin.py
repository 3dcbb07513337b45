"""What operators ask: describing, listing, deleting groups, and finding the coordinator."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.group_states import STATES, codes, group_in, versions
from tests.support.scripted import Script, subscription


@pytest.mark.parametrize("version", versions("DescribeGroupsRequest"))
@pytest.mark.parametrize("state", STATES)
def test_groups_are_described(state: str, version: int) -> None:
    script, member_id, _ = group_in(state)
    (described,) = script.ask(m.DescribeGroupsRequest(groups=["g"]), version).groups
    if state == "missing":
        assert described.group_state == "Dead"
        assert described.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else 0)
        return
    stable = state == "Stable"
    assert (described.group_state, described.protocol_type) == (state, "consumer")
    assert described.protocol_data == ("range" if stable else "")
    found = {member.member_id: member for member in described.members}
    assert (member_id in found) == (state != "Empty")
    for name, member in found.items():
        assert (member.client_host, member.client_id) == ("/127.0.0.1", name[0])
        assert member.member_metadata == (subscription("orders") if stable else b"")
        assert member.member_assignment == (b"" if state == "CompletingRebalance" else name.encode())


@pytest.mark.parametrize("version", versions("ListGroupsRequest"))
def test_groups_are_listed(script: Script, version: int) -> None:
    script.stable("a")
    script.group_id = "simple"
    script.commit(1)
    listed = script.ask(m.ListGroupsRequest(), version).groups
    assert [(group.group_id, group.protocol_type) for group in listed] == [("g", "consumer"), ("simple", "")]
    if version >= 4:
        assert [group.group_state for group in listed] == ["Stable", "Empty"]
        some = script.ask(m.ListGroupsRequest(states_filter=["stable"]), version).groups
        assert [group.group_id for group in some] == ["g"]
    if version >= 5:
        assert {group.group_type for group in listed} == {"classic"}
        assert script.ask(m.ListGroupsRequest(types_filter=["consumer"]), version).groups == []
        assert len(script.ask(m.ListGroupsRequest(types_filter=["Classic"]), version).groups) == 2


@pytest.mark.parametrize("version", versions("DeleteGroupsRequest"))
def test_groups_are_deleted_when_empty(script: Script, version: int) -> None:
    (member_id,) = script.stable("a")
    script.commit(5, member_id=member_id, generation=1)
    names = ["g", "missing", "g"]

    def outcome() -> list[int]:
        results = script.ask(m.DeleteGroupsRequest(groups_names=names), version).results
        return [result.error_code for result in results]

    assert outcome() == [E.NON_EMPTY_GROUP, E.GROUP_ID_NOT_FOUND]  # each group once
    script.leave(member_id)
    assert outcome() == [0, E.GROUP_ID_NOT_FOUND]
    assert script.committed() == -1
    assert script.reloaded().machine.groups == {}


@pytest.mark.parametrize("version", versions("FindCoordinatorRequest"))
@pytest.mark.parametrize("load", [True, False])
def test_the_coordinator_is_found(version: int, load: bool) -> None:
    script = Script(load=load)
    answer = script.ask(
        m.FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
        if version >= 4
        else m.FindCoordinatorRequest(key="g"),
        version,
    )
    found = answer.coordinators if version >= 4 else [answer]
    assert {(item.node_id, item.host, item.port, item.error_code) for item in found} == {(1, "localhost", 9092, 0)}
    assert len(found) == (2 if version >= 4 else 1)


@pytest.mark.parametrize(
    ("version", "key_type", "code"),
    [
        (1, 1, E.NONE),
        (6, 1, E.NONE),
        (5, 2, E.INVALID_REQUEST),
        (6, 2, E.INVALID_REQUEST),
        (6, 3, E.INVALID_REQUEST),
    ],
)
def test_groups_and_transactions_are_coordinated_here(version: int, key_type: int, code: E) -> None:
    request = m.FindCoordinatorRequest(key_type=key_type)
    if version >= 4:
        request.coordinator_keys = ["t"]
    else:
        request.key = "t"
    assert (codes(Script().ask(request, version)) - {0} or {0}) == {code}


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("g:AAAAAAAAAAAAAAAAAAAABw:0", E.NONE),
        ("g:00000000-0000-0000-0000-000000000007:0", E.INVALID_REQUEST),
        (" :AAAAAAAAAAAAAAAAAAAABw:0", E.INVALID_REQUEST),
        ("g:AAAAAAAAAAAAAAAAAAAABw:x", E.INVALID_REQUEST),
        ("g:AAAAAAAAAAAAAAAAAAAABw", E.INVALID_REQUEST),
    ],
)
def test_share_partitions_are_coordinated_here(key: str, code: E) -> None:
    (found,) = Script().ask(m.FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 6).coordinators
    assert (found.key, found.error_code, found.node_id) == (key, code, -1 if code else 1)


def test_deletions_are_answered_once_they_are_in_the_log(script: Script) -> None:
    script.commit(5)
    deleted = script.send(m.DeleteGroupsRequest(groups_names=["g"]))
    number = script.after[deleted]
    assert number == len(script.log)
    topics = [m.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    reads = [
        script.send(m.OffsetFetchRequest(group_id="g", topics=topics), 7),
        script.send(m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g")])),
        script.send(m.DescribeGroupsRequest(groups=["g"])),
        script.send(m.ListGroupsRequest()),
        script.send(m.DeleteGroupsRequest(groups_names=["g"])),
        script.send(m.OffsetDeleteRequest(group_id="g")),
    ]
    assert [script.after[token] for token in reads] == [number] * len(reads)


def test_repeated_names_are_answered_once(script: Script) -> None:
    """Or an answer would be as long as the group, times half the bytes of the request."""
    (member_id,) = script.stable("a")
    script.commit(5, member_id=member_id, generation=1)
    described = script.ask(m.DescribeGroupsRequest(groups=["g", "missing", "g", "missing"])).groups
    assert [(group.group_id, len(group.members), group.error_code) for group in described] == [
        ("g", 1, 0),
        ("missing", 0, E.GROUP_ID_NOT_FOUND),
        ("g", 0, E.INVALID_REQUEST),
        ("missing", 0, E.GROUP_ID_NOT_FOUND),
    ]
    some = [m.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    asked = [m.OffsetFetchRequestGroup(group_id="g", topics=topics) for topics in (None, some, None, some)]
    fetched = script.ask(m.OffsetFetchRequest(groups=asked)).groups
    assert [(len(group.topics), group.error_code) for group in fetched] == [
        (1, 0),
        (1, 0),
        (0, E.INVALID_REQUEST),
        (1, 0),
    ]
