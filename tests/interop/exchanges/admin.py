"""DescribeGroups, ListGroups and DeleteGroups, in each state of a group."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.commits import commit
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage


@script(versions=range(6))
def describe_in_each_state(stage: Stage, version: int) -> None:
    """Members' subscriptions and the protocol are shown while Stable, members' assignments as well."""
    admin = stage.connect("admin")
    admin.describe(version=version)
    a, b = stage.member("a"), stage.member("b", instance="b-1")
    a.is_introduced()
    admin.describe(version=version)
    a.joins()
    admin.describe(version=version)
    stage.share_out(a)
    admin.describe(version=version)
    joining = b.joining()
    admin.describe(version=version)
    a.joins()
    joining.answer()
    admin.describe(version=version)
    stage.share_out(a, b)
    admin.describe(version=version)
    a.leaves()
    b.leaves()
    admin.describe(version=version)


@script(versions=(0, 2, 3, 4, 5))
def describe_several(stage: Stage, version: int) -> None:
    """Several groups in one request: missing, simple, the same twice, none; what one may do with them where asked."""
    admin = stage.connect("admin")
    commit(admin, 8, ("orders", 0, 1))
    groups = [stage.group, f"{stage.group}/missing", stage.group]
    admin.call(kw.DescribeGroupsRequest(groups=groups), version)
    admin.call(kw.DescribeGroupsRequest(groups=[]), version)
    if version >= 3:
        admin.call(kw.DescribeGroupsRequest(groups=groups[:2], include_authorized_operations=True), version)


@script(versions=range(6))
def list_in_each_state(stage: Stage, version: int) -> None:
    """A group is listed from its first member id on, and after its members have gone."""
    admin, request = stage.connect("admin"), kw.ListGroupsRequest()
    admin.call(request, version)
    a = stage.member("a")
    a.is_introduced()
    admin.call(request, version)
    a.joins()
    admin.call(request, version)
    stage.share_out(a)
    admin.call(request, version)
    b = stage.member("b").joining()
    admin.call(request, version)
    a.leaves()
    b.answer()
    admin.call(request, version)


@script(versions=(4, 5))
def list_by_state(stage: Stage, version: int) -> None:
    """Filters of states are names in any case; names that are no state match nothing."""
    admin, a = stage.connect("admin"), stage.member("a")
    stage.stable(a)
    commit(admin, 8, ("orders", 0, 1), group_id=f"{stage.group}/simple")
    for states in (
        ["Stable"],
        ["stable"],
        ["STABLE", "Empty"],
        ["Empty"],
        ["PreparingRebalance", "CompletingRebalance", "Dead"],
        ["Nonsense"],
        ["Nonsense", "Stable"],
        [""],
    ):
        admin.call(kw.ListGroupsRequest(states_filter=states), version)


@script()
def list_by_type(stage: Stage) -> None:
    """Filters of types, alone and with those of states."""
    admin, a = stage.connect("admin"), stage.member("a")
    stage.stable(a)
    commit(admin, 8, ("orders", 0, 1), group_id=f"{stage.group}/simple")
    for types in (
        ["classic"],
        ["Classic"],
        ["CLASSIC"],
        ["consumer"],
        ["consumer", "classic"],
        ["share"],
        ["nonsense"],
        [""],
    ):
        admin.call(kw.ListGroupsRequest(types_filter=types), 5)
    admin.call(kw.ListGroupsRequest(types_filter=["classic"], states_filter=["Empty"]), 5)
    admin.call(kw.ListGroupsRequest(types_filter=["consumer"], states_filter=["Stable"]), 5)


@script(versions=(0, 1, 2))
def delete_groups(stage: Stage, version: int) -> None:
    """Groups without members are deleted, their offsets with them; others are not; each has its own result."""
    admin, a, b = stage.connect("admin"), stage.member("a"), stage.member("b")
    simple, missing = f"{stage.group}/simple", f"{stage.group}/missing"

    def delete(*groups: str, error: ErrorCode | None = None) -> None:
        admin.call(kw.DeleteGroupsRequest(groups_names=list(groups)), version, error)

    delete(missing, error=ErrorCode.GROUP_ID_NOT_FOUND)
    delete()
    commit(admin, 8, ("orders", 0, 1), group_id=simple)
    delete(simple)
    delete(simple, error=ErrorCode.GROUP_ID_NOT_FOUND)
    commit(admin, 8, ("orders", 0, 1), group_id=simple)
    delete(missing, simple, simple, error=ErrorCode.GROUP_ID_NOT_FOUND)
    a.is_introduced()
    delete(stage.group)  # nobody is in it yet
    a.joins(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.id = ""
    a.joins()
    delete(stage.group, error=ErrorCode.NON_EMPTY_GROUP)
    stage.share_out(a)
    a.commits(5)
    delete(stage.group, error=ErrorCode.NON_EMPTY_GROUP)
    joining = b.joining()
    delete(stage.group, error=ErrorCode.NON_EMPTY_GROUP)
    a.leaves()
    joining.answer()
    b.leaves()
    delete(stage.group)
    admin.describe()
    admin.call(kw.ListGroupsRequest(), 4)
    b.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
