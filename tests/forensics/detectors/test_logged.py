"""What lines of logs say beyond the history of a group: each in the words of its program, alone and shared.

Lines of a broker that name no group are given to the groups of that time; clients whose lines name none are one group.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Finding, GroupHistory

M = "app-1-b542b773-d427-4892-9760-92cf58a9215a"
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
COORDINATOR = "[GroupCoordinator id=1 topic=__consumer_offsets partition=3]"
STABLE = (
    (0, f"INFO {COORDINATOR} Preparing to rebalance group g in state PreparingRebalance with old generation 0 "
        f"(reason: Adding new member {M} with group instance id null; client reason: not provided)."),
    (1, f"INFO {COORDINATOR} Stabilized group g generation 1 with 2 members."),
    (1, f"INFO {COORDINATOR} Assignment received from leader {M} for group g for generation 1. The group has 2 "
        "members, 0 of which are static."),
)  # fmt: skip
Lines = tuple[tuple[float, str], ...]


def log4j(*lines: tuple[float, str]) -> str:
    return "".join(
        f"[{_at(second):%Y-%m-%d %H:%M:%S},{_at(second).microsecond // 1000:03}] {line}\n" for second, line in lines
    )


def _at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def read(folder: Path, **logs: str) -> list[GroupHistory]:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text, encoding="utf-8")
    return analyze(sorted(folder.glob("*.log"))).histories


def found_in(folder: Path, **logs: str) -> list[Finding]:
    [history] = read(folder, **logs)
    return history.findings


JAVA = "[Consumer clientId=app-1, groupId=g]"
RDKAFKA = "%3|1795348803.123|{}|app-1#consumer-1| [thrd:main]: "
KAFKAJS = '{{"level":"ERROR","timestamp":"2026-11-22T12:00:03.123Z","logger":"kafkajs","message":"{}","groupId":"g"{}}}'


@pytest.mark.parametrize(
    ("line", "detector", "severity", "words"),
    [
        (  # Metadata.java, checkUnauthorizedTopics
            f"ERROR {JAVA} Topic authorization failed for topics [orders]",
            "logged_refusals", "critical", "its user may not use topics (TOPIC_AUTHORIZATION_FAILED: [orders])",
        ),
        (  # Errors.java, UNRELEASED_INSTANCE_ID
            f"ERROR {JAVA} ConsumerGroupHeartbeatRequest failed due to the instance id pod-1 being in use: "
            "The instance ID is still used by another member in the consumer group. That member must leave first.",
            "logged_refusals", "critical", "app-1 is refused: its group.instance.id is in use by another member",
        ),
        (
            f"ERROR {JAVA} Connection to node -1 (b1/10.0.0.1:9) failed authentication due to: SSL handshake failed",
            "logged_logins", "critical", "app-1 is not let in by the broker: SSL handshake failed",
        ),
        (
            f"ERROR {JAVA} x org.apache.kafka.common.errors.RecordDeserializationException: Error deserializing VALUE "
            "for partition orders-3 at offset 17. If needed, please seek past the record to continue consumption.",
            "logged_records", "critical", "app-1 cannot read a record: orders-3 at offset 17",
        ),
        (
            f"ERROR {JAVA} The group instance id pod-1 has been fenced by another instance",
            "logged_refusals", "critical", "pod-1 is fenced: another process has joined",
        ),
        (
            f"INFO {COORDINATOR} Request memberId={M} for static member with groupInstanceId=pod-1 is fenced by "
            "current memberId=x during operation sync-group",
            "logged_refusals", "critical", "pod-1 is refused: another process has joined with the same group.",
        ),
        (
            f"INFO {COORDINATOR} [GroupId g] Static member x with instance id pod-1 cannot join the group because the "
            f"instance id is owned by member {M}.",
            "logged_refusals", "critical", "pod-1 is refused: its group.instance.id is in use",
        ),
        (
            f"INFO {COORDINATOR} [GroupId g] Converted the classic group to a consumer group.",
            "logged_course", "info", "the group was converted to a consumer group",
        ),
        (
            f"INFO {COORDINATOR} Static member with groupInstanceId=pod-1 and unknown member id joins group g in "
            f"Stable state. Replacing previously mapped member {M} with this groupInstanceId.",
            "static_deploy", "info", "new processes took the places of static members: pod-1, of each once",
        ),
        (
            f"INFO {COORDINATOR} Group g removed dynamic members who haven't joined: Set({M})",
            "logged_losses", "warning", f"did not join within the rebalance timeout and were removed: Set({M})",
        ),
        (
            f"WARN {JAVA} stream-thread [t-1] Detected that the thread is being fenced. This implies that this thread "
            "missed a rebalance and dropped out of the consumer group. Will close out all assigned tasks and rejoin.",
            "logged_losses", "warning", "app-1 missed a rebalance and dropped out of the group",
        ),
    ],
)  # fmt: skip
def test_lines_of_brokers_and_java_clients(tmp_path: Path, line: str, detector: str, severity: str, words: str) -> None:
    found = found_in(tmp_path, server=log4j(*STABLE, (2, line)))
    assert [(each.detector, each.severity) for each in found] == [(detector, severity)]
    assert words in found[0].text
    assert found[0].evidence


def test_a_static_member_replaced_twice_is_no_deploy(tmp_path: Path) -> None:
    line = (
        f"INFO {COORDINATOR} Static member with groupInstanceId=pod-1 and unknown member id joins group g in Stable "
        f"state. Replacing previously mapped member {M} with this groupInstanceId."
    )
    (found,) = found_in(tmp_path, server=log4j(*STABLE, (2, line), (5, line)))
    assert found.detector == "logged_course"
    assert found.text.endswith("static members: pod-1, 2 times in 3.0 s")
    fenced = (
        f"INFO {COORDINATOR} Request memberId={M} for static member with groupInstanceId=pod-1 is fenced by existing "
        "memberId=pod-1-7a1a3574 during operation heartbeat"
    )
    (found,) = found_in(tmp_path, server=log4j(*STABLE, (2, line), (3, fenced)))
    assert found.detector == "logged_refusals"


@pytest.mark.parametrize(
    ("line", "detector", "severity", "words"),
    [
        (
            RDKAFKA.format("FAIL") + "ssl://b:9093/bootstrap: SSL handshake failed: error:0A000086:SSL routines::"
            "certificate verify failed: broker certificate could not be verified (after 9ms in state SSL_HANDSHAKE)",
            "logged_logins", "critical", "the TLS handshake of app-1 fails: error:0A000086:SSL routines::certificate",
        ),
        (
            RDKAFKA.format("MAXPOLL") + "Application maximum poll interval (300000ms) exceeded by 88ms (adjust it): "
            "leaving group",
            "logged_losses", "warning", "did not poll within max.poll.interval.ms and left the group; the longest time "
            "between two polls was 5 min at least",
        ),
        (
            RDKAFKA.format("ERROR") + "Receive failed: Invalid response size 104857601 (0..100000000): increase "
            "receive.message.max.bytes",
            "logged_records", "critical", "app-1 gets responses that are larger than it takes",
        ),
        (
            RDKAFKA.format("FATAL") + "Fatal error: Broker: Static consumer fenced by other consumer with same "
            "group.instance.id: x",
            "logged_refusals", "critical", "app-1 is fenced",
        ),
        (
            KAFKAJS.format("[Consumer] Crash: KafkaJSNumberOfRetriesExceeded: broken", ""),
            "logged_records", "critical", "ended with an error: KafkaJSNumberOfRetriesExceeded: broken",
        ),
        (
            KAFKAJS.format("[Connection] Response Heartbeat(key: 12, version: 3)", ',"clientId":"app-1",'
            '"error":"The coordinator is not aware of this member"'),
            "logged_losses", "warning", "app-1 was not known to the coordinator any more (UNKNOWN_MEMBER_ID)",
        ),
        (
            "[sarama] 2026/11/22 12:00:03 consumer/broker/2 abandoned subscription to orders/0 because consuming was "
            "taking too long",
            "logged_losses", "warning", "is slow: it did not take orders/0 in time",
        ),
        (
            "2026/11/22 12:00:03 kafka: error while consuming orders/1: kafka server: The provided member is not known "
            "in the current generation",
            "logged_losses", "warning", "was not known to the coordinator any more",
        ),
        (
            "2026-11-22 12:00:03,123 ERROR aiokafka: x ssl.SSLCertVerificationError: certificate verify failed: "
            "self-signed certificate",
            "logged_logins", "critical", "the TLS handshake of",
        ),
        (  # rdkafka.c, _ERR_DESC
            RDKAFKA.format("ERROR") + "Subscribed topic not available: orders: Broker: Topic authorization failed",
            "logged_refusals", "critical", "app-1 is refused: its user may not use topics",
        ),
        (  # sarama's errors.go, ErrTopicAuthorizationFailed
            "2026/11/22 12:00:03 kafka: error while consuming orders/1: kafka server: The client is not authorized to "
            "access this topic",
            "logged_refusals", "critical", "its user may not use topics",
        ),
        (  # rdkafka.c, _ERR_DESC
            RDKAFKA.format("CGRPERR") + "Broker: Consumer group has reached maximum size",
            "logged_refusals", "critical", "app-1 is refused: the group has group.max.size members",
        ),
        (  # kafkajs' runner.js, processEachMessage
            KAFKAJS.format("[Runner] Error when calling eachMessage", ',"clientId":"app-1","topic":"orders",'
            '"partition":3,"offset":"889","stack":"Error: x"'),
            "logged_records", "warning", "the handler of app-1 fails: orders-3 at offset 889",
        ),
        (  # sarama's consumer.go, subscriptionConsumer
            "[sarama] 2026/11/22 12:00:03 consumer/broker/1 disconnecting due to error processing FetchRequest: EOF\n"
            "[sarama] 2026/11/22 12:00:05 consumer/broker/1 disconnecting due to error processing FetchRequest: EOF",
            "logged_logins", "warning", "EOF, 2 times in 2.0 s",
        ),
        (  # franz-go's consumer_group.go, manage
            "2026/11/22 12:00:03 [ERROR] join and sync loop errored; group: g, err: unable to dial: refused\n"
            "2026/11/22 12:00:05 [ERROR] join and sync loop errored; group: g, err: unable to dial: refused",
            "logged_losses", "warning", "cannot join: unable to dial: refused",
        ),
    ],
)  # fmt: skip
def test_lines_of_clients_that_name_no_group(
    tmp_path: Path, line: str, detector: str, severity: str, words: str
) -> None:
    [first, *_] = found_in(tmp_path, app=f"{line}\n")
    assert (first.detector, first.severity) == (detector, severity)
    assert words in first.text


DISK: Lines = (
    (
        30,
        "ERROR Error while appending records to g-0 in dir /data/k (org.apache.kafka.storage.LogDirFailureChannel)",
    ),
    (30, "java.io.IOException: No space left on device"),
    (31, "WARN Stopping serving logs in dir /data/k (kafka.log.LogManager)"),
    (32, "ERROR Shutdown broker because all log dirs in /data/k have failed (kafka.log.LogManager)"),
)


def test_a_full_disk_is_about_each_group_of_that_time(tmp_path: Path) -> None:
    [history] = read(tmp_path, server=log4j(*STABLE, *DISK))
    assert history.group.group_id == "g"
    worst = history.findings[0]
    assert (worst.detector, worst.severity) == ("logged_brokers", "critical")
    assert {each.text for each in history.findings} == {
        "broker 1 has an error of its disk: g-0 in dir /data/k",
        "the disk of broker 1 is full (No space left on device)",
        "broker 1 does not serve the log directory /data/k any more",
        "broker 1 ends itself, because all its log directories have failed (/data/k have failed)",
    }
    assert all(each.group_id == "g" for each in history.findings)


def test_a_full_disk_of_a_client_is_its_own(tmp_path: Path) -> None:
    [found] = found_in(tmp_path, app=log4j((0, f"INFO {JAVA} (Re-)joining group"), DISK[1]))
    assert found.text == "the disk of app-1 is full (No space left on device)"


@pytest.mark.parametrize("is_broker", [True, False])
def test_a_full_heap_is_that_of_the_program_whose_log_it_is(is_broker: bool, tmp_path: Path) -> None:
    full = (9, "ERROR x\njava.lang.OutOfMemoryError: Java heap space")
    begun = STABLE if is_broker else ((0, f"INFO {JAVA} (Re-)joining group"),)
    [found] = found_in(tmp_path, log=log4j(*begun, full))
    who = "broker 1" if is_broker else "app-1"
    assert found.text == f"the memory of {who} is full (OutOfMemoryError: Java heap space)"


def test_a_log_of_a_broker_without_any_group(tmp_path: Path) -> None:
    [history] = read(tmp_path, server=log4j(*DISK))
    assert (history.group.group_id, history.group.origin) == ("", "text")
    assert len(history.findings) == 4


def test_what_a_broker_logs_an_hour_later_is_not_about_a_group(tmp_path: Path) -> None:
    late = tuple((3_600 + second, line) for second, line in DISK)
    histories = read(tmp_path, server=log4j(*STABLE, *late))
    assert [(history.group.group_id, len(history.findings)) for history in histories] == [("", 4), ("g", 0)]


def test_a_named_group_comes_alone(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(log4j(*STABLE, *DISK), encoding="utf-8")
    [history] = analyze([tmp_path / "server.log"], groups=["g"]).histories
    assert len(history.findings) == 4
    assert analyze([tmp_path / "server.log"], groups=["other"]).histories == []


def broker(number: int, *lines: tuple[float, str]) -> str:
    return log4j(*((second, f"INFO [BrokerServer id={number}] {line}") for second, line in lines))


DOWN, UP = "shutting down", "Transition from STARTING to STARTED"


def test_a_rolling_restart(tmp_path: Path) -> None:
    logs = {f"b{n}": broker(n, (20 * n, DOWN), (20 * n + 9, UP)) for n in (1, 2, 3)}
    [history] = read(
        tmp_path, g=log4j(*STABLE, (90, f"INFO {COORDINATOR} Group g with generation 1 is now empty")), **logs
    )
    [found] = [each for each in history.findings if each.detector == "logged_restarts"]
    assert found.severity == "info"
    assert found.text == "a rolling restart of broker 1, broker 2, broker 3, within 49.0 s; back after 9.0 s to 9.0 s"


def test_a_broker_that_was_killed(tmp_path: Path) -> None:
    [history] = read(tmp_path, server=broker(1, (-5, UP)) + log4j(*STABLE) + broker(1, (40, UP)))
    [found] = history.findings
    assert (found.severity, found.subject) == ("warning", "broker 1")
    assert "started again without having been shut down" in found.text


def test_the_first_start_and_the_last_stop_are_of_course(tmp_path: Path) -> None:
    text = broker(1, (-5, UP)) + log4j(*STABLE) + broker(1, (40, DOWN), (42, "shut down completed"))
    [history] = read(tmp_path, server=text)
    assert history.findings == []


STARTED, STOPS = "Startup complete.", "Shutting down."


def coordinator(number: int, *lines: tuple[float, str]) -> str:
    """The lines of `GroupCoordinatorService`, all that a log reduced to groups has of a broker's start and end."""
    return log4j(*((second, f"INFO [GroupCoordinator id={number}] {line}") for second, line in lines))


@pytest.mark.parametrize("is_old", [True, False])
def test_the_coordinators_own_lines_show_a_restart(is_old: bool, tmp_path: Path) -> None:
    killed = coordinator(1, (-9, STARTED)) + log4j(*STABLE) + coordinator(1, (40, STARTED))
    stopped = coordinator(1, (-9, STARTED)) + log4j(*STABLE) + coordinator(1, (30, STOPS), (40, STARTED))
    for text, severity in ((killed, "warning"), (stopped, "info")):
        text = text.replace("[GroupCoordinator id=1]", "[GroupCoordinator 1]:") if is_old else text
        [history] = read(tmp_path, server=text)
        assert [(each.detector, each.severity) for each in history.findings] == [("logged_restarts", severity)]


def test_a_start_is_one_start(tmp_path: Path) -> None:
    begun = coordinator(1, (-9, STARTED)) + log4j((-9, f"INFO {COORDINATOR} {ELECTED}")) + broker(1, (-8, UP))
    [history] = read(tmp_path, server=begun + log4j(*STABLE))
    assert history.findings == []


ELECTED = "Elected as the group coordinator for partition 3 in epoch 0"


def moved(members: int, *, is_unloaded: bool, to: int = 2) -> str:
    """A group that another broker loads."""
    lines = [(20, f"INFO {COORDINATOR} [GroupId=g] Unloading group metadata for generation 1.")] * is_unloaded
    line = f"INFO {COORDINATOR} Loaded classic group g with {members} members.".replace("id=1", f"id={to}")
    return log4j(*STABLE, *lines, (20.4 if to == 2 else 39.8, line))


@pytest.mark.parametrize(
    ("text", "severity", "words"),
    [
        (moved(2, is_unloaded=True), "warning", "had no coordinator for 400 ms: it moved from broker 1 to broker 2"),
        (moved(2, is_unloaded=False), "warning",
         "moved from broker 1 to broker 2, without having been given up before"),
        (moved(2, is_unloaded=True, to=1), "warning",
         "had no coordinator for 19.8 s: broker 1 had given it up, and loaded it again"),
        (moved(0, is_unloaded=True), None, ""),
    ],
)  # fmt: skip
def test_a_group_that_gets_another_coordinator(text: str, severity: str | None, words: str, tmp_path: Path) -> None:
    found = [(each.severity, each.text) for each in found_in(tmp_path, server=text)]
    assert found == ([(severity, f"the group {words}")] if severity else [])


def test_a_client_without_a_coordinator(tmp_path: Path) -> None:
    text = log4j(
        (0, f"INFO {JAVA} (Re-)joining group"),
        (5, f"INFO {JAVA} Group coordinator b1:9092 (id: 1 rack: null) is unavailable or invalid due to cause: "
            "coordinator unavailable. isDisconnected: true. Rediscovery will be attempted."),
        (17, f"INFO {JAVA} Discovered group coordinator b2:9092 (id: 2 rack: null)"),
        (30, f"INFO {JAVA} Group coordinator b2:9092 (id: 2 rack: null) is unavailable or invalid due to cause: x. "
             "isDisconnected: true. Rediscovery will be attempted."),
        (30.2, f"INFO {JAVA} Discovered group coordinator b2:9092 (id: 2 rack: null)"),
    )  # fmt: skip
    [found] = [each for each in found_in(tmp_path, app=text) if each.detector == "logged_coordinator"]
    assert (found.severity, found.value) == ("warning", 12.0)
    assert found.text.startswith("app-1 had no coordinator for 12.0 s: Group coordinator b1:9092")


def test_positions_of_new_clients_are_of_course(tmp_path: Path) -> None:
    reset = f"INFO {JAVA} Resetting offset for partition orders-0 to position FetchPosition{{offset=0}}."
    assert found_in(tmp_path, app=log4j((0, f"INFO {JAVA} (Re-)joining group"), (2, reset))) == []
    [found] = found_in(tmp_path, app=log4j((0, f"INFO {JAVA} (Re-)joining group"), (200, reset)))
    assert found.severity == "info"


@pytest.mark.parametrize(
    "line",
    [
        "ERROR [aiokafka] Unable connect to node with id 1: [Errno 111] Connect call failed ('10.0.0.1', 9092)",
        "[WARN] unable to open connection to broker; addr: b1:9092, broker: 1, err: dial tcp: refused",
    ],
)
def test_a_broker_that_other_clients_do_not_reach(line: str, tmp_path: Path) -> None:
    [found] = found_in(tmp_path, app=log4j(*((n, line) for n in range(5))))
    assert (found.detector, found.value) == ("logged_logins", 5)
    assert found_in(tmp_path, app=log4j((0, line))) == []


@pytest.mark.parametrize(
    ("line", "severity", "words"),
    [
        (  # CoordinatorRuntime.java
            "INFO [GroupCoordinator id=1] Finished loading of metadata from __consumer_offsets-3 with epoch 4 in "
            "42000ms where 3ms was spent in the scheduler. Loaded 90000000 records which total to 9000000000 bytes.",
            "warning", "broker 1 took long to read a partition of __consumer_offsets; the longest took 42.0 s",
        ),
        (  # GroupMetadataManager.scala, 2.8
            "INFO [GroupMetadataManager brokerId=1] Finished loading offsets and group metadata from "
            "__consumer_offsets-3 in 42000 milliseconds for epoch 4, of which 3 milliseconds was spent in the "
            "scheduler.",
            "warning", "the longest took 42.0 s",
        ),
        (
            "INFO [GroupCoordinator id=1] Finished loading of metadata from __consumer_offsets-3 with epoch 4 in 45ms "
            "where 3ms was spent in the scheduler. Loaded 9 records which total to 900 bytes.",
            None, "",
        ),
        (
            "ERROR [GroupMetadataManager brokerId=1] Error loading offsets from __consumer_offsets-27",
            "critical", "broker 1 cannot read a partition of __consumer_offsets: -27",
        ),
        (
            "ERROR [GroupCoordinator id=1] Failed to load metadata from __consumer_offsets-3 with epoch 4 due to "
            "org.apache.kafka.common.errors.NotLeaderOrFollowerException: Stopped loading records from "
            "__consumer_offsets-3 because there is no longer a local log for it.",
            None, "",
        ),
        (  # Partition.scala, 3.x
            "INFO [Partition __consumer_offsets-43 broker=1] Shrinking ISR from 3,1,4 to 3. Leader: (highWatermark: "
            "115, endOffset: 120). Out of sync replicas: (brokerId: 1, endOffset: 115) (brokerId: 4, endOffset: 116).",
            "warning", "a replica of __consumer_offsets did not follow broker 1, the leader",
        ),
        (
            "INFO [Partition orders-43 broker=1] Shrinking ISR from 3,1,4 to 3. Leader: (highWatermark: 115).",
            None, "",
        ),
        (  # GroupMetadataManager.java, validateOnlineUpgrade
            "INFO [GroupCoordinator id=1 topic=__consumer_offsets partition=3] Cannot upgrade classic group g to "
            "consumer group because the online upgrade is disabled.",
            "warning", "a member of the other is not let in: the online upgrade is disabled",
        ),
        (  # OffsetMetadataManager.java, cleanupExpiredOffsets
            "INFO [GroupCoordinator id=1 topic=__consumer_offsets partition=3] [GroupId g] Expiring offsets of "
            "partitions (allOffsetsExpired=false): orders-0, orders-1",
            "info", "committed offsets expired (offsets.retention.minutes): orders-0, orders-1",
        ),
    ],
)  # fmt: skip
def test_lines_of_brokers(line: str, severity: str | None, words: str, tmp_path: Path) -> None:
    found = found_in(tmp_path, server=log4j(*STABLE, (20, line)))
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert all(words in each.text for each in found)


def test_one_attempt_to_connect_is_none(tmp_path: Path) -> None:
    line = f"WARN {JAVA} Connection to node 1 (b1/10.0.0.1:9092) could not be established. Node may not be available."
    begin = (0, f"INFO {JAVA} (Re-)joining group")
    assert found_in(tmp_path, app=log4j(begin, (1, line))) == []
    [found] = found_in(tmp_path, app=log4j(begin, *((1 + n, line) for n in range(5))))
    assert found.text == "app-1 cannot connect to a broker: b1/10.0.0.1:9092, 5 times in 4.0 s"


def test_tasks_of_a_lost_worker_wait_for_it(tmp_path: Path) -> None:
    worker = "INFO [Worker clientId=w-1, groupId=connect]"
    joined = (
        f"{worker} Joined group at generation {{}} with protocol version 2 and got assignment: Assignment{{{{error=0, "
    )
    joined += "leader='w-1', delay={}}}}} with rebalance delay: {} (org.apache.kafka.connect.DistributedHerder:1950)"
    calm = log4j((0, joined.format(1, 0, 0)), (9, joined.format(2, 0, 0)))
    assert found_in(tmp_path, app=calm) == []
    late = log4j((0, joined.format(1, 0, 0)), (9, joined.format(2, 300000, 300000)))
    [found] = found_in(tmp_path, app=late)
    assert found.severity == "warning"
    assert found.text.endswith("the longest delay was 5 min (scheduled.rebalance.max.delay.ms)")


def test_a_deletion_is_about_its_group(tmp_path: Path) -> None:
    line = "INFO The following groups were deleted: g. A total of 4 offsets were removed."
    [found] = found_in(tmp_path, server=log4j(*STABLE, (9, line)))
    assert found.text == "an administrator deleted groups: g"


def test_lines_that_librdkafka_left_out_count(tmp_path: Path) -> None:
    refused = "b1:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms in state"
    fail = RDKAFKA.format("FAIL") + refused
    down = RDKAFKA.format("ERROR") + "b1:9092/1: 1/1 brokers are down"
    text = f"{fail} CONNECT)\n{fail} CONNECT, 30 identical error(s) suppressed)\n{down}\n"
    first, second = found_in(tmp_path, app=text)
    assert first.text == "app-1 cannot connect to a broker: ipv4#10.0.0.1:9092, 32 times in 0 ms"
    assert (second.severity, second.text) == ("warning", "app-1 reaches no broker at all")


def test_losses_are_one_finding_that_begins_with_the_cause(tmp_path: Path) -> None:
    unknown = f"INFO {JAVA} Attempt to heartbeat with x failed due to UNKNOWN_MEMBER_ID, resetting generation"
    text = log4j(
        (0, f"INFO {JAVA} (Re-)joining group"),
        (9, f"WARN {JAVA} consumer poll timeout has expired. This means the time between polls was longer than x"),
        (10, unknown),
        (11, f"INFO {JAVA} Lost previously assigned partitions orders-0"),
    )
    [found] = [each for each in found_in(tmp_path, app=text) if each.detector == "logged_losses"]
    assert found.text == (
        "app-1 did not poll within max.poll.interval.ms and left the group; besides: 1 x lost, 1 x unknown member"
    )
