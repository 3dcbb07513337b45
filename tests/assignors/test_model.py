"""The order of members."""

from __future__ import annotations

from kcoord_wire.assignors import MemberSubscription
from kcoord_wire.assignors.model import in_order


def test_static_members_first_and_strings_compared_as_in_java() -> None:
    members = {"b": None, "a": "z", "c": "y", "\U0001f600": None, "\uff5e": None, "B": None}
    subscriptions = {member_id: MemberSubscription([], instance_id=instance) for member_id, instance in members.items()}
    # As UTF-16 the emoji begins with 0xd83d, before 0xff5e; as code points it would come last.
    assert in_order(subscriptions) == ["c", "a", "B", "b", "\U0001f600", "\uff5e"]
