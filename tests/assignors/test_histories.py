"""Generated histories: reproducible, and with everything in them that real groups have."""

from __future__ import annotations

from kcoord_wire.assignors import range_assign
from kcoord_wire.assignors.histories import Case, Given, play, shown, smaller

SEEDS = range(150)


def assign(case: Case) -> Given:
    return range_assign(case.partitions_per_topic, case.members)


def histories() -> list[list[Case]]:
    return [list(play(assign, seed=seed, rounds=8)) for seed in SEEDS]


def test_the_same_seed_gives_the_same_history() -> None:
    assert histories() == histories()


def test_histories_have_what_groups_have() -> None:
    seen: dict[str, int] = {}
    for history in histories():
        assert len(history) == 8
        for before, case in zip([None, *history], history, strict=False):
            for what, occurs in happened(before, case).items():
                seen[what] = seen.get(what, 0) + occurs
    assert {what for what, times in seen.items() if times < 20} == set()


def happened(before: Case | None, case: Case) -> dict[str, bool]:
    members, counts = case.members, case.partitions_per_topic
    generations = {member.generation for member in members.values() if member.owned}
    owners = [(t, n) for member in members.values() for t, has in member.owned.items() for n in has]
    found = {
        "equal subscriptions of several": len(members) > 1 and case.subscriptions_are_equal(),
        "unequal subscriptions": not case.subscriptions_are_equal(),
        "racks": case.has_racks(),
        "a static member": any(member.instance_id for member in members.values()),
        "claims of two generations": len(generations) > 1,
        "two claims on one partition": len(owners) > len(set(owners)),
        "a claim on what no longer exists": any(number >= counts.get(topic, 0) for topic, number in owners),
        "a member without a subscription": any(not member.topics for member in members.values()),
        "a topic without partitions": 0 in counts.values(),
        "one holder of all, and others": len(members) > 1 and len([1 for each in members.values() if each.owned]) == 1,
    }
    if before is not None:
        both = before.members.keys() & members.keys()
        found |= {
            "joined": bool(members.keys() - before.members.keys()),
            "left": bool(before.members.keys() - members.keys()),
            "resubscribed": any(before.members[each].topics != members[each].topics for each in both),
            "grown": any(count > before.partitions_per_topic.get(topic, 0) for topic, count in counts.items()),
            "vanished": bool(before.partitions_per_topic.keys() - counts.keys()),
            "lost all": any(before.members[each].owned and members[each].generation < 0 for each in both),
        }
    return found


def test_copies_and_reordered_cases_are_equal_and_share_nothing() -> None:
    for history in histories()[:20]:
        for case in history:
            for other in (case.copy(), case.reordered()):
                assert {each: sorted(member.topics) for each, member in other.members.items()} == {
                    each: sorted(member.topics) for each, member in case.members.items()
                }
                assert other.partitions_per_topic == case.partitions_per_topic
                assert other.racks == case.racks
                assert all(other.members[each].owned is not case.members[each].owned for each in case.members)
            assert case.copy() == case
            assert list(case.reordered().members) == list(case.members)[::-1]


def test_members_rejoin_with_what_they_were_given() -> None:
    case = histories()[3][4]
    after = case.rejoined(assign(case))
    assert {member.generation for member in after.members.values()} == {case.next_generation()}
    assert {each: member.owned for each, member in after.members.items()} == assign(case)


def test_shrinking_ends_at_the_smallest_group() -> None:
    for history in histories()[:10]:
        case = history[-1]
        while (less := next(smaller(case), None)) is not None:
            assert size(less) < size(case)
            case = less
        assert len(case.members) == 1
        assert str(case).count("\n") == 1


def size(case: Case) -> int:
    """How much there is of everything."""
    members = case.members.values()
    names = sum(bool(member.instance_id) + bool(member.rack) + (member.generation >= 0) for member in members)
    owned = sum(len(member.topics) + sum(map(len, member.owned.values())) for member in members)
    return (
        len(members)
        + len(case.partitions_per_topic)
        + sum(case.partitions_per_topic.values())
        + names
        + owned
        + len(case.racks)
    )


def test_an_assignment_is_shown_as_one_line() -> None:
    assert shown({"x": {"a": [0, 1], "b": [2]}, "y": {}}) == "{x a:0,1 b:2; y -}"
