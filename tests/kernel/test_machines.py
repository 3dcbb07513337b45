"""The state machines of this package follow one protocol, with one `Tick`."""

from __future__ import annotations

import inspect

import pytest

from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.kernel.machines import Machine


@pytest.mark.parametrize("machine", [GroupMachine, MemberMachine])
def test_machines_follow_the_protocol(machine: type) -> None:
    assert isinstance(inspect.getattr_static(machine, "deadline"), property)
    wanted = inspect.signature(Machine.handle).parameters
    assert list(inspect.signature(machine.handle).parameters) == list(wanted)  # type: ignore[attr-defined]
