"""What follows when something changes that the tasks of a streams group depend on: a group epoch, a target, and a
member's step.

How a member gets from what it holds to its target: give up first, then take what is free.

    STABLE            holds its target of the epoch that it is in
    UNREVOKED_TASKS   must give tasks up, and stays in its epoch until it reports that it has
    UNRELEASED_TASKS  is in the target's epoch, and waits for tasks that others hold

Laws (besides those of `consumer_groups.epochs`):

* A task is given to be active only when no member has it active, and no other member of the process has it at all: its
  state has one directory in each process.
* A standby that is to become active stays one until then, so that its state is not closed and read again; a task that
  is active and becomes a standby, or changes between standby and warm-up, does so in one step.
* The assignor sees what members hold, and the offsets that they reported.
* The first assignment of a group waits for more members (`group.streams.initial.rebalance.delay.ms`), and is then
  computed by a timer.

Source: KIP-1071; Kafka's `CurrentAssignmentBuilder.java`, `TargetAssignmentBuilder.java`, `GroupMetadataManager.java`
(maybeUpdateStreamsTargetAssignment, streamsGroupFenceMember) of 4.4. Its `AssignmentRefiner.java` changes nothing yet,
so that there are no warm-up tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from kcoord_wire.assignors.streams import STREAMS_ASSIGNOR, Subtopology, Task, TaskMember, assign_tasks
from kcoord_wire.coordinator.consumer_groups.epoch_records import member_tombstones, target_epoch_record
from kcoord_wire.coordinator.consumer_groups.epochs import Epochs, Records, may_assign
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.streams_groups import streams_records as log
from kcoord_wire.coordinator.streams_groups.streams_group import (
    NO_TASKS,
    HeldTasks,
    StreamsGroup,
    StreamsMember,
    TargetTasks,
    TaskOffsets,
    TaskState,
)
from kcoord_wire.coordinator.streams_groups.topology import Status

STANDBYS: Final = "num.standby.replicas"
TAGS: Final = "rack.aware.assignment.tags"
"""Settings that an assignment depends on, by the names that the log has for them."""

_NO_TARGET: Final = TargetTasks()


class Goal(NamedTuple):
    """What a member is to reach.

    :ivar epoch: the assignment epoch
    :ivar target: its part of the target assignment
    :ivar owned: what the member reports that it holds; None if its heartbeat does not say
    """

    epoch: int
    target: TargetTasks
    owned: TargetTasks | None


def next_member(group: StreamsGroup, member: StreamsMember, goal: Goal) -> StreamsMember:
    """Return the member after the next step towards its goal; the same if it can take none."""
    epoch = member.epoch
    if member.state is TaskState.STABLE and epoch == goal.epoch:
        return member
    if member.state is TaskState.UNREVOKED_TASKS:
        if _holds_any(goal.owned, member.revoking):
            return member
        epoch += 1
    if member.state is TaskState.UNKNOWN:  # of another release: the member has given up everything and begins anew
        epoch = goal.epoch
    return _Step(group, member, goal).taken(epoch)


def _holds_any(owned: TargetTasks | None, held: HeldTasks) -> bool:
    """Return whether a member still holds any of these tasks, which it does unless it says what it holds."""
    if owned is None:
        return True
    return not (
        owned.active.isdisjoint(held.active)
        and owned.standby.isdisjoint(held.standby)
        and owned.warmup.isdisjoint(held.warmup)
    )


class _Step:
    """One step of a member, as Kafka's `CurrentAssignmentBuilder` takes it.

    For each kind of task: ``kept`` are those that it holds and is to hold, ``gone`` those that it has to give up, and
    ``free`` those that it is to hold and may take now.
    """

    def __init__(self, group: StreamsGroup, member: StreamsMember, goal: Goal) -> None:
        self._group, self._member, self._goal = group, member, goal
        held, target = member.assigned, goal.target
        self._had = {"standby": set(held.standby), "warmup": set(held.warmup)}
        self._active_kept = {task: since for task, since in held.active.items() if task in target.active}
        self._active_gone = {task: since for task, since in held.active.items() if task not in target.active}
        self._active_free = self._free(target.active - held.active.keys(), self._is_active_taken)
        self._waits = len(self._active_free) < len(target.active - held.active.keys())
        self._kept: dict[str, set[Task]] = {}
        self._gone: dict[str, set[Task]] = {}
        self._free_of: dict[str, set[Task]] = {}
        for kind, wanted, is_taken in (
            ("standby", target.standby, self._is_standby_taken),
            ("warmup", target.warmup, self._is_warmup_taken),
        ):
            had = self._had[kind]
            self._kept[kind] = had & wanted
            self._gone[kind] = had - wanted
            self._free_of[kind] = self._free(wanted - had, is_taken)
            self._waits |= len(self._free_of[kind]) < len(wanted - had)

    @staticmethod
    def _free(wanted: Set[Task], is_taken: Callable[[Task], bool]) -> set[Task]:
        return {task for task in wanted if not is_taken(task)}

    # ---- what another member holds

    def _is_active_taken(self, task: Task) -> bool:
        return (
            task in self._group.active_process
            or self._is_elsewhere(self._group.standby_processes, "standby", task)
            or self._is_elsewhere(self._group.warmup_processes, "warmup", task)
        )

    def _is_standby_taken(self, task: Task) -> bool:
        process = self._member.process_id
        runs_elsewhere = self._group.active_process.get(task) == process and task not in self._member.assigned.active
        return (
            runs_elsewhere
            or process in self._group.standby_processes.get(task, ())
            or self._is_elsewhere(self._group.warmup_processes, "warmup", task)
        )

    def _is_warmup_taken(self, task: Task) -> bool:
        process = self._member.process_id
        return (
            self._group.active_process.get(task) == process
            or self._is_elsewhere(self._group.standby_processes, "standby", task)
            or process in self._group.warmup_processes.get(task, ())
        )

    def _is_elsewhere(self, processes: Mapping[Task, set[str]], kind: str, task: Task) -> bool:
        """Return whether another member of the process holds a task."""
        return self._member.process_id in processes.get(task, ()) and task not in self._had[kind]

    # ---- the step

    def taken(self, epoch: int) -> StreamsMember:
        """Return the member after the step.

        :param epoch: of the member where it still has to give tasks up
        """
        demoted = self._free_of["standby"] & self._member.assigned.active.keys()
        self._kept["standby"] |= demoted
        self._free_of["standby"] -= demoted
        self._convert("standby", "warmup")
        self._convert("warmup", "standby")
        promoted = self._goal.target.active
        for kind in ("standby", "warmup"):
            self._gone[kind] -= self._had[kind] & promoted
        revoking = HeldTasks(self._active_gone, frozenset(self._gone["standby"]), frozenset(self._gone["warmup"]))
        has_to_revoke = revoking != NO_TASKS and _holds_any(self._goal.owned, revoking)
        for kind in ("standby", "warmup"):
            granted: Set[Task] = set() if has_to_revoke else self._active_free
            self._kept[kind] |= (self._had[kind] & promoted) - granted
        if has_to_revoke:
            return self._moved(TaskState.UNREVOKED_TASKS, epoch, self._assigned(takes=False), revoking)
        state = TaskState.UNRELEASED_TASKS if self._waits else TaskState.STABLE
        return self._moved(state, self._goal.epoch, self._assigned(takes=True), NO_TASKS)

    def _convert(self, source: str, to: str) -> None:
        """Let a task that the member holds in one way be held in another."""
        converted = self._had[source] & self._free_of[to]
        self._free_of[to] -= converted
        self._kept[to] |= converted
        self._gone[source] -= converted

    def _assigned(self, *, takes: bool) -> HeldTasks:
        if not takes:
            return HeldTasks(self._active_kept, frozenset(self._kept["standby"]), frozenset(self._kept["warmup"]))
        return HeldTasks(
            {**self._active_kept, **dict.fromkeys(self._active_free, self._goal.epoch)},
            frozenset(self._kept["standby"] | self._free_of["standby"]),
            frozenset(self._kept["warmup"] | self._free_of["warmup"]),
        )

    def _moved(self, state: TaskState, epoch: int, assigned: HeldTasks, revoking: HeldTasks) -> StreamsMember:
        member = self._member
        return replace(
            member, state=state, epoch=epoch, previous_epoch=member.epoch, assigned=assigned, revoking=revoking
        )


class StreamsProgress(Epochs[StreamsGroup, StreamsMember]):
    """Moves streams groups and their members on."""

    no_member = StreamsMember(member_id="")

    # ---- settings

    def standbys(self, group: StreamsGroup) -> int:
        """Return how many standbys each task with a state is to have."""
        return self.setting(group, f"streams.{STANDBYS}", self.config.streams_num_standby_replicas)

    def assignment_configs(self, group: StreamsGroup) -> dict[str, str]:
        """Return the settings that an assignment depends on, as the log has them."""
        found = {STANDBYS: str(self.standbys(group))}
        tags = [tag.strip() for tag in self._configs_of(group.group_id).get(f"streams.{TAGS}", "").split(",")]
        if any(tags):
            found[TAGS] = ",".join(tags)
        return found

    def session_timeout(self, group: StreamsGroup, member: StreamsMember) -> int:
        """See `Epochs`."""
        return self.setting(group, "streams.session.timeout.ms", self.config.streams_session_timeout_ms)

    def heartbeat_interval(self, group: StreamsGroup) -> int:
        """Return how often members are to send a heartbeat, in ms."""
        return self.setting(group, "streams.heartbeat.interval.ms", self.config.streams_heartbeat_interval_ms)

    # ---- epochs and targets

    def bump(
        self,
        group: StreamsGroup,
        trigger: events.Trigger,
        who: StreamsMember,
        records: Records,
        reason: str | None = None,
    ) -> None:
        """See `Epochs`; the hash of the topics is computed by who has found that they changed."""
        group.epoch += 1
        records.append(log.epoch_record(group))
        group.state_since = self.effects.now
        group.begin_rebalance(self.effects, trigger, group.epoch, who, who.instance_id, reason)

    def delay_first(self, group: StreamsGroup) -> None:
        """Let the first assignment of a group that has no members wait, where that is wanted and does not yet."""
        delay = self.setting(
            group, "streams.initial.rebalance.delay.ms", self.config.streams_initial_rebalance_delay_ms
        )
        if delay and not group.is_delayed:
            group.delay = self.timers.start(self.effects.now + delay, partial(self._delay_over, group))

    def _delay_over(self, group: StreamsGroup) -> None:
        if group.members and group.configured is not None and group.epoch > group.assignment_epoch:
            records: Records = []
            self._compute(group, records)
            self.effects.append(group, records)

    def assign(self, group: StreamsGroup, records: Records) -> tuple[Status, str] | None:
        """Compute the target of the group epoch, unless there is one; return why that has to wait, or None."""
        if group.is_delayed:
            return Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay."
        if group.epoch <= group.assignment_epoch:
            return None
        interval = self.setting(group, "streams.assignment.interval.ms", self.config.streams_assignment_interval_ms)
        if not may_assign(group, interval, self.effects.now):
            return Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval."
        self._compute(group, records)
        return None

    def _compute(self, group: StreamsGroup, records: Records) -> None:
        before, group.target = group.target, self._target(group)
        records += [log.target_record(group, key) for key, each in group.target.items() if before.get(key) != each]
        group.set_assignment_epoch(group.epoch, self.effects.now)
        records.append(target_epoch_record(group))
        if group.rebalance is not None:
            group.rebalance.protocol = STREAMS_ASSIGNOR
            group.rebalance.joined_at = self.effects.now
            self.effects.report(events.Phase.JOINED, group.rebalance)

    def _target(self, group: StreamsGroup) -> dict[str, TargetTasks]:
        configured = group.configured
        if configured is None or configured.problem is not None or configured.subtopologies is None:
            return dict.fromkeys(group.members, _NO_TARGET)
        subtopologies = {
            name: Subtopology(each.tasks, bool(each.changelogs)) for name, each in configured.subtopologies.items()
        }
        members = {
            member_id: TaskMember(
                process_id=member.process_id,
                active=member.assigned.active,
                standby=member.assigned.standby,
                offsets=group.offsets_of.get(member_id, TaskOffsets()).offsets,
            )
            for member_id, member in group.members.items()
        }
        assigned = assign_tasks(subtopologies, members, self.standbys(group))
        return {member_id: TargetTasks(each.active, each.standby) for member_id, each in assigned.items()}

    def step(self, group: StreamsGroup, member: StreamsMember, goal: Goal, records: Records) -> StreamsMember:
        """Move a member one step towards its goal, and return it as it is then."""
        updated = next_member(group, member, goal)
        if updated != member:
            group.put(updated)
            records.append(log.assignment_record(group, updated))
            self._time_revocation(group, updated)
        self.settle(group, updated)
        return updated

    # ---- members that are late, replaced or gone

    def _time_revocation(self, group: StreamsGroup, member: StreamsMember) -> None:
        """Restart the timer for what a member must give up, or end it."""
        timers = group.timers[member.member_id]
        events.cancel(timers.rebalance)
        timers.rebalance = None
        if member.state is TaskState.UNREVOKED_TASKS:
            until = self.effects.now + member.rebalance_timeout_ms
            action = partial(self._revocation_expired, group, member.member_id, member.epoch)
            timers.rebalance = self.timers.start(until, action)

    def _revocation_expired(self, group: StreamsGroup, member_id: str, epoch: int) -> None:
        if group.members[member_id].epoch == epoch:
            self.expired(group, member_id, events.Trigger.REBALANCE_EXPIRED)

    def restart_timers(self, group: StreamsGroup) -> None:
        """See `Epochs`."""
        super().restart_timers(group)
        for member in group.members.values():
            self._time_revocation(group, member)

    def replace_static(self, group: StreamsGroup, old: StreamsMember, member: StreamsMember, records: Records) -> None:
        """Put a static member in the place of the one that it was before."""
        target: Any = group.target.get(old.member_id, _NO_TARGET)
        records += member_tombstones(group, old.member_id)
        group.remove(old.member_id)
        group.put(member)
        group.target[member.member_id] = target
        records.append(log.member_record(group, member))
        records.append(log.target_record(group, member.member_id))
        records.append(log.assignment_record(group, member))
