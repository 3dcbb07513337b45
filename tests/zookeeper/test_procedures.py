"""ZooKeeperProcedures: they wait for ZooKeeper, for time and for conditions, and end where they are cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.kernel.procedures import Latch, Latched, Procedure, Sleep, Until
from kcoord_wire.zookeeper.requests import Ask, Outcome, Read, RegistryError, Replied, ZooKeeperProcedures


class Machine:
    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.seen: list[Any] = []
        self.is_open = False
        self.gate = Latch()
        self.procedures = ZooKeeperProcedures(self.effects.append)

    def read(self) -> Procedure:
        try:
            self.seen.append((yield Read("/a")))
        except RegistryError as error:
            self.seen.append(error.outcome)

    def wait(self, within_ms: int | None) -> Procedure:
        try:
            self.seen.append((yield Until(lambda: self.is_open, within_ms)))
        finally:
            self.seen.append("ended")

    def read_all(self, *paths: str) -> Procedure:
        try:
            self.seen.append((yield [Read(path) for path in paths]))
        except RegistryError as error:
            self.seen.append(error.request)

    def pass_gate(self, within_ms: int | None) -> Procedure:
        self.seen.append((yield Latched(self.gate, within_ms)))
        yield Latched(Latch())

    def sleep_twice(self) -> Procedure:
        yield Sleep(100)
        self.seen.append("first")
        yield Sleep(50)
        self.seen.append("second")


def test_a_request_resumes_with_its_reply() -> None:
    machine = Machine()
    machine.procedures.start(machine.read(), 0)
    machine.procedures.start(machine.read(), 0)
    assert machine.effects == [Ask(1, Read("/a")), Ask(2, Read("/a"))]
    machine.procedures.replied(Replied(2, value="second"), 5)
    machine.procedures.replied(Replied(2, value="again"), 5)
    assert machine.seen == ["second"]
    machine.procedures.replied(Replied(1, Outcome.CONNECTION_LOSS), 6)
    assert machine.seen == ["second", Outcome.CONNECTION_LOSS]
    assert machine.procedures.deadline is None


def test_time_resumes_in_its_order() -> None:
    machine = Machine()
    machine.procedures.start(machine.sleep_twice(), 1_000)
    assert machine.procedures.deadline == 1_100
    machine.procedures.advance(1_099)
    assert machine.seen == []
    machine.procedures.advance(1_100)
    assert (machine.seen, machine.procedures.deadline) == (["first"], 1_150)
    machine.procedures.advance(1_200)
    assert (machine.seen, machine.procedures.deadline) == (["first", "second"], None)


@pytest.mark.parametrize(("opens", "expected"), [(True, True), (False, False)])
def test_a_condition_holds_or_its_time_is_over(opens: bool, expected: bool) -> None:
    machine = Machine()
    machine.procedures.start(machine.wait(200), 0)
    machine.procedures.advance(10)
    assert machine.seen == []
    machine.is_open = opens
    machine.procedures.advance(20 if opens else 200)
    assert machine.seen == [expected, "ended"]


def test_a_cancelled_procedure_ends_where_it_waits() -> None:
    machine = Machine()
    waiting = machine.procedures.start(machine.wait(None), 0)
    reading = machine.procedures.start(machine.read(), 0)
    assert machine.procedures.is_running(waiting)
    machine.procedures.cancel(waiting)
    machine.procedures.cancel(waiting)
    assert not machine.procedures.is_running(waiting)
    machine.procedures.cancel_all()
    assert not machine.procedures.is_running(reading)
    machine.procedures.replied(Replied(1, value="late"), 5)
    assert machine.seen == ["ended"]


def test_requests_of_a_list_are_under_way_together() -> None:
    machine = Machine()
    machine.procedures.start(machine.read_all("/a", "/b"), 0)
    assert machine.effects == [Ask(1, Read("/a")), Ask(2, Read("/b"))]
    machine.procedures.replied(Replied(2, value="b"), 1)
    assert machine.seen == []
    machine.procedures.replied(Replied(1, value="a"), 1)
    assert machine.seen == [["a", "b"]]


def test_the_first_failure_of_a_list_is_raised() -> None:
    machine = Machine()
    machine.procedures.start(machine.read_all("/a", "/b"), 0)
    machine.procedures.replied(Replied(2, Outcome.NO_AUTH), 1)
    machine.procedures.replied(Replied(1, value="a"), 1)
    assert machine.seen == [Read("/b")]


def test_an_empty_list_does_not_wait() -> None:
    machine = Machine()
    machine.procedures.start(machine.read_all(), 0)
    assert machine.seen == [[]]


@pytest.mark.parametrize("opens_at", [0, 10, 200, 300])
def test_a_gate_is_waited_for_so_long(opens_at: int) -> None:
    machine = Machine()
    if opens_at == 0:
        machine.gate.open()
    procedure = machine.procedures.start(machine.pass_gate(200), 0)
    for now in (0, 10, 200, 300):
        if now == opens_at:
            machine.gate.open()
        machine.procedures.advance(now)
        assert machine.seen == ([opens_at <= 200] if now >= min(opens_at, 200) else [])
    assert machine.procedures.is_running(procedure)
    assert machine.procedures.deadline is None


def test_a_gate_wakes_who_waited_before_another_gate_opened() -> None:
    machine, gates = Machine(), [Latch(), Latch()]

    def passes(number: int) -> Procedure:
        yield Latched(gates[number])
        machine.seen.append(number)

    for number in (0, 1):
        machine.procedures.start(passes(number), 0)
    for number in (1, 0):
        gates[number].open()
        machine.procedures.advance(0)
    assert machine.seen == [1, 0]
