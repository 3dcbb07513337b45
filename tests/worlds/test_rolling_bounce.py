"""A rolling bounce on the virtual cluster: what each protocol costs, and why."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.worlds.consumer_groups.rolling_bounce import (
    PROTOCOLS,
    BounceResult,
    BounceWorkload,
    Work,
    WorkEvent,
    account,
    simulate_bounce,
)
from kcoord_wire.worlds.consumer_groups.stores import Stores, StoreSettings
from kcoord_wire.worlds.group.world import Cluster

SMALL = BounceWorkload(members=4, topics={"orders": 8, "payments": 8}, revoke_ms=50, assign_ms=200, down_ms=4_000)
STATE_STORES = BounceWorkload(
    members=10, topics={"events": 300}, revoke_ms=50, assign_ms=500, opens_aside=True, down_ms=15_000
)


@cache
def small(protocol: str) -> BounceResult:
    return simulate_bounce(SMALL, protocol, seed=1)


def bounce(protocol: str, seed: int = 1, **changes: Any) -> BounceResult:
    options: dict[str, Any] = {
        "members": 3,
        "topics": {"orders": 6},
        "down_ms": 2_000,
        "assign_ms": 20,
        "revoke_ms": 10,
    }
    return simulate_bounce(BounceWorkload(**options | changes), protocol, seed)


def test_eager_members_open_every_partition_twice_a_restart() -> None:
    for protocol in ("eager", "sticky"):
        result = small(protocol)
        assert result.rebalances == 2 * 4
        assert result.opened == 2 * 4 * 16
    assert small("sticky").moves < small("eager").moves, "it opens as many, but in the same places"


def test_cooperative_members_open_only_what_moves() -> None:
    """A restart moves the four partitions of an instance away and four back; the latter takes a follow-up rebalance."""
    result = small("cooperative")
    assert result.moves == result.opened == 2 * 4 * 4
    assert result.rebalances == 3 * 4


def test_static_members_restart_without_a_rebalance() -> None:
    """Each partition is away while its instance closes 4, is down and opens 4."""
    result = small("static")
    assert (result.rebalances, result.moves, result.opened) == (0, 0, 16)
    away = 4 * 50 + 4_000 + 4 * 200
    assert away < result.longest_pause_ms < away + 200
    assert result.pause_partition_ms == pytest.approx(16 * away, rel=0.02)


def test_members_of_kip_848_give_up_only_what_moves() -> None:
    """The four partitions of each instance go away and come back; no instance but its own stands still for long."""
    result, eager = (simulate_bounce(SMALL, name, seed=0) for name in ("consumer", "eager"))
    assert (result.label, result.rebalances, result.moves, result.opened) == ("consumer", 8, 32, 32)
    assert result.pause_partition_ms < eager.pause_partition_ms / 2
    assert result.pause_instance_ms < eager.pause_instance_ms / 2


def test_partitions_may_be_opened_beside_the_work() -> None:
    aside, listening = (bounce("consumer", assign_ms=400, opens_aside=opens_aside) for opens_aside in (True, False))
    assert aside.pause_instance_ms < listening.pause_instance_ms
    assert aside.opened == listening.opened


def test_down_time_is_the_same_for_all_protocols() -> None:
    expected = 4 * (4 * 50 + 4_000)
    assert {small(name).down_instance_ms for name in ("eager", "static", "consumer")} == {expected}


def test_throughput_falls_and_recovers() -> None:
    """Before the bounce, and after the lag is gone, every record is processed as it comes."""
    for protocol in PROTOCOLS:
        result = small(protocol)
        arriving = 16 * SMALL.rate_per_s
        assert result.throughput[0] == pytest.approx(arriving)
        assert min(result.throughput) < arriving * 0.8
        assert max(result.throughput) > arriving
        assert result.lag_records > 0
        assert result.caught_up_ms is not None
        assert len(result.instances) == 4
    assert min(small("eager").throughput) < arriving / 10, "all stop"
    assert min(small("cooperative").throughput) > arriving / 2, "the others go on"


@pytest.mark.parametrize("protocol", ["eager", "consumer"])
def test_the_seed_decides_everything(protocol: str) -> None:
    assert bounce(protocol, seed=3) == bounce(protocol, seed=3)
    assert bounce(protocol, seed=3) != bounce(protocol, seed=4)


def restored(protocol: str, **changes: Any) -> BounceResult:
    """Three instances with four stores each, which take 3 s to restore and no time to open, and 10 s down: longer than
    a heartbeat interval, so that the group rebalances before an instance is back."""
    stores = {"topics": {"orders": 12}, "assign_ms": 0, "revoke_ms": 0, "opens_aside": True, "restore_ms": 3_000}
    stores |= {"down_ms": 10_000}
    return bounce(protocol, **stores | changes)


def test_a_store_on_disk_is_not_restored_where_it_was() -> None:
    """In memory an instance restores its four stores after its restart, 3 s each, one after the other."""
    disk, memory = (restored("static", store=store) for store in ("disk", "memory"))
    assert disk.pause_partition_ms == pytest.approx(12 * 10_000, rel=0.05)
    assert memory.pause_partition_ms - disk.pause_partition_ms == 3 * (3_000 + 6_000 + 9_000 + 12_000)
    moved = restored("cooperative")
    back = restored("cooperative", store="memory")
    assert (moved.moves, back.moves) == (24, 24), "away and back; on disk only the way there has something to restore"
    assert back.pause_partition_ms - moved.pause_partition_ms > 80_000, "the same, less what they overlap"


def test_a_standby_takes_over_without_restoring() -> None:
    alone, standby = (restored("cooperative", standbys=standbys) for standbys in (0, 1))
    assert alone.longest_pause_ms > 6_000 > 5_000 > standby.longest_pause_ms, "two of its stores go to each other one"
    assert (standby.opened, standby.moves, standby.rebalances) == (alone.opened, alone.moves, alone.rebalances)
    both = restored("cooperative", standbys=2, store="memory", warms_up=True)
    assert both.longest_pause_ms < 5_000


def test_a_partition_moves_when_its_new_instance_is_warm() -> None:
    cold, warm = (restored("cooperative", standbys=1, store="memory", warms_up=warms) for warms in (False, True))
    assert cold.longest_pause_ms > 4 * 3_000
    assert warm.longest_pause_ms < 5_000
    assert warm.pause_instance_ms >= 3 * 4 * 3_000, "the restarted instance does not work meanwhile"
    assert (warm.rebalances, cold.rebalances) == (3 * 4, 3 * 3), "one more for each restart"
    assert warm.moves == cold.moves


def test_eager_members_open_stores_that_they_have_in_no_time() -> None:
    """Those that come back to an instance within its life; the others are restored in memory."""
    disk, memory = (restored("eager", store=store, standbys=1) for store in ("disk", "memory"))
    assert disk.longest_pause_ms < 5_000 + 3_000
    assert memory.longest_pause_ms >= 4 * 3_000


@pytest.mark.parametrize("protocol", ["sticky", "consumer"])
def test_other_assignors_know_no_standbys(protocol: str) -> None:
    with_copies, without = (restored(protocol, restore_ms=restore_ms) for restore_ms in (1, 3_000))
    assert without.pause_partition_ms > with_copies.pause_partition_ms + 12_000
    assert restored(protocol, standbys=1).pause_partition_ms == without.pause_partition_ms, "it knows no standbys"


@pytest.mark.parametrize(("is_in_memory", "ms"), [(True, 3_020), (False, 20)])
def test_a_copy_in_memory_ends_when_another_opens_the_store(is_in_memory: bool, ms: int) -> None:
    with Cluster() as cluster:
        stores = Stores(cluster, StoreSettings(20, 3_000, is_in_memory, standbys=0, warms_up=False))
        store = frozenset({TopicPartition("orders", 0)})
        assert stores.opening_ms("m1", store) == 3_020
        for instance in ("m1", "m2"):
            cluster._clock.record(instance, "opened", store)
            assert stores.opening_ms(instance, store) == 20
        assert stores.opening_ms("m1", store) == ms


def test_stores_that_make_no_sense_are_refused() -> None:
    for changes in ({"standbys": 1}, {"warms_up": True}, {"store": "memory"}):
        with pytest.raises(ValueError, match="need a restore_ms above 0"):
            bounce("eager", **changes)
    with pytest.raises(ValueError, match="3 standbys need more than 3 members"):
        restored("eager", standbys=3)
    with pytest.raises(ValueError, match="no store is called 'tape'"):
        restored("eager", store="tape")
    with pytest.raises(ValueError, match=r"a member of 4 partitions needs .* 240000 ms to open them"):
        restored("eager", restore_ms=60_000, opens_aside=False, rebalance_timeout_ms=10_000)


def test_stops_at_intervals_do_not_wait_for_the_group() -> None:
    slow, fast = (bounce("eager", interval_ms=interval) for interval in (20_000, 1_000))
    assert slow.took_ms > 40_000
    assert fast.took_ms < 20_000
    assert fast.rebalances < slow.rebalances, "instances that are down at the same time share rebalances"


def test_a_session_shorter_than_the_outage_ends_membership() -> None:
    result = bounce("static", session_timeout_ms=6_000, down_ms=15_000)
    assert result.rebalances >= 3
    assert result.moves > 0


def test_an_outage_within_a_slow_revocation_saves_a_join() -> None:
    """The instance is back before the others have given up their partitions, so that one join serves both."""
    assert bounce("eager", revoke_ms=1_500, down_ms=100).rebalances == 3


def test_listeners_longer_than_the_poll_interval_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"does not settle: .* 40000 ms to open them; .* is 30000"):
        bounce("eager", assign_ms=20_000, rebalance_timeout_ms=30_000)
    with pytest.raises(ValueError, match="does not settle"):
        bounce("consumer", revoke_ms=20_000, rebalance_timeout_ms=1_000, session_timeout_ms=6_000)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"down_ms": -1}, "down_ms must be 0 or more, not -1"),
        ({"members": 0}, "members must be above 0, not 0"),
        ({"capacity_per_s": 0}, "capacity_per_s must be above 0"),
        ({"interval_ms": 0}, "interval_ms must be above 0"),
        ({"members": 7}, "7 members cannot share 6 partitions"),
        ({"client": "perl"}, "no client is called 'perl'"),
        ({"topics": {"orders": 0}}, "topic 'orders' needs one partition or more"),
    ],
)
def test_workloads_that_make_no_sense_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        bounce("eager", **wrong)


def test_unknown_protocols_are_refused() -> None:
    with pytest.raises(ValueError, match="no protocol is called 'lazy'; there are eager, sticky, cooperative, static"):
        bounce("lazy")


@pytest.mark.slow
def test_cooperative_pauses_are_a_tenth_of_eager_ones() -> None:
    """The blog's ratio is 37,138 ms / 3,522 ms = 10.5; 30 state stores an instance exceed it with every seed."""
    for seed in range(3):
        eager, cooperative = (simulate_bounce(STATE_STORES, name, seed) for name in ("eager", "cooperative"))
        assert eager.pause_partition_ms / cooperative.pause_partition_ms > 37_138 / 3_522


ALL = [TopicPartition("t", number) for number in range(4)]
A, B = frozenset(ALL[:2]), frozenset(ALL[2:])
STEADY = [
    WorkEvent(0, "a", Work.STARTS),
    WorkEvent(0, "b", Work.STARTS),
    WorkEvent(10, "a", Work.TAKES, A),
    WorkEvent(10, "b", Work.TAKES, B),
]


def cost(*events: WorkEvent, **changes: Any) -> BounceResult:
    options: dict[str, Any] = {
        "partitions": ALL,
        "rate_per_s": 10.0,
        "capacity_per_s": 40.0,
        "window_ms": (2_000, 6_000),
        "rebalances": 3,
        "around_ms": 1_000,
    }
    return account("test", [*STEADY, *events], **options | changes)


def test_a_quiet_window_costs_nothing() -> None:
    result = cost()
    assert (result.label, result.took_ms, result.rebalances) == ("test", 4_000, 3)
    assert (result.pause_partition_ms, result.pause_instance_ms, result.down_instance_ms) == (0, 0, 0)
    assert (result.longest_pause_ms, result.moves, result.opened, result.lag_records) == (0, 0, 0, 0.0)
    assert result.caught_up_ms == result.took_ms
    assert result.times_ms == [-1_000, 0, 1_000, 2_000, 3_000, 4_000]
    assert result.throughput == pytest.approx([40.0] * 6)


def test_a_listener_pauses_all_partitions_of_its_instance() -> None:
    result = cost(WorkEvent(2_000, "a", Work.BLOCKS), WorkEvent(3_000, "a", Work.RESUMES))
    assert result.pause_partition_ms == 2 * 1_000
    assert result.pause_instance_ms == 1_000
    assert result.longest_pause_ms == 1_000
    assert result.down_instance_ms == 0
    assert (result.instances["a"].paused_ms, result.instances["b"].paused_ms) == (1_000, 0)


def test_lag_is_worked_off_with_the_spare_capacity() -> None:
    """In one second 20 records of `a` pile up; at 40 per second, with 20 more arriving, they are gone after another."""
    result = cost(WorkEvent(2_000, "a", Work.BLOCKS), WorkEvent(3_000, "a", Work.RESUMES))
    assert result.throughput == pytest.approx([40, 20, 60, 40, 40, 40])
    assert result.instances["a"].throughput == pytest.approx([20, 0, 40, 20, 20, 20])
    assert result.instances["a"].records == pytest.approx(6 * 20)
    assert result.lag_records == pytest.approx(0)


def test_a_partition_takes_its_lag_to_its_next_instance() -> None:
    result = cost(
        WorkEvent(5_000, "a", Work.STOPS),
        WorkEvent(5_000, "b", Work.TAKES, A),
        WorkEvent(5_500, "a", Work.STARTS),
        WorkEvent(5_600, "b", Work.DROPS, frozenset(ALL[:1])),
        WorkEvent(6_000, "a", Work.TAKES, frozenset(ALL[:1])),
    )
    assert result.moves == 3
    assert result.opened == 3
    assert result.pause_partition_ms == 400
    assert result.down_instance_ms == 500
    assert result.pause_instance_ms == 500, "from its start to its first partition"
    assert result.lag_records == pytest.approx(4), "of the partition without an owner; the other instance kept up"


def test_without_spare_capacity_the_lag_grows_and_stays() -> None:
    result = cost(WorkEvent(2_000, "a", Work.STOPS), WorkEvent(2_000, "b", Work.TAKES, A), capacity_per_s=30.0)
    assert result.lag_records == pytest.approx(4 * 10)
    assert result.caught_up_ms is None
    assert result.down_instance_ms == 4_000


def test_the_rest_of_the_lag_is_foreseen() -> None:
    result = cost(WorkEvent(3_000, "a", Work.BLOCKS), WorkEvent(6_000, "a", Work.RESUMES))
    assert result.lag_records == pytest.approx(60)
    assert result.caught_up_ms == pytest.approx(4_000 + 3_000)


def test_a_pause_that_goes_on_counts_until_the_end() -> None:
    result = cost(WorkEvent(5_000, "a", Work.DROPS, frozenset(ALL[:1])), WorkEvent(7_500, "a", Work.TAKES, A))
    assert (result.longest_pause_ms, result.pause_partition_ms) == (1_000, 1_000)
    assert result.caught_up_ms is None, "a partition without an owner"


def test_events_of_a_stopped_instance_do_not_count() -> None:
    """A client's last answers may come after its application has begun to stop."""
    late = [WorkEvent(2_100, "a", Work.TAKES, A), WorkEvent(2_200, "a", Work.RESUMES)]
    events = [WorkEvent(2_000, "a", Work.STOPS), *late, WorkEvent(3_000, "b", Work.TAKES, A)]
    result = cost(*events)
    assert result.pause_partition_ms == 2 * 1_000
    assert result.moves == 2


def random_events(random: Random) -> list[WorkEvent]:
    """A history in which only partitions without an owner are taken, by instances that run."""
    owned = {"a": set(A), "b": set(B)}
    is_up = {"a": True, "b": True}
    events, at = [], 2_000.0
    while at < 6_000:
        name, some = random.choice("ab"), frozenset(random.sample(ALL, 2))
        what = random.choice(list(Work))
        if what is Work.TAKES:
            some = frozenset(set(ALL) - owned["a"] - owned["b"])
            owned[name] |= some if is_up[name] else set()
        elif what in (Work.DROPS, Work.STOPS):
            owned[name] -= some if what is Work.DROPS else set(ALL)
        is_up[name] = what is Work.STARTS or (is_up[name] and what is not Work.STOPS)
        events.append(WorkEvent(at, name, what, some))
        at += random.uniform(1, 400)
    return events


@pytest.mark.parametrize("capacity", [15.0, 40.0, 1_000.0])
def test_what_arrives_is_processed_or_is_lag(capacity: float) -> None:
    random = Random(5)
    for _ in range(50):
        result = cost(*random_events(random), window_ms=(2_000, 7_000), around_ms=0.0, capacity_per_s=capacity)
        processed = sum(result.throughput)
        assert processed == pytest.approx(sum(each.records for each in result.instances.values()))
        assert processed + result.lag_records == pytest.approx(5 * 40)
        assert max(result.throughput) <= 2 * capacity + 1e-6


def test_partitions_that_were_not_processed_before_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 partitions are not processed before the bounce"):
        cost(WorkEvent(500, "a", Work.DROPS, frozenset(ALL[:1])), WorkEvent(3_000, "a", Work.BLOCKS))
    with pytest.raises(ValueError, match="4 partitions are not processed"):
        account("x", [], partitions=ALL, rate_per_s=1, capacity_per_s=1, window_ms=(0, 1), rebalances=0)
