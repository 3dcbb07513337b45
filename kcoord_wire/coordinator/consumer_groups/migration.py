"""Conversions of a group between the classic protocol and KIP-848's, while its members go on.

Laws:

* A group is converted in one append: what removes it in the one form, then the whole of it in the other. Committed
  offsets stay.
* A group without members is converted whatever the policy says.

Source: KIP-848 "Migration Plan"; Kafka's `ConsumerGroup.java` (fromClassicGroup), `ClassicGroup.java`
(fromConsumerGroup), `GroupMetadataManager.java`.
"""

from __future__ import annotations

from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Refused
from kcoord_wire.coordinator.consumer_groups.progress import Progress, Records
from kcoord_wire.coordinator.core.groups import AnyGroup
from kcoord_wire.error_codes import ErrorCode

__all__ = ["Migration"]


class Migration:
    """Converts groups."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._shared = progress.shared

    def upgraded(self, group: AnyGroup) -> ConsumerGroup:
        """Return what a classic group becomes when a member of KIP-848 joins it; the group itself is not changed.

        :raises Refused: GROUP_ID_NOT_FOUND: the policy does not allow it, or the group is not one of consumers
        """
        if not group.is_empty:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")
        return ConsumerGroup(group.group_id, self._shared.effects.now)

    def install(self, classic: AnyGroup, group: ConsumerGroup) -> Records:
        """Put the upgraded group in the place of the classic one, and return the records of that."""
        group.offsets = classic.offsets
        group.written = classic.written
        classic.end(self._shared.effects.now)
        return classic.tombstones()
