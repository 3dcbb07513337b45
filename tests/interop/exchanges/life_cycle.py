"""A group's whole life with every api, once in each generation of clients from the oldest versions to the newest."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.commits import committed, fetch
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage, assignment

HIGHEST = {"Find": 6, "Join": 9, "Sync": 5, "Beat": 4, "Leave": 5, "Describe": 5, "List": 5, "Delete": 2}


@script(versions=range(10))
def life_cycle(stage: Stage, age: int) -> None:
    """Two members join, sync, beat, commit, read back and leave; the group is looked at in each state and deleted."""
    v = {api: min(age, highest) for api, highest in HIGHEST.items()}
    admin = stage.connect("admin")
    keys = {"key": stage.group} if v["Find"] < 4 else {"coordinator_keys": [stage.group]}
    admin.call(kw.FindCoordinatorRequest(**keys), v["Find"])
    admin.describe(version=v["Describe"])
    a, b = stage.member("a"), stage.member("b")
    a.joins(v["Join"])
    admin.describe(version=v["Describe"])
    a.syncs(v["Sync"], {a.id: assignment(orders=[0, 1, 2])})
    a.beats(v["Beat"])
    b_joining = b.joining(v["Join"])
    admin.describe(version=v["Describe"])
    a.beats(v["Beat"], ErrorCode.REBALANCE_IN_PROGRESS)
    commits = max(age, 1)  # v0 kept offsets elsewhere
    a.commits(7, commits)
    a.joins(v["Join"])
    b_joining.answer()
    b_syncing = b.syncing(v["Sync"])
    a.commits(8, commits, ErrorCode.REBALANCE_IN_PROGRESS)
    a.syncs(v["Sync"], {a.id: assignment(orders=[0, 1]), b.id: assignment(orders=[2])})
    b_syncing.answer()
    b.beats(v["Beat"])
    b.commits(9, commits, partition=2)
    admin.describe(version=v["Describe"])
    admin.call(kw.ListGroupsRequest(), v["List"])
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), v["Delete"], ErrorCode.NON_EMPTY_GROUP)
    b.leaves(v["Leave"])
    a.joins(v["Join"])
    a.leaves(v["Leave"])
    a.beats(v["Beat"], ErrorCode.UNKNOWN_MEMBER_ID)
    fetch(admin, commits, committed("orders", 0, 1, 2))
    admin.describe(version=v["Describe"])
    admin.call(kw.ListGroupsRequest(), v["List"])
    admin.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), v["Delete"])
    admin.describe(version=v["Describe"])
