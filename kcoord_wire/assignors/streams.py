"""The server assignor of streams groups (KIP-1071): which member runs which task, and which keeps a standby of it.

Laws:

* Every task is active in one member. A standby of a task is in a process that has the task neither active nor as
  another standby; where there are too few processes, fewer standbys are assigned.
* A task stays where it is active, else goes where its standby is, unless the member has its share already; what is left
  goes to the process with the least load.
* What Kafka leaves to the order of its hash tables and queues is decided by that order (`hash_ordered`, `_LeastFirst`),
  so that the results are the same.

Source: Kafka's `StickyTaskAssignor.java`, `ProcessState.java` (4.4); `HashMap.java`, `PriorityQueue.java` of the JDK.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

STREAMS_ASSIGNOR: Final = "sticky"
"""The name of the only assignor of streams groups that Kafka has."""

_LEAST_BUCKETS: Final = 16  # of a hash table that is made without a size


class Task(NamedTuple):
    """A task: a subtopology for one partition of its source topics."""

    subtopology: str
    partition: int


class Subtopology(NamedTuple):
    """What an assignor has to know of a subtopology.

    :ivar tasks: how many it has
    :ivar is_stateful: whether its tasks can have standbys
    """

    tasks: int
    is_stateful: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMember:
    """A member as the assignor sees it.

    :ivar process_id: members of one process share its disk, so that a task is in a process once
    :ivar active: the tasks that it runs
    :ivar standby: those that it keeps a standby of
    :ivar offsets: how far the states on its disk have got, by task
    """

    process_id: str
    active: Collection[Task] = ()
    standby: Collection[Task] = ()
    offsets: Mapping[Task, int] = field(default_factory=dict)


class AssignedTasks(NamedTuple):
    """What a member gets."""

    active: frozenset[Task]
    standby: frozenset[Task]


def assign_tasks(
    subtopologies: Mapping[str, Subtopology], members: Mapping[str, TaskMember], standbys: int = 0
) -> dict[str, AssignedTasks]:
    """Return what each member gets, by member id.

    :param subtopologies: by id
    :param members: by id; at least one
    :param standbys: wanted of each task with a state
    """
    assignment = _Assignment(subtopologies, members, standbys)
    assignment.assign_active()
    if standbys:
        assignment.assign_standbys()
    return {
        member_id: AssignedTasks(
            frozenset(assignment.process_of[member_id].active[member_id]),
            frozenset(assignment.process_of[member_id].standby[member_id]),
        )
        for member_id in members
    }


class _Process:
    """A process with its members.

    :ivar tasks: all that it has
    :ivar counts: member id to how many tasks it has
    :ivar load: tasks for each member
    """

    __slots__ = ("_by_load", "_total", "active", "counts", "load", "standby", "tasks")

    def __init__(self) -> None:
        self.tasks: set[Task] = set()
        self.active: dict[str, set[Task]] = {}
        self.standby: dict[str, set[Task]] = {}
        self.counts: dict[str, int] = {}
        self.load = 0.0
        self._total = 0
        self._by_load: _LeastFirst[_Counted] | None = None

    def join(self, member_id: str) -> None:
        """Add a member, before any task."""
        self.counts[member_id] = 0
        self.active[member_id] = set()
        self.standby[member_id] = set()

    def add(self, member_id: str, task: Task, *, is_active: bool) -> int:
        """Give a member a task, and return how many it has."""
        self._by_load = None
        return self._add(member_id, task, is_active)

    def add_to_least(self, task: Task, *, is_active: bool) -> int:
        """Give the member with the fewest tasks one more, and return how many it has."""
        if len(self.counts) == 1:
            return self._add(next(iter(self.counts)), task, is_active)
        if self._by_load is None:
            counted = [_Counted(member_id, self.counts[member_id]) for member_id in hash_ordered(self.counts)]
            self._by_load = _LeastFirst(counted, attrgetter("count"))
        member = self._by_load.pop()
        member.count = self._add(member.member_id, task, is_active)
        self._by_load.push(member)
        return member.count

    def _add(self, member_id: str, task: Task, is_active: bool) -> int:
        self.tasks.add(task)
        (self.active if is_active else self.standby)[member_id].add(task)
        self.counts[member_id] += 1
        self._total += 1
        self.load = self._total / len(self.counts)
        return self.counts[member_id]


@dataclass(slots=True)
class _Counted:
    member_id: str
    count: int


class _Share:
    """How many tasks a member may have that gets one because it had it before; what those have who have their share
    is not shared by the others."""

    __slots__ = ("_members", "_tasks", "each")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.each = self._compute()

    def note(self, count: int) -> None:
        """Note that a member has so many tasks now."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self.each = self._compute()

    def _compute(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0


class _Assignment:
    def __init__(
        self, subtopologies: Mapping[str, Subtopology], members: Mapping[str, TaskMember], standbys: int
    ) -> None:
        self._subtopologies = subtopologies
        self._standbys = standbys
        active = sum(each.tasks for each in subtopologies.values())
        copies = sum(each.tasks for each in subtopologies.values() if each.is_stateful) * standbys
        self._active_share = _Share(active, len(members))
        self._share = _Share(active + copies, len(members))
        self.process_of: dict[str, _Process] = {}
        self._active_before: dict[Task, str] = {}
        processes: dict[str, _Process] = {}
        buckets = 1 << (len(members) - 1).bit_length()
        candidates: dict[Task, list[tuple[bool, int, str]]] = {}
        for member_id in hash_ordered(members):
            member = members[member_id]
            if len(processes) > buckets * 3 // 4:  # HashMap.computeIfAbsent grows the table before it looks
                buckets *= 2
            process = self.process_of[member_id] = processes.setdefault(member.process_id, _Process())
            process.join(member_id)
            self._active_before |= dict.fromkeys(member.active, member_id)
            for task in {**dict.fromkeys(member.standby), **member.offsets}:
                is_new = task not in member.standby
                candidates.setdefault(task, []).append((is_new, -member.offsets.get(task, 0), member_id))
        self._standby_before = {
            task: [member_id for _, _, member_id in sorted(found, key=lambda each: each[:2])]
            for task, found in candidates.items()
        }
        newest_first = list(reversed(processes))  # in one bucket, where computeIfAbsent has put them
        self._processes = [processes[process_id] for process_id in _by_bucket(newest_first, buckets)]

    def assign_active(self) -> None:
        """Assign each task once."""
        left = self._stay(_tasks(self._subtopologies.items(), by_partition=True), self._active_member)
        left = self._stay(left, self._standby_member)
        by_load = _LeastFirst(self._processes, attrgetter("load"))
        for task in sorted(left):
            process = by_load.pop()
            self._note_active(process.add_to_least(task, is_active=True))
            by_load.push(process)

    def _stay(self, tasks: Iterable[Task], before: Callable[[Task], str | None]) -> list[Task]:
        """Assign tasks to members that had them before, and return those that were not assigned."""
        left = []
        for task in tasks:
            member_id = before(task)
            if member_id is None or self._count(member_id) >= self._active_share.each:
                left.append(task)
            else:
                self._note_active(self.process_of[member_id].add(member_id, task, is_active=True))
        return left

    def _active_member(self, task: Task) -> str | None:
        return self._active_before.get(task)

    def _standby_member(self, task: Task) -> str | None:
        return self._least_loaded(self._standby_before.get(task, ()))

    def _least_loaded(self, member_ids: Sequence[str]) -> str | None:
        """Return the first of some members, or one whose process and own load are both less than the last found."""
        found = None
        load = count = 0.0
        for member_id in member_ids:
            process = self.process_of[member_id]
            own = process.counts[member_id]
            if found is None or (process.load < load and own < count):
                found, load, count = member_id, process.load, own
        return found

    def _count(self, member_id: str) -> int:
        return self.process_of[member_id].counts[member_id]

    def _note_active(self, count: int) -> None:
        self._active_share.note(count)
        self._share.note(count)

    def assign_standbys(self) -> None:
        """Assign the standbys of tasks with a state."""
        stateful = [(name, each) for name, each in self._subtopologies.items() if each.is_stateful]
        left: list[tuple[Task, int]] = []
        for task in reversed(_tasks(stateful, by_partition=True)):
            assigned = 0
            while assigned < self._standbys and (member_id := self._standby_owner(task)) is not None:
                self._share.note(self.process_of[member_id].add(member_id, task, is_active=False))
                assigned += 1
            left.append((task, self._standbys - assigned))
        by_load = _LeastFirst(self._processes, attrgetter("load"))
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                if not self._place(by_load, task):
                    break

    def _standby_owner(self, task: Task) -> str | None:
        """Return the member that had the task before and may have a standby of it; None if there is none."""
        before = self._active_before.get(task)
        if before is not None and self._may_have(before, task):
            return before
        able = [one for one in self._standby_before.get(task, ()) if task not in self.process_of[one].tasks]
        found = self._least_loaded(able)
        return found if found is not None and self._may_have(found, task) else None

    def _may_have(self, member_id: str, task: Task) -> bool:
        return task not in self.process_of[member_id].tasks and self._count(member_id) < self._share.each

    def _place(self, by_load: _LeastFirst[_Process], task: Task) -> bool:
        """Give the process with the least load a standby of a task that it does not have; return whether one could."""
        passed = []
        process = None
        while by_load and process is None:
            process = by_load.pop()
            passed.append(process)
            if task in process.tasks:
                process = None
        if process is not None:
            self._share.note(process.add_to_least(task, is_active=False))
        for each in reversed(passed):
            by_load.push(each)
        return process is not None


def _tasks(subtopologies: Iterable[tuple[str, Subtopology]], *, by_partition: bool) -> list[Task]:
    found = [Task(name, partition) for name, each in subtopologies for partition in range(each.tasks)]
    return sorted(found, key=lambda task: task[::-1] if by_partition else task)


# ---- the order of Java's collections


def hash_ordered(texts: Collection[str]) -> list[str]:
    """Return texts in the order in which Java's HashMap has them.

    :param texts: in the order in which they were put into it
    """
    buckets = _LEAST_BUCKETS
    while len(texts) > buckets * 3 // 4:
        buckets *= 2
    return _by_bucket(texts, buckets)


def _by_bucket(texts: Iterable[str], buckets: int) -> list[str]:
    return sorted(texts, key=lambda text: _spread(text) & (buckets - 1))


def _spread(text: str) -> int:
    """Return what HashMap makes of a text's hash code."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    return code ^ (code >> 16)


T = TypeVar("T")


class _LeastFirst(Generic[T]):
    """A queue that yields the least first, and of equals the one that Java's PriorityQueue yields: a binary heap whose
    elements move as in `siftUp` and `siftDown` there, which differs from `heapq`.

    :param key: of an element; must not change while it is in the queue
    """

    __slots__ = ("_heap", "_key")

    def __init__(self, items: Iterable[T], key: Callable[[T], float]) -> None:
        self._heap: list[T] = []
        self._key = key
        for item in items:
            self.push(item)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: T) -> None:
        """Add an element."""
        heap, key = self._heap, self._key
        at = len(heap)
        heap.append(item)
        while at and key(item) < key(heap[parent := (at - 1) // 2]):
            heap[at] = heap[parent]
            at = parent
        heap[at] = item

    def pop(self) -> T:
        """Remove the least element and return it."""
        heap, key = self._heap, self._key
        least, item = heap[0], heap.pop()
        if not heap:
            return least
        at, half = 0, len(heap) // 2
        while at < half:
            child = 2 * at + 1
            if child + 1 < len(heap) and key(heap[child]) > key(heap[child + 1]):
                child += 1
            if key(item) <= key(heap[child]):
                break
            heap[at] = heap[child]
            at = child
        heap[at] = item
        return least
