"""The lines of brokers about groups, release by release; each was read in the source at the tag named, or recorded.

| releases          | where                                                                            |
|-------------------|----------------------------------------------------------------------------------|
| 0.10, 0.11 to 2.2 | GroupCoordinator.scala at 0.10.2.2 and 1.1.1: a rebalance has no reason          |
| 2.3 to 3.9        | GroupCoordinator.scala at 2.3.1, 2.8.2 and 3.6.1: ``(reason: ...)``              |
| 4.x, and 3.9 with | GroupMetadataManager.java: the new coordinator, for classic groups and for those |
| group.version=1   | of KIP-848, whose lines begin with ``[GroupId ...]``                             |
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.forensics.lines.shapes import Shape

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
)

BROKER_SHAPES: Final = tuple(Shape(kind, template, _BROKER) for kind, template in _TABLE)
"""The lines of brokers, the commoner ones of one text first."""
