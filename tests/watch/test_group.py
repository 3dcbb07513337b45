"""One group, poll by poll: members, rebalances with their causes, owners and pauses, outages, bounded tables.

Changes as lines and as JSON.

Lag per partition: rows where something changes, growth that is not noise, thinning.
"""

from __future__ import annotations

import json
from itertools import pairwise

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Identity
from kcoord_wire.watch.polled_group import Change, ChangeKind, LagBook, lines_of
from kcoord_wire.watch.seen import Unanswered
from tests.support.watching import SECOND, START, Script, group, member

TWO = group("Stable", member("c-1", 0, 1), member("c-2", 2, 3))
LOADING = Unanswered("loading", "coordinator load in progress")


def kinds(changes: list[Change]) -> list[ChangeKind]:
    return [change.kind for change in changes]


def test_a_group_that_was_there_has_no_rebalance() -> None:
    script = Script()
    (seen,) = script.poll(TWO)
    assert seen.text == "Stable, 2 members: c-1 (10.0.0.1), c-2 (10.0.0.2)"
    assert script.poll(TWO) == []
    history = script.history()
    assert (history.group.origin, history.group.members, history.rebalances) == ("admin", 2, [])
    assert [(row.partition, row.member_id, row.from_ns) for row in history.ownership] == [
        (n, "c-1-a" if n < 2 else "c-2-a", START) for n in range(4)
    ]
    assert len(history.group.blind) == 3


def test_a_member_goes() -> None:
    script = Script()
    script.poll(TWO)
    changes = script.poll(group("PreparingRebalance", member("c-1"), assignor=None))
    assert list(lines_of(changes)) == [
        "12:00:02 billing: member c-2 (10.0.0.2) gone, held orders 2-3; rebalance #1 began: member left (50%)"
    ]
    assert [each.name for each in script.view().members] == ["c-1 (10.0.0.1)"]
    assert script.view().waits_for == ("c-1 (10.0.0.1)",)
    changes = script.poll(group("Stable", member("c-1", 0, 1, 2, 3)))
    assert list(lines_of(changes)) == ["12:00:04 billing: rebalance #1 ended after 2.0 s; 2 partitions moved"]
    history = script.history()
    (rebalance,) = history.rebalances
    assert (rebalance.cause, rebalance.confidence, rebalance.client_id) == (Cause.MEMBER_LEFT, 0.5, "c-2")
    assert (rebalance.started_ns, rebalance.duration_ms) == (START + 2 * SECOND, 2000)
    assert (rebalance.members_before, rebalance.members_after, rebalance.moved) == (2, 1, 2)
    assert [gone.client_id for gone in rebalance.removed] == ["c-2"]
    assert [(pause.partition, pause.rebalance, pause.next_member_id) for pause in history.pauses] == [
        (2, 1, "c-1-a"),
        (3, 1, "c-1-a"),
    ]
    assert history.group.paused_ms == 4000
    assert [(row.state, row.to_ns) for row in history.states] == [
        ("Stable", START + 2 * SECOND),
        ("PreparingRebalance", START + 4 * SECOND),
        ("Stable", None),
    ]
    gone = next(life for life in history.members if life.client_id == "c-2")
    assert (gone.left_ns, gone.why_left) == (START + 2 * SECOND, "left or timed out")


def test_a_rebalance_between_two_polls() -> None:
    script = Script()
    script.poll(TWO)
    changes = script.poll(group("Stable", member("c-1", 0, 1), member("c-2", 2), member("c-3", 3)))
    assert kinds(changes) == [ChangeKind.MEMBER_JOINED, ChangeKind.REBALANCE_ENDED]
    assert changes[1].text == "rebalance #1 between two polls: new member (80%); 1 partition moved"
    (rebalance,) = script.history().rebalances
    assert (rebalance.started_ns, rebalance.ended_ns) == (START, START + 2 * SECOND)
    assert (rebalance.duration_ms, rebalance.outcome) == (None, "stable")


def test_a_new_group_begins_with_a_rebalance() -> None:
    script = Script()
    script.poll()
    changes = script.poll(group("PreparingRebalance", member("c-1"), assignor=None))
    assert kinds(changes) == [ChangeKind.GROUP_SEEN, ChangeKind.MEMBER_JOINED, ChangeKind.REBALANCE_BEGAN]
    script.poll(group("CompletingRebalance", member("c-1"), assignor=None))
    script.poll(group("Stable", member("c-1", 0)))
    (rebalance,) = script.history().rebalances
    assert (rebalance.cause, rebalance.confidence) == (Cause.NEW_MEMBER, 0.9)
    assert (rebalance.joining_ms, rebalance.syncing_ms) == (None, 2000)
    assert rebalance.joined_ns == START + 4 * SECOND


def test_a_rebalance_under_way_at_the_beginning() -> None:
    script = Script()
    script.poll(group("PreparingRebalance", member("c-1"), member("c-2"), assignor=None))
    assert script.view().waits_for == ("c-1 (10.0.0.1)", "c-2 (10.0.0.2)")
    script.poll(TWO)
    (rebalance,) = script.history().rebalances
    assert (rebalance.cause, rebalance.confidence, rebalance.outcome) == (Cause.UNKNOWN, 0.0, "stable")


def test_whom_a_reconciliation_waits_for_and_how_long() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0, 1, target=[0, 1]), protocol="consumer", assignor="uniform"))
    for _ in range(4):
        two = member("c-1", 0, 1, target=[0]), member("c-2", target=[1])
        script.poll(group("Reconciling", *two, protocol="consumer", assignor="uniform"))
    two = member("c-1", 0, target=[0]), member("c-2", target=[1])
    script.poll(group("Reconciling", *two, protocol="consumer", assignor="uniform"))
    two = member("c-1", 0, target=[0]), member("c-2", 1, target=[1])
    script.poll(group("Stable", *two, protocol="consumer", assignor="uniform"))
    (rebalance,) = script.history().rebalances
    assert rebalance.duration_ms == 10_000
    assert [(wait.client_id, wait.ms, wait.end) for wait in rebalance.waited_for] == [
        ("c-1", 8_000, "revoking"),
        ("c-2", 2_000, "late"),
    ]


def test_joins_meanwhile_belong_to_the_same_rebalance() -> None:
    script = Script()
    script.poll(TWO)
    script.poll(group("PreparingRebalance", member("c-1"), member("c-2"), member("c-3")))
    script.poll(group("PreparingRebalance", member("c-1"), member("c-3"), member("c-4")))
    assert script.view().waits_for == ("c-1 (10.0.0.1)",), "c-2 is gone, the others have joined"
    script.poll(group("Stable", member("c-1", 0, 1), member("c-3", 2), member("c-4", 3)))
    (rebalance,) = script.history().rebalances
    assert (rebalance.client_id, [gone.client_id for gone in rebalance.removed]) == ("c-3", ["c-2"])


def test_joins_while_it_completes_begin_another() -> None:
    script = Script()
    script.poll(TWO)
    script.poll(group("CompletingRebalance", member("c-1"), member("c-2"), member("c-3")))
    script.poll(group("PreparingRebalance", member("c-1"), member("c-2"), member("c-3"), member("c-4")))
    first, second = script.history().rebalances
    assert (first.outcome, second.outcome, second.client_id) == ("interrupted", "open", "c-4")


def test_a_static_member_restarts_without_a_rebalance() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0, instance="i-1"), member("c-2", 1)))
    changes = script.poll(group("Stable", member("c-1", 0, life="b", instance="i-1"), member("c-2", 1)))
    assert kinds(changes) == [ChangeKind.MEMBER_REPLACED]
    history = script.history()
    assert history.rebalances == []
    assert [life.why_left for life in history.members] == ["replaced", None, None]
    assert history.pauses == []


def test_a_second_cooperative_round_is_known() -> None:
    script = Script()
    one, two = member("c-1", 0, 1), member("c-1", 0)
    script.poll(group("Stable", one, assignor="cooperative-sticky"))
    script.poll(group("Stable", two, member("c-2"), assignor="cooperative-sticky"))
    script.poll(group("PreparingRebalance", member("c-1"), member("c-2"), assignor=None))
    script.poll(group("Stable", two, member("c-2", 1), assignor="cooperative-sticky"))
    first, second = script.history().rebalances
    assert (first.cause, second.cause) == (Cause.NEW_MEMBER, Cause.COOPERATIVE_FOLLOW_UP)
    assert [(pause.partition, pause.rebalance) for pause in script.history().pauses] == [(1, 1)]


def test_a_second_round_whose_first_one_was_not_seen_to_end() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0, 1), assignor="cooperative-sticky"))
    for state in ("CompletingRebalance", "PreparingRebalance"):
        script.poll(group(state, member("c-1"), member("c-2"), assignor=None))
    script.poll(group("Stable", member("c-1", 0), member("c-2", 1), assignor="cooperative-sticky"))
    rebalances = script.history().rebalances
    assert [each.cause for each in rebalances] == [Cause.NEW_MEMBER, Cause.COOPERATIVE_FOLLOW_UP]
    assert [each.outcome for each in rebalances] == ["interrupted", "stable"]


def test_new_partitions_are_a_cause() -> None:
    script = Script()
    script.poll(TWO)
    script.poll(group("PreparingRebalance", member("c-1"), member("c-2")))
    script.poll(group("Stable", member("c-1", 0, 1, 4), member("c-2", 2, 3, 5)))
    (rebalance,) = script.history().rebalances
    assert (rebalance.cause, rebalance.moved) == (Cause.TOPICS_CHANGED, 0)


def test_a_group_becomes_empty_and_is_deleted() -> None:
    script = Script()
    script.poll(TWO)
    changes = script.poll(group("Empty", assignor=None))
    assert changes[-1].text.startswith("rebalance #1 between two polls: member left")
    assert script.view().paused == 4
    assert kinds(script.poll()) == [ChangeKind.GROUP_GONE]
    assert script.watched.snapshot.groups == ()
    history = script.history()
    assert [rebalance.outcome for rebalance in history.rebalances] == ["empty"]
    assert history.states[-1].to_ns == START + 4 * SECOND
    script.poll(group("Stable", member("c-1", 0, life="b")))
    assert [rebalance.outcome for rebalance in script.history().rebalances] == ["empty", "stable"], "formed again"


def test_the_new_protocol_shows_whom_it_waits_for() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0, 1, target=(0, 1)), protocol="consumer"))
    joined = member("c-2", target=(1,))
    script.poll(group("Reconciling", member("c-1", 0, 1, target=(0,)), joined, protocol="consumer"))
    assert script.view().waits_for == ("c-1 (10.0.0.1)", "c-2 (10.0.0.2)")
    one = member("c-1", 0, target=(0,))
    script.poll(group("Reconciling", one, joined, protocol="consumer"))
    assert script.view().waits_for == ("c-2 (10.0.0.2)",)
    assert script.view().paused == 1, "its owner has given it up, the next has not taken it"
    script.poll(group("Stable", one, member("c-2", 1, target=(1,)), protocol="consumer"))
    (rebalance,) = script.history().rebalances
    assert (rebalance.cause, rebalance.outcome, rebalance.moved) == (Cause.NEW_MEMBER, "stable", 1)
    assert [(pause.partition, pause.from_ns) for pause in script.history().pauses] == [(1, START + 4 * SECOND)]


def test_each_change_of_members_is_an_epoch() -> None:
    script = Script()
    one = member("c-1", 0, target=(0,))
    script.poll(group("Stable", one, protocol="consumer"))
    script.poll(group("Reconciling", one, member("c-2", target=(1,)), protocol="consumer"))
    script.poll(group("Reconciling", one, member("c-2", target=()), member("c-3", target=(1,)), protocol="consumer"))
    first, second = script.history().rebalances
    assert (first.outcome, first.client_id, second.client_id) == ("interrupted", "c-2", "c-3")


def test_a_coordinator_moves() -> None:
    script = Script()
    script.poll(TWO)
    changes = script.poll(group("PreparingRebalance", member("c-1"), member("c-2")), coordinator="k2:9092")
    assert kinds(changes) == [ChangeKind.COORDINATOR_MOVED, ChangeKind.REBALANCE_BEGAN]
    history = script.history()
    (outage,) = history.outages
    assert (outage.kind, outage.from_ns, outage.to_ns) == ("coordinator moved", START, START + 2 * SECOND)
    assert (outage.broker, outage.rebalance) == ("k1:9092", 1)
    assert history.rebalances[0].cause == Cause.COORDINATOR_FAILOVER


def test_a_group_that_is_loaded_is_an_outage() -> None:
    script = Script()
    script.poll(TWO)
    assert kinds(script.poll(unanswered={"billing": LOADING})) == [ChangeKind.UNANSWERED]
    assert script.poll(unanswered={"billing": LOADING}) == []
    assert script.view().state is None
    assert kinds(script.poll(TWO)) == [ChangeKind.ANSWERED]
    (outage,) = script.history().outages
    assert (outage.kind, outage.from_ns, outage.to_ns) == ("loading", START + 2 * SECOND, START + 6 * SECOND)


def test_a_refusal_is_no_outage() -> None:
    script = Script()
    script.poll(TWO)
    script.poll(unanswered={"billing": Unanswered("refused", "Group authorization failed.")})
    assert script.history().outages == []
    assert script.view().unanswered == "Group authorization failed."


def test_an_offset_that_goes_back_is_a_change() -> None:
    script = Script()
    script.poll(TWO, committed={0: 900}, ends={0: 1000})
    (change,) = script.poll(TWO, committed={0: 0}, ends={0: 1000})
    assert change.text == "the committed offset of orders/0 went back from 900 to 0"
    assert [(row.lag, row.member_id) for row in script.history().lag] == [(100, "c-1-a"), (1000, "c-1-a")]


GONE = Change(START + 3 * SECOND, "billing", ChangeKind.MEMBER_GONE, "member c-2 (10.0.0.2) gone", Identity("c-2-a"))
ENDED = Change(
    START + 3 * SECOND, "billing", ChangeKind.REBALANCE_ENDED, "3 partitions moved", None, 4, "member left", 0.5
)


def test_one_line_for_each_group_and_poll() -> None:
    other = Change(START + 3 * SECOND, "a\x1b[31mudit", ChangeKind.GROUP_SEEN, "Empty, 0 members")
    lines = list(lines_of([GONE, ENDED, other]))
    assert lines[0] == "12:00:03 billing: member c-2 (10.0.0.2) gone; 3 partitions moved"
    assert lines[1] == "12:00:03 a\\x1b[31mudit: Empty, 0 members"
    assert list(lines_of([Change(START, None, ChangeKind.ANSWERED, "k1 answers again")])) == [
        "12:00:00 k1 answers again"
    ]


def test_json_has_what_is_known() -> None:
    first, second = (json.loads(json.dumps(change.to_json())) for change in (GONE, ENDED))
    assert (first["kind"], first["member_id"], first["client_id"]) == ("member gone", "c-2-a", None)
    assert (second["rebalance"], second["cause"], second["confidence"]) == (4, "member left", 0.5)
    assert first["time"] == "2026-11-21T12:00:03.000000000Z"


A, B = ("orders", 0), ("orders", 1)


def take(book: LagBook, second: float, committed: dict, ends: dict) -> list:  # type: ignore[type-arg]  # of places
    return list(book.record(START + int(second * SECOND), committed, ends, {A: "m-1"}))


def test_rows_are_kept_where_something_changes() -> None:
    book = LagBook("g")
    for second in range(0, 65, 5):
        take(book, second, {A: 5, B: 5}, {A: 5, B: 5 + second})
    rows = book.rows()
    assert [(row.time_ns - START) // SECOND for row in rows if row.partition == 0] == [0, 60]
    assert len([row for row in rows if row.partition == 1]) == 13
    assert rows[-1].lag == 60


def test_without_a_commit_the_lag_is_unknown() -> None:
    book = LagBook("g")
    take(book, 0, {}, {A: 70})
    (row,) = book.rows()
    assert (row.committed_offset, row.lag, row.end_offset, row.member_id) == (None, None, 70, "m-1")


def test_a_commit_beyond_the_end_is_no_negative_lag() -> None:
    book = LagBook("g")
    take(book, 0, {A: 71}, {A: 70})
    assert book.now[A].lag == 0


def test_growth_is_not_noise() -> None:
    book = LagBook("g")
    for second in range(0, 61, 5):
        take(book, second, {A: 0, B: 0}, {A: 100 * second, B: 50 if second % 10 else 0})
    assert list(book.growth()) == [(A, 100.0)]


def test_a_partition_that_catches_up_does_not_grow() -> None:
    book = LagBook("g")
    for second in range(0, 121, 5):
        take(book, second, {A: 0}, {A: 100 * max(60 - second, 0)})
    assert list(book.growth()) == []


def test_a_short_watch_shows_no_growth() -> None:
    book = LagBook("g")
    take(book, 0, {A: 0}, {A: 1})
    take(book, 5, {A: 0}, {A: 9})
    assert list(book.growth()) == []


def test_offsets_that_go_back_are_returned() -> None:
    book = LagBook("g")
    assert take(book, 0, {A: 7, B: 3}, {A: 9, B: 9}) == []
    assert [(back.place, back.before, back.after) for back in take(book, 5, {A: 2, B: 4}, {A: 9, B: 9})] == [(A, 7, 2)]


def test_a_partition_that_is_gone_is_forgotten() -> None:
    book = LagBook("g")
    take(book, 0, {A: 7, B: 3}, {A: 9, B: 9})
    take(book, 5, {A: 7}, {A: 9})
    assert set(book.now) == {A}


def test_thinning_drops_the_older_rows_first() -> None:
    book = LagBook("g")
    for second in range(100):
        take(book, second, {A: second}, {A: 200})
        book.thin(40)
    seconds = [(row.time_ns - START) // SECOND for row in book.rows()]
    assert len(seconds) <= 40
    assert seconds[-5:] == [95, 96, 97, 98, 99]
    gaps = [later - earlier for earlier, later in pairwise(seconds)]
    assert gaps[0] > gaps[-1] == 1
