"""The state machines of this package follow one protocol, with one `Tick`."""

from __future__ import annotations

import inspect

import pytest

from kcoord_wire.consumer import events as consumer_events
from kcoord_wire.consumer.machine import MemberMachine
from kcoord_wire.coordinator.core import events as coordinator_events
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.machines import Machine, Tick


@pytest.mark.parametrize("machine", [GroupMachine, MemberMachine])
def test_machines_follow_the_protocol(machine: type) -> None:
    assert isinstance(inspect.getattr_static(machine, "deadline"), property)
    wanted = inspect.signature(Machine.handle).parameters
    assert list(inspect.signature(machine.handle).parameters) == list(wanted)  # type: ignore[attr-defined]


def test_every_machine_has_the_same_tick() -> None:
    assert consumer_events.Tick is coordinator_events.Tick is Tick
    assert Tick() == Tick()
