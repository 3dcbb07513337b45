"""The clocks of processes on the virtual log."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.worlds.marshal import MarshalCluster
from kcoord_wire.worlds.marshal.processes import LocalClock


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

        def note_and_append(*arguments: Any) -> None:
            sent.append(sim.now)
            append(*arguments)

        monkeypatch.setattr(sim.log, "append", note_and_append)
        sim.run_until(lambda: bool(sent))
        assert sim.log.end(1) == 0, "it is under way"
        sim.processes["m1"].pause(10)
        sim.crash("m1")
        sim.run(10_000)
        assert (sim.log.end(1), len(sent)) == (1, 1)
        assert not sim.processes["m1"].is_working
