"""What each kind of line means, whether it is an error, and what to look at: the table behind `kcoord explain-line`.

`is_error` is ``no``, ``yes`` or ``if it repeats``: most lines about rebalances report the protocol at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kcoord_wire.forensics.lines.broker import cause_of_client, judge_reason
from kcoord_wire.forensics.lines.extraction import Parsed, parse_line

NO, YES, REPEATED = "no", "yes", "if it repeats"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a line means.

    :ivar says: in a sentence
    :ivar is_error: ``no``, ``yes`` or ``if it repeats``
    :ivar look: what to look at next
    """

    says: str
    is_error: str
    look: str


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
        ),
        "id_given": Meaning("A new client gets its member id and has to join with it (KIP-394).", NO, _LOOP),
        "pending_joined": Meaning("A new client joins with the id that it was given.", NO, _LOOP),
        "static_joined": Meaning("A static member (group.instance.id) joins for the first time.", NO, _LOOP),
        "static_replaced": Meaning(
            "A new process takes the place of a static member with the same group.instance.id.",
            NO,
            "Expected at a restart. While the old process lives, it is fenced: two must not share an id.",
        ),
        "removed_late": Meaning(
            "These members did not join within the rebalance timeout (max.poll.interval.ms) and are out.",
            YES,
            f"All others waited for them. {_POLL}",
        ),
        "none_rejoined": Meaning("No member joined again in time; the coordinator goes on waiting.", YES, _SESSION),
        "dead": Meaning("The group is gone from this coordinator: deleted, expired, or moved.", NO, _LOOP),
        "assignments_missing": Meaning(
            "The leader's assignment leaves out members; they get nothing.",
            YES,
            "Do all members support the same assignors, and is the assignor a custom one?",
        ),
        "write_failed": Meaning(
            "The coordinator could not write to __consumer_offsets.",
            YES,
            "Replicas of that partition (min.insync.replicas), and the broker's disk.",
        ),
        "broker_fenced": Meaning(
            "A static member is refused, because another process has its group.instance.id now.",
            YES,
            "Two processes have one group.instance.id: give each its own; end the old one before the new one starts.",
        ),
        "instance_taken": Meaning(
            "A static member of KIP-848 cannot join while another holds its group.instance.id.",
            YES,
            "End the other process, or wait for its session timeout.",
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
        "groups_deleted": Meaning("An administrator deleted groups with their offsets.", NO, "Who did it, and why?"),
        "epoch_joined": Meaning("A member joins a group of KIP-848; a new epoch follows.", NO, _LOOP),
        "epoch_replaced": Meaning("A new process takes the place of a static member of KIP-848.", NO, _LOOP),
        "epoch_left": Meaning("A member left a group of KIP-848.", NO, _LOOP),
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
            "The client lost its partitions without having given them up: it was out of the group.", YES, _COMMIT
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
        ),
        "session_lost": Meaning(
            "The client had no answer to its heartbeats for session.timeout.ms.",
            YES,
            f"Is the coordinator reachable and alive? {_SESSION}",
        ),
        "unknown_member": Meaning(
            "UNKNOWN_MEMBER_ID: the coordinator removed this member before; the client joins as a new one.",
            YES,
            f"It was removed because of a session or poll timeout, or the group was reset. {_COMMIT}",
        ),
        "stale_generation": Meaning(
            "ILLEGAL_GENERATION: the group went on to another generation without this client.",
            YES,
            f"It missed a rebalance. {_POLL}",
        ),
        "commit_refused": Meaning(
            "The commit is refused: the client is not in the group any more, and others may own the partitions.",
            YES,
            _COMMIT,
        ),
        "commit_rebalancing": Meaning(
            "The commit came in the middle of a rebalance; the client is still a member.",
            REPEATED,
            "Poll to finish the rebalance, then commit again. Commit what is done in onPartitionsRevoked.",
        ),
        "commit_failed": Meaning("An offset was not committed, for the reason at the end of the line.", YES, _COMMIT),
        "fenced": Meaning(
            "FENCED_INSTANCE_ID: another process has the same group.instance.id. This one is out for good.",
            YES,
            "Give each process its own group.instance.id; this client has to be started anew.",
        ),
        "unauthorized": Meaning(
            "GROUP_AUTHORIZATION_FAILED: the user may not read this group.",
            YES,
            "An ACL: Read on the group (kafka-acls.sh --add --operation Read --group ...), and the group's exact name.",
        ),
        "group_full": Meaning("The group has group.max.size members already.", YES, "The broker's group.max.size."),
        "assignor_mismatch": Meaning(
            "INCONSISTENT_GROUP_PROTOCOL: the client shares no assignor with the members.",
            YES,
            "partition.assignment.strategy of all members must have one in common; other applications in this group?",
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
        "offset_reset": Meaning(
            "The client has no valid position and takes that of auto.offset.reset.",
            REPEATED,
            "At the first start that is right. Later: offsets expired "
            "(offsets.retention.minutes), or records were deleted.",
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
    if not reason:
        return meaning
    cause = judge_reason(reason).cause if parsed.kind == "preparing" else cause_of_client(reason)
    facts = None if cause is None else cause.facts
    if facts is None or facts.stated is None or parsed.kind not in ("preparing", "left", "leaving", "rejoin_requested"):
        return meaning
    return Meaning(f"{meaning.says} The reason: {cause}.", YES if facts.is_fault else NO, facts.stated)
