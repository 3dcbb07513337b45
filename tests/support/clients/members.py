"""The test's side of the line protocol: client programs as processes that take commands, are waited for and killed.

Every wait is on a condition and has a bound. Whatever a program logs as a warning or worse counts as a complaint,
unless the client's list of what is allowed says why it is not one.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.clients.heard import PATIENCE, Heard

Record = tuple[int, int, str]
"""Partition, offset, value."""


@dataclass(frozen=True, eq=False)
class Client:
    """A client library.

    :ivar command: starts the program of it; the settings come after as one more argument
    :ivar allowed: regular expressions of what it may log as a warning or an error, each with the reason
    :ivar environment: added to that of this process
    :ivar settles: seconds within which it may join once more unasked, after it has been assigned partitions, and
        then poll records again that it has not committed yet
    :ivar options: of its consumer, as in `Settings` of lines.py
    """

    name: str
    command: Sequence[str]
    allowed: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    settles: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


def _python(name: str, module: str, allowed: Mapping[str, str] | None = None, settles: float = 0.0) -> Client:
    return Client(name, (sys.executable, "-m", f"tests.support.clients.{module}"), allowed or {}, settles=settles)


CONFLUENT = _python("confluent-kafka", "confluent_member")
KAFKA_PYTHON = _python(
    "kafka-python",
    "kafka_python_member",
    {
        r"ran for .*s \(>.* threshold\)": "it measures how long it holds up its own loop, on a busy machine",
        "Metadata refresh: failed Cancelled": "closing it cancels a refresh of metadata that is under way",
        "No partition metadata for topic": "a leader that assigns before its metadata of the topic has come, and joins"
        " again when it has",
        r"<KafkaTCPTransport \[none\] \(closed\)>: Error receiving network data": "it closed it itself while"
        " a read of it was due, and then reads without a socket (3.0.12, transport.py, _read_from_sock after _close)",
    },
    settles=0.5,  # a poll that began while a join was under way may begin another one, on Kafka's own broker too
)
AIOKAFKA = _python(
    "aiokafka",
    "aiokafka_member",
    {
        "Heartbeat failed for group .* because it is rebalancing": "it warns of each rebalance that others begin",
        "Failed fetch offsets from .* NotLeaderForPartitionError": "the broker of a new topic may not know yet that it"
        " leads the partition; it asks again",
    },
)
KCOORD = _python("kcoord-wire", "kcoord_member")
KCOORD_848 = replace(
    KCOORD,
    name="kcoord-wire (KIP-848)",
    options={
        "group_protocol": "consumer",
        "partition_assignment_strategy": None,
        "session_timeout_ms": None,
        "heartbeat_interval_ms": None,
    },
)

KIP_848: Mapping[str, Any] = {
    "group.protocol": "consumer",
    "partition.assignment.strategy": None,
    "session.timeout.ms": None,
    "heartbeat.interval.ms": None,
}
"""Options that make the Java client and librdkafka members of KIP-848; they refuse the classic ones beside these."""


class Member(Heard):
    """One client program.

    :param options: the settings of lines.py
    """

    def __init__(self, client: Client, **options: Any) -> None:
        self.client = client
        self.name = options["client_id"]
        self.options: Mapping[str, Any] = options.get("options", {})
        self.owned: list[list[int]] = []  # each set of partitions that it reported, sorted
        self.records: list[Record] = []
        self.complaints: list[str] = []
        self._answers: list[dict[str, Any]] = []
        self._ended = False
        self._expected = 0  # this many records were awaited
        self._again: set[int] = set()  # partitions of which records may come again
        self.changed = time.monotonic()  # when it last reported what it owns
        environment = {**os.environ, **client.environment}
        super().__init__([*client.command, json.dumps(options)], environment=environment)

    # ---- commands

    def join(self) -> None:
        self.command("join")

    def leave(self) -> None:
        self.command("leave")

    def commit(self) -> dict[int, int]:
        """Commit behind what it saw; the offsets by partition."""
        return dict(self.command("commit")["offsets"])

    def produce(self, records: Sequence[tuple[int, str]]) -> list[Record]:
        produced: list[Record] = [tuple(record) for record in self.command("produce", records=records)["records"]]
        assert [(partition, value) for partition, _, value in produced] == list(records)
        return produced

    def command(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a command and give its answer."""
        self.send(do, **fields)
        return self.answer(do)

    def answer(self, do: str) -> dict[str, Any]:
        """Wait for the answer to a command that was sent."""
        self.wait(lambda: bool(self._answers), f"answer {do}")
        answer = self._answers.pop(0)
        assert answer["event"] == do, f"{self.name} answered {do} with {answer}"
        return answer

    def has_answered(self, do: str) -> bool:
        """Whether a command that was sent has been answered, or has failed."""
        return any(do in (answer["event"], answer.get("do")) for answer in list(self._answers))

    def send(self, do: str, **fields: Any) -> None:
        """Send a command and wait for nothing: the program may be killed before it answers."""
        self.tell(json.dumps({"do": do, **fields}))

    # ---- waiting

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> float:
        """Wait until the condition holds, which is looked at after each event; give the seconds that it took."""
        began = time.monotonic()
        with self._news:
            met = self._news.wait_for(lambda: condition() or self._ended, seconds) and condition()
        assert met, (
            f"{self.name} ({self.client.name}) did not {what} within {seconds} s"
            f"{' but ended' if self._ended else ''}; it owned {self.owned}, saw {len(self.records)} records up to "
            f"{self.records[-3:]}, and complained {self.complaints}; {self.errors[-2000:]}"
        )
        return time.monotonic() - began

    def expect_records(self, expected: Sequence[Record], seconds: float = PATIENCE) -> None:
        """Wait for the next records, which have to be just these, in order within each partition."""
        end = self._expected + len(expected)
        self.wait(lambda: len(self.records) >= end, f"see {len(expected)} more records than {self._expected}", seconds)
        came = self.records[self._expected :]
        assert sorted(came) == sorted(expected), f"{self.name} ({self.client.name}) saw {came}, not {list(expected)}"
        by_partition = sorted(came, key=lambda record: record[0])  # stable: keeps the order of coming
        assert by_partition == sorted(by_partition), "records of a partition came out of order"
        self._expected = end

    def expect_no_more(self) -> None:
        """No record may have come beyond those expected, and no complaint at all."""
        assert not self.records[self._expected :], f"{self.name} ({self.client.name}) saw records again"
        assert not self.complaints, f"{self.name} ({self.client.name}) complained: {self.complaints}"

    @property
    def lives(self) -> bool:
        """Whether its process has not ended."""
        return not self._ended

    @property
    def now_owned(self) -> list[int]:
        return self.owned[-1] if self.owned else []

    # ---- events

    def heed_end(self) -> None:
        self._ended = True

    def heed(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "owns":
                self.owned.append(sorted(event["partitions"]))
                self.changed = time.monotonic()
                if self.client.settles:
                    self._again = set(event["partitions"])
            case "records":
                for partition, offset, value in event["records"]:
                    if partition not in self._again or (partition, offset, value) not in self.records:
                        self._again.discard(partition)
                        self.records.append((partition, offset, value))
            case "log":
                if not any(re.search(pattern, event["text"]) for pattern in self.client.allowed):
                    self.complaints.append(f"{event['level']}: {event['text']}")
            case _:
                self._answers.append(event)
