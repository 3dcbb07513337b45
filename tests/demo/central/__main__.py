"""The 0.8 draft, or the rewrite, on a real ZooKeeper, and what fails in it: ``make run-central``, ``make run-rewrite``.

Three ZooKeeper nodes, two brokers (`kcoord central serve`), three consumers (`kcoord central consume`). The group's
coordinator is killed and started again; then the coordinator of that moment is cut off from ZooKeeper by the proxies
between them. Each time the other broker takes the group over, and the consumers go on. The status is 0 if they have,
and if no record is missing. Takes about half a minute; Ctrl-C stops everything.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from kcoord_wire.central.status import ClusterClient, ClusterStatus
from kcoord_wire.messages import FindCoordinatorRequest
from kcoord_wire.zookeeper.ensemble import Ensemble, free_ports
from tests.support.central_account import Account, ConsumerProcess
from tests.support.central_processes import BrokerProcess
from tests.support.rewrite_wire import RewriteWire
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually

SESSION_MS = 3_000
GROUP = "demo"
TOPIC = "orders"
PARTITIONS = 3  # at each broker
RATE = 20
SECONDS = 60.0  # that any step may take

_began = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _began:5.1f} s  {text}", flush=True)


async def read_status(connect: str) -> ClusterStatus:
    """Return what `kcoord central status` shows, by a session that ends with this call."""
    async with ClusterClient(connect) as reader:
        return await reader.read()


class Demo:
    """A cluster of the draft, while it runs.

    :ivar brokers: the processes, by id
    :ivar proxies: between each broker and the ZooKeeper nodes, by broker id
    """

    topics = f"{TOPIC}:{PARTITIONS}"
    broker_options: Sequence[str] = ("--rebalance-backoff-ms", "500")
    resigned = r"resigned broker=\d epoch=\d+ reason=(.+)"

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.ensemble = stack.enter_context(Ensemble(3))
        say(f"three ZooKeeper nodes run: {self.ensemble.connect}")
        self.proxies = {
            broker_id: [stack.enter_context(TcpProxy(node.port)) for node in self.ensemble.nodes]
            for broker_id in (1, 2)
        }
        self.ports = dict(zip((1, 2), free_ports(2), strict=True))
        self.brokers: dict[int, BrokerProcess] = {}
        for broker_id in self.ports:
            self.start_broker(broker_id)
        self.account = Account()

    def start_broker(self, broker_id: int) -> None:
        """Start a broker, for the first time or again."""
        options = ["--port", str(self.ports[broker_id]), "--topics", self.topics, "--rate", str(RATE)]
        options += ["--session-timeout-ms", str(SESSION_MS), *self.broker_options]
        zookeeper = ",".join(proxy.address for proxy in self.proxies[broker_id])
        self.brokers[broker_id] = self._stack.enter_context(BrokerProcess(zookeeper, broker_id, *options))

    def start_consumers(self) -> None:
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        for name in ("a", "b", "c"):
            options = ("--topics", TOPIC, *self.consumer_options(name))
            consumer = ConsumerProcess(bootstrap, GROUP, SESSION_MS, *options)
            self.account.consumers.append(self._stack.enter_context(consumer))

    def consumer_options(self, name: str) -> Sequence[str]:
        return "--consumer-id", name

    def partitions(self, brokers: Iterable[int]) -> set[str]:
        """The partitions that can be fetched from these brokers."""
        return {f"{TOPIC}/{broker_id}-{number}" for broker_id in brokers for number in range(PARTITIONS)}

    def coordinator(self, before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Wait for the coordinator after that one, and return its broker id and its epoch."""
        beyond = before[1]
        leader = eventually(
            lambda: asyncio.run(read_status(self.ensemble.connect)).leader,
            f"no coordinator beyond epoch {beyond}",
            until=lambda leader: leader is not None and leader.epoch > beyond,
            seconds=SECONDS,
        )
        return leader.broker_id, leader.epoch

    def wait_for_records(self, brokers: tuple[int, ...] = (1, 2)) -> float:
        """Wait until records of every partition of these brokers have come from now on; return the seconds."""
        began = time.monotonic()
        wanted = self.partitions(brokers)
        before = self.account.ends()
        eventually(
            self.account.ends,
            f"no records of all of {sorted(wanted)} since {before}",
            until=lambda ends: all(ends[name] > before[name] for name in wanted),
            seconds=SECONDS,
            every=0.05,
        )
        return time.monotonic() - began

    def show_owners(self) -> None:
        """Print the owners, as ZooKeeper has them."""
        group = asyncio.run(read_status(self.ensemble.connect)).groups[GROUP]
        by_consumer: dict[str, list[str]] = {}
        for partition, thread in sorted(group.owners.items()):
            by_consumer.setdefault(thread.rpartition("-")[0], []).append(partition.name)
        say("owners: " + "; ".join(f"{name}: {' '.join(owned)}" for name, owned in sorted(by_consumer.items())))

    def take_over(self, what: str, before: tuple[int, int], began: float, brokers: tuple[int, ...]) -> tuple[int, int]:
        """Wait for the next coordinator, and until the consumers go on; return it with its epoch."""
        broker_id, epoch = self.coordinator(before)
        say(f"broker {broker_id} is elected, epoch {epoch}: {time.monotonic() - began:.1f} s after {what}")
        self.taken_over(broker_id, epoch, began)
        self.wait_for_records(brokers)
        say(f"records of every partition that can be reached: {time.monotonic() - began:.1f} s")
        self.show_owners()
        return broker_id, epoch

    def taken_over(self, broker_id: int, epoch: int, began: float) -> None:
        """Wait until the group is with a coordinator."""
        self.brokers[broker_id].wait_for(rf"rebalance completed group=\w+ epoch={epoch} ", SECONDS)
        say(f"the group is rebalanced by it: {time.monotonic() - began:.1f} s")


class RewriteDemo(Demo):
    """A cluster of the rewrite. Any broker serves all partitions, and its epochs are counted here."""

    topics = f"{TOPIC}:{2 * PARTITIONS}"
    broker_options = ("--design", "rewrite", "--shards", "4", "--min-session-timeout-ms", "1000")
    resigned = r"broker resigned .*reason=(.+)"

    def consumer_options(self, name: str) -> Sequence[str]:
        return "--design", "rewrite"

    def partitions(self, brokers: Iterable[int]) -> set[str]:
        return {f"{TOPIC}/{number}" for number in range(2 * PARTITIONS)}

    def coordinator(self, before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Wait until a broker coordinates the group that did not before. The other one is asked: it hears of it."""
        ask = 3 - before[0] if before[0] else 1
        found = eventually(
            lambda: self._ask(ask), "no coordinator", until=lambda found: found not in (0, before[0]), seconds=SECONDS
        )
        return found, before[1] + 1

    def _ask(self, broker_id: int) -> int:
        with RewriteWire(self.brokers[broker_id].address) as wire:
            answer = wire.ask(FindCoordinatorRequest(key=GROUP))
        return 0 if answer.error_code else int(answer.node_id)

    def taken_over(self, broker_id: int, epoch: int, began: float) -> None:
        """Nothing: the heir reads the group from ZooKeeper, and the members fetch on."""

    def show_owners(self) -> None:
        """Print the owners, as the consumers have printed them, once each has some."""
        consumers = self.account.consumers
        eventually(lambda: all(consumer.owned for consumer in consumers), seconds=SECONDS)
        owned = (f"{name}: {' '.join(consumer.owned)}" for name, consumer in zip("abc", consumers, strict=True))
        say("owners: " + "; ".join(owned))


def play(demo: Demo) -> int:
    """All that happens; return the number of takeovers."""
    first = demo.coordinator()
    say(f"two brokers run, broker {first[0]} is elected, epoch {first[1]}")
    demo.start_consumers()
    demo.wait_for_records()
    say("three consumers run, records of every partition have come")
    demo.show_owners()
    time.sleep(2.0)

    other = 3 - first[0]
    lost = demo.partitions((1, 2)) - demo.partitions((other,))
    say(f"broker {first[0]} is killed" + "; its partitions cannot be fetched until it is back" * bool(lost))
    began = time.monotonic()
    demo.brokers[first[0]].kill()
    second = demo.take_over("the kill", first, began, (other,))
    demo.start_broker(first[0])
    demo.wait_for_records()
    say(f"broker {first[0]} is back, records of every partition have come")
    time.sleep(2.0)

    say(f"broker {second[0]} is cut off from ZooKeeper; its connections to consumers stay")
    began = time.monotonic()
    for proxy in demo.proxies[second[0]]:
        proxy.hold()
    resigned = demo.brokers[second[0]].wait_for(demo.resigned, SECONDS)
    say(f"broker {second[0]} has resigned by itself ({resigned[1]}): {time.monotonic() - began:.1f} s")
    third = demo.take_over("the cut", second, began, (1, 2))
    for proxy in demo.proxies[second[0]]:
        proxy.heal()
    say("the cut is healed")
    demo.wait_for_records()
    time.sleep(2.0)
    return third[1] - first[1]


def conclude(demo: Demo) -> bool:
    """Stop the consumers in order, and return whether no record is missing."""
    say("the consumers are stopped")
    for consumer in demo.account.consumers:
        consumer.send(signal.SIGTERM)
    statuses = [consumer.end(signal.SIGCONT) for consumer in demo.account.consumers]
    delivered: Counter[tuple[str, int]] = demo.account.delivered()
    missing = demo.account.missing()
    twice = sum(count > 1 for count in delivered.values())
    say(f"records delivered: {len(delivered)}, delivered twice or more: {twice}, missing: {len(missing)}")
    if missing:
        say(f"missing: {', '.join(f'{name}@{offset}' for name, offset in missing[:10])}")
    return not missing and statuses == [0, 0, 0]


def main() -> int:
    with ExitStack() as stack:
        demo = RewriteDemo(stack) if sys.argv[1:] == ["rewrite"] else Demo(stack)
        takeovers = play(demo)
        went_well = conclude(demo)
        say(f"{takeovers} takeovers; everything is stopped")
    return 0 if went_well and takeovers >= 2 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (TimeoutError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
