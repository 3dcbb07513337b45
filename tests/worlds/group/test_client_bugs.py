"""The switches of client bugs: what they change of a machine and of its assignors, and what they leave alone."""

from __future__ import annotations

from functools import cache

import pytest

from kcoord_wire.assignors import ASSIGNORS, MemberSubscription, list_partitions
from kcoord_wire.clients.bugs import CLIENT_BUGS
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import Finding
from kcoord_wire.worlds.group.bug_scripts import BUG_SCRIPTS, Damage, play_bug
from kcoord_wire.worlds.group.client_bugs import SWITCHES, assignors_with, machine_with
from kcoord_wire.worlds.group.members import MemberOptions
from tests.truth.pipeline import exchanges_of, histories_of
from tests.truth.world import Recorder

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


MOST_REBALANCES = 8  # of the scripts without their bug: four members join, and cooperative ones take two rounds
UNNAMED = {name for name, bug in CLIENT_BUGS.items() if not bug.fixed}


@cache
def played(bug: str, is_present: bool) -> tuple[Damage, list[Finding]]:
    """The damage of a script, and what its frames show."""
    recorder = Recorder()
    _, damage = play_bug(bug, is_present=is_present, tap=recorder)
    exchanges, topics, losses = exchanges_of(recorder.frames(bug))
    assert losses == []
    (history,) = histories_of(exchanges, topics).values()
    return damage, detect(history, exchanges)


def size_of(damage: Damage, kind: str) -> int:
    return int(not damage.is_settled) if kind == "is_settled" else getattr(damage, kind)


def test_every_bug_has_a_script() -> None:
    assert list(BUG_SCRIPTS) == list(CLIENT_BUGS)
    for name, script in BUG_SCRIPTS.items():
        assert script.without(name) != script, "no member has the bug"


@pytest.mark.parametrize("bug", BUG_SCRIPTS)
def test_a_bug_does_its_damage_and_only_the_bug(bug: str) -> None:
    kind = BUG_SCRIPTS[bug].kind
    with_bug, without = (size_of(played(bug, is_present)[0], kind) for is_present in (True, False))
    if kind == "rebalances":
        assert with_bug >= without + 7
        assert without <= MOST_REBALANCES
    else:
        assert with_bug > 0
        assert without == 0


@pytest.mark.parametrize("bug", BUG_SCRIPTS)
def test_without_its_bug_a_group_settles_and_reads_all(bug: str) -> None:
    damage, _ = played(bug, is_present=False)
    assert damage.is_settled
    assert (damage.two_owners, damage.unread) == (0, 0)
    assert damage.rebalances <= MOST_REBALANCES


@pytest.mark.parametrize("bug", BUG_SCRIPTS)
def test_the_frames_name_the_bug_and_its_fix(bug: str) -> None:
    known = CLIENT_BUGS[bug]
    found = [finding for finding in played(bug, is_present=True)[1] if finding.detector in known.detectors]
    assert found, "no detector sees the damage"
    if bug in UNNAMED:
        assert not any(bug in finding.known_bugs for finding in found)
        return
    (named,) = [finding for finding in found if bug in finding.known_bugs]
    assert f"{bug}, fixed in {known.fixed[0]}" in named.text
    assert known.reference in named.advice


@pytest.mark.parametrize("bug", BUG_SCRIPTS)
def test_a_fixed_version_is_not_blamed(bug: str) -> None:
    _, findings = played(bug, is_present=False)
    assert not any(bug in finding.known_bugs for finding in findings)
    if bug not in ("KAFKA-12984", "librdkafka#4252"):  # in their scripts another member still claims what it lost
        assert findings == []


def test_a_script_is_the_same_in_every_run() -> None:
    assert [str(line) for line in play_bug("KAFKA-14639")[0].trace] == [
        str(line) for line in play_bug("KAFKA-14639")[0].trace
    ]
