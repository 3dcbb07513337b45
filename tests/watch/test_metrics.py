"""What Prometheus reads of a watch, by its own parser: values, escaping, bounded series."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from kcoord_wire.watch.groups import MOST_TOPICS, OTHER_TOPICS, STATES, Snapshot, WatchMetrics
from kcoord_wire.watch.seen import Poll, Unanswered
from tests.support.watching import Script, group, member

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
    script.watched.take(Poll(script.now, {"billing": seen}, {}, {"billing": dict.fromkeys(places, 0)}, places))
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
