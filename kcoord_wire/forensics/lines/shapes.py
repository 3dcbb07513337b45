"""The shapes of lines about groups: templates with fields, compiled to searches that take linear time.

A template is the text of the line with fields in angle brackets, ``Stabilized group <group> generation <generation>``;
``[[...]]`` is optional text and ``{a|b}`` one of several. `FIELDS` has the fields and the column of `LogLine` that each
fills. A field ends where the text behind it begins, or with the line.

Laws:

* A line that holds no literal of a template costs one substring search for it.
* No line, whatever it holds, costs more than `_TRIES` matches of a template, whose fields are bounded in length.

`BROKER_SHAPES`, release by release; each was read in the source at the tag named, or recorded:

| releases          | where                                                                            |
|-------------------|----------------------------------------------------------------------------------|
| 0.10, 0.11 to 2.2 | GroupCoordinator.scala at 0.10.2.2 and 1.1.1: a rebalance has no reason          |
| 2.3 to 3.9        | GroupCoordinator.scala at 2.3.1, 2.8.2 and 3.6.1: ``(reason: ...)``              |
| 4.x, and 3.9 with | GroupMetadataManager.java: the new coordinator, for classic groups and for those |
| group.version=1   | of KIP-848, whose lines begin with ``[GroupId ...]``                             |

`CLIENT_SHAPES`, library by library; those of one kind mean the same. They were read in the libraries' own source
(kafka-clients 1.1 to 4.1, librdkafka 2.16, kafkajs 2.2, aiokafka 0.14, kafka-python 2.0 and 3.0, sarama 1.4x, franz-go
1.x) or recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

_NAME: Final = r".{1,300}?"
_LIST: Final = r".{0,4000}?"
_NUMBER: Final = r"-?\d{1,10}"
FIELDS: Final = {
    "group": ("group_id", _NAME),
    "member": ("member_id", _NAME),
    "instance": ("instance_id", _NAME),
    "client": ("client_id", _NAME),
    "host": ("client_host", _NAME),
    "generation": ("generation_id", _NUMBER),
    "state": ("state", r"\w{1,40}"),
    "reason": ("reason", _LIST),
    "members": ("members", _NUMBER),
    "assignor": ("assignor", r"[^,'\s]{0,100}"),
    "other": ("other_id", _NAME),
    "timeout": ("timeout_ms", _NUMBER),
    "took": ("took_ms", _NUMBER),
    "broker": ("coordinator", r"\d{1,10}"),
    "any": (None, _NAME),
    "list": (None, _LIST),
}
"""Fields of a template: the column that each fills (None: read and dropped), and its regular expression."""

_TOKEN: Final = re.compile(r"<(\w+)>|(\[\[)|(\]\])|(\{)|(\})|(\|)")
_TRIES: Final = 4


@dataclass(frozen=True)
class Shape:
    """A line that a program writes; its template is compiled when it is first searched for.

    :ivar kind: what it says, a name in `kcoord_wire.forensics.lines.meanings`
    :ivar template: its text
    :ivar programs: that write it; the first counts where the line does not show which
    """

    kind: str
    template: str
    programs: Sequence[str]

    def __post_init__(self) -> None:
        if _TOKEN.match(self.template):
            raise ValueError(f"a template begins with text, not with a field or a choice: {self.template}")

    @cached_property
    def literal(self) -> str:
        """The longest text that every match holds."""
        return max(self._compiled[1], key=len)

    @cached_property
    def _compiled(self) -> tuple[str, list[str], str]:
        return _compiled(self.template)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self._compiled[0], re.DOTALL)

    def match(self, text: str) -> re.Match[str] | None:
        """Return where the template matches in a line, or None."""
        if self.literal not in text:
            return None
        at, first, pattern = -1, self._compiled[2], self._pattern
        for _ in range(_TRIES):
            at = text.find(first, at + 1)
            if at < 0:
                return None
            if found := pattern.match(text, at):
                return found
        return None


def _compiled(template: str) -> tuple[str, list[str], str]:
    """Return the regular expression of a template, the literals that every match holds, and its first literal."""
    source: list[str] = []
    literals: list[str] = []
    depth = start = 0
    for token in _TOKEN.finditer(template):
        text = template[start : token.start()]
        source.append(re.escape(text))
        if depth == 0 and text:
            literals.append(text)
        start = token.end()
        name, opened, closed, choice, chosen, _ = token.groups()
        depth += bool(opened or choice) - bool(closed or chosen)
        if name:
            source.append(f"(?P<{name}>{FIELDS[name][1]})" if FIELDS[name][0] else f"(?:{FIELDS[name][1]})")
        else:
            source.append("(?:" if opened or choice else ")?" if closed else ")" if chosen else "|")
    rest = template[start:]
    source.append(re.escape(rest) if rest else r"\.?\s*$")
    literals += [rest] if rest else []
    return "".join(source), literals, literals[0]


_BROKER: Final = ("broker",)
_TABLE: Final = (
    # ---- a classic group, all releases
    (
        "preparing",
        "Preparing to {rebalance|restabilize} group <group>[[ in state <state>]] with old generation <generation>"
        "[[ (__consumer_offsets-<any>)]][[ (reason: <reason>)]]",
    ),
    (
        "stabilized",
        "Stabilized group <group> generation <generation>[[ (__consumer_offsets-<any>)]][[ with <members> members]]",
    ),
    (
        "assigned_by_leader",
        "Assignment received from leader [[<member> ]]for group <group> for generation <generation>"
        "[[. The group has <members> members, <any> of which are static]]",
    ),
    ("empty", "Group <group> with generation <generation> is now empty[[ (__consumer_offsets-<any>)]]"),
    ("failed", "Member <member> in group <group> has failed, removing it from the group"),
    (
        "left",
        "Member MemberMetadata(memberId=<member>, groupInstanceId={None|Some(<instance>)}, clientId=<client>, "
        "clientHost=/<host>, sessionTimeoutMs=<timeout>, <any>) has left group <group> through explicit `LeaveGroup`"
        "[[; client reason: <reason>]]",
    ),
    (
        "left",
        "[Group <group>] [[{Dynamic|Static} ]]Member <member> [[with instance id <instance> ]]has left group through "
        "explicit `LeaveGroup` request[[; client reason: <reason>]]",
    ),
    (
        "left",
        "Member[group.instance.id {None|Some(<instance>)}, member.id <member>] in group <group> has left, "
        "removing it from the group",
    ),
    ("left", "Member <member> in group <group> has left, removing it from the group"),
    ("pending_left", "Pending member <member> is leaving group <group>"),
    (
        "pending_left",
        "Pending member with memberId=<member> has left group <group> through explicit `LeaveGroup`<list>",
    ),
    ("pending_left", "[Group <group>] Pending member <member> has left group through explicit `LeaveGroup`<list>"),
    ("pending_expired", "Pending member <member> in group <group> has been removed after session timeout expiration"),
    (
        "id_given",
        "Dynamic {m|M}ember with unknown member id joins group <group> in {<state> state|state <any>}. "
        "Created a new member id <member> {and|for this}<list>",
    ),
    ("pending_joined", "Pending dynamic member with id <member> joins group <group> in <state> state<list>"),
    (
        "static_replaced",
        "Static member with groupInstanceId=<instance> and unknown member id joins group <group> in <state> state. "
        "Replacing previously mapped member <other> with this groupInstanceId",
    ),
    (
        "static_replaced",
        "Static member <instance> of group <group> with unknown member id rejoins, assigning new member id <member>, "
        "while old member id <other> will be removed",
    ),
    (
        "static_joined",
        "Static member with groupInstanceId=<instance> and unknown member id joins group <group> in <state> state. "
        "Created a new member id <member> {and|for this}<list>",
    ),
    ("static_joined", "Adding new static member <instance> to group <group> with member id <member>"),
    ("removed_late", "Group <group> remove[[d]] {dynamic |}members who haven't joined: <reason>"),
    ("none_rejoined", "Group <group> could not complete rebalance because no members rejoined"),
    ("dead", "Group <group> transitioned to Dead in generation <generation>"),
    ("assignments_missing", "Setting empty assignments for members <reason> of <group> for generation <generation>"),
    ("write_failed", "Failed to write empty metadata for group <group>: <reason>"),
    # ---- static members that are refused
    (
        "broker_fenced",
        "Request memberId=<member> for static member with groupInstanceId=<instance> is fenced by "
        "{current|existing} memberId=<other> during operation <reason>",
    ),
    (
        "broker_fenced",
        "[GroupId <group>] Static member <member> with instance id <instance> is fenced by existing member <other>",
    ),
    (
        "instance_taken",
        "[GroupId <group>] Static member <member> with instance id <instance> cannot join the group because the "
        "instance id is[[ is]] owned by member <other>",
    ),
    # ---- the coordinator moves
    ("loaded", "Loading group metadata for <group> with generation <generation>"),
    ("loaded", "Loaded {classic|consumer} group <group> with <members> members"),
    ("unloaded", "Unloading group metadata for <group> with generation <generation>"),
    ("unloaded", "[GroupId=<group>] {Unloading|Unloaded} group metadata for {generation|group epoch} <generation>"),
    ("elected", "Elected as the group coordinator for partition <reason> in epoch <any>"),
    ("resigned", "Resigned as the group coordinator for partition <reason> in epoch <any>"),
    # CoordinatorRuntime, GroupMetadataManager.scala
    (
        "loading_done",
        "Finished loading of metadata from __consumer_offsets-<any> with epoch <any> in <took>ms where <list>",
    ),
    ("loading_done", "Finished loading offsets and group metadata from <any> in <took> milliseconds<list>"),
    ("loading_failed", "Failed to load metadata from __consumer_offsets<any> with epoch <any> due to <reason>"),
    ("loading_failed", "Error loading offsets from __consumer_offsets<reason>"),
    ("groups_deleted", "The following groups were deleted: <reason>. A total of <any> offsets were removed"),
    # ---- a group of KIP-848
    ("epoch_joined", "[GroupId <group>] Member <member> joins the consumer group using the <any> protocol"),
    (
        "epoch_joined",
        "[GroupId <group>] Static member <member> with instance id <instance> joins the consumer group using the <any> "
        "protocol",
    ),
    (
        "epoch_replaced",
        "[GroupId <group>] Static member with instance id <instance> re-joins the consumer group using the <any> "
        "protocol. Created a new member <member> to replace the existing member <other>",
    ),
    ("epoch_left", "[GroupId <group>] Member <member> left the consumer group"),
    (
        "epoch_left",
        "[GroupId <group>] Static {m|M}ember <member> with instance id <instance> [[temporarily ]]left the consumer "
        "group",
    ),
    (
        "epoch_left",
        "[GroupId <group>] {Dynamic|Static} member <member> [[with instance id <instance> ]]has left group through "
        "explicit `LeaveGroup` request[[; client reason: <reason>]]",
    ),
    ("epoch_fenced", "[GroupId <group>] Member <member> fenced from the group because <reason>"),
    ("epoch_subscribed", "[GroupId <group>] Member <member> updated its subscribed {topics|regex} to: <reason>"),
    ("epoch_topics", "[GroupId <group>] Computed new subscription metadata: <reason>"),
    ("epoch_bumped", "[GroupId <group>] Bumped group epoch to <generation>[[ with metadata hash <any>]]"),
    (
        "epoch_target",
        "[GroupId <group>] Computed a new target assignment for epoch <generation> with '<assignor>' assignor in "
        "<took>ms<list>",
    ),
    (
        "epoch_state",
        "[GroupId <group>] Member <member> new assignment state: epoch=<generation>, previousEpoch=<any>, "
        "state=<state>, <list>",
    ),
    ("protocol_converted", "[GroupId <group>] Converted the {classic|consumer} group to a <reason>"),
    (
        "protocol_kept",
        "Cannot {up|down}grade {classic|consumer} group <group> to {consumer|classic} group because <reason>",
    ),
    ("offsets_expired", "[GroupId <group>] Expiring offsets of partitions (allOffsetsExpired=<any>): <reason>"),
    # ---- the broker itself, whatever the group: SharedServer, LogManager, LogDirFailureChannel, Partition, Selector
    ("broker_stopping", "[BrokerServer id=<broker>] shutting down"),
    ("broker_stopping", "[KafkaServer id=<broker>] shutting down"),
    ("broker_stopped", "[BrokerServer id=<broker>] shut down completed"),
    ("broker_stopped", "[KafkaServer id=<broker>] shut down completed"),
    ("broker_started", "[BrokerServer id=<broker>] Transition from STARTING to STARTED"),
    ("broker_started", "[KafkaServer id=<broker>] started"),
    ("coordinator_stopping", "[GroupCoordinator id=<broker>] Shutting down"),
    ("coordinator_stopping", "[GroupCoordinator <broker>]: Shutting down"),
    ("coordinator_started", "[GroupCoordinator id=<broker>] Startup complete"),
    ("coordinator_started", "[GroupCoordinator <broker>]: Startup complete"),
    ("broker_lost", "Fencing broker <broker> because its session has timed out"),
    ("dirs_failed", "Shutdown broker because {all log dirs in|none of the specified log dirs from} <reason>"),
    ("dir_failed", "Stopping serving {logs|replicas} in dir <reason>"),
    ("disk_full", "No space left on device<list>"),
    ("disk_error", "Input/output error<list>"),
    (
        "disk_error",
        "Error while {writing to checkpoint file|appending records to|reading checkpoint file|flushing log for|"
        "deleting segments for|rolling log segment for} <reason>",
    ),
    (
        "too_few_replicas",
        "The size of the current ISR <any> is insufficient to satisfy the min.isr requirement of <any> for partition "
        "<reason>",
    ),
    (
        "replicas_lag",
        "[Partition __consumer_offsets-<any> broker=<broker>] Shrinking ISR from <reason>[[. Leader: <list>]]",
    ),
    ("out_of_memory", "java.lang.OutOfMemoryError[[: <reason>]]"),
    ("login_failed", "Failed authentication with /<host> (<any>) (<reason>)"),
    ("login_failed", "Failed authentication with <host> (<any>) (<reason>)"),
)

BROKER_SHAPES: Final = tuple(Shape(kind, template, _BROKER) for kind, template in _TABLE)
"""The lines of brokers, the commoner ones of one text first."""


_JAVA: Final = ("java",)
_RDKAFKA: Final = ("librdkafka",)
_KAFKAJS: Final = ("kafkajs",)
_PYTHON: Final = ("kafka-python", "aiokafka")
_AIOKAFKA: Final = ("aiokafka", "kafka-python")
_SARAMA: Final = ("sarama",)
_FRANZ: Final = ("franz-go",)
_JAVA_GENERATION: Final = "Generation{generationId=<generation>, memberId='<member>', protocol='<assignor>'}"


def _braces(template: str) -> str:
    """Return a template in which the braces of a Java object stand for themselves."""
    return template.replace(
        _JAVA_GENERATION, "Generation<any>=<generation>, memberId='<member>', protocol='<assignor>'"
    )


_CLIENT_TABLE: Final = (
    # ---- it joins
    ("rejoin_requested", "Request joining group due to: <reason>", _JAVA),
    ("joining", "(Re-)joining group <group>", _PYTHON),
    ("joining", "(Re-)joining group", _JAVA),
    ("joining", 'Joining group "<group>" with <any> subscribed topic(s) and member id "[[<member>]]"', _RDKAFKA),
    ("joining", "[Consumer] Starting", _KAFKAJS),
    ("joined", f"Successfully joined group with generation {_JAVA_GENERATION}", _JAVA),
    ("joined", "Successfully joined group with generation <generation>", _JAVA),
    (
        "joined",
        "Successfully joined group <group> <Generation <generation> (member_id: <member>, protocol: <assignor>)>",
        _PYTHON,
    ),
    ("joined", "Successfully joined group <group> with generation <generation>", _PYTHON),
    ("joined", "Joined group '<group>' (generation <generation>) with member_id <member>", _AIOKAFKA),
    (
        "joined",
        "JoinGroup response: GenerationId <generation>, Protocol <assignor>, LeaderId <other>[[ (me)]], "
        "my MemberId <member>, member metadata count <any>: (no error)",
        _RDKAFKA,
    ),
    ("joined", "Consumer has joined the group", _KAFKAJS),
    ("synced", f"Successfully synced group in generation {_JAVA_GENERATION}", _JAVA),
    ("synced", "Successfully synced group <group> with generation <generation>", _AIOKAFKA),
    ("synced", "SyncGroup response: Success<list>", _RDKAFKA),
    ("epoch_transition", "Member <member> with epoch <generation> transitioned from <any> to <state>", _JAVA),
    ("assigned", "newly assigned partitions <reason> for group <group>", _PYTHON),
    ("assigned", "newly assigned partitions[[:]] <reason>", _JAVA),
    # ---- others join, or it has to join again
    ("heartbeat_rebalancing", "Attempt to heartbeat failed since group is rebalancing", _JAVA),
    ("heartbeat_rebalancing", "Heartbeat failed for group <group>[[:]] {because |}it is rebalancing", _AIOKAFKA),
    ("heartbeat_rebalancing", "Group <group> is rebalancing; rejoining", _PYTHON),
    ("heartbeat_rebalancing", "The group is rebalancing, re-joining", _KAFKAJS),
    (
        "heartbeat_rebalancing",
        'Group "<group>" heartbeat error response in state <any>: Broker: Group rebalance in progress',
        _RDKAFKA,
    ),
    ("heartbeat_rebalancing", "The group is rebalancing, so a rejoin is needed", _KAFKAJS),
    ("heartbeat_rebalancing", "heartbeat errored<list>REBALANCE_IN_PROGRESS<list>", _FRANZ),
    ("lost", "Lost previously assigned partitions <reason>", _JAVA),
    ("revoked", "previously assigned partitions <reason> for group <group>[[ on close]]", _PYTHON),
    ("revoked", "previously assigned partitions[[:]] <reason>", _JAVA),
    ("lost", "Giving away all assigned partitions as lost since generation/memberID has been reset<list>", _JAVA),
    ("lost", "Group <group> lost membership; forcibly revoking <reason>", _PYTHON),
    ("lost", 'Group "<group>": current assignment of <any> partition(s) lost: <reason>', _RDKAFKA),
    # ---- it leaves
    (
        "leaving",
        "Member <member> sending LeaveGroup request to coordinator <any>[[ due to <reason>]]",
        _JAVA,
    ),
    ("leaving", "Leaving consumer group <group> (member <member>)", _PYTHON),
    ("leaving", "LeaveGroup request for group <group> returned successfully", _PYTHON),
    ("leaving", "LeaveGroup request succeeded", _AIOKAFKA),
    ("leaving", 'Group "<group>": leave (in state <any>)', _RDKAFKA),
    ("leaving", "[Consumer] Stopped", _KAFKAJS),
    ("poll_timeout", "onsumer poll timeout has expired<list>", ("java", "kafka-python")),
    ("poll_timeout", "Application maximum poll interval (<timeout>ms) exceeded by <took>ms<list>", _RDKAFKA),
    (
        "poll_timeout",
        "Time between subsequent calls to poll() was longer than the configured max.poll.interval.ms, exceeded "
        "approximately by <took> ms<list>",
        _JAVA,
    ),
    # ---- commits
    (
        "commit_refused",
        "Offset commit cannot be completed since the consumer is not part of an active group<list>",
        _JAVA,
    ),
    ("commit_refused", "ommit cannot be completed since the group has already<list>", ("java", "aiokafka")),
    ("commit_refused", "Failing OffsetCommit request since the consumer is not part of an active group", _JAVA),
    (
        "commit_rebalancing",
        "Offset commit cannot be completed since the consumer is undergoing a rebalance for auto partition "
        "assignment<list>",
        _JAVA,
    ),
    ("commit_refused", "OffsetCommit failed with <list>UNKNOWN_MEMBER_ID<list>", _JAVA),
    ("commit_refused", "OffsetCommit failed for group <group> due to group error (<reason>)<list>", _AIOKAFKA),
    ("commit_refused", "OffsetCommit for group <group> failed: <reason>", _PYTHON),
    ("commit_failed", "Offset commit failed on partition <any> at offset <any>: <reason>", _JAVA),
    ("commit_failed", "ynchronous auto-commit of offsets <list>failed: <reason>", _JAVA),
    ("commit_refused", "CommitFailedException<list>", _JAVA),
    ("commit_refused", "CommitFailedError<list>", _PYTHON),
    ("commit_rebalancing", "RebalanceInProgressException<list>", _JAVA),
    # ---- the coordinator does not know it any more
    ("session_lost", "Consumer group session timed out (in join-state <state>) after <took> ms<list>", _RDKAFKA),
    ("session_lost", "Heartbeat session expired<list>", _AIOKAFKA),
    ("session_lost", "session timed out without receiving a heartbeat response<list>", _JAVA),
    ("unknown_member", "Attempt to heartbeat with <list> failed due to UNKNOWN_MEMBER_ID, resetting generation", _JAVA),
    ("unknown_member", "Attempt to heartbeat failed for since member id <member> is not valid", _JAVA),
    ("unknown_member", "The coordinator is not aware of this member<list>", _KAFKAJS),
    ("unknown_member", "local member_id was not recognized<list>", _AIOKAFKA),
    ("unknown_member", "Broker: Unknown member<list>", _RDKAFKA),
    ("stale_generation", "Attempt to heartbeat with <list> failed due to ILLEGAL_GENERATION<list>", _JAVA),
    ("stale_generation", "Attempt to heartbeat failed since generation <generation> is not current", _JAVA),
    ("stale_generation", "Heartbeat failed for group <group>: generation id is not <list>", _AIOKAFKA),
    ("stale_generation", "Specified group generation id is not valid<list>", ("librdkafka", "kafkajs", "java")),
    # ---- refusals
    ("fenced", "The group instance id <instance> has been fenced by another instance<list>", _JAVA),
    ("fenced", "Caught fenced group.instance.id <instance> error in heartbeat thread", _JAVA),
    ("fenced", "heartbeat thread caught fenced group_instance_id <instance> error<list>", _PYTHON),
    ("fenced", "group.instance.id gets fenced<list>", _JAVA),
    ("fenced", "Static consumer fenced by other consumer with same group.instance.id<list>", _RDKAFKA),
    ("fenced", "another consumer with the same group instance id has registered with a different member id", _KAFKAJS),
    ("fenced", "FENCED_INSTANCE_ID<list>", ("librdkafka", "java", "franz-go", "sarama")),
    ("fenced", "FencedInstanceIdException<list>", _JAVA),
    ("unauthorized", "Not authorized to access group: <group>", _JAVA),
    ("unauthorized", "Broker: Group authorization failed<list>", _RDKAFKA),
    ("unauthorized", "GROUP_AUTHORIZATION_FAILED<list>", ("franz-go", "java", "librdkafka")),
    ("unauthorized", "GroupAuthorizationFailedError<list>", _PYTHON),
    ("unauthorized", "GroupAuthorizationException<list>", _JAVA),
    (
        "instance_taken",
        "The instance ID is still used by another member in the consumer group<list>",
        ("java", "kafkajs"),
    ),
    ("instance_taken", "Broker: The instance ID is still used by another member in the consumer group<list>", _RDKAFKA),
    ("topic_unauthorized", "Topic authorization failed for topics <reason>", _JAVA),
    ("topic_unauthorized", "Not authorized to access topics: <reason>", ("java", "kafkajs")),
    ("topic_unauthorized", "TopicAuthorizationFailedError[[: <reason>]]", _PYTHON),
    ("topic_unauthorized", "TOPIC_AUTHORIZATION_FAILED<list>", ("franz-go", "java", "librdkafka")),
    ("topic_unauthorized", "Broker: Topic authorization failed<list>", _RDKAFKA),
    ("topic_unauthorized", "kafka server: The client is not authorized to access this topic<list>", _SARAMA),
    ("group_full", "The consumer group has reached its max size<list>", ("java", "kafkajs", "kafka-python")),
    ("group_full", "Broker: Consumer group has reached maximum size<list>", _RDKAFKA),
    ("group_full", "onsumer group <group> already has the configured maximum number of members", _JAVA),
    ("assignor_mismatch", "InconsistentGroupProtocolException<list>", _JAVA),
    ("assignor_mismatch", "supported protocols are incompatible with those of existing members<list>", _KAFKAJS),
    ("assignor_mismatch", "Broker: Inconsistent group protocol<list>", _RDKAFKA),
    # ---- the coordinator
    (
        "coordinator_lost",
        "Group coordinator <any> is unavailable or invalid[[ due to cause: <reason>]]{, will attempt rediscovery|. "
        "isDisconnected: <list>}",
        _JAVA,
    ),
    ("coordinator_lost", "Marking the coordinator dead (node <any>)[[ ]]for group <group>", _PYTHON),
    ("coordinator_moved", "This is not the correct coordinator<list>", ("java", "kafkajs")),
    ("coordinator_moved", "Broker: Not coordinator<list>", _RDKAFKA),
    ("coordinator_loading", "The coordinator is loading and hence can't process requests<list>", ("java", "kafkajs")),
    ("coordinator_loading", "JoinGroup failed: Coordinator <any> is loading the group", _JAVA),
    ("coordinator_loading", "Broker: Coordinator load in progress<list>", _RDKAFKA),
    ("coordinator_found", "Discovered group coordinator <reason>", _JAVA),
    ("coordinator_found", "Discovered coordinator <reason> for group <group>", _PYTHON),
    ("coordinator_found", 'Group "<group>" coordinator is <reason>', _RDKAFKA),
    # ---- it does not reach a broker, or is not let in
    (
        "login_refused",
        "Connection to node <any> (<any>) failed authentication due to: <reason>",
        _JAVA,
    ),
    ("login_refused", "Connection to node <any> (<any>) terminated during authentication<list>", _JAVA),
    ("tls_failed", "SSL handshake failed[[: <reason>]]", (*_RDKAFKA, "java")),
    ("tls_failed", "SslAuthenticationException<list>", _JAVA),
    ("tls_failed", "PKIX path building failed<list>", _JAVA),
    ("tls_failed", "unable to find valid certification path<list>", _JAVA),
    ("tls_failed", "certificate verify failed<list>", _PYTHON),
    ("tls_failed", "x509: certificate<list>", (*_SARAMA, "franz-go")),
    ("tls_failed", "x509: <any> certificate<list>", (*_SARAMA, "franz-go")),
    ("tls_failed", "self-signed certificate<list>", _KAFKAJS),
    ("tls_failed", "self signed certificate<list>", _KAFKAJS),
    ("tls_failed", "certificate has expired<list>", _KAFKAJS),
    ("login_refused", "SASL authentication error: <reason>", _RDKAFKA),
    ("login_refused", "SASL <any> authentication failed<list>", _KAFKAJS),
    ("login_refused", "kafka server: SASL Authentication failed<list>", _SARAMA),
    (
        "unreachable",
        "Connection to node <any> (<reason>) could not be established. Node may not be available<list>",
        _JAVA,
    ),
    ("unreachable", "Connect to <reason> failed: <list>", _RDKAFKA),
    ("unreachable", "Connection error: connect <reason>", _KAFKAJS),
    ("all_down", "brokers are down", _RDKAFKA),
    ("all_down", "kafka: client has run out of available brokers to talk to<list>", _SARAMA),
    ("all_down", "NoBrokersAvailable<list>", _PYTHON),
    ("all_down", "KafkaConnectionError: Unable to bootstrap from <reason>", _AIOKAFKA),
    ("unreachable", "Failed to connect to broker <reason>", _SARAMA),
    ("unreachable", "Unable connect to node with id <any>: <reason>", _AIOKAFKA),
    ("unreachable", "unable to open connection to broker<reason>", _FRANZ),
    ("unanswered", "consumer/broker/<any> disconnecting due to error processing FetchRequest: <reason>", _SARAMA),
    ("unanswered", "Disconnecting from node <reason> due to {socket connection setup|request} timeout<list>", _JAVA),
    ("unanswered", "request(s) timed out: disconnect <reason>", _RDKAFKA),
    ("unanswered", "Request <reason>(key: <any>, version: <any>) timed out<list>", _KAFKAJS),
    # ---- its application, or its thread, does not get on
    (
        "unreadable",
        "Error deserializing <any> for partition <reason>. If needed, please seek past the record<list>",
        ("java", "kafka-python"),
    ),
    (
        "unreadable",
        "Received exception when fetching the next record from <reason>. If needed, please seek past the record<list>",
        ("java", "kafka-python"),
    ),
    ("response_too_large", "Invalid response size <took> (0..<any>): increase <list>", _RDKAFKA),
    ("response_too_large", "whose size is larger than the fetch size<list>", ("java", "kafka-python")),
    ("response_too_large", "kafka: error decoding packet: message of length <took> too large or too small", _SARAMA),
    ("crashed", "Encountered the following exception during processing <list>", _JAVA),
    ("crashed", "Crash: <reason>", _KAFKAJS),
    ("handler_failed", "Error when calling {eachMessage|eachBatch}<list>", _KAFKAJS),
    ("missed_rebalance", "This implies that this thread missed a rebalance and dropped out of the <list>", _JAVA),
    (
        "slow_handler",
        "consumer/broker/<broker> abandoned subscription to <reason> because consuming was taking too long",
        _SARAMA,
    ),
    ("slow_stop", "Graceful stop of task <reason> failed", _JAVA),
    (
        "delayed_assignment",
        "Joined group at generation <generation> with protocol version <any> and got assignment: <list> with rebalance "
        "delay: <took>",
        _JAVA,
    ),
    ("commit_failed", "Commit of offsets timed out<list>", _JAVA),
    ("poll_timeout", "worker poll timeout has expired<list>", _JAVA),
    # ---- where it reads on
    ("offset_reset", "Resetting offset for partition <any> to position<list>", _JAVA),
    ("out_of_range", "Offset out of range<list>", ("kafkajs", "librdkafka", "java")),
    ("out_of_range", "OffsetOutOfRangeException<list>", _JAVA),
    ("out_of_range", "is out of range for partition <reason>", ("java", "kafka-python")),
    # ---- sarama, and franz-go with its own logger or slog
    ("joining", "client/coordinator requesting coordinator for consumergroup <group> from <any>", _SARAMA),
    ("coordinator_found", "client/coordinator coordinator for consumergroup <group> is <reason>", _SARAMA),
    ("session_ended", "consumergroup/session/<member>/<generation> {heartbeat loop stopped|released}", _SARAMA),
    (
        "rejoin_requested",
        "consumergroup/<group> loop check partition number goroutine find <reason>",
        _SARAMA,
    ),
    ("unknown_member", "kafka server: The provided member is not known in the current generation<list>", _SARAMA),
    ("stale_generation", "kafka server: The provided generation id is not the current generation<list>", _SARAMA),
    ("heartbeat_rebalancing", "kafka server: A rebalance for the group is in progress<list>", _SARAMA),
    (
        "coordinator_moved",
        "kafka server: Request was for a consumer group that is not coordinated by this broker<list>",
        _SARAMA,
    ),
    ("coordinator_loading", "kafka server: The coordinator is still loading offsets<list>", _SARAMA),
    ("unauthorized", "kafka server: The client is not authorized to access this group<list>", _SARAMA),
    ("fenced", "kafka server: The broker rejected this static consumer since another consumer<list>", _SARAMA),
    ("assignor_mismatch", "kafka server: The provider group protocol type is incompatible<list>", _SARAMA),
    ("group_full", "already has the configured maximum number of members<list>", _SARAMA),
    ("out_of_range", "kafka server: The requested offset is outside the range<list>", _SARAMA),
    ("join_failed", 'join and sync loop errored{; group: |" group=}<group>{, err: | err=}<reason>', _FRANZ),
    ("joining", 'joining group{; group: |" group=}<group>', _FRANZ),
    (
        "joined",
        'joined{, balancing group|}{; group: |" group=}<group>{, member_id: | member_id=}<member>'
        "{, instance_id: | instance_id=}<any>{, generation: | generation=}<generation>{,| }<list>",
        _FRANZ,
    ),
    ("synced", 'synced{; group: |" group=}<group>{, assigned: | assigned=}<reason>', _FRANZ),
    ("leaving", 'leaving group{; group: |" group=}<group>{, member_id: | member_id=}<member>{,| }<list>', _FRANZ),
)

CLIENT_SHAPES: Final = tuple(Shape(kind, _braces(template), programs) for kind, template, programs in _CLIENT_TABLE)
"""The lines of clients; of two that a line has, the first counts."""
