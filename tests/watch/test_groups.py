"""All groups of a cluster: what is answered and what is not, findings, and the bounds of memory.

What Prometheus reads of a watch, by its own parser: values, escaping, bounded series.
"""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kcoord_wire.report.digest import headline
from kcoord_wire.watch.groups import MOST_TOPICS, OTHER_TOPICS, STATES, Limits, Snapshot, Watched, WatchMetrics
from kcoord_wire.watch.polled_group import ChangeKind
from kcoord_wire.watch.seen import Poll, Unanswered
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


def test_a_rebalance_follows_from_each_outage_before_it() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0)))
    script.miss()
    script.poll(group("Stable", member("c-1", 0)), coordinator="k2:9092")
    script.poll(group("PreparingRebalance", member("c-1")), coordinator="k2:9092")
    history = script.history()
    assert [(outage.kind, outage.rebalance) for outage in history.outages] == [
        ("broker down", 1),
        ("coordinator moved", 1),
    ]
    assert not any("no rebalance" in finding.text for finding in history.findings)


def test_an_outage_without_a_rebalance_says_so() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0)))
    script.miss()
    script.poll(group("Stable", member("c-1", 0)))
    [found] = [each for each in script.history().findings if each.detector == "outage"]
    assert found.text.endswith("it cost no rebalance")


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "under way"])
def test_a_slow_reconciliation_is_the_headline(ends: bool) -> None:
    """As of a capture, but without an epoch: the Admin API shows none."""
    script = Script()
    script.poll(group("Stable", member("c-1", 0, 1, target=[0, 1]), protocol="consumer", assignor="uniform"))
    two = member("c-1", 0, 1, target=[0]), member("c-2", target=[1])
    for _ in range(5):
        script.poll(group("Reconciling", *two, protocol="consumer", assignor="uniform"))
    if ends:
        two = member("c-1", 0, target=[0]), member("c-2", 1, target=[1])
        script.poll(group("Stable", *two, protocol="consumer", assignor="uniform"))
    found = headline(script.history())
    waited = "10.0 s" if ends else "8.0 s"
    assert found.severity == "warning"
    assert found.text == f"the reconciliation waited {waited} for c-1 (10.0.0.1) to give up partitions"


def test_one_broker_of_three_concerns_its_own_groups() -> None:
    script = Script()
    stable = [group("Stable", member("c-1", 0), name=name) for name in ("a", "b", "c")]
    script.poll(*stable)
    for _ in range(3):
        script.poll(*stable[:2], unanswered={"c": Unanswered("broker down", "timed out")})
    script.poll(*stable)
    histories = {history.group.group_id: history for history in script.watched.histories()}
    assert [len(histories[name].outages) for name in "abc"] == [0, 0, 1]
    assert [headline(histories[name]).severity for name in "abc"] == ["quiet", "quiet", "warning"]
    assert headline(histories["c"]).text == "the watch was not answered about the group: timed out"


def test_a_rebalance_between_two_polls_follows_an_outage() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0), member("c-2", 1)))
    script.miss()
    script.poll(group("Stable", member("c-1", 0, 1)))
    [found] = [each for each in script.history().findings if each.detector == "outage"]
    assert found.text.endswith("Connection refused; rebalance #1 followed")


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


Sample = tuple[str, ...]


def samples(text: str) -> dict[Sample, float]:
    """All samples, by name and label values in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(script: Script) -> dict[Sample, float]:
    return samples(WatchMetrics(lambda: script.watched.snapshot).exposition().decode())


def test_before_the_first_poll() -> None:
    seen = samples(WatchMetrics(Snapshot).exposition().decode())
    assert (seen["kcoord_watch_up",], seen["kcoord_watch_groups",]) == (0, 0)


def test_what_a_watch_shows() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0), member("c-2", 1)), committed={0: 5, 1: 5}, ends={0: 9, 1: 6})
    script.poll(group("PreparingRebalance", member("c-1")))
    script.poll(group("Stable", member("c-1", 0)))
    seen = scraped(script)
    assert seen["kcoord_watch_up",] == 1
    assert seen["kcoord_watch_polls_total", "answered"] == 3
    assert {state: seen["kcoord_group_state", "billing", state] for state in STATES if state == "Stable"} == {
        "Stable": 1
    }
    assert sum(value for name, value in seen.items() if name[0] == "kcoord_group_state") == 1
    assert seen["kcoord_group_members", "billing"] == 1
    assert seen["kcoord_group_lag", "billing", "orders"] == 5
    assert seen["kcoord_group_paused_partitions", "billing"] == 1
    assert seen["kcoord_group_rebalances_total", "member left", "billing"] == 1
    assert seen["kcoord_group_rebalancing_seconds_total", "billing"] == 2


def test_an_outage_and_a_group_that_is_not_described() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0)))
    script.poll(unanswered={"billing": Unanswered("loading", "load in progress")})
    assert not [name for name in scraped(script) if name[0] == "kcoord_group_state"]
    script.miss()
    seen = scraped(script)
    assert (seen["kcoord_watch_up",], seen["kcoord_watch_polls_total", "missed"]) == (0, 1)


def test_names_of_groups_are_escaped() -> None:
    name = 'a "b" \\ \n{c="d"} \x00é'
    script = Script()
    script.poll(group("Stable", member("c-1", 0), name=name))
    assert scraped(script)["kcoord_group_members", name] == 1


def test_topics_are_bounded() -> None:
    script = Script()
    places = {(f"t-{number}", 0): 1 for number in range(MOST_TOPICS + 50)}
    seen = group("Empty", assignor=None)
    script.watched.update(Poll(script.now, {"billing": seen}, {}, {"billing": dict.fromkeys(places, 0)}, places))
    lags = {name[2]: value for name, value in scraped(script).items() if name[0] == "kcoord_group_lag"}
    assert len(lags) == MOST_TOPICS + 1
    assert lags[OTHER_TOPICS] == 50


def test_it_is_scraped_over_http() -> None:
    script = Script()
    script.poll(group("Stable", member("c-1", 0)))
    with (
        WatchMetrics(lambda: script.watched.snapshot).serve() as server,
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer,
    ):
        assert samples(answer.read().decode())["kcoord_group_members", "billing"] == 1
