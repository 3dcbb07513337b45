"""A cluster of the draft made of processes: three ZooKeeper nodes, brokers behind proxies, consumers with an account.

Every broker reaches each ZooKeeper node through a proxy of its own, so it can be cut off without the others.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.retry import KazooRetry

from kcoord_wire.kernel.driver import monotonic_ms
from kcoord_wire.zookeeper.ensemble import Ensemble, free_ports
from kcoord_wire.zookeeper.layout import BROKER_TOPICS, CONSUMERS, COORDINATOR
from kcoord_wire.zookeeper.leadership import LeaderRecord, parse_leader
from tests.support.central_processes import Program
from tests.support.tcp_proxy import TcpProxy

SECONDS = 90.0
SESSION_MS = 2_000  # of brokers with ZooKeeper, and of consumers with the coordinator: expiries are what is tested
RATE = 20
GROUP = "g"


class Fetch(NamedTuple):
    """A fetch that a broker has served; times in ms of the monotonic clock."""

    consumer: str
    partition: str
    start: int
    next: int
    sent: int
    answered: int
    fence: tuple[int, int]


class Broker(Program):
    """A broker with one socket; it can be started again under its id and port."""

    def __init__(self, number: int, ensemble: Ensemble, topics: str, folder: Path, stack: ExitStack) -> None:
        self.number = number
        [self.port] = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        self.proxies = [stack.enter_context(TcpProxy(node.port)) for node in ensemble.nodes]
        command = ["kcoord_wire", "central", "serve", "--zookeeper", ",".join(proxy.address for proxy in self.proxies)]
        command += ["--broker-id", str(number), "--port", str(self.port), "--topics", topics, "--rate", str(RATE)]
        command += ["--session-timeout-ms", str(SESSION_MS), "--rebalance-backoff-ms", "500"]
        command += ["--offset-commit-interval-ms", "300"]
        super().__init__(command, folder / f"broker-{number}.out", folder / f"broker-{number}.log")

    def each_proxy(self, do: Callable[[TcpProxy], None]) -> None:
        """Cut its connections to ZooKeeper, or heal them."""
        for proxy in self.proxies:
            do(proxy)


class Consumer(Program):
    """A consumer, and what it has written so far."""

    def __init__(self, name: str, topics: str, brokers: list[str], folder: Path) -> None:
        self.name = name
        self.path = folder / f"{name}.jsonl"
        self._file: IO[str] | None = None
        self._rest = ""
        settings = [str(self.path), GROUP, name, topics, str(SESSION_MS)]
        command = ["tests.support.central_consumer", *settings, *brokers]
        super().__init__(command, folder / f"{name}.out", folder / f"{name}.log")

    def read(self) -> Iterator[dict[str, Any]]:
        """Return the lines that are new."""
        if self._file is None:
            if not self.path.exists():
                return
            self._file = self.path.open(encoding="utf-8")
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        yield from map(json.loads, lines)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Cluster:
    """See the module. To be entered; what runs when it is left is killed.

    :ivar fetches: of all consumers, so far
    :ivar processed: of each partition, the offsets that an application has had
    :ivar commits: (when, partition, offset) of each commit that was seen in ZooKeeper
    """

    def __init__(self, folder: Path) -> None:
        self.ensemble = Ensemble(3)
        self.brokers: dict[int, Broker] = {}
        self.consumers: dict[str, Consumer] = {}
        self.fetches: list[Fetch] = []
        self.processed: dict[str, set[int]] = {}
        self.commits: list[tuple[int, str, int]] = []
        self._folder = folder
        self._stack = ExitStack()
        self._ended = threading.Event()
        self._gone: list[Consumer] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.ensemble)
            self.zookeeper = KazooClient(
                self.ensemble.connect, timeout=10.0, connection_retry=KazooRetry(-1, 0.1, max_delay=0.5),
                command_retry=KazooRetry(-1, 0.1, max_delay=0.5, deadline=SECONDS),
            )  # fmt: skip
            self.zookeeper.start(SECONDS)
            stack.callback(self.zookeeper.close)
            stack.callback(self.zookeeper.stop)
            watcher = threading.Thread(target=self._watch_commits)
            watcher.start()
            stack.callback(watcher.join)
            stack.callback(self._ended.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # ---- members

    def add_broker(self, number: int, topics: str) -> Broker:
        broker = self.brokers[number] = Broker(number, self.ensemble, topics, self._folder, self._stack)
        self._stack.callback(broker.kill)
        broker.start()
        return broker

    def add_consumer(self, topics: str) -> Consumer:
        name = f"c-{len(self._gone) + len(self.consumers) + 1}"
        consumer = Consumer(name, topics, [broker.address for broker in self.brokers.values()], self._folder)
        self._stack.callback(consumer.close)
        self._stack.callback(consumer.kill)
        self.consumers[name] = consumer
        consumer.start()
        return consumer

    def remove_consumer(self, name: str) -> None:
        """Kill one; what it has written counts."""
        self.consumers[name].kill()
        self._gone.append(self.consumers.pop(name))

    # ---- what is known

    @property
    def leader(self) -> LeaderRecord | None:
        """The elected coordinator, as ZooKeeper has it."""
        data = self._get(COORDINATOR)
        return None if data is None else parse_leader(data)

    def _get(self, path: str) -> bytes | None:
        try:
            data: bytes = self.zookeeper.retry(self.zookeeper.get, path)[0]
        except NoNodeError:
            return None
        return data

    def _names(self, path: str) -> list[str]:
        try:
            names: list[str] = self.zookeeper.retry(self.zookeeper.get_children, path)
        except NoNodeError:
            return []
        return names

    @property
    def partitions(self) -> set[str]:
        """All that ZooKeeper knows."""
        found = set()
        for topic in self._names(BROKER_TOPICS):
            for broker in self._names(f"{BROKER_TOPICS}/{topic}"):
                count = int(self._get(f"{BROKER_TOPICS}/{topic}/{broker}") or b"0")
                found |= {f"{topic}/{broker}-{number}" for number in range(count)}
        return found

    def read_accounts(self) -> None:
        """Take in what the consumers have written."""
        for consumer in (*self._gone, *self.consumers.values()):
            for line in consumer.read():
                if "fetch" in line:
                    fence = line["epoch"], line["generation"]
                    times = line["sent"], line["answered"]
                    self.fetches.append(Fetch(consumer.name, line["fetch"], line["from"], line["next"], *times, fence))
                elif "processed" in line:
                    self.processed.setdefault(line["processed"], set()).add(line["offset"])

    def _watch_commits(self) -> None:
        """Note each commit, in a thread, until the cluster ends."""
        last: dict[str, int] = {}
        while not self._ended.wait(0.1):
            with suppress(KazooException):
                for topic in self._names(f"{CONSUMERS}/{GROUP}/offsets"):
                    for name in self._names(f"{CONSUMERS}/{GROUP}/offsets/{topic}"):
                        offset = int(self._get(f"{CONSUMERS}/{GROUP}/offsets/{topic}/{name}") or b"-1")
                        partition = f"{topic}/{name}"
                        if last.get(partition) != offset:
                            last[partition] = offset
                            self.commits.append((monotonic_ms(), partition, offset))

    @property
    def _programs(self) -> list[Program]:
        return [*self.brokers.values(), *self.consumers.values()]

    # ---- waiting

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until something holds, and return it."""
        until = time.monotonic() + SECONDS
        while True:
            self.read_accounts()
            if found := holds():
                return found
            died = [program for program in self._programs if program.has_died]
            assert not died, f"ended by itself:\n{died[0].log}"
            assert time.monotonic() < until, f"not within {SECONDS:.0f} s: {what}\n{self.report()}"
            time.sleep(0.05)

    def until_led(self, beyond: int = 0) -> LeaderRecord:
        """Wait for a coordinator with a higher epoch."""

        def leader() -> LeaderRecord | None:
            found = self.leader
            return found if found is not None and found.epoch > beyond else None

        found: LeaderRecord = self.until(leader, f"a coordinator beyond epoch {beyond}")
        return found

    def until_fetched(self, since: int, epoch: int = 0, without: frozenset[int] = frozenset()) -> int:
        """Wait until every partition is fetched after a time, in an epoch or a later one; return ms from that time.

        :param without: brokers that are not reachable, whose partitions do not count
        """
        wanted = {name for name in self.partitions if int(name.partition("/")[2].partition("-")[0]) not in without}
        firsts: dict[str, int] = {}
        seen = 0

        def all_are() -> bool:
            nonlocal seen
            news, seen = self.fetches[seen:], len(self.fetches)
            for fetch in news:
                if fetch.sent >= since and fetch.fence[0] >= epoch:
                    firsts[fetch.partition] = min(fetch.answered, firsts.get(fetch.partition, fetch.answered))
            return wanted <= firsts.keys()

        self.until(all_are, f"all of {sorted(wanted)} fetched after {since} in epoch {epoch} or later")
        return max(firsts[name] for name in wanted) - since

    def until_committed(self, since: int) -> int:
        """Wait until an offset is committed after a time; return when."""
        found: int = self.until(lambda: next((at for at, _, _ in self.commits if at > since), None), "a commit")
        return found

    def report(self) -> str:
        logs = "".join(f"--- {program.log_path.name}\n{program.log[-3_000:]}" for program in self._programs)
        return f"leader {self.leader}, last fetches {self.fetches[-8:]}\n{logs}"

    # ---- the laws

    def check(self) -> None:
        """No two owners, no commit that goes back, nothing skipped; what has been recorded so far."""
        commits = list(self.commits)  # what is processed for later ones is not written yet
        self.read_accounts()
        wrong = [*two_owners(self.fetches), *self._lost_commits(commits), *self._skipped(commits)]
        assert wrong == [], "\n".join([*wrong, self.report()])

    def _lost_commits(self, commits: list[tuple[int, str, int]]) -> Iterator[str]:
        """A commit below an earlier one, or an assignment that begins below what was committed before."""
        times: dict[str, list[int]] = {}
        highest: dict[str, list[int]] = {}  # up to each of the times
        for at, partition, offset in commits:
            before = highest.setdefault(partition, [-1])
            if offset < before[-1]:
                yield f"{at}: committed offset of {partition} went from {before[-1]} to {offset}"
            before.append(max(offset, before[-1]))
            times.setdefault(partition, []).append(at)
        begun: set[tuple[str, tuple[int, int]]] = set()
        for fetch in sorted(self.fetches, key=lambda fetch: fetch.sent):
            if fetch.partition in times and (fetch.partition, fetch.fence) not in begun:
                begun.add((fetch.partition, fetch.fence))
                committed = highest[fetch.partition][bisect_left(times[fetch.partition], fetch.sent)]
                if committed > fetch.start:
                    yield f"{fetch} begins below the committed offset {committed}"

    def _skipped(self, commits: list[tuple[int, str, int]]) -> Iterator[str]:
        """A committed offset with records before it that no application has had."""
        for partition in {partition for _, partition, _ in commits}:
            committed = max(offset for _, name, offset in commits if name == partition)
            missing = set(range(committed)) - self.processed.get(partition, set())
            if missing:
                yield f"{partition}: {committed} is committed, but {sorted(missing)[:10]} were not processed"


def two_owners(fetches: list[Fetch]) -> Iterator[str]:
    """Name each fetch that was sent when a later assignment of its partition had already been served.

    A broker has served a fetch at some instant between `sent` and `answered`, so this is never said of two fetches
    whose order is not known.
    """
    by_partition: dict[str, list[Fetch]] = {}
    for fetch in fetches:
        by_partition.setdefault(fetch.partition, []).append(fetch)
    for served in by_partition.values():
        owners: dict[tuple[int, int], str] = {}
        for fetch in served:
            if owners.setdefault(fetch.fence, fetch.consumer) != fetch.consumer:
                yield f"{fetch}: {owners[fetch.fence]} has the same fence"
        answered = sorted(served, key=lambda fetch: fetch.answered)
        highest, seen = (0, 0), 0
        for fetch in sorted(served, key=lambda fetch: fetch.sent):
            while seen < len(answered) and answered[seen].answered < fetch.sent:
                highest = max(highest, answered[seen].fence)
                seen += 1
            if fetch.fence < highest:
                yield f"{fetch}: {highest} had been served before"
