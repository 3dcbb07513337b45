"""`kcoord simulate`: random runs of virtual worlds, with their laws checked after every event; known bugs, played.

To add a world: a command here that names it and what its scripts depend on, then a row of `cli.main.COMMANDS`.

Laws:

* A seed has the same run on every machine and in every process.
* The summary goes to stdout; failures go to stderr as they are found, each with a short script that replays it. The
  status is 1 if a law was broken, and 130 after Ctrl-C.
* A law that the options allow to be broken is no failure: the shortest script that does so is printed. So are what the
  rules of Marshal's Go library allow to go wrong, counted by kind.
* A search prints a shortest run that breaks a law.
* A bug's damage goes to stdout, first with the bug and then without it; with ``--explain``, what the frames show as
  well.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from kcoord_wire.cli.options import Argument, Command, Format, Option, Positive, UsageError, decimal, whole
from kcoord_wire.cli.output import print_json

if TYPE_CHECKING:
    from kcoord_wire.clients.bugs import ClientBug
    from kcoord_wire.kernel.virtual.scripts import Report, Script
    from kcoord_wire.worlds.breadth_first import Found


class Outcome(NamedTuple):
    """A seed's run.

    :ivar report: None if a law was broken
    :ivar law: that was broken; empty for none
    :ivar failure: the law, the last lines of the trace, and the script that replays it
    :ivar actions: number of actions of that script
    """

    seed: int
    report: Report | None
    law: str = ""
    failure: str = ""
    actions: int = 0


def _parse_seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise ValueError(f"{text!r} is neither a seed nor FIRST:END") from None
    if not seeds:
        raise ValueError(f"{text!r} has no seeds: END is not included")
    return seeds


@dataclass
class Totals:
    """What the runs so far add up to.

    :ivar expected: the law that may be broken; empty for none
    :ivar counted: which of the reports' counts is summed up
    :ivar found: the runs that broke it
    :ivar failed: seeds of those that broke another
    :ivar others: the sums of the reports' other counts, by name
    :ivar seeds_of: the seeds whose reports have them
    """

    seeds: int
    expected: str = ""
    counted: str = "rebalances"
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    steps: int = 0
    count: int = 0
    slowest_ms: int = 0
    failed: list[int] = field(default_factory=list)
    found: list[Outcome] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    seeds_of: dict[str, list[int]] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count a run."""
        self.done += 1
        if outcome.report is not None:
            self.steps += outcome.report.steps
            self.count += outcome.report.counts.get(self.counted, 0)
            self.slowest_ms = max(self.slowest_ms, outcome.report.settled_ms)
            for kind in outcome.report.counts.keys() - {self.counted}:
                self.others[kind] += outcome.report.counts[kind]
                self.seeds_of.setdefault(kind, []).append(outcome.seed)
        elif outcome.law == self.expected:
            self.found.append(outcome)
        else:
            self.failed.append(outcome.seed)
            print(f"\nseed {outcome.seed} fails:\n{outcome.failure}\n", file=sys.stderr, flush=True)

    @property
    def shortest(self) -> Outcome | None:
        """Of the runs that broke the law that may be broken, the one with the fewest actions."""
        return min(self.found, key=lambda outcome: (outcome.actions, outcome.seed), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return all of it; the scripts of seeds that fail are on stderr."""
        return {
            "seeds": self.seeds,
            "done": self.done,
            "steps": self.steps,
            "seconds": round(time.monotonic() - self.started, 3),
            self.counted: self.count,
            "slowest_ms": self.slowest_ms,
            "failed": sorted(self.failed),
            "found": sorted(outcome.seed for outcome in self.found),
            "shortest": None if self.shortest is None else self.shortest.failure,
            "others": {kind: {"count": self.others[kind], "seeds": seeds} for kind, seeds in self.seeds_of.items()},
        }

    def __str__(self) -> str:
        speed = self.steps / max(time.monotonic() - self.started, 1e-9)
        return (
            f"{self.done:,} of {self.seeds:,} seeds, {self.steps:,} steps, {speed:,.0f} steps/s, "
            f"{len(self.failed)} failures"
        )


@dataclass(frozen=True, kw_only=True)
class World(Command):
    """Random scripts of a world, by seed.

    :cvar WORLD: a key of `kcoord_wire.worlds.WORLDS`
    :cvar COUNTED: which of the reports' counts the summary has
    :cvar ALLOWED: the law that the options may allow to be broken, and what a run that does so shows
    """

    WORLD: ClassVar[str] = "group"
    COUNTED: ClassVar[str] = "rebalances"
    ALLOWED: ClassVar[tuple[str, str]] = ("", "")

    seeds: Annotated[
        range, _parse_seeds, Option("END is not included; one number is one seed (default: 0:100)", "FIRST:END")
    ] = range(100)
    steps: Annotated[Positive | None, Option("stop after so many delivered events", "N")] = None
    jobs: Annotated[Positive, Option("processes (default: one per core)", "N")] = os.cpu_count() or 1
    format: Format = "text"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the scripts that are not the seed."""
        return {}

    @property
    def allows(self) -> bool:
        """Whether `ALLOWED` is no failure."""
        return False

    def run(self) -> None:
        """Run the seeds and print the summary.

        :raises ValueError: a law was broken
        """
        from kcoord_wire.worlds import script_maker

        make_script = partial(script_maker(self.WORLD), **self.options)
        totals = Totals(len(self.seeds), self.ALLOWED[0] if self.allows else "", self.COUNTED)
        try:
            self._run(partial(_try_seed, make_script), totals)
        finally:
            if self.format == "json":
                print_json({"world": self.WORLD, **totals.to_json()})
            else:
                print(totals)
                settled = f"settled at most {totals.slowest_ms:,} virtual ms after the last fault"
                print(f"{totals.count:,} {self.COUNTED}; {settled}")
        if totals.failed:
            raise ValueError(f"seeds that break a law: {' '.join(map(str, sorted(totals.failed)))}")
        if self.format == "json":
            return
        if totals.shortest is not None:
            print(f"{len(totals.found)} of {totals.done} runs: {self.ALLOWED[1]}; the shortest script:")
            print(totals.shortest.failure)
        self.conclude(totals, make_script)

    def conclude(self, totals: Totals, make_script: Callable[[int], Any]) -> None:
        """Print what else the runs have shown."""

    def _run(self, try_seed: Callable[[int], Outcome], totals: Totals) -> None:
        shown = totals.started
        for outcome in _outcomes(try_seed, self.seeds, self.jobs):
            totals.add(outcome)
            if time.monotonic() - shown >= 1 and sys.stderr.isatty():
                shown = time.monotonic()
                print(f"\r{totals}", end="", file=sys.stderr, flush=True)
            if self.steps is not None and totals.steps >= self.steps:
                return


def _outcomes(try_seed: Callable[[int], Outcome], seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(try_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _start_worker) as pool:
        yield from pool.imap_unordered(try_seed, seeds, chunksize=1)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends the workers


def _try_seed(make_script: Callable[[int], Script[Any]], seed: int) -> Outcome:
    from kcoord_wire.kernel.virtual.scripts import SimulationFailure, run_script

    try:
        return Outcome(seed, run_script(make_script(seed)))
    except SimulationFailure as failure:
        return Outcome(seed, None, failure.law, str(failure), len(failure.script.actions))


# ---- the worlds


class Simulate(World):
    """Run a group with random faults on a virtual clock, and check its laws.

    examples:
      kcoord simulate --seeds 0:1000
          a thousand runs, on all cores
      kcoord simulate --seeds 77 --jobs 1
          one seed again
      kcoord simulate rolling-bounce --members 10 --partitions 200
          what a deploy would cost; each command below has --help
    """


@dataclass(frozen=True, kw_only=True)
class Central(World):
    """Run brokers, ZooKeeper and consumers of the 0.8 draft with random faults, and check their laws.

    examples:
      kcoord simulate central --seeds 0:1000
          brokers crash, pause and lose ZooKeeper, consumers and their messages are late
      kcoord simulate central --seeds 0:100 --no-epoch
          the draft's bytes: how a partition gets two owners, as a script
      kcoord simulate central --coordinators 4
          four coordinators, each of a subset of the groups; topics are switched off and on
      kcoord simulate central --rebalance-by sockets
          the draft's older passage, which closes connections in place of StopFetcher
    """

    WORLD: ClassVar[str] = "central"
    ALLOWED: ClassVar[tuple[str, str]] = ("one owner", "two owners of a partition")

    no_epoch: Annotated[bool, Option("the draft's bytes, without the extension")] = False
    rebalance_by: Annotated[
        Literal["fetchers", "sockets"], Option("fetchers, as in sections 9 and 11; sockets, as in section 2")
    ] = "fetchers"
    coordinators: Annotated[
        Annotated[int, whole(1, 100)], Option("each of a subset of the groups, as in section 1", "N")
    ] = 1

    @property
    def options(self) -> dict[str, Any]:
        """How the brokers rebalance, and how many of them coordinate."""
        return {
            "rebalance_by": self.rebalance_by,
            "is_fenced": not self.no_epoch,
            "coordinators": self.coordinators,
        }

    @property
    def allows(self) -> bool:
        """Without epochs, which RegisterConsumerResponse does not have either, two owners are possible."""
        return self.no_epoch or self.rebalance_by == "sockets"


Count: TypeAlias = Annotated[int, whole(0)]


@dataclass(frozen=True, kw_only=True)
class ConsumerGroups(World):
    """Run groups of KIP-848 with random faults, or search all runs of a few members, and check their laws.

    examples:
      kcoord simulate consumer-groups --seeds 0:1000
          members crash, pause, are cut off, change their subscription; the coordinator and its disk fail
      kcoord simulate consumer-groups --search
          all runs of two members with one perturbation
      kcoord simulate consumer-groups --search --classic 1
          all runs of one member of KIP-848 and one of the classic protocol: the group is upgraded and downgraded
      kcoord simulate consumer-groups --search --members 3
          all runs of three with one perturbation: 367,799 states
    """

    WORLD: ClassVar[str] = "consumer-groups"

    search: Annotated[bool, Option("search all runs breadth first instead of random ones", section="search")] = False
    members: Annotated[Positive, Option("", "N", section="search")] = 2
    partitions: Annotated[Positive, Option("of a topic", "N", section="search")] = 2
    topics: Annotated[Positive, Option("", "N", section="search")] = 1
    perturbations: Annotated[
        Count, Option("losses, departures, crashes, changes and restarts in one run", "N", section="search")
    ] = 1
    ticks: Annotated[Count, Option("how often half a session may pass", "N", section="search")] = 0
    depth: Annotated[
        Positive | None, Option("longest run (default: until nothing is new)", "STEPS", section="search")
    ] = None
    static: Annotated[bool, Option("static members, which leave for a while and return", section="search")] = False
    classic: Annotated[Count, Option("members of the classic protocol among them", "N", section="search")] = 0

    def run(self) -> None:
        """Run the seeds, or search.

        :raises ValueError: a law was broken
        """
        if not self.search:
            super().run()
            return
        from kcoord_wire.worlds.consumer_groups.search import Bounds, search

        bounds = Bounds(
            members=self.members,
            topics=tuple((f"t{number}", self.partitions) for number in range(1, self.topics + 1)),
            perturbations=self.perturbations,
            ticks=self.ticks,
            depth=self.depth,
            is_static=self.static,
            classic=min(self.classic, self.members),
        )
        _report(search(bounds, _show if sys.stderr.isatty() else None), self.format, "coordinator")


@dataclass(frozen=True, kw_only=True)
class SharePartition(Command):
    """Go through all runs of members that fetch and acknowledge the records of a share partition, and check their laws.

    examples:
      kcoord simulate share-partition
          two members and three records, in batches of two and one: locks run out, sessions end, the broker restarts
      kcoord simulate share-partition --batches 1,1 --deliveries 3
          two records, each delivered three times at most
    """

    members: Annotated[Positive, Option("", "N")] = 2
    batches: Annotated[str, Option("how many records each batch of the log has", "N,...")] = "2,1"
    deliveries: Annotated[Positive, Option("of a record at most", "N")] = 2
    depth: Annotated[Positive | None, Option("longest run (default: until nothing is new)", "STEPS")] = None
    format: Format = "text"

    def run(self) -> None:
        """Search.

        :raises UsageError: a batch has no number of records
        :raises ValueError: a law was broken
        """
        from kcoord_wire.worlds.share_groups.share_search import Bounds, search

        parts = self.batches.split(",")
        if not all(part.isdecimal() and int(part) for part in parts):
            raise UsageError(f"--batches takes numbers from 1 up, separated by commas, not {self.batches!r}")
        batches = tuple(int(part) for part in parts)
        bounds = Bounds(members=self.members, batches=batches, deliveries=self.deliveries, depth=self.depth)
        _report(search(bounds, _show if sys.stderr.isatty() else None), self.format, "partition")


def _report(found: Found, style: str, machine: str) -> None:
    """Print what a search has found.

    :param machine: what is searched
    :raises ValueError: a law was broken
    """
    if style == "json":
        _print_search(found, machine)
    else:
        _show_search(found, machine)
    if found.violation is not None:
        raise ValueError(str(found.violation))


def _print_search(found: Found, machine: str) -> None:
    run = None if found.violation is None else [str(step) for step in found.run]
    print_json(
        {
            "states": found.states,
            "is_whole": found.is_whole,
            "depth": found.depth,
            "steps": found.steps,
            f"{machine}s": found.machines,
            "cpu_s": round(found.cpu_s, 3),
            "violation": run,
        }
    )


def _show_search(found: Found, machine: str) -> None:
    extent = "all there are within these bounds" if found.is_whole else f"those within {found.depth} steps"
    print(f"{found.states:,} states, {extent}; {found.steps:,} steps between them, the deepest after {found.depth}")
    print(f"{found.machines:,} states of the {machine}; {found.cpu_s:.1f} s of the processor")
    if found.violation is not None:
        print("a shortest run that breaks a law:")
        for step in found.run:
            print(f"  {step}")


def _show(depth: int, states: int) -> None:
    print(f"\r{states:,} states after {depth} steps", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Marshal(World):
    """Run members of a Marshal group on a log with random faults, and check their laws.

    examples:
      kcoord simulate marshal --seeds 0:1000
          members pause, crash and reuse client ids, appends fail, land late or twice, brokers' clocks differ
      kcoord simulate marshal --seeds 0:100 --rules library
          the rules of the Go library: what goes wrong, with the shortest script of each kind
      kcoord simulate marshal --seeds 0:300 --create-time --skew 1.5
          the document's rules on a topic without LogAppendTime, with clocks that differ by 1.5 heartbeat intervals
    """

    WORLD: ClassVar[str] = "marshal"
    COUNTED: ClassVar[str] = "tenures"

    rules: Annotated[Literal["document", "library"], Option("who judges the log")] = "document"
    create_time: Annotated[bool, Option("times of entries by the members' own clocks")] = False
    skew: Annotated[
        float,
        decimal("a number from 0 up", lambda skew: 0 <= skew < 1e9),
        Option("with --create-time: by how much two members' clocks differ, in heartbeat intervals", "INTERVALS"),
    ] = 0.0
    ranges: Annotated[bool, Option("members claim ranges of offsets, and no partitions")] = False

    def __post_init__(self) -> None:
        if self.ranges and (self.rules == "library" or self.create_time):
            raise UsageError("--ranges needs the rules of the document, and the log's own times")

    @property
    def options(self) -> dict[str, Any]:
        """Who judges, and by which clock."""
        from kcoord_wire.marshal.world_state import Rules

        clock = {"is_append_time": not self.create_time, "skew": self.skew}
        return {"rules": Rules(self.rules), **clock, "ranges": self.ranges}

    def conclude(self, totals: Totals, make_script: Callable[[int], Any]) -> None:
        """Print how often what went wrong, with a short script of each kind."""
        for kind, count in sorted(totals.others.items()):
            seeds = totals.seeds_of[kind]
            print(f"\n{kind}: {count:,} in {len(seeds)} runs; the shortest script of the first of them:")
            print(_shortest(make_script(min(seeds)), kind))


def _shortest(script: Script[Any], kind: str) -> str:
    """Return a short script that shows an anomaly, as Python."""
    from kcoord_wire.kernel.virtual.scripts import SimulationFailure, run_script
    from kcoord_wire.worlds.marshal.marshal_laws import Anomaly

    try:
        run_script(script.with_options(looks_for=Anomaly(kind)))
    except SimulationFailure as failure:
        return str(failure)
    raise AssertionError(f"seed {script.seed} has shown {kind} and does not any more")


@dataclass(frozen=True, kw_only=True)
class Rewrite(World):
    """Run brokers, ZooKeeper and members of the consumer rewrite design with random faults, and check their laws.

    examples:
      kcoord simulate rewrite --seeds 0:1000
          brokers crash, pause and lose ZooKeeper, members are paused and cut off
      kcoord simulate rewrite --seeds 0:200 --find-overlap
          how two members come to fetch a partition at once, as a script
      kcoord simulate rewrite --stops-with-session
          members that stop fetching with their session: then no two do
    """

    WORLD: ClassVar[str] = "rewrite"
    ALLOWED: ClassVar[tuple[str, str]] = ("no overlap", "two members fetch a partition")

    find_overlap: Annotated[bool, Option("look for two members that fetch a partition at once", one_of="overlap")] = (
        False
    )
    stops_with_session: Annotated[
        bool, Option("members fetch only while they cannot have been declared dead", one_of="overlap")
    ] = False

    @property
    def options(self) -> dict[str, Any]:
        """When members stop, and whether that is a law."""
        return {"stops_with_session": self.stops_with_session, "allows_overlaps": not self.find_overlap}

    @property
    def allows(self) -> bool:
        """An overlap is what is looked for."""
        return self.find_overlap


class Transactions(World):
    """Run consume-transform-produce applications with random faults, and check that all is exactly once.

    examples:
      kcoord simulate transactions --seeds 0:1000
          applications crash, pause, are fenced and come back as zombies; the brokers are killed, their disks fail
      kcoord simulate transactions --seeds 77 --jobs 1
          one seed again
    """

    WORLD: ClassVar[str] = "transactions"
    COUNTED: ClassVar[str] = "transactions"


# ---- known bugs

_COLUMNS: Final = (("with the bug", True), ("without", False))


@dataclass(frozen=True, kw_only=True)
class Bug(Command):
    """Play a known bug of a client library, and the same group without it.

    examples:
      kcoord simulate bug --list
          the bugs, with the versions that fixed them
      kcoord simulate bug KAFKA-14639 --explain
          what it does to a group, and what a capture of the group shows
    """

    name: Annotated[str | None, Argument("NAME", "the bug, as its project calls it")] = None
    list: Annotated[bool, Option("list the bugs")] = False
    seed: Annotated[Count, Option("of the virtual cluster", "N")] = 0
    explain: Annotated[bool, Option("analyze the frames too (extra analyze)")] = False
    format: Format = "text"

    def run(self) -> None:
        """List the bugs, or play one.

        :raises UsageError: there is none of that name
        """
        from kcoord_wire.clients.bugs import CLIENT_BUGS

        if self.list:
            for bug in CLIENT_BUGS.values():
                if self.format == "json":
                    print_json(_bug_to_json(bug))
                    continue
                print(f"{bug.name:<16} {_versions(bug)}\n    {bug.shape}")
            return
        if self.name is None or self.name not in CLIENT_BUGS:
            problem = "no bug is named" if self.name is None else f"no bug is called {self.name!r}"
            raise UsageError(f"{problem}; there are {', '.join(CLIENT_BUGS)}")
        bug = CLIENT_BUGS[self.name]
        played = {title: _play(bug, self.seed, is_present, self.explain) for title, is_present in _COLUMNS}
        if self.format == "json":
            print_json(_bug_to_json(bug) | {"played": played})
        else:
            _print_bug(bug, played)


def _bug_to_json(bug: ClientBug) -> dict[str, Any]:
    facts = {"since": bug.since, "fixed": list(bug.fixed), "shape": bug.shape, "reference": bug.reference}
    return {"name": bug.name, **facts}


def _versions(bug: ClientBug) -> str:
    since = f"since {bug.since}, " if bug.since else ""
    return f"{since}fixed in {', '.join(bug.fixed)}" if bug.fixed else "open"


def _play(bug: ClientBug, seed: int, is_present: bool, explain: bool) -> dict[str, Any]:
    """Return what a group has suffered, and what the detectors find where that is asked for."""
    from kcoord_wire.worlds.group.bug_scripts import play_bug

    frames = _Frames()
    _, damage = play_bug(bug.name, is_present=is_present, seed=seed, tap=frames)
    return {"damage": asdict(damage), "findings": _explained(frames) if explain else []}


def _print_bug(bug: ClientBug, played: dict[str, dict[str, Any]]) -> None:
    print(f"{bug.name} ({_versions(bug)})\n{bug.shape}\n{bug.reference}")
    for title, each in played.items():
        print(f"\n{title}: {', '.join(f'{key} {value}' for key, value in each['damage'].items())}")
        for line in each["findings"]:
            print(f"  {line}")


class _Frames(list[tuple[int, str, str, bytes]]):
    """A `Tap` that keeps all frames."""

    def __call__(self, time_ms: int, connection: str, direction: str, frame: bytes, /) -> None:
        self.append((time_ms, connection, direction, frame))


def _explained(frames: _Frames) -> list[str]:
    """Return what the detectors find in the frames, a sentence each."""
    from kcoord_wire.forensics import analyze_frames
    from kcoord_wire.forensics.model import NS_PER_MS, Frame, table_of

    rows = [
        Frame("virtual", seq, seq, time_ms * NS_PER_MS, connection, direction, frame)
        for seq, (time_ms, connection, direction, frame) in enumerate(sorted(frames, key=lambda row: row[0]))
    ]
    (history,) = analyze_frames(table_of(Frame, rows).to_batches()).histories
    return [f"{finding.detector} ({finding.severity}): {finding.text}" for finding in history.findings] or [
        "no finding"
    ]
