"""The colour of each cause, and a sentence about it.

Laws:

* A colour is never the only sign of a cause: in charts each has its own row, in tables its name.
* Every colour has a contrast of at least 3:1 against the page, light and dark. Families share a hue: faults of clients
  are orange to red, joins and departures blue, changes green and brown, the coordinator violet, consequences grey.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.forensics.model import Cause

OTHER: Final = "#7d8590"  # a cause without an entry

COLOURS: Final = {
    Cause.POLL_TIMEOUT: "#d55e00",
    Cause.SESSION_EXPIRED: "#d1495b",
    Cause.SYNC_EXPIRED: "#b5526e",
    Cause.REBALANCE_TIMEOUT: "#c0392b",
    Cause.GROUP_TOO_LARGE: "#a8552b",
    Cause.REFUSED: "#b3446c",
    Cause.COORDINATOR_FAILOVER: "#8f5fd0",
    Cause.OUTAGE: "#a044b8",
    Cause.NEW_MEMBER: "#2a7fc1",
    Cause.MEMBER_LEFT: "#3f8f9f",
    Cause.STATIC_REPLACED: "#5b7bd5",
    Cause.TOPICS_CHANGED: "#2f8f5b",
    Cause.SUBSCRIPTION_CHANGED: "#6b8e23",
    Cause.ASSIGNORS_CHANGED: "#9a7b00",
    Cause.LEADER_REJOINED: "#b07d2b",
    Cause.COOPERATIVE_FOLLOW_UP: "#7d8590",
    Cause.UNKNOWN: "#6e7781",
}

ABOUT: Final = {
    Cause.POLL_TIMEOUT: "The application took longer between two polls than max.poll.interval.ms; its client left.",
    Cause.SESSION_EXPIRED: "No heartbeat within session.timeout.ms: the process died, hung, or lost its network.",
    Cause.SYNC_EXPIRED: "A member joined but did not request its assignment in time, and was removed.",
    Cause.REBALANCE_TIMEOUT: "A member that had missed an earlier join came back, or a coordinator tries again.",
    Cause.GROUP_TOO_LARGE: "The group has more members than group.max.size allows.",
    Cause.REFUSED: "The broker refused a member's requests, as for want of an ACL, until its session was over.",
    Cause.COORDINATOR_FAILOVER: "The group moved to another broker, or its broker restarted; its members joined anew.",
    Cause.OUTAGE: "No coordinator answered the members for a time: the broker or the network, not a client.",
    Cause.NEW_MEMBER: "A consumer started, or came back with a new member id.",
    Cause.MEMBER_LEFT: "A consumer was closed normally.",
    Cause.STATIC_REPLACED: "A new process joined with the group.instance.id of a member.",
    Cause.TOPICS_CHANGED: "Topics or partitions were created or deleted; the leader requested a new assignment.",
    Cause.SUBSCRIPTION_CHANGED: "A member subscribed to other topics.",
    Cause.ASSIGNORS_CHANGED: "A member offered other assignors than before.",
    Cause.LEADER_REJOINED: "The leader joined again, which starts a rebalance by itself.",
    Cause.COOPERATIVE_FOLLOW_UP: "The second round of a cooperative rebalance assigns what the first one revoked.",
    Cause.UNKNOWN: "The source does not show it.",
}
