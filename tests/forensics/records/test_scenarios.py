"""Logs that our own coordinator writes in a virtual cluster, explained, and compared with its account of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest

from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import RebalanceAccount, Trigger
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory, LogRow, Rebalance, table_of
from kcoord_wire.forensics.records.reader import log_histories, log_history
from kcoord_wire.records import SegmentReader
from kcoord_wire.worlds.group.world import Cluster, random_script

QUICK = GroupConfig(initial_rebalance_delay_ms=0)
EVERYTHING = 1 << 40  # bytes before which nothing is compacted
COOPERATIVE = ("cooperative-sticky",)
CAUSES = {
    Trigger.NEW_MEMBER: {Cause.NEW_MEMBER},
    Trigger.MEMBER_LEFT: {Cause.MEMBER_LEFT},
    Trigger.SESSION_EXPIRED: {Cause.SESSION_EXPIRED, Cause.MEMBER_LEFT},
    Trigger.LEADER_REJOINED: {Cause.LEADER_REJOINED, Cause.TOPICS_CHANGED},
    Trigger.SUBSCRIPTION_CHANGED: {  # to the coordinator, any change of a subscription's bytes
        Cause.SUBSCRIPTION_CHANGED,
        Cause.COOPERATIVE_FOLLOW_UP,
        Cause.TOPICS_CHANGED,
        Cause.LEADER_REJOINED,
        Cause.REBALANCE_TIMEOUT,
    },
    Trigger.STATIC_REPLACED: {Cause.STATIC_REPLACED},
    Trigger.PROTOCOLS_CHANGED: {  # any change, to a coordinator that has read of each member the chosen assignor alone
        Cause.ASSIGNORS_CHANGED,
        Cause.SUBSCRIPTION_CHANGED,
        Cause.TOPICS_CHANGED,
    },
}
"""What the log can make of a trigger."""


def records_of(sim: Cluster) -> pa.Table:
    """What the coordinator has written."""
    disk = sim._coordinator.disk
    rows = []
    for name in sorted(name for name in disk.sizes() if name.endswith(".log")):
        with disk.read(name) as file:
            for batch in SegmentReader(file):
                for record in batch.records:
                    time = record.timestamp * 1_000_000
                    rows.append(LogRow(name, 0, record.offset, batch.position, time, record.key, record.value))
    return table_of(LogRow, rows)


Accounts = dict[tuple[int, int], RebalanceAccount]
"""Rebalances that came to a generation, by it and the end in ns: after a crash a generation may come again."""


def accounts(sim: Cluster, group: str = "group") -> Accounts:
    return {
        (item.generation_id, (item.ended_at or 0) * 1_000_000): item
        for item in sim.rebalances
        if item.group_id == group and item.outcome in ("stable", "empty")
    }


def account_of(rebalance: Rebalance, accounted: Accounts) -> RebalanceAccount | None:
    return accounted.get((rebalance.generation_id or 0, rebalance.ended_ns or 0))


# ---- one thing at a time


def joins(sim: Cluster) -> None:
    for name in ("m1", "m2", "m3"):
        sim.member(name)
        sim.run(20_000)


def leaves(sim: Cluster) -> None:
    joins(sim)
    sim.leave("m2")


def dies(sim: Cluster) -> None:
    joins(sim)
    sim.run(60_000)
    sim.crash("m2")


def all_leave(sim: Cluster) -> None:
    joins(sim)
    for name in ("m1", "m2", "m3"):
        sim.leave(name)
        sim.run(20_000)


def subscribes(sim: Cluster) -> None:
    joins(sim)
    sim.subscribe("m2", ["a"])


def grows(sim: Cluster) -> None:
    joins(sim)
    sim.add_partitions("a", 3)


def two_rounds(sim: Cluster) -> None:
    for name in ("m1", "m2", "m3"):
        sim.member(name, assignors=COOPERATIVE)
        sim.run(20_000)


def static_restart(sim: Cluster) -> None:
    for name in ("m1", "m2"):
        sim.member(name, instance_id=f"i-{name}")
        sim.run(20_000)
    sim.restart("m2")


def static_restart_with_other_assignor(sim: Cluster) -> None:
    for name in ("m1", "m2"):
        sim.member(name, instance_id=f"i-{name}", assignors=("range", "roundrobin"))
        sim.run(20_000)
    sim.restart("m2", assignors=("roundrobin",))


def static_member_misses_a_join(sim: Cluster) -> None:
    patient = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 10_000}
    for name in ("m1", "m2"):
        sim.member(name, instance_id=f"i-{name}", **patient)
        sim.run(20_000)
    sim.pause("m2", 15_000)
    sim.member("m3", instance_id="i-m3", **patient)


def restarts(sim: Cluster) -> None:
    joins(sim)
    sim.restart("m2")


def many(sim: Cluster) -> None:
    for number in range(40):
        sim.member(f"m{number}")


N, L, F = Cause.NEW_MEMBER, Cause.MEMBER_LEFT, Cause.COOPERATIVE_FOLLOW_UP
SCENARIOS: list[tuple[Callable[[Cluster], None], list[Cause]]] = [
    (joins, [N, N, N]),
    (leaves, [N, N, N, L]),
    (dies, [N, N, N, Cause.SESSION_EXPIRED]),
    (all_leave, [N, N, N, L, L, L]),
    (subscribes, [N, N, N, Cause.SUBSCRIPTION_CHANGED]),
    (grows, [N, N, N, Cause.TOPICS_CHANGED]),
    (two_rounds, [N, N, F, N, F]),
    (static_restart, [N, N]),
    (static_restart_with_other_assignor, [N, N, Cause.STATIC_REPLACED]),
    (static_member_misses_a_join, [N, N, N, Cause.REBALANCE_TIMEOUT]),
    (many, [N]),
]


def played(scenario: Callable[[Cluster], None], seed: int = 5) -> tuple[GroupHistory, Accounts]:
    config = GroupConfig(initial_rebalance_delay_ms=3_000) if scenario is many else QUICK
    with Cluster(seed, topics={"a": 6, "b": 3}, config=config, min_compaction_bytes=EVERYTHING) as sim:
        scenario(sim)
        sim.run(120_000)
        return log_history(records_of(sim)), accounts(sim)


@pytest.mark.parametrize(("scenario", "causes"), SCENARIOS, ids=lambda item: getattr(item, "__name__", ""))
def test_scenarios(scenario: Callable[[Cluster], None], causes: list[Cause]) -> None:
    history, accounted = played(scenario)
    assert [rebalance.cause for rebalance in history.rebalances] == causes
    for rebalance in history.rebalances:
        account = account_of(rebalance, accounted)
        assert account is not None
        assert rebalance.cause in CAUSES[account.trigger]
        if rebalance.client_id is not None:
            assert rebalance.client_id == account.client_id
            assert rebalance.client_host == account.client_host.lstrip("/")
        agrees(rebalance, account)


def agrees(rebalance: Rebalance, account: RebalanceAccount) -> None:
    """What the log tells outright is what the coordinator says."""
    assert rebalance.outcome == account.outcome
    assert rebalance.assignor == account.protocol
    if account.outcome == "stable":
        assert rebalance.leader_id == account.leader_id
        joined = {member_id for member_id, _ in account.joins} - gone(account)
        assert rebalance.members_after >= len(joined), "static members stay, joined or not"


def gone(account: RebalanceAccount) -> set[str]:
    return {removal.member_id for removal in account.removed}


def test_a_crash_without_commits_is_one_of_many() -> None:
    with Cluster(5, topics={"a": 6}, config=QUICK) as sim:
        for name in ("m1", "m2"):
            sim.member(name, commit_ms=None)
            sim.run(20_000)
        sim.crash("m2")
        sim.run(120_000)
        last = log_history(records_of(sim)).rebalances[-1]
    assert (last.cause, last.client_id, last.confidence) == (Cause.MEMBER_LEFT, "m2", 0.5)
    assert last.removed[0].why == "left or timed out"


def test_a_restart_is_one_of_two() -> None:
    history, _ = played(restarts)
    (both,) = [rebalance for rebalance in history.rebalances if rebalance.number == 4]
    assert both.cause is Cause.NEW_MEMBER
    assert both.confidence < 0.7
    assert "either of which" in both.detail


def test_generations_without_a_record_are_counted() -> None:
    """A leader that stalls after its join has been answered: its generation ends before it has assigned."""
    with Cluster(3, topics={"a": 4}, config=QUICK, min_compaction_bytes=EVERYTHING) as sim:
        sim.member("m1", rebalance_timeout_ms=10_000)
        sim.run(20_000)
        while sim.state().value != "CompletingRebalance":
            if "m2" not in sim.processes:
                sim.member("m2", rebalance_timeout_ms=10_000)
            sim.run(1)
        leader = sim.leader()
        assert leader is not None
        sim.partition(leader.name, 30_000)
        sim.run(120_000)
        history = log_history(records_of(sim))
    generations = [rebalance.generation_id or 0 for rebalance in history.rebalances]
    missing = sum(after - before - 1 for before, after in pairwise(generations))
    assert missing > 0
    assert any(f"{missing} generation" in text for text in history.group.blind)
    assert any("in between did not get that far" in rebalance.detail for rebalance in history.rebalances)


def test_compacted_logs() -> None:
    with Cluster(5, topics={"a": 6}, config=QUICK, segment_bytes=2_000, min_compaction_bytes=2_000) as sim:
        joins(sim)
        sim.run(600_000)
        history = log_history(records_of(sim))
    (rebalance,) = history.rebalances
    assert (rebalance.cause, rebalance.confidence) == (Cause.UNKNOWN, 0.0)
    assert "compacted" in rebalance.detail
    assert {life.client_id for life in history.members} == {"m1", "m2", "m3"}
    assert len([item for item in history.ownership if item.to_ns is None]) == 6


def test_random_lives() -> None:
    """Many events at once, faults and crashes of the coordinator too: the histories claim nothing untrue."""
    sure: Counter[bool] = Counter()
    for seed in range(60):
        script = random_script(seed)
        with script.with_options(min_compaction_bytes=EVERYTHING).open() as sim:
            script.play(sim)
            sim.heal()
            sim.run(60_000)
            for history in log_histories(records_of(sim)):
                consistent(history)
                accounted = accounts(sim, history.group.group_id)
                for rebalance in history.rebalances:
                    account = account_of(rebalance, accounted)
                    if account is not None:  # else it crashed before it could say
                        assert (rebalance.outcome, rebalance.assignor) == (account.outcome, account.protocol)
                        if rebalance.confidence >= 0.9:
                            sure[rebalance.cause in CAUSES.get(account.trigger, ())] += 1
    assert sure[True] > 50
    assert sure[True] > 20 * sure[False]


def consistent(history: GroupHistory) -> None:
    """The laws of the tables, whatever has happened."""
    held: dict[tuple[str, int], int | None] = {}
    for item in sorted(history.ownership, key=lambda item: item.from_ns):
        place = (item.topic, item.partition)
        until = held.get(place, 0)
        assert until is not None
        assert until <= item.from_ns, "one owner at a time"
        assert item.to_ns is None or item.from_ns < item.to_ns
        held[place] = item.to_ns
    for one, other in pairwise(history.states):
        assert one.to_ns is not None
        assert one.to_ns <= other.from_ns
    ids = {life.member_id for life in history.members}
    assert {item.member_id for item in history.ownership} <= ids
    for rebalance in history.rebalances:
        assert {removed.member_id for removed in rebalance.removed} <= ids
        assert 0 <= rebalance.moved_needlessly <= rebalance.moved
        assert 0 <= rebalance.confidence <= 1
    assert [rebalance.started_ns for rebalance in history.rebalances] == sorted(
        rebalance.started_ns for rebalance in history.rebalances
    )


def test_order_and_chunks_do_not_matter() -> None:
    with Cluster(7, topics={"a": 6, "b": 3}, config=QUICK, min_compaction_bytes=EVERYTHING) as sim:
        two_rounds(sim)
        sim.member("other", group="another")
        sim.leave("m2")
        sim.run(60_000)
        records = records_of(sim)
    expected = log_histories(records)
    random = Random(11)
    for _ in range(50):
        order = list(range(records.num_rows))
        random.shuffle(order)
        order += random.sample(order, 30)  # read twice
        pieces = []
        while order:
            size = random.randint(1, 400)
            pieces.append(records.take(order[:size]))
            order = order[size:]
        assert log_histories(pa.concat_tables(pieces)) == expected
