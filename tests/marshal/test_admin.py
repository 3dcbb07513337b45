"""Pausing a group: ReleaseGroup on every coordination partition."""

from __future__ import annotations

import pytest

from kcoord_wire.marshal.admin import AdminSettings, Finished, GroupPauser
from kcoord_wire.marshal.state import Rules
from kcoord_wire.messages.marshal import ReleaseGroup
from tests.support.marshal_admin import LANDS, LOST, WALL_MS, AdminBench, Peer

BOTH = pytest.mark.parametrize("rules", list(Rules))


def paused(rules: Rules, until_ms: int, **kwargs: object) -> AdminBench:
    settings = AdminSettings("g", "a0", 3, rules, heartbeat_interval_ms=2_000)
    made = AdminBench(GroupPauser(settings, until_ms, range(3)), rules, partitions=3, **kwargs)  # type: ignore[arg-type]  # of its fields
    made.add(Peer("c1", {0: 7}))
    return made.run()


@BOTH
def test_a_pause_is_on_every_coordination_partition(rules: Rules) -> None:
    made = paused(rules, WALL_MS + 60_000)
    assert made.finished == Finished("", (), WALL_MS + 60_000)
    messages = {entry.partition: entry.message for entry in made.entries if isinstance(entry.message, ReleaseGroup)}
    assert sorted(messages) == [0, 1, 2]
    assert {(each.version, each.msg_expire_time - each.time) for each in messages.values()} == {(0, 60)}
    made.wait(1_000)
    assert made.holder(0) == ""
    assert made.position(0) == 7


@BOTH
def test_a_resumption_is_a_pause_that_ends_at_once(rules: Rules) -> None:
    made = paused(rules, 0)
    assert made.finished == Finished("", (), 0)
    messages = [entry.message for entry in made.entries if isinstance(entry.message, ReleaseGroup)]
    assert [each.msg_expire_time - each.time for each in messages] == [0, 0, 0]
    assert made.holder(0) == "c1"


def test_a_pause_has_bounds() -> None:
    for until_ms in (WALL_MS - 1, WALL_MS + 8 * 86_400_000):
        made = paused(Rules.DOCUMENT, until_ms)
        assert made.finished == Finished("a pause ends in the future, within 7 days", ())
        assert not any(isinstance(entry.message, ReleaseGroup) for entry in made.entries)


def test_a_partition_that_takes_nothing_is_named() -> None:
    first = iter([LOST])
    made = paused(Rules.DOCUMENT, WALL_MS + 60_000, fate=lambda message, number: next(first, LANDS))
    assert made.finished == Finished("", (), WALL_MS + 60_000)  # the second attempt has landed
    made = paused(Rules.DOCUMENT, WALL_MS + 60_000, fate=lambda message, number: LOST)
    assert made.finished == Finished("coordination partition 0: it lost", ())


def test_the_client_id_is_no_member_s() -> None:
    assert AdminSettings("g", "a0", 3).client_id == "kcoord-admin-a0"
