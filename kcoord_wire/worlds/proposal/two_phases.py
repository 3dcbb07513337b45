"""The protocol that the proposal adopts, as the document draws it: JoinGroup collects, SyncGroup distributes.

    JoinGroup(metadata) -> the leader, and for the leader the metadata of all
    SyncGroup(the states of all, from the leader; nothing, from a follower) -> the member's state

Laws:

* The coordinator chooses the leader among the members, at random; here a hash of the generation chooses.
* The group waits for the leader's SyncGroup; what followers send before is parked, what they send later is answered at
  once. A session that ends meanwhile, the leader's too, ends the generation, and all join again.
* Only the leader of the present generation sets states, each of which is saved before it is sent.
* The leader's error ends the generation, and every member that syncs in it gets the error, for its application.
* Topic metadata that changes is the leader's matter: it assigns anew and sends SyncGroup, in the same generation
  (a resync). It waits `MemberSettings.batch_ms` from the first change on, so that one resync serves several changes.
* A resync moves partitions in a generation. So it is parked until every follower has given its partitions up and sent
  SyncGroup as well (`CoordinatorSettings.waits_in_resync`). A follower learns it from its heartbeat, by the error of a
  rebalance; the answer to SyncGroup says which of the two it is.
* Where racks matter the leader's view has the rack of each partition's leader, too, and a hash over it shows a change.

The drawing has no field for the leader's error: here it is an entry of GroupState whose member id is empty, with the
code as its state.

Source: "Kafka Client-side Assignment Proposal", "Phase 1: Joining the Group", "Phase 2: Synchronizing Group State",
"Coordinator State Machine", "Consumer Embedded Protocol", "Handling Coordinator Failures".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kcoord_wire.assignors import MemberSubscription, TopicPartition
from kcoord_wire.kernel.virtual.clock import NEVER
from kcoord_wire.messages.proposal import (
    ProposalConsumerMetadata,
    ProposalConsumerState,
    ProposalConsumerStateTopicPartition,
    ProposalJoinGroupRequest,
    ProposalJoinGroupRequestGroupProtocol,
    ProposalJoinGroupResponse,
    ProposalJoinGroupResponseMember,
    ProposalSyncGroupRequest,
    ProposalSyncGroupRequestMemberState,
    ProposalSyncGroupResponse,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal.all_members import (
    AssignmentError,
    assign_checked,
    choose_protocol,
    common_of,
    topics_of,
)
from kcoord_wire.worlds.proposal.member import ProposalMember
from kcoord_wire.worlds.proposal.proposal_coordinator import (
    Asked,
    Caller,
    Codec,
    Coordinator,
    CoordinatorSettings,
    Join,
    MemberSettings,
    MemberState,
    Phase,
    Save,
    Strategy,
    Subscription,
)

_METADATA_VERSION: Final = 0
_PATTERN: Final = "^"
"""Begins a topic that is a regular expression: no topic's name has it, and the document leaves the difference open."""
_CODE: Final = 2  # bytes of an error in GroupState


class _Decision(NamedTuple):
    """What is saved of a generation; `states` is None before the leader has sent them."""

    protocol: tuple[str, int]
    leader: str
    states: Mapping[str, bytes] | None


class TwoPhaseCoordinator(Coordinator):
    """Chooses protocol and leader, and forwards the leader's states.

    :ivar leader: of the present generation
    """

    def __init__(self, settings: CoordinatorSettings, boot: int, saved: Save | None, now: int) -> None:
        self.leader = ""
        self._protocol = ("", 0)
        self._states: Mapping[str, bytes] = {}
        self._next_states: Mapping[str, bytes] | None = None  # of a resync that waits for followers
        self._syncs: dict[str, Caller] = {}
        self._failed = (-1, int(ErrorCode.NONE))  # a generation, and the leader's error in it
        super().__init__(settings, boot, saved, now)

    def read(self, message: Any) -> Join | None:
        """Return what a JoinGroup asks for; None for a SyncGroup."""
        if not isinstance(message, ProposalJoinGroupRequest):
            return None
        offer = {(each.protocol, 0): each.member_metadata for each in message.group_protocols}
        return Join(message.member_id, message.session_timeout, message.protocol_type, offer)

    def refusal(self, error: ErrorCode) -> ProposalJoinGroupResponse:
        """Return the response with an error."""
        return ProposalJoinGroupResponse(error_code=error)

    def rejects(self, join: Join, others: list[Any]) -> bool:
        """Return whether the group would have no protocol in common."""
        return not common_of([join.offer, *others])

    def restored(self, decision: _Decision) -> Phase:
        """A generation that has states is complete; else its members send SyncGroup again."""
        self._protocol, self.leader, states = decision
        self._states = states or {}
        return Phase.SYNCHRONIZING if states is None else Phase.STABLE

    def formed(self) -> None:
        """Choose protocol and leader, and answer all members; their sessions begin."""
        protocol = choose_protocol([member.offer for member in self.members.values()])
        assert protocol is not None, "a member without a common protocol was not rejected"
        self._protocol = protocol
        self.leader = min(self.members, key=lambda each: hashlib.sha256(f"{self.generation}/{each}".encode()).digest())
        self._states, self._next_states = {}, None
        self.save(_Decision(protocol, self.leader, None))
        self.admit_all()
        self.phase = Phase.SYNCHRONIZING

    def joined(self, member_id: str) -> ProposalJoinGroupResponse:
        """Return the generation, and to the leader the metadata of all."""
        everyone = self.members.items() if member_id == self.leader else ()
        return ProposalJoinGroupResponse(
            group_generation_id=self.generation,
            group_protocol=self._protocol[0],
            group_leader_id=self.leader,
            member_id=member_id,
            members=[
                ProposalJoinGroupResponseMember(member_id=other, member_metadata=member.offer[self._protocol])
                for other, member in everyone
            ],
        )

    def interrupted(self) -> None:
        """A member that waits for its state joins again."""
        self._next_states = None
        self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS)

    # ---- SyncGroup

    def synchronized(self, asked: Asked) -> None:
        """A member asks for its state, or the leader sends those of all."""
        request: ProposalSyncGroupRequest = asked.message
        error = self._sync_error(request)
        if error:
            self.answer(asked.caller, ProposalSyncGroupResponse(error_code=error))
            return
        is_leader = request.member_id == self.leader and bool(request.group_state)
        if self.phase is Phase.STABLE and not is_leader:
            self._admit(request.member_id, asked.caller)
            return
        self._syncs[request.member_id] = asked.caller
        self.members[request.member_id].expires_at = NEVER
        if is_leader:
            self._led({each.member_id: each.member_state for each in request.group_state})
        if self._next_states is not None and self._syncs.keys() == self.members.keys():
            self._complete_sync(self._next_states)

    def _led(self, states: Mapping[str, bytes]) -> None:
        """The leader has sent the states of all, or its error."""
        is_resync = self.phase is Phase.STABLE or self._next_states is not None
        if "" in states:
            self._fail(int.from_bytes(states[""], signed=True))
        elif is_resync and self.settings.waits_in_resync:
            self.phase, self._next_states = Phase.SYNCHRONIZING, states
        else:
            self._complete_sync(states)

    def _sync_error(self, request: ProposalSyncGroupRequest) -> int:
        failed_in, error = self._failed
        if request.member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.group_generation_id == failed_in:
            return error
        if request.group_generation_id != self.generation or self.phase in (Phase.JOINING, Phase.EMPTY):
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _complete_sync(self, states: Mapping[str, bytes]) -> None:
        self._states, self._next_states = states, None
        self.save(_Decision(self._protocol, self.leader, states))
        self.phase = Phase.STABLE
        self._answer_syncs(ErrorCode.NONE)

    def _fail(self, error: int) -> None:
        self._failed = (self.generation, error)
        self._next_states = None
        self._answer_syncs(error)
        self.rebalance()

    def _answer_syncs(self, error: int) -> None:
        syncs, self._syncs = self._syncs, {}
        for member_id, caller in syncs.items():
            if member_id in self.members and not error:
                self._admit(member_id, caller)
                continue
            if (member := self.members.get(member_id)) is not None:
                member.expires_at = self._now + member.session_timeout_ms
            self.answer(caller, ProposalSyncGroupResponse(error_code=error or ErrorCode.UNKNOWN_MEMBER_ID))

    def _admit(self, member_id: str, caller: Caller) -> None:
        member = self.members[member_id]
        member.expires_at = self._now + member.session_timeout_ms
        self.answer(caller, ProposalSyncGroupResponse(member_state=self._states.get(member_id, b"")))


class TwoPhaseMember(ProposalMember):
    """Sends its subscription; as the leader it assigns, and watches the topics of the group.

    :param strategies: the preferred one first
    :ivar assigned_for: as the leader, a hash over the topic metadata for which it has assigned; empty for a follower
    :ivar resyncs: how many it has begun
    """

    syncs_again = True

    def __init__(self, settings: MemberSettings, codec: Codec, strategies: Sequence[Strategy]) -> None:
        super().__init__(settings, codec)
        self.strategies = {each.name: each for each in strategies}
        self.assigned_for = b""
        self.resyncs = 0
        self._strategy = strategies[0]
        self._members: Mapping[str, MemberSubscription] | None = None  # of the group that it leads
        self._states: list[ProposalSyncGroupRequestMemberState] = []
        self._sent = b""
        self._resyncs_at = NEVER

    def join_request(self) -> ProposalJoinGroupRequest:
        """Return the JoinGroup, with the same metadata for each protocol."""
        self._sent = self._encoded()
        return ProposalJoinGroupRequest(
            group_id=self.settings.group_id,
            session_timeout=self.settings.session_timeout_ms,
            member_id=self.member_id,
            protocol_type="consumer",
            group_protocols=[
                ProposalJoinGroupRequestGroupProtocol(protocol=name, member_metadata=self._sent)
                for name in self.strategies
            ],
        )

    def _encoded(self) -> bytes:
        topics, pattern = self.subscription or Subscription()
        wanted = list(topics) if pattern is None else [_PATTERN + pattern]
        rack = self.settings.rack.encode() or None
        message = ProposalConsumerMetadata(version=_METADATA_VERSION, topics=wanted, user_data=rack)
        return self.codec.encode(message)

    @property
    def is_at_rest(self) -> bool:
        """Whether it wants neither another generation nor a resync."""
        return super().is_at_rest and self._resyncs_at == NEVER

    # ---- phase 1 and 2

    def joined(self, response: Any) -> None:
        """JoinGroup or SyncGroup was answered."""
        if isinstance(response, ProposalSyncGroupResponse):
            self._synced(response)
            return
        self.member_id, self.generation = response.member_id, response.group_generation_id
        self._strategy = self.strategies[response.group_protocol]
        self._members, self._states, self.assigned_for = None, [], b""
        if response.group_leader_id == response.member_id:
            self._lead(response.members)
        self.assign_until(self.now + (self.settings.assign_ms if self._states else 0))

    def _lead(self, members: Sequence[ProposalJoinGroupResponseMember]) -> None:
        try:
            self._members = {each.member_id: self._read(each.member_metadata) for each in members}
        except ValueError:
            self._states = [_failure(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
            return
        self._assign()

    def _read(self, data: bytes) -> MemberSubscription:
        metadata = self.codec.decode(ProposalConsumerMetadata, data)
        if metadata.version != _METADATA_VERSION:
            raise ValueError(f"no such version of the metadata: {metadata.version}")
        return MemberSubscription(tuple(metadata.topics), rack=(metadata.user_data or b"").decode() or None)

    def _assign(self) -> None:
        """Compute the states of all from what the leader sees now."""
        assert self._members is not None
        self.assigned_for = self._hash()
        try:
            members = {each: self._expanded(subscription) for each, subscription in self._members.items()}
            shares = assign_checked(self._strategy, self.counts, members, self.racks)
        except (AssignmentError, ValueError):
            self._states = [_failure(ErrorCode.UNKNOWN_SERVER_ERROR)]
            return
        self._states = [
            ProposalSyncGroupRequestMemberState(member_id=each, member_state=self._state(shares.get(each, {})))
            for each in members
        ]

    def _expanded(self, subscription: MemberSubscription) -> MemberSubscription:
        names: list[str] = []
        for topic in subscription.topics:
            pattern = topic.removeprefix(_PATTERN) if topic.startswith(_PATTERN) else None
            names += topics_of(Subscription((topic,), pattern), self.counts)
        return MemberSubscription(names, rack=subscription.rack)

    def _hash(self) -> bytes:
        """Return a hash over the group's topics and partition counts; with racks, over the leaders, too."""
        by_racks = self._members is not None and any(each.rack for each in self._members.values())
        racks = self.racks if by_racks else {}
        lines = (f"{topic}\0{count}\0{racks.get(topic, ())}" for topic, count in sorted(self.counts.items()))
        return hashlib.sha256("\n".join(lines).encode()).digest()

    def _state(self, share: Mapping[str, Sequence[int]]) -> bytes:
        partitions = [
            ProposalConsumerStateTopicPartition(topic=topic, partitions=list(indexes))
            for topic, indexes in share.items()
        ]
        return self.codec.encode(ProposalConsumerState(version=_METADATA_VERSION, topic_partitions=partitions))

    def send_assignment(self) -> None:
        """Send SyncGroup: the leader with the states of all."""
        request = ProposalSyncGroupRequest(
            group_id=self.settings.group_id,
            group_generation_id=self.generation,
            member_id=self.member_id,
            group_state=self._states,
        )
        self.send(request, self.settings.join_timeout_ms)

    def _synced(self, response: ProposalSyncGroupResponse) -> None:
        state = self.read_share(ProposalConsumerState, response.member_state)
        if state is not None:
            owned = [TopicPartition(each.topic, index) for each in state.topic_partitions for index in each.partitions]
            self.enter(self.generation, self.member_id, owned)

    # ---- changes

    def topics_changed(self) -> None:
        """Join again with another subscription; with other topics, as the leader, assign again."""
        if self._encoded() != self._sent:
            self.rejoin()
        elif self._members is not None and self._hash() != self.assigned_for:
            self._resyncs_at = min(self._resyncs_at, self.now + self.settings.batch_ms)
        else:
            self._resyncs_at = NEVER

    def _due_at(self) -> int:
        return min(super()._due_at(), self._resyncs_at if self.state is MemberState.STABLE else NEVER)

    def _act(self) -> None:
        is_due = self._in_flight is None and self.state is MemberState.STABLE and self.now >= self._resyncs_at
        if is_due and self._rejoins_at == NEVER:
            self.resyncs += 1
            self._assign()
            self._sync_again()
        super()._act()

    def _sync_again(self) -> None:
        """Give everything up, and send SyncGroup."""
        self.owned = frozenset()
        self._resyncs_at = self._session_ends = NEVER
        self.assign_until(self.now)

    def _heard(self, error: int, sent_at: int) -> None:
        """A rebalance or a resync is in progress: SyncGroup says which."""
        if error == ErrorCode.REBALANCE_IN_PROGRESS and self.state is MemberState.STABLE and self._members is None:
            self._sync_again()
        else:
            super()._heard(error, sent_at)

    def _leave_generation(self, rejoins_at: int) -> None:
        self._resyncs_at = NEVER
        super()._leave_generation(rejoins_at)


def _failure(error: ErrorCode) -> ProposalSyncGroupRequestMemberState:
    return ProposalSyncGroupRequestMemberState(member_id="", member_state=int(error).to_bytes(_CODE, signed=True))
