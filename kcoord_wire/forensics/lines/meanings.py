"""What each kind of line means, whether it is an error, what to look at, and what `analyze` reports of it.

One table for `kcoord explain-line` and for the findings of `kcoord_wire.forensics.detectors.logged`.

Laws:

* `is_error` is ``no``, ``yes`` or ``if it repeats``: most lines about rebalances report the protocol at work.
* Each kind is used by `analyze`: it makes the history of a group (`READ` of `broker` and `clients`), or it is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from kcoord_wire.forensics.lines.broker import cause_of_client, judge_reason
from kcoord_wire.forensics.lines.extraction import Parsed, parse_line

NO, YES, REPEATED = "no", "yes", "if it repeats"
_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class Reported:
    """What a finding says of lines of one kind.

    :ivar subject: ``refusals``, ``brokers``, ``logins``, ``records``, ``losses`` or ``course``: a finding of each
    :ivar severity: of the finding
    :ivar text: with the fields ``{who}`` (client, instance or broker) and ``{reason}``
    :ivar least: lines from which on they are reported
    """

    subject: str
    severity: str
    text: str
    least: int = 1


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a line means.

    :ivar says: in a sentence
    :ivar is_error: ``no``, ``yes`` or ``if it repeats``
    :ivar look: what to look at next
    :ivar reported: what `analyze` reports of it; None where the history of the group has it
    """

    says: str
    is_error: str
    look: str
    reported: Reported | None = None


@dataclass(frozen=True, slots=True)
class Explained:
    """A line, explained.

    :ivar stated: what the line states, by column of `LogLine`
    """

    kind: str
    program: str
    meaning: Meaning
    stated: Mapping[str, Any]


_WHO = "The broker's log names the member that set it off: grep the group's `Preparing to rebalance` at this time."
_LOOP = "If it repeats, analyze the log (kcoord analyze): causes, members and intervals."
_POLL = "Do less per poll (max.poll.records), move slow work off the polling thread, or raise max.poll.interval.ms."
_SESSION = (
    "Was the process paused (garbage collection, CPU limit), killed, or cut off? Only then raise session.timeout.ms."
)
_COMMIT = "What was polled is delivered again to the new owner. Find why it left: a poll timeout or a session timeout."
_RESTART = "Was that intended? Its groups get another coordinator meanwhile, and their members find it by themselves."
_DISK = (
    "The disk of that directory: space, errors in dmesg. The partitions there have other leaders, or none, until then."
)
_LOGIN = "User, password, mechanism or certificate of the client against those of the listener; when did they change?"
_AGAIN = "Look at the lines of this client before: what it did longest ago is the cause."

MEANINGS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        "preparing": Meaning("The coordinator begins a rebalance: all members have to join again.", NO, _LOOP),
        "stabilized": Meaning("All members have joined; the leader computes the assignment now.", NO, _LOOP),
        "assigned_by_leader": Meaning("The leader's assignment has arrived; members get it and go on.", NO, _LOOP),
        "empty": Meaning(
            "The group has no members; its offsets stay.", REPEATED, "Is that intended? If not: why did the last leave?"
        ),
        "failed": Meaning(
            "The coordinator received nothing from the member for its session timeout and removes it.", YES, _SESSION
        ),
        "left": Meaning(
            "The member said that it leaves; `client reason` says why, where the client knows KIP-800.",
            NO,
            "A close or a deploy is fine; `consumer poll timeout has expired` is not: see max.poll.interval.ms.",
        ),
        "pending_left": Meaning("A client that had an id but had not joined yet left.", NO, _LOOP),
        "pending_expired": Meaning(
            "A client got a member id and never came back to join with it.",
            REPEATED,
            "A client that dies or gives up while it starts; its own log says why.",
            Reported("losses", "warning", "{who} got member ids and never joined with them", 3),
        ),
        "id_given": Meaning("A new client gets its member id and has to join with it (KIP-394).", NO, _LOOP),
        "pending_joined": Meaning("A new client joins with the id that it was given.", NO, _LOOP),
        "static_joined": Meaning("A static member (group.instance.id) joins for the first time.", NO, _LOOP),
        "static_replaced": Meaning(
            "A new process takes the place of a static member with the same group.instance.id.",
            NO,
            "Expected at a restart. While the old process lives, it is fenced: two must not share an id.",
            Reported("course", "info", "new processes took the places of static members: {who}"),
        ),
        "removed_late": Meaning(
            "These members did not join within the rebalance timeout (max.poll.interval.ms) and are out.",
            YES,
            f"All others waited for them. {_POLL}",
            Reported(
                "losses", "warning", "members did not join within the rebalance timeout and were removed: {reason}"
            ),
        ),
        "none_rejoined": Meaning(
            "No member joined again in time; the coordinator goes on waiting.",
            YES,
            _SESSION,
            Reported("losses", "warning", "no member joined again within the rebalance timeout"),
        ),
        "dead": Meaning(
            "The group is gone from this coordinator: deleted, expired, or moved.",
            NO,
            _LOOP,
            Reported(
                "course", "info", "the group is gone from its coordinator: it was deleted, has expired, or has moved"
            ),
        ),
        "assignments_missing": Meaning(
            "The leader's assignment leaves out members; they get nothing.",
            YES,
            "Do all members support the same assignors, and is the assignor a custom one?",
            Reported("losses", "warning", "the leader's assignment left out {reason}"),
        ),
        "write_failed": Meaning(
            "The coordinator could not write to __consumer_offsets.",
            YES,
            "Replicas of that partition (min.insync.replicas), and the broker's disk.",
            Reported("brokers", "critical", "{who} cannot write to __consumer_offsets: {reason}"),
        ),
        "broker_fenced": Meaning(
            "A static member is refused, because another process has its group.instance.id now.",
            YES,
            "Two processes have one group.instance.id: give each its own; end the old one before the new one starts.",
            Reported(
                "refusals", "critical", "{who} is refused: another process has joined with the same group.instance.id"
            ),
        ),
        "instance_taken": Meaning(
            "A static member of KIP-848 cannot join while another holds its group.instance.id.",
            YES,
            "End the other process, or wait for its session timeout.",
            Reported("refusals", "critical", "{who} is refused: its group.instance.id is in use by another member"),
        ),
        "loaded": Meaning(
            "This broker is the group's coordinator from now on and has read its state.",
            NO,
            "Why did it move: a restart, a failed broker, a reassignment?",
        ),
        "unloaded": Meaning(
            "This broker is the group's coordinator no longer.",
            NO,
            "Members get NOT_COORDINATOR and look for the new one; that is normal.",
        ),
        "elected": Meaning("This broker coordinates the groups of this partition of __consumer_offsets.", NO, _LOOP),
        "resigned": Meaning("This broker coordinates the groups of this partition no longer.", NO, _LOOP),
        "groups_deleted": Meaning(
            "An administrator deleted groups with their offsets.",
            NO,
            "Who did it, and why?",
            Reported("course", "info", "an administrator deleted groups: {reason}"),
        ),
        "epoch_joined": Meaning("A member joins a group of KIP-848; a new epoch follows.", NO, _LOOP),
        "epoch_replaced": Meaning("A new process takes the place of a static member of KIP-848.", NO, _LOOP),
        "epoch_left": Meaning("A member, of either protocol, left a group of KIP-848.", NO, _LOOP),
        "epoch_fenced": Meaning(
            "The coordinator removed a member of KIP-848: its session ran out, or it "
            "did not give up partitions in time.",
            YES,
            _SESSION,
        ),
        "epoch_subscribed": Meaning("A member changed what it subscribes to.", NO, _LOOP),
        "epoch_topics": Meaning("Subscribed topics were created, deleted or got partitions.", NO, _LOOP),
        "epoch_bumped": Meaning("A rebalance of KIP-848 begins: a new epoch, with a new target assignment.", NO, _LOOP),
        "epoch_target": Meaning("The new target assignment is computed; members move to it one by one.", NO, _LOOP),
        "epoch_state": Meaning("A member of KIP-848 has reached a state of its assignment.", NO, _LOOP),
        "rejoin_requested": Meaning("The client will join again, for the reason in the line.", NO, _AGAIN),
        "joining": Meaning(
            "The client joins: it waits until all members have joined or time out.",
            NO,
            "If it stands here for minutes, others are missing: the broker's log says which were removed.",
        ),
        "joined": Meaning("The client has joined this generation.", NO, _LOOP),
        "synced": Meaning("The client has its assignment.", NO, _LOOP),
        "epoch_transition": Meaning(
            "The member of KIP-848 changes its state.",
            NO,
            "FENCED, STALE (max.poll.interval.ms exceeded) and FATAL are errors; the others are not.",
            Reported("losses", "warning", "{who} is out of the group: its state is {reason}"),
        ),
        "assigned": Meaning("The client gets these partitions.", NO, _LOOP),
        "heartbeat_rebalancing": Meaning(
            "A heartbeat was answered with REBALANCE_IN_PROGRESS: others set off a "
            "rebalance, and this client joins again.",
            NO,
            f"Nothing is wrong with this client. {_WHO}",
        ),
        "revoked": Meaning(
            "The client gives up these partitions, before it joins again or because others get them.", NO, _LOOP
        ),
        "lost": Meaning(
            "The client lost its partitions without having given them up: it was out of the group.",
            YES,
            _COMMIT,
            Reported("losses", "info", "{who} lost its partitions without having given them up"),
        ),
        "leaving": Meaning(
            "The client leaves the group.",
            NO,
            "At a close that is right. `consumer poll timeout has expired` means max.poll.interval.ms was exceeded.",
        ),
        "poll_timeout": Meaning(
            "The application did not poll for longer than max.poll.interval.ms, and the client left the group.",
            YES,
            _POLL,
            Reported("losses", "warning", "{who} did not poll within max.poll.interval.ms and left the group"),
        ),
        "session_lost": Meaning(
            "The client had no answer to its heartbeats for session.timeout.ms.",
            YES,
            f"Is the coordinator reachable and alive? {_SESSION}",
            Reported("losses", "warning", "{who} had no answer to its heartbeats for a session timeout"),
        ),
        "unknown_member": Meaning(
            "UNKNOWN_MEMBER_ID: the coordinator removed this member before; the client joins as a new one.",
            YES,
            f"It was removed because of a session or poll timeout, or the group was reset; kafkajs sends no heartbeat "
            f"while its handler blocks the event loop. {_COMMIT}",
            Reported(
                "losses",
                "warning",
                "{who} was not known to the coordinator any more (UNKNOWN_MEMBER_ID), which had removed it",
            ),
        ),
        "stale_generation": Meaning(
            "ILLEGAL_GENERATION: the group went on to another generation without this client.",
            YES,
            f"It missed a rebalance. {_POLL}",
            Reported("losses", "warning", "{who} missed a rebalance (ILLEGAL_GENERATION)"),
        ),
        "commit_refused": Meaning(
            "The commit is refused: the client is not in the group any more, and others may own the partitions.",
            YES,
            _COMMIT,
            Reported("losses", "warning", "commits of {who} are refused, since it is no member any more"),
        ),
        "commit_rebalancing": Meaning(
            "The commit came in the middle of a rebalance; the client is still a member.",
            REPEATED,
            "Poll to finish the rebalance, then commit again. Commit what is done in onPartitionsRevoked.",
            Reported("losses", "info", "{who} commits in the middle of rebalances"),
        ),
        "commit_failed": Meaning(
            "An offset was not committed, for the reason at the end of the line.",
            YES,
            _COMMIT,
            Reported("losses", "warning", "offsets of {who} were not committed: {reason}"),
        ),
        "fenced": Meaning(
            "FENCED_INSTANCE_ID: another process has the same group.instance.id. This one is out for good.",
            YES,
            "Give each process its own group.instance.id; this client has to be started anew.",
            Reported(
                "refusals", "critical", "{who} is fenced: another process has joined with the same group.instance.id"
            ),
        ),
        "unauthorized": Meaning(
            "GROUP_AUTHORIZATION_FAILED: the user may not read this group.",
            YES,
            "An ACL: Read on the group (kafka-acls.sh --add --operation Read --group ...), and the group's exact name.",
            Reported(
                "refusals", "critical", "{who} is refused: its user may not read the group (GROUP_AUTHORIZATION_FAILED)"
            ),
        ),
        "group_full": Meaning(
            "The group has group.max.size members already.",
            YES,
            "The broker's group.max.size.",
            Reported("refusals", "critical", "{who} is refused: the group has group.max.size members"),
        ),
        "assignor_mismatch": Meaning(
            "INCONSISTENT_GROUP_PROTOCOL: the client shares no assignor with the members.",
            YES,
            "partition.assignment.strategy of all members must have one in common; other applications in this group?",
            Reported("refusals", "critical", "{who} is refused: it has no assignor in common with all members"),
        ),
        "coordinator_lost": Meaning(
            "The client gave up its coordinator and looks for it again.",
            REPEATED,
            "A broker restarted, or the network failed: the cause in the line, and the brokers' logs.",
        ),
        "coordinator_moved": Meaning(
            "NOT_COORDINATOR: another broker coordinates the group now; the client looks for it.",
            REPEATED,
            "Normal when a broker restarts. For minutes: is a partition of __consumer_offsets without a leader?",
        ),
        "coordinator_loading": Meaning(
            "COORDINATOR_LOAD_IN_PROGRESS: the new coordinator reads the group's state; the client tries again.",
            REPEATED,
            "For minutes: a __consumer_offsets that is not compacted; the broker logs how long loading took.",
        ),
        "coordinator_found": Meaning("The client has found its coordinator.", NO, _LOOP),
        "protocol_converted": Meaning(
            "The group changes its protocol, because a member of the other one has joined or the last one has left "
            "(group.consumer.migration.policy).",
            NO,
            "Intended while the members are updated one after another; look that all arrive at the same protocol.",
            Reported("course", "info", "the group was converted to a {reason}"),
        ),
        "protocol_kept": Meaning(
            "A member of the other protocol asks to join, and the coordinator does not convert the group.",
            REPEATED,
            "The reason in the line: group.consumer.migration.policy, or how the members share the group.",
            Reported(
                "refusals", "warning", "the group keeps its protocol, and a member of the other is not let in: {reason}"
            ),
        ),
        "offsets_expired": Meaning(
            "Committed offsets are deleted, since nothing was committed there for offsets.retention.minutes and the "
            "group is empty or does not subscribe to the topic any more.",
            NO,
            "Whoever reads these partitions again begins at auto.offset.reset; raise offsets.retention.minutes if that "
            "is too early.",
            Reported("course", "info", "committed offsets expired (offsets.retention.minutes): {reason}"),
        ),
        "loading_done": Meaning(
            "The coordinator has read a partition of __consumer_offsets; its groups had none until then.",
            REPEATED,
            "Beyond some seconds: a partition that is not compacted (the log cleaner has stopped), or a slow disk.",
            Reported("brokers", "warning", "{who} took long to read a partition of __consumer_offsets"),
        ),
        "loading_failed": Meaning(
            "The coordinator could not read a partition of __consumer_offsets: its groups have no coordinator.",
            YES,
            "The error behind it: a record that this release does not know (a downgrade), memory, the disk.",
            Reported("brokers", "critical", "{who} cannot read a partition of __consumer_offsets: {reason}"),
        ),
        "replicas_lag": Meaning(
            "A replica of __consumer_offsets has fallen behind for replica.lag.time.max.ms; below min.insync.replicas "
            "nothing can be committed there.",
            REPEATED,
            "The broker that is missing from the ISR: is it down, paused, or slow? Until it was taken out, commits and "
            "joins waited for it.",
            Reported(
                "brokers",
                "warning",
                "a replica of __consumer_offsets did not follow {who}, the leader, and commits and joins waited for it "
                "(ISR from {reason})",
            ),
        ),
        "out_of_memory": Meaning(
            "The heap of the Java process is full: from then on anything may fail in it.",
            YES,
            "Its -Xmx against what it holds; heap dumps (-XX:+HeapDumpOnOutOfMemoryError), and whether it ends on it "
            "(-XX:+ExitOnOutOfMemoryError).",
            Reported("brokers", "critical", "the memory of {who} is full (OutOfMemoryError: {reason})"),
        ),
        "topic_unauthorized": Meaning(
            "TOPIC_AUTHORIZATION_FAILED: the user may not read, or describe, these topics.",
            YES,
            "An ACL: Read on the topic (kafka-acls.sh --add --operation Read --topic ...), and the topic's exact name.",
            Reported(
                "refusals",
                "critical",
                "{who} is refused: its user may not use topics (TOPIC_AUTHORIZATION_FAILED: {reason})",
            ),
        ),
        "join_failed": Meaning(
            "The client could not join, and tries again after a pause.",
            REPEATED,
            "The error in the line.",
            Reported("losses", "warning", "{who} cannot join: {reason}", 2),
        ),
        "handler_failed": Meaning(
            "The application's handler failed on a record: kafkajs tries it again, and ends the consumer in the end.",
            YES,
            "The handler's own error. Bound its retries, and set such a record aside (a dead letter topic).",
            Reported("records", "warning", "the handler of {who} fails: {reason}"),
        ),
        "broker_stopping": Meaning(
            "The broker is shut down in order: it moves its partitions to others first.", NO, _RESTART
        ),
        "broker_stopped": Meaning("The broker has ended in order.", NO, _RESTART),
        "broker_started": Meaning("The broker is up.", NO, _RESTART),
        "coordinator_stopping": Meaning("The broker's coordinator ends, since the broker is shut down.", NO, _RESTART),
        "coordinator_started": Meaning("The broker's coordinator is up, since the broker starts.", NO, _RESTART),
        "broker_lost": Meaning(
            "The controller has not heard of that broker for broker.session.timeout.ms: others lead its partitions.",
            YES,
            "That broker's own log: was it killed, paused or cut off? Clients need no change.",
            Reported("brokers", "warning", "{who} was not heard by the controller for its session, and fenced"),
        ),
        "dirs_failed": Meaning(
            "The broker ends: no log directory is left that works.",
            YES,
            _DISK,
            Reported(
                "brokers", "critical", "{who} ends itself, because all its log directories have failed ({reason})"
            ),
        ),
        "dir_failed": Meaning(
            "The broker takes a log directory out of service: none of its partitions is served from here any more.",
            YES,
            _DISK,
            Reported("brokers", "critical", "{who} does not serve the log directory {reason} any more"),
        ),
        "disk_full": Meaning(
            "The disk on which the program writes is full.",
            YES,
            _DISK,
            Reported("brokers", "critical", "the disk of {who} is full (No space left on device)"),
        ),
        "disk_error": Meaning(
            "The broker could not read or write a file of its log.",
            YES,
            _DISK,
            Reported("brokers", "critical", "{who} has an error of its disk: {reason}"),
        ),
        "too_few_replicas": Meaning(
            "The partition has fewer replicas in sync than min.insync.replicas: nothing can be written to it.",
            YES,
            "Which broker is missing from its ISR, and why? For __consumer_offsets no commit or join succeeds then.",
            Reported(
                "brokers", "critical", "partitions have fewer replicas in sync than min.insync.replicas: {reason}"
            ),
        ),
        "login_failed": Meaning(
            "The broker ended a connection, because the client did not authenticate.",
            YES,
            f"The address in the line, and the reason behind it. {_LOGIN}",
            Reported("logins", "warning", "{who} is not let in: {reason}"),
        ),
        "login_refused": Meaning(
            "The broker does not accept the client's authentication.",
            YES,
            _LOGIN,
            Reported("logins", "critical", "{who} is not let in by the broker: {reason}"),
        ),
        "tls_failed": Meaning(
            "The TLS handshake failed: one side does not trust the other's certificate, or does not speak TLS at all.",
            YES,
            "The reason in the line: certificates that have expired, whose authority is not in the truststore "
            "(ssl.truststore.location, ssl.ca.location) or that name another host; a plain port.",
            Reported("logins", "critical", "the TLS handshake of {who} fails: {reason}"),
        ),
        "unreachable": Meaning(
            "The client cannot connect to that broker.",
            REPEATED,
            "Is the broker up, and its advertised.listeners an address that the client reaches?",
            Reported("logins", "warning", "{who} cannot connect to a broker: {reason}", 3),
        ),
        "all_down": Meaning(
            "The client is connected to no broker of those that it knows.",
            YES,
            "Are the brokers up, and are bootstrap.servers and advertised.listeners addresses that the client reaches?",
            Reported("logins", "warning", "{who} reaches no broker at all"),
        ),
        "unanswered": Meaning(
            "The client waited for an answer for request.timeout.ms and dropped the connection.",
            REPEATED,
            "Was the broker overloaded or frozen, or does a firewall drop connections that were idle?",
            Reported("logins", "warning", "{who} had no answer for request.timeout.ms: {reason}", 2),
        ),
        "unreadable": Meaning(
            "The consumer cannot read that record: each poll fails at the same place until the position is moved on.",
            YES,
            "The record (kafka-console-consumer.sh --partition --offset --max-messages 1) and the deserializer; skip "
            "it by seek(), or use an error handling deserializer.",
            Reported("records", "critical", "{who} cannot read a record: {reason}"),
        ),
        "response_too_large": Meaning(
            "The response is larger than the client takes, and it drops the connection; it asks for the same again.",
            YES,
            "The setting in the line (receive.message.max.bytes, MaxResponseSize, fetch sizes) against the size.",
            Reported("records", "critical", "{who} gets responses that are larger than it takes"),
        ),
        "out_of_range": Meaning(
            "OFFSET_OUT_OF_RANGE: the log does not have that offset (any more).",
            REPEATED,
            "Records were deleted before they were read (retention.ms, retention.bytes), or the topic was made again; "
            "auto.offset.reset decides where reading goes on.",
            Reported(
                "records", "warning", "{who} asked for an offset that the log does not have (OFFSET_OUT_OF_RANGE)"
            ),
        ),
        "crashed": Meaning(
            "The consumer ended because of an error of its application, or of one that its library does not retry.",
            YES,
            "The error in the line, or behind it; whether it is started again.",
            Reported("records", "critical", "the consumer of {who} ended with an error: {reason}"),
        ),
        "missed_rebalance": Meaning(
            "A thread of Kafka Streams was out of the group: it closes its tasks and joins again.",
            YES,
            f"Its polls took longer than max.poll.interval.ms, or its transactions were fenced. {_POLL}",
            Reported("losses", "warning", "{who} missed a rebalance and dropped out of the group"),
        ),
        "slow_handler": Meaning(
            "The handler did not take the next message within Consumer.MaxProcessingTime; sarama stops reading it.",
            REPEATED,
            "What ConsumeClaim does for each message. It has to return soon after session.Context() is done, within "
            "Consumer.Group.Rebalance.Timeout, else its member is removed.",
            Reported("losses", "warning", "the handler of {who} is slow: it did not take {reason} in time"),
        ),
        "slow_stop": Meaning(
            "A task of Kafka Connect did not stop within task.shutdown.graceful.timeout.ms.",
            YES,
            "What the connector does when it is stopped; the worker may miss its rebalance timeout by it.",
            Reported("losses", "warning", "a task of {who} did not stop in time: {reason}"),
        ),
        "delayed_assignment": Meaning(
            "A worker of Kafka Connect has its assignment. With a delay above 0, the connectors and tasks of a worker "
            "that is gone stay stopped for so long, to go back to it.",
            REPEATED,
            "Which worker is missing, and why? scheduled.rebalance.max.delay.ms, five minutes by default, is how long "
            "its tasks wait for it.",
            Reported("losses", "warning", "connectors and tasks of a worker that is gone wait for it, as {who} logs"),
        ),
        "session_ended": Meaning(
            "A generation of sarama's consumer is over: a rebalance, its close, or a heartbeat that failed.", NO, _AGAIN
        ),
        "offset_reset": Meaning(
            "The client has no valid position and takes that of auto.offset.reset.",
            REPEATED,
            "At the first start that is right. Later: offsets expired "
            "(offsets.retention.minutes), or records were deleted.",
            Reported("course", "info", "{who} had no valid position and took that of auto.offset.reset"),
        ),
    }
)
"""The meaning of each kind of line."""


def explain_line(line: str) -> Explained | None:
    """Return what a line means; None for a line of no known kind."""
    found = parse_line(line)
    if found is None:
        return None
    parsed, _ = found
    return Explained(parsed.kind, parsed.program, _meaning(parsed), parsed.columns)


def _meaning(parsed: Parsed) -> Meaning:
    """Return the meaning of a kind, in the light of the reason that the line states."""
    meaning, reason = MEANINGS[parsed.kind], parsed.columns.get("reason")
    took_ms = parsed.columns.get("took_ms")
    if parsed.kind == "poll_timeout" and took_ms is not None and parsed.columns.get("timeout_ms") is not None:
        return replace(meaning, says=f"{meaning.says} The last poll was {took_ms / _MS_PER_S:,.1f} s before.")
    if not reason:
        return meaning
    cause = judge_reason(reason).cause if parsed.kind == "preparing" else cause_of_client(reason)
    facts = None if cause is None else cause.facts
    if facts is None or facts.stated is None or parsed.kind not in ("preparing", "left", "leaving", "rejoin_requested"):
        return meaning
    return Meaning(f"{meaning.says} The reason: {cause}.", YES if facts.is_fault else NO, facts.stated)
