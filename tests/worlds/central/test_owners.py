"""Two owners of a partition: what brings them about in the draft and the rewrite, and what prevents them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kcoord_wire.central.rewrite.layout import GroupMetadata, metadata_path, shard_path
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.scripts import Do, Script, SimulationFailure, ViolationError, run_script
from kcoord_wire.worlds.central import CentralCluster, RewriteCluster
from kcoord_wire.worlds.central.draft_world import SETTINGS, ZOOKEEPER_MS
from kcoord_wire.worlds.central.rewrite_laws import Invariants
from kcoord_wire.zookeeper.layout import offset_path
from kcoord_wire.zookeeper.requests import Check, Create, SetData
from tests.support.planted_central_bugs import fence_not_compared

# ---- the draft


def late_messages(*, is_fenced: bool) -> Script[CentralCluster]:
    """What goes between a consumer and its coordinator takes 1.5 s; the consumer fetches from another broker."""
    options: dict[str, Any] = {
        "topics": {"t1": 1},
        "settings": SETTINGS,
        "zookeeper_timeout_ms": ZOOKEEPER_MS,
        "is_fenced": is_fenced,
        "kept": 400,
    }
    actions = [
        Do(0, "member", "c1", "g", None, True, 3_000),
        Do(0, "member", "c2", "g", None, True, 3_000),
        Do(6_000, "delay", "c2", "broker-1", 8_000, True, True, 1_500),
        Do(14_000, "crash", "nobody"),
    ]
    return Script(CentralCluster, 1, options, actions)


def test_without_epochs_late_messages_make_two_owners() -> None:
    with pytest.raises(SimulationFailure, match="one owner: t1-2-0 of 'g' is fetched by c2 after it was fetched by c1"):
        run_script(late_messages(is_fenced=False), shrink=False)


def test_with_epochs_the_first_owner_is_refused() -> None:
    assert run_script(late_messages(is_fenced=True)).counts["rebalances"] >= 3


def test_fences_that_are_not_compared_make_two_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    fence_not_compared(monkeypatch)
    with pytest.raises(SimulationFailure, match="one owner"):
        run_script(late_messages(is_fenced=True), shrink=False)


# ---- the rewrite

# "The consumer does not stop fetching data during the co-ordinator failover and re-discovery process": m1 is cut off
# from the brokers that could coordinate its group, not from those that it fetches from. It is declared dead after the
# session timeout of 6 s, m2 gets its partition, and m1 goes on until a response shows it that.
OVERLAP: Final = Script(
    RewriteCluster,
    1,
    {"topics": {"t1": 1}},
    [
        Do(0, "member", "m1"),
        Do(5_000, "cut", "m1", None, 20_000),
        Do(12_000, "member", "m2"),
        Do(20_000, "heal"),
    ],
)


def overlaps(script: Script[Any]) -> int:
    count: int = run_script(script).counts["overlaps"]
    return count


def test_the_shortest_script_with_two_readers() -> None:
    assert overlaps(OVERLAP) == 1


def test_an_overlap_is_a_broken_law_on_request() -> None:
    with pytest.raises(SimulationFailure) as caught:
        run_script(OVERLAP.with_options(allows_overlaps=False))
    assert caught.value.law == "no overlap"
    assert len(caught.value.script.actions) == 3, "without the healing, which ends every run"


@pytest.mark.parametrize("left_out", range(3))
def test_it_needs_all_its_actions(left_out: int) -> None:
    actions = [action for number, action in enumerate(OVERLAP.actions) if number != left_out]
    assert overlaps(OVERLAP.with_actions(actions)) == 0


def test_a_member_that_stops_with_its_session_does_not_overlap() -> None:
    assert overlaps(OVERLAP.with_options(stops_with_session=True)) == 0


def test_one_coordinator_a_write_after_another_takeover_is_found() -> None:
    """ZooKeeper refuses such a write, and a broker without a lease does not try: here neither is in the way."""
    law = Invariants(VirtualClock(), "readers", 4, allows_overlaps=True)
    shard, offset = shard_path(0), offset_path("readers", "t", "0")
    law.written([SetData(shard, b"1")], session_id=1)
    law.written([Create(metadata_path(0, "readers"), GroupMetadata(1).to_bytes()), Check(shard, 1)], session_id=1)
    law.written([Create(offset, b"0")], session_id=1)
    law.written([SetData(shard, b"2")], session_id=2)
    for late in (SetData(offset, b"0"), SetData(metadata_path(0, "readers"), GroupMetadata(2).to_bytes())):
        with pytest.raises(ViolationError, match="one coordinator"):
            law.written([late], session_id=1)
    law.written([SetData(offset, b"0")], session_id=2)
