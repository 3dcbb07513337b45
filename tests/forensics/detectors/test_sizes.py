"""Deploys: members replaced one after another or at once, what it cost, and what it would have cost.

Groups whose size swings, and what only looks like it.
"""

from __future__ import annotations

from random import Random

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import GroupHistory, MemberLife
from kcoord_wire.report.digest import headline
from tests.support.detector_groups import SECOND, generation, group, held, life, of, rebalance


def again(name: str, at_s: float, **more: object) -> MemberLife:
    return life(name, at_s, member_id=f"{name}-again", **more)


def bounced(*names: str, down_s: float = 4) -> GroupHistory:
    """Each of them leaves, ten seconds after the one before, and is back `down_s` later."""
    lives, rows, owned = [], [], []
    for at, name in enumerate(names):
        left = 100 + 10 * at
        lives += [life(name, at, left), again(name, left + down_s)]
        owned += [held(name, at, 1, left)]
        rows += [
            rebalance(2 * at + 1, left, Cause.MEMBER_LEFT, name, paused_ms=1500.0),
            rebalance(2 * at + 2, left + down_s, client=name, paused_ms=500.0),
        ]
    return group(600, members=lives, rebalances=rows, ownership=owned)


def test_a_rolling_restart_with_its_cost() -> None:
    (found,) = of("deploy", bounced("web-1", "web-2", "web-3"))
    assert (found.severity, found.value, found.rebalances) == ("info", 3, [1, 2, 3, 4, 5, 6])
    assert found.text == (
        "a deploy, one after another: 3 of 3 members (web-1, web-2, web-3) were restarted or replaced within 24.0 s, "
        "with 6 rebalances and 6.0 s of partition time without an owner; with static members: no rebalance, and 12.0 s"
    )
    assert "Nothing is wrong" in found.advice


def test_the_text_of_a_log_shows_a_deploy_of_all_members_in_turn() -> None:
    def logged(*names: str, down_s: float = 4) -> GroupHistory:
        history = bounced(*names, down_s=down_s)
        history.group.origin, history.ownership = "text", []
        return history

    (found,) = of("deploy", logged("web-1", "web-2", "web-3"))
    assert found.text == (
        "a deploy, one after another: 3 of 3 members (web-1, web-2, web-3) were restarted or replaced within 24.0 s, "
        "with 6 rebalances; why they left, the log does not say"
    )
    assert of("deploy", logged("a", "b")) == [], "two may be late with their polls"
    assert of("deploy", logged("a", "b", "c", down_s=12)) == [], "one leaves before the other is back"
    stays = logged("a", "b", "c")
    stays.members.append(life("d"))
    assert of("deploy", stays) == [], "one of them stays"


def test_pods_get_new_names() -> None:
    lives = [life("web-a1", 0, 100), life("web-b2", 0, 120), life("web-c3", 95), life("web-d4", 115)]
    (found,) = of("deploy", group(600, members=lives))
    assert found.value == 2


def test_a_restart_of_all_says_that_the_group_was_empty() -> None:
    history = bounced("a", "b")
    history.rebalances[2].outcome = "empty"
    (found,) = of("deploy", history)
    assert found.text.startswith("a deploy that emptied the group: 2 of 2 members")


def test_what_is_no_deploy() -> None:
    assert of("deploy", bounced("a")) == [], "one member"
    stays = bounced("a", "b")
    stays.members += [life(f"other-{at}") for at in range(3)]
    assert of("deploy", stays) == [], "less than half of the group"
    died = bounced("a", "b")
    for row in died.members:
        row.why_left = row.why_left and "session timeout"
    assert of("deploy", died) == []
    assert of("deploy", group(members=[life("a", 0, 9), life("b", 0, 10)])) == [], "a shutdown"


def test_a_killed_process_is_replaced_by_no_other() -> None:
    history = bounced("a", "b")
    history.members.append(life("c", 0, 105, why_left="session timeout", end="process died", died_ns=95 * SECOND))
    history.members.append(again("c", 112))
    (found,) = of("deploy", history)
    assert found.text.startswith("a deploy, one after another: 2 of 3 members (a, b)")
    history.rebalances[1].cause = Cause.SESSION_EXPIRED
    (found,) = of("deploy", history)
    assert found.rebalances == [1, 3, 4], "what the fault cost is not the deploy's"


def test_members_of_one_start_do_not_replace_each_other() -> None:
    lives = [life("web-1", 0, 60), life("web-2", 1, 61), life("web-3", 2, 62), life("web-4", 3)]
    rows = [rebalance(number, number, members_before=number) for number in range(4)]
    assert of("deploy", group(600, members=lives, rebalances=rows)) == []


def test_a_supervisor_that_restarts_one_member_is_no_deploy() -> None:
    lives = [life("a"), life("b", 0, 100)]
    lives += [life("b", 105 + 30 * at, 130 + 30 * at, member_id=f"b-{at}") for at in range(4)]
    history = group(600, members=lives)
    assert of("deploy", history) == []
    (found,) = of("flapping_member", history)
    assert found.subject == "b at 10.0.0.1"


@pytest.mark.parametrize(
    ("numbers", "deploys"),
    [((3, 1), 0), ((3, 3), 0), ((7, 2), 0), ((3, 4), 1)],
    ids=["deleted", "with the same number", "after more generations", "the next one"],
)
def test_a_stop_to_delete_the_group_is_no_deploy(numbers: tuple[int, int], deploys: int) -> None:
    history = bounced("a", "b")
    history.generations += [generation(numbers[0], 90, 110), generation(numbers[1], 114)]
    history.generations[1].leader_id = "a-again"
    assert len(list(of("deploy", history))) == deploys


def test_a_deploy_is_one_though_the_group_was_deleted_before() -> None:
    history = bounced("a", "b")
    history.generations += [generation(3, 10), generation(1, 50), generation(2, 110)]
    assert len(list(of("deploy", history))) == 1


def test_another_protocol_is_a_migration() -> None:
    history = bounced("a", "b")
    for row in history.members:
        row.protocol = "consumer" if row.member_id.endswith("again") else "classic"
    assert of("deploy", history) == []


@pytest.mark.parametrize(("down_s", "words"), [(4, "static members: no"), (50, "static members and a session of more")])
def test_static_members_save_rebalances_within_their_session(down_s: float, words: str) -> None:
    (found,) = of("deploy", bounced("a", "b", down_s=down_s))
    assert words in found.text


def test_new_names_before_the_old_ones_left_cannot_be_static() -> None:
    lives = [life("web-a1", 0, 100), life("web-b2", 0, 120), life("web-c3", 95), life("web-d4", 115)]
    (found,) = of("deploy", group(600, members=lives))
    assert "static" not in found.text + found.advice


# ---- swinging size, and random courses


Event = tuple[float, str, str]
"""Seconds, what (``joins``, ``leaves``, ``dies``), and the name."""


def played(events: list[Event], last_s: float) -> GroupHistory:
    """A history of these events, with a rebalance of each."""
    there: dict[str, MemberLife] = {}
    lives: list[MemberLife] = []
    rows = []
    for number, (at, what, name) in enumerate(sorted(events), start=1):
        before = len(there)
        if what == "joins":
            there[name] = row = life(name, at, member_id=f"{name}-{number}")
            lives.append(row)
        else:
            row = there.pop(name)
            row.left_ns = row.last_seen_ns = int(at * SECOND)
            row.why_left = "left" if what == "leaves" else "session timeout"
            if what == "dies":
                row.end, row.died_ns = "process died", int((at - 10) * SECOND)
        causes = {"joins": Cause.NEW_MEMBER, "leaves": Cause.MEMBER_LEFT, "dies": Cause.SESSION_EXPIRED}
        more = {"member_id": row.member_id, "members_before": before, "members_after": len(there), "paused_ms": 900.0}
        end = int((at + 0.5) * SECOND)
        outcome = "stable" if there else "empty"
        rows.append(rebalance(number, at, causes[what], name, ended_ns=end, outcome=outcome, **more))
    history = group(last_s, members=sorted(lives, key=lambda row: row.joined_ns), rebalances=rows)
    history.findings = detect(history)
    return history


def started(random: Random, size: int) -> list[Event]:
    return [(random.uniform(0, 2), "joins", f"w-{number}") for number in range(size)]


def rolling(random: Random) -> tuple[list[Event], float]:
    size, at, down = random.randint(2, 8), random.uniform(15, 90), random.uniform(0.5, 20)
    events, step = started(random, size), random.uniform(1, 40)
    for number in range(size):
        events += [(at, "leaves", f"w-{number}"), (at + down, "joins", f"w-{number}")]
        at += down + step
    return events, at + 60


def restart_of_all(random: Random) -> tuple[list[Event], float]:
    size, at, down = random.randint(2, 8), random.uniform(15, 90), random.uniform(2, 30)
    events = started(random, size)
    events += [(at + random.random(), "leaves", f"w-{number}") for number in range(size)]
    events += [(at + down + random.random(), "joins", f"w-{number}") for number in range(size)]
    return events, at + 90


def scaled(random: Random) -> tuple[list[Event], float]:
    core, more, at = random.randint(1, 4), random.randint(1, 4), random.uniform(13, 40)
    events, first, least = started(random, core), core, random.choice([6, 13])
    for _ in range(random.randint(2, 5)):
        names = [f"w-{first + number}" for number in range(more)]
        first += more
        events += [(at + random.uniform(0, 2), "joins", name) for name in names]
        at += random.uniform(least, 60)
        events += [(at + random.uniform(0, 2), "leaves", name) for name in names]
        at += random.uniform(least, 60)
    return events, at + 20


def scaled_at_once(random: Random) -> tuple[list[Event], float]:
    """Members are added as soon as the group has started, and it is shut down while the last ones have just left."""
    at = random.uniform(1, 3)
    events: list[Event] = [(0.2, "joins", "w-0"), (at, "joins", "w-1")]
    more, first, stays = random.choice((1, 2)), 2, random.uniform(3, 6)
    for _ in range(random.choice((2, 3))):
        at += random.uniform(0.1, 1)
        names = [f"w-{first + number}" for number in range(more)]
        first += more
        events += [(at + 0.1 * number, "joins", name) for number, name in enumerate(names)]
        at += stays + random.uniform(0.5, 3)
        events += [(at - 0.1 * number, "leaves", name) for number, name in enumerate(names)]
        at += stays
    apart = random.choice((0.02, 1, 3))
    if random.random() < 0.7:
        events += [(at + apart * number, "leaves", f"w-{number}") for number in range(2)]
    return events, at + 4


def supervised(random: Random) -> tuple[list[Event], float]:
    events, at, down = started(random, random.randint(2, 5)), random.uniform(15, 40), random.uniform(0.5, 25)
    for _ in range(random.randint(4, 7)):
        events += [(at, "leaves", "w-0"), (at + down, "joins", "w-0")]
        at += down + random.uniform(5, 30)
    return events, at + 20


def shut_down(random: Random) -> tuple[list[Event], float]:
    size, at, apart = random.randint(2, 6), random.uniform(30, 120), random.choice([0.2, 2, 8])
    leaves = [(at + number * apart, "leaves", f"w-{number}") for number in range(size)]
    return [*started(random, size), *leaves], at + size * apart + 5


def killed(random: Random) -> tuple[list[Event], float]:
    """One dies; all leave some time later."""
    size, at = random.randint(2, 6), random.uniform(30, 60)
    events = [*started(random, size), (at + 10, "dies", "w-0")]
    at += random.choice([25, 40, 80])
    return [*events, *((at + 30 + number, "leaves", f"w-{number}") for number in range(1, size))], at + 60


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (rolling, "a deploy, one after another"), (restart_of_all, "a deploy that emptied the group"),
        (scaled, "the group's size swings between"), (scaled_at_once, "the group's size swings between"),
        (supervised, "w-0 at 10.0.0.1 came back"),
        (shut_down, "nothing unusual"), (killed, "w-0 (10.0.0.1) died at"),
    ],
)  # fmt: skip
def test_random_courses_are_named_first(play: object, words: str) -> None:
    assert callable(play)
    wrong = []
    for seed in range(30):
        text = headline(played(*play(Random(seed)))).text
        if not text.startswith(words):
            wrong.append((seed, text))
    assert wrong == []


def test_what_a_swinging_group_is_told() -> None:
    history = played(*scaled(Random(4)))
    (found,) = of("swinging_size", history)
    assert "stayed" in found.text
    assert "Static members do not help" in found.advice
    assert of("deploy", history) == []
    assert of("flapping_member", history) == []


def swung_since_the_start(leaves_s: float, again: str = "w-3", came_s: float = 3) -> GroupHistory:
    """A start with w-0 and w-1, w-2 behind them, which leaves; another comes 10 s later, and leaves 20 s later."""
    events = [(0.0, "joins", "w-0"), (1.0, "joins", "w-1"), (came_s, "joins", "w-2"), (leaves_s, "leaves", "w-2")]
    events += [(leaves_s + 10, "joins", again), (leaves_s + 30, "leaves", again)]
    return played(sorted(events), leaves_s + 60)


def test_a_group_may_start_as_it_swings() -> None:
    (found,) = of("swinging_size", swung_since_the_start(20))
    assert found.text.startswith("the group's size swings between 2 and 3, 2 times within 47.0 s: w-2, w-3 were added")
    assert "w-0, w-1 stayed" in found.text
    assert of("swinging_size", swung_since_the_start(60)) == [], "it had worked longer than the group was without it"
    assert of("swinging_size", swung_since_the_start(20, again="w-2")) == [], "one process that is restarted"
    assert of("swinging_size", swung_since_the_start(20, came_s=0.5)) == [], "another came after it"
