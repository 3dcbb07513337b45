"""What is inferred of groups of the draft, compared with the coordinator's own account in the virtual cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcoord_wire.central.draft.events import CoordinatorSettings, RebalanceBy
from kcoord_wire.forensics.model import NS_PER_MS, Cause, GroupHistory
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.worlds.central.cluster import CentralCluster
from tests.support.central_tap import CentralTap

Act = Callable[[CentralCluster], None]


def leader(sim: CentralCluster) -> int:
    process = sim.leader
    assert process is not None
    return process.broker_id


ACTS: dict[str, tuple[Act, Cause, str | None]] = {
    "added": (lambda sim: sim.consumer("c4"), Cause.NEW_MEMBER, "c4"),
    "killed": (lambda sim: sim.crash("c2"), Cause.MEMBER_LEFT, "c2"),
    "shut down": (lambda sim: sim.shut_down("c2"), Cause.MEMBER_LEFT, "c2"),
    "paused": (lambda sim: sim.pause("c2", 30_000), Cause.SESSION_EXPIRED, "c2"),
    "cut off": (lambda sim: sim.cut("c2", None, 30_000), Cause.SESSION_EXPIRED, "c2"),
    "partitions": (lambda sim: sim.add_partitions("orders", 1, 1), Cause.TOPICS_CHANGED, None),
    "coordinator killed": (lambda sim: sim.crash_broker(leader(sim), 20_000), Cause.COORDINATOR_FAILOVER, None),
    "coordinator paused": (lambda sim: sim.pause_broker(leader(sim), 30_000), Cause.COORDINATOR_FAILOVER, None),
    "deposed": (lambda sim: sim.depose(), Cause.COORDINATOR_FAILOVER, None),
}
"""What is done to a settled cluster, the cause of the rebalance that follows, and the consumer behind it."""


def played(act: Act, seed: int, **options: Any) -> tuple[CentralCluster, GroupHistory, int]:
    """Play an act on a settled cluster; return its history, and when the act was, in ns."""
    with CentralCluster(seed, topics={"orders": 3}, brokers=2, consumers=3, **options) as sim:
        tap = CentralTap(sim)
        sim.run_until(sim.is_settled)
        sim.run(5_000)
        at = EPOCH_MS + sim.now
        act(sim)
        sim.run(25_000)
        sim.run_until(sim.is_settled)
        sim.run(2_000)  # the coordinator notes a rebalance when its owners are written
    analysis = tap.analyze()
    assert analysis.losses == []
    (history,) = analysis.histories
    return sim, history, at * NS_PER_MS


def noted(sim: CentralCluster, what: str) -> list[Any]:
    return [line.detail for line in sim.trace if line.what == what]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"is_fenced": True}, {"is_fenced": False}, {"settings": CoordinatorSettings(rebalance_by=RebalanceBy.SOCKETS)}],
    ids=["epochs", "no epochs", "by sockets"],
)
@pytest.mark.parametrize("name", ACTS)
def test_the_rebalance_after_an_act_has_its_cause(name: str, options: dict[str, Any]) -> None:
    act, cause, consumer = ACTS[name]
    sim, history, at = played(act, 7, **options)
    following = [row for row in history.rebalances if row.started_ns >= at]
    assert following
    assert (following[0].cause, following[0].member_id) == (cause, consumer), following[0].detail
    stable = [row for row in history.rebalances if row.outcome == "stable"]
    assert len(stable) == len(noted(sim, "rebalance completed"))
    assert len(history.rebalances) == len(noted(sim, "rebalance started"))
