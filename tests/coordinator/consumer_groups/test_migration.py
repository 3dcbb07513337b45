"""Groups that change their protocol, both ways, with and without members."""

from __future__ import annotations

from kcoord_wire.error_codes import ErrorCode as E
from tests.support.consumer_script import ConsumerScript


def test_a_group_without_members_changes_its_protocol() -> None:
    script = ConsumerScript()
    script.commit(5)
    assert script.machine.groups["g"].kind == "classic"
    assert script.enter("a").error_code == E.NONE
    assert script.group.offsets["orders"][0].offset == 5
    assert script.restarted().group.offsets["orders"][0].offset == 5
