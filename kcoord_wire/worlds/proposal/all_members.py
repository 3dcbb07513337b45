"""The proposal's first generation: JoinGroup returns the metadata of all members, and each computes its own assignment.

With a hash instead of the topic list (`SubscriptionHashMember`), the largest sub-group of equal subscriptions shares
the partitions. The others own nothing and wait for the next rebalance, so that a rolling change of the subscription
halves the group's capacity for a time.

Laws:

* The coordinator chooses a protocol, with its version, that all members support: the one that most of them list first
  among those; the first in order if several are listed equally often.
* A member takes partitions only if every member has sent the hash that it computes itself for that member's
  subscription. So all that take partitions have computed from the same partition counts. With subscription hashes, only
  if the metadata hashes of its sub-group are equal.
* Of several sub-groups that are as large, the one with the lowest hash assigns: the proposal asks for a tie-breaker and
  names none.
* An assignment that gives a partition to two members, or one that does not exist, is an error for the application.
* Members that disagree fetch metadata and join again, after a delay that doubles. After `max_disagreements` generations
  in a row they fail with an error instead of rebalancing for ever.

The proposal does not say how members with unlike subscriptions compare hashes "over the full list of topics in the
subscription set": here a member hashes the topics of the other's subscription as it sees them itself.

Source: "Kafka Client-side Assignment Proposal", the earlier "Protocol", "Consumer Embedded Protocol", "Rolling Upgrades
(Consumer)", "Reducing the Join Payload" and "Dropping Topic Lists".
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kcoord_wire.assignors import NO_RACKS, Assignment, MemberSubscription, Racks, TopicPartition
from kcoord_wire.messages.proposal import (
    AllMembersJoinGroupRequest,
    AllMembersJoinGroupRequestGroupProtocol,
    AllMembersJoinGroupResponse,
    AllMembersJoinGroupResponseMember,
    ProposalConsumerSubscription,
    ProposalSubscriptionHash,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal.member import ProposalMember
from kcoord_wire.worlds.proposal.proposal_coordinator import (
    Codec,
    Coordinator,
    Join,
    MemberSettings,
    Phase,
    Strategy,
    Subscription,
)

Offer = Mapping[tuple[str, int], bytes]
"""Protocol and version to metadata, the preferred protocol first."""


def choose_protocol(offers: Sequence[Offer]) -> tuple[str, int] | None:
    """Return the protocol and version for a group with these offers; None if its members have none in common."""
    if not (common := common_of(offers)):
        return None
    votes = Counter(next(each for each in offer if each in common) for offer in offers)
    return min(votes, key=lambda each: (-votes[each], each))


def common_of(offers: Sequence[Offer]) -> set[tuple[str, int]]:
    """Return the protocols that all of these have."""
    return set(offers[0]).intersection(*offers[1:])


def topics_of(subscription: Subscription, counts: Mapping[str, int]) -> Sequence[str]:
    """Return the topics that a subscription comes to, of those that there are.

    :raises ValueError: the pattern is not a regular expression
    """
    if subscription.pattern is None:
        return [topic for topic in subscription.topics if topic in counts]
    try:
        pattern = re.compile(subscription.pattern)
    except re.error as error:
        raise ValueError(f"{subscription.pattern!r} is not a regular expression: {error}") from None
    return [topic for topic in counts if pattern.fullmatch(topic)]


def hash_topics(subscription: Subscription, counts: Mapping[str, int]) -> bytes:
    """Return the metadata hash: SHA-256 over the subscribed topics, with a pattern over all topics, and their counts.

    The proposal names no hash function.
    """
    topics = subscription.topics if subscription.pattern is None else counts
    text = "".join(f"{topic}\0{counts.get(topic, 0)}\n" for topic in sorted(topics))
    return hashlib.sha256(text.encode()).digest()


class AssignmentError(Exception):
    """An assignor has failed, or has returned what cannot be an assignment."""


def assign_checked(
    strategy: Strategy, counts: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks = NO_RACKS
) -> Assignment:
    """Return the assignment of a strategy.

    :raises AssignmentError: the strategy has raised an error; or it gives a partition to two members, or one that does
        not exist, or something to a member that is not in the group
    """
    try:
        assignment = strategy.assign(counts, members, racks) if racks else strategy.assign(counts, members)
        given = Counter(
            (topic, index) for share in assignment.values() for topic, indexes in share.items() for index in indexes
        )
    except Exception as error:  # an assignor is the user's code, and may raise anything
        raise AssignmentError(f"the assignor {strategy.name} has failed: {error!r}") from error
    for (topic, index), times in given.items():
        if times > 1 or not 0 <= index < counts.get(topic, 0):
            raise AssignmentError(f"the assignor {strategy.name} gives out {topic}-{index} {times} times")
    if not assignment.keys() <= members.keys():
        raise AssignmentError(f"the assignor {strategy.name} gives partitions to members that are not in the group")
    return assignment


class AllMembersCoordinator(Coordinator):
    """Chooses the protocol and hands the metadata of all members to each; decides nothing else."""

    _protocol: tuple[str, int] = ("", 0)

    def read(self, message: AllMembersJoinGroupRequest) -> Join:
        """Return what a JoinGroup asks for."""
        offer = {(each.protocol, each.protocol_version): each.protocol_metadata for each in message.group_protocols}
        return Join(message.member_id, message.session_timeout, message.protocol_type, offer)

    def refusal(self, error: ErrorCode) -> AllMembersJoinGroupResponse:
        """Return the response with an error."""
        return AllMembersJoinGroupResponse(error_code=error)

    def rejects(self, join: Join, others: list[Any]) -> bool:
        """Return whether the group would have no protocol in common."""
        return not common_of([join.offer, *others])

    def restored(self, decision: Any) -> Phase:
        """A generation is complete once it is saved."""
        self._protocol = decision
        return Phase.STABLE

    def formed(self) -> None:
        """Choose the protocol and answer all members."""
        protocol = choose_protocol([member.offer for member in self.members.values()])
        if protocol is None:
            raise AssertionError("a member without a common protocol was not rejected")
        self._protocol = protocol
        self.save(protocol)
        self.admit_all()

    def interrupted(self) -> None:
        """Nothing: a generation is complete as soon as it is formed."""

    def joined(self, member_id: str) -> AllMembersJoinGroupResponse:
        """Return the metadata of all members."""
        name, version = self._protocol
        return AllMembersJoinGroupResponse(
            group_generation_id=self.generation,
            group_protocol=name,
            group_protocol_version=version,
            member_id=member_id,
            members=[
                AllMembersJoinGroupResponseMember(member_id=other, protocol_metadata=member.offer[self._protocol])
                for other, member in self.members.items()
            ],
        )


class AllMembersMember(ProposalMember):
    """Sends its subscription with a hash of the metadata, and computes the assignment of the whole group.

    :param strategies: the preferred one first
    :ivar disagreements: how many generations in a row have failed because members saw different topic metadata
    :ivar protocol: name and version of the strategy of the present generation
    """

    def __init__(self, settings: MemberSettings, codec: Codec, strategies: Sequence[Strategy]) -> None:
        super().__init__(settings, codec)
        self.strategies = {(each.name, each.version): each for each in strategies}
        self.disagreements = 0
        self.protocol = ("", 0)
        self.offered = Subscription()  # with the last JoinGroup
        self.hashed: Mapping[str, int] = {}  # the counts that its hash covers
        self._sent = b""

    def metadata(self, subscription: Subscription) -> Any:
        """Return what the member sends with JoinGroup."""
        return ProposalConsumerSubscription(
            topics=list(subscription.topics),
            topic_pattern=subscription.pattern,
            metadata_hash=hash_topics(subscription, self.counts),
        )

    def join_request(self) -> AllMembersJoinGroupRequest:
        """Return the JoinGroup, with the same metadata for each protocol."""
        self.offered = self.subscription or Subscription()
        self.hashed = self.counts
        self._sent = self._encoded()
        return AllMembersJoinGroupRequest(
            group_id=self.settings.group_id,
            session_timeout=self.settings.session_timeout_ms,
            member_id=self.member_id,
            protocol_type="consumer",
            group_protocols=[
                AllMembersJoinGroupRequestGroupProtocol(
                    protocol=name, protocol_version=version, protocol_metadata=self._sent
                )
                for name, version in self.strategies
            ],
        )

    def _encoded(self) -> bytes:
        return self.codec.encode(self.metadata(self.subscription or Subscription()))

    def topics_changed(self) -> None:
        """Join again if the member would send something else than it has."""
        if self._encoded() != self._sent:
            self.rejoin()

    def joined(self, response: AllMembersJoinGroupResponse) -> None:
        """Take the member's share, or join again if the members disagree."""
        self.member_id = response.member_id
        self.protocol = (response.group_protocol, response.group_protocol_version)
        strategy = self.strategies[self.protocol]
        try:
            subscriptions = self.agreed(response, needs_agreement=strategy.needs_agreement)
        except ValueError as error:
            self.fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a member's metadata cannot be read: {error}")
            return
        if subscriptions is None:
            self._disagree(response)
            return
        self.disagreements = 0
        try:
            shares = assign_checked(strategy, self.hashed, subscriptions)
        except AssignmentError as error:
            self.fail(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
            return
        share = shares.get(self.member_id, {})
        owned = [TopicPartition(topic, index) for topic, indexes in share.items() for index in indexes]
        self.enter(response.group_generation_id, response.member_id, owned)

    def agreed(
        self, response: AllMembersJoinGroupResponse, *, needs_agreement: bool
    ) -> Mapping[str, MemberSubscription] | None:
        """Return who shares the partitions, with their subscriptions; None if they see different topic metadata.

        :raises ValueError: a member's metadata cannot be read
        """
        hashes: dict[tuple[tuple[str, ...], str | None], bytes] = {}
        subscriptions = {}
        for member in response.members:
            metadata = self.codec.decode(ProposalConsumerSubscription, member.protocol_metadata)
            key = (tuple(metadata.topics), metadata.topic_pattern)
            if needs_agreement and key not in hashes:
                hashes[key] = hash_topics(Subscription(*key), self.hashed)
            if needs_agreement and hashes[key] != metadata.metadata_hash:
                return None
            subscriptions[member.member_id] = MemberSubscription(topics_of(Subscription(*key), self.hashed))
        return subscriptions

    def _disagree(self, response: AllMembersJoinGroupResponse) -> None:
        self.disagreements += 1
        if self.disagreements > self.settings.max_disagreements:
            text = f"members have seen different topic metadata in {self.disagreements} generations in a row"
            self.fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
            return
        self.refetch()
        self.enter(response.group_generation_id, response.member_id, ())
        self.rejoin(self.settings.retry_ms << self.disagreements)


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
