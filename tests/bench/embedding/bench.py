"""Measures kafka-python with its own protocol classes and with ours (tests/interop/embedding): processor time.

Each way is a process of its own, since the classes are replaced at import; they take turns, on the same bytes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import kcoord_wire as kw

from ..runner import ROOT, Bench, Made, conditions, digits, pin, require_native, samples, table

MEMBERS, PARTITIONS, SECONDS, TURNS = 500, 10, 0.5, 5
TOPIC = "orders"
TITLES = {
    "join": "JoinGroup's response at the leader, 500 members",
    "subscriptions": "their 500 subscriptions",
    "assign": "500 assignments made by the assignor",
    "sync": "SyncGroup's request at the leader, 500 assignments",
    "fetch-many": "Fetch's response, 500 partitions of 2 KB",
    "fetch-large": "Fetch's response, one partition of 1 MB",
}


def frame_of(message: Any, version: int) -> bytes:
    return bytes(kw.frame(kw.encode_response(message, version, correlation_id=1)))


def join_response() -> bytes:
    subscription = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=[TOPIC]), 1)
    ids = [f"consumer-{i:03}-6f1b5c1e-7d0f-4c58-8f3b-0a7a55f0c2d1" for i in range(MEMBERS)]
    members = [kw.JoinGroupResponseMember(member_id=each, metadata=subscription) for each in ids]
    joined = kw.JoinGroupResponse(
        generation_id=1, protocol_name="range", leader=ids[0], member_id=ids[0], members=members
    )
    return frame_of(joined, 7)


def fetch_response(partitions: int, size: int) -> bytes:
    data = [kw.FetchResponsePartitionData(partition_index=i, records=bytes(size)) for i in range(partitions)]
    return frame_of(
        kw.FetchResponse(responses=[kw.FetchResponseFetchableTopicResponse(topic=TOPIC, partitions=data)]), 12
    )


def calls() -> dict[str, Callable[[], Any]]:
    """What the client does, by name: with the classes that this process has."""
    from kafka.protocol.consumer import FetchRequest, JoinGroupRequest, SyncGroupRequest
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
    from kafka.protocol.parser import KafkaProtocol

    def read(request: Any, version: int, wire: bytes) -> Any:
        parser = KafkaProtocol(client_id="bench")
        request.API_VERSION = version
        request.with_header(correlation_id=1, client_id="bench")

        def call() -> Any:
            parser.in_flight_requests.append(request.header)
            ((_, response),) = parser.receive_bytes(wire)
            return response

        return call

    join = read(JoinGroupRequest(group_id="g"), 7, join_response())
    members = join().members
    metadata = [member.metadata for member in members]

    def assign() -> dict[str, Any]:
        return {
            member.member_id: ConsumerProtocolAssignment(0, [(TOPIC, list(range(i, i + PARTITIONS)))], b"")
            for i, member in enumerate(members)
        }

    assigned = assign()

    def sync() -> bytes:
        request = SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m", assignments=assigned.items(), version=5
        )
        request.with_header(correlation_id=1, client_id="bench")
        return bytes(request.encode(framed=True, header=True))

    return {
        "join": join,
        "subscriptions": lambda: [ConsumerProtocolSubscription.decode(each) for each in metadata],
        "assign": assign,
        "sync": sync,
        "fetch-many": read(FetchRequest(), 12, fetch_response(500, 2048)),
        "fetch-large": read(FetchRequest(), 12, fetch_response(1, 1 << 20)),
    }


def main(way: str, seconds: float) -> None:
    """One process: medians of microseconds as JSON."""
    pin()
    if way == "ours":
        from tests.interop.embedding import kafka_python  # noqa: F401
    found = {name: 1e6 * median(samples(call, seconds)) for name, call in calls().items()}
    print(json.dumps(found))


def measure(options: argparse.Namespace) -> Made:
    require_native()
    turns: dict[str, list[dict[str, float]]] = {"theirs": [], "ours": []}
    seconds = 0.0 if options.quick else SECONDS
    for _ in range(1 if options.quick else TURNS):
        for way, found in turns.items():
            command = [sys.executable, "-m", "tests.bench.embedding.bench", way, str(seconds)]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout))
    us = {way: {name: [each[name] for each in found] for name in TITLES} for way, found in turns.items()}
    return {"us": us}


def markdown(made: Made) -> str:
    """The whole report."""
    rows = []
    for name, title in TITLES.items():
        theirs, ours = (made["us"][way][name] for way in ("theirs", "ours"))
        ratios = sorted(a / b for a, b in zip(theirs, ours, strict=True))
        rows.append(
            [
                title,
                digits(median(theirs)),
                digits(median(ours)),
                digits(median(ratios)),
                f"{digits(ratios[0])} to {digits(ratios[-1])}",
            ]
        )
    head = ["kafka-python, µs of processor time", "its own codec", "ours", "ratio", "of pairs of processes"]
    return "\n".join([*table(head, rows), "", conditions(made), ""])


BENCH = Bench(
    about="kafka-python with its own protocol classes and with ours",
    results=Path(__file__).with_name("results"),
    measure=measure,
    markdown=markdown,
    quick=True,
)

if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
