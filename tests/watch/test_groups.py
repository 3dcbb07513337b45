"""All groups of a cluster: what is answered and what is not, findings, and the bounds of memory."""

from __future__ import annotations

from kcoord_wire.watch.group import ChangeKind
from kcoord_wire.watch.groups import Limits, Watched
from tests.support.watching import SECOND, START, Script, group, member


def test_groups_are_apart() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0)), group("Empty", name="audit", assignor=None))
    changes = script.poll(group("Stable", member("c-1", 0), member("c-2")), group("Empty", name="audit", assignor=None))
    assert {change.group_id for change in changes} == {"billing"}
    assert [view.group_id for view in script.watched.snapshot.groups] == ["audit", "billing"]
    assert [history.group.group_id for history in script.watched.histories()] == ["audit", "billing"]


def test_an_outage_of_the_cluster_is_one_of_each_group() -> None:
    script = Script()
    stable = group("Stable", member("c-1", 0)), group("Stable", member("c-1", 0), name="audit")
    script.poll(*stable)
    (change,) = script.miss()
    assert (change.kind, change.group_id) == (ChangeKind.UNANSWERED, None)
    assert script.miss() == []
    assert script.watched.snapshot.unanswered == "Connection refused"
    assert script.watched.snapshot.polls == (1, 2)
    changes = script.poll(*stable)
    assert changes[0].text == "k1:9092 answers again"
    for history in script.watched.histories():
        (outage,) = history.outages
        assert (outage.kind, outage.broker) == ("broker down", "k1:9092")
        assert (outage.from_ns, outage.to_ns) == (START + 2 * SECOND, START + 6 * SECOND)
        assert outage.members == [], "who else was not answered is not known"


def test_a_rebalance_after_an_outage_is_linked_to_it() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0)))
    script.miss()
    script.poll(group("PreparingRebalance", member("c-1")))
    history = script.history()
    assert (history.outages[0].rebalance, history.rebalances[0].cause) == (1, "coordinator failover")


def test_a_flapping_member_is_found() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0, 1)))
    for life in range(12):
        script.poll(group("Stable", member("c-1", 0), member("c-2", 1, life=str(life))))
        script.poll(group("Stable", member("c-1", 0, 1)))
    assert "flapping_member" in {finding.detector for finding in script.history().findings}


def test_more_groups_than_the_limit_are_left_out() -> None:
    watched = Watched("k1:9092", Limits(groups=2))
    assert watched.wanted(["c", "b", "a"]) == ["a", "b"]
    Script(watched).poll(group("Empty", name="c", assignor=None))
    assert watched.wanted(["a", "b", "c"]) == ["c", "a"], "the ones that are watched already stay"


def test_rows_are_bounded_and_it_is_said() -> None:
    script = Script(Watched("k1:9092", Limits(rows=100, lag_rows=100)))
    for number in range(400):
        some = [member("c-2", 1, life=str(number))] if number % 2 else []
        offsets = {0: number, 1: number}
        script.poll(group("Stable", member("c-1", 0), *some), committed=offsets, ends={0: number + 9, 1: number})
    history = script.history()
    assert max(map(len, (history.rebalances, history.members, history.ownership, history.lag))) <= 102
    assert history.rebalances[-1].number == 399, "numbers go on"
    assert any("dropped" in sentence for sentence in history.group.blind)
    assert [life.client_id for life in history.members if life.left_ns is None] == ["c-1", "c-2"]
    assert script.view().causes == {"member left": 199, "new member": 200}
    assert history.lag[-1].time_ns == script.now


def test_groups_that_are_gone_are_bounded() -> None:
    script = Script(Watched("k1:9092", Limits(groups=3)))
    for number in range(10):
        script.poll(group("Empty", name=f"console-{number}", assignor=None))
    assert len(script.watched.histories()) == 4
