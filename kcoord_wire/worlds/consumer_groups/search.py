"""All runs of a few members of KIP-848 against the real coordinator, breadth first, up to a bound.

Every interleaving is tried of: heartbeats that arrive, their answers, either of them lost, applications that have given
partitions up, members that leave, crash, join again, and change their subscription, sessions and rebalance timeouts
that end, and a coordinator that starts again from its log. Losses, departures, crashes, changes and restarts are
perturbations, of which a run has at most `Bounds.perturbations`; time passes in ticks, half a session each, of which
there are at most `Bounds.ticks`.

In each state the laws of `consumer_group_laws` are checked, and that the coordinator is what its log gives back (``log
is complete``). When all states are known, ``EventuallyConverges`` is checked from each: nothing else fails, whatever is
in flight arrives, members beat in turn, time passes, and the group must converge.

Laws of the search:

* States are distinguished by all that decides their future, times excepted that no timer waits for. Nothing is hashed
  away: two states with the same key are the same.
* A run to a state that breaks a law is a shortest one; a heartbeat may arrive in the step that sends it
  (`World.delivered`).

The machines are those of the server. Their steps are remembered by state, since most states of the whole differ only in
what is under way.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.consumer.kip848_member import (
    ConsumerGroupMember,
    Leave,
    MemberSettings,
    Released,
    State,
    Subscribe,
)
from kcoord_wire.consumer.member_events import Arrived, SendRequest
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import Append, Load, LogRecord, Reply, Request
from kcoord_wire.kernel.machines import Disconnected, Tick
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.worlds.consumer_groups.consumer_group_laws import (
    Epochs,
    check_client_step,
    check_clients,
    check_group,
    check_step,
    consumer_groups,
    has_converged,
    snapshot,
)
from kcoord_wire.worlds.group.wire import VirtualTopics

_GROUP: Final = "g"
_BROKERS: Final = Brokers([Endpoint(1, "127.0.0.1", 9092)])
_SESSION_MS: Final = 10_000
_TICK_MS: Final = _SESSION_MS // 2
_ROUNDS: Final = 40
"""After so many rounds without faults a group must have converged: a session that ends takes three ticks, and each
member that gives up or takes partitions some heartbeats."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far the search goes.

    :ivar members: how many members there are
    :ivar topics: name to number of partitions; a member subscribes to all of them, or changes to the first one alone
    :ivar perturbations: how many of what disturbs a group may happen in one run
    :ivar ticks: how often half a session may pass
    :ivar depth: how many steps a run may have; None for as many as there are
    :ivar is_static: whether the members are static: they leave for a while, and return
    :ivar kinds: the perturbations that there are
    """

    members: int = 2
    topics: tuple[tuple[str, int], ...] = (("t", 2),)
    perturbations: int = 1
    ticks: int = 0
    depth: int | None = None
    is_static: bool = False
    kinds: tuple[str, ...] = ("lose", "leave", "crash", "subscribe", "restart coordinator")


class Step(NamedTuple):
    """One step of a run.

    :ivar what: ``arrives``, ``answered``, ``beats``, ``released``, ``joins``, ``tick``, or a perturbation
    :ivar member: whose; -1 for the coordinator's
    """

    what: str
    member: int = -1

    def __str__(self) -> str:
        return self.what if self.member < 0 else f"m{self.member + 1} {self.what}"


class WorldState(NamedTuple):
    """A state of the whole, by numbers in the tables of `World`.

    :ivar coordinator: its machine
    :ivar members: their machines; -1 for one that does not run
    :ivar flights: what is under way for each member: 0 for nothing, request or answer
    :ivar joined: how often each member has joined, which makes its id
    :ivar left: perturbations that may still happen
    :ivar ticks: that may still happen
    """

    coordinator: int
    members: tuple[int, ...]
    flights: tuple[int, ...]
    joined: tuple[int, ...]
    left: int
    ticks: int


class _Table:
    """Values with equal keys get one number, and the first of them stands for all."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, item: Any) -> int:
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.items)
            self.items.append(item)
        return known


class _Coordinator(NamedTuple):
    """A machine between two events, its log by key, and its time. It is copied before it goes on."""

    machine: CoordinatorMachine
    log: dict[str, LogRecord]
    now: int


class World:
    """The tables of states, and what leads from one to the next.

    :ivar trail: the steps of the last check of convergence
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.topics = VirtualTopics(dict(bounds.topics))
        self.coordinators = _Table()
        self.members = _Table()
        self.flights = _Table()
        self.flights.number(None, None)
        self._config = GroupConfig(
            consumer_session_timeout_ms=_SESSION_MS,
            consumer_heartbeat_interval_ms=1_000,
            consumer_assignment_interval_ms=0,
        )
        self._served: dict[tuple[int, int], tuple[int, int]] = {}
        self._moved: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._ticked: dict[int, int] = {}
        self._restarted: dict[int, int] = {}
        self._checked: set[tuple[int, tuple[int, ...]]] = set()
        self._converging: set[WorldState] = set()
        self.trail: list[Step] = []

    def start(self) -> WorldState:
        """Return the state in which no member has joined."""
        machine = CoordinatorMachine(_BROKERS, self.topics, subscribed_topics, self._config)
        machine.handle(Load(()), 1)
        coordinator = self._keep(_Coordinator(machine, {}, 1), None)
        count = self.bounds.members
        state = WorldState(
            coordinator, (-1,) * count, (0,) * count, (0,) * count, self.bounds.perturbations, self.bounds.ticks
        )
        for member in range(count):
            state = self.after(state, Step("joins", member))
        return state

    # ---- steps

    def steps(self, state: WorldState) -> Iterator[Step]:
        """Return the steps that a state allows."""
        for member, number in enumerate(state.members):
            if number < 0:
                yield Step("joins", member)
                continue
            yield from (Step(what, member) for what in self._moves(state, member))
            if state.left:
                yield from (Step(kind, member) for kind in self.bounds.kinds if self._may(kind, state, member))
        if state.left and "restart coordinator" in self.bounds.kinds:
            yield Step("restart coordinator")
        if state.ticks:
            yield Step("tick")

    def _moves(self, state: WorldState, member: int) -> Iterator[str]:
        machine: ConsumerGroupMember = self.members.items[state.members[member]]
        flight = self.flights.items[state.flights[member]]
        if flight is None:
            yield "beats"
        else:
            yield "arrives" if isinstance(flight, m.ConsumerGroupHeartbeatRequest) else "answered"
        if machine.state is State.RECONCILING:
            yield "released"

    def _may(self, kind: str, state: WorldState, member: int) -> bool:
        machine: ConsumerGroupMember = self.members.items[state.members[member]]
        if kind == "lose":
            return state.flights[member] > 0
        if kind in ("leave", "subscribe"):
            return machine.state is not State.LEAVING
        return kind == "crash"

    def after(self, state: WorldState, step: Step) -> WorldState:
        """Return the state after a step.

        :raises ViolationError: the step breaks a law of the coordinator
        """
        if step.what in self.bounds.kinds:
            state = state._replace(left=state.left - 1)
        return _TAKE[step.what](self, state, step.member)

    def delivered(self, state: WorldState, step: Step) -> WorldState:
        """Return a state after a step with the heartbeat that a member has just sent arrived, unless something may
        happen to the member before that.

        If no perturbation is left, nothing can tell when it was sent: it is the same as if it were sent later.
        """
        if state.left or step.what != "beats":
            return state
        machine: ConsumerGroupMember = self.members.items[state.members[step.member]]
        is_sent = state.flights[step.member] > 0 and machine.state is not State.RECONCILING
        return self._arrives(state, step.member) if is_sent else state

    def _arrives(self, state: WorldState, member: int) -> WorldState:
        known = (state.coordinator, state.flights[member])
        if known not in self._served:
            before = self.coordinators.items[state.coordinator]
            request = self.flights.items[state.flights[member]]
            after, answer = self._handled(before, Request(1, request, 1, "client", "/10.0.0.1"))
            rejoined = (request.member_id,) if request.member_epoch == 0 else ()
            self._served[known] = (self._keep(after, before, rejoined), self.flights.number(_key(answer), answer))
        coordinator, flight = self._served[known]
        return state._replace(coordinator=coordinator, flights=_with(state.flights, member, flight))

    def _answered(self, state: WorldState, member: int) -> WorldState:
        return self._move(
            state._replace(flights=_with(state.flights, member, 0)), member, "answered", state.flights[member]
        )

    def _beats(self, state: WorldState, member: int) -> WorldState:
        return self._move(state, member, "beats")

    def _releases(self, state: WorldState, member: int) -> WorldState:
        return self._move(state, member, "released")

    def _loses(self, state: WorldState, member: int) -> WorldState:
        return self._move(state._replace(flights=_with(state.flights, member, 0)), member, "lose")

    def _leaves(self, state: WorldState, member: int) -> WorldState:
        return self._move(state, member, "leave")

    def _subscribes(self, state: WorldState, member: int) -> WorldState:
        return self._move(state, member, "subscribe")

    def _crashes(self, state: WorldState, member: int) -> WorldState:
        return state._replace(members=_with(state.members, member, -1), flights=_with(state.flights, member, 0))

    def _joins(self, state: WorldState, member: int) -> WorldState:
        number = state.joined[member] + 1
        settings = MemberSettings(
            group_id=_GROUP,
            client_id="client",
            member_id=f"m{member + 1}-{number}",
            instance_id=f"i{member + 1}" if self.bounds.is_static else None,
            rebalance_timeout_ms=_TICK_MS,
            request_timeout_ms=1 << 40,
            retry_ms=0,
        )
        machine = ConsumerGroupMember(settings)
        effects = machine.handle(Subscribe([name for name, _ in self.bounds.topics]), 0)
        state = state._replace(joined=_with(state.joined, member, number))
        return self._put(state, member, *self._kept_member(machine, effects))

    def _tick(self, state: WorldState, _member: int) -> WorldState:
        if state.coordinator not in self._ticked:
            before: _Coordinator = self.coordinators.items[state.coordinator]
            after, _ = self._handled(before._replace(now=before.now + _TICK_MS), Tick())
            self._ticked[state.coordinator] = self._keep(after, before)
        return state._replace(coordinator=self._ticked[state.coordinator], ticks=max(state.ticks - 1, 0))

    def _restart(self, state: WorldState, _member: int) -> WorldState:
        if state.coordinator not in self._restarted:
            before: _Coordinator = self.coordinators.items[state.coordinator]
            self._restarted[state.coordinator] = self._keep(self._loaded(before), before)
        state = state._replace(coordinator=self._restarted[state.coordinator])
        for member, flight in enumerate(state.flights):
            if flight:
                state = self._loses(state, member)
        return state

    # ---- the coordinator's machine

    def _handled(self, before: _Coordinator, event: Any) -> tuple[_Coordinator, Any]:
        machine = self._copy(before.machine)
        log = dict(before.log)
        answer = None
        for effect in machine.handle(event, before.now):
            if isinstance(effect, Append):
                _write(log, effect.records)
            elif isinstance(effect, Reply):
                answer = effect.message
        return _Coordinator(machine, log, before.now), answer

    def _copy(self, machine: CoordinatorMachine) -> CoordinatorMachine:
        """Return a copy of a machine; what never changes is shared, for copying it is most of the work."""
        constant: list[Any] = [self.topics, self._config, _BROKERS]
        for group in consumer_groups(machine).values():
            constant += [*group.members.values(), *group.target.values()]
        return copy.deepcopy(machine, {id(each): each for each in constant})

    def _loaded(self, before: _Coordinator) -> _Coordinator:
        machine = CoordinatorMachine(_BROKERS, self.topics, subscribed_topics, self._config)
        log = dict(before.log)
        for effect in machine.handle(Load(list(before.log.values())), before.now):
            if isinstance(effect, Append):
                _write(log, effect.records)
        return _Coordinator(machine, log, before.now)

    def _keep(self, after: _Coordinator, before: _Coordinator | None, rejoined: tuple[str, ...] = ()) -> int:
        """Return the number of a coordinator; the laws of its own are checked when it is new."""
        groups = consumer_groups(after.machine)
        former = {} if before is None else consumer_groups(before.machine)
        for group_id, group in groups.items():
            check_step(Epochs.of(former[group_id]) if group_id in former else None, group, rejoined)
            check_group(group)
        count = len(self.coordinators.items)
        number = self.coordinators.number(_coordinator_key(after), after)
        if number == count:
            loaded = consumer_groups(self._loaded(after).machine)
            has = {group_id: snapshot(group) for group_id, group in groups.items()}
            read = {group_id: snapshot(group) for group_id, group in loaded.items()}
            if has != read:
                raise ViolationError("log is complete", f"the coordinator has {has}, its log {read}")
        return number

    # ---- the members' machines

    def _move(self, state: WorldState, member: int, what: str, flight: int = 0) -> WorldState:
        known = (state.members[member], what, flight)
        if known not in self._moved:
            machine = copy.copy(self.members.items[state.members[member]])
            epoch = machine.epoch
            effects = _MOVE[what](machine, self.flights.items[flight])
            check_client_step(epoch, machine)
            self._moved[known] = self._kept_member(machine, effects)
        return self._put(state, member, *self._moved[known])

    def _kept_member(self, machine: ConsumerGroupMember, effects: list[Any]) -> tuple[int, int]:
        """Return the number of a member, and that of what it sends."""
        sent = next((effect.message for effect in effects if isinstance(effect, SendRequest)), None)
        if machine.is_over:
            return -1, 0
        return self.members.number(machine.state_key(), machine), self.flights.number(_key(sent), sent)

    @staticmethod
    def _put(state: WorldState, member: int, number: int, flight: int) -> WorldState:
        state = state._replace(members=_with(state.members, member, number))
        return state._replace(flights=_with(state.flights, member, flight)) if flight or number < 0 else state

    # ---- laws of the whole

    def check(self, state: WorldState) -> None:
        """Check the laws of members and coordinator together.

        :raises ViolationError: with the name of the law
        """
        known = (state.coordinator, state.members)
        if known in self._checked:
            return
        self._checked.add(known)
        clients = self._clients(state)
        for group in self._groups(state):
            check_clients(group, clients)

    def _clients(self, state: WorldState) -> list[ConsumerGroupMember]:
        return [self.members.items[number] for number in state.members if number >= 0]

    def _groups(self, state: WorldState) -> list[ConsumerGroup]:
        return list(consumer_groups(self.coordinators.items[state.coordinator].machine).values())

    def check_converges(self, state: WorldState) -> None:
        """Check that the group converges from here, if nothing fails any more.

        :raises ViolationError: ``EventuallyConverges``, or what else breaks on the way
        """
        passed: list[WorldState] = []
        for _ in range(_ROUNDS):
            if state in self._converging or self._has_converged(state):
                self._converging.update(passed)
                return
            passed.append(state)
            state = self._round(state)
        held = [(client.settings.member_id, str(client.state), sorted(client.owned)) for client in self._clients(state)]
        text = f"not after {_ROUNDS} rounds without faults: {held}"
        raise ViolationError("EventuallyConverges", text)

    def _has_converged(self, state: WorldState) -> bool:
        clients = self._clients(state)
        groups = self._groups(state)
        if any(client.state is State.LEAVING for client in clients):
            return False
        return all(has_converged(group, clients, self.topics) for group in groups) if groups else not clients

    def _round(self, state: WorldState) -> WorldState:
        """Everybody gets an answer and beats again, and gives up what it has to; then half a session passes."""
        for member in range(len(state.members)):
            for _ in range(3):  # a request, its answer, and what follows from that
                if state.members[member] >= 0:
                    for what in self._moves(state, member):
                        self.trail.append(Step(what, member))
                        state = self.after(state, self.trail[-1])
                        if state.members[member] < 0:
                            break
        self.trail.append(Step("tick"))
        state = self._tick(state, -1)
        self.check(state)
        return state


def _write(log: dict[str, LogRecord], records: list[LogRecord]) -> None:
    for record in records:
        key = repr(record.key)
        log.pop(key, None)
        if record.value is not None:
            log[key] = record


def _key(message: Any) -> Hashable:
    return None if message is None else repr(message)


def _coordinator_key(coordinator: _Coordinator) -> Hashable:
    groups = consumer_groups(coordinator.machine)
    timers = tuple(
        (group_id, member_id, *(_remaining(getattr(found, name), coordinator.now) for name in ("session", "rebalance")))
        for group_id, group in sorted(groups.items())
        for member_id, found in sorted(group.timers.items())
    )
    return tuple((group_id, snapshot(group)) for group_id, group in sorted(groups.items())), timers


def _remaining(timer: Any, now: int) -> int | None:
    return timer.when - now if timer is not None and timer.live else None


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _later(machine: ConsumerGroupMember, event: Any) -> list[Any]:
    """Let a member handle an event at the time at which it wants to send its next heartbeat, if it waits for that."""
    return machine.handle(event, 0 if machine.deadline is None or machine.waits_for is not None else machine.deadline)


_MOVE: Final[dict[str, Callable[[ConsumerGroupMember, Any], list[Any]]]] = {
    "answered": lambda machine, answer: machine.handle(Arrived(machine.waits_for or 0, answer), 0),
    "beats": lambda machine, _: _later(machine, Tick()),
    "released": lambda machine, _: machine.handle(Released(machine.ticket), 0),
    "lose": lambda machine, _: machine.handle(Disconnected(), 0),
    "leave": lambda machine, _: machine.handle(Leave(for_a_while=machine.settings.instance_id is not None), 0),
    "subscribe": lambda machine, _: machine.handle(Subscribe(machine.topics[:1]), 0),
}

_TAKE: Final[dict[str, Callable[[World, WorldState, int], WorldState]]] = {
    "arrives": World._arrives,
    "answered": World._answered,
    "beats": World._beats,
    "released": World._releases,
    "joins": World._joins,
    "lose": World._loses,
    "leave": World._leaves,
    "crash": World._crashes,
    "subscribe": World._subscribes,
    "restart coordinator": World._restart,
    "tick": World._tick,
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """The outcome of a search.

    :ivar states: how many different ones there are within the bounds
    :ivar steps: how many steps lead from one to another
    :ivar depth: the length of the longest of the shortest runs to a state
    :ivar is_whole: whether all states within the perturbations and ticks were reached, not only those within `depth`
    :ivar coordinators: how many different states the coordinator was in
    :ivar cpu_s: seconds of the processor
    :ivar violation: the law that was broken, None if none was
    :ivar run: the steps that break it
    """

    states: int
    steps: int
    depth: int
    is_whole: bool
    coordinators: int
    cpu_s: float
    violation: ViolationError | None = None
    run: tuple[Step, ...] = ()


class _Search:
    """The states found so far, and how each was reached first."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.world = World(bounds)
        first = self.world.start()
        self.parents: dict[WorldState, tuple[WorldState, Step] | None] = {first: None}
        self.frontier = [first]
        self.depth = self.steps = 0
        self.run: tuple[WorldState, tuple[Step, ...]] = (first, ())  # the state and the steps that are being checked

    def deepen(self) -> None:
        """Find the states that are one step further.

        :raises ViolationError: one of them breaks a law
        """
        found: list[WorldState] = []
        for state in self.frontier:
            for step in self.world.steps(state):
                self.steps += 1
                self.run = state, (step,)
                after = self.world.delivered(self.world.after(state, step), step)
                if after not in self.parents:
                    self.parents[after] = (state, step)
                    found.append(after)
                    self.world.check(after)
        self.frontier = found
        self.depth += 1 if found else 0

    def check_convergence(self) -> None:
        """Check that the group converges from each state.

        :raises ViolationError: it does not, or breaks another law on the way
        """
        for state in self.parents:
            self.world.trail = []
            self.run = state, ()
            self.world.check_converges(state)

    def run_so_far(self) -> tuple[Step, ...]:
        """Return the steps that lead to what is being checked."""
        state, further = self.run
        run: list[Step] = []
        while (came := self.parents[state]) is not None:
            state, step = came
            run.append(step)
        return (*reversed(run), *further, *self.world.trail)


def search(bounds: Bounds, progress: Callable[[int, int], None] | None = None) -> Found:
    """Go through all states within the bounds, and check the laws in each.

    :param progress: called after each depth with it and the number of states so far
    """
    started = time.process_time()
    course = _Search(bounds)
    violation: ViolationError | None = None
    try:
        course.world.check(course.frontier[0])
        while course.frontier and (bounds.depth is None or course.depth < bounds.depth):
            course.deepen()
            if progress is not None:
                progress(course.depth, len(course.parents))
        course.check_convergence()
    except ViolationError as broken:
        violation = broken
    return Found(
        states=len(course.parents),
        steps=course.steps,
        depth=course.depth,
        is_whole=violation is None and not course.frontier,
        coordinators=len(course.world.coordinators.items),
        cpu_s=time.process_time() - started,
        violation=violation,
        run=() if violation is None else course.run_so_far(),
    )
