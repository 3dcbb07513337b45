"""The clocks of processes on the virtual log."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.marshal.world_state import Place
from kcoord_wire.worlds.marshal import MarshalCluster
from kcoord_wire.worlds.marshal.marshal_laws import Invariants
from kcoord_wire.worlds.marshal.processes import AdminProcess, LocalClock


@pytest.mark.parametrize("ppm", [-500, 0, 500])
def test_a_deadline_has_come_when_the_clock_shows_it(ppm: int) -> None:
    clock = LocalClock(12_345, ppm, 0)
    for deadline in range(12_345, 900_000, 7_919):
        at = clock.time_of(deadline)
        assert clock.monotonic(at - 1) < deadline <= clock.monotonic(at)


def test_the_wall_clock_is_what_it_was_set_to() -> None:
    clock = LocalClock(99, 300, -2_000)
    now = EPOCH_MS + 500_000
    assert clock.monotonic(now) + clock.wall(now).ahead_ms == now - 2_000


def test_what_a_killed_process_has_sent_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    with MarshalCluster(topics={"t1": 1}, members=1) as sim:
        append = sim.log.append

        def note_and_append(*arguments: Any, **options: Any) -> None:
            sent.append(sim.now)
            append(*arguments, **options)

        monkeypatch.setattr(sim.log, "append", note_and_append)
        sim.run_until(lambda: bool(sent))
        assert sim.log.end(1) == 0, "it is under way"
        sim.processes["m1"].pause(10)
        sim.crash("m1")
        sim.run(10_000)
        assert (sim.log.end(1), len(sent)) == (1, 1)
        assert not sim.processes["m1"].is_working


def test_a_process_that_is_cut_off_appends_and_reads_nothing() -> None:
    with MarshalCluster(topics={"t1": 1}, members=1, interval_ms=INTERVAL_MS) as sim:
        sim.run_until(sim.is_settled)
        sim.partition("m1", 5_000)
        sim.run(100)
        end = sim.log.end(1)
        sim.run(4_800)
        assert (sim.log.end(1), sim.owners()) == (end, {})
        sim.run_until(sim.is_settled)


INTERVAL_MS = 1_000


def finished(admin: AdminProcess) -> bool:
    return admin.finished is not None


def test_a_paused_group_holds_nothing_until_the_pause_ends() -> None:
    with MarshalCluster(topics={"t1": 4}, members=2, interval_ms=INTERVAL_MS) as sim:
        sim.run_until(sim.is_settled)
        sim.pause_group(8_000)
        sim.run(4_000)
        assert sim.owners() == {}
        assert 2_000 < sim.run_until(sim.is_settled) < 8_000


@pytest.mark.parametrize("offset", [3, 30])
def test_a_position_is_set_back_or_forth(offset: int) -> None:
    with MarshalCluster(topics={"t1": 2}, members=2, interval_ms=INTERVAL_MS) as sim:
        sim.run_until(sim.is_settled)
        sim.run(4_000)
        sim.set_position("t1", 1, offset)
        [admin] = sim.admins
        sim.run_until(lambda: finished(admin))
        assert admin.finished is not None
        assert admin.finished.failure == ""
        assert sim.truth.world.claims[Place("readers", "t1", 1)].current_offset >= offset
        sim.run_until(sim.is_settled)


def test_a_group_goes_on_after_its_admin_was_killed() -> None:
    with MarshalCluster(topics={"t1": 2}, members=2, interval_ms=INTERVAL_MS) as sim:
        sim.run_until(sim.is_settled)
        sim.set_position("t1", 0, 1)
        sim.run(500)
        sim.crash_admin()
        assert sim.run_until(sim.is_settled) <= 9 * INTERVAL_MS


def test_a_position_that_was_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Invariants, "written_by", lambda *_: 4)
    with MarshalCluster(topics={"t1": 1}, members=1, interval_ms=INTERVAL_MS) as sim:
        sim.run_until(sim.is_settled)
        sim.set_position("t1", 0, 3)
        with pytest.raises(ViolationError, match="positions"):
            sim.run(20_000)
