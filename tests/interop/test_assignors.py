"""Our assignors against Kafka's own classes, on generated groups: the same result, or one that is no worse.

Range and round-robin are determined, so every assignment is compared. The sticky ones choose among equals; there the
loads, the number of moves and the partitions in the rack of their member are compared: ours are never less balanced;
where they are as balanced, the moves are never more; and where they are as many, never fewer partitions are near.
The figures of a run are in the properties of the tests (`--junit-xml`) and, with `-s`, on standard output.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import pytest

from kcoord_wire.assignors import ASSIGNORS, Assignor, RebalanceProtocol
from kcoord_wire.assignors.check import check_assignor
from kcoord_wire.assignors.histories import Case, Given, leaders_view, play, shown
from kcoord_wire.assignors.kip848 import SERVER_ASSIGNORS
from kcoord_wire.assignors.kip932 import SIMPLE, ShareSubscription, order_of_ids, simple
from kcoord_wire.assignors.rules import PROMISES, Rule, check_assignment, holders, members_of
from kcoord_wire.assignors.subscriptions import Assignment, MemberSubscription, Racks
from tests.support.java_assignors import CLIENT_SIDE, SERVER_SIDE, JavaAssignors, RaisedInJava

CASES = 2000
SHARE_CASES = 600  # every result is compared as it is; in 2,000 there was no other difference
ROUNDS = 8
MOST_FOLLOW_UPS = 6
Kafka = Mapping[str, JavaAssignors]
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Each version in one JVM for all tests."""
    versions = {"3.9.2": "kafka-clients", "4.4.0": "kafka-group-coordinator"}
    with ExitStack() as running:
        yield {
            version: running.enter_context(JavaAssignors(tmp_path_factory.mktemp("classes"), version, artifact))
            for version, artifact in versions.items()
        }


def ours(assignor: Assignor, case: Case) -> Given:
    asked = leaders_view(case, assignor)
    given = assignor.assign(asked.partitions_per_topic, asked.members, asked.racks)
    return {each: {topic: list(numbers) for topic, numbers in has.items()} for each, has in given.items()}


def kafkas(java: JavaAssignors, assignor: Assignor, case: Case) -> Given:
    return java.assign(CLIENT_SIDE[assignor.name], leaders_view(case, assignor))


def cases(assignor: Assignor) -> Iterator[Case]:
    """Small groups, and in every eighth history groups of up to 56 members."""
    for seed in range(CASES // ROUNDS):
        scale = 1 if seed % 8 else 8
        yield from play(partial(ours, assignor), seed=seed, rounds=ROUNDS, scale=scale)


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_the_result_is_that_of_kafka(name: str, kafka: Kafka, record_property: Record) -> None:
    assignor, compared, different = ASSIGNORS[name], Counter[str](), []
    for case in cases(assignor):
        result = ours(assignor, case)
        compared["with racks" if case.has_racks() else "without racks"] += 1
        for version, java in kafka.items():
            theirs = kafkas(java, assignor, case)
            if result != theirs:
                different.append(f"{version}\n{case}\nours: {shown(result)}\nKafka: {shown(theirs)}")
    report(name, compared, record_property)
    assert compared.total() >= CASES
    assert not different, f"{len(different)} differ, the smallest:\n{min(different, key=len)}"


@dataclass
class Outcome:
    """What a group ends up with.

    :ivar follow_ups: the rebalances after the first
    :ivar unbalance: the sum of the squared loads
    :ivar moves: the partitions that had a holder and end with another
    :ivar near: the partitions with a replica in the rack of their member (KIP-881)
    """

    final: Given
    follow_ups: int
    unbalance: int
    moves: int
    near: int


def settle(case: Case, assign: Callable[[Case], Given], protocol: RebalanceProtocol) -> Outcome:
    """Assign until no member has to give anything up.

    :raises RaisedInJava: Kafka's class raises, or returns what a leader must not send
    """
    follow_ups, current = 0, case
    while True:
        given = assign(current)
        if wrong := check_assignment(given, current.partitions_per_topic, current.members):
            raise RaisedInJava(wrong[0].rule.name)
        if protocol is RebalanceProtocol.EAGER or keeps_all(current, given) or follow_ups == MOST_FOLLOW_UPS:
            break
        follow_ups, current = follow_ups + 1, current.rejoined(given)
    now = members_of(given)
    loads = [sum(map(len, has.values())) for has in given.values()]
    moves = sum(now.get(each) != member_id for each, member_id in holders(case).items())
    near = sum(case.members[member_id].rack in case.racks_of(each) for each, member_id in now.items())
    return Outcome(given, follow_ups, sum(load * load for load in loads), moves, near)


def keeps_all(case: Case, given: Given) -> bool:
    return all(
        set(numbers) <= set(given[member_id].get(topic, ()))
        for member_id, member in case.members.items()
        for topic, numbers in member.owned.items()
    )


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_no_less_balanced_and_no_more_moves(name: str, kafka: Kafka, record_property: Record) -> None:
    assignor, seen, worse = ASSIGNORS[name], Counter[str](), []
    for case in cases(assignor):
        mine = settle(case, partial(ours, assignor), assignor.protocol)
        for version, java in kafka.items():
            try:
                theirs = settle(case, partial(kafkas, java, assignor), assignor.protocol)
            except RaisedInJava as error:
                seen[f"{version}: Kafka's result is none ({error})"] += 1
                continue
            for text in compare(mine, theirs):
                seen[f"{version}: {text}"] += 1
            if is_worse(mine, theirs):
                worse.append(f"{version}\n{case}\nours: {mine}\nKafka: {theirs}")
    report(name, seen, record_property)
    assert not worse, f"{len(worse)} are worse, the smallest:\n{min(worse, key=len)}"


@pytest.mark.parametrize("name", SERVER_ASSIGNORS)
def test_the_coordinators_assignors(name: str, kafka: Kafka, record_property: Record) -> None:
    """Range is determined. Uniform is so up to which member gets what: the loads and the moves are compared."""
    assign = SERVER_ASSIGNORS[name]
    assignor = Assignor(name, RebalanceProtocol.EAGER, assign)
    seen, wrong = Counter[str](), []
    for case in map(as_target, cases(assignor)):
        mine = settle(case, partial(ours, assignor), assignor.protocol)
        theirs = settle(case, partial(kafka["4.4.0"].assign, SERVER_SIDE[name]), assignor.protocol)
        for text in compare(mine, theirs):
            seen[text] += 1
        if is_worse(mine, theirs) or (name == "range" and mine.final != theirs.final):
            wrong.append(f"{case}\nours: {mine}\nKafka: {theirs}")
    report(f"server-side {name}", seen, record_property)
    assert seen["compared"] >= CASES
    assert not wrong, f"{len(wrong)} are wrong, the smallest:\n{min(wrong, key=len)}"


def test_the_target_of_a_share_group_is_kafkas(kafka: Kafka, record_property: Record) -> None:
    """Who has what, not only how much: the order of Java's hash tables decides on both sides."""
    assignor, seen, different = Assignor(SIMPLE, RebalanceProtocol.EAGER, share_out), Counter[str](), []
    for case in map(as_shared_target, islice(cases(assignor), SHARE_CASES)):
        mine, theirs = ours(assignor, case), kafka["4.4.0"].assign(SERVER_SIDE[SIMPLE], case)
        seen[
            "homogeneous"
            if is_homogeneous(case.members, filter(case.partitions_per_topic.get, case.partitions_per_topic))
            else "heterogeneous"
        ] += 1
        if without_empty(mine) != without_empty(theirs):
            different.append(f"{case}\nours: {shown(mine)}\nKafka: {shown(theirs)}")
    report(SIMPLE, seen, record_property)
    assert seen.total() == SHARE_CASES
    assert not different, f"{len(different)} differ, the smallest:\n{min(different, key=len)}"


def share_out(counts: Mapping[str, int], members: Mapping[str, MemberSubscription], _: Racks, /) -> Assignment:
    """`simple` by names of topics, whose ids are those of ServerSide.java, where those without partitions have none."""
    counts = {name: count for name, count in counts.items() if count}
    ids = {name: uuid.UUID(int=(1 << 64) + number) for number, name in enumerate(sorted(counts), 1)}
    names = {topic: name for name, topic in ids.items()}
    target = simple(
        {ids[name]: frozenset(range(count)) for name, count in counts.items()},
        {
            each: ShareSubscription(
                order_of_ids(sorted({ids[name] for name in member.topics if name in ids})),
                {ids[name]: frozenset(numbers) for name, numbers in member.owned.items() if name in ids},
            )
            for each, member in members.items()
        },
        is_homogeneous=is_homogeneous(members, counts),
    )
    return {each: {names[topic]: sorted(has[topic]) for topic in has} for each, has in target.items()}


def is_homogeneous(members: Mapping[str, MemberSubscription], counts: Iterable[str]) -> bool:
    return len({frozenset(member.topics).intersection(counts) for member in members.values()}) == 1


def as_shared_target(case: Case) -> Case:
    """What the coordinator has: a target assignment of partitions that exist; racks are ignored."""
    counts = case.partitions_per_topic
    members = {
        each: replace(
            member,
            owned={
                topic: sorted(number for number in set(numbers) if number < counts[topic])
                for topic, numbers in member.owned.items()
                if topic in counts
            },
            user_data=b"",
        )
        for each, member in case.members.items()
    }
    return Case(counts, members, {})


def without_empty(given: Given) -> Given:
    return {each: {topic: numbers for topic, numbers in has.items() if numbers} for each, has in given.items()}


def as_target(case: Case) -> Case:
    """What the coordinator has: a target assignment of partitions that exist, to one member each; racks are ignored."""
    owned: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in case.members}
    for (topic, number), member_id in sorted(holders(case).items()):
        owned[member_id].setdefault(topic, []).append(number)
    return Case(
        case.partitions_per_topic,
        {each: replace(member, owned=owned[each], user_data=b"") for each, member in case.members.items()},
        {},
    )


def is_worse(mine: Outcome, theirs: Outcome) -> bool:
    return (mine.unbalance, mine.moves, -mine.near) > (theirs.unbalance, theirs.moves, -theirs.near)


def compare(mine: Outcome, theirs: Outcome) -> Iterator[str]:
    balance = mine.unbalance - theirs.unbalance
    moves = mine.moves - theirs.moves
    yield "compared"
    yield f"{comparison(balance, 'better', 'worse')} balance, {comparison(moves, 'fewer', 'more')} moves"
    if not balance and not moves:
        yield f"as balanced and with as many moves: {comparison(mine.near - theirs.near, 'less near', 'nearer')}"
    yield f"{mine.follow_ups} follow-ups of ours"
    yield f"{theirs.follow_ups} follow-ups of Kafka's"


def comparison(difference: int, less: str, more: str) -> str:
    return less if difference < 0 else more if difference > 0 else "equal"


BROKEN_BY_KAFKA = {
    "range": set[Rule](),
    "roundrobin": set[Rule](),
    # A member that subscribes to nothing gets partitions, or the others get none, as the order of a hash map has it;
    # claims on partitions that are gone make it raise; a topic that one member held whole goes to another whole.
    "sticky": {Rule.SUBSCRIBED, Rule.ORDER, Rule.NO_ERROR, Rule.BALANCED, Rule.SPREAD, Rule.STICKY},
    # An older claim wins; with racks, one rebalance undoes what the one before it did.
    "cooperative-sticky": {Rule.SUBSCRIBED, Rule.ORDER, Rule.NO_ERROR, Rule.BALANCED, Rule.SPREAD, Rule.STICKY}
    | {Rule.GIVEN_UP, Rule.FOLLOW_UP, Rule.COMPLETE},
}


@pytest.mark.parametrize("name", CLIENT_SIDE)
def test_kafkas_own_assignors_are_judged(name: str, kafka: Kafka) -> None:
    """What `check_assignor` finds in Kafka 4.4.0, on assignors that were not written for this test."""
    java, own = kafka["4.4.0"], ASSIGNORS[name]
    theirs = replace(
        own, assign=lambda counts, members, racks: java.assign(CLIENT_SIDE[name], Case(counts, members, racks))
    )
    promises = PROMISES if "sticky" in name else ()
    found = check_assignor(theirs, promises, histories=120)
    print(*found, sep="\n")
    assert {violation.rule for violation in found} == BROKEN_BY_KAFKA[name]


def report(name: str, seen: Counter[str], record_property: Record) -> None:
    for what, times in sorted(seen.items()):
        record_property(f"{name}, {what}", times)
        print(f"{name}, {what}: {times}")
