"""All runs of a few members against the real coordinator, breadth first, up to a bound: of KIP-848, and classic ones.

Every interleaving is tried of: heartbeats that arrive, their answers, either of them lost, applications that have given
partitions up, members that leave, crash, join again, and change their subscription, sessions and rebalance timeouts
that end, and a coordinator that starts again from its log. Losses, departures, crashes, changes and restarts are
perturbations, of which a run has at most `Bounds.perturbations`; time passes in ticks, half a session each, of which
there are at most `Bounds.ticks`.

In each state the laws of `consumer_group_laws` are checked, and that the coordinator is what its log gives back (``log
is complete``); with classic members in the group also that a group goes on with its epoch when it takes the other
protocol (``ConversionsKeepEpochs``), that no two of a generation own the same partition (``one owner``), and that
nothing is answered twice (``answered once``). When all states are known, ``EventuallyConverges`` is checked from each:
nothing else fails, whatever is in flight arrives, members beat in turn, time passes, and the group must converge.

Laws of the search, besides those of `breadth_first`:

* States are distinguished by all that decides their future, times excepted that no timer waits for.
* A heartbeat may arrive in the step that sends it (`World.delivered`).

The machines are those of the server. Their steps are remembered by state, since most states of the whole differ only in
what is under way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import Append, Load, LogRecord, Reply, Request
from kcoord_wire.coordinator.core.groups import BaseGroup, Group, State
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.worlds.breadth_first import Found, Step, Table, explore
from kcoord_wire.worlds.consumer_groups.consumer_group_laws import (
    Client,
    Epochs,
    assigned,
    check_client_step,
    check_clients,
    check_group,
    check_step,
    consumer_groups,
    has_converged,
    snapshot,
)
from kcoord_wire.worlds.consumer_groups.search_members import (
    GROUP,
    SESSION_MS,
    TICK_MS,
    NewerMember,
    OlderMember,
    SearchedMember,
    Sent,
)
from kcoord_wire.worlds.group.wire import VirtualTopics

_BROKERS: Final = Brokers([Endpoint(1, "127.0.0.1", 9092)])
_PARKED: Final = 1
"""The number of a request that waits at the coordinator."""

_ROUNDS: Final = 40
"""After so many rounds without faults a group must have converged: a session that ends takes three ticks, and each
member that gives up or takes partitions some heartbeats."""


_LAPS: Final = 20
"""So many requests are enough for a rebalance of a classic group."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far the search goes.

    :ivar members: how many members there are
    :ivar topics: name to number of partitions; a member subscribes to all of them, or changes to the first one alone
    :ivar perturbations: how many of what disturbs a group may happen in one run
    :ivar ticks: how often half a session may pass
    :ivar depth: how many steps a run may have; None for as many as there are
    :ivar is_static: whether the members are static: they leave for a while, and return
    :ivar classic: how many of the members, the last ones, use the classic protocol
    :ivar kinds: the perturbations that there are
    """

    members: int = 2
    topics: tuple[tuple[str, int], ...] = (("t", 2),)
    perturbations: int = 1
    ticks: int = 0
    depth: int | None = None
    is_static: bool = False
    classic: int = 0
    kinds: tuple[str, ...] = ("lose", "leave", "crash", "subscribe", "restart coordinator")


class WorldState(NamedTuple):
    """A state of the whole, by numbers in the tables of `World`.

    :ivar coordinator: its machine
    :ivar members: their machines; -1 for one that does not run
    :ivar flights: what is under way for each member: 0 for nothing, request or answer
    :ivar joined: how often each member has joined, or was given an id
    :ivar left: perturbations that may still happen
    :ivar ticks: that may still happen
    :ivar returning: classic members that go on with what they had before their group became one of KIP-848
    """

    coordinator: int
    members: tuple[int, ...]
    flights: tuple[int, ...]
    joined: tuple[int, ...]
    left: int
    ticks: int
    returning: tuple[int, ...] = ()


class _Outcome(NamedTuple):
    """What comes of an event: the coordinator's number, and the answers, with the members that get them."""

    coordinator: int
    answers: tuple[tuple[int, int], ...]


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
        self.coordinators = Table()
        self.members = Table()
        self.flights = Table()
        self.flights.number(None, None)
        self.flights.number("parked", None)
        self._config = GroupConfig(
            consumer_session_timeout_ms=SESSION_MS,
            consumer_heartbeat_interval_ms=1_000,
            consumer_assignment_interval_ms=0,
            initial_rebalance_delay_ms=0,
            new_member_join_timeout_ms=SESSION_MS,
        )
        self._served: dict[tuple[int, int, int, int], _Outcome] = {}
        self._moved: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._ticked: dict[int, _Outcome] = {}
        self._restarted: dict[int, int] = {}
        self._orphaned: dict[tuple[int, int], int] = {}
        self._checked: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
        self._converging: set[WorldState] = set()
        self.trail: list[Step] = []

    @property
    def machines(self) -> Table:
        """See `Searched`."""
        return self.coordinators

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
        number = state.flights[member]
        if number == 0:
            yield "beats"
        elif number != _PARKED:
            yield "arrives" if isinstance(self.flights.items[number], Sent) else "answered"
        if self._member(state, member).releases(number > 0):
            yield "released"

    def _may(self, kind: str, state: WorldState, member: int) -> bool:
        has_flight = state.flights[member] > 0
        if kind == "lose":
            return has_flight
        if kind in ("leave", "subscribe"):
            return self._member(state, member).may_change(has_flight)
        return kind == "crash"

    def _member(self, state: WorldState, member: int) -> SearchedMember:
        found: SearchedMember = self.members.items[state.members[member]]
        return found

    def after(self, state: WorldState, step: Step) -> WorldState:
        """Return the state after a step.

        :raises ViolationError: the step breaks a law of the coordinator
        """
        former = self.group(state)
        if step.what in self.bounds.kinds:
            state = state._replace(left=state.left - 1)
        return self._with_returning(_TAKE[step.what](self, state, step.member), former)

    def delivered(self, state: WorldState, step: Step) -> WorldState:
        """Return a state after a step with the heartbeat that a member has just sent arrived, unless something may
        happen to the member before that.

        If no perturbation is left, nothing can tell when it was sent: it is the same as if it were sent later.
        """
        if state.left or step.what != "beats":
            return state
        is_sent = state.flights[step.member] > _PARKED and not self._member(state, step.member).is_reconciling
        return self.after(state, Step("arrives", step.member)) if is_sent else state

    def _with_returning(self, state: WorldState, former: BaseGroup | None) -> WorldState:
        """Return a state with those members noted that `check` does not count yet.

        As in Kafka, a group that becomes one of KIP-848 takes what its log has assigned to a classic member for what
        that owns. The member goes on with what an earlier generation gave it, until it has synced in the group's epoch.
        """
        group = self.group(state)
        if not self.bounds.classic or not isinstance(group, ConsumerGroup):
            return state._replace(returning=())
        before = former.members if isinstance(former, ConsumerGroup) else {}
        returning = tuple(
            index
            for index, number in enumerate(state.members)
            if number >= 0 and self._returns(group, self.members.items[number].client, before, index in state.returning)
        )
        return state._replace(returning=returning)

    @staticmethod
    def _returns(group: ConsumerGroup, client: Client, before: Mapping[str, Any], has_returned: bool) -> bool:
        member = group.members.get(client.member_id)
        if member is None or member.classic is None or not (has_returned or client.member_id not in before):
            return False
        return client.epoch < member.epoch or not client.owned <= assigned(group, client.member_id)

    def _arrives(self, state: WorldState, member: int) -> WorldState:
        return self._serve(state, member, state.flights[member])

    def _serve(self, state: WorldState, member: int, flight: int) -> WorldState:
        """Return a state after the coordinator has handled a request of a member."""
        message, version = self.flights.items[flight]
        if isinstance(message, m.JoinGroupRequest) and not message.member_id:  # it may be given an id
            state = state._replace(joined=_with(state.joined, member, state.joined[member] + 1))
        known = (state.coordinator, flight, member, state.joined[member])
        if known not in self._served:
            before = self.coordinators.items[state.coordinator]
            client = f"m{member + 1}" if isinstance(message, m.JoinGroupRequest) else "client"
            request = Request(member + 1, message, version, client, "/10.0.0.1", str(state.joined[member]))
            is_new = isinstance(message, m.ConsumerGroupHeartbeatRequest) and message.member_epoch == 0
            self._served[known] = self._outcome(before, request, (message.member_id,) if is_new else ())
        if state.members[member] >= 0:
            state = state._replace(flights=_with(state.flights, member, _PARKED))
        return self._answer(state, self._served[known])

    def _outcome(self, before: _Coordinator, event: Any, rejoined: tuple[str, ...] = ()) -> _Outcome:
        after, answers = self._handled(before, event)
        numbers = tuple((member, self.flights.number(_key(answer), answer)) for member, answer in answers)
        return _Outcome(self._keep(after, before, rejoined), numbers)

    def _answer(self, state: WorldState, outcome: _Outcome) -> WorldState:
        """Return a state in which the coordinator is another, and has answered requests."""
        state = state._replace(coordinator=outcome.coordinator)
        for member, flight in outcome.answers:
            if state.members[member] < 0:
                continue  # it has left with that request
            if state.flights[member] != _PARKED:
                raise ViolationError("answered once", f"m{member + 1} waits for no answer, but gets one")
            state = state._replace(flights=_with(state.flights, member, flight))
        return state

    def _answered(self, state: WorldState, member: int) -> WorldState:
        return self._move(
            state._replace(flights=_with(state.flights, member, 0)), member, "answered", state.flights[member]
        )

    def _beats(self, state: WorldState, member: int) -> WorldState:
        return self._move(state, member, "beats")

    def _releases(self, state: WorldState, member: int) -> WorldState:
        return self._move(state, member, "released")

    def _loses(self, state: WorldState, member: int) -> WorldState:
        return self._move(self._without_flight(state, member), member, "lose")

    def _leaves(self, state: WorldState, member: int) -> WorldState:
        return self._move(state, member, "leave")

    def _subscribes(self, state: WorldState, member: int) -> WorldState:
        return self._move(state, member, "subscribe")

    def _crashes(self, state: WorldState, member: int) -> WorldState:
        return self._without_flight(state._replace(members=_with(state.members, member, -1)), member)

    def _joins(self, state: WorldState, member: int) -> WorldState:
        number = state.joined[member] + 1
        kind = OlderMember if member >= self.bounds.members - self.bounds.classic else NewerMember
        machine, sent = kind.starting(f"m{member + 1}", number, self.topics, self.bounds.is_static)
        state = state._replace(joined=_with(state.joined, member, number))
        return self._put(state, member, *self._kept_member(machine, sent))

    def _tick(self, state: WorldState, _member: int) -> WorldState:
        if state.coordinator not in self._ticked:
            before: _Coordinator = self.coordinators.items[state.coordinator]
            self._ticked[state.coordinator] = self._outcome(before._replace(now=before.now + TICK_MS), Tick())
        return self._answer(state, self._ticked[state.coordinator])._replace(ticks=max(state.ticks - 1, 0))

    def _restart(self, state: WorldState, _member: int) -> WorldState:
        if state.coordinator not in self._restarted:
            before: _Coordinator = self.coordinators.items[state.coordinator]
            self._restarted[state.coordinator] = self._keep(self._loaded(before), before)
        lost = [member for member, flight in enumerate(state.flights) if flight]
        flights = tuple(0 if flight == _PARKED else flight for flight in state.flights)
        state = state._replace(coordinator=self._restarted[state.coordinator], flights=flights)
        for member in lost:
            state = self._loses(state, member)
        return state

    def _without_flight(self, state: WorldState, member: int) -> WorldState:
        """Return a state in which what was under way for a member is lost, also at the coordinator."""
        if state.flights[member] == _PARKED:
            known = (state.coordinator, member)
            if known not in self._orphaned:
                self._orphaned[known] = self._orphan(*known)
            state = state._replace(coordinator=self._orphaned[known])
        return state._replace(flights=_with(state.flights, member, 0))

    def _orphan(self, coordinator: int, member: int) -> int:
        """Return the coordinator with the parked requests of a member on a connection that has ended."""
        before: _Coordinator = self.coordinators.items[coordinator]
        machine = self._copy(before.machine)
        for group in _classic_groups(machine).values():
            for each in group.members.values():
                each.join, each.sync = (_orphaned(request, member) for request in (each.join, each.sync))
        return self._keep(before._replace(machine=machine), before)

    # ---- the coordinator's machine

    def _handled(self, before: _Coordinator, event: Any) -> tuple[_Coordinator, list[tuple[int, Any]]]:
        """Return the coordinator after an event, and the answers with the members that get them."""
        machine = self._copy(before.machine)
        log = dict(before.log)
        answers: list[tuple[int, Any]] = []
        for effect in machine.handle(event, before.now):
            if isinstance(effect, Append):
                _write(log, effect.records)
            elif isinstance(effect, Reply) and effect.token != _GONE:
                answers.append((effect.token - 1, effect.message))
        return _Coordinator(machine, log, before.now), answers

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
        if before is not None:
            _check_conversion(before.machine.groups.get(GROUP), after.machine.groups.get(GROUP))
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
            before = self._member(state, member)
            after, sent = before.take(what, self.flights.items[flight])
            check_client_step(before.client.epoch, after.client)
            self._moved[known] = self._kept_member(after, sent)
        return self._put(state, member, *self._moved[known])

    def _kept_member(self, member: SearchedMember, sent: Sent | None) -> tuple[int, int]:
        """Return the number of a member, and that of what it sends."""
        flight = self.flights.number(_key(sent), sent)
        return (-1 if member.is_over else self.members.number(member.key(), member)), flight

    def _put(self, state: WorldState, member: int, number: int, flight: int) -> WorldState:
        state = state._replace(members=_with(state.members, member, number))
        if number >= 0:
            return state._replace(flights=_with(state.flights, member, flight)) if flight else state
        state = state._replace(flights=_with(state.flights, member, 0))
        return self._serve(state, member, flight) if flight else state  # it leaves, and does not wait for the answer

    # ---- laws of the whole

    def check(self, state: WorldState) -> None:
        """Check the laws of members and coordinator together.

        :raises ViolationError: with the name of the law
        """
        known = (state.coordinator, state.members, state.returning)
        if known in self._checked:
            return
        self._checked.add(known)
        counted = [number for index, number in enumerate(state.members) if index not in state.returning and number >= 0]
        clients = [self.members.items[number].client for number in counted]
        group = self.group(state)
        if isinstance(group, ConsumerGroup):
            check_clients(group, clients)
        elif isinstance(group, Group):
            _check_owners(group, clients)

    def _clients(self, state: WorldState) -> list[Client]:
        return [member.client for member in self._running(state)]

    def _running(self, state: WorldState) -> list[SearchedMember]:
        return [self.members.items[number] for number in state.members if number >= 0]

    def group(self, state: WorldState) -> BaseGroup | None:
        """Return the group; None before the first member has joined."""
        machine: CoordinatorMachine = self.coordinators.items[state.coordinator].machine
        return machine.groups.get(GROUP)

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
        held = [(each.client.member_id, each.key(), sorted(each.client.owned)) for each in self._running(state)]
        text = f"not after {_ROUNDS} rounds without faults: {held}"
        raise ViolationError("EventuallyConverges", text)

    def _has_converged(self, state: WorldState) -> bool:
        members = self._running(state)
        group = self.group(state)
        if any(member.is_leaving for member in members):
            return False
        if isinstance(group, ConsumerGroup):
            return has_converged(group, self._clients(state), self.topics)
        if isinstance(group, Group) and members:
            return self._has_settled(group, members)
        return not members

    def _has_settled(self, group: Group, members: list[SearchedMember]) -> bool:
        """Return whether a classic group is what its members are, and these own each partition exactly once."""
        owned = [partition for member in members for partition in member.client.owned]
        topics = {topic for member in members for topic in member.topics}
        return (
            group.state is State.STABLE
            and {member.client.member_id for member in members} == group.members.keys()
            and all(member.client.is_at_rest and member.client.epoch == group.generation_id for member in members)
            and len(owned) == len(set(owned)) == sum(self.topics.counts[topic] for topic in topics)
        )

    def _round(self, state: WorldState) -> WorldState:
        """Everybody gets an answer and beats again, and gives up what it has to; then half a session passes.

        Classic members wait for one another, to join and to sync: they have done that before time passes.
        """
        for _ in range(_LAPS if self.bounds.classic else 1):
            before = state
            for member in range(len(state.members)):
                state = self._turn(state, member)
            if state == before:
                break
        self.trail.append(Step("tick"))
        state = self.after(state, self.trail[-1])
        self.check(state)
        return state

    def _turn(self, state: WorldState, member: int) -> WorldState:
        """Let a member send a request, get its answer, and do what follows from that."""
        for _ in range(3):
            moves = list(self._moves(state, member)) if state.members[member] >= 0 else []
            if self.bounds.classic:  # who beats on before it has given something up may not come to it
                moves.reverse()
            for what in moves:
                if state.members[member] >= 0 and what in self._moves(state, member):
                    self.trail.append(Step(what, member))
                    state = self.after(state, self.trail[-1])
        return state


def _write(log: dict[str, LogRecord], records: list[LogRecord]) -> None:
    for record in records:
        key = repr(record.key)
        log.pop(key, None)
        if record.value is not None:
            log[key] = record


def _key(message: Any) -> Hashable:
    return None if message is None else repr(message)


_GONE: Final = 0
"""The token of a request whose connection has ended."""


def _orphaned(request: Request | None, member: int) -> Request | None:
    return replace(request, token=_GONE) if request is not None and request.token == member + 1 else request


def _classic_groups(machine: CoordinatorMachine) -> dict[str, Group]:
    return {group_id: group for group_id, group in machine.groups.items() if isinstance(group, Group)}


def _epoch(group: BaseGroup | None) -> int:
    """Return the epoch or generation of a group; 0 of one without members, which may begin anew."""
    if group is None or group.is_empty:
        return 0
    return group.epoch if isinstance(group, ConsumerGroup) else group.generation_id if isinstance(group, Group) else 0


def _check_conversion(before: BaseGroup | None, after: BaseGroup | None) -> None:
    """Check that a group with members goes on with its epoch when it takes the other protocol."""
    if type(before) is not type(after) and after is not None and not after.is_empty and _epoch(after) < _epoch(before):
        text = f"a {before and before.kind} group of {_epoch(before)} is a {after.kind} one of {_epoch(after)}"
        raise ViolationError("ConversionsKeepEpochs", text)


def _check_owners(group: Group, clients: list[Client]) -> None:
    """Check what the clients of a classic group own that are in its generation."""
    owners: dict[Any, str] = {}
    for client in clients:
        if client.member_id in group.members and client.epoch == group.generation_id:
            for partition in client.owned:
                other = owners.setdefault(partition, client.member_id)
                if other != client.member_id:
                    text = f"{partition} is owned by {other} and {client.member_id} in {group.generation_id}"
                    raise ViolationError("one owner", text)


def _coordinator_key(coordinator: _Coordinator) -> Hashable:
    groups = consumer_groups(coordinator.machine)
    timers = tuple(
        (group_id, member_id, *(_remaining(getattr(found, name), coordinator.now) for name in type(found).__slots__))
        for group_id, group in sorted(groups.items())
        for member_id, found in sorted(group.timers.items())
    )
    classic = tuple(_shown(group, coordinator.now) for _, group in sorted(_classic_groups(coordinator.machine).items()))
    return tuple((group_id, snapshot(group)) for group_id, group in sorted(groups.items())), timers, classic


def _shown(group: Group, now: int) -> Hashable:
    """Return what decides the future of a classic group."""
    members = tuple(
        (
            *(each.member_id, each.group_instance_id, each.protocols, each.assignment, each.is_new),
            *(_key(each.join), _key(each.sync), _remaining(each.session, now)),
        )
        for each in group.members.values()
    )
    pending = tuple((member_id, _remaining(timer, now)) for member_id, timer in sorted(group.pending.items()))
    return (
        *(group.group_id, group.state, group.generation_id, group.protocol_type, group.protocol, group.leader_id),
        *(members, pending, tuple(sorted(group.unsynced)), group.waiting, group.filling, group.filling_grew),
        *(_remaining(group.join_timer, now), _remaining(group.sync_timer, now)),
    )


def _remaining(timer: Any, now: int) -> int | None:
    return timer.when - now if timer is not None and timer.live else None


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


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


def search(bounds: Bounds, progress: Callable[[int, int], None] | None = None) -> Found:
    """Go through all states within the bounds, and check the laws in each.

    :param progress: see `explore`
    """
    return explore(World(bounds), bounds.depth, progress)
