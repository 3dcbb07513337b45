"""JoinGroup with a hash instead of the topic list: the largest sub-group of equal subscriptions shares the partitions.

The others own nothing and wait for the next rebalance, so that a rolling change of the subscription halves the group's
capacity for a time.

Laws:

* The sub-group with the most members assigns. Of several that are as large, the one with the lowest hash does: the
  proposal asks for a tie-breaker and names none.
* Members of that sub-group take partitions only if their metadata hashes are equal.

Source: "Kafka Client-side Assignment Proposal", "Reducing the Join Payload", "Dropping Topic Lists".
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kcoord_wire.assignors import MemberSubscription
from kcoord_wire.messages.proposal import AllMembersJoinGroupResponse, ProposalSubscriptionHash
from kcoord_wire.worlds.proposal.all_members import AllMembersMember, hash_topics, topics_of
from kcoord_wire.worlds.proposal.events import Subscription


def hash_subscription(subscription: Subscription) -> bytes:
    """Return the subscription hash: SHA-256 over the topic list and the pattern. The proposal names no function."""
    text = "\n".join([*sorted(subscription.topics), f"/{subscription.pattern}"])
    return hashlib.sha256(text.encode()).digest()


def largest(hashes: Iterable[bytes]) -> bytes:
    """Return the most common hash; of several, the lowest."""
    sizes = Counter(hashes)
    return min(sizes, key=lambda each: (-sizes[each], each))


class SubscriptionHashMember(AllMembersMember):
    """Knows of the others only whether they subscribe to the same. Its coordinator is that of all_members."""

    _is_dormant = False

    @property
    def is_dormant(self) -> bool:
        """Whether it is outside the largest sub-group."""
        return self._is_dormant

    def metadata(self, subscription: Subscription) -> Any:
        """Return the two hashes."""
        return ProposalSubscriptionHash(
            subscription_hash=hash_subscription(subscription), metadata_hash=hash_topics(subscription, self.counts)
        )

    def agreed(
        self, response: AllMembersJoinGroupResponse, *, needs_agreement: bool
    ) -> Mapping[str, MemberSubscription] | None:
        """Return the largest sub-group, with the subscription that this member has itself."""
        members = {
            member.member_id: self.codec.decode(ProposalSubscriptionHash, member.protocol_metadata)
            for member in response.members
        }
        mine = members[response.member_id]
        shared = largest(member.subscription_hash for member in members.values())
        self._is_dormant = mine.subscription_hash != shared
        if self._is_dormant:
            return {}
        group = {member_id: each for member_id, each in members.items() if each.subscription_hash == shared}
        if needs_agreement and any(each.metadata_hash != mine.metadata_hash for each in group.values()):
            return None
        return dict.fromkeys(group, MemberSubscription(topics_of(self.offered, self.hashed)))

    def topics_changed(self) -> None:
        """Join again if something has changed; while dormant, only if that is the subscription."""
        if not self._is_dormant or self.subscription != self.offered:
            super().topics_changed()
