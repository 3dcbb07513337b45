"""Random lives of a virtual cluster, replayed by seed, and made small when one breaks a law.

    python -m kcoord_wire.simulation.group.script --seeds 0:1000

A `Script` is a topology and a list of timed actions. `random_script` makes one from a seed; `run_script` plays it,
heals the cluster at the end and waits until the group has settled. Where a law of invariants.py breaks,
`SimulationFailure` tells the seed and the shortest script found that still breaks it, as Python to paste.

Laws:

* A script and its seed give the same run on every machine.
* An action that makes no sense where it comes (a crash of who is not there) does nothing: any action can be left out of
  a script.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any, Final, Literal, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.consumer.events import (
    CLIENT_VERSIONS,
)
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.fault_injection import Fault
from kcoord_wire.simulation.group.cluster import Cluster, Happening, Process
from kcoord_wire.simulation.group.invariants import ViolationError

__all__ = [
    "Action",
    "AddPartitions",
    "Cluster",
    "Crash",
    "CrashCoordinator",
    "CutOff",
    "FailDisk",
    "Happening",
    "Join",
    "LeaveGroup",
    "Lose",
    "Meddle",
    "Pause",
    "Process",
    "Report",
    "Resubscribe",
    "Script",
    "SimulationFailure",
    "Stray",
    "main",
    "minimize",
    "random_script",
    "run_script",
]

SETTLE_MS: Final = 300_000
"""Within this a group with the timeouts of `random_script` is Stable after the last fault: a session timeout, the join
timeout of a member that died while it was new, two rebalances, and a sync that nobody ends."""

HOLD_MS: Final = 10_000
"""A group that is Stable counts as settled if it still is after this, which is longer than any heartbeat interval."""


# ---- actions


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that happens to the cluster.

    :ivar at: ms after the start
    """

    at: int

    def play(self, sim: Cluster) -> None:
        """Let it happen."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return _source(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class _OfMember(Action):
    name: str

    def play(self, sim: Cluster) -> None:
        process = sim.processes.get(self.name)
        if process is not None and process.is_working:
            self.act(sim)

    def act(self, sim: Cluster) -> None:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, repr=False)
class Join(Action):
    """A consumer starts; one of that name that is alive is killed first. See `Cluster.member`."""

    name: str
    topics: tuple[str, ...] | None = None
    assignors: tuple[str, ...] = ("range",)
    instance_id: str | None = None
    client: str = "java"
    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 1_000
    request_timeout_ms: int = 5_000
    commit_ms: int | None = 2_000
    release_ms: int = 0

    def play(self, sim: Cluster) -> None:
        """See `Action`."""
        if self.name in sim.processes and sim.processes[self.name].is_working:
            sim.crash(self.name)
        options = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("at", "name")}
        sim.member(self.name, **options)


@dataclass(frozen=True, kw_only=True, repr=False)
class LeaveGroup(_OfMember):
    """A consumer is closed."""

    def act(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.leave(self.name)


@dataclass(frozen=True, kw_only=True, repr=False)
class Crash(_OfMember):
    """A consumer's process dies."""

    def act(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.crash(self.name)


@dataclass(frozen=True, kw_only=True, repr=False)
class Pause(_OfMember):
    """A consumer's process stands still for `ms`."""

    ms: int

    def act(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.pause(self.name, self.ms)


@dataclass(frozen=True, kw_only=True, repr=False)
class CutOff(_OfMember):
    """Nothing comes through between a consumer and the coordinator for `ms`."""

    ms: int

    def act(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.partition(self.name, self.ms)


@dataclass(frozen=True, kw_only=True, repr=False)
class Resubscribe(_OfMember):
    """A consumer wants other topics."""

    topics: tuple[str, ...]

    def act(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.subscribe(self.name, self.topics)


@dataclass(frozen=True, kw_only=True, repr=False)
class Lose(Action):
    """For `ms`, messages vanish (`drop`) or take their connection with them (`reset`), by these probabilities."""

    ms: int
    drop: float = 0.0
    reset: float = 0.0

    def play(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.lose(self.ms, drop=self.drop, reset=self.reset)


@dataclass(frozen=True, kw_only=True, repr=False)
class Meddle(Action):
    """From now on, requests or responses of an api are hit, each `every`-th of them, `count` times. See `Fault`."""

    api: str
    action: Literal["delay", "drop", "duplicate", "error", "disconnect"]
    on: Literal["request", "response"] = "request"
    count: int = 1
    every: int = 1
    delay_ms: int = 0
    error: str | None = None

    def play(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.meddle(Fault(**{item.name: getattr(self, item.name) for item in fields(self) if item.name != "at"}))


@dataclass(frozen=True, kw_only=True, repr=False)
class CrashCoordinator(Action):
    """The coordinator loses power in the disk operation number `writes` from now; 0: now. See `Cluster`."""

    down_ms: int = 1_000
    load_ms: int = 100
    writes: int = 0

    def play(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.crash_coordinator(self.down_ms, load_ms=self.load_ms, writes=self.writes)


@dataclass(frozen=True, kw_only=True, repr=False)
class FailDisk(Action):
    """The disk operation number `writes` from now fails. See `Cluster.fail_disk`."""

    repaired_after_ms: int = 1_000
    writes: int = 0

    def play(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.fail_disk(self.repaired_after_ms, writes=self.writes)


@dataclass(frozen=True, kw_only=True, repr=False)
class AddPartitions(Action):
    """A topic gets more partitions, or comes into being."""

    topic: str
    count: int

    def play(self, sim: Cluster) -> None:
        """See `Action`."""
        sim.add_partitions(self.topic, self.count)


@dataclass(frozen=True, kw_only=True, repr=False)
class Stray(Action):
    """A request comes from nowhere: an operator's, or one that a client sent long ago.

    :ivar kind: ``heartbeat``, ``sync``, ``commit``: for the member `name`, `ahead` generations off its own;
        ``leave``: an operator removes the member; ``simple commit``: from outside of any group; ``delete group``,
        ``delete offsets``, ``describe``, ``list``
    """

    kind: str
    name: str
    ahead: int = 0

    def play(self, sim: Cluster) -> None:
        """See `Action`."""
        process = sim.processes.get(self.name)
        if process is not None and sim.is_up:
            sim.send(*self._request(process, sim))

    def _request(self, process: Process, sim: Cluster) -> tuple[Any, int]:
        member = process.member
        group_id = member.settings.group_id
        instance_id = member.settings.group_instance_id
        generation_id = member.generation_id + self.ahead
        topic = min(sim.topics)
        match self.kind:
            case "heartbeat":
                return m.HeartbeatRequest(group_id=group_id, generation_id=generation_id, member_id=member.member_id), 4
            case "sync":
                return m.SyncGroupRequest(group_id=group_id, generation_id=generation_id, member_id=member.member_id), 5
            case "leave":
                who = m.LeaveGroupRequestMemberIdentity(member_id=member.member_id)
                if instance_id is not None:
                    who = m.LeaveGroupRequestMemberIdentity(group_instance_id=instance_id)
                return m.LeaveGroupRequest(group_id=group_id, members=[who]), 5
            case "commit" | "simple commit":
                offset = sim.fresh_offset()
                place = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
                request = m.OffsetCommitRequest(
                    group_id=group_id, topics=[m.OffsetCommitRequestTopic(name=topic, partitions=[place])]
                )
                if self.kind == "commit":
                    request.generation_id_or_member_epoch = generation_id
                    request.member_id = member.member_id
                return request, 9
            case "delete group":
                return m.DeleteGroupsRequest(groups_names=[group_id]), 2
            case "delete offsets":
                places = [m.OffsetDeleteRequestPartition(partition_index=0)]
                return m.OffsetDeleteRequest(
                    group_id=group_id, topics=[m.OffsetDeleteRequestTopic(name=topic, partitions=places)]
                ), 0
            case "describe":
                return m.DescribeGroupsRequest(groups=[group_id]), 5
            case "list":
                return m.ListGroupsRequest(), 5
        raise ValueError(f"no stray request is called {self.kind!r}")


# ---- scripts


@dataclass(frozen=True, kw_only=True, repr=False)
class Script:
    """A life of a cluster.

    :ivar seed: of the luck that the actions leave open: latencies, losses, what a crash leaves on the disk
    :ivar config: settings of the coordinator that differ from `GroupConfig`'s
    """

    seed: int
    topics: Mapping[str, int]
    actions: Sequence[Action]
    config: Mapping[str, int] = field(default_factory=dict)
    segment_bytes: int = 65_536
    min_compaction_bytes: int = 65_536

    def __repr__(self) -> str:
        head = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.name != "actions")
        lines = "".join(f"    {action!r},\n" for action in self.actions)
        return f"Script({head}, actions=[\n{lines}])"


def _source(action: Action) -> str:
    parts = [f"{item.name}={getattr(action, item.name)!r}" for item in fields(action) if _is_telling(action, item)]
    return f"{type(action).__name__}({', '.join(parts)})"


def _is_telling(action: Action, item: Any) -> bool:
    return bool(getattr(action, item.name) != item.default)


class Report(NamedTuple):
    """What a script came to.

    :ivar steps: events delivered
    :ivar virtual_ms: how long it took on the virtual clock
    :ivar settled_ms: how long after the last fault the group had settled
    :ivar rebalances: how many have ended
    """

    steps: int
    virtual_ms: int
    settled_ms: int
    rebalances: int


class SimulationFailure(AssertionError):
    """A law was broken. Its text can be pasted into a test.

    :ivar law: which one
    :ivar script: what broke it
    :ivar seed: of the script
    """

    def __init__(self, script: Script, violation: ViolationError, trace: Sequence[Happening] = ()) -> None:
        self.script = script
        self.seed = script.seed
        self.law = violation.law
        self.violation = violation
        last = "".join(f"# {str(line)[:200]}\n" for line in trace[-12:])
        names = sorted({type(action).__name__ for action in script.actions} | {"Script", "run_script"})
        super().__init__(
            f"{violation}\n{last}# seed {script.seed}; to replay:\n"
            f"from kcoord_wire.simulation.group.script import {', '.join(names)}\n\nrun_script({script!r})"
        )


def run_script(script: Script, *, shrink: bool = True) -> Report:
    """Play a script, end all its faults, and wait until the group has settled.

    :param shrink: look for a shorter script that breaks the same law
    :raises SimulationFailure: a law was broken
    """
    report, failure = _play(script)
    if failure is None:
        assert report is not None
        return report
    if shrink:
        failure = minimize(failure)
    raise failure


def minimize(failure: SimulationFailure, tries: int = 300) -> SimulationFailure:
    """Leave out of a script what it does not need to break the same law (Zeller's ddmin, by halves and down to one)."""
    actions = list(failure.script.actions)
    size = max(len(actions) // 2, 1)
    while tries > 0:
        start = 0
        shrunk = False
        while start < len(actions) and tries > 0:
            fewer = actions[:start] + actions[start + size :]
            tries -= 1
            _, other = _play(replace(failure.script, actions=fewer))
            if other is not None and other.law == failure.law:
                actions, failure, shrunk = fewer, other, True
            else:
                start += size
        if size == 1 and not shrunk:
            break
        size = max(size // 2, 1)
    return failure


def _play(script: Script) -> tuple[Report | None, SimulationFailure | None]:
    with Cluster(
        script.seed,
        topics=script.topics,
        config=GroupConfig(**script.config),
        segment_bytes=script.segment_bytes,
        min_compaction_bytes=script.min_compaction_bytes,
    ) as sim:
        try:
            for action in sorted(script.actions, key=lambda action: action.at):
                sim.run(max(action.at - sim.now, 0))
                action.play(sim)
            settled = _settle(sim)
        except ViolationError as violation:
            return None, SimulationFailure(script, violation, sim.trace)
    return Report(sim.steps, sim.now, settled, len(sim.rebalances)), None


def _settle(sim: Cluster) -> int:
    """Wait until the group has settled and stays so; how long that took."""
    sim.heal()
    start = sim.now
    deadline = start + SETTLE_MS
    nudged = False
    while True:
        try:
            sim.run_until(sim.is_settled, max(deadline - sim.now, 0))
        except TimeoutError:
            if nudged or not sim.rests_on_static_members():
                text = f"not Stable {sim.now - start} ms after the last fault: {_standing(sim)}"
                raise ViolationError("settles", text) from None
            sim.nudge()
            nudged = True
            deadline = sim.now + SETTLE_MS
            continue
        settled, rebalances = sim.now - start, len(sim.rebalances)
        sim.run(HOLD_MS)
        if sim.is_settled() and len(sim.rebalances) == rebalances:
            return settled
        if sim.now > deadline:
            raise ViolationError("settles", f"still rebalancing {sim.now - start} ms after the last fault")


def _standing(sim: Cluster) -> str:
    working = [process for process in sim.processes.values() if process.is_working]
    return f"{working}, {len(sim.owners())} partitions held"


# ---- random scripts

_ASSIGNOR_LISTS: Final = (
    ("range",),
    ("roundrobin", "range"),
    ("sticky", "range"),
    ("cooperative-sticky",),
    ("cooperative-sticky", "range"),
)
_STRAYS: Final = (
    "heartbeat",
    "commit",
    "leave",
    "simple commit",
    "delete group",
    "delete offsets",
    "describe",
    "list",
)
_APIS: Final = ("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch")
_MEDDLINGS: Final[tuple[Literal["delay", "drop", "duplicate", "error", "disconnect"], ...]] = (
    "delay",
    "drop",
    "duplicate",
    "error",
    "disconnect",
)
_SIDES: Final[tuple[Literal["request", "response"], ...]] = ("request", "response")
_ERRORS: Final = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
_LASTS_MS: Final = (500, 2_000, 5_000, 8_000, 15_000)


def random_script(seed: int, actions: int = 40) -> Script:
    """A life of one group with up to eight members: what it does depends on the seed alone."""
    random = Random(f"{seed}/script")
    names = [f"m{number}" for number in range(1, random.randint(2, 8) + 1)]
    topics = {f"t{number}": random.randint(1, 9) for number in range(1, random.randint(1, 3) + 1)}
    # A member with cooperative-sticky alone shares no protocol with one that has range alone (error 23): such members
    # give up, which is a life too, but not one for every seed.
    mixed = random.random() < 0.15
    base = random.choice(_ASSIGNOR_LISTS)
    compatible = [base] if base == ("cooperative-sticky",) else [list_ for list_ in _ASSIGNOR_LISTS if "range" in list_]
    clients = random.choice([list(CLIENT_VERSIONS), ["java"], [random.choice(list(CLIENT_VERSIONS))]])
    static = random.random() < 0.4
    config = {
        "initial_rebalance_delay_ms": random.choice([0, 0, 500, 3_000]),
        "new_member_join_timeout_ms": random.choice([15_000, 40_000]),
    }
    if random.random() < 0.15:
        config["max_size"] = random.randint(1, len(names))
    if random.random() < 0.2:
        config["offsets_retention_ms"] = random.choice([5_000, 60_000])
        config["offsets_retention_check_interval_ms"] = 3_000

    def join(at: int, name: str) -> Join:
        client = random.choice(clients)
        instance_id = None
        if static and random.random() < 0.6:
            # Clients whose heartbeats do not carry the instance id are never fenced: two with one id take the place
            # from each other for ever. So they have one each; the others may meet their double.
            instance_id = f"i{random.randint(1, 4)}" if CLIENT_VERSIONS[client].heartbeat >= 3 else f"of-{name}"
        return Join(
            at=at,
            name=name,
            topics=random.choice(
                [None, None, None, tuple(random.sample(sorted(topics), random.randint(1, len(topics))))]
            ),
            assignors=random.choice(_ASSIGNOR_LISTS if mixed else compatible),
            instance_id=instance_id,
            client=client,
            session_timeout_ms=random.choice([6_000, 6_000, 9_000]),
            rebalance_timeout_ms=random.choice([6_000, 10_000, 15_000]),
            heartbeat_interval_ms=random.choice([300, 1_000, 2_000]),
            commit_ms=random.choice([500, 2_000, 2_000, None]),
            release_ms=random.choice([0, 0, 10, 300]),
        )

    script: list[Action] = [join(0, name) for name in names if random.random() < 0.7]
    at = 0
    haste = random.choice([100, 1_000, 3_000])  # so that some lives have their actions in the middle of a rebalance
    for _ in range(random.randint(actions // 2, actions)):
        at += int(random.expovariate(1 / haste))
        name = random.choice(names)
        lasts = random.choice(_LASTS_MS)
        kind = random.random()
        action: Action
        if kind < 0.30:
            action = join(at, name)
        elif kind < 0.38:
            action = LeaveGroup(at=at, name=name)
        elif kind < 0.48:
            action = Crash(at=at, name=name)
        elif kind < 0.60:
            action = Pause(at=at, name=name, ms=lasts)
        elif kind < 0.70:
            action = CutOff(at=at, name=name, ms=lasts)
        elif kind < 0.76:
            drop, reset = random.choice([(0.02, 0.0), (0.0, 0.05), (0.2, 0.05), (0.05, 0.2)])
            action = Lose(at=at, ms=lasts, drop=drop, reset=reset)
        elif kind < 0.81:
            what = random.choice(_MEDDLINGS)
            action = Meddle(
                at=at,
                api=random.choice(_APIS),
                action=what,
                on=random.choice(_SIDES),
                count=random.randint(1, 3),
                every=random.randint(1, 3),
                delay_ms=random.choice([50, 1_000, 7_000]) if what == "delay" else 0,
                error=random.choice(_ERRORS) if what == "error" else None,
            )
        elif kind < 0.89:
            action = CrashCoordinator(
                at=at,
                down_ms=random.choice([0, 200, 3_000, 12_000]),
                load_ms=random.choice([0, 100, 1_500]),
                writes=random.choice([0, 1, 2, 3, 5, 9]),
            )
        elif kind < 0.93:
            action = FailDisk(at=at, repaired_after_ms=random.choice([10, 2_000, 9_000]), writes=random.randint(0, 3))
        elif kind < 0.95:
            action = Resubscribe(
                at=at, name=name, topics=tuple(random.sample(sorted(topics), random.randint(1, len(topics))))
            )
        elif kind < 0.98:
            action = Stray(at=at, kind=random.choice(_STRAYS), name=name, ahead=random.choice([-1, 0, 1]))
        else:
            action = AddPartitions(at=at, topic=random.choice(sorted(topics)), count=random.randint(1, 3))
        script.append(action)
    return Script(
        seed=seed,
        topics=topics,
        config=config,
        segment_bytes=random.choice([1_000, 4_000, 65_536]),
        min_compaction_bytes=random.choice([2_000, 10_000, 65_536]),
        actions=script,
    )


# ---- the command line


class _Outcome(NamedTuple):
    seed: int
    report: Report | None
    failure: str | None


def _try_seed(seed: int) -> _Outcome:
    try:
        return _Outcome(seed, run_script(random_script(seed)), None)
    except SimulationFailure as failure:
        return _Outcome(seed, None, str(failure))


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a seed nor FIRST:END") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed at all: END is the first that is left out")
    return seeds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def _outcomes(seeds: range, jobs: int) -> Iterator[_Outcome]:
    if jobs == 1:
        yield from map(_try_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _start_worker) as pool:
        yield from pool.imap_unordered(_try_seed, seeds, chunksize=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds until all, or enough steps, are done: 0 if no law was broken, 1 if one was, 130 if stopped before."""
    parser = argparse.ArgumentParser(
        prog="python -m kcoord_wire.simulation.group.script",
        description="Play random lives of a virtual group, and check the laws after every event.",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=range(100),
        metavar="FIRST:END",
        help="END is left out; one number is one seed; default: 0:100",
    )
    parser.add_argument("--steps", type=_positive, default=None, help="stop once so many events were delivered")
    parser.add_argument(
        "--jobs", type=_positive, default=os.cpu_count() or 1, help="processes; default: one for each core"
    )
    given = parser.parse_args(arguments)
    steps = done = rebalances = 0
    slowest = 0
    stopped = False
    failures: list[_Outcome] = []
    start = shown = time.monotonic()
    try:
        for outcome in _outcomes(given.seeds, given.jobs):
            done += 1
            if outcome.report is not None:
                steps += outcome.report.steps
                rebalances += outcome.report.rebalances
                slowest = max(slowest, outcome.report.settled_ms)
            else:
                failures.append(outcome)
                print(f"\nseed {outcome.seed} fails:\n{outcome.failure}\n", file=sys.stderr, flush=True)
            now = time.monotonic()
            if now - shown >= 1 and sys.stderr.isatty():
                shown = now
                print(
                    f"\r{_line(done, len(given.seeds), steps, now - start, failures)}",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
            if given.steps is not None and steps >= given.steps:
                break
    except KeyboardInterrupt:
        stopped = True
        print("\nstopped", file=sys.stderr)
    print(_line(done, len(given.seeds), steps, time.monotonic() - start, failures))
    print(f"{rebalances:,} rebalances; settled at most {slowest:,} virtual ms after the last fault")
    if failures:
        print("seeds that failed:", *sorted(outcome.seed for outcome in failures))
    return 1 if failures else 130 if stopped else 0


def _line(done: int, seeds: int, steps: int, seconds: float, failures: Sequence[_Outcome]) -> str:
    speed = steps / max(seconds, 1e-9)
    return f"{done:,} of {seeds:,} seeds, {steps:,} steps, {speed:,.0f} steps/s, {len(failures)} failures"


if __name__ == "__main__":
    sys.exit(main())
