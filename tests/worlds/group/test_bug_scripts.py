"""Every client bug on the virtual cluster: its damage, no such damage without it, and the finding that names it."""

from __future__ import annotations

from functools import cache

import pytest

from kcoord_wire.clients.bugs import CLIENT_BUGS
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import Finding
from kcoord_wire.worlds.group.bug_scripts import BUG_SCRIPTS, Damage, play_bug
from tests.truth.pipeline import exchanges_of, histories_of
from tests.truth.world import Recorder

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
