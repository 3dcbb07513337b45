"""The assignor of streams groups: what it promises. That its results are Kafka's is in tests/interop."""

from __future__ import annotations

from collections import Counter
from random import Random

from kcoord_wire.assignors.streams import Subtopology, Task, TaskMember, assign_tasks, hash_ordered

COUNTING = {"0": Subtopology(4, False), "1": Subtopology(4, True)}


def members(count: int, processes: int) -> dict[str, TaskMember]:
    return {f"m{number}": TaskMember(process_id=f"p{number % processes}") for number in range(count)}


def test_every_task_is_active_once() -> None:
    for seed in range(50):
        random = Random(seed)
        topology = {str(n): Subtopology(random.randint(1, 9), random.random() < 0.5) for n in range(3)}
        given = assign_tasks(topology, members(random.randint(1, 7), random.randint(1, 4)), random.randint(0, 2))
        active = Counter(task for each in given.values() for task in each.active)
        assert active == Counter(Task(name, n) for name, each in topology.items() for n in range(each.tasks))


def test_a_process_has_a_task_once() -> None:
    given = assign_tasks(COUNTING, members(4, 2), 1)
    for process in range(2):
        own = [task for number in (process, process + 2) for kind in given[f"m{number}"] for task in kind]
        assert len(own) == len(set(own))
    assert sum(len(each.standby) for each in given.values()) == 4, "the tasks with a state have a standby each"


def test_standbys_need_another_process() -> None:
    given = assign_tasks(COUNTING, members(3, 1), 2)
    assert not any(each.standby for each in given.values())


def test_tasks_stay_when_a_member_joins() -> None:
    before = assign_tasks(COUNTING, members(1, 1))["m0"].active
    has = {"m0": TaskMember(process_id="p0", active=before), "m1": TaskMember(process_id="p1")}
    after = assign_tasks(COUNTING, has)
    assert after["m0"].active < before
    assert len(after["m0"].active) == len(after["m1"].active) == 4


def test_a_task_goes_where_its_standby_is() -> None:
    copies = [Task("1", number) for number in range(4)]
    has = {"m0": TaskMember(process_id="p0", standby=copies), "m1": TaskMember(process_id="p1")}
    assert assign_tasks(COUNTING, has)["m0"].active >= set(copies)


def test_a_task_goes_where_its_state_is_newest() -> None:
    task = Task("1", 2)
    has = {name: TaskMember(process_id=name, offsets={task: at}) for name, at in (("a", 5), ("b", 900), ("c", 7))}
    assert task in assign_tasks(COUNTING, has)["b"].active


def test_the_order_is_that_of_javas_hash_map() -> None:
    assert hash_ordered(["c", "BB", "b", "Aa", "a"]) == ["BB", "Aa", "a", "b", "c"]  # "Aa" and "BB" are in one bucket
    many = [f"topic-{number}" for number in range(13)]  # one more than 16 buckets are for
    assert hash_ordered(many) == sorted(many, key=lambda text: _java_hash(text) % 32)


def _java_hash(text: str) -> int:
    code = 0
    for character in text:
        code = (31 * code + ord(character)) % (1 << 32)
    return code ^ (code >> 16)
