"""The lines of clients about groups, library by library; those of one kind mean the same.

Read in the libraries' own source (kafka-clients 1.1 to 4.1, librdkafka 2.16, kafkajs 2.2, aiokafka 0.14, kafka-python
2.0 and 3.0, sarama 1.4x, franz-go 1.x) or recorded.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.forensics.lines.shapes import Shape

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


_TABLE: Final = (
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
    # ---- where it reads on
    ("offset_reset", "Resetting offset for partition <any> to position<list>", _JAVA),
    ("offset_reset", "Offset out of range<list>", ("kafkajs", "librdkafka", "java")),
    # ---- sarama, and franz-go with its own logger or slog
    ("joining", "client/coordinator requesting coordinator for consumergroup <group> from <any>", _SARAMA),
    ("coordinator_found", "client/coordinator coordinator for consumergroup <group> is <reason>", _SARAMA),
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

CLIENT_SHAPES: Final = tuple(Shape(kind, _braces(template), programs) for kind, template, programs in _TABLE)
"""The lines of clients; of two that a line has, the first counts."""
