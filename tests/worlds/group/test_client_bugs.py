"""The switches of client bugs: what they change of a machine and of its assignors, and what they leave alone."""

from __future__ import annotations

import pytest

from kcoord_wire.assignors import ASSIGNORS, MemberSubscription, list_partitions
from kcoord_wire.clients.bugs import CLIENT_BUGS
from kcoord_wire.consumer.machine import MemberMachine
from kcoord_wire.worlds.group.client_bugs import SWITCHES, assignors_with, machine_with
from kcoord_wire.worlds.group.members import MemberOptions

COOPERATIVE = ASSIGNORS["cooperative-sticky"]
FRESH = {name: MemberSubscription(["orders"]) for name in ("a", "b")}


def test_every_bug_has_a_switch_that_changes_something() -> None:
    assert list(SWITCHES) == list(CLIENT_BUGS)
    for switch in SWITCHES.values():
        assert (switch.machine, switch.wrong) != (MemberMachine, None)


def test_a_member_without_bugs_is_the_correct_one() -> None:
    assert machine_with([]) is MemberMachine
    assert assignors_with([], [COOPERATIVE]) == [COOPERATIVE]


def test_a_bug_of_one_assignor_leaves_the_others_alone() -> None:
    changed, same = assignors_with(["KAFKA-14639"], [COOPERATIVE, ASSIGNORS["range"]])
    assert changed.assign is not COOPERATIVE.assign
    assert changed.name == COOPERATIVE.name
    assert same == ASSIGNORS["range"]


CONDITIONAL = {name for name, switch in SWITCHES.items() if switch.wrong is not None}
CONDITIONAL -= {"librdkafka#3306", "librdkafka#3891"}  # wrong whatever the members


@pytest.mark.parametrize("bug", sorted(CONDITIONAL))
def test_a_wrong_assignor_is_right_without_its_condition(bug: str) -> None:
    name = (CLIENT_BUGS[bug].assignors or ("range",))[-1]
    (wrong,) = assignors_with([bug], [ASSIGNORS[name]])
    found, right = (each.assign({"orders": 4}, FRESH) for each in (wrong, ASSIGNORS[name]))
    assert {who: list_partitions(parts) for who, parts in found.items()} == {
        who: list_partitions(parts) for who, parts in right.items()
    }


def test_an_older_claim_is_given_away_at_once() -> None:
    (wrong,) = assignors_with(["KAFKA-14639"], [COOPERATIVE])
    members = {
        "late": MemberSubscription(["orders"], {"orders": [0, 1]}, 1),
        "new": MemberSubscription(["orders"], {}, 2),
    }
    right = COOPERATIVE.assign({"orders": 2}, members)
    assert sum(len(list_partitions(given)) for given in right.values()) == 1, "one is withheld"
    given = wrong.assign({"orders": 2}, members)
    assert [len(list_partitions(given[name])) for name in ("late", "new")] == [1, 1]


def test_machines_of_several_bugs_combine_all() -> None:
    kind = machine_with(list(SWITCHES))
    assert all(issubclass(kind, switch.machine) for switch in SWITCHES.values())


def test_an_unknown_bug_is_an_error() -> None:
    with pytest.raises(ValueError, match="no bug is called 'KAFKA-1'"):
        MemberOptions(bugs=("KAFKA-1",))
    with pytest.raises(TypeError, match="bugs must be a list"):
        MemberOptions(bugs="KAFKA-14639")
