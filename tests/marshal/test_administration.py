"""Reading a log to its end, and running an admin on one."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

import kcoord_wire as kw
from kcoord_wire.marshal.admin import AdminSettings, GroupPauser, PositionSetter, Progressed, Result, Step
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.hosting import LogReader, run_admin, wall_ms
from kcoord_wire.marshal.inbox import TopicsError
from kcoord_wire.marshal.log import LogError
from kcoord_wire.marshal.machine import WorldState
from kcoord_wire.marshal.memory import MemoryBroker, MemoryLog
from kcoord_wire.marshal.observer import Observer
from kcoord_wire.marshal.state import Place, Rules
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat

PLACE = TopicPartition("t", 0)
SETTINGS = AdminSettings("g", "a0", 1, heartbeat_interval_ms=1_000)


def broker(*messages: object) -> MemoryBroker:
    made = MemoryBroker()
    made.create("__marshal", 1)
    for message in messages:
        made.append("__marshal", 0, kw.encode(message, 0))
    return made


def claim(kind: type, **fields: int) -> object:
    who = {"instance_id": "i1", "client_id": "c1", "group_id": "g", "topic": "t"}
    return kind(time=int(time.time()), **who, **fields)


def read(there: MemoryBroker) -> Observer:
    observer = Observer(WorldState(Rules.DOCUMENT, 1, 1))
    LogReader(MemoryLog(there), [observer]).read_to_end()
    return observer


def test_reading_goes_on_where_it_has_ended() -> None:
    there = broker(claim(ClaimingPartition))
    observers = [Observer(WorldState(rules, 1, 1)) for rules in Rules]
    reader = LogReader(MemoryLog(there), observers)
    assert [reader.read_to_end(), reader.read_to_end()] == [1, 0]
    there.append("__marshal", 0, kw.encode(claim(Heartbeat, current_offset=9), 0))
    there.skip("__marshal", 0)
    assert reader.read_to_end() == 1
    assert [each.world.claims[Place("g", "t", 0)].current_offset for each in observers] == [9, 9]


def test_an_end_that_does_not_come_is_an_error() -> None:
    class Silent(MemoryLog):
        def poll(self, seconds: float) -> list[object]:  # type: ignore[override]  # it never has any
            return []

    reader = LogReader(Silent(broker(claim(ClaimingPartition))), [])
    with pytest.raises(LogError, match=r"not reached within 0\.01 s"):
        reader.read_to_end(0.01)


def test_positions_of_a_dead_member_are_set() -> None:
    there = broker(claim(ClaimingPartition), claim(Heartbeat, current_offset=7))
    commits: list[Mapping[TopicPartition, int]] = []
    steps: list[Progressed] = []
    machine = PositionSetter(SETTINGS, {PLACE: 3})
    finished = run_admin(
        machine, MemoryLog(there), commit=commits.append, progress=steps.append, is_interrupted=lambda: False
    )
    assert finished.failure == ""
    assert [(each.old, each.new, each.result) for each in finished.positions] == [(7, 3, Result.SET)]
    assert commits == [{PLACE: 3}]
    assert Step.WAIT in [each.step for each in steps]  # until it was stale
    observer = read(there)
    assert observer.world.claims[Place("g", "t", 0)].current_offset == 3
    assert not observer.world.is_paused("g", 0, wall_ms())


def test_a_refused_commit_and_an_interrupt_give_back() -> None:
    def refuse(offsets: Mapping[TopicPartition, int]) -> None:
        raise TopicsError("the group has members")

    for is_interrupted, reason in ((False, "the group has members"), (True, "it was interrupted")):
        there = broker()
        machine = PositionSetter(SETTINGS, {PLACE: 3})
        finished = run_admin(
            machine,
            MemoryLog(there),
            commit=refuse,
            progress=lambda step: None,
            is_interrupted=lambda: is_interrupted,  # noqa: B023  # called in this round only
        )
        assert reason in finished.failure
        assert read(there).world.is_paused("g", 0, wall_ms()) is False


def test_a_pause_needs_no_reading() -> None:
    there = broker(claim(ClaimingPartition))
    finished = run_admin(
        GroupPauser(SETTINGS, wall_ms() + 60_000, [0]),
        MemoryLog(there),
        commit=lambda offsets: None,
        progress=lambda step: None,
        is_interrupted=lambda: False,
    )
    assert finished.failure == ""
    assert read(there).world.is_paused("g", 0, wall_ms())
